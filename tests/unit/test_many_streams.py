"""Traces with a stream of its own for each kernel."""

from __future__ import annotations

from overlapscope.analysis.comm_order import find_compute
from overlapscope.trace.model import Kind
from tests.support.helpers import Op, make_trace


def test_only_the_busiest_streams_of_compute_are_followed() -> None:
    # Each of them takes time and memory in proportion to all ops.
    ops = [Op(Kind.COMPUTE, 1000 * n, 1000 * n + 500 + n, stream=n) for n in range(1, 201)]
    computes = find_compute(make_trace(ops).gpu_ops)
    assert [rows.tolist() for rows in computes.streams] == [[n - 1] for n in range(137, 201)]
    assert computes.is_work.sum() == 64
