"""Baselines, which relative budgets compare with: the values of every step, in a file small enough to review.

The JSON is sorted and has one line per series, so that changes can be reviewed. Reading is strict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Final, Literal

import msgspec

from overlapscope.analysis.average import comparable, judged_steps
from overlapscope.analysis.figures import Period
from overlapscope.analysis.jobs import mixture
from overlapscope.analysis.results import Environment, TraceResult
from overlapscope.base.saved import MOST, SCHEMA_VERSION, Tool, decode
from overlapscope.base.words import clean, plural
from overlapscope.budgets.gate import ProgramIdentity, doubt, program_of, refuse_predicted
from overlapscope.budgets.quantity import show
from overlapscope.budgets.samples import Measurements, MetricSamples, Series, of_range, series, steps_of
from overlapscope.catalog.measures import CAUSES_OF, DIRECTIONS, METRICS, Direction, Measure
from overlapscope.compare.doubts import PREDICTED, fingerprint
from overlapscope.compare.noise import FEWEST
from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.report.model import Report, of_program
from overlapscope.trace.lost import FIGURES
from overlapscope.trace.servers import Phase

STEPS: Final = "steps"
_DIGITS = 4
"""Number of decimals of percentages and bandwidths."""


class BaselineDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A device of a rank, and its steps."""

    rank: int | None = None
    device: int
    first: int
    """Number, from 0, of the first step here among all recorded steps. Earlier steps were incomplete."""
    steps: tuple[str, ...]
    """Names of the steps, including warm-up."""


