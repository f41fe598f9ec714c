"""The text of `docs/evaluation/host-causes.md`, and the CSV file beside it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import overlapscope
from benchmarks.data_files import csv_text
from benchmarks.host_causes import SCRIPTS, HostCauseRun, PlantedCauses, StepBlock, possible, programs, read, trace_path
from benchmarks.whatif_page import milliseconds
from overlapscope.analysis.results import Plain, SampledStep
from overlapscope.catalog.causes import CAUSES, IdleCause
from overlapscope.rules.finding import Finding

TEXT = Path(__file__).with_suffix(".md")
"""The page around the tables."""
ON_TOP = 11
"""Minimum number of the twelve causes to be found."""
_WAITING = frozenset({IdleCause.GIL_WAIT, IdleCause.PREEMPTED, IdleCause.CPU_THROTTLED})
"""Causes of which a program measures the time that it waits, wherever that happens."""
PLANTED_PCT, GAIN_PCT = 20.0, 15.0
"""Limits: distance from the planted time, and of the predicted from the measured gain as a share of the plain step."""
HEAD = (
    *("program", "cause", "step, ms", "planted, ms", "reported, ms", "apart, %", "planted, % of step"),
    *("reported, % of step", "shares apart, %", "GPU waits, ms", "cause on top", "line on top", "fixed step, ms"),
    *("gain, ms", "predicted, ms", "from, ms", "to, ms", "apart, % of step", "gain, % of step", "predicted, % of step"),
    *("from, % of step", "to, % of step", "shares apart, points", "blocks, ms", "fixed blocks, ms"),
    *("step in the report, ms", "top finding"),
)
BRIEF = (0, 1, 6, 7, 18, 19)
"""Columns that the page shows, under the names of `SHARES`."""
SHARES = ("program", "cause", "planted, %", "reported, %", "gain, %", "predicted, %")


@dataclass(frozen=True)
class HostCauseRow:
    """A program, with its truth, its run and the report on its recording."""

    name: str
    program: PlantedCauses
    run: HostCauseRun
    plain: Plain | None
    """Figures of the only device without the profiler."""
    sampled: SampledStep | None
    """The launching thread without the profiler."""
    findings: Sequence[Finding]
    """Findings that cost time, the most expensive first."""

    def blocks(self, *, fixed: bool) -> tuple[StepBlock, ...]:
        """Return the blocks of steps that the program measured, with the cause or without."""
        measured = self.run.measured
        return () if measured is None else tuple(block for block in measured.blocks if block.fixed == fixed)

    def step_ns(self, *, fixed: bool) -> float | None:
        """Return the mean step with the cause or without."""
        blocks = self.blocks(fixed=fixed)
        return sum(block.span_ns for block in blocks) / sum(block.steps for block in blocks) if blocks else None

    @property
    def planted_ns(self) -> float | None:
        """Mean time of a step in the planted part, as measured by the program."""
        blocks = self.blocks(fixed=False)
        return sum(block.planted_ns for block in blocks) / sum(block.steps for block in blocks) if blocks else None

    @property
    def reported_ns(self) -> int | None:
        """Time of a step that the report gives the launching thread in the planted lines, or waiting by the cause."""
        if self.sampled is None:
            return None
        if self._lines and not _WAITING & {*self.program.causes[:1]}:
            places = {f"{self.name}.py:{line}" for line in self._lines}
            return sum(line.time_ns for line in self.sampled.lines if line.line in places)
        return sum(self.sampled.by_cause.get(cause, 0) for cause in self.program.causes)

    @property
    def idle_ns(self) -> int | None:
        """Time of a step that the GPU waits by the causes, as the report has it."""
        return None if self.plain is None else sum(self._times.get(cause, 0) for cause in self.program.causes)

    @property
    def planted_apart_pct(self) -> float | None:
        """Distance of the reported from the planted time."""
        return _apart_pct(self.reported_ns, self.planted_ns)

    @property
    def planted_pct(self) -> float | None:
        """Planted time as a share of the measured step."""
        return _share_pct(self.planted_ns, self.step_ns(fixed=False))

    @property
    def reported_pct(self) -> float | None:
        """Reported time as a share of the step that the report gives the launching thread."""
        return None if self.sampled is None else _share_pct(self.reported_ns, self.sampled.step_ns)

    @property
    def shares_apart_pct(self) -> float | None:
        """Distance of the reported from the planted share."""
        return _apart_pct(self.reported_pct, self.planted_pct)

    @property
    def cause_on_top(self) -> bool:
        """True if no other cause takes longer, and the first finding is about this one."""
        longest = max(self._times, key=self._times.__getitem__, default="")
        words = [CAUSES["idle"].get(cause) or CAUSES["exposed-copy"].get(cause) for cause in self.program.causes]
        rules = {rule for cause in words if cause for rule in (cause.rule, *cause.explained_by)}
        return longest in self.program.causes and bool(self.findings) and self.findings[0].rule in rules

    @property
    def line_on_top(self) -> bool | None:
        """True if the first finding names a planted line; None if the program has none."""
        if not self._lines:
            return None
        first = self.findings[0] if self.findings else None
        text = f"{first.title} {first.detail} {first.where.line if first.where else ''}" if first else ""
        return any(re.search(rf"\b{self.name}\.py[:(]{line}\b", text) for line in self._lines)

    @property
    def on_top(self) -> bool:
        """True if the cause is on top, and its line if it has one."""
        return self.cause_on_top and self.line_on_top is not False

    @property
    def gain_ns(self) -> float | None:
        """Measured gain of the fix."""
        before, after = self.step_ns(fixed=False), self.step_ns(fixed=True)
        return None if before is None or after is None else before - after

    @property
    def predicted_ns(self) -> tuple[float, float, float] | None:
        """Saving of the first finding's fix, with its interval; None if it or the plain program is unknown."""
        first = self.findings[0] if self.findings else None
        if first is None or first.saving is None or self.plain is None or self.plain.program is None:
            return None
        saving, steps = first.saving, max(1, first.steps)
        return saving.saved_ns / steps, saving.saved_low_ns / steps, saving.saved_high_ns / steps

    @property
    def gain_apart_pct(self) -> float | None:
        """Distance of the predicted from the measured gain, as a share of the measured step."""
        step, gain, predicted = self.step_ns(fixed=False), self.gain_ns, self.predicted_ns
        return None if step is None or gain is None or predicted is None else 100 * (predicted[0] - gain) / step

    @property
    def gain_pct(self) -> float | None:
        """Measured gain as a share of the measured step."""
        return _share_pct(self.gain_ns, self.step_ns(fixed=False))

    @property
    def predicted_pct(self) -> tuple[float, float, float] | None:
        """Predicted gain and its interval as shares of the report's step."""
        if self.predicted_ns is None or self.plain is None:
            return None
        value, low, high = (100 * ns / self.plain.step_ns for ns in self.predicted_ns)
        return value, low, high

    @property
    def gain_shares_apart(self) -> float | None:
        """Distance of the predicted from the measured share, in points."""
        return None if self.gain_pct is None or self.predicted_pct is None else self.predicted_pct[0] - self.gain_pct

    @property
    def failure(self) -> str | None:
        """Failure of the run, with the last line that it printed."""
        if self.run.exit_code == 0:
            return None
        ended = "took too long" if self.run.exit_code is None else f"ended with {self.run.exit_code}"
        return f"`{self.name}` {ended}: {''.join(self.run.printed.splitlines()[-1:])}"

    @property
    def cells(self) -> tuple[str, ...]:
        value, *interval = self.predicted_ns or (None,) * 3
        share, *share_interval = self.predicted_pct or (None,) * 3
        reported, apart = _judged(_shown(self.reported_ns), self.planted_apart_pct, PLANTED_PCT)
        reported_pct, shares_apart = _judged(_points(self.reported_pct), self.shares_apart_pct, PLANTED_PCT)
        predicted, gain_apart = _judged(_shown(value), self.gain_apart_pct, GAIN_PCT)
        predicted_pct, gain_shares_apart = _judged(_points(share), self.gain_shares_apart, GAIN_PCT)
        return (
            f"`{self.name}`",
            _bold(self.program.causes[0], good=self.on_top) if self.program.causes else "none",
            *(_shown(ns) for ns in (self.step_ns(fixed=False), self.planted_ns)),
            *(reported, apart, _points(self.planted_pct), reported_pct, shares_apart),
            _shown(self.idle_ns),
            _yes(self.cause_on_top) if self.program.causes else "",
            "" if self.line_on_top is None else _yes(self.line_on_top),
            *(_shown(ns) for ns in (self.step_ns(fixed=True), self.gain_ns)),
            *(predicted, *map(_shown, interval), gain_apart),
            *(_points(self.gain_pct), predicted_pct, *map(_points, share_interval), gain_shares_apart),
            *(_range(self.blocks(fixed=fixed)) for fixed in (False, True)),
            _shown(None if self.plain is None else self.plain.step_ns),
            self.findings[0].title if self.findings else "none",
        )

    @cached_property
    def _lines(self) -> list[int]:
        source = (SCRIPTS / f"{self.name}.py").read_text(encoding="utf-8").splitlines()
        return [number for number, line in enumerate(source, 1) if line.endswith("# planted")]

    @property
    def _times(self) -> Mapping[str, int]:
        """Idle time and exposed copies of a plain step by cause."""
        return {} if self.plain is None else {**self.plain.exposed_copy_by_cause, **self.plain.idle_by_cause}


