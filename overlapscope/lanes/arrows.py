"""What led to an op and what it led to: launches, and waits for events."""

from __future__ import annotations

from typing import Any

import numpy as np

from overlapscope.analysis.edges import EXACT
from overlapscope.lanes import places
from overlapscope.lanes.lane import Lanes
from overlapscope.lanes.places import Place
from overlapscope.trace import I64

MOST = 50
"""Arrows of one op; a graph launch has thousands."""

Arrow = dict[str, Any]


def of_gpu_op(lanes: Lanes, device: int, row: int) -> list[Arrow]:
    """Its launch, the ops it waited for and those that waited for it. `row` is of the device's `Timeline.ops`."""
    ops, edges = lanes.device(device).timeline.ops, lanes.device(device).edges
    found = []
    if ops.launch[row] >= 0:
        found.append(_launch(lanes, int(ops.launch[row]), device, row))
    waits = np.flatnonzero((edges.source >= 0) & ((edges.held == row) | (edges.source == row)))
    # Several waits may say the same of two ops.
    pairs: dict[tuple[int, int], int] = {}
    for source, held, sure in zip(
        *(c[waits].tolist() for c in (edges.source, edges.held, edges.confidence)), strict=True
    ):
        pairs[source, held] = max(sure, pairs.get((source, held), sure))
    for (source, held), sure in list(pairs.items())[: MOST - len(found)]:
        found.append(
            _arrow(
                "wait",
                "exact" if sure == EXACT else "rebuilt",
                (places.of_gpu_op(lanes, device, source), int(ops.end_ns[source]) - lanes.origin_ns),
                (places.of_gpu_op(lanes, device, held), int(ops.start_ns[held]) - lanes.origin_ns),
            )
        )
    return found


def of_calls(lanes: Lanes, calls: I64) -> list[Arrow]:
    """From runtime calls (sorted rows) to the GPU ops that they launched."""
    found: list[Arrow] = []
    for one in lanes.analysis.devices:
        ops, device = one.timeline.ops, one.result.device
        rows = places.launched_by(ops, calls)[: MOST - len(found)]
        found += [_launch(lanes, int(ops.launch[row]), device, row) for row in rows.tolist()]
    return found


def _launch(lanes: Lanes, call: int, device: int, row: int) -> Arrow:
    calls, ops = lanes.analysis.trace.runtime_calls, lanes.device(device).timeline.ops
    return _arrow(
        "launch",
        "exact",
        (places.of_call(lanes, call), int(calls.start_ns[call]) - lanes.origin_ns),
        (places.of_gpu_op(lanes, device, row), int(ops.start_ns[row]) - lanes.origin_ns),
    )


def _arrow(kind: str, confidence: str, source: tuple[Place, int], target: tuple[Place, int]) -> Arrow:
    return {
        "kind": kind,
        "confidence": confidence,
        "from": {"lane": source[0].lane, "row": source[0].row, "at": source[1]},
        "to": {"lane": target[0].lane, "row": target[0].row, "at": target[1]},
    }
