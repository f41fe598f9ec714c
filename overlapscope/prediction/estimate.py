"""What a step of the plain program takes where nobody timed it: an interval, from what events cost the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from overlapscope.analysis.plain_step import PlainStep
from overlapscope.base.intervals import covered, union
from overlapscope.prediction.base import Base, lightened
from overlapscope.prediction.recording_cost import event_cost, host_cost

_LEAST, _MOST = 0.4, 2.0
"""Between which multiples of what recording costs by the recording's launch calls its cost lay, for 34 of 37 programs
(`docs/plain.md`)."""
_DEVICE, _HOST = 0.03, 0.2
"""By what shares of the device's and of the host's part of a step programs differ from one process to the next
(`docs/noise.md`)."""


def estimated(base: Base) -> Base:
    """The plain program by what events cost by its launch calls; its `plain` has the interval.

    Less and less of the host's work decides the length of a step, the less of it there is: in proportion to what the
    cost saves, the interval's ends are on the safe side. No step is shorter than what the GPU works for it.
    """
    found = lightened(base, host_cost(base.graph, event_cost(base.trace, base.hardware.calibrated)), 1.0)
    recorded_ns, step_ns, busy_ns = base.steps.median_ns, found.steps.median_ns, _busy_ns(base)
    saved = recorded_ns - step_ns
    differs = _DEVICE * busy_ns + _HOST * max(0, step_ns - busy_ns)
    # A replay may order the host's work otherwise and take longer than the recording.
    ends = (recorded_ns - _MOST * saved, recorded_ns - _LEAST * saved)
    low = max(min(ends) - differs, (1 - _DEVICE) * busy_ns)
    high = max(ends) + differs
    return replace(found, plain=PlainStep(step_ns, min(round(low), step_ns), round(high), "estimated"))


def _busy_ns(base: Base) -> int:
    """For how long the device works in a step (median)."""
    items, steps = base.graph.items, base.recorded
    mine = (items.device == base.device) & ~items.gone
    busy = union(items.start_ns[mine], items.end_ns[mine])
    each = np.sort(covered(busy, steps.start_ns, steps.end_ns)[: len(steps.known)])
    return int(each[(len(each) - 1) // 2])
