"""Steps of a graph: which items belong to which, and how long they take when it is replayed."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from overlapscope.analysis.periods import is_step, judged_steps
from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64
from overlapscope.base.kept import kept
from overlapscope.prediction.graph import Graph, Recorded
from overlapscope.trace.model import Bool, Kind

_NEVER_NS = 2**62


class StepTimes(Struct, frozen=True, eq=False):
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
        """The step's time."""
        return lower_median(self.known)


def lower_median(values: I64) -> int:
    """The median; of two in the middle the lower, so that it is a value that was measured."""
    middle = (len(values) - 1) // 2
    return int(np.partition(values, middle)[middle])


def step_of_items(graph: Graph) -> I64:
    """Number of the step that each item was launched from; -1 for none."""
    return pick(_step_of_calls(graph.recorded), graph.items.call)


@kept()
def _step_of_calls(recorded: Recorded) -> I64:
    calls, notes = recorded.calls, recorded.trace.annotations
    rows = np.flatnonzero(is_step(notes))
    # Calls are in order, so those of a step are one stretch: up to its end, and to the next one's start.
    starts = np.searchsorted(calls.start_ns, notes.start_ns[rows])
    ends = np.searchsorted(calls.start_ns, notes.end_ns[rows])
    ends = np.minimum(ends, np.append(starts[1:], len(calls))[: len(ends)])
    step = np.full(len(calls), -1, np.int64)
    for number, (begin, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        step[begin:end] = number
    return step


def _place_of_items(graph: Graph, numbers: I64) -> I64:
    """The place of each item's step in `numbers`, which ascend; -1 for that of none."""
    step = _step_of_calls(graph.recorded)
    place = np.full(max(int(numbers.max(initial=-1)), int(step.max(initial=-1))) + 2, -1)
    place[numbers] = np.arange(len(numbers))
    # The last place is that of no step.
    return pick(place[step], graph.items.call)


def find_steps(graph: Graph, device: int, stream: int, judged_from_ns: int) -> I64:
    """Numbers of the steps that are judged: behind the recorder's warm-up and the lead-in, as recorded."""
    items = graph.items
    number = step_of_items(graph)
    warm_up = graph.trace.warm_up_steps if len(judged_steps(graph.trace)) else 0
    there = (items.device == device) & (number >= warm_up) & _launched_on(graph.recorded, stream)
    # Items are in order, so the first of a step is the first that begins.
    steps, first = np.unique(number[there], return_index=True)
    judged: I64 = steps[items.start_ns[there][first] >= judged_from_ns]
    return judged


def step_times(graph: Graph, device: int, stream: int, numbers: I64, start_ns: I64, end_ns: I64) -> StepTimes:
    """When the given steps run, if the graph's items run as given.

    A step begins with the first of its items on the main stream (`analysis.periods`); where all of them were moved
    away, with the first that ran there when recorded. Without steps, the window.
    """
    items = graph.items
    present = (items.device == device) & ~items.gone
    last = int(end_ns[present].max())
    place = _place_of_items(graph, numbers)
    there = present & _launched_on(graph.recorded, stream) & (place >= 0)
    begins, begins_moved = np.full((2, len(numbers)), _NEVER_NS)
    for into, its in ((begins, there & ~items.moved), (begins_moved, there & items.moved)):
        np.minimum.at(into, place[its], start_ns[its])
    begins = np.where(begins < _NEVER_NS, begins, begins_moved)
    starts = np.sort(begins[begins < _NEVER_NS])
    if not len(starts):
        return StepTimes(start_ns[present].min(keepdims=True), np.array([last]), True)
    return StepTimes(starts, np.append(starts[1:], last), False)


@kept(most=1)
def _launched_on(recorded: Recorded, stream: int) -> Bool:
    """Items with an op that ran on a stream of that number when recorded."""
    launched = np.zeros(int(recorded.item_of_op.max(initial=-1)) + 1, np.bool_)
    launched[recorded.item_of_op[recorded.trace.gpu_ops.stream == stream]] = True
    return launched


def engine_ns(graph: Graph, device: int, numbers: I64, start_ns: I64, end_ns: I64) -> int:
    """How long the busier copy engine works for a step (median): steps that follow each other cannot be shorter.

    A recording of few steps may not show it, where copies are left over that run behind its last kernel. 0 without
    steps.
    """
    items, place = graph.items, _place_of_items(graph, numbers)
    working = np.flatnonzero(items.on_engine & (items.device == device) & (place >= 0))
    longest = 0
    for kind in (Kind.H2D, Kind.D2H):
        copies = working[items.kind[working] == kind]
        if len(copies):
            each = np.bincount(place[copies], end_ns[copies] - start_ns[copies], len(numbers))
            longest = max(longest, int(np.median(each)))
    return longest


def least_step_ns(graph: Graph, device: int, stream: int, numbers: I64) -> int:
    """A length that the step (`StepTimes.median_ns`, or `engine_ns`) is not below, however the graph is replayed: what
    its copies take, and what runs on the main stream between two steps' beginnings, one after another with the gaps.

    0 where that cannot be told, as without steps.
    """
    items, known = graph.items, graph.constants
    # Rounded times may be shorter by less than 1 ns.
    alone = items.duration_ns / np.where(items.on_engine, max(1.0, known.h2d_two_way or 1, known.d2h_two_way or 1), 1)
    length = np.floor(np.where(items.gone, 0, alone)).astype(np.int64)
    return max(
        _least_between_begins(graph, device, stream, numbers, length),
        engine_ns(graph, device, numbers, np.zeros_like(length), length),
    )


def _least_between_begins(graph: Graph, device: int, stream: int, numbers: I64, length: I64) -> int:
    items, lane = graph.items, (device, stream)
    place = _place_of_items(graph, numbers)
    there = (items.device == device) & ~items.gone & ~items.moved & _launched_on(graph.recorded, stream) & (place >= 0)
    if lane not in graph.streams or (items.lane[there] != graph.streams.index(lane)).any():
        return 0
    rows = np.flatnonzero(items.lane == graph.streams.index(lane))
    of_steps = np.flatnonzero(there[rows])
    first = np.full(len(numbers), -1)
    # Of those of one step, the first is written last.
    first[place[rows[of_steps]][::-1]] = of_steps[::-1]
    first = first[first >= 0]
    if len(first) < max(2, len(numbers)) or (np.diff(first) < 0).any():
        return 0
    # When each would begin if nothing but the one before it on the lane were waited for; and the least from it on.
    at = np.cumsum(items.queue_lag_ns[rows] + length[rows]) - length[rows]
    least = np.minimum.accumulate(at[::-1])[::-1]
    between: I64 = least[first[1:]] - at[first[:-1]]
    return 0 if (between < 0).any() else lower_median(between)
