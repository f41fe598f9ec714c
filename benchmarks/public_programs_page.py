"""The text of `docs/evaluation/public-programs.md`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.public_programs_runs import Measured, Program, Table
from overlapscope.base.words import clean, duration

TEXT = Path(__file__).with_suffix(".md")
"""The page around the table."""
SKIPPED_STEPS = 5
"""Steps at the start that are not compared: they warm up."""
EXTRA_S, EXTRA_SHARE = 15.0, 0.20
"""Limit of the extra wall time: seconds, plus a share of the program's wall time."""
PROGRAMS, REPOSITORIES = 30, 15
"""Least numbers of them."""
_HEAD = ("program", "kind", "steps", "step", "by the clock", "apart", "top finding", "wall", "extra")


def page(measured: Sequence[Measured], table: Table) -> str:
    """Return the whole page."""
    rows = [Row(one, table.programs[one.program]) for one in measured]
    text = TEXT.read_text(encoding="utf-8")
    for name, part in {
        "machine": " and ".join(dict.fromkeys(one.machine for one in measured)),
        "goals": _lines(("", "wanted", "reached"), _goals(rows)),
        "table": _lines(_HEAD, (row.cells for row in rows)),
        "commits": _lines(("program", "repository", "commit", "command"), (row.origin for row in rows)),
    }.items():
        text = text.replace(f"{{{name}}}", part)
    return text


class Row:
    """A program's figures."""

    def __init__(self, measured: Measured, program: Program) -> None:
        self.measured, self.program = measured, program
        self.recorded = measured.of("recorded")[-1]
        self.others = [one for one in measured.runs if one.way != "recorded"]
        clocks = [_steps(one.ends_ns, program.each) for one in measured.of("clock")]
        self.clock_ns = [statistics.median(steps) for steps in clocks if steps]
        """Median step of each run with the clock."""
        report = measured.report or {"traces": [], "findings": []}
        self.traces = report["traces"]
        self.device = next((device for trace in self.traces for device in trace["devices"]), None)
        self.findings: list[str] = [finding["title"] for finding in report["findings"]]

    @property
    def by(self) -> str:
        """What ends a step, in the recorder's words."""
        sources = [trace.get("step_source") for trace in self.traces]
        return sources[0] or ("steps in the trace" if self.device and self.device["steps"] else "") if sources else ""

    @property
    def step_ns(self) -> float | None:
        """Step of the program without the profiler, by overlapscope."""
        if self.measured.plain_ns:
            return statistics.median(self.measured.plain_ns)
        return self.device["plain"]["step_ns"] if self.device and self.device.get("plain") else None

    @property
    def apart_pct(self) -> float | None:
        """Distance from the range of the runs with the clock, as a percentage of their mean; None if unknown."""
        if self.step_ns is None or not self.clock_ns:
            return None
        low, high = min(self.clock_ns), max(self.clock_ns)
        return 100 * (max(self.step_ns - high, 0) + min(self.step_ns - low, 0)) / statistics.mean(self.clock_ns)

    @property
    def wall_s(self) -> float:
        """Mean wall time without overlapscope."""
        return statistics.mean(one.wall_s for one in self.others)

    @property
    def extra_s(self) -> float:
        """Wall time that `overlapscope run` adds."""
        return self.recorded.wall_s - self.wall_s

    @property
    def has_report(self) -> bool:
        """True if the program ended well and got a report."""
        return self.recorded.exit_code == 0 and bool(self.measured.report)

    @property
    def cells(self) -> tuple[str, ...]:
        apart = self.apart_pct
        late = self.extra_s > EXTRA_S + EXTRA_SHARE * self.wall_s
        extra = f"{self.extra_s:+.1f} s"
        return (
            f"`{self.measured.program}`",
            self.program.kind,
            clean(self.by) if self.has_report else "**no report**",
            "" if self.step_ns is None else duration(round(self.step_ns)),
            ", ".join(duration(round(ns)) for ns in self.clock_ns),
            "" if apart is None else f"{apart:+.1f}%",
            clean(self.findings[0]) if self.findings else "none",
            f"{self.wall_s:.1f} s",
            f"**{extra}**" if late else extra,
        )

    @property
    def origin(self) -> tuple[str, ...]:
        program = self.program
        command = " ".join(program.command)
        return f"`{self.measured.program}`", program.repository, f"`{self.measured.commit[:10]}`", f"`{command}`"


def _steps(ends_ns: Sequence[int], each: int) -> list[int]:
    ends = ends_ns[::each]
    lengths = [end - begin for begin, end in pairwise(ends)]
    return lengths[SKIPPED_STEPS:] if len(lengths) > 2 * SKIPPED_STEPS else lengths


def _goals(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    yield "programs", f"{PROGRAMS}", str(len(rows))
    yield "repositories", f"{REPOSITORIES}", str(len({row.program.repository for row in rows}))
    yield "programs with a report", "all", _share(row.has_report for row in rows)
    yield "programs whose steps were found", "all", _share(bool(row.by) for row in rows)
    limits = [row.extra_s <= EXTRA_S + EXTRA_SHARE * row.wall_s for row in rows]
    yield f"extra wall time at most {EXTRA_S:.0f} s plus {EXTRA_SHARE:.0%}", "all", _share(limits)


def _share(met: Iterable[bool]) -> str:
    each = list(met)
    text = f"{sum(each)} of {len(each)}"
    return text if all(each) else f"**{text}**"


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
