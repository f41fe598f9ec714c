"""Threads that take turns: each works while the other waits for it.

No recording states this: flows join the ops of a forward and a backward pass, not threads. But a waiting thread begins
nothing, and continues promptly when the other is done. Two threads take turns if neither begins anything during the
other's work, and if they alternate more rarely and more promptly than with the times of either thread shifted.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import combinations
from typing import NamedTuple

import numpy as np

from overlapscope.analysis.host import rows_of
from overlapscope.base.intervals import I64, Intervals, contains, union
from overlapscope.trace.model import Trace

_SHIFTS = (np.arange(1, 33) * (np.sqrt(5) - 1) / 2) % 1
"""Shifts, as fractions of the recording. Multiples of the golden ratio spread evenly over any number of steps."""
_CHANCE = 0.1
"""Maximum fraction of shifts that may look like taking turns."""
_OVERLAP = 0.01
"""Fraction of the overlap under a shift that counts as none, because of clocks and rounding."""
_FEW = 3
"""Maximum number of overlaps that may be absent by chance."""
_ALIKE = 2
"""A shift looks like the recording if threads alternate at most this many times as often, and as late."""
_SAMPLED = 2048
_MOST_THREADS = 32
"""Maximum number of threads to compare with each other, at about 0.3 ms a pair."""


class Relation(IntEnum):
    """Relation between two threads."""

    UNKNOWN = 0
    """They do not overlap, but this may be chance."""
    TURNS = 1
    BESIDE = 2


class _Work(NamedTuple):
    """Work of a thread."""

    begins_ns: I64
    """Start of every CPU op and call, ascending."""
    inside: Intervals
    """Ops and calls that contain no other. An outer op may also contain the wait for another thread."""


def relations(trace: Trace, threads: Sequence[int]) -> dict[tuple[int, int], Relation]:
    """Return the relation of each pair of threads, given by their ids.

    Keys are pairs of positions in the sequence, the lower first. Only the busiest of very many threads are compared.
    Without a relation, a thread waits for no other.
    """
    if len(threads) < 2:
        return {}
    begun = [len(rows_of(trace.cpu_ops, thread)) + len(rows_of(trace.runtime_calls, thread)) for thread in threads]
    busiest = np.argsort(np.negative(begun), kind="stable")[:_MOST_THREADS].tolist()
    works = {number: _work(trace, threads[number]) for number in sorted(busiest)}
    return {(lower, upper): _relation(works[lower], works[upper]) for lower, upper in combinations(works, 2)}


def _work(trace: Trace, thread: int) -> _Work:
    tables = [(table, rows_of(table, thread)) for table in (trace.cpu_ops, trace.runtime_calls)]
    start = np.concatenate([table.start_ns[rows] for table, rows in tables])
    end = np.concatenate([table.end_ns[rows] for table, rows in tables])
    # By start, longest first. Sorting two sorted tables is fast, so ends are only compared if there are ties.
    order = np.argsort(start, kind="stable")
    if ((np.diff(start[order]) == 0) & (np.diff(end[order]) > 0)).any():
        order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    innermost = np.append(start[1:] >= end[:-1], True)
    return _Work(start, union(start[innermost], end[innermost]))


def _relation(work: _Work, peer: _Work) -> Relation:
    seen = int(contains(peer.inside, work.begins_ns).sum() + contains(work.inside, peer.begins_ns).sum())
    if seen > _OVERLAP * (len(work.begins_ns) + len(peer.begins_ns)):
        return Relation.BESIDE
    first = min(work.begins_ns[0], peer.begins_ns[0])
    window = int(max(work.begins_ns[-1], peer.begins_ns[-1])) + 1 - first
    shifts = np.rint(_SHIFTS * window).astype(np.int64)
    overlaps = _overlaps(work, peer, shifts, first, window) + _overlaps(peer, work, -shifts, first, window)
    if seen > _OVERLAP * np.median(overlaps):
        return Relation.BESIDE
    apart = shifts[overlaps <= max(seen / _OVERLAP, _FEW)]
    if len(apart) > _CHANCE * len(shifts):
        changes, took = _handovers(work.begins_ns, peer.begins_ns)
        moved = [_handovers(first + (work.begins_ns - first + by) % window, peer.begins_ns) for by in apart]
        alike = [many <= _ALIKE * changes and each <= _ALIKE * took for many, each in moved]
        if sum(alike) > _CHANCE * len(shifts):
            return Relation.UNKNOWN
    return Relation.TURNS


def _overlaps(work: _Work, peer: _Work, shifts: I64, first: int, window: int) -> I64:
    """Return how often a thread begins something during the other's work, for each circular shift of its times."""
    every = len(work.begins_ns) // _SAMPLED + 1
    at = first + (work.begins_ns[::every] - first + shifts[:, None]) % window
    overlaps: I64 = every * contains(peer.inside, at).sum(axis=1)
    return overlaps


def _handovers(begins_ns: I64, peer_begins_ns: I64) -> tuple[int, float]:
    """Return how often two threads alternate, and the mean delay of the more prompt thread."""
    at = np.concatenate([begins_ns, peer_begins_ns])
    order = np.argsort(at, kind="stable")
    changes, took = np.diff((order < len(begins_ns)).astype(np.int8)), np.diff(at[order])
    each = min(float(took[changes == to].mean()) for to in (-1, 1) if (changes == to).any())
    return int(np.count_nonzero(changes)), each
