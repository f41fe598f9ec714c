"""The figures of a device computed again, by sweeping over its ops' edges in Python's integers."""

from __future__ import annotations

from collections.abc import Iterable

from overlapscope.trace.model import GpuOps, Kind

Edges = list[tuple[int, int, int]]
"""When, which kind, and whether it begins (1) or ends (-1) there; sorted."""


def edges(ops: GpuOps, device: int) -> Edges:
    """Return the times at which ops of the device begin and end."""
    edges: Edges = []
    columns = zip(ops.device.tolist(), ops.kind.tolist(), ops.start_ns.tolist(), ops.end_ns.tolist(), strict=True)
    for ordinal, kind, start, end in columns:
        if ordinal == device and end > start:
            edges += ((start, kind, 1), (end, kind, -1))
    return sorted(edges)


def lengths(edges: Edges, windows: Iterable[tuple[int, int]]) -> list[dict[str, int]]:
    """For each window, how long each of these sets of instants is in it, by the report's names."""
    spans = list(_pieces(edges))
    return [_measured(spans, start, end) for start, end in windows]


def _pieces(edges: Edges) -> Iterable[tuple[int, int, list[int]]]:
    """Yield stretches in which nothing begins or ends, with the number of ops of each kind that run there."""
    running = [0] * len(Kind)
    before = 0
    for at, kind, change in edges:
        if at > before and any(running):
            yield before, at, running.copy()
        running[kind] += change
        before = at


def _measured(spans: list[tuple[int, int, list[int]]], start: int, end: int) -> dict[str, int]:
    names = (
        *("compute_ns", "comm_ns", "sm_ns", "h2d_ns", "d2h_ns", "other_ns", "copy_ns", "busy_ns", "h2d_d2h_ns"),
        *("exposed_comm_ns", "exposed_copy_ns", "exposed_h2d_ns", "exposed_d2h_ns", "exposed_other_ns", "both_comm"),
        *("p2p_ns", "exposed_p2p_ns"),
    )
    ns = dict.fromkeys(names, 0)
    worked = 0
    for begin, over, running in spans:
        length = min(over, end) - max(begin, start)
        if length <= 0:
            continue
        worked += length
        compute, comm, h2d, d2h, within, p2p = (running[kind] > 0 for kind in Kind)
        other = within or p2p
        kernels = compute or comm
        copy = h2d or d2h
        holds = (
            *(compute, comm, kernels, h2d, d2h, other, copy, kernels or copy, h2d and d2h),
            *(comm and not compute, copy and not kernels, h2d and not kernels, d2h and not kernels),
            *(other and not kernels and not copy, comm and compute),
            *(p2p, p2p and not kernels),
        )
        for name, held in zip(names, holds, strict=True):
            if held:
                ns[name] += length
    ns["idle_ns"] = end - start - worked
    return ns
