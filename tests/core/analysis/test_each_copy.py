"""Tests of single copies, whose figures add up to the report's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.each_copy import issuers, list_copies, peak_gb_per_s
from overlapscope.analysis.pieces import NO_CAUSE
from overlapscope.catalog.causes import COPY_CAUSES
from overlapscope.reading import load
from overlapscope.report.charts import link_note
from overlapscope.trace.model import Kind, Memory
from tests.core.analysis.test_sums import CALLS, gpu_ops, host_events, steps, waits
from tests.support.helpers import Host, Op, Wait, make_trace

TRACES = ("traces/known_causes/pageable_memory.json.gz", "traces/mixed_workloads/kv_offload.json.gz")


@given(gpu_ops(), host_events(*CALLS), waits, steps)
def test_copies_add_up_to_the_report(ops: list[Op], calls: list[Host], waits: list[Wait], steps: list[Host]) -> None:
    (device,) = analyze_trace(make_trace(ops, calls=calls, waits=waits, annotations=steps)).devices
    copies, result = list_copies(device), device.result
    running = [op for op in ops if op.kind in (Kind.H2D, Kind.D2H) and op.end > op.start]

    assert Counter(zip(copies.kind.tolist(), copies.start_ns.tolist(), copies.end_ns.tolist(), strict=True)) == (
        Counter((op.kind, op.start, op.end) for op in running)
    )
    assert int(copies.exposed_ns.sum()) == result.buckets.exposed_copy_ns
    assert (copies.exposed_ns <= copies.duration_ns).all()
    assert ((copies.exposed_ns == 0) == (copies.cause == NO_CAUSE)).all()

    by_copy: dict[int, Counter[int]] = {}
    pieces = device.exposed
    for row, cause, start, end in zip(
        pieces.op.tolist(), pieces.cause.tolist(), pieces.start_ns.tolist(), pieces.end_ns.tolist(), strict=True
    ):
        by_copy.setdefault(row, Counter())[cause] += end - start
    for row, exposed, cause in zip(copies.row.tolist(), copies.exposed_ns.tolist(), copies.cause.tolist(), strict=True):
        mine = by_copy.get(row, Counter())
        assert exposed == sum(mine.values())
        assert cause == (min(mine, key=lambda c: (-mine[c], c)) if mine else NO_CAUSE)

    for op, size, rate in zip(copies.row.tolist(), copies.bytes.tolist(), copies.gb_per_s.tolist(), strict=True):
        length = int(device.timeline.ops.end_ns[op] - device.timeline.ops.start_ns[op])
        assert np.isnan(rate) if size < 0 else rate == size / length


@pytest.mark.parametrize("path", TRACES)
@pytest.mark.parametrize("narrowed", [False, True])
def test_copies_of_a_recording_add_up_by_cause_also_within_a_step(path: str, narrowed: bool) -> None:
    trace = load(path)
    step = analyze_trace(trace).devices[0].result.steps[0].name if narrowed else None
    for device in analyze_trace(trace, step=step).devices:
        copies, result = list_copies(device), device.result
        assert int(copies.exposed_ns.sum()) == result.buckets.exposed_copy_ns
        assert len(copies) == sum(group.count for group in result.copies)
        # All exposed time of a copy with a single cause counts for that cause.
        for number in set(copies.cause.tolist()) - {NO_CAUSE}:
            assert result.exposed_copy_by_cause[COPY_CAUSES[number]] > 0


def test_the_peak_is_of_large_copies_of_pinned_memory_in_one_direction() -> None:
    large = 1 << 20
    ops = [
        Op(Kind.H2D, 0, large, size=10 * large),
        Op(Kind.H2D, 2 * large, 3 * large, size=50 * large),
        Op(Kind.H2D, 4 * large, 5 * large, size=90 * large, source=Memory.PAGEABLE),
        Op(Kind.H2D, 5 * large, 5 * large + 10, size=800),
        Op(Kind.D2H, 6 * large, 7 * large, size=80 * large, source=Memory.DEVICE, target=Memory.PAGEABLE),
    ]
    (device,) = analyze_trace(make_trace(ops)).devices
    copies = list_copies(device)
    assert peak_gb_per_s(copies, Kind.H2D) == 50
    assert peak_gb_per_s(copies, Kind.D2H) is None


def test_small_copies_of_pinned_memory_are_not_taken_for_none() -> None:
    ops = [Op(Kind.H2D, 0, 10, size=800), Op(Kind.H2D, 20, 30, size=800)]
    (device,) = analyze_trace(make_trace(ops)).devices
    assert link_note(list_copies(device)) == (
        "No copy of pinned memory is large enough (1.05 MB) to show how fast the link is."
    )


def test_a_copy_is_led_back_to_its_op_and_call() -> None:
    ops = [
        Op(Kind.H2D, 10, 20, launch=(5, 6), call="cudaMemcpyAsync"),
        Op(Kind.D2H, 30, 40, source=Memory.DEVICE, target=Memory.PINNED, correlation=9000),
    ]
    trace = make_trace(ops, cpu_ops=[Host("aten::copy_", 4, 8)])
    (device,) = analyze_trace(trace).devices
    first, second = issuers(trace, device, list_copies(device).row)
    assert (first.op, first.call, first.line) == ("aten::copy_", "cudaMemcpyAsync", None)
    assert (second.op, second.call, second.line) == (None, None, None)
