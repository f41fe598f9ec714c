"""Guesses by the times of ops: the op before the event that a stream waits for, if the recording doesn't state it.

- The event was recorded by the nearest `cudaEventRecord*` call before the wait on the same thread, or on any thread if
  that one has none.
- It was recorded on a stream whose last op enqueued before had ended when the held op began, so that a guess never
  contradicts the timeline. Among several such streams, the last to finish before the held op is chosen, because
  it explains the start best.

The confidence is `HIGH` if the record call directly precedes the wait (as in `wait_stream` and `record();
wait_event()`), or if the stream is stated and only the record call lies before the recording; and if the held op began
right when the source ended, or only one stream is possible. Otherwise it is `LOW`.
"""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.event_waits import HANDOVER_NS, HIGH, LOW, event_waits
from overlapscope.analysis.lane_items import find_lanes
from overlapscope.base.columns import I8, I64, Columns, pick
from overlapscope.base.grouping import among, distinct
from overlapscope.trace.model import Trace


class GuessedSources(Columns, frozen=True):
    """Item that each of some waits is likely to be for, one row each."""

    wait: I64
    """Row of `EventWaits`."""
    item: I64
    """Row of `LaneItems`: the last before the event."""
    record: I64
    """Call that recorded the event; -1 where unknown."""
    confidence: I8


def guessed_sources(trace: Trace) -> GuessedSources:
    """Return guesses for the waits whose event the recording doesn't state.

    If there are several devices, a stream that launched nothing is as good as unknown, since Kineto states no device.
    """
    lanes, every, ops = find_lanes(trace), event_waits(trace), trace.gpu_ops
    items = lanes.items
    begins, ends = ops.start_ns[items.op], ops.end_ns[items.last_op]
    launches = items.call >= 0
    with_launches = np.array(lanes.keys, np.int64)[distinct(items.lane[launches])]
    known = among(every.source, with_launches) | ((every.source >= 0) & (len(trace.devices) == 1))
    rows = np.flatnonzero(~(every.stated & known))
    waits = every.take(rows)
    source = np.where(known[rows], waits.source, -1)
    recorded_at = np.where(waits.nearest >= 0, waits.nearest, waits.call)
    held = np.full(len(waits), -1, np.int64)
    parts = {key: slice(*lanes.first[lane : lane + 2].tolist()) for lane, key in enumerate(lanes.keys)}
    for key, part in parts.items():
        waiting = np.flatnonzero(waits.stream == key)
        following = part.start + np.searchsorted(items.call[part], waits.call[waiting])
        held[waiting] = np.where(following < part.stop, following, -1)
    held_begins = pick(begins, held, 0)
    item, end, record = np.full((3, len(waits)), -1, np.int64)
    possible = np.zeros(len(waits), np.int64)
    for key, part in parts.items():
        recorded = np.searchsorted(items.call[part], recorded_at) - 1
        # An event that is created once and recorded in every step has older records than the nearest one.
        over = np.searchsorted(np.maximum.accumulate(ends[part]), held_begins, side="right") - 1
        before = np.where(waits.adjacent, recorded, np.minimum(recorded, over))
        candidate = part.start + np.maximum(before, 0)
        ended = pick(ends, candidate)
        valid = (before >= 0) & pick(launches, candidate, False) & (held >= 0) & (waits.stream != key)
        valid &= (ended <= held_begins) & ((source < 0) | (source == key))
        possible += valid
        better = valid & (ended > end)
        item[better], end[better] = candidate[better], ended[better]
        # An op before an older record was not recorded by the nearest record call.
        record[better] = np.where(before == recorded, waits.record, -1)[better]
    directly = held_begins - end <= HANDOVER_NS
    sure = (waits.adjacent | (source >= 0)) & (directly | (possible == 1))
    guessed = np.flatnonzero(item >= 0)
    confidence = np.where(sure, HIGH, LOW).astype(np.int8)
    return GuessedSources(rows[guessed], item[guessed], record[guessed], confidence[guessed])
