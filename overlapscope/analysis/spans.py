"""Which part of a device's window stands for it."""

from __future__ import annotations

from overlapscope.analysis.results import Device, Period


def whole(device: Device) -> Period:
    """The figures of the whole window, as those of a step are given."""
    return Period(
        name="",
        window=device.window,
        span_ns=device.span_ns,
        buckets=device.buckets,
        engines=device.engines,
        overlap=device.overlap,
        exposed_copy_by_cause=device.exposed_copy_by_cause,
        idle_by_cause=device.idle_by_cause,
        partial=False,
    )


def median_step(device: Device) -> Period | None:
    """The step of median length; the lower of the two middle ones, so that it is one that was recorded."""
    ordered = sorted(device.steps, key=lambda step: (step.span_ns, step.window.start_ns))
    return ordered[(len(ordered) - 1) // 2] if ordered else None
