"""Steps of a graph: which items belong to which, and how long they take when it is replayed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overlapscope.analysis.periods import is_step, judged_steps
from overlapscope.intervals import I64
from overlapscope.prediction.graph import Graph
from overlapscope.trace import Kind, Trace


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The steps of one device, in order."""

    start_ns: I64
    end_ns: I64
    whole: bool
    """There are no steps, and this is the window."""

    @property
    def known(self) -> I64:
        """Lengths of the steps whose end is known: all but the last, which ends where the recording does."""
        length = self.end_ns - self.start_ns
        return length[:-1] if len(length) > 1 else length

    @property
    def spread(self) -> tuple[int, int]:
        """Between which lengths half of the steps lie; of three or fewer, all."""
        length = np.sort(self.known)
        aside = (len(length) - 1) // 4
        return int(length[aside]), int(length[len(length) - 1 - aside])

    @property
    def median_ns(self) -> int:
        """The step's time: of two in the middle the shorter, so that it is one that was recorded."""
        return int(np.sort(self.known)[(len(self.known) - 1) // 2])


def step_of_items(graph: Graph) -> I64:
    """Number of the step that each item was launched from; -1 for none."""
    trace = graph.trace
    rows = np.flatnonzero(is_step(trace.annotations))
    starts, ends = trace.annotations.start_ns[rows], trace.annotations.end_ns[rows]
    call = graph.items.call
    at = np.where(call >= 0, np.append(graph.calls.start_ns, 0)[call], -1)
    found = np.searchsorted(starts, at, side="right") - 1
    inside = (found >= 0) & (at < np.append(ends, 0)[found])
    return np.where(inside, found, -1)


def step_times(graph: Graph, device: int, stream: int, start_ns: I64, end_ns: I64) -> StepTimes:
    """When the steps run, if the graph's items run as given.

    A step begins with the first of its items on the main stream (`analysis.periods`). Steps of the recorder's warm-up
    are left out, and the first is where its work was under way before the recording.
    """
    items, trace = graph.items, graph.trace
    mine = (items.device == device) & ~items.gone
    lanes = [number for number, lane in enumerate(graph.streams) if lane == (device, stream)]
    number = step_of_items(graph)
    first_judged = _first_judged(trace)
    on_main = mine & np.isin(items.lane, lanes) & (number >= first_judged)
    if not on_main.any():
        # All of it was moved away: then what did run there bounds the steps.
        was_there = np.zeros(len(items), np.bool_)
        was_there[graph.item_of_op[graph.trace.gpu_ops.stream == stream]] = True
        on_main = mine & was_there & (number >= first_judged)
    # Work that was queued before the recording makes the steps that it delays look longer.
    led_in = end_ns[mine & (items.call < 0)].max(initial=-(2**62))
    steps = np.unique(number[on_main])
    begins = np.array([start_ns[on_main & (number == one)].min() for one in steps.tolist()], np.int64)
    begins = np.sort(begins[begins >= led_in])
    last = int(end_ns[mine].max())
    if not len(begins):
        return StepTimes(start_ns[mine].min(keepdims=True), np.array([last]), True)
    return StepTimes(begins, np.append(begins[1:], last), False)


def _first_judged(trace: Trace) -> int:
    rows = np.flatnonzero(is_step(trace.annotations))
    judged = judged_steps(trace)
    return int(np.searchsorted(rows, judged[0])) if len(judged) else 0


def engine_ns(graph: Graph, device: int, steps: StepTimes, start_ns: I64, end_ns: I64) -> int:
    """How long the busier copy engine works for a step (median): steps that follow each other cannot be shorter.

    A recording of few steps may not show it, where copies are left over that run behind its last kernel. 0 without
    steps.
    """
    items, number, judged = graph.items, step_of_items(graph), _first_judged(graph.trace)
    longest = 0
    for kind in (Kind.H2D, Kind.D2H):
        mine = items.on_engine & (items.kind == kind) & (items.device == device) & (number >= judged)
        if mine.any():
            each = np.bincount(number[mine] - judged, (end_ns - start_ns)[mine], len(steps.known))
            longest = max(longest, int(np.median(each)))
    return longest
