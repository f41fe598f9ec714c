"""Baselines, which relative budgets compare with: the lengths of every step, in a file small enough to review.

The JSON is sorted and has one line per series, so that changes can be reviewed. Reading is strict.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import chain
from statistics import fmean
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from overlapscope.analysis.average import comparable, judged_steps
from overlapscope.analysis.facts import UNKNOWN
from overlapscope.analysis.figures import Period
from overlapscope.analysis.jobs import mixture
from overlapscope.analysis.results import Environment, TraceResult
from overlapscope.base.saved import MAX_FIGURE, SCHEMA_VERSION, Tool, decode
from overlapscope.base.words import clean, plural, size
from overlapscope.budgets.places import LENGTHS, MetricSamples, of_range, steps_of
from overlapscope.budgets.quantity import show
from overlapscope.budgets.verdicts import Unit
from overlapscope.compare.doubts import PREDICTED, ProgramIdentity, doubt, fingerprint, program_of, refuse_predicted
from overlapscope.compare.noise import MIN_STEPS_FOR_BOOTSTRAP
from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.report.model import Report, of_program
from overlapscope.trace.lost import PARTS_FOR_FIGURES
from overlapscope.trace.servers import Phase

STEPS: Final = "steps"


class BaselineDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A device of a rank, and its steps."""

    rank: int | None = None
    device: int
    first: int
    """Number, from 0, of the first step here among all recorded steps. Earlier steps were incomplete."""
    steps: tuple[str, ...]
    """Names of the steps, including warm-up."""


