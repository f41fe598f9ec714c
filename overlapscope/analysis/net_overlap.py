"""Gain and cost of overlap: hidden time, and how much longer kernels run while communication or copies run beside them.

Kernels beside other work share the device's memory bandwidth and multiprocessors with it. Hidden time is exact; how
much longer kernels took is estimated. Kernels are equal if they have the same name, grid and stream, and the same
kernels before and after them on the stream, which tells layers of different sizes apart. Equal kernels that ran alone
are compared by ranks with those that ran beside other work: the estimate is Hodges and Lehmann's, the interval that of
the Mann-Whitney test at 95%, counted exactly for few kernels. The intervals of several groups are added up end by end,
as if all were wrong in the same direction.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import numpy as np
from msgspec import Struct

from overlapscope.analysis.facts import rounded_mean, rounded_parts
from overlapscope.analysis.figures import Beside, PerStep, TimeFigures, hidden_ns
from overlapscope.analysis.results import NetOverlap, SlowedKernel, Unjudged
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import I32, I64, Bool, quantile
from overlapscope.base.grouping import among, groups_of, rows_by
from overlapscope.base.intervals import Intervals, clip, covered, intersect, join, side_by_side, subtract, union
from overlapscope.trace.model import Kind

MIN_OVERLAPPED_SHARE: Final = 0.8
"""Minimum share of a kernel's length that other work must overlap for the kernel to be compared."""
MAX_LENGTH_RATIO: Final = 1.5
"""Maximum ratio of the 90th to the 10th percentile of lengths. Kernels that differ more do different work."""
_TAIL_PROBABILITY: Final = 0.025
_MAX_COMPARED_KERNELS: Final = 128
"""Maximum number of kernels that are compared on each side of a group, evenly chosen."""
_MAX_KERNELS_FOR_EXACT_TEST: Final = 20
"""Maximum number of kernels on the smaller side for which the test's distribution is counted, not approximated."""
_NORMAL_QUANTILE: Final = 1.96
_MAX_LOST_SHARE: Final = 0.6
"""Maximum share of its speed that compute loses."""
_MAX_NAMED_KERNELS: Final = 5
"""Number of kernels that a result names."""


class _Kernels(Struct, frozen=True, eq=False):
    """Compute kernels of a device, one row each."""

    start_ns: I64
    end_ns: I64
    group: I64
    """Number of its group of equal kernels."""
    name_id: I32
    compared: Bool
    """True if it begins in the first judged window or later, without another kernel or memory work of the device beside
    it. The last step isn't judged, but its kernels can be compared."""
    alone: Bool
    """True if neither communication nor a copy ran beside it."""


class _Cost(Struct, frozen=True):
    """Estimate for a group of equal kernels, for all judged windows together."""

    name_id: int
    overlapped_ns: int
    alone: I64
    """Lengths of the kernels that ran alone, in nanoseconds."""
    beside: I64
    """Lengths of the kernels that ran beside the other work, in nanoseconds."""
    slowed_ns: tuple[float, float, float]
    """Lower bound, estimate, upper bound."""


def net_overlap(timeline: Timeline, windows: Intervals, frame: TimeFigures) -> tuple[NetOverlap, ...]:
    """Return what overlap hides and costs, for communication and for copies, as far as any is hidden (`hidden_ns`).

    Args:
        timeline: The device's timeline.
        windows: The judged steps, or all that is judged if there are no steps.
        frame: Figures of an average step, or of the windows.
    """
    steps, kernels = frame.steps if isinstance(frame, PerStep) else 1, _find_kernels(timeline, windows)
    return tuple(
        _judge(timeline, kernels, windows, beside, time_ns, steps)
        for beside, time_ns in hidden_ns(frame).items()
        if time_ns
    )


