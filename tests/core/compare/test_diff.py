"""Tests of the diff of two reports: sums, symmetry, and recordings with a known difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overlapscope as ov
from overlapscope.analysis.average import judged_steps
from overlapscope.base.saved import encode
from overlapscope.commands.schema import schema_of
from overlapscope.compare.diff import diff
from overlapscope.compare.difference import DeviceDiff, Diff, FigureChange, Figures
from overlapscope.compare.noise import BOOTSTRAP_DRAWS, draw, interval, weights
from overlapscope.report.model import Report
from overlapscope.trace.model import Kind, Memory, Trace
from tests.support.helpers import MS, Host, Op, make_trace
from tests.support.schemas import validate

TRACES = Path(__file__).parents[3] / "traces"
LABORATORY = TRACES / "laboratory"


def report(name: str) -> Report:
    """Return the report of a recording, or of the ranks in a directory."""
    path = LABORATORY / name
    files = sorted(path.glob("*.json.gz")) if path.is_dir() else [path.with_name(f"{path.name}.trace.json.gz")]
    return ov.analyze([ov.load(file) for file in files])


# -- made-up loops --------------------------------------------------------------------------------


def loop(
    steps: list[tuple[int, int, int]],
    *,
    copy_stream: int = 13,
    memory: Memory = Memory.PINNED,
    kernel: str = "gemm",
    op: str = "aten::mm",
    **rest: Any,
) -> Trace:
    """Return a trace with steps of (compute, copy beside it, exposed copy), in microseconds, with gaps of 1 us."""
    ops, notes, cpu_ops, at = [], [], [], 10_000
    for number, (compute, beside, exposed) in enumerate(steps):
        begin, end = at, at + compute * 1000
        launch = begin - 5000
        ops.append(Op(Kind.COMPUTE, begin, end, stream=7, launch=(launch, launch + 100), name=kernel))
        cpu_ops.append(Host(op, launch - 10, launch + 200))
        if beside:
            ops.append(
                Op(Kind.H2D, begin, begin + beside * 1000, stream=13, launch=(launch + 300, launch + 400), size=beside)
            )
        if exposed:
            copied = (end, end + exposed * 1000)
            called = (launch + 500, launch + 600)
            ops.append(
                Op(
                    Kind.H2D,
                    *copied,
                    stream=copy_stream,
                    launch=called,
                    source=memory,
                    size=exposed,
                    call="cudaMemcpyAsync",
                )
            )
            end = copied[1]
        notes.append(Host(f"ProfilerStep#{number}", launch - 100, launch + 1000))
        at = end + 1000
    return make_trace(ops, annotations=notes, cpu_ops=cpu_ops, **rest)


def reported(*args: Any, **rest: Any) -> Report:
    return ov.analyze(loop(*args, **rest))


step_lists = st.lists(st.tuples(st.integers(1, 900), st.integers(0, 900), st.integers(0, 300)), min_size=1, max_size=12)


def figures(device: DeviceDiff) -> list[FigureChange]:
    figures = device.figures
    return [
        figures.span,
        *figures.buckets,
        *figures.exposed_copy_by_cause,
        *figures.idle_by_cause,
        *figures.engines,
        *figures.overlap,
    ]


def every_change(device: DeviceDiff) -> list[FigureChange]:
    changes = figures(device)
    for copy in device.copies:
        changes += [copy.count, copy.bytes, copy.time, copy.exposed, copy.bandwidth]
    for stall in device.host_stalls:
        changes += [stall.host_wait, stall.idle_caused]
    for kernel in device.kernels:
        changes += [kernel.count, kernel.time]
    for op in device.ops:
        changes += [op.count, op.time]
    for each in device.ranges:
        if each.figures:
            changes += [each.figures.span, *each.figures.buckets]
    return changes


def check_sums(own_figures: Figures) -> None:
    for side in ("before", "after", "change"):

        def value(change: FigureChange, side: str = side) -> int:
            number = getattr(change, side)
            assert isinstance(number, int)
            return number

        buckets = {change.name: value(change) for change in own_figures.buckets}
        assert sum(buckets.values()) == value(own_figures.span)
        assert sum(value(change) for change in own_figures.exposed_copy_by_cause) == buckets["exposed copy"]
        assert sum(value(change) for change in own_figures.exposed_comm_by_cause) == buckets["exposed comm"]
        assert sum(value(change) for change in own_figures.idle_by_cause) == buckets["idle"]
        overlap = {change.name: change for change in own_figures.overlap}
        exposed = [value(overlap[name]) for name in ("exposed H2D", "exposed D2H", "exposed at once")]
        assert exposed[0] + exposed[1] - exposed[2] == buckets["exposed copy"]
        assert value(overlap["hidden copy"]) + buckets["exposed copy"] == value(overlap["copy"])
        if side != "change":
            assert (
                min(value(change) for change in (*own_figures.buckets, *own_figures.overlap[3:], *own_figures.engines))
                >= 0
            )


@settings(max_examples=15)
@given(step_lists, step_lists)
def test_the_parts_of_every_change_add_up_to_the_whole(before: list[Any], after: list[Any]) -> None:
    for device in diff(reported(before), reported(after)).devices:
        check_sums(device.figures)


@settings(max_examples=15)
@given(step_lists)
def test_a_report_does_not_differ_from_itself(steps: list[Any]) -> None:
    (device,) = diff(reported(steps), reported(steps)).devices
    for change in every_change(device):
        assert not change.change and not change.beyond_noise
        assert (change.low or 0) <= 0 <= (change.high or 0)
        # With few steps, the interval has the extreme differences of any two; otherwise, the draws are the same.
        assert not change.low or device.steps_before < 5
    assert not device.kernels and not device.ops
    assert all(finding.standing == "same" for finding in device.findings)
    assert {named_range.standing for named_range in device.copies} | {copy.standing for copy in device.ranges} <= {
        "both"
    }
    assert {host_stall.standing for host_stall in device.host_stalls} <= {"both"}


def mirrored(first: FigureChange, other: FigureChange) -> None:
    assert (first.before, first.after) == (other.after, other.before)
    assert first.beyond_noise == other.beyond_noise
    assert first.noise_floor == pytest.approx(other.noise_floor)
    for mine, theirs in ((first.change, other.change), (first.low, other.high), (first.high, other.low)):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert mine == pytest.approx(-theirs, abs=1e-6)


OPPOSITE = {"new": "gone", "slower": "faster", "more": "fewer", "grown": "shrunk"}
OPPOSITE |= {there: here for here, there in OPPOSITE.items()}


def check_mirrored(there: Diff, back: Diff) -> None:
    assert len(there.devices) == len(back.devices)
    for first, other in zip(there.devices, back.devices, strict=True):
        for mine, theirs in zip(figures(first), figures(other), strict=True):
            mirrored(mine, theirs)
        copies = {(c.direction, c.source_kind, c.target_kind, c.stream): c for c in other.copies}
        for copy in first.copies:
            partner = copies[copy.direction, copy.source_kind, copy.target_kind, copy.stream]
            assert partner.standing == OPPOSITE.get(copy.standing, copy.standing)
            mirrored(copy.time, partner.time)
            mirrored(copy.bandwidth, partner.bandwidth)
        assert sorted(OPPOSITE.get(k.standing, k.standing) for k in first.kernels) == sorted(
            k.standing for k in other.kernels
        )
        assert sorted((f.rule, OPPOSITE.get(f.standing, f.standing)) for f in first.findings) == sorted(
            (f.rule, f.standing) for f in other.findings
        )
        assert {d.id for d in there.doubts} == {d.id for d in back.doubts}


@settings(max_examples=15)
@given(step_lists, step_lists, st.sampled_from(("gemm", "other_gemm")))
def test_a_diff_mirrors_the_diff_the_other_way_round(before: list[Any], after: list[Any], kernel: str) -> None:
    first, other = reported(before), reported(after, kernel=kernel)
    check_mirrored(diff(first, other), diff(other, first))


# -- steps and noise ------------------------------------------------------------------------------

EVEN = [(500, 400, 50)] * 8


def test_the_warm_up_and_the_last_step_are_left_out_of_means() -> None:
    steps = [(2000, 400, 50), *EVEN]
    (device,) = ov.analyze(loop(steps)).devices
    assert judged_steps(device) == tuple(range(1, 8))
    (changes,) = diff(reported(EVEN), reported(steps)).devices
    assert (changes.steps_before, changes.steps_after) == (7, 7)
    assert (changes.left_out_before, changes.left_out_after) == (1, 2)
    assert changes.figures.span.change == 0


def test_a_single_step_is_judged_though_it_is_the_last() -> None:
    for count, judged in ((1, (0,)), (2, (0,)), (5, tuple(range(4)))):
        (device,) = ov.analyze(loop(EVEN[:count])).devices
        assert judged_steps(device) == judged


def test_what_varies_as_much_among_the_steps_is_noise() -> None:
    uneven = [(500 + 200 * (number % 2), 0, 0) for number in range(12)]
    shifted = [(compute + 20, 0, 0) for compute, _, _ in uneven]
    (device,) = diff(reported(uneven), reported(shifted)).devices
    assert device.figures.span.beyond_noise is False
    low, high = device.figures.span.low, device.figures.span.high
    assert low is not None and high is not None and low < 0 < high
    even = [(600, 0, 0)] * 12
    (device,) = diff(reported(even), reported([(620, 0, 0)] * 12)).devices
    assert device.figures.span.beyond_noise is True
    assert device.verdict == "Step 3.3% slower (601.0 to 621.0 us): 20.0 us more compute (longer calls of gemm)."


def test_a_change_below_the_floor_is_noise_however_even_the_steps() -> None:
    (device,) = diff(reported([(1000, 0, 0)] * 9), reported([(1005, 0, 0)] * 9)).devices
    span = device.figures.span
    assert span.low is not None and span.low > 0
    assert span.beyond_noise is False
    assert "unchanged within noise" in device.verdict


def loader(waits_us: list[int], name: str) -> Report:
    """Return a report on steps of 22 ms of compute, each after a time that the host spent in `name`."""
    ops, notes, at = [], [], 10_000
    for number, wait_us in enumerate(waits_us):
        launch = at + wait_us * 1000
        ops.append(Op(Kind.COMPUTE, launch + 5000, launch + 22 * MS, stream=7, launch=(launch, launch + 2000)))
        notes += [Host(f"ProfilerStep#{number}", at, launch + 22 * MS - 10), Host(name, at + 10, launch - 10)]
        at = launch + 22 * MS
    return ov.analyze(make_trace(ops, annotations=notes))


def test_loading_data_is_not_as_noisy_as_launching() -> None:
    slow, fast = ([base + 1000 * (number % 5) for number in range(12)] for base in (70_000, 24_000))
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    for name, beyond in ((loading, True), ("work in Python", False)):
        (device,) = diff(loader(slow, name), loader(fast, name)).devices
        assert {cause.name for cause in device.figures.idle_by_cause if cause.before} >= {"data-loading"} or not beyond
        assert device.figures.span.beyond_noise is beyond
        [idle] = [bucket for bucket in device.figures.buckets if bucket.name == "idle"]
        assert idle.beyond_noise is beyond


def test_a_slow_host_lengthens_a_step_by_no_more_than_its_own_length_allows() -> None:
    slow, fast = [300_000 + 900 * (number % 5) for number in range(12)], [100_000] * 12
    (device,) = diff(loader(slow, "work in Python"), loader(fast, "work in Python")).devices
    assert device.figures.span.beyond_noise is True


@pytest.mark.parametrize(("count", "ids"), [(2, {"few-steps"}), (4, {"few-steps"}), (5, set())])
def test_too_few_steps_are_reported(count: int, ids: set[str]) -> None:
    difference = diff(reported([(500, 0, 0)] * count), reported([(600, 0, 0)] * count))
    assert {doubt.id for doubt in difference.doubts} == ids
    assert difference.devices[0].figures.span.beyond_noise is (None if count == 2 else True)


def test_without_steps_whole_windows_are_compared_and_noise_is_unknown() -> None:
    def window(length: int) -> Report:
        return ov.analyze(make_trace([Op(Kind.COMPUTE, 0, length * MS, launch=(-10, -5))]))

    difference = diff(window(5), window(10))
    (device,) = difference.devices
    assert (device.basis, device.steps_before, device.figures.span.beyond_noise) == ("window", 0, None)
    assert {doubt.id for doubt in difference.doubts} == {"no-steps"}
    assert device.verdict.startswith("Recording 100% longer, noise unknown (5.00 to 10.00 ms): 5.00 ms more compute")


def test_without_steps_exposed_communication_has_causes_that_add_up() -> None:
    def window(length: int) -> Report:
        return ov.analyze(make_trace([Op(Kind.COMM, 0, length * MS, launch=(-10, -5))]))

    (device,) = diff(window(5), window(10)).devices
    check_sums(device.figures)
    assert sum(change.after or 0 for change in device.figures.exposed_comm_by_cause) == 10 * MS


def test_the_interval_holds_the_true_difference_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        before, after = generator.normal(100.0, 3.0, 20), generator.normal(104.0, 3.0, 20)
        low, high = interval(*(weights(draw(_ns(side))) @ side[:, None] for side in (before, after)))
        held += bool(low[0] <= 4.0 <= high[0])
    # The percentile bootstrap of 20 is a little narrower than its 99%.
    assert held >= 0.96 * 300


def _ns(values: Any) -> list[int]:
    return [round(1e6 * value) for value in values]


def test_draws_are_of_the_steps_alone_and_there_are_fewer_of_very_many() -> None:
    assert (draw([1, 2, 3]) == draw([1, 2, 3])).all()
    assert (draw(range(40)) != draw(range(1, 41))).any()
    assert draw([1, 2, 3]).shape == (BOOTSTRAP_DRAWS, 3)
    assert draw(range(100_000)).shape == (200, 100_000)


# -- kernels --------------------------------------------------------------------------------------


def kernels(before: Report, after: Report) -> list[tuple[str, str, str | None]]:
    return [(kernel.standing, kernel.kernel, kernel.renamed_from) for kernel in diff(before, after).devices[0].kernels]


def test_a_kernel_under_another_name_is_found_through_its_op() -> None:
    assert kernels(reported(EVEN), reported(EVEN, kernel="sm90_gemm")) == [("renamed", "sm90_gemm", "gemm")]
    slower = [(700, beside, exposed) for _, beside, exposed in EVEN]
    assert kernels(reported(EVEN), reported(slower, kernel="sm90_gemm")) == [("slower", "sm90_gemm", "gemm")]


def test_a_kernel_that_another_op_launches_is_the_same_kernel() -> None:
    assert kernels(reported(EVEN), reported(EVEN, op="aten::addmm")) == []


def test_kernels_of_other_names_and_ops_are_new_and_gone() -> None:
    changes = kernels(reported(EVEN), reported(EVEN, kernel="conv", op="aten::conv2d"))
    assert sorted(changes) == [("gone", "gemm", None), ("new", "conv", None)]


# -- what cannot be compared ----------------------------------------------------------------------


def test_another_gpu_torch_and_number_of_steps_are_reported_and_what_still_holds() -> None:
    first = reported(EVEN, device_names={0: "NVIDIA H200"}, versions={"torch": "2.11.0"})
    other = reported(EVEN + EVEN, device_names={0: "NVIDIA A100"}, versions={"torch": "2.13.0"})
    doubts = {doubt.id: doubt for doubt in diff(first, other).doubts}
    assert set(doubts) == {"gpu", "torch", "steps"}
    assert "NVIDIA H200 before, NVIDIA A100 after" in doubts["gpu"].detail
    assert all(doubt.holds for doubt in doubts.values())


def test_what_one_side_does_not_say_is_not_a_difference() -> None:
    first, other = reported(EVEN, versions={"torch": "2.11.0"}), reported(EVEN)
    assert diff(first, other).doubts == ()


def test_an_unusable_trace_is_not_compared() -> None:
    cpu_only = ov.analyze(make_trace(cpu_ops=[Host("aten::mm", 0, 10)]))
    difference = diff(reported(EVEN), cpu_only)
    assert difference.devices == ()
    assert difference.verdict.startswith("Nothing can be compared, because no GPU has figures in both recordings.")
    assert {doubt.id for doubt in difference.doubts} == {"trust", "ranks"}
    assert any("unusable" in item for item in difference.unmatched)


def test_ranks_are_compared_each_with_itself() -> None:
    ranks = {
        number: loop([(500 + 100 * number, 0, 0)] * 7, rank=number, source=f"{number}.json") for number in range(3)
    }
    before = ov.analyze([ranks[0], ranks[1]])
    after = ov.analyze([ranks[2], ranks[1], ranks[0]])
    difference = diff(before, after)
    assert [(device.rank, device.figures.span.change) for device in difference.devices] == [(0, 0), (1, 0)]
    assert difference.unmatched == ("rank 2, device 0, is only in after",)
    assert difference.verdict.startswith("2 devices (0% to 0%)")


# -- real recordings ------------------------------------------------------------------------------

NAMED = [
    # The difference between the two programs must be in the verdict or the changes.
    ("copy_matrix/streamed1_pinned0", "copy_matrix/streamed1_pinned1", {"pageable-memory gone"}),
    (
        "dataloader/pinned0_nonblocking0_workers0",
        "dataloader/prefetcher",
        {"data-loading gone", "pageable-memory gone"},
    ),
    ("offload_pipeline/one_stream", "offload_pipeline/three_streams", {"same-stream gone"}),
    ("cuda_graph/eager", "cuda_graph/graph_replay", {"dispatch gone", "python gone"}),
    ("kv_offload/pageable", "kv_offload/prefetch", {"pageable-memory gone"}),
    ("activation_offload/pageable", "activation_offload/overlapped", {"pageable-memory gone"}),
    ("fsdp_offload/offload_pageable.traces", "fsdp_offload/offload.traces", {"pageable-memory gone"}),
    ("ddp_training/no_overlap.traces", "ddp_training/ddp.traces", {"less of communication running alone"}),
]


@pytest.mark.parametrize(("before", "after", "message"), NAMED)
def test_the_diff_of_two_variants_names_what_was_changed(before: str, after: str, message: set[str]) -> None:
    there, back = diff(report(before), report(after)), diff(report(after), report(before))
    for words in message:
        assert words in there.verdict
        assert words.replace("gone", "new").replace("less", "more") in back.verdict
    for device in there.devices:
        check_sums(device.figures)
    check_mirrored(there, back)


def test_copies_that_were_pinned_are_gone_as_pageable_ones_and_new_as_pinned_ones() -> None:
    (device,) = diff(report("copy_matrix/streamed1_pinned0"), report("copy_matrix/streamed1_pinned1")).devices
    standing = {(copy.direction, copy.source_kind, copy.standing) for copy in device.copies}
    assert ("h2d", "pageable", "gone") in standing
    assert ("h2d", "pinned", "new") in standing


def test_a_graph_launches_the_kernels_that_ops_launched() -> None:
    (device,) = diff(report("cuda_graph/eager"), report("cuda_graph/graph_replay")).devices
    assert not {"new", "gone"} & {kernel.standing for kernel in device.kernels}


@pytest.mark.parametrize("name", ["offload_pipeline/three_streams", "ddp_training/ddp.traces", "dataloader/prefetcher"])
def test_the_json_holds_all_and_follows_its_schema(name: str) -> None:
    difference = diff(report(name), report(name))
    data = encode(difference)
    validate(msgspec.json.decode(data), schema_of("diff"))
    assert msgspec.json.decode(data, type=Diff) == difference
    assert not any(change.change for device in difference.devices for change in every_change(device))


def test_ops_whose_kernels_a_graph_launches_now_are_not_gone() -> None:
    (device,) = diff(report("cuda_graph/big_eager"), report("cuda_graph/big_graph")).devices
    assert device.ops == ()


def test_a_change_that_may_be_noise_is_not_reported_as_none() -> None:
    (device,) = diff(report("host_work/after_both"), report("host_work/after_none")).devices
    assert device.verdict.startswith("Step 62.2% slower, which may be noise (1.082 to 1.755 ms)")


def test_the_api_takes_files_too() -> None:
    path = LABORATORY / "offload_pipeline/one_stream.trace.json.gz"
    assert ov.diff(path, str(path)).verdict.startswith("Step unchanged")
    assert ov.check(path, {"forbid": ["pageable-memory"]}).outcome == "pass"
    assert ov.check(path, {"budgets": {"efficiency_pct": {"min": "80%"}}}).outcome == "fail"
