"""What a step of the plain program takes where nobody timed it: an interval, from what events cost the host."""

from __future__ import annotations

from dataclasses import replace

from overlapscope.analysis.plain_step import PlainStep
from overlapscope.prediction.base import Base, lightened
from overlapscope.prediction.recording_cost import EventCost, host_cost

_LOW = EventCost(op_ns=3000.0, call_ns=4000.0, frame_ns=800.0)
_USUAL = EventCost(op_ns=1200.0, call_ns=1200.0, frame_ns=300.0)
_HIGH = EventCost(op_ns=500.0, call_ns=300.0, frame_ns=100.0)


def estimated(base: Base) -> Base:
    """The plain program by what events usually cost; its `plain` has the interval."""
    middle = lightened(base, host_cost(base.graph, _USUAL), 1.0)
    ends = [lightened(base, host_cost(base.graph, cost), 1.0).steps.median_ns for cost in (_LOW, _HIGH)]
    # Steps of one recording differ, and so do machines, where nothing is recorded.
    step_ns = middle.steps.median_ns
    return replace(middle, plain=PlainStep(step_ns, min(ends[0], step_ns), max(ends[1], step_ns), "estimated"))
