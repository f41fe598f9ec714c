"""Steps of a graph: the items of each, and their lengths in a replay."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from overlapscope.analysis.facts import rounded_mean
from overlapscope.analysis.host_order import find_calls
from overlapscope.analysis.lane_items import find_lanes
from overlapscope.analysis.periods import is_step, judged_steps
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import I64, Bool, mask_of, pick
from overlapscope.base.kept import kept
from overlapscope.prediction.graph import Graph
from overlapscope.trace.model import Kind, Trace

_NEVER_NS = 2**62


class StepTimes(Struct, frozen=True, eq=False):
    """The steps of one device, in order."""

    start_ns: I64
    end_ns: I64
    is_window: bool
    """True if the time after the lead-in stands in for missing steps."""

    @property
    def lengths_ns(self) -> I64:
        """Lengths of the steps with a known end: all but the last, which ends where the recording does."""
        length = self.end_ns - self.start_ns
        return length[:-1] if len(length) > 1 else length

    @property
    def spread(self) -> tuple[int, int]:
        """Lengths between which half of the steps lie; of three or fewer, all."""
        length = np.sort(self.lengths_ns)
        aside = (len(length) - 1) // 4
        return int(length[aside]), int(length[len(length) - 1 - aside])

    @property
    def mean_ns(self) -> int:
        """Step time: that of an average step, as in `analysis.average`."""
        return mean(self.lengths_ns)


def mean(values: I64) -> int:
    """Return the mean of at least one length in whole nanoseconds."""
    return rounded_mean(int(values.sum()), len(values))


class JudgedSteps(Struct, frozen=True, eq=False):
    """Steps of one device to judge."""

    timeline: Timeline
    """The device as recorded. The first op of a step on its main stream begins the step."""
    numbers: I64
    """Ascending numbers of the steps in the recording."""


def step_of_items(graph: Graph) -> I64:
    """Return the number of the step that launched each item; -1 for none."""
    return pick(_step_of_calls(graph.trace), graph.items.call)


@kept()
def _step_of_calls(trace: Trace) -> I64:
    calls, notes = find_calls(trace).calls, trace.annotations
    rows = np.flatnonzero(is_step(notes))
    # Calls are in order, so the calls of a step are a single stretch, up to its end and the next step's start.
    starts = np.searchsorted(calls.start_ns, notes.start_ns[rows])
    ends = np.searchsorted(calls.start_ns, notes.end_ns[rows])
    ends = np.minimum(ends, np.append(starts[1:], len(calls))[: len(ends)])
    call = np.arange(len(calls))
    step: I64 = np.searchsorted(starts, call, side="right") - 1
    return np.where(call < pick(ends, step, 0), step, -1)


@kept(most=1)
def _place_of_calls(trace: Trace, judged: JudgedSteps) -> I64:
    """Return the place of each call's step among the judged ones; the last value is for no call."""
    step, numbers = _step_of_calls(trace), judged.numbers
    place = np.full(max(int(numbers.max(initial=-1)), int(step.max(initial=-1))) + 2, -1)
    place[numbers] = np.arange(len(numbers))
    # The last position stands for no step.
    return np.append(place[step], -1)


def find_steps(graph: Graph, timeline: Timeline) -> JudgedSteps:
    """Return a device's steps to judge: as recorded, after the recorder's warm-up and the lead-in."""
    items = graph.items
    number = step_of_items(graph)
    warm_up = graph.trace.warm_up_steps if len(judged_steps(graph.trace)) else 0
    on_stream = _launched_on(graph.trace, timeline.main_stream)
    candidates = (items.device == timeline.device) & (number >= warm_up) & on_stream
    # Items are in order, so the first item of a step begins first.
    steps, first = np.unique(number[candidates], return_index=True)
    numbers = steps[items.start_ns[candidates][first] >= timeline.judged_from_ns]
    return JudgedSteps(timeline, numbers)


def step_times(graph: Graph, judged: JudgedSteps, start_ns: I64, end_ns: I64) -> StepTimes:
    """Return when the judged steps run, for given starts and ends of the graph's items.

    A step begins with its first item on the main stream (`analysis.periods`). If all of them were moved away, it begins
    with the first that ran there when recorded. Without steps, the time after the lead-in is returned.
    """
    items = graph.items
    present = (items.device == judged.timeline.device) & ~items.gone
    last = int(end_ns[present].max())
    begins = _begins(graph, judged, start_ns)[0]
    starts = np.sort(begins[begins < _NEVER_NS])
    if not len(starts):
        lead_in = present & (items.end_ns <= judged.timeline.judged_from_ns)
        begin = int(end_ns[lead_in].max() if lead_in.any() else start_ns[present].min())
        return StepTimes(np.array([min(begin, last)]), np.array([last]), True)
    return StepTimes(starts, np.append(starts[1:], last), False)