def rows(out: Path) -> Iterator[HostCauseRow]:
    """Analyze each recording. Programs that can't plant their cause on the machine are left out."""
    runs = {run.program: run for run in read(out)}
    for name, program in programs().items():
        run, trace = runs.get(name), trace_path(out, name)
        if run is None or not trace.exists() or not possible(run):
            continue
        report = overlapscope.analyze(overlapscope.load(trace, cache=False, progress=False))
        plain = report.devices[0].plain if report.devices else None
        costly = [each for each in report.findings if each.severity != "info"]
        yield HostCauseRow(name, program, run, plain, report.traces[0].sampled, costly)


def files(out: Path, page: Path) -> dict[Path, str]:
    """Return the text of the page and of the file beside it by path."""
    found = list(rows(out))
    text = TEXT.read_text(encoding="utf-8")
    machine = next((run.measured.machine for run in read(out) if run.measured), None)
    for name, part in {
        "machine": f"{machine.gpu or 'a CPU'}, torch {machine.torch}, Python {machine.python}" if machine else "",
        "goals": _table(("", "wanted", "by time", "by share of the step"), _goals(found)),
        "rows": _table(SHARES, (_brief(row.cells) for row in found if row.program.causes)),
        "drift": ", ".join(_drift(found)),
        "failures": "".join(f"Failed: {row.failure}.\n" for row in found if row.failure),
        "missing": "".join(f"Not measured: {name}.\n" for name in _missing(read(out), {row.name for row in found})),
    }.items():
        text = text.replace(f"{{{name}}}", part)
    return {page: text, page.with_suffix(".csv"): csv_text(HEAD, (row.cells for row in found))}


