"""Traces with a stream of its own for each kernel."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from overlapscope.analysis import analyze_trace, exposed_comm, order
from overlapscope.analysis.exposed import DeviceRecording
from overlapscope.analysis.exposed_comm import find_compute
from overlapscope.contracts.observe import observe
from overlapscope.errors import UnreadableTrace
from overlapscope.trace.model import I64, Kind
from tests.support.helpers import Host, Op, Wait, make_trace


def test_only_the_busiest_streams_of_compute_are_followed() -> None:
    # Each of them takes time and memory in proportion to all ops.
    ops = [Op(Kind.COMPUTE, 1000 * n, 1000 * n + 500 + n, stream=n) for n in range(1, 201)]
    computes = find_compute(make_trace(ops).gpu_ops)
    assert {stream: rows.tolist() for stream, rows in computes.items()} == {n: [n - 1] for n in range(137, 201)}


def test_kernels_without_a_length_hide_no_copy() -> None:
    ops = [Op(Kind.COMPUTE, 500, 500, stream=7), Op(Kind.H2D, 100, 900, stream=8)]
    [device] = analyze_trace(make_trace(ops)).result.devices
    assert device.buckets.exposed_copy_ns == sum(device.exposed_copy_by_cause.values()) == 800


def test_streams_of_collectives_that_no_compute_waits_for_are_not_followed_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ops, waits = [], []
    for number in range(300):
        start = 100_000 * number
        ops.append(Op(Kind.COMM, start + 2_000, start + 50_000, stream=1000 + number, launch=(start, start + 1_000)))
        ops.append(Op(Kind.COMPUTE, start + 60_000, start + 90_000, stream=7, launch=(start + 5_000, start + 6_000)))
        if number < 2:
            waits.append(Wait(start + 4_000, 7, source_stream=1000 + number))
    followed = set()

    original = exposed_comm.awaited

    def awaited(recording: DeviceRecording, stream: int) -> I64:
        followed.add(stream)
        return original(recording, stream)

    monkeypatch.setattr(exposed_comm, "awaited", awaited)
    [device] = analyze_trace(make_trace(ops, waits=waits)).result.devices
    assert len(followed) <= 5
    assert sum(device.exposed_comm_by_cause.values()) == device.buckets.exposed_comm_ns == 300 * 48_000


def test_of_many_streams_that_compute_may_wait_for_only_the_busiest_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ops, waits = [], []
    for number in range(200):
        start = 100_000 * number
        length = 48_000 if number < 100 else 40_000
        ops.append(
            Op(Kind.COMM, start + 2_000, start + 2_000 + length, stream=1000 + number, launch=(start, start + 1))
        )
        ops.append(Op(Kind.COMPUTE, start + 60_000, start + 90_000, stream=7, launch=(start + 5_000, start + 6_000)))
        waits.append(Wait(start + 4_000, 7, source_stream=1000 + number))
    followed = set()

    original = exposed_comm.awaited

    def awaited(recording: DeviceRecording, stream: int) -> I64:
        followed.add(stream)
        return original(recording, stream)

    monkeypatch.setattr(exposed_comm, "awaited", awaited)
    [device] = analyze_trace(make_trace(ops, waits=waits)).result.devices
    # Besides the stream of compute.
    assert followed == {7, *range(1000, 1064)}
    assert sum(device.exposed_comm_by_cause.values()) == 100 * 88_000
    causes = {cause for cause, ns in device.exposed_comm_by_cause.items() if ns}
    assert causes == {"no-compute"}


def test_the_order_of_too_many_streams_and_waits_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [Op(Kind.COMPUTE, 1000 * n, 1000 * n + 500, stream=n, launch=(999 * n - 500, 999 * n)) for n in (1, 2, 4)]
    trace = make_trace(ops, calls=[Host("cudaDeviceSynchronize", 2500, 2600)])
    assert observe(trace) is not None
    monkeypatch.setattr(order, "_MAX_ENDS", 5)
    with pytest.raises(UnreadableTrace, match="has 3 streams and 2 waits for them, too many to find their order"):
        observe(replace(trace))
