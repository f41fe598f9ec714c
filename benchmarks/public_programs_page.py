"""The text of `docs/evaluation/public-programs.md`, and the CSV file beside it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.data_files import csv_text
from benchmarks.public_programs_clock import Clocked
from benchmarks.public_programs_runs import ProgramList, PublicProgram, PublicProgramMeasurements
from overlapscope.base.words import clean, duration
from overlapscope.recorder.step_times import settled

TEXT = Path(__file__).with_suffix(".md")
"""The page around the table."""
LONGEST = 80
"""Number of characters that are shown of an error."""
PROGRAMS, NEW, REPOSITORIES = 30, 12, 15
"""Least numbers of them."""
OFF_PCT, COST = (3, 10), (1.25, 1.5)
"""Limits in the median and at worst: distance of the reported step from the clock, and cost of recording."""
FIRST = 20
"""Number of first steps that don't count."""
BLOCK = 20
"""Number of steps whose median is a pace."""
SAME = 0.2
"""Relative difference up to which two medians are the same pace."""
FEWEST = 50
"""Least number of steps at the usual pace for a program to count."""
_ERROR = re.compile(r"\b\w*(Error|Exception)\b.*:")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = ("program", "new", "steps", "by the clock", "reported", "off by", "recorded", "cost")
_MORE = (
    *("kind", "step", "clocked steps", "undisturbed steps", "median", "recorded again", "top finding", "wall"),
    *("repository", "commit", "command"),
)


def page(measured: Sequence[PublicProgramMeasurements], table: ProgramList, trials: str) -> str:
    """Return the whole page, with the section about trials."""
    rows = [PublicProgramRow(run, table.programs[run.program]) for run in measured]
    text = TEXT.read_text(encoding="utf-8")
    for name, part in {
        "machine": " and ".join(dict.fromkeys(run.machine for run in measured)),
        "goals": _lines(("", "wanted", "reached"), _goals(rows)),
        "programs": _lines(_HEAD, (row.cells for row in rows)),
        "trials": trials,
        "failures": "\n".join(f"- {failure}" for row in rows for failure in row.failures) or "None.",
        "first": str(FIRST),
        "fewest": str(FEWEST),
    }.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def data(measured: Sequence[PublicProgramMeasurements], table: ProgramList) -> str:
    """Return the CSV file with a row for each program."""
    rows = [PublicProgramRow(run, table.programs[run.program]) for run in measured]
    return csv_text((*_HEAD, *_MORE), [(*row.cells, *row.more) for row in rows])


def undisturbed(clocked: Clocked, each: int) -> Iterator[int]:
    """Yield the lengths of steps, without the first ones and those that the recorder disturbed."""
    ends_ns = clocked.ends_ns[::each]
    paused_ns = resumed_ns = since = 0
    workers = False
    for number, (begin_ns, end_ns) in enumerate(pairwise(ends_ns)):
        during = [part for part in clocked.disturbances if part.begin_ns < end_ns and part.end_ns > begin_ns]
        if during:
            paused_ns, resumed_ns = sum(part.end_ns - part.begin_ns for part in during), during[-1].end_ns
            since, workers = 0, during[-1].workers
        elif number >= FIRST and settled(since, begin_ns - resumed_ns, paused_ns, workers=workers):
            yield end_ns - begin_ns
        since += 1


def recorded(clocked: Clocked, each: int) -> list[int]:
    """Return the lengths of the steps in the last recording, without its first one and those of the program."""
    steps = list(pairwise(clocked.ends_ns[::each]))[FIRST:]
    inside = (
        [end_ns - begin_ns for begin_ns, end_ns in steps if part.begin_ns <= begin_ns and end_ns <= part.end_ns]
        for part in clocked.disturbances
    )
    return next((lengths[1:] for lengths in reversed([*inside]) if len(lengths) > 1), [])


def usual(lengths_ns: Sequence[int]) -> list[int]:
    """Return the lengths of steps at the pace at which the program spends most of its time.

    A block of steps has the pace of its median, so its longer steps, such as those of a validation, belong to it.
    """
    blocks = [lengths_ns[start : start + BLOCK] for start in range(0, len(lengths_ns), BLOCK)]
    paces_ns = [statistics.median(block) for block in blocks]
    groups = [
        [ns for block, other_ns in zip(blocks, paces_ns, strict=True) if _is_same(pace_ns, other_ns) for ns in block]
        for pace_ns in paces_ns
    ]
    return max(groups, key=sum, default=[])


def _is_same(one_ns: float, other_ns: float) -> bool:
    return abs(one_ns - other_ns) <= SAME * min(one_ns, other_ns)


