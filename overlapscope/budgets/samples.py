"""What budgets are judged on: the steps of a device, the occurrences of its ranges, or its window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlapscope.analysis.groups import says_bandwidth
from overlapscope.analysis.results import Buckets, Device, Engines, HostStep, HostUse, Overlap, Period
from overlapscope.budgets.metrics import Direction, Metric, Moved, Sample
from overlapscope.catalog.causes import IdleCause
from overlapscope.compare.steps import compared, occurrences, without_warm_up

_DIRECTIONS: tuple[Direction, ...] = ("h2d", "d2h")


@dataclass(frozen=True, slots=True)
class Series:
    """A metric's values, one for each sample; None for a percentage of nothing."""

    names: tuple[str, ...]
    values: tuple[float | None, ...]
    spans_ns: tuple[int, ...]
    """Of the samples; what is resampled together is drawn by them."""

    def known(self) -> Series:
        """Without the samples that have no value."""
        return self.take([number for number, value in enumerate(self.values) if value is not None])

    def take(self, kept: Sequence[int]) -> Series:
        """Those samples alone."""
        return Series(
            tuple(self.names[number] for number in kept),
            tuple(self.values[number] for number in kept),
            tuple(self.spans_ns[number] for number in kept),
        )

    @property
    def numbers(self) -> tuple[float, ...]:
        """The values that are known."""
        return tuple(value for value in self.values if value is not None)


def series(samples: Sequence[Sample], metric: Metric, direction: Direction | None) -> Series:
    """One metric of some samples."""
    return Series(
        tuple(sample.name for sample in samples),
        tuple(metric.read(sample, direction) for sample in samples),
        tuple(sample.figures.span_ns for sample in samples),
    )


def of_steps(device: Device, *, skip: int = 0) -> tuple[Sample, ...]:
    """The steps that are compared."""
    return tuple(
        Sample(device.steps[number].name, device.steps[number], moved_in(device, number))
        for number in compared(device, skip=skip)
    )


def of_host(host: HostUse, *, skip: int = 0) -> tuple[Sample, ...]:
    """The steps of a program without GPU activity that are compared: a GPU would have been idle all the while."""
    steps = host.steps if host.by_steps else ()
    kept = without_warm_up(range(min(skip, len(steps)), len(steps)), [step.span_ns for step in steps])
    return tuple(Sample(steps[number].name, _idle(steps[number]), {}) for number in kept)


def _idle(step: HostStep) -> Period:
    return Period(
        name=step.name,
        window=step.window,
        span_ns=step.span_ns,
        buckets=Buckets(compute_ns=0, exposed_comm_ns=0, exposed_copy_ns=0, exposed_other_ns=0, idle_ns=step.span_ns),
        engines=Engines(sm_ns=0, compute_ns=0, comm_ns=0, h2d_ns=0, d2h_ns=0, other_ns=0),
        overlap=Overlap(
            copy_ns=0,
            hidden_copy_ns=0,
            hidden_copy_pct=None,
            serial_ns=0,
            busy_ns=0,
            ideal_ns=0,
            efficiency_pct=None,
            h2d_d2h_ns=0,
            comm_compute_pct=None,
            exposed_h2d_ns=0,
            exposed_d2h_ns=0,
        ),
        exposed_copy_by_cause={},
        idle_by_cause={IdleCause.DATA_LOADING: step.loading_ns},
        partial=False,
    )


def of_ranges(device: Device, *, skip: int = 0) -> dict[str, tuple[Sample, ...]]:
    """The occurrences of each range, by its name."""
    return {
        name: tuple(Sample(f"{name} ({number})", period, {}) for number, period in enumerate(periods, 1))
        for name, periods in occurrences(device, skip=skip).items()
    }


def of_window(device: Device) -> tuple[Sample, ...]:
    """The window behind the lead-in; nothing where it is all lead-in."""
    if device.judged is None:
        return ()
    moved: dict[Direction, Moved] = {}
    for direction in _DIRECTIONS:
        groups = [group for group in device.copies if group.direction == direction and says_bandwidth(group)]
        moved[direction] = Moved(
            sum(group.judged_bytes for group in groups), sum(group.judged_duration_ns for group in groups)
        )
    return (Sample("window", device.judged, moved),)


def moved_in(device: Device, step: int) -> dict[Direction, Moved]:
    """What was copied each way in one of `Device.steps`."""
    return {
        direction: Moved(
            sum(g.by_step.bytes[step] for g in device.copies if g.direction == direction and says_bandwidth(g)),
            sum(g.by_step.duration_ns[step] for g in device.copies if g.direction == direction and says_bandwidth(g)),
        )
        for direction in _DIRECTIONS
    }
