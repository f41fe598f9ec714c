"""What each blocking call cost: the idle time that `analysis.stalls` charges to it, call by call."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.stalls import STALL_NUMBERS
from overlapscope.timeline.lane import Lanes
from overlapscope.trace.model import I64


def caused_by(lanes: Lanes, call: int) -> int:
    """Idle time of all devices that one runtime call caused."""
    caused = 0
    for one in lanes.analysis.devices:
        idle = one.idle
        mine = np.flatnonzero(idle.call == call)
        mine = mine[np.isin(idle.cause[mine], STALL_NUMBERS)]
        caused += int((idle.end_ns[mine] - idle.start_ns[mine]).sum())
    return caused


def caused_by_each(lanes: Lanes) -> I64:
    """The same of every runtime call, by row."""
    caused = np.zeros(len(lanes.analysis.trace.runtime_calls), np.int64)
    for one in lanes.analysis.devices:
        idle = one.idle
        mine = np.isin(idle.cause, STALL_NUMBERS) & (idle.call >= 0)
        np.add.at(caused, idle.call[mine], (idle.end_ns - idle.start_ns)[mine])
    return caused