class PublicProgramRow:
    """A program's figures."""

    def __init__(self, measured: PublicProgramMeasurements, program: PublicProgram) -> None:
        self.measured, self.program, self.report = measured, program, measured.report
        self.undisturbed_ns = list(undisturbed(measured.run.clocked, program.each))
        self.usual_ns = usual(self.undisturbed_ns)
        """Undisturbed steps at the usual pace, by the clock."""
        self.recorded_ns = recorded(measured.run.clocked, program.each)

    @property
    def mean_ns(self) -> float | None:
        """Mean step by the clock; None if too few steps were clocked."""
        return statistics.fmean(self.usual_ns) if len(self.usual_ns) >= FEWEST else None

    @property
    def off_pct(self) -> float | None:
        """Distance of the reported step from the clock's mean; None if one of them is unknown."""
        if self.mean_ns is None or self.report is None or self.report.step_ns is None:
            return None
        return 100 * (self.report.step_ns / self.mean_ns - 1)

    @property
    def cost(self) -> float | None:
        """Ratio of the medians of recorded and of usual steps; None if one of them is unknown."""
        if self.mean_ns is None or not self.recorded_ns:
            return None
        return statistics.median(self.recorded_ns) / statistics.median(self.usual_ns)

    @property
    def has_report(self) -> bool:
        """True if the program ended well and got a report."""
        return self.measured.run.exit_code == 0 and self.report is not None

    @property
    def failures(self) -> Iterator[str]:
        """A sentence if the run failed, with the last error that it printed."""
        run = self.measured.run
        if run.exit_code != 0:
            lines = [_COLOUR.sub("", line).strip() for line in run.printed.splitlines() if _ERROR.search(line)]
            ended = "was ended for taking too long" if run.exit_code is None else f"ended with {run.exit_code}"
            yield f"`{self.measured.program}` {ended}{f': {clean(lines[-1][:LONGEST])}' if lines else '.'}"

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of the page's table."""
        report, off = self.report, self.off_pct
        return (
            f"`{self.measured.program}`",
            "new" if self.program.new else "",
            str(len(self.usual_ns)),
            "" if self.mean_ns is None else duration(round(self.mean_ns)),
            "" if report is None or report.step_ns is None else duration(report.step_ns),
            "" if off is None else f"{off:+.1f}%",
            duration(round(statistics.median(self.recorded_ns))) if self.recorded_ns else "",
            "" if self.cost is None else f"{self.cost:.2f}",
        )

    @property
    def more(self) -> tuple[str, ...]:
        """Further cells of the file."""
        report, run, program = self.report, self.measured.run, self.program
        return (
            program.kind,
            clean(report.step_source or "") if report else "",
            str(len(run.clocked.ends_ns[:: program.each])),
            str(len(self.undisturbed_ns)),
            duration(round(statistics.median(self.usual_ns))) if self.usual_ns else "",
            str(run.printed.count("are recorded instead")),
            clean(report.findings[0]) if report and report.findings else "none",
            f"{run.wall_s:.1f} s",
            program.repository,
            self.measured.commit[:10],
            " ".join(program.command),
        )


def _goals(rows: Sequence[PublicProgramRow]) -> Iterator[tuple[str, ...]]:
    yield "programs", f"{PROGRAMS}", str(len(rows))
    yield "of them new", f"{NEW}", str(sum(row.program.new for row in rows))
    yield "repositories", f"{REPOSITORIES}", str(len({row.program.repository for row in rows}))
    yield "programs with a report", "all", _share(row.has_report for row in rows)
    off = sorted(abs(row.off_pct) for row in rows if row.off_pct is not None)
    yield "programs whose reported step has a clock to compare", f"{PROGRAMS}", str(len(off))
    yield from _limits("reported step off by", off, OFF_PCT, "{:.1f}%", "{}%")
    costs = sorted(row.cost for row in rows if row.cost is not None)
    yield from _limits("recorded step as a multiple of the others", costs, COST, "{:.2f}", "{}")


def _limits(
    what: str, values: Sequence[float], limits: tuple[float, float], style: str, limit_style: str
) -> Iterator[tuple[str, ...]]:
    if values:
        for where, value, limit in zip(
            ("in the median", "at worst"), (statistics.median(values), values[-1]), limits, strict=True
        ):
            text = style.format(value)
            yield f"{what}, {where}", limit_style.format(limit), text if value <= limit else f"**{text}**"


def _share(met: Iterable[bool]) -> str:
    each = list(met)
    text = f"{sum(each)} of {len(each)}"
    return text if all(each) else f"**{text}**"


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
