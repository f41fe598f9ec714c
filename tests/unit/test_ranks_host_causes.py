"""Tests of causes of exposed communication without a GPU, compared with a walk over every nanosecond."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.base.intervals import Intervals, subtract, union
from overlapscope.catalog.causes import COMM_CAUSES, CommCause
from overlapscope.ranks.host_collectives import HostCollectives, HostWaits
from overlapscope.ranks.on_host import attribute
from overlapscope.trace.model import HostEvents

LENGTH = 60
"""Length of a recording in nanoseconds."""


class HostWait(NamedTuple):
    """A row of `HostWaits`."""

    start_ns: int
    end_ns: int
    ended_ns: int
    prompt: bool


def collectives(ranges: list[tuple[int, int, int, int]], waits: list[HostWait]) -> HostCollectives:
    """Return collectives from (issue, start, end, thread)."""
    issue, start, end, thread = np.array(ranges, np.int64).reshape(len(ranges), 4).T
    events = HostEvents(
        names=("gloo:all_reduce",),
        start_ns=start,
        end_ns=end,
        name_id=np.zeros(len(ranges), np.int32),
        thread=thread,
        place=np.arange(len(ranges), dtype=np.int32),
    )
    start_ns, end_ns, ended_ns, prompt = np.array(waits, np.int64).reshape(-1, 4).T
    return HostCollectives(events, issue, HostWaits(start_ns, end_ns, ended_ns, prompt == 1))


@st.composite
def recordings(draw: st.DrawFn) -> tuple[list[tuple[int, int, int, int]], list[HostWait], Intervals]:
    ranges, free = [], [0, 0]
    for _ in range(draw(st.integers(0, 5))):
        thread = draw(st.integers(0, 1))
        issue = draw(st.integers(0, LENGTH - 2))
        start = max(issue, free[thread]) + draw(st.integers(0, 3))
        free[thread] = start + draw(st.integers(1, 25))
        ranges.append((issue, start, free[thread], thread))
    edges = sorted(draw(st.sets(st.integers(0, LENGTH), max_size=6)))
    waits = []
    for start, end in zip(edges[0::2], edges[1::2], strict=False):
        ended = [until for issue, _, until, _ in ranges if issue <= start < until <= end]
        if ended:
            waits.append(HostWait(start, end, max(ended), draw(st.booleans())))
    bounds = sorted(draw(st.lists(st.integers(0, LENGTH), max_size=8)))
    compute = union(bounds[0::2][: len(bounds) // 2], bounds[1::2])
    return ranges, waits, compute


def walked(ranges: list[tuple[int, int, int, int]], waits: list[HostWait], computes: set[int]) -> dict[int, CommCause]:
    """Return the cause of each exposed nanosecond."""
    wait_of: dict[int, int] = {}
    for number, (issue, _, end, _) in enumerate(ranges):
        its = [place for place, wait in enumerate(waits) if issue <= wait.start_ns < end <= wait.ended_ns]
        if its:
            wait_of[number] = its[0]
    kept = {}
    for number, (issue, start, _, thread) in enumerate(ranges):
        earlier = [each[2] for each in ranges if each[3] == thread and each[1] < start]
        held = bool(earlier) and max(earlier) > issue
        kept[number] = len(computes & set(range(issue, start))) if held else 0
    causes = {}
    for ns in range(max((end for _, _, end, _ in ranges), default=0)):
        running = [number for number, (_, start, end, _) in enumerate(ranges) if start <= ns < end]
        if not running or ns in computes:
            continue
        waiting = [place for place, wait in enumerate(waits) if wait.start_ns <= ns < wait.end_ns]
        awaited = [number for number in running if wait_of.get(number) in waiting]
        if not awaited:
            causes[ns] = CommCause.UNKNOWN if waiting else CommCause.LATE_COMPUTE
            continue
        number = max(awaited, key=lambda each: ranges[each][2])
        if not waits[wait_of[number]].prompt:
            causes[ns] = CommCause.UNKNOWN
        elif kept[number]:
            kept[number] -= 1
            causes[ns] = CommCause.BLOCKED_BEHIND
        else:
            beside = computes & set(range(ranges[number][1], ns))
            causes[ns] = CommCause.WAITING_OR_TRANSFER if beside else CommCause.NO_COMPUTE
    return causes


@given(recordings())
def test_each_exposed_nanosecond_has_the_cause_that_a_walk_finds(
    made: tuple[list[tuple[int, int, int, int]], list[HostWait], Intervals],
) -> None:
    ranges, waits, compute = made
    computes = {ns for begin, end in zip(*map(np.ndarray.tolist, compute), strict=True) for ns in range(begin, end)}
    comm = union([start for _, start, _, _ in ranges], [end for _, _, end, _ in ranges])
    found = attribute(collectives(ranges, waits), subtract(comm, compute), compute)
    causes = {}
    for cause, times in zip(COMM_CAUSES, found, strict=True):
        for begin, end in zip(*map(np.ndarray.tolist, times), strict=True):
            for ns in range(begin, end):
                assert ns not in causes
                causes[ns] = cause
    expected = walked(ranges, waits, computes)
    # Collectives that end together are not told apart: any of them may be the one to blame.
    ends = Counter(end for _, _, end, _ in ranges)
    if max(ends.values(), default=0) <= 1:
        assert causes == expected
    assert causes.keys() == expected.keys()


def test_the_parts_of_a_collective_that_outlasts_its_compute() -> None:
    """The second collective is kept from running beside compute for 10 of its 15 exposed nanoseconds."""
    ranges = [(0, 0, 12, 0), (2, 12, 35, 0)]
    waits = [HostWait(20, 36, 35, prompt=True)]
    compute = union([2, 12], [12, 20])
    found = dict(zip(COMM_CAUSES, attribute(collectives(ranges, waits), union([0, 20], [2, 35]), compute), strict=True))
    assert found[CommCause.BLOCKED_BEHIND].starts.tolist() == [20]
    assert found[CommCause.BLOCKED_BEHIND].ends.tolist() == [30]
    assert found[CommCause.WAITING_OR_TRANSFER].starts.tolist() == [30]
    assert found[CommCause.LATE_COMPUTE].ends.tolist() == [2]
