"""What budgets are judged on: the steps of a device, the occurrences of its ranges, or its window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlapscope.analysis.copies import says_bandwidth
from overlapscope.analysis.results import Device
from overlapscope.budgets.metrics import Direction, Metric, Moved, Sample
from overlapscope.compare.steps import compared, occurrences

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
