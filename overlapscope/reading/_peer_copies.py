"""Copies between devices, as far as a source tells them apart from copies within a device."""

from __future__ import annotations

import numpy as np

from overlapscope.base.columns import pick
from overlapscope.base.grouping import among
from overlapscope.trace import op_names
from overlapscope.trace.model import I8, I32, I64, Kind, RuntimeCalls


def with_peer_copies(kind: I8, source_device: I32, target_device: I32, calls: RuntimeCalls, launch: I64) -> I8:
    """Return the kinds of GPU ops, corrected by the devices that copies state and by the calls that launched them.

    A copy is a peer copy exactly if it states two different devices. If it does not state both, its name decides, or
    the call that launched it: ROCm names all copies between devices as it names those within a device.

    Args:
        kind: Kind of each op by its name.
        source_device: Device that it reads; -1 where not stated.
        target_device: Device that it writes; -1 where not stated.
        calls: Calls of the runtime.
        launch: Row of the launching call in `calls`; -1 where not recorded.
    """
    within = among(kind, (Kind.OTHER, Kind.P2P))
    stated = (source_device >= 0) & (target_device >= 0)
    called = pick(calls.named(op_names.states_peer_copy), launch, False)
    peers = np.where(stated, source_device != target_device, called | (kind == Kind.P2P))
    return np.where(within, np.where(peers, Kind.P2P, Kind.OTHER), kind).astype(np.int8)
