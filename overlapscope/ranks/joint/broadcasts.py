"""Broadcasts in a joint replay: all members need only the data of the root.

Recordings don't state the root, but a member isn't the root if another member ended before it arrived.
"""

from __future__ import annotations

import re

import numpy as np

from overlapscope.base.intervals import Bool
from overlapscope.ranks.clocks import Offsets
from overlapscope.ranks.collectives import Meetings
from overlapscope.ranks.messages import kernel_name
from overlapscope.ranks.reduced import CommKind

_BROADCAST = re.compile(r"broadcast", re.IGNORECASE)


def is_broadcast(kind: CommKind) -> bool:
    """Return whether a single member sends the same to all others."""
    return _BROADCAST.search(kernel_name(kind)) is not None


def with_broadcasts(symmetric: Meetings, met: Meetings) -> Meetings:
    """Return symmetric meetings, and the broadcasts among all that were matched."""
    others = met.where(is_broadcast)
    first = np.append(symmetric.first, others.first[1:] + symmetric.first[-1])
    return Meetings(met.kernels, first, np.concatenate([symmetric.row, others.row]), met.not_collective)


def waited_for(met: Meetings, offsets: Offsets) -> Bool:
    """Return a mask of the entries of `Meetings.row` that the others wait for, as far as the recording shows."""
    if not len(met):
        return np.zeros(0, np.bool_)
    offset, error = offsets.offset_ns[met.rank], offsets.error_ns[met.rank]
    first_end = np.minimum.reduceat(met.end_ns - offset + error, met.first[:-1])
    broadcast = met.kernels.by_kind(is_broadcast)[met.kind] != 0
    late = met.start_ns - offset - error > first_end[met.meeting]
    needed: Bool = ~(broadcast[met.meeting] & late)
    return needed
