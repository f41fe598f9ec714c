"""What relative budgets compare with: the values of every step, in a file small enough to be reviewed.

Its JSON is sorted and line by line, so that a change can be reviewed; it is read back strictly.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import chain
from statistics import median
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from overlapscope.analysis.jobs import mixture
from overlapscope.analysis.results import Device, Environment, Period, TraceResult
from overlapscope.base.saved import MOST, Tool, decode
from overlapscope.base.words import clean, percent, plural
from overlapscope.budgets.metrics import DIRECTIONS, METRICS, Direction, Metric, Sample
from overlapscope.budgets.missing import doubt, refuse_predicted
from overlapscope.budgets.quantity import show
from overlapscope.budgets.samples import Measurements, Series, series, step_sample
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.compare.environment import fingerprint
from overlapscope.compare.figures import without_warm_up
from overlapscope.compare.noise import FEWEST
from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.report.model import Report, of_program
from overlapscope.trace.lost import FIGURES

SCHEMA_VERSION: Final = 1
STEPS: Final = "steps"
COMMON_PCT: Final = 50.0
"""Common kernel launches from which two recordings are of one program, where no script is stated."""
COMMON_PCT_OF_ONE: Final = 20.0
COMMON_PCT_OF_TWO: Final = 80.0
_KERNELS = 24
_NAME = 200
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
    job: str | None = None
    """Name of the script or job, where the traces state it."""
    kernels: dict[str, float] = {}
    """The kernels launched most often, and their shares of these launches in percent; empty if unknown."""
    devices: tuple[BaselineDevice, ...]
    series: tuple[BaselineSeries, ...]

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that it is of."""
        return frozenset(device.rank for device in self.devices if device.rank is not None)

    def device_for(self, rank: int | None, device: int, *, only: bool) -> BaselineDevice | None:
        """What a device is compared with: the same of the same rank; with `only`, where there is one device on either
        side, that one."""
        found = [known for known in self.devices if (known.rank, known.device) == (rank, device)]
        if not found and rank is not None:
            mine = [known for known in self.devices if known.rank == rank]
            # A rank has one device as a rule, and which ordinal that is differs from machine to machine.
            found = mine if len(mine) == 1 else []
        if not found and only and len(self.devices) == 1:
            found = list(self.devices)
        return found[0] if found else None

    def measured(self, of: BaselineDevice, scope: str, *, skip: int) -> Measurements | None:
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
        raise UsageError(f"{' '.join(unlike)} A baseline belongs to one job; name only its traces.")
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
                raise UsageError(f"{trace.source}: is the second trace {which}; a baseline belongs to one job.")
            devices.append(one)
            samples = [step_sample(device, number) for number in whole]
            lines += _series(one, STEPS, samples, None)
            for name, periods in _ranges(device, patterns).items():
                begun = [_step_of(device, period) - one.first for period in periods]
                lines += _series(one, name, [Sample(name, period, {}) for period in periods], begun)
    return Baseline(
        environment=fingerprint(report),
        job=_job(report),
        kernels=_kernels(report),
        devices=tuple(sorted(devices, key=lambda d: (_order(d.rank), d.device))),
        series=tuple(sorted(lines, key=_line_order)),
    )


def _refuse_if_doubtful(trace: TraceResult) -> None:
    """Raises UsageError where the figures of a trace are not those of the program."""
    checks = {check.id: check for check in trace.trust.checks}
    if trace.trust.verdict == "unusable":
        raise UsageError(f"{trace.source}: is unusable, so it cannot be a baseline; `overlapscope analyze` shows why.")
    if "launches" in checks and checks["launches"].status == "fail":
        raise UsageError(f"{trace.source}: has no launches, and so no steps to compare; record it with CPU activity.")
    if lost := doubt(trace, FIGURES):
        raise UsageError(f"{trace.source}: cannot be a baseline, because {lost}; record it again.")


def _job(report: Report) -> str | None:
    jobs = {trace.origin.job for trace in report.traces if trace.origin is not UNSET and trace.origin.job}
    return jobs.pop() if len(jobs) == 1 else None


def _kernels(report: Report) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for device in report.devices:
        for group in device.kernels:
            counts[clean(group.kernel, _NAME)] += group.count
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_KERNELS]
    total = sum(count for _, count in most)
    return {name: round(100 * count / total, _DIGITS) for name, count in most}