def first_items(graph: Graph, judged: JudgedSteps, start_ns: I64) -> I64:
    """Return the item with which each judged step begins, by start; steps without an item are left out."""
    begins, place = _begins(graph, judged, start_ns)
    first = np.flatnonzero((place >= 0) & (start_ns == pick(begins, place, _NEVER_NS)))
    first = first[np.unique(place[first], return_index=True)[1]]
    return first[np.argsort(start_ns[first], kind="stable")]


def step_of_calls(graph: Graph, judged: JudgedSteps) -> I64:
    """Return in which judged step the device waits for each call, by place; -1 for none.

    A step of the device ends with the first launch of the next, so that the host's work before it belongs to the step.
    """
    first = graph.items.call[first_items(graph, judged, graph.items.start_ns)]
    begins = np.sort(graph.calls.start_ns[first[first >= 0]])
    step: I64 = np.searchsorted(begins, graph.calls.start_ns, side="left") - 1
    return np.where(step < len(begins) - 1, step, -1)


def _begins(graph: Graph, judged: JudgedSteps, start_ns: I64) -> tuple[I64, I64]:
    """Return when each judged step begins, `_NEVER_NS` if it has no item, and the step of each item that may begin it.

    Steps are given by their place among the judged ones, -1 for none.
    """
    items = graph.items
    place = _place_of_calls(graph.trace, judged)[graph.items.call]
    present = (items.device == judged.timeline.device) & ~items.gone
    on_stream = present & _launched_on(graph.trace, judged.timeline.main_stream) & (place >= 0)
    begins, begins_moved = np.full((2, len(judged.numbers)), _NEVER_NS)
    for into, mask in ((begins, on_stream & ~items.moved), (begins_moved, on_stream & items.moved)):
        np.minimum.at(into, place[mask], start_ns[mask])
    stayed = begins < _NEVER_NS
    may = on_stream & (items.moved != pick(stayed, place, False))
    return np.where(stayed, begins, begins_moved), np.where(may, place, -1)


@kept(most=1)
def _launched_on(trace: Trace, stream: int) -> Bool:
    """Return a mask of the items with an op that ran on a stream of that number when recorded."""
    lanes = find_lanes(trace)
    return mask_of(lanes.item_of_op[trace.gpu_ops.stream == stream], len(lanes.items))


def engine_ns(graph: Graph, judged: JudgedSteps, start_ns: I64, end_ns: I64) -> int:
    """Return the mean time that the busier copy engine works per step, a lower bound for successive steps.

    A short recording may not show it, if copies still run after its last kernel. 0 without steps.
    """
    items, place = graph.items, _place_of_calls(graph.trace, judged)[graph.items.call]
    working = np.flatnonzero(items.on_engine & (items.device == judged.timeline.device) & (place >= 0))
    longest = 0
    for kind in (int(Kind.H2D), int(Kind.D2H)):
        copies = working[items.kind[working] == kind]
        if len(copies):
            each = np.bincount(place[copies], end_ns[copies] - start_ns[copies], len(judged.numbers))
            longest = max(longest, mean(each))
    return longest


def least_step_ns(graph: Graph, judged: JudgedSteps) -> int:
    """Return a lower bound of the step (`StepTimes.mean_ns`, `engine_ns`) for any replay of the graph.

    The bound is the time of the step's copies, and the time of the main stream's ops and gaps between the beginnings of
    two steps. 0 if there is no such bound, as without steps.
    """
    items, constants = graph.items, graph.constants
    # Rounded times may be up to 1 ns shorter.
    alone = items.duration_ns / np.where(
        items.on_engine, max(1.0, constants.h2d_two_way or 1, constants.d2h_two_way or 1), 1
    )
    length = np.floor(alone).astype(np.int64)
    return max(_least_between_begins(graph, judged, length), engine_ns(graph, judged, np.zeros_like(length), length))


def _least_between_begins(graph: Graph, judged: JudgedSteps, length: I64) -> int:
    items, lane = graph.items, (judged.timeline.device, judged.timeline.main_stream)
    place = _place_of_calls(graph.trace, judged)[graph.items.call]
    unmoved = (items.device == judged.timeline.device) & ~items.gone & ~items.moved & (place >= 0)
    on_stream = unmoved & _launched_on(graph.trace, judged.timeline.main_stream)
    if lane not in graph.streams or (items.lane[on_stream] != graph.streams.index(lane)).any():
        return 0
    rows = np.flatnonzero(items.lane == graph.streams.index(lane))
    of_steps = np.flatnonzero(on_stream[rows])
    first = np.full(len(judged.numbers), -1)
    # The first item of each step is written last.
    first[place[rows[of_steps]][::-1]] = of_steps[::-1]
    first = first[first >= 0]
    if len(first) < max(2, len(judged.numbers)) or (np.diff(first) < 0).any():
        return 0
    # Start of each item if it waited only for the previous item on its lane, and the minimum over the items after it.
    at = np.cumsum(items.queue_lag_ns[rows] + length[rows]) - length[rows]
    least = np.minimum.accumulate(at[::-1])[::-1]
    between: I64 = least[first[1:]] - at[first[:-1]]
    return 0 if (between < 0).any() else mean(between)
