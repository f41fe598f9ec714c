"""A calibration in a sentence."""

from __future__ import annotations

from overlapscope.base.words import bandwidth, clean, duration, listed, percent
from overlapscope.prediction.calibration import Calibration
from overlapscope.prediction.constants import Constants, SizedTime


def summary(calibration: Calibration) -> str:
    """The GPU and the few figures by which a person sees whether they make sense."""
    return f"{clean(calibration.gpu)}: {'; '.join(_figures(calibration.constants)) or 'nothing could be measured'}."


def _figures(constants: Constants) -> list[str]:
    rates = [
        f"{bandwidth(_best(copies))} GB/s {way}"
        for copies, way in ((constants.h2d, "to the GPU"), (constants.d2h, "from it"))
        if copies
    ]
    shares = [percent(100 * share) for share in (constants.h2d_two_way, constants.d2h_two_way) if share is not None]
    times = [
        f"{what} {duration(ns)}"
        for what, ns in (
            ("a launch call takes", constants.launch_call_ns),
            ("a kernel starts after", constants.launch_latency_ns),
            ("an event hands over after", constants.handover_ns),
            ("recording costs an op", constants.op_cost_ns),
            ("and a call", constants.call_cost_ns),
        )
        if ns is not None
    ]
    figures = [f"pinned copies reach {listed(rates)}"] if rates else []
    if len(shares) == 2:
        figures.append(f"{shares[0]} and {shares[1]} of that both ways at once")
    return figures + times


def _best(copies: tuple[SizedTime, ...]) -> float:
    return max(one.bytes / one.duration_ns for one in copies)