def speed_lost(timeline: Timeline) -> tuple[float, float, float] | None:
    """Return which share of its speed compute loses beside communication: lower bound, estimate, upper bound.

    None if no kernels beside communication can be compared.
    """
    windows = clip(union([timeline.start_ns], [timeline.end_ns]), timeline.judged_from_ns, timeline.end_ns)
    if not len(windows.starts):
        return None
    cost = _judge(timeline, _find_kernels(timeline, windows), windows, "communication", 0, 1)
    if cost.slowed_low_ns is None or cost.slowed_ns is None or cost.slowed_high_ns is None or not cost.judged_ns:
        return None
    low, middle, high = (
        min(max(ns / cost.judged_ns, 0.0), _MAX_LOST_SHARE)
        for ns in (cost.slowed_low_ns, cost.slowed_ns, cost.slowed_high_ns)
    )
    return low, middle, high


def _find_kernels(timeline: Timeline, windows: Intervals) -> _Kernels:
    ops = timeline.ops
    ops = ops.take((ops.kind == Kind.COMPUTE) & (ops.end_ns > ops.start_ns))
    start, end = ops.start_ns, ops.end_ns
    disturbing = join(side_by_side(start, end), timeline.other)
    equal = (ops.name_id, ops.blocks, ops.block_threads, ops.stream, *_neighbours(ops.stream, ops.name_id))
    return _Kernels(
        start_ns=start,
        end_ns=end,
        group=groups_of(equal) if len(ops) else np.empty(0, np.int64),
        name_id=ops.name_id,
        compared=(start >= windows.starts[0]) & (covered(disturbing, start, end) == 0),
        alone=covered(join(timeline.comm, timeline.copy), start, end) == 0,
    )


def _neighbours(stream: I32, name_id: I32) -> tuple[I64, I64]:
    """Return the names of the kernels before and after each kernel on its stream, -1 for none."""
    before, after = np.full(len(name_id), -1, np.int64), np.full(len(name_id), -1, np.int64)
    for _, rows in rows_by(stream):
        before[rows[1:]], after[rows[:-1]] = name_id[rows[:-1]], name_id[rows[1:]]
    return before, after


def _judge(
    timeline: Timeline, kernels: _Kernels, windows: Intervals, beside: Beside, hidden_ns: int, steps: int
) -> NetOverlap:
    """Return the gain and cost of overlap with one kind of work."""
    start, end = kernels.start_ns, kernels.end_ns
    comm, copy = timeline.comm, timeline.copy
    # Time beside both kinds counts once, as time beside communication.
    others, unlike = (comm, copy) if beside == "communication" else (subtract(copy, comm), comm)
    overlapped_ns, inside_ns = covered(others, start, end), covered(intersect(others, windows), start, end)
    # Everything beside a compared kernel must be of the same kind.
    sample = (
        kernels.compared & (overlapped_ns >= MIN_OVERLAPPED_SHARE * (end - start)) & (covered(unlike, start, end) == 0)
    )
    alone = kernels.compared & kernels.alone
    costs: list[_Cost] = []
    unjudged_by_cause: dict[Unjudged, int] = {"never-alone": 0, "too-few": 0, "varying": 0}
    concerned = np.flatnonzero(among(kernels.group, kernels.group[inside_ns > 0]))
    for _, which in rows_by(kernels.group[concerned]):
        rows = concerned[which]
        sides = rows[alone[rows]], rows[sample[rows]]
        ran_alone, ran_beside = (_sampled(end[side] - start[side]) for side in sides)
        group_ns = int(inside_ns[rows].sum())
        estimate = _longer(ran_alone, ran_beside)
        if not len(sides[0]):
            unjudged_by_cause["never-alone"] += group_ns
        elif estimate is None:
            unjudged_by_cause["too-few"] += group_ns
        elif not (_alike(ran_alone) and _alike(ran_beside)):
            unjudged_by_cause["varying"] += group_ns
        else:
            low, middle, high = (each * group_ns / float(overlapped_ns[sides[1]].mean()) for each in estimate)
            costs.append(_Cost(int(kernels.name_id[rows[0]]), group_ns, ran_alone, ran_beside, (low, middle, high)))
    judged = {"judged": sum(cost.overlapped_ns for cost in costs)}
    judged_ns, *unjudged = rounded_parts(judged | unjudged_by_cause, steps).values()
    low, middle, high = (round(sum(cost.slowed_ns[end] for cost in costs) / steps) for end in range(3))
    worst = sorted(costs, key=lambda cost: (-cost.slowed_ns[1], cost.name_id))[:_MAX_NAMED_KERNELS]
    return NetOverlap(
        beside=beside,
        hidden_ns=hidden_ns,
        overlapped_ns=judged_ns + sum(unjudged),
        judged_ns=judged_ns,
        unjudged_by_cause=dict(zip(unjudged_by_cause, unjudged, strict=True)),
        slowed_low_ns=low if costs else None,
        slowed_ns=middle if costs else None,
        slowed_high_ns=high if costs else None,
        kernels=tuple(_slowed_kernel(timeline, cost, steps) for cost in worst),
    )