def other_program(baseline: Baseline, report: Report) -> str:
    """Return what shows that a baseline is of another program than a report; empty if nothing does.

    Most programs keep most of their kernels when they change. Scripts of different names need more in common.
    """
    job, kernels = _job(report), _kernels(report)
    named = None not in (job, baseline.job)
    scripts = (
        f"job {clean(baseline.job or '', 80)}, here {clean(job or '', 80)}" if job != baseline.job and named else ""
    )
    if not kernels or not baseline.kernels:
        return scripts
    common_pct = sum(min(pct, kernels.get(name, 0.0)) for name, pct in baseline.kernels.items())
    least_pct = COMMON_PCT_OF_TWO if scripts else COMMON_PCT_OF_ONE if named else COMMON_PCT
    if common_pct >= least_pct:
        return ""
    return "; ".join(filter(None, (scripts, f"{percent(common_pct)} of kernel launches in common")))


def doubts(baseline: Baseline) -> tuple[str, ...]:
    """What keeps relative budgets from being judged by it, in sentences."""
    counts = [(device, len(baseline.compared(device))) for device in baseline.devices]
    return tuple(
        f"{place(device.rank, device.device)} has {plural(count, 'step')} to compare; relative budgets need {FEWEST}."
        for device, count in counts
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
    *((metric, direction, None) for metric in METRICS.values() if metric.needs == "copies" for direction in DIRECTIONS),
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


# -- as JSON ----------------------------------------------------------------------------------------

_ANEW: Final = "write it again with `overlapscope baseline write`"


class BaselineFile(Baseline, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A baseline as it is written."""

    digest: str
    """Of everything else in the file: 16 hexadecimal digits of its SHA-256."""


def to_json(baseline: Baseline) -> bytes:
    """What it is, then sorted keys; one line for each device, series, kernel and fact of the environment."""
    plain = msgspec.to_builtins(baseline)
    for line in plain["series"]:
        line["values"] = [value if value is None else whole(value) for value in line["values"]]
    plain["digest"] = _digest(plain)
    return ("\n".join(chain(["{"], _lines(plain), ["}"])) + "\n").encode()


def _digest(plain: Mapping[str, Any]) -> str:
    """Of the content however it is laid out, so that changed line ends or blanks change nothing."""
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
    """Read a baseline back; `source` is named where it cannot be. Raises UnreadableTrace."""
    try:
        found = decode(data, BaselineFile)
    except msgspec.DecodeError as error:
        raise UnreadableTrace(
            f"{source}: is not a baseline ({clean(str(error), 300)}); write one with `overlapscope baseline write`."
        ) from None
    if found.schema_version != SCHEMA_VERSION:
        raise UnreadableTrace(
            f"{source}: is a baseline of version {found.schema_version}, and overlapscope needs version "
            f"{SCHEMA_VERSION}; {_ANEW}."
        )
    if found.digest != _digest(msgspec.json.decode(data)):
        raise UnreadableTrace(f"{source}: was changed after it was written (its digest does not match); {_ANEW}.")
    baseline = Baseline(**{name: getattr(found, name) for name in Baseline.__struct_fields__})
    known = {(device.rank, device.device): device for device in baseline.devices}
    timed = {
        (series.rank, series.device, series.scope): len(series.values)
        for series in baseline.series
        if series.metric == "step_time" and series.cause is None
    }
    for line in baseline.series:
        samples = timed.get((line.rank, line.device, line.scope), 0)
        _check_line(line, known.get((line.rank, line.device)), samples, source)
    for device in baseline.devices:
        if device.steps and (device.rank, device.device, STEPS) not in timed:
            raise UnreadableTrace(f"{source}: device {device.device} has steps without a step_time; {_ANEW}.")
    return baseline


def _check_line(line: BaselineSeries, device: BaselineDevice | None, samples: int, source: str) -> None:
    """Raises UnreadableTrace where a line does not belong to the others, whatever the digest says."""
    what = f"{source}: {clean(line.metric, 80)} of device {line.device}"
    metric = METRICS.get(line.metric)
    if device is None or metric is None:
        raise UnreadableTrace(f"{what}: there is no such {'device' if device is None else 'metric'}; {_ANEW}.")
    for steps in (len(device.steps) if line.scope == STEPS else len(line.steps or ()), samples):
        if len(line.values) != steps:
            raise UnreadableTrace(f"{what}: has {len(line.values)} values for {steps} steps; {_ANEW}.")
    most = 100 if metric.unit == "pct" else MOST
    if not all(0 <= value <= most for value in line.values if value is not None):
        raise UnreadableTrace(f"{what}: has an impossible value; {_ANEW}.")
