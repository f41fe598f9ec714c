"""The metrics that budgets speak of: what each is, and how it is read from a step, a range or the window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from overlapscope.analysis.groups import TINY_BYTES
from overlapscope.analysis.results import Period, missing_ns
from overlapscope.base.words import size
from overlapscope.budgets.verdicts import Unit
from overlapscope.catalog.causes import STALL_CAUSES, IdleCause
from overlapscope.trace.lost import CAUSES, FIGURES, HOST, Part

Direction = Literal["h2d", "d2h"]
Blame = Literal["exposed-copy", "idle", "exposed-comm", "copies", "kernels"]
"""Where the reasons of a failure lie."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Whole copies of one direction that begin in a sample and state their size."""

    bytes: float
    duration_ns: float


@dataclass(frozen=True, slots=True)
class Sample:
    """What a metric is read from: one step, one occurrence of a range, or the window."""

    name: str
    figures: Period
    moved: Mapping[Direction, Moved]
    """Empty for a range, whose copies are not counted."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    id: str
    unit: Unit
    more_is_better: bool
    formula: str
    """How it is computed, for `--explain` and the documentation."""
    read: Callable[[Sample, Direction | None], float | None]
    """None for a percentage of nothing."""
    blames: tuple[Blame, ...]
    whole: Callable[[Sample, Direction | None], float] | None = None
    """Of a percentage: what it is of, in nanoseconds."""
    needs: Literal["copies", "comm", ""] = ""
    """What must have run for the metric to mean anything."""
    directional: bool = False
    """Whether it can be asked of one direction of copies alone."""
    by_range: bool = True
    of_host: bool = False
    """Whether it is of the host's steps of a program without GPU activity, and of no other. What GPU programs are held
    to must not be met by a recording that lacks the GPU."""
    rests_on: frozenset[Part] = FIGURES
    """The parts of the recording that it is computed from: where some of one may be lost, it is unknown."""


def _pct(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def _idle_ns(sample: Sample) -> int:
    return sample.figures.buckets.idle_ns - missing_ns(sample.figures)


def copy_ns(sample: Sample, direction: Direction | None) -> int:
    """Length of the union of the copies."""
    engines = sample.figures.engines
    by_direction = {"h2d": engines.h2d_ns, "d2h": engines.d2h_ns}
    return by_direction[direction] if direction else sample.figures.overlap.copy_ns


def _exposed_copy_ns(sample: Sample, direction: Direction | None) -> int:
    overlap = sample.figures.overlap
    by_direction = {"h2d": overlap.exposed_h2d_ns, "d2h": overlap.exposed_d2h_ns}
    return by_direction[direction] if direction else sample.figures.buckets.exposed_copy_ns


def _hidden_copy_pct(sample: Sample, direction: Direction | None) -> float | None:
    copies = copy_ns(sample, direction)
    return _pct(copies - _exposed_copy_ns(sample, direction), copies)


def _bandwidth(sample: Sample, direction: Direction | None) -> float | None:
    moved = [one for way, one in sample.moved.items() if direction in (None, way)]
    duration = sum(one.duration_ns for one in moved)
    return sum(one.bytes for one in moved) / duration if duration else None


METRICS: Final[dict[str, Metric]] = {
    metric.id: metric
    for metric in (
        Metric(
            id="efficiency_pct",
            unit="pct",
            more_is_better=True,
            formula="overlap efficiency, (serial - busy) / (serial - ideal): serial is the sum of what the three "
            "engines (kernels, H2D copies, D2H copies) worked, busy the time in which any of them did, ideal the "
            "longest of the three. 0%: one thing at a time; 100%: nothing hides better",
            read=lambda s, _: s.figures.overlap.efficiency_pct,
            whole=lambda s, _: s.figures.overlap.serial_ns - s.figures.overlap.ideal_ns,
            blames=("exposed-copy",),
        ),
        Metric(
            id="hidden_copy_pct",
            unit="pct",
            more_is_better=True,
            formula="time in which copies ran beside kernels, as a share of the time in which copies ran",
            read=_hidden_copy_pct,
            whole=copy_ns,
            blames=("exposed-copy",),
            needs="copies",
            directional=True,
        ),
        Metric(
            id="exposed_copy_pct",
            unit="pct",
            more_is_better=False,
            formula="time in which copies ran and no kernel did, as a share of the time in which copies ran",
            read=lambda s, d: _pct(_exposed_copy_ns(s, d), copy_ns(s, d)),
            whole=copy_ns,
            blames=("exposed-copy",),
            needs="copies",
            directional=True,
        ),
        Metric(
            id="exposed_copy_time",
            unit="ns",
            more_is_better=False,
            formula="time in which copies ran and no kernel did",
            read=lambda s, d: float(_exposed_copy_ns(s, d)),
            blames=("exposed-copy",),
            needs="copies",
            directional=True,
        ),
        Metric(
            id="exposed_comm_pct",
            unit="pct",
            more_is_better=False,
            formula="time in which collectives ran and no other kernel did, as a share of the time in which they ran",
            read=lambda s, _: _pct(s.figures.buckets.exposed_comm_ns, s.figures.engines.comm_ns),
            whole=lambda s, _: s.figures.engines.comm_ns,
            blames=("exposed-comm",),
            needs="comm",
        ),
        Metric(
            id="exposed_comm_time",
            unit="ns",
            more_is_better=False,
            formula="time in which collectives ran and no other kernel did",
            read=lambda s, _: float(s.figures.buckets.exposed_comm_ns),
            blames=("exposed-comm",),
            needs="comm",
        ),
        Metric(
            id="idle_pct",
            unit="pct",
            more_is_better=False,
            formula="time in which nothing ran on the GPU and no op is missing, as a share of the step",
            read=lambda s, _: _pct(_idle_ns(s), s.figures.span_ns),
            whole=lambda s, _: s.figures.span_ns,
            blames=("idle",),
        ),
        Metric(
            id="idle_time",
            unit="ns",
            more_is_better=False,
            formula="time in which nothing ran on the GPU and no op is missing",
            read=lambda s, _: float(_idle_ns(s)),
            blames=("idle",),
        ),
        Metric(
            id="host_stall_time",
            unit="ns",
            more_is_better=False,
            formula="idle time of the GPU caused by blocking calls of the host: the idle causes host-sync, allocation "
            "and host-staging added up",
            read=lambda s, _: float(sum(s.figures.idle_by_cause.get(cause, 0) for cause in STALL_CAUSES)),
            blames=("idle",),
            rests_on=CAUSES,
        ),
        Metric(
            id="step_time",
            unit="ns",
            more_is_better=False,
            formula="length of the step on the device, from its first op on the main stream to the next step's",
            read=lambda s, _: float(s.figures.span_ns),
            blames=("idle", "exposed-copy", "exposed-comm", "kernels"),
        ),
        Metric(
            id="compute_time",
            unit="ns",
            more_is_better=False,
            formula="time in which kernels ran that are no collectives",
            read=lambda s, _: float(s.figures.buckets.compute_ns),
            blames=("kernels",),
        ),
        Metric(
            id="copy_time",
            unit="ns",
            more_is_better=False,
            formula="time in which copies between host and device ran, hidden or not",
            read=lambda s, d: float(copy_ns(s, d)),
            blames=("copies",),
            needs="copies",
            directional=True,
        ),
        Metric(
            id="copy_bandwidth",
            unit="gb_per_s",
            more_is_better=True,
            formula="bytes of the copies divided by the sum of their durations, without streams whose copies have less "
            f"than {size(TINY_BYTES)} on average: those take latency alone",
            read=_bandwidth,
            blames=("copies",),
            needs="copies",
            directional=True,
            by_range=False,
        ),
        Metric(
            id="host_step_time",
            unit="ns",
            more_is_better=False,
            formula="length of the step on the host, from mark to mark, of a program that does nothing on a GPU",
            read=lambda s, _: float(s.figures.span_ns),
            blames=(),
            of_host=True,
            by_range=False,
            rests_on=HOST,
        ),
        Metric(
            id="host_loading_pct",
            unit="pct",
            more_is_better=False,
            formula="time that the thread of the steps was inside the DataLoader's next, as a share of the step, of a "
            "program that does nothing on a GPU",
            read=lambda s, _: _pct(s.figures.idle_by_cause.get(IdleCause.DATA_LOADING, 0), s.figures.span_ns),
            whole=lambda s, _: s.figures.span_ns,
            blames=(),
            of_host=True,
            by_range=False,
            rests_on=HOST,
        ),
    )
}
"""By id, in the order in which they are listed."""
