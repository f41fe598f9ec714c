"""Traces with a stream of its own for each kernel."""

from __future__ import annotations

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.comm_order import find_compute
from overlapscope.trace.model import Kind
from tests.support.helpers import Op, make_trace


def test_only_the_busiest_streams_of_compute_are_followed() -> None:
    # Each of them takes time and memory in proportion to all ops.
    ops = [Op(Kind.COMPUTE, 1000 * n, 1000 * n + 500 + n, stream=n) for n in range(1, 201)]
    computes = find_compute(make_trace(ops).gpu_ops)
    assert [rows.tolist() for rows in computes.streams] == [[n - 1] for n in range(137, 201)]
    assert computes.is_work.sum() == 64


def test_kernels_without_a_length_hide_no_copy() -> None:
    ops = [Op(Kind.COMPUTE, 500, 500, stream=7), Op(Kind.H2D, 100, 900, stream=8)]
    [device] = analyze_trace(make_trace(ops)).result.devices
    assert device.buckets.exposed_copy_ns == sum(device.exposed_copy_by_cause.values()) == 800
