"""What each blocking call cost: the idle time that `analysis.stalls` charges to it, call by call."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.causes import IDLE_CAUSES, IdleCause
from overlapscope.lanes.lane import Lanes
from overlapscope.trace import I64

_BLOCKED = [IDLE_CAUSES.index(c) for c in (IdleCause.HOST_SYNC, IdleCause.ALLOCATION, IdleCause.HOST_STAGING)]


def caused_by(lanes: Lanes, call: int) -> int:
    """Idle time of all devices that one runtime call caused."""
    caused = 0
    for one in lanes.analysis.devices:
        idle = one.idle
        mine = np.flatnonzero(idle.call == call)
        mine = mine[np.isin(idle.cause[mine], _BLOCKED)]
        caused += int((idle.end_ns[mine] - idle.start_ns[mine]).sum())
    return caused


def caused_by_each(lanes: Lanes) -> I64:
    """The same of every runtime call, by row."""
    caused = np.zeros(len(lanes.analysis.trace.runtime_calls), np.int64)
    for one in lanes.analysis.devices:
        idle = one.idle
        mine = np.isin(idle.cause, _BLOCKED) & (idle.call >= 0)
        np.add.at(caused, idle.call[mine], (idle.end_ns - idle.start_ns)[mine])
    return caused