def _slowed_kernel(timeline: Timeline, cost: _Cost, steps: int) -> SlowedKernel:
    low, middle, high = (round(ns / steps) for ns in cost.slowed_ns)
    return SlowedKernel(
        kernel=timeline.ops.names[cost.name_id],
        overlapped_ns=rounded_mean(cost.overlapped_ns, steps),
        alone_count=len(cost.alone),
        alone_ns=round(quantile(cost.alone, 0.5)),
        beside_count=len(cost.beside),
        beside_ns=round(quantile(cost.beside, 0.5)),
        slowed_low_ns=low,
        slowed_ns=middle,
        slowed_high_ns=high,
    )


def _sampled(lengths: I64) -> I64:
    """Return at most `_MAX_COMPARED_KERNELS` of some lengths, evenly chosen."""
    return (
        lengths
        if len(lengths) <= _MAX_COMPARED_KERNELS
        else lengths[np.linspace(0, len(lengths) - 1, _MAX_COMPARED_KERNELS).astype(np.int64)]
    )


def _alike(lengths: I64) -> bool:
    return quantile(lengths, 0.9) <= MAX_LENGTH_RATIO * quantile(lengths, 0.1)


def _longer(alone: I64, beside: I64) -> tuple[float, float, float] | None:
    """Return how much longer the second lengths are: lower bound, estimate, upper bound; None if they are too few."""
    if not len(alone) or not len(beside):
        return None
    left_out = _left_out(min(len(alone), len(beside)), max(len(alone), len(beside)))
    if left_out < 0:
        return None
    differences = np.sort((beside[:, np.newaxis] - alone).ravel())
    return float(differences[left_out]), quantile(differences, 0.5), float(differences[-1 - left_out])


@cache
def _left_out(fewer: int, more: int) -> int:
    """Return the number of differences outside the interval at each end; -1 if even all do not suffice.

    Source: Hollander and Wolfe, Nonparametric Statistical Methods, section 4.3.
    """
    pairs = fewer * more
    if fewer > _MAX_KERNELS_FOR_EXACT_TEST:
        return math.floor(pairs / 2 - _NORMAL_QUANTILE * math.sqrt(pairs * (fewer + more + 1) / 12))
    # Ways to get each value of the statistic: the coefficients of the Gaussian binomial.
    ways = [1] + [0] * pairs
    for size in range(1, fewer + 1):
        for value in range(pairs, more + size - 1, -1):
            ways[value] -= ways[value - more - size]
        for value in range(size, pairs + 1):
            ways[value] += ways[value - size]
    tail, left_out = 0, -1
    while (tail := tail + ways[left_out + 1]) <= _TAIL_PROBABILITY * math.comb(fewer + more, fewer):
        left_out += 1
    return left_out
