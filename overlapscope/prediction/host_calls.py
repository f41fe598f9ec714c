"""The host's side of the dependency graph: how long calls take without waiting, and the items that they wait for.

The waits of blocking calls come from the order that the program demands (`analysis.holds`), or if the recording doesn't
state them, from `guesses`.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.event_waits import EXACT, HANDOVER_NS, HIGH, LOW
from overlapscope.analysis.holds import HostHolds, Reading, find_holds
from overlapscope.analysis.host_order import Calls
from overlapscope.analysis.lane_items import find_lanes
from overlapscope.base.grouping import among, distinct_rows
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import DeviceItems, RecordedParts, Waits
from overlapscope.prediction.guesses import SKEW_NS, guess_waits
from overlapscope.trace.model import I64


def find_waits(recorded: RecordedParts, items: DeviceItems, constants: Constants) -> tuple[Calls, Waits]:
    """Find the items that each call waits for, and reduce the calls to their lengths without waiting."""
    calls = recorded.calls
    holds = find_holds(recorded.trace, Reading.LIKELY)
    known = _known(recorded, items, holds.host)
    guessed = guess_waits(recorded, items, among(calls.row, holds.known_calls))
    call, item = (np.concatenate(rows) for rows in zip(known, guessed, strict=True))
    waited = items.end_ns[item] > calls.start_ns[call]
    after = calls.end_ns[call] - items.end_ns[item]
    lag = np.where(waited, after, np.minimum(after, constants.return_ns or 0))
    directly = waited & (after <= HANDOVER_NS)
    guess = np.arange(len(call)) >= len(known[0])
    confidence = np.where(~guess, EXACT, np.where(directly, HIGH, LOW)).astype(np.int8)
    length = calls.length_ns.copy()
    # The call's own length is hidden under its wait.
    length[call[waited]] = np.minimum(length[call[waited]], constants.sync_call_ns or 0)
    return replace(calls, length_ns=length), Waits(call, item, lag, confidence)


def _known(recorded: RecordedParts, items: DeviceItems, holds: HostHolds) -> tuple[I64, I64]:
    """Pair calls with the items that they are known to wait for, unless the times contradict it."""
    calls, op = recorded.calls, find_lanes(recorded.trace).items.op
    call, item = np.searchsorted(calls.row, holds.call), recorded.item_of_op[op[holds.item]]
    possible = items.end_ns[item] <= calls.end_ns[call] + SKEW_NS
    pairs = distinct_rows([call[possible], item[possible]])
    call, item = np.array(pairs, np.int64).reshape(-1, 2).T
    return call, item
