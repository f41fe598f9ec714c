"""Which steps and occurrences of ranges are compared."""

from __future__ import annotations

from collections.abc import Sequence

from overlapscope.analysis.results import Device, Period
from overlapscope.analysis.steps import begins_with_warm_up
from overlapscope.compare.noise import FEWEST


def compared(device: Device, *, skip: int = 0) -> tuple[int, ...]:
    """Indexes into `Device.steps` of those worth comparing: not among the first `skip`, whole, and no warm-up.

    What the recorder marked as warm-up is not among the steps to begin with.
    """
    kept = [number for number, step in enumerate(device.steps) if number >= skip and not step.partial]
    return without_warm_up(kept, [step.span_ns for step in device.steps])


def without_warm_up(numbers: Sequence[int], spans_ns: Sequence[int]) -> tuple[int, ...]:
    """The steps of these numbers, but for the first where it is a warm-up; `spans_ns` has the spans of all steps."""
    warm_up = begins_with_warm_up([spans_ns[number] for number in numbers])
    return tuple(numbers[1:] if warm_up else numbers)


def averaged(device: Device) -> tuple[int, ...]:
    """Of the steps compared those to take means of: without the last one, where enough are left.

    The last step ends with the last op, not where a next one would begin. Where the host is slow, the idle time at its
    end is missing: a mean, unlike a median, is moved by that.
    """
    kept = compared(device)
    return kept[:-1] if len(kept) > FEWEST else kept


def occurrences(device: Device, *, skip: int = 0) -> dict[str, tuple[Period, ...]]:
    """The ranges of each name that are whole and begin no earlier than the first step that is compared."""
    steps = compared(device, skip=skip)
    begin = device.steps[steps[0]].window.start_ns if steps else device.window.start_ns
    found: dict[str, list[Period]] = {}
    for period in device.ranges:
        if not period.partial and period.window.start_ns >= begin:
            found.setdefault(period.name, []).append(period)
    return {name: tuple(periods) for name, periods in found.items()}