def _brief(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the cells that the page shows; the file beside it has all."""
    return tuple(cells[column] for column in BRIEF)


def _goals(found: Sequence[HostCauseRow]) -> Iterator[tuple[str, ...]]:
    planted = [row for row in found if row.program.causes]
    on_top = sum(row.on_top for row in planted)
    yield "cause and line on top", f"{ON_TOP} of 12", _bold(f"{on_top} of {len(planted)}", good=on_top >= ON_TOP), ""
    for words, limit, apart, shares in (
        (
            "reported within 20% of the planted time",
            PLANTED_PCT,
            [row.planted_apart_pct for row in planted],
            [row.shares_apart_pct for row in planted],
        ),
        (
            "gain within 15% of the plain step",
            GAIN_PCT,
            [row.gain_apart_pct for row in planted],
            [row.gain_shares_apart for row in planted],
        ),
    ):
        yield words, "all", _all(_within(pct, limit) for pct in apart), _all(_within(pct, limit) for pct in shares)
    contained = [
        [_inside(row.gain_ns, row.predicted_ns) for row in planted],
        [_inside(row.gain_pct, row.predicted_pct) for row in planted],
    ]
    yield "gain in the interval", "all", *map(_all, contained)
    others = [row for row in found if not row.program.causes]
    yield "without a cause: nothing reported", "all", _all(not row.findings for row in others), ""


def _within(apart: float | None, limit: float) -> bool:
    return apart is not None and abs(apart) <= limit


def _inside(measured: float | None, predicted: tuple[float, float, float] | None) -> bool:
    return measured is not None and predicted is not None and predicted[1] <= measured <= predicted[2]


def _all(each: Iterable[bool]) -> str:
    """Return how many hold, bold if not all do."""
    outcomes = [*each]
    return _bold(f"{sum(outcomes)} of {len(outcomes)}", good=all(outcomes))


def _drift(found: Sequence[HostCauseRow]) -> Iterator[str]:
    """Return by how much the blocks with the cause differ in the steadiest program and in the least steady one."""
    means = [[block.span_ns / block.steps for block in row.blocks(fixed=False)] for row in found]
    apart = sorted(100 * (max(each) / min(each) - 1) for each in means if each)
    if apart:
        yield f"{apart[0]:.0f} to {apart[-1]:.0f}%"


def _missing(runs: Sequence[HostCauseRun], found: Collection[str]) -> Iterator[str]:
    """Name the programs without a row, with the reasons that they printed."""
    for name in (name for name in programs() if name not in found):
        reasons = {run.printed.splitlines()[-1] for run in runs if run.program == name and not possible(run)}
        yield f"`{name}`{''.join(f' ({reason})' for reason in reasons)}"


def _shown(ns: float | None) -> str:
    return milliseconds(None if ns is None else round(ns))


def _points(pct: float | None) -> str:
    return "" if pct is None else f"{pct:.1f}"


def _share_pct(part_ns: float | None, step_ns: float | None) -> float | None:
    return 100 * part_ns / step_ns if part_ns is not None and step_ns else None


def _apart_pct(reported: float | None, true: float | None) -> float | None:
    return 100 * (reported / true - 1) if reported is not None and true else None


def _range(blocks: Sequence[StepBlock]) -> str:
    """Return the shortest and the longest mean step of blocks."""
    means = sorted(block.span_ns / block.steps for block in blocks)
    return f"{_shown(means[0])} to {_shown(means[-1])}" if means else ""


def _judged(text: str, apart: float | None, limit: float) -> tuple[str, str]:
    """Return a figure and its distance from the measured one, both bold if it is too large."""
    if apart is None:
        return text, ""
    good = _within(apart, limit)
    return _bold(text, good=good), _bold(f"{apart:+.1f}", good=good)


def _yes(holds: bool) -> str:
    return _bold("yes" if holds else "no", good=holds)


def _bold(text: str, *, good: bool) -> str:
    return text if good else f"**{text}**"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))
