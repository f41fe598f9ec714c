"""What relative budgets compare with: the values of every step, in a file small enough to be reviewed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec

from overlapscope.analysis.jobs import mixture
from overlapscope.analysis.results import Device, Environment, Period, TraceResult
from overlapscope.base.words import plural
from overlapscope.budgets.doubt import doubt, refuse_predicted
from overlapscope.budgets.metrics import METRICS, Direction, Metric, Sample
from overlapscope.budgets.quantity import show
from overlapscope.budgets.samples import Series, moved_in
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.compare.environment import fingerprint
from overlapscope.compare.resampling import FEWEST
from overlapscope.compare.steps import without_warm_up
from overlapscope.errors import UsageError
from overlapscope.report.model import Report, Tool, of_program
from overlapscope.trace.lost import FIGURES

SCHEMA_VERSION: Final = 1
STEPS: Final = "steps"
_DIGITS = 4
"""Decimals of percentages and bandwidths."""


class BaselineDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One device of one rank, and its steps."""

    rank: int | None = None
    device: int
    first: int
    """Number, from 0, of the first step here among all that were recorded: those before it were cut."""
    steps: tuple[str, ...]
    """Names of the steps, warm-up included."""


class BaselineSeries(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One metric of one device, step by step or occurrence by occurrence."""

    rank: int | None = None
    device: int
    metric: str
    direction: Direction | None = None
    """None for both together."""
    cause: str | None = None
    """The part of `exposed_copy_time` or `idle_time` that is due to one cause; None for the whole metric."""
    scope: str
    """`steps`, or the name of a range."""
    typical: str
    """The median as text, for whoever reviews the file."""
    steps: tuple[int, ...] | None = None
    """Of a range: the step in which each occurrence begins."""
    values: tuple[float | None, ...]
    """Nanoseconds, percent or 1e9 bytes a second; null for a percentage of nothing."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of one job."""

    kind: Literal["baseline"] = "baseline"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    environment: Environment
    devices: tuple[BaselineDevice, ...]
    series: tuple[BaselineSeries, ...]

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that it is of."""
        return frozenset(one.rank for one in self.devices if one.rank is not None)

    def device_for(self, rank: int | None, device: int, *, only: bool) -> BaselineDevice | None:
        """What a device is compared with: the same of the same rank; with `only`, where there is one device on either
        side, that one."""
        found = [one for one in self.devices if (one.rank, one.device) == (rank, device)]
        if not found and rank is not None:
            mine = [one for one in self.devices if one.rank == rank]
            # A rank has one device as a rule, and which ordinal that is differs from machine to machine.
            found = mine if len(mine) == 1 else []
        if not found and only and len(self.devices) == 1:
            found = list(self.devices)
        return found[0] if found else None

    def values(
        self, of: BaselineDevice, metric: Metric, direction: Direction | None, scope: str, *, skip: int
    ) -> Series | None:
        """A metric's values in the samples that are compared; None where there are none."""
        found, spans = self._find(of, metric.id, direction, scope), self._find(of, "step_time", None, scope)
        if spans is None:
            return None
        lengths = [round(value or 0) for value in spans.values]
        # What had nothing to measure is not written; no time was spent on it.
        values = found.values if found else (0.0 if metric.unit == "ns" else None,) * len(lengths)
        names = of.steps if scope == STEPS else tuple(f"{scope} ({number})" for number in range(1, len(lengths) + 1))
        return Series(names, tuple(values), tuple(lengths)).take(self._kept(of, scope, skip))

    def by_cause(self, of: BaselineDevice, metric: str, scope: str, *, skip: int) -> dict[str, float]:
        """The mean of each cause's part of `exposed_copy_time` or `idle_time` over the samples that are compared."""
        found = {}
        for one in self.series:
            if (one.rank, one.device, one.metric, one.scope) == (of.rank, of.device, metric, scope) and one.cause:
                kept = self._kept(of, scope, skip)
                found[one.cause] = math.fsum(one.values[number] or 0.0 for number in kept) / max(1, len(kept))
        return found

    def _kept(self, of: BaselineDevice, scope: str, skip: int) -> Sequence[int]:
        """Which samples are compared."""
        steps = _compared(of, self._spans(of), skip)
        if scope == STEPS:
            return steps
        spans = self._find(of, "step_time", None, scope)
        begun = (spans.steps if spans else None) or ()
        return [number for number, step in enumerate(begun) if not steps or step >= steps[0]]

    def _spans(self, of: BaselineDevice) -> list[int]:
        found = self._find(of, "step_time", None, STEPS)
        return [round(value or 0) for value in found.values] if found else []

    def _find(self, of: BaselineDevice, metric: str, direction: Direction | None, scope: str) -> BaselineSeries | None:
        wanted = (of.rank, of.device, metric, direction, scope, None)
        for one in self.series:
            if (one.rank, one.device, one.metric, one.direction, one.scope, one.cause) == wanted:
                return one
        return None


def _compared(of: BaselineDevice, spans: list[int], skip: int) -> tuple[int, ...]:
    """As `steps.compared` chooses them; what was cut is not in the file."""
    return without_warm_up([number for number in range(len(of.steps)) if of.first + number >= skip], spans)


def of(report: Report, *, ranges: Iterable[str] = (), allow_predicted: bool = False) -> Baseline:
    """The baseline that a report makes; `ranges` are patterns of those to be kept besides the steps. That of a
    prediction says so in its environment.

    Raises UsageError where the report cannot serve as one.
    """
    if not allow_predicted:
        refuse_predicted(report)
    if unlike := mixture(report.traces):
        raise UsageError(f"{' '.join(unlike)} A baseline is of one job; name its traces alone.")
    patterns = tuple(ranges)
    report = of_program(report)
    devices: list[BaselineDevice] = []
    lines: list[BaselineSeries] = []
    for trace in report.traces:
        _refuse_if_doubtful(trace)
        for device in trace.devices:
            whole = [number for number, step in enumerate(device.steps) if not step.partial]
            one = BaselineDevice(
                rank=trace.rank,
                device=device.device,
                first=whole[0] if whole else 0,
                steps=tuple(device.steps[number].name for number in whole),
            )
            if any((known.rank, known.device) == (one.rank, one.device) for known in devices):
                which = "without a rank" if one.rank is None else f"of rank {one.rank}"
                raise UsageError(f"{trace.source}: is the second trace {which}; a baseline is of one job.")
            devices.append(one)
            samples = [Sample(device.steps[n].name, device.steps[n], moved_in(device, n)) for n in whole]
            lines += _series(one, STEPS, samples, None)
            for name, periods in _ranges(device, patterns).items():
                begun = [_step_of(device, period) - one.first for period in periods]
                lines += _series(one, name, [Sample(name, period, {}) for period in periods], begun)
    return Baseline(
        environment=fingerprint(report),
        devices=tuple(sorted(devices, key=lambda d: (_order(d.rank), d.device))),
        series=tuple(sorted(lines, key=_line_order)),
    )


def _refuse_if_doubtful(trace: TraceResult) -> None:
    """Raises UsageError where the figures of a trace are not those of the program."""
    checks = {check.id: check for check in trace.trust.checks}
    if trace.trust.verdict == "unusable":
        raise UsageError(f"{trace.source}: is unusable, so it can be no baseline; `overlapscope analyze` says why.")
    if "launches" in checks and checks["launches"].status == "fail":
        raise UsageError(
            f"{trace.source}: records no launches, so it has no steps to compare; record it with CPU activity."
        )
    if lost := doubt(trace, FIGURES):
        raise UsageError(f"{trace.source}: can be no baseline, as {lost}; record it again.")


def doubts(baseline: Baseline) -> tuple[str, ...]:
    """What keeps relative budgets from being judged by it, in sentences."""
    few = [one for one in baseline.devices if len(_compared(one, baseline._spans(one), 0)) < FEWEST]
    return tuple(
        f"{_place(one)} has {plural(len(_compared(one, baseline._spans(one), 0)), 'step')} to compare: "
        f"relative budgets need {FEWEST}."
        for one in few
    )


def _place(one: BaselineDevice) -> str:
    return f"device {one.device}" if one.rank is None else f"rank {one.rank}, device {one.device}"


def _ranges(device: Device, patterns: tuple[str, ...]) -> dict[str, list[Period]]:
    found: dict[str, list[Period]] = {}
    for period in device.ranges:
        if not period.partial and any(fnmatchcase(period.name, pattern) for pattern in patterns):
            found.setdefault(period.name, []).append(period)
    return found


def _step_of(device: Device, period: Period) -> int:
    return sum(step.window.start_ns <= period.window.start_ns for step in device.steps) - 1


def _series(of: BaselineDevice, scope: str, samples: list[Sample], begun: list[int] | None) -> Iterator[BaselineSeries]:
    """The series of every metric that has something to say, and of every cause."""
    for metric, direction, cause, values in _values(samples):
        known = [value for value in values if value is not None]
        # No time needs no line; no percent is something to have.
        if (any(known) if metric.unit == "ns" else known) or metric.id == "step_time":
            yield BaselineSeries(
                rank=of.rank,
                device=of.device,
                metric=metric.id,
                direction=direction,
                cause=cause,
                scope=scope,
                typical=_typical(metric, known),
                steps=None if begun is None else tuple(begun),
                values=tuple(values),
            )


def _values(samples: list[Sample]) -> Iterator[tuple[Metric, Direction | None, str | None, list[float | None]]]:
    for metric in METRICS.values():
        if metric.of_host:
            continue
        directions: tuple[Direction | None, ...] = (None, "h2d", "d2h") if metric.directional else (None,)
        for direction in directions:
            yield metric, direction, None, [_rounded(metric.read(sample, direction)) for sample in samples]
    for copy_cause in COPY_CAUSES:
        parts = [float(sample.figures.exposed_copy_by_cause.get(copy_cause, 0)) for sample in samples]
        yield METRICS["exposed_copy_time"], None, str(copy_cause), list(map(_rounded, parts))
    for idle_cause in IDLE_CAUSES:
        parts = [float(sample.figures.idle_by_cause.get(idle_cause, 0)) for sample in samples]
        yield METRICS["idle_time"], None, str(idle_cause), list(map(_rounded, parts))


def _typical(metric: Metric, known: list[float]) -> str:
    """The median, as text."""
    from statistics import median

    return show(median(known), metric.unit) if known else "unknown"


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    return whole(round(value, _DIGITS))


def whole(value: float) -> float:
    """Whole numbers without a point: most are nanoseconds."""
    return int(value) if value == int(value) else value


def _order(rank: int | None) -> int:
    return -1 if rank is None else rank


def _line_order(line: BaselineSeries) -> tuple[Any, ...]:
    return (
        _order(line.rank),
        line.device,
        line.scope != STEPS,
        line.scope,
        line.metric,
        line.direction or "",
        line.cause or "",
    )
