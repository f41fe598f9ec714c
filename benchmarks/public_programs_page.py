"""The text of `docs/evaluation/public-programs.md`, and the CSV file beside it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.data_files import csv_text
from benchmarks.public_programs_runs import ProgramList, PublicProgram, PublicProgramMeasurements
from overlapscope.base.words import clean, duration

TEXT = Path(__file__).with_suffix(".md")
"""The page around the table."""
TIMED_STEPS = slice(10, 41)
"""The steps of a program in which overlapscope times and records: the same ones by the clock are compared."""
LONGEST = 80
"""Number of characters that are shown of an error."""
EXTRA_S, EXTRA_SHARE = 15.0, 0.20
"""Limit of the extra wall time: seconds, plus a share of the program's wall time."""
PROGRAMS, REPOSITORIES = 30, 15
"""Least numbers of them."""
_ERROR = re.compile(r"\b\w*(Error|Exception)\b.*:")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = (
    *("program", "kind", "steps", "step", "by the clock", "apart", "all steps", "top finding", "wall", "extra"),
    *("repository", "commit", "command"),
)
_WITHIN_PCT = (5, 20, 50)
"""Limits of the distances that are counted."""


def page(measured: Sequence[PublicProgramMeasurements], table: ProgramList, trials: str) -> str:
    """Return the whole page, with the section about trials."""
    rows = [PublicProgramRow(run, table.programs[run.program]) for run in measured]
    text = TEXT.read_text(encoding="utf-8")
    for name, part in {
        "machine": " and ".join(dict.fromkeys(run.machine for run in measured)),
        "goals": _lines(("", "wanted", "reached"), _goals(rows)),
        "trials": trials,
        "failures": "\n".join(f"- {failure}" for row in rows for failure in row.failures),
        "missing": str(len(table.programs.keys() - {run.program for run in measured})),
    }.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def data(measured: Sequence[PublicProgramMeasurements], table: ProgramList) -> str:
    """Return the CSV file with a row for each program."""
    rows = [PublicProgramRow(run, table.programs[run.program]) for run in measured]
    return csv_text(_HEAD, [(*row.cells, *row.origin) for row in rows])


class PublicProgramRow:
    """A program's figures."""

    def __init__(self, measured: PublicProgramMeasurements, program: PublicProgram) -> None:
        self.measured, self.program = measured, program
        self.recorded = measured.of("recorded")[-1]
        self.others = [run for run in measured.runs if run.way != "recorded" and run.exit_code == 0]
        clocks = [_steps(item.ends_ns, program.each) for item in measured.of("clock")]
        self.clock_ns = [statistics.median(steps[TIMED_STEPS]) for steps in clocks if steps[TIMED_STEPS]]
        """Median of the same steps in each run with the clock."""
        self.all_ns = [statistics.median(steps) for steps in clocks if steps]
        """Median of all steps in each run with the clock."""
        report = measured.report or {"traces": [], "findings": []}
        self.traces = report["traces"]
        self.device = next((device for trace in self.traces for device in trace["devices"]), None)
        self.findings: list[str] = [finding["title"] for finding in report["findings"]]

    @property
    def by(self) -> str:
        """Event that ends a step, in the recorder's words."""
        sources = [trace.get("step_source") for trace in self.traces]
        return sources[0] or ("steps in the trace" if self.device and self.device["steps"] else "") if sources else ""

    @property
    def step_ns(self) -> float | None:
        """Step of the program without the profiler, by overlapscope."""
        if self.measured.plain_ns:
            return statistics.median(self.measured.plain_ns)
        return self.device["plain_step_ns"] if self.device else None

    @property
    def apart_pct(self) -> float | None:
        """Distance from the range of the runs with the clock, as a percentage of their mean; None if unknown."""
        if self.step_ns is None or not self.clock_ns:
            return None
        low, high = min(self.clock_ns), max(self.clock_ns)
        return 100 * (max(self.step_ns - high, 0) + min(self.step_ns - low, 0)) / statistics.mean(self.clock_ns)

    @property
    def wall_s(self) -> float | None:
        """Mean wall time without overlapscope; None if no such run ended well."""
        return statistics.mean(other.wall_s for other in self.others) if self.others else None

    @property
    def extra_s(self) -> float | None:
        """Wall time that `overlapscope run` adds."""
        return None if self.wall_s is None else self.recorded.wall_s - self.wall_s

    @property
    def in_time(self) -> bool | None:
        """True if the extra wall time is within the limit; None if unknown."""
        if self.wall_s is None or self.extra_s is None:
            return None
        return self.extra_s <= EXTRA_S + EXTRA_SHARE * self.wall_s

    @property
    def has_report(self) -> bool:
        """True if the program ended well and got a report of its GPU."""
        return self.recorded.exit_code == 0 and self.device is not None

    @property
    def failures(self) -> Iterator[str]:
        """Runs that failed, each with the last error that it printed."""
        for run in self.measured.runs:
            if run.exit_code != 0:
                lines = [_COLOUR.sub("", line).strip() for line in run.printed.splitlines() if _ERROR.search(line)]
                ended = "was ended for taking too long" if run.exit_code is None else f"ended with {run.exit_code}"
                way = "under `overlapscope run`" if run.way == "recorded" else "without overlapscope"
                why = f": {clean(lines[-1][:LONGEST])}" if lines else "."
                yield f"`{self.measured.program}` {way} {ended}{why}"

    @property
    def cells(self) -> tuple[str, ...]:
        apart = self.apart_pct
        extra = "" if self.extra_s is None else f"{self.extra_s:+.1f} s"
        return (
            f"`{self.measured.program}`",
            self.program.kind,
            clean(self.by) if self.has_report else "**no report**",
            "" if self.step_ns is None else duration(round(self.step_ns)),
            ", ".join(duration(round(ns)) for ns in self.clock_ns),
            "" if apart is None else f"{apart:+.1f}%",
            ", ".join(duration(round(ns)) for ns in self.all_ns),
            clean(self.findings[0]) if self.findings else "none",
            "" if self.wall_s is None else f"{self.wall_s:.1f} s",
            f"**{extra}**" if self.in_time is False else extra,
        )

    @property
    def origin(self) -> tuple[str, ...]:
        program = self.program
        command = " ".join(program.command)
        return program.repository, self.measured.commit[:10], command


def _steps(ends_ns: Sequence[int], each: int) -> list[int]:
    return [end - begin for begin, end in pairwise(ends_ns[::each])]


def _goals(rows: Sequence[PublicProgramRow]) -> Iterator[tuple[str, ...]]:
    yield "programs", f"{PROGRAMS}", str(len(rows))
    yield "repositories", f"{REPOSITORIES}", str(len({row.program.repository for row in rows}))
    yield "programs with a report of the GPU", "all", _share(row.has_report for row in rows)
    yield "programs whose steps were found", "all", _share(bool(row.by) for row in rows)
    limits = [row.in_time for row in rows if row.in_time is not None]
    yield f"extra wall time at most {EXTRA_S:.0f} s plus {EXTRA_SHARE:.0%}", "all", _share(limits)
    apart = sorted(abs(row.apart_pct) for row in rows if row.apart_pct is not None)
    yield "step apart from the clock, median and worst", "", f"{statistics.median(apart):.1f}% and {apart[-1]:.1f}%"
    for limit in _WITHIN_PCT:
        yield f"step within {limit}% of the clock", "", f"{sum(pct <= limit for pct in apart)} of {len(apart)}"


def _share(met: Iterable[bool]) -> str:
    each = list(met)
    text = f"{sum(each)} of {len(each)}"
    return text if all(each) else f"**{text}**"


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