class BaselineSeries(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A length on a device, by step or by occurrence of a range. Metrics are computed from lengths."""

    rank: int | None = None
    device: int
    scope: str
    """`steps`, or the name of a range."""
    length: str
    """Name of the length: `span`, `exposed_copy`, `idle:host-sync`."""
    typical: str
    """The mean of what is judged as text, for reviewers of the file."""
    steps: tuple[int, ...] | None = None
    """Number of the step in which each occurrence of a range begins; only for the `span` of ranges."""
    values: tuple[Annotated[int, Meta(ge=0, le=MAX_FIGURE)] | None, ...]
    """Nanoseconds, bytes or a number of launches; null where the recording doesn't state it."""

    @property
    def at(self) -> tuple[int | None, int, str]:
        """Rank, device and scope."""
        return self.rank, self.device, self.scope


class Baseline(ProgramIdentity, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of a job."""

    kind: Literal["baseline"] = "baseline"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    environment: Environment
    devices: tuple[BaselineDevice, ...]
    lengths: tuple[str, ...]
    """Lengths that were measured. Those without a series are zero."""
    series: tuple[BaselineSeries, ...]
    digest: str = ""
    """In a file, the first 16 hexadecimal digits of the SHA-256 of everything else in it."""

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

    def samples(self, of: BaselineDevice, scope: str, *, skip: int, phase: Phase | None = None) -> MetricSamples | None:
        """Return a device's steps or ranges to compare; None if it has no such range, or no steps.

        Args:
            scope: `steps`, or the name of a range.
            skip: Number of first steps to leave out.
            phase: Phase of a server's steps, instead of the phase that takes most time.
        """
        lines = {line.length: line for line in self.series if line.at == (of.rank, of.device, scope)}
        if "span" not in lines:
            return None
        count = len(lines["span"].values)
        facts = {length: np.full(count, 0 if length in self.lengths else UNKNOWN) for length in LENGTHS}
        for length, line in lines.items():
            facts[length] = np.array([UNKNOWN if value is None else value for value in line.values], np.int64)
        names, kept = of.steps, self.compared(of, skip=skip, phase=phase)
        if scope != STEPS:
            names = tuple(f"{scope} ({number})" for number in range(1, count + 1))
            first = kept[0] if kept else 0
            kept = tuple(number for number, step in enumerate(lines["span"].steps or ()) if step >= first)
        return MetricSamples(names, tuple(range(count)), facts).take(kept)

    def compared(self, of: BaselineDevice, *, skip: int = 0, phase: Phase | None = None) -> tuple[int, ...]:
        """Return the numbers of a device's steps to compare, like `analysis.average.judged_steps`."""
        wanted = (of.rank, of.device, STEPS)
        spans = [
            value or 0 for line in self.series if line.at == wanted and line.length == "span" for value in line.values
        ]
        numbers = [number for number in range(len(of.steps)) if of.first + number >= skip]
        return comparable(numbers, of.steps, spans, phase=phase)


def of(report: Report, *, ranges: Iterable[str] = ()) -> Baseline:
    """Return the baseline of a report.

    `ranges` are patterns of ranges to keep besides the steps.

    Raises:
        UsageError: The report can't serve as a baseline.
    """
    refuse_predicted(report)
    if unlike := mixture(report.traces):
        raise UsageError(f"{' '.join(unlike)} A baseline belongs to one job; name only its traces.")
    patterns = tuple(ranges)
    report = of_program(report)
    devices: dict[tuple[int | None, int], BaselineDevice] = {}
    lines: list[BaselineSeries] = []
    for trace in report.traces:
        _refuse_if_doubtful(trace)
        for device in trace.devices:
            whole = [number for number, step in enumerate(device.steps) if not step.partial]
            first, names = whole[0] if whole else 0, tuple(device.steps[number].name for number in whole)
            at = trace.rank, device.device
            if at in devices:
                which = "without a rank" if trace.rank is None else f"of rank {trace.rank}"
                raise UsageError(f"{trace.source}: is the second trace {which}; a baseline belongs to one job.")
            devices[at] = BaselineDevice(rank=trace.rank, device=device.device, first=first, steps=names)
            judged = [number - first for number in judged_steps(device)]
            lines += _series(devices[at], STEPS, steps_of(device, whole), judged)
            by_name: dict[str, list[Period]] = {}
            for period in device.ranges:
                if not period.partial and any(fnmatchcase(period.name, pattern) for pattern in patterns):
                    by_name.setdefault(period.name, []).append(period)
            starts = [step.window.start_ns for step in device.steps]
            for name, periods in by_name.items():
                begun = [bisect_right(starts, period.window.start_ns) - 1 - first for period in periods]
                after = [number for number, step in enumerate(begun) if judged and step >= judged[0]]
                lines += _series(devices[at], name, of_range(name, periods), after, begun)
    program = program_of(report.traces)
    return Baseline(
        environment=fingerprint(report),
        job=program.job,
        kernels=program.kernels,
        devices=tuple(sorted(devices.values(), key=lambda device: (_order(device.rank), device.device))),
        lengths=LENGTHS,
        series=tuple(
            sorted(
                lines, key=lambda line: (_order(line.rank), line.device, line.scope != STEPS, line.scope, line.length)
            )
        ),
    )


def _refuse_if_doubtful(trace: TraceResult) -> None:
    """Raise UsageError if the figures of a trace are unreliable."""
    checks = {check.id: check for check in trace.trust.checks}
    if trace.trust.verdict == "unusable":
        raise UsageError(f"{trace.source}: is unusable, so it cannot be a baseline; `overlapscope analyze` shows why.")
    if "launches" in checks and checks["launches"].status == "fail":
        raise UsageError(f"{trace.source}: has no launches, and so no steps to compare; record it with CPU activity.")
    if lost := doubt(trace, PARTS_FOR_FIGURES):
        raise UsageError(f"{trace.source}: cannot be a baseline, because {lost}; record it again.")


def doubts(baseline: Baseline) -> tuple[str, ...]:
    """Return sentences about what keeps relative budgets from being judged by a baseline."""
    counts = [(device, len(baseline.compared(device))) for device in baseline.devices]
    return tuple(
        f"{'' if device.rank is None else f'rank {device.rank}, '}device {device.device} has "
        f"{plural(count, 'step')} to compare; relative budgets need {MIN_STEPS_FOR_BOOTSTRAP}."
        for device, count in counts
        if count < MIN_STEPS_FOR_BOOTSTRAP
    )


def _series(
    of: BaselineDevice, scope: str, samples: MetricSamples, judged: list[int], begun: list[int] | None = None
) -> Iterator[BaselineSeries]:
    """Yield the series of each length that isn't zero. `judged` has the numbers of judged samples."""
    for length in LENGTHS:
        values = [None if value == UNKNOWN else value for value in samples.facts[length].tolist()]
        known = [value for number in judged if (value := values[number]) is not None]
        typical, mean = "unknown", fmean(known or [0])
        if known:
            unit: Unit = "launches" if "launches" in length else "ns"
            typical = size(round(mean)) if length.endswith(":bytes") else show(mean, unit)
        if length == "span" or any(value != 0 for value in values):
            yield BaselineSeries(
                rank=of.rank,
                device=of.device,
                scope=scope,
                length=length,
                typical=typical,
                steps=tuple(begun) if begun is not None and length == "span" else None,
                values=tuple(values),
            )


def _order(rank: int | None) -> int:
    return -1 if rank is None else rank


# -- JSON -------------------------------------------------------------------------------------------


def to_json(baseline: Baseline) -> bytes:
    """Encode a baseline: first its kind, then sorted keys, with a line for each device, series and kernel."""
    plain = msgspec.to_builtins(baseline)
    plain["digest"] = _digest(plain)
    return ("\n".join(chain(["{"], _lines(plain), ["}"])) + "\n").encode()


def _digest(plain: Mapping[str, Any]) -> str:
    """Return a digest of the content, independent of white space and line ends."""
    content = {key: value for key, value in plain.items() if key != "digest"}
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]


def _lines(plain: dict[str, Any]) -> Iterator[str]:
    keys = ["kind", *sorted(plain.keys() - {"kind"})]
    for key in keys:
        value, comma, brackets = plain[key], "," if key != keys[-1] else "", "[]"
        entries = [_compact(element) for element in value] if isinstance(value, list | tuple) else []
        if isinstance(value, dict):
            entries, brackets = [f"{_compact(name)}: {_compact(value[name])}" for name in sorted(value)], "{}"
        if entries:
            yield f'  "{key}": {brackets[0]}'
            yield ",\n".join(f"    {entry}" for entry in entries)
            yield f"  {brackets[1]}{comma}"
        else:
            yield f'  "{key}": {_compact(value)}{comma}'


def _compact(value: object) -> str:
    text = msgspec.json.encode(value, order="sorted")
    return msgspec.json.format(text, indent=0).decode()


def from_json(data: bytes, source: str) -> Baseline:
    """Decode a baseline. Raises UnreadableTrace with the name of the `source`."""
    try:
        file = decode(data, Baseline)
    except msgspec.DecodeError as error:
        raise UnreadableTrace(
            f"{source}: is not a baseline ({clean(str(error), 300)}); write one with `overlapscope check "
            "--write-baseline`."
        ) from None
    changed = file.digest != _digest(msgspec.json.decode(data))
    for fault in ("was changed after it was written (its digest does not match)",) if changed else _faults(file):
        raise UnreadableTrace(f"{source}: {fault}; write it again with `overlapscope check --write-baseline`.")
    return replace(file, digest="")


def _faults(baseline: Baseline) -> Iterator[str]:
    """Yield what is wrong with a file that has the digest of its content."""
    if baseline.environment.flags.get(PREDICTED):
        yield "is of a prediction instead of a recording"
    counts = {(device.rank, device.device, STEPS): len(device.steps) for device in baseline.devices}
    timed = {line.at: line for line in baseline.series if line.length == "span"}
    counts |= {at: len(line.steps or ()) for at, line in timed.items() if line.scope != STEPS}
    for line in baseline.series:
        what = f"{clean(line.length, 80)} of device {line.device}"
        if line.length not in baseline.lengths:
            yield f"{what}: there is no such length"
        if (line.rank, line.device, STEPS) not in counts:
            yield f"{what}: there is no such device"
        if len(line.values) != counts.get(line.at):
            yield f"{what}: has {len(line.values)} values for {counts.get(line.at, 0)} steps"
        if line.length == "span" and None in line.values:
            yield f"{what}: has an impossible value"
    for device in baseline.devices:
        if device.steps and (device.rank, device.device, STEPS) not in timed:
            yield f"device {device.device} has steps without a span"