class BaselineSeries(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Values of a metric on a device, by step or by occurrence of a range."""

    rank: int | None = None
    device: int
    metric: str
    direction: Direction | None = None
    """Direction of the copies; None for both together."""
    cause: str | None = None
    """Cause, for the part of a metric of `CAUSES_OF` due to it; None for the whole metric."""
    scope: str
    """`steps`, or the name of a range."""
    typical: str
    """The mean of what is judged as text, for reviewers of the file."""
    steps: tuple[int, ...] | None = None
    """Number of the step in which each occurrence of a range begins; None for steps."""
    values: tuple[float | None, ...]
    """Values in nanoseconds, percent or 1e9 bytes per second; null for a percentage of nothing."""
    wholes: tuple[float, ...] | None = None
    """Nanoseconds that each value is a share of; None for times."""


class Baseline(ProgramIdentity, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of a job."""

    kind: Literal["baseline"] = "baseline"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    environment: Environment
    devices: tuple[BaselineDevice, ...]
    series: tuple[BaselineSeries, ...]

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks in the baseline."""
        return frozenset(device.rank for device in self.devices if device.rank is not None)

    def device_for(self, rank: int | None, device: int, *, only: bool) -> BaselineDevice | None:
        """Return the device to compare with: that of the same rank and ordinal, or the only possible one.

        `only`: whether the other side has a single device.
        """
        same_rank = [candidate for candidate in self.devices if candidate.rank == rank]
        match = next((candidate for candidate in same_rank if candidate.device == device), None)
        # A rank usually has one device, whose ordinal differs between machines.
        if match is None and rank is not None and len(same_rank) == 1:
            return same_rank[0]
        return self.devices[0] if match is None and only and len(self.devices) == 1 else match

    def measured(self, of: BaselineDevice, scope: str, *, skip: int, phase: Phase | None = None) -> Measurements | None:
        """Return the measurements of a device's steps or ranges; None if it has no such range, or no steps.

        Args:
            of: The device.
            scope: `steps`, or the name of a range.
            skip: Number of first steps to leave out.
            phase: Phase of a server's steps, instead of the phase that takes most time.
        """
        lines = {
            (line.metric, line.direction, line.cause): line
            for line in self.series
            if (line.rank, line.device, line.scope) == (of.rank, of.device, scope)
        }
        timed = lines.get(("step_time", None, None))
        if timed is None:
            return None
        spans = tuple(round(value or 0) for value in timed.values)
        names, kept = of.steps, self.compared(of, skip=skip, phase=phase)
        if scope != STEPS:
            names = tuple(f"{scope} ({number})" for number in range(1, len(spans) + 1))
            first = kept[0] if kept else 0
            kept = tuple(number for number, step in enumerate(timed.steps or ()) if step >= first)

        def read(metric: Measure, direction: Direction | None, cause: str | None = None) -> Series:
            line = lines.get((metric.metric, direction, cause))
            # A series without anything to measure is not in the file. Its times are zero.
            nothing = 0.0 if metric.unit == "ns" else None
            wholes = (line and line.wholes) or (1.0,) * len(spans)
            return Series(names, line.values if line else (nothing,) * len(spans), spans, wholes).take(kept)

        return read

    def compared(self, of: BaselineDevice, *, skip: int = 0, phase: Phase | None = None) -> tuple[int, ...]:
        """Return the numbers of a device's steps to compare, like `analysis.average.judged_steps`."""
        wanted = (of.rank, of.device, STEPS, "step_time")
        spans = [
            round(value or 0)
            for line in self.series
            if (line.rank, line.device, line.scope, line.metric) == wanted
            for value in line.values
        ]
        numbers = [number for number in range(len(of.steps)) if of.first + number >= skip]
        return comparable(numbers, of.steps, spans, phase=phase)


def of(report: Report, *, ranges: Iterable[str] = ()) -> Baseline:
    """Make a baseline from a report.

    Args:
        report: The report.
        ranges: Patterns of ranges to keep besides the steps.

    Returns:
        The baseline, ready to be written to a file.

    Raises:
        UsageError: The report can't serve as a baseline.
    """
    refuse_predicted(report)
    if unlike := mixture(report.traces):
        raise UsageError(f"{' '.join(unlike)} A baseline belongs to one job; name only its traces.")
    patterns = tuple(ranges)
    report = of_program(report)
    devices: list[BaselineDevice] = []
    lines: list[BaselineSeries] = []
    for trace in report.traces:
        _refuse_if_doubtful(trace)
        for device in trace.devices:
            whole = [number for number, step in enumerate(device.steps) if not step.partial]
            kept = BaselineDevice(
                rank=trace.rank,
                device=device.device,
                first=whole[0] if whole else 0,
                steps=tuple(device.steps[number].name for number in whole),
            )
            if any((other.rank, other.device) == (kept.rank, kept.device) for other in devices):
                which = "without a rank" if kept.rank is None else f"of rank {kept.rank}"
                raise UsageError(f"{trace.source}: is the second trace {which}; a baseline belongs to one job.")
            devices.append(kept)
            judged = [number - kept.first for number in judged_steps(device)]
            lines += _series(kept, STEPS, steps_of(device, whole), None, judged)
            by_name: dict[str, list[Period]] = {}
            for period in device.ranges:
                if not period.partial and any(fnmatchcase(period.name, pattern) for pattern in patterns):
                    by_name.setdefault(period.name, []).append(period)
            for name, periods in by_name.items():
                begun = [
                    sum(step.window.start_ns <= period.window.start_ns for step in device.steps) - 1 - kept.first
                    for period in periods
                ]
                after = [number for number, step in enumerate(begun) if judged and step >= judged[0]]
                lines += _series(kept, name, of_range(name, periods), begun, after)
    program = program_of(report.traces)
    return Baseline(
        environment=fingerprint(report),
        job=program.job,
        kernels=program.kernels,
        devices=tuple(sorted(devices, key=lambda d: (_order(d.rank), d.device))),
        series=tuple(sorted(lines, key=_line_order)),
    )


def _refuse_if_doubtful(trace: TraceResult) -> None:
    """Raise UsageError if the figures of a trace are unreliable."""
    checks = {check.id: check for check in trace.trust.checks}
    if trace.trust.verdict == "unusable":
        raise UsageError(f"{trace.source}: is unusable, so it cannot be a baseline; `overlapscope analyze` shows why.")
    if "launches" in checks and checks["launches"].status == "fail":
        raise UsageError(f"{trace.source}: has no launches, and so no steps to compare; record it with CPU activity.")
    if lost := doubt(trace, FIGURES):
        raise UsageError(f"{trace.source}: cannot be a baseline, because {lost}; record it again.")


def doubts(baseline: Baseline) -> tuple[str, ...]:
    """Return sentences about what keeps relative budgets from being judged by a baseline."""
    counts = [(device, len(baseline.compared(device))) for device in baseline.devices]
    return tuple(
        f"{'' if device.rank is None else f'rank {device.rank}, '}device {device.device} has "
        f"{plural(count, 'step')} to compare; relative budgets need {FEWEST}."
        for device, count in counts
        if count < FEWEST
    )


def _series(
    of: BaselineDevice, scope: str, samples: MetricSamples, begun: list[int] | None, judged: list[int]
) -> Iterator[BaselineSeries]:
    """Yield the series of every metric and cause that has values to keep. `judged` has the numbers of judged ones."""
    for metric, direction, cause in _KEPT:
        measured = series(samples, metric, direction, cause)
        values = tuple(None if value is None else whole(round(value, _DIGITS)) for value in measured.values)
        wholes = tuple(map(whole, measured.wholes))
        numbers, typical = [value for value in values if value is not None], measured.take(judged).known()
        # Times that are all zero need no line, unlike percentages.
        if (any(numbers) if metric.unit == "ns" else numbers) or metric.metric == "step_time":
            yield BaselineSeries(
                rank=of.rank,
                device=of.device,
                metric=metric.metric,
                direction=direction,
                cause=cause,
                scope=scope,
                typical=show(typical.mean, metric.unit) if typical.values else "unknown",
                steps=None if begun is None else tuple(begun),
                values=values,
                wholes=wholes if {*wholes} != {1} else None,
            )


_KEPT: Final[tuple[tuple[Measure, Direction | None, str | None], ...]] = (
    *((metric, None, None) for metric in METRICS.values() if not metric.of_host),
    *((metric, direction, None) for metric in METRICS.values() if metric.needs == "copies" for direction in DIRECTIONS),
    *((METRICS[metric], None, cause) for metric, causes in CAUSES_OF.items() for cause in causes),
)
"""Metrics, directions and causes that a baseline keeps for each sample."""


def whole(value: float) -> float:
    """Return a whole number as an int, so that JSON has no decimal point. Most values are whole nanoseconds."""
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


# -- JSON -------------------------------------------------------------------------------------------

_ANEW: Final = "write it again with `overlapscope check --write-baseline`"


class BaselineFile(Baseline, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A baseline in a file."""

    digest: str
    """First 16 hexadecimal digits of the SHA-256 of everything else in the file."""


def to_json(baseline: Baseline) -> bytes:
    """Encode a baseline: first its kind, then sorted keys, with a line for each device, series and kernel."""
    plain = msgspec.to_builtins(baseline)
    for line in plain["series"]:
        for numbers in ("values", "wholes"):
            if numbers in line:
                line[numbers] = [number if number is None else whole(number) for number in line[numbers]]
    plain["digest"] = _digest(plain)
    return ("\n".join(chain(["{"], _lines(plain), ["}"])) + "\n").encode()


def _digest(plain: Mapping[str, Any]) -> str:
    """Return a digest of the content, independent of white space and line ends."""
    content = {key: value for key, value in plain.items() if key != "digest"}
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]


def _lines(plain: dict[str, Any]) -> Iterator[str]:
    keys = ["kind", *sorted(plain.keys() - {"kind"})]
    for key in keys:
        value, comma = plain[key], "," if key != keys[-1] else ""
        if isinstance(value, list | tuple) and value:
            yield f'  "{key}": ['
            yield from (f"    {_compact(element)}{',' if element is not value[-1] else ''}" for element in value)
            yield f"  ]{comma}"
        elif isinstance(value, dict) and value and key in ("environment", "kernels"):
            yield f'  "{key}": {{'
            names = sorted(value)
            yield from (f"    {_compact(n)}: {_compact(value[n])}{',' if n != names[-1] else ''}" for n in names)
            yield f"  }}{comma}"
        else:
            yield f'  "{key}": {_compact(value)}{comma}'


def _compact(value: object) -> str:
    text = msgspec.json.encode(value, order="sorted")
    return msgspec.json.format(text, indent=0).decode()


def from_json(data: bytes, source: str) -> Baseline:
    """Decode a baseline. Raises UnreadableTrace with the name of the `source`."""
    try:
        file = decode(data, BaselineFile)
    except msgspec.DecodeError as error:
        raise UnreadableTrace(
            f"{source}: is not a baseline ({clean(str(error), 300)}); write one with `overlapscope check "
            "--write-baseline`."
        ) from None
    if file.digest != _digest(msgspec.json.decode(data)):
        raise UnreadableTrace(f"{source}: was changed after it was written (its digest does not match); {_ANEW}.")
    if file.environment.flags.get(PREDICTED):
        raise UnreadableTrace(f"{source}: is of a prediction instead of a recording; {_ANEW}.")
    baseline = Baseline(**{name: getattr(file, name) for name in Baseline.__struct_fields__})
    devices = {(device.rank, device.device): device for device in baseline.devices}
    timed = {
        (series.rank, series.device, series.scope): len(series.values)
        for series in baseline.series
        if series.metric == "step_time" and series.cause is None
    }
    for line in baseline.series:
        samples = timed.get((line.rank, line.device, line.scope), 0)
        _check_line(line, devices.get((line.rank, line.device)), samples, source)
    for device in baseline.devices:
        if device.steps and (device.rank, device.device, STEPS) not in timed:
            raise UnreadableTrace(f"{source}: device {device.device} has steps without a step_time; {_ANEW}.")
    return baseline


def _check_line(line: BaselineSeries, device: BaselineDevice | None, samples: int, source: str) -> None:
    """Raise UnreadableTrace if a series contradicts the rest of the file, even if the digest is right."""
    series = f"{source}: {clean(line.metric, 80)} of device {line.device}"
    metric = METRICS.get(line.metric)
    if device is None or metric is None:
        raise UnreadableTrace(f"{series}: there is no such {'device' if device is None else 'metric'}; {_ANEW}.")
    for steps in (len(device.steps) if line.scope == STEPS else len(line.steps or ()), samples):
        if len(line.values) != steps:
            raise UnreadableTrace(f"{series}: has {len(line.values)} values for {steps} steps; {_ANEW}.")
    most = 100 if metric.unit == "pct" else MOST
    if not all(0 <= value <= most for value in line.values if value is not None):
        raise UnreadableTrace(f"{series}: has an impossible value; {_ANEW}.")
    wholes = (1.0,) * len(line.values) if line.wholes is None else line.wholes
    if len(wholes) != len(line.values) or not all(
        0 <= whole <= MOST and (whole or value is None) for value, whole in zip(line.values, wholes, strict=True)
    ):
        raise UnreadableTrace(f"{series}: has an impossible whole; {_ANEW}.")
