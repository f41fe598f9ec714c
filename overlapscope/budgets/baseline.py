"""What relative budgets compare with: the values of every step, in a file small enough to be reviewed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from statistics import median
from typing import Any, Final, Literal

import msgspec

from overlapscope.analysis.jobs import mixture
from overlapscope.analysis.results import Device, Environment, Period, TraceResult
from overlapscope.base.words import plural
from overlapscope.budgets.metrics import DIRECTIONS, METRICS, Direction, Metric, Sample
from overlapscope.budgets.missing import doubt, refuse_predicted
from overlapscope.budgets.quantity import show
from overlapscope.budgets.samples import Measured, Series, series, step_sample
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

    def measured(self, of: BaselineDevice, scope: str, *, skip: int) -> Measured | None:
        """What was measured of a device in the samples that are compared; None where it has no such range, or no
        steps."""
        lines = {
            (line.metric, line.direction, line.cause): line
            for line in self.series
            if (line.rank, line.device, line.scope) == (of.rank, of.device, scope)
        }
        timed = lines.get(("step_time", None, None))
        if timed is None:
            return None
        spans = tuple(round(value or 0) for value in timed.values)
        names, kept = of.steps, self.compared(of, skip=skip)
        if scope != STEPS:
            names = tuple(f"{scope} ({number})" for number in range(1, len(spans) + 1))
            first = kept[0] if kept else 0
            kept = tuple(number for number, step in enumerate(timed.steps or ()) if step >= first)

        def read(metric: Metric, direction: Direction | None, cause: str | None = None) -> Series:
            line = lines.get((metric.id, direction, cause))
            # What had nothing to measure is not written; no time was spent on it.
            nothing = 0.0 if metric.unit == "ns" else None
            return Series(names, line.values if line else (nothing,) * len(spans), spans).take(kept)

        return read

    def compared(self, of: BaselineDevice, *, skip: int = 0) -> tuple[int, ...]:
        """The steps of a device that are compared, as `steps.compared` chooses them; what was cut is not here."""
        wanted = (of.rank, of.device, STEPS, "step_time")
        spans = [
            round(value or 0)
            for line in self.series
            if (line.rank, line.device, line.scope, line.metric) == wanted
            for value in line.values
        ]
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
            samples = [step_sample(device, number) for number in whole]
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
    counts = [(one, len(baseline.compared(one))) for one in baseline.devices]
    return tuple(
        f"{place(one.rank, one.device)} has {plural(count, 'step')} to compare: relative budgets need {FEWEST}."
        for one, count in counts
        if count < FEWEST
    )


def place(rank: int | None, device: int) -> str:
    """`rank 3, device 1`."""
    return f"device {device}" if rank is None else f"rank {rank}, device {device}"


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
    for metric, direction, cause in _KEPT:
        values = tuple(
            None if value is None else whole(round(value, _DIGITS))
            for value in series(samples, metric, direction, cause).values
        )
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
                typical=show(median(known), metric.unit) if known else "unknown",
                steps=None if begun is None else tuple(begun),
                values=values,
            )


_KEPT: Final[tuple[tuple[Metric, Direction | None, str | None], ...]] = (
    *((metric, None, None) for metric in METRICS.values() if not metric.of_host),
    *((metric, direction, None) for metric in METRICS.values() if metric.directional for direction in DIRECTIONS),
    *((METRICS["exposed_copy_time"], None, str(cause)) for cause in COPY_CAUSES),
    *((METRICS["idle_time"], None, str(cause)) for cause in IDLE_CAUSES),
)
"""What is kept of every sample."""


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
