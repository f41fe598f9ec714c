"""Tests of collectives without a GPU, compared with brute force: which op started each, and the waits for them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.base.intervals import Intervals
from overlapscope.ranks.host_collectives import _waits, started_earlier
from overlapscope.trace.model import HostEvents

US = 1000

kinds = st.lists(st.sampled_from("ab"), max_size=9)


def tried(ops: str, op_ns: list[int], ranges: str, range_ns: list[int]) -> int | None:
    for earlier in range(len(ranges)):
        count = min(len(ops), len(ranges) - earlier)
        in_time = all(op_ns[at] <= range_ns[earlier + at] for at in range(count))
        if in_time and ops[:count] == ranges[earlier : earlier + count]:
            return earlier
    return None


@given(kinds, kinds, st.data())
def test_ops_start_the_first_ranges_that_fit_them(ops: list[str], ranges: list[str], data: st.DataObject) -> None:
    op_ns, range_ns = (
        sorted(data.draw(st.lists(st.integers(0, 12), min_size=len(each), max_size=len(each))))
        for each in (ops, ranges)
    )
    found = started_earlier(ops, np.array(op_ns, np.int64), ranges, np.array(range_ns, np.int64))
    assert found == tried("".join(ops), op_ns, "".join(ranges), range_ns)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8), st.sets(st.integers(0, 40)), st.data())
def test_waits_are_those_that_a_look_at_every_collective_finds(
    made: list[tuple[int, int]], edges: set[int], data: st.DataObject
) -> None:
    """Times are in units of 50 us, so that ends lie before, in and after the time in which a thread goes on."""
    unit = 50 * US
    issue = np.array([unit * min(pair) for pair in made], np.int64)
    ends = np.array([unit * max(pair) + 1 for pair in made], np.int64)
    issued = issue + unit * data.draw(st.integers(0, 2))
    marks = unit * np.array(sorted(data.draw(st.sets(st.integers(0, 40), max_size=4))), np.int64)
    bounds = unit * np.array(sorted(edges), np.int64)
    idle = Intervals(bounds[:-1][::2], bounds[1:][::2])
    ranges = HostEvents(
        names=("gloo:all_reduce",),
        start_ns=issue,
        end_ns=ends,
        name_id=np.zeros(len(made), np.int32),
        thread=np.zeros(len(made), np.int64),
        place=np.arange(len(made), dtype=np.int32),
    )
    expected = []
    for start, end in zip(idle.starts.tolist(), idle.ends.tolist(), strict=True):
        slack = max(200 * US, round(0.05 * (end - start)))
        its = [at for at in range(len(made)) if issue[at] <= start and start + 20 * US <= ends[at] <= end + slack]
        if its:
            last = max(int(ends[at]) for at in its)
            prompt = end - last <= slack
            expected.append((start, end, last, prompt, prompt or any(issued[at] == start for at in its)))
    steps = [sum(mark <= wait[0] for mark in marks.tolist()) for wait in expected]
    kept = [
        wait
        for at, wait in enumerate(expected)
        if wait[-1] or not any(expected[at + n][-1] and steps[at] == step for n, step in enumerate(steps[at:]))
    ]
    found = _waits(idle, issue, issued, marks, ranges)
    columns = (found.start_ns, found.end_ns, found.ended_ns, found.prompt, found.certain)
    assert list(zip(*map(np.ndarray.tolist, columns), strict=True)) == kept
