"""Tests of waits for collectives without a GPU, compared with brute force."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope import load
from overlapscope.base.intervals import Intervals
from overlapscope.ranks.on_host import _find_waits, _waits
from overlapscope.trace.model import HostEvents

US = 1000


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8), st.sets(st.integers(0, 40)), st.data())
def test_waits_are_those_that_a_look_at_every_collective_finds(
    made: list[tuple[int, int]], edges: set[int], data: st.DataObject
) -> None:
    """Times are in units of 50 us, so that ends lie before, in and after the time in which a thread goes on."""
    unit = 50 * US
    begin = np.array([unit * min(pair) for pair in made], np.int64)
    ends = np.array([unit * max(pair) + 1 for pair in made], np.int64)
    issued = unit * np.array(data.draw(st.lists(st.integers(0, 40), max_size=8)), np.int64)
    marks = unit * np.array(sorted(data.draw(st.sets(st.integers(0, 40), max_size=4))), np.int64)
    bounds = unit * np.array(sorted(edges), np.int64)
    idle = Intervals(bounds[:-1][::2], bounds[1:][::2])
    ranges = HostEvents(
        names=("gloo:all_reduce",),
        start_ns=begin,
        end_ns=ends,
        name_id=np.zeros(len(made), np.int32),
        thread=np.zeros(len(made), np.int64),
        place=np.arange(len(made), dtype=np.int32),
    )
    expected = []
    for start, end in zip(idle.starts.tolist(), idle.ends.tolist(), strict=True):
        slack = max(200 * US, round(0.05 * (end - start)))
        its = [at for at in range(len(made)) if begin[at] < end and start + 20 * US <= ends[at] <= end + slack]
        if its:
            last = max(int(ends[at]) for at in its)
            prompt = end - last <= slack
            expected.append((start, end, last, prompt, prompt or start in issued))
    steps = [sum(mark <= wait[0] for mark in marks.tolist()) for wait in expected]
    kept = [
        wait
        for at, wait in enumerate(expected)
        if wait[-1] or not any(expected[at + n][-1] and steps[at] == step for n, step in enumerate(steps[at:]))
    ]
    found = _waits(idle, issued, marks, ranges)
    columns = (found.start_ns, found.end_ns, found.prompt)
    expected_columns = [(start, end, prompt) for start, end, _, prompt, _ in kept]
    assert list(zip(*map(np.ndarray.tolist, columns), strict=True)) == expected_columns


def _event(category: str, name: str, start: int, length: int, thread: int) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length}


@pytest.mark.parametrize(("inner", "waits"), [("aten::clone", 0), ("_c10d_functional::wait_tensor", 4)])
def test_an_op_waits_for_a_collective_only_if_it_has_one_inside(tmp_path: Path, inner: str, waits: int) -> None:
    events = []
    for step in range(4):
        begin = step * 10_000
        events += [
            _event("user_annotation", f"ProfilerStep#{step}", begin, 10_000, 1),
            _event("cpu_op", "c10d::allreduce_", begin + 100, 200, 1),
            _event("user_annotation", "gloo:all_reduce", begin + 200, 3_000, 9),
            # The op's own time is before the op inside.
            _event("cpu_op", "example::compute", begin + 400, 2_850, 1),
            _event("cpu_op", inner, begin + 3_220, 20, 1),
        ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = _find_waits(load(path))
    assert found is not None and len(found) == waits
