"""Tests of properties of every prediction, whatever the recording."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope import analyze
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.errors import UsageError
from overlapscope.prediction.base import prepare
from overlapscope.prediction.calibration import shipped
from overlapscope.prediction.graph import Graph, OrderReason, Orders
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import Choice, check_names, in_order, parse
from overlapscope.prediction.outcomes import Outcome, outcome
from overlapscope.prediction.overhead import plain_program
from overlapscope.prediction.predict import MIN_GAIN, best, candidates, predict
from overlapscope.prediction.replay import Deadlock, Replay, replay
from overlapscope.prediction.result import WhatIf
from overlapscope.prediction.steps import least_step_ns
from overlapscope.trace.model import Kind, Trace
from tests.support.helpers import MS, TRACES, US, Host, Op, Wait, make_trace, various
from tests.support.made_up_programs import Do, record, repeated
from tests.support.recordings import trace_of

ALONE = [
    *("faster-loader", "pin", "non-blocking", "no-gc", "batch-copies", "side-stream", "two-way", "prefetch"),
    *("fused", "graph"),
]

LAUNCHES = st.builds(
    Do,
    st.sampled_from(["kernel", "kernel", "kernel", "h2d", "d2h", "pageable", "sync"]),
    st.integers(2 * US, 400 * US),
    st.sampled_from([7, 7, 20]),
    st.integers(1 * US, 60 * US),
)


def on_streams(step: list[Do], apart: bool) -> list[Do]:
    """Each direction's copies on one stream, so that they come to their engine in the order of their calls."""
    streams = {"h2d": 13, "pageable": 13, "d2h": 14} if apart else dict.fromkeys(("h2d", "pageable", "d2h"), 7)
    return [Do("kernel", 5 * US), *(replace(do, stream=streams.get(do.what, do.stream)) for do in step)]


STEPS = st.builds(on_streams, st.lists(LAUNCHES, min_size=1, max_size=12), st.booleans())


def laboratory(name: str) -> Trace:
    return trace_of(TRACES / "laboratory" / f"{name}.trace.json.gz")


def of(trace: Trace, *interventions: str) -> WhatIf:
    return predict(trace, interventions).result


# -- nothing changed ------------------------------------------------------------------------------


@pytest.mark.parametrize("recording", various(), ids=lambda path: str(path.relative_to(TRACES))[:-8])
def test_the_unchanged_replay_gives_the_recording_back(recording: Path) -> None:
    trace = trace_of(recording)
    if not len(trace.gpu_ops):
        return
    for device in trace.devices:
        result = predict(trace, device=device).result
        fidelity = result.replay
        assert fidelity.valid, fidelity.reasons
        assert fidelity.step_error_pct is not None and fidelity.step_error_pct < 2
        assert fidelity.start_error_ns <= fidelity.launch_latency_ns
        predicted = result.predicted_step_ns
        assert predicted is not None
        assert predicted.value == predicted.low == predicted.high == result.baseline_step_ns
        assert result.recorded_predicted_step_ns == result.replayed_step_ns


@given(STEPS, st.integers(1, 4))
def test_a_made_up_program_is_replayed_to_the_nanosecond(step: list[Do], times: int) -> None:
    trace = record(repeated(step, times))
    base = prepare(trace, None)
    assert base.replayed.start_ns.tolist() == replay(base.graph).start_ns.tolist()
    # One direction slows the other in the table of the hardware, which these programs know nothing of.
    assert np.abs(base.replayed.start_ns - base.graph.items.start_ns).max() <= 2
    assert np.abs(base.replayed.call_end_ns - base.graph.calls.end_ns).max() <= 2


def one_at_a_time(graph: Graph) -> Replay:
    """Return the same for graphs of uploads alone: one thing at a time, again and again until nothing changes."""
    items, calls, never = graph.items, graph.calls, -(2**61)
    times = [[never] * len(table) for table in (items, items, calls, calls)]
    start, end, call_start, call_end = times
    waits = list(zip(graph.waits.call.tolist(), graph.waits.item.tolist(), graph.waits.lag_ns.tolist(), strict=True))
    columns = (items.lane, items.call, items.after_call, items.launch_lag_ns, items.queue_lag_ns, items.release_ns)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    lengths, engine = np.rint(items.duration_ns).astype(np.int64).tolist(), items.on_engine.tolist()
    before = None
    while before != (before := [column.copy() for column in times]):
        free, lanes, uploaded = never, dict[int, int](), never
        for call, (gap, length, release) in enumerate(
            zip(calls.before_ns.tolist(), calls.length_ns.tolist(), calls.release_ns.tolist(), strict=True)
        ):
            call_start[call] = max(free + gap, release)
            overs = [end[item] + lag for waiting, item, lag in waits if waiting == call]
            free = call_end[call] = max([call_start[call] + length, *overs])
        for item, (lane, call, after, launch_lag, queue_lag, release) in enumerate(rows):
            called = (call_end if after else call_start)[call] + launch_lag
            start[item] = max(lanes.get(lane, never) + queue_lag, called, release)
            if engine[item]:
                start[item] = max(start[item], uploaded, uploaded + int(items.engine_lag_ns[item]))
                uploaded = start[item] + lengths[item]
            lanes[lane] = end[item] = start[item] + lengths[item]
    return Replay(*(np.array(column) for column in times))


@given(
    st.lists(LAUNCHES.filter(lambda do: do.what in ("kernel", "h2d")), min_size=1, max_size=6),
    st.integers(60, 120),
    st.booleans(),
    st.sets(st.integers(0, 119), max_size=3),
)
def test_long_stretches_are_replayed_as_one_thing_after_another(
    step: list[Do], times: int, apart: bool, waiting: set[int]
) -> None:
    begin, sync = Do("step", work_ns=1), Do("sync")
    program = [[begin, *on_streams(step, apart), *([sync] if number in waiting else [])] for number in range(times)]
    graph = prepare(record(itertools.chain(*program)), None).graph
    assert (graph.calls.handed_by < 0).all() and not len(graph.orders)
    # Either lag can be the longer.
    closer = np.where(np.arange(len(graph.items)) % 2, graph.items.queue_lag_ns, 0)
    graph = replace(graph, items=replace(graph.items, queue_lag_ns=closer))
    expected, result = one_at_a_time(graph), replay(graph)
    for name in ("start_ns", "end_ns", "call_start_ns", "call_end_ns"):
        assert getattr(result, name).tolist() == getattr(expected, name).tolist()


@given(
    st.lists(st.tuples(st.integers(2 * US, 60 * US), st.integers(2 * US, 60 * US)), min_size=60, max_size=90),
    st.sampled_from([13, 14]),
)
def test_copies_of_both_directions_are_replayed_to_the_nanosecond(both: list[tuple[int, int]], downloads: int) -> None:
    """On a stream each, or on one; nothing slows the other in these programs."""
    copies = [(Do("h2d", up, 13, 5 * US), Do("d2h", down, downloads, 5 * US)) for up, down in both]
    program = [Do("step", work_ns=1), Do("kernel", 5 * US), *itertools.chain(*copies)]
    graph = prepare(record(program), None).graph
    graph = replace(graph, constants=msgspec.structs.replace(graph.constants, h2d_two_way=1.0, d2h_two_way=1.0))
    lasted = (graph.items.end_ns - graph.items.start_ns).astype(np.float64)
    graph = replace(graph, items=replace(graph.items, duration_ns=lasted))
    replayed = replay(graph)
    assert replayed.start_ns.tolist() == graph.items.start_ns.tolist()
    assert replayed.end_ns.tolist() == graph.items.end_ns.tolist()


# -- what every prediction keeps to ---------------------------------------------------------------


def check_order(graph: Graph, replayed: Replay) -> None:
    """Nothing in a replay begins before its dependencies: checked one constraint at a time."""
    items, calls = graph.items, graph.calls
    start, end = replayed.start_ns, replayed.end_ns
    kept = np.flatnonzero(~items.gone)
    launched = kept[items.call[kept] >= 0]
    called = np.where(items.after_call, replayed.call_end_ns[items.call], replayed.call_start_ns[items.call])
    assert (start[launched] >= (called + items.launch_lag_ns)[launched] - 1).all()
    for first, then, lag in zip(graph.orders.first, graph.orders.then, graph.orders.lag_ns, strict=True):
        assert items.gone[then] or start[then] >= end[first] + lag - 1
    for call, item, lag in zip(graph.waits.call, graph.waits.item, graph.waits.lag_ns, strict=True):
        assert replayed.call_end_ns[call] >= end[item] + lag - 1
    for lane in np.unique(items.lane):
        rows = kept[items.lane[kept] == lane]
        assert (start[rows[1:]] >= (end[rows[:-1]] + items.queue_lag_ns[rows[1:]]) - 1).all()
    for thread in np.unique(calls.thread):
        rows = np.flatnonzero(calls.thread == thread)
        assert (replayed.call_start_ns[rows[1:]] >= replayed.call_end_ns[rows[:-1]]).all()
    for device, kind in itertools.product(np.unique(items.device), (Kind.H2D, Kind.D2H)):
        rows = np.flatnonzero(items.on_engine & (items.device == device) & (items.kind == kind))
        rows = rows[np.argsort(start[rows], kind="stable")]
        assert (start[rows[1:]] >= end[rows[:-1]] - 1).all(), "one engine, one copy at a time"


def check_bounds(done: Outcome) -> None:
    """Check that the window is at least as long as the busiest engine, and as each lane's ops one after another."""
    items = done.graph.items
    start, end = done.replayed.start_ns, done.replayed.end_ns
    window = int(end[~items.gone].max() - start[~items.gone].min())
    length = np.rint(items.duration_ns)
    for kind in (Kind.H2D, Kind.D2H):
        assert window >= length[items.on_engine & (items.kind == kind)].sum() - 2 * len(items)
    for lane in np.unique(items.lane):
        mine = (items.lane == lane) & ~items.gone
        assert window >= length[mine].sum() + np.minimum(items.queue_lag_ns[mine], 0).sum() - 2 * len(items)
    # No op runs for less time than it takes alone.
    assert (end - start >= np.where(items.gone, 0, length) - 1).all()


@given(STEPS, st.integers(2, 4), st.lists(st.sampled_from(ALONE), min_size=1, max_size=4, unique=True), st.data())
def test_no_prediction_beats_what_bounds_it(step: list[Do], times: int, asked: list[str], data: st.DataObject) -> None:
    base = prepare(record(repeated(step, times)), None)
    choices = parse(asked)
    stances = [data.draw(st.sampled_from(Stance)) for _ in choices]
    done = outcome(base, choices, stances)
    check_order(done.graph, done.replayed)
    check_bounds(done)
    again = outcome(base, choices, stances)
    assert again.replayed.start_ns.tolist() == done.replayed.start_ns.tolist()
    if any(item.touched for item in done.applied):
        assert least_step_ns(done.graph, base.judged) <= done.replayed_step_ns
    else:
        assert done.step_ns == base.steps.mean_ns


@pytest.mark.parametrize(
    "name",
    [
        "offload_pipeline/two_streams",
        "kv_offload/prefetch",
        "chunked_streams/breadth_first_16",
        "dataloader/pinned1_nonblocking0_workers4",
        "fsdp_offload/offload.traces/rank0",
        "pin_threads/pin_4_threads",
        "cuda_graph/graphed_callables",
        "many_small_copies/blocking",
    ],
)
def test_predictions_of_real_recordings_keep_to_order_and_bounds(name: str) -> None:
    base = prepare(laboratory(name), None)
    for asked in [*([item] for item in ALONE), ALONE]:
        choices = parse(asked)
        for stance in Stance:
            done = outcome(base, choices, [stance] * len(choices), stance)
            check_order(done.graph, done.replayed)
            check_bounds(done)


@given(STEPS, st.lists(st.sampled_from(ALONE), min_size=1, max_size=4, unique=True))
def test_the_value_lies_in_its_interval_and_buckets_add_up_to_the_step(step: list[Do], asked: list[str]) -> None:
    result = of(record(repeated(step, 3)), *asked)
    if result.predicted_step_ns is None:
        return
    assert result.predicted_step_ns.low <= result.predicted_step_ns.value <= result.predicted_step_ns.high
    assert all(
        bucket.predicted.low <= bucket.predicted.value <= bucket.predicted.high for bucket in result.buckets.values()
    )
    assert sum(bucket.measured for bucket in result.buckets.values()) == result.baseline_step_ns
    assert sum(bucket.predicted.value for bucket in result.buckets.values()) == result.predicted_step_ns.value
    assert msgspec.json.decode(msgspec.json.encode(result), type=WhatIf) == result


# -- each intervention, where the answer is known -------------------------------------------------


def test_pinned_copies_take_the_hardwares_time_and_no_longer_hold_the_host() -> None:
    step = [Do("pageable", 4 * MS), Do("kernel", 1 * MS)]
    result = of(record(repeated(step, 4)), "pin")
    assert result.predicted_step_ns is not None
    # 200 MB at 55 GB/s, then the kernel.
    assert result.predicted_step_ns.value == pytest.approx(200e6 / 55.4 + 1e6, rel=0.02)


def test_copies_on_their_own_stream_run_beside_the_kernels() -> None:
    step = [Do("h2d", 1 * MS), Do("kernel", 3 * MS), Do("d2h", 1 * MS)]
    result = of(record(repeated(step * 4, 4)), "side-stream")
    assert result.predicted_step_ns is not None
    assert result.predicted_step_ns.value == pytest.approx(12 * MS, rel=0.01)
    # With a single buffer, both directions run at once, and slow each other.
    assert result.predicted_step_ns.high == pytest.approx(16.6 * MS, rel=0.05)
    exposed = result.buckets["exposed_copy_ns"]
    assert exposed.measured == 8 * MS and exposed.predicted.value < 0.05 * exposed.measured


def test_both_directions_at_once_slow_each_other() -> None:
    step = [Do("kernel", 10 * US, 7), *[Do("h2d", 5 * MS, 13), Do("d2h", 5 * MS, 13)] * 3]
    result = of(record(repeated(step, 4)), "two-way")
    assert result.predicted_step_ns is not None
    assert 1.03 * 15 * MS < result.predicted_step_ns.value < 1.15 * 15 * MS


def test_a_copy_one_step_ahead_is_hidden() -> None:
    step = [Do("h2d", 1 * MS), Do("kernel", 3 * MS)]
    result = of(record(repeated(step, 5)), "prefetch")
    assert result.predicted_step_ns is not None
    assert result.predicted_step_ns.value == pytest.approx(3 * MS, rel=0.01)


def test_a_call_that_returns_at_once_costs_only_itself() -> None:
    step = [*[Do("kernel", 100 * US)] * 10, Do("sync"), Do("kernel", 10 * US, work_ns=500 * US)]
    trace = record(repeated(step, 4))
    result = of(trace, "no-sync cudaDeviceSynchronize")
    assert result.predicted_step_ns is not None
    # The host's 500 us of work run beside the kernels.
    assert result.baseline_step_ns - result.predicted_step_ns.value > 400 * US
    assert result.interventions[0].touched == 4


def test_launches_in_a_graph_cost_what_a_graph_costs() -> None:
    step = [Do("kernel", 2 * US, work_ns=20 * US)] * 100
    result = of(record(repeated(step, 4)), "graph")
    assert result.predicted_step_ns is not None
    assert result.recorded_step_ns > 2.4 * MS and result.baseline_step_ns > 2 * MS
    assert 200 * US < result.predicted_step_ns.value < 350 * US


def test_launches_whose_grids_differ_from_step_to_step_are_in_no_graph_except_at_best() -> None:
    trace = record(repeated([Do("kernel", 2 * US, work_ns=20 * US)] * 10, 4))
    alike = of(trace, "graph")
    # One kernel of each step has a grid of its own, such as that of a cache that grows.
    blocks = np.where(np.arange(40) % 10 == 5, np.arange(40), 8)
    growing = of(replace(trace, gpu_ops=replace(trace.gpu_ops, blocks=blocks)), "graph")
    assert alike.predicted_step_ns is not None and growing.predicted_step_ns is not None
    assert alike.predicted_step_ns.value < growing.predicted_step_ns.value == growing.baseline_step_ns
    assert growing.predicted_step_ns.low < growing.predicted_step_ns.value / 2
    (graph,) = growing.interventions
    assert "40 launches stay" in graph.what
    # Steps that take turns are graphs of their own.
    two_kinds = np.where(np.arange(40) // 10 % 2 == 0, 8, 16)
    assert of(replace(trace, gpu_ops=replace(trace.gpu_ops, blocks=two_kinds)), "graph") == alike


def test_launches_in_steps_that_overlap_become_part_of_one_graph() -> None:
    trace = record(repeated([Do("kernel", 2 * US, work_ns=20 * US)] * 10, 4))
    notes = replace(trace.annotations, end_ns=trace.annotations.end_ns + 100 * US)
    (graph,) = of(replace(trace, annotations=notes), "graph").interventions
    assert graph.touched == 40 and "40 launches become 4 graph launches" in graph.what


def training(*optimizers: str) -> Trace:
    """Return steps of 10 launches in the forward and 10 in the backward pass, 4 that clip, and 6 of each optimizer."""
    ops, notes, backward, at = [], [], [], 1 * MS

    def launch(many: int) -> int:
        nonlocal at
        for _ in range(many):
            ops.append(Op(Kind.COMPUTE, at + 6 * US, at + 8 * US, launch=(at, at + 5 * US)))
            at += 20 * US
        return at

    for number in range(4):
        begin = at
        end = launch(10)
        backward.append(Host("autograd::engine::evaluate_function: MmBackward0", end, launch(10), thread=1))
        launch(4)
        notes += [Host(f"Optimizer.step#{name}.step", at, launch(6)) for name in optimizers]
        notes.append(Host(f"ProfilerStep#{number}", begin, at))
        at += 10 * US
    return make_trace(ops, cpu_ops=backward, annotations=sorted(notes, key=lambda note: (note.start, -note.end)))


@pytest.mark.parametrize(
    ("optimizers", "asked", "launches"),
    [
        (["SGD"], "graph", 4 * 20),
        (["SGD", "Adam"], "graph", 4 * 20),
        (["SGD"], "graph step", 4 * 30),
        (["SGD"], "graph Optimizer.step#SGD.step", 4 * 6),
        ([], "graph", 4 * 24),
    ],
)
def test_a_graph_of_the_model_holds_no_optimizer(optimizers: list[str], asked: str, launches: int) -> None:
    trace = training(*optimizers)
    check_names(trace, [asked])
    assert of(trace, asked).interventions[0].touched == launches


def test_many_small_copies_become_one() -> None:
    step = [*[Do("h2d", 2 * US, work_ns=20 * US)] * 50, Do("kernel", 100 * US)]
    result = of(record(repeated(step, 4), gb_per_s=5.0), "batch-copies")
    assert result.predicted_step_ns is not None
    assert result.interventions[0].touched == 200
    assert result.predicted_step_ns.value < 0.2 * result.baseline_step_ns


@pytest.mark.parametrize("change", ["batch-copies", "fused"])
def test_what_is_merged_leaves_no_gap_for_each_part(change: str) -> None:
    trace = (
        training(*["Adam"] * 20)
        if change == "fused"
        else record(repeated([Do("h2d", 2 * US)] * 50 + [Do("kernel", MS)], 2))
    )
    done = outcome(prepare(trace, None), parse([change]))
    items, replayed = done.graph.items, done.replayed
    starts, ends = replayed.start_ns[~items.gone], replayed.end_ns[~items.gone]
    called = replayed.call_end_ns[items.call[~items.gone]]
    assert items.gone.any()
    assert (starts[1:] - np.maximum(called[1:], ends[:-1])).max() < 15 * US


@pytest.mark.parametrize(
    ("name", "count", "last_bytes", "spared_us"),
    [("aten::stack", 16, 8192, 500), ("aten::cat", 16, 8192, 500), ("aten::mul", 16, 8192, 0)]
    + [("aten::stack", 4, 8192, 0), ("aten::stack", 16, 4096, 0)],
)
def test_pieces_that_come_as_one_copy_need_no_op_that_joins_them(
    name: str, count: int, last_bytes: int, spared_us: int
) -> None:
    """Each piece takes the host 25 us, and the op takes 500 us until it launches."""

    def step(join: str) -> Trace:
        ops, cpu_ops, notes = [], [], []
        for number in range(4):
            begin = at = number * 2 * MS
            for piece in range(count):
                size = last_bytes if piece == count - 1 else 8192
                ops.append(Op(Kind.H2D, at + 6 * US, at + 8 * US, launch=(at + US, at + 5 * US), size=size))
                cpu_ops.append(Host("aten::copy_", at, at + 20 * US))
                at += 25 * US
            cpu_ops.append(Host(join, at, at + 520 * US))
            ops.append(Op(Kind.COMPUTE, at + 510 * US, at + 600 * US, launch=(at + 500 * US, at + 505 * US)))
            notes.append(Host(f"ProfilerStep#{number}", begin, begin + 2 * MS))
        return make_trace(ops, cpu_ops=cpu_ops, annotations=notes)

    joined, other = (of(step(join), "batch-copies").predicted_step_ns for join in (name, "aten::relu"))
    assert joined is not None and other is not None
    assert other.value - joined.value == pytest.approx(spared_us * US, abs=20 * US)
    assert joined.high == pytest.approx(other.high, rel=0.01)


def test_a_loader_that_keeps_ahead_takes_no_time() -> None:
    ops, notes, at = [], [], 1 * MS
    for number in range(4):
        notes.append(Host(f"ProfilerStep#{number}", at, at + 6 * MS))
        notes.append(Host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 10 * US, at + 5 * MS))
        called = at + 5 * MS + 20 * US
        ops.append(Op(Kind.COMPUTE, called + 6 * US, called + 606 * US, launch=(called, called + 5 * US)))
        at += 6 * MS
    result = of(make_trace(ops, annotations=notes), "faster-loader")
    assert result.predicted_step_ns is not None
    assert result.recorded_step_ns == 6 * MS
    assert result.predicted_step_ns.value == pytest.approx(result.baseline_step_ns - 4990 * US, rel=0.01)


def test_pauses_of_the_garbage_collector_take_no_time() -> None:
    ops, notes, at = [], [], 1 * MS
    for number in range(4):
        notes.append(Host(f"ProfilerStep#{number}", at, at + 6 * MS))
        notes.append(Host("overlapscope::gc", at + 10 * US, at + 3 * MS))
        called = at + 5 * MS
        ops.append(Op(Kind.COMPUTE, called + 6 * US, called + 606 * US, launch=(called, called + 5 * US)))
        at += 6 * MS
    result = of(make_trace(ops, annotations=notes), "no-gc")
    assert result.predicted_step_ns is not None
    assert result.predicted_step_ns.value == pytest.approx(result.baseline_step_ns - 2990 * US, rel=0.01)


def test_a_fused_optimizer_launches_once() -> None:
    result = of(training("Adam"), "fused")
    assert result.predicted_step_ns is not None
    assert result.interventions[0].touched == 4 * 6
    # Of the six launches, 20 us apart, the first is left.
    assert result.recorded_predicted_step_ns == pytest.approx(result.recorded_step_ns - 100 * US, abs=1 * US)


def test_a_finding_about_launches_names_the_larger_fix() -> None:
    for optimizers, fix in [(["SGD"], ("graph",)), (["Adam"] * 6, ("fused",))]:
        savings = {finding.rule: finding.saving for finding in analyze(training(*optimizers)).findings}
        saving = savings["dispatch"]
        assert saving is not None and saving.fix == fix


def test_an_optimizer_that_is_fused_is_left_alone() -> None:
    trace = training("Adam")
    fused = replace(trace.gpu_ops, names=tuple(f"Fused{name}" for name in trace.gpu_ops.names))
    assert of(replace(trace, gpu_ops=fused), "fused").interventions[0].touched == 0
    assert of(training(), "fused").interventions[0].touched == 0


# -- together -------------------------------------------------------------------------------------


def test_a_ladder_climbs_and_ends_with_the_set_it_predicts() -> None:
    result = best(laboratory("dataloader/pinned0_nonblocking0_workers0")).result
    gains = [rung.gain_ns for rung in result.ladder]
    assert gains == sorted(gains) and gains[0] == 0 and len(gains) >= 3
    assert result.predicted_step_ns == result.ladder[-1].predicted_step_ns
    assert set(result.ladder[1].interventions) <= set(result.ladder[-1].interventions)


@settings(max_examples=8)
@given(STEPS, st.integers(2, 4))
def test_a_ladder_is_that_of_replays_of_all_sets(step: list[Do], times: int) -> None:
    """Though it leaves out those that cannot be short enough."""
    trace = record(repeated(step, times))
    base = prepare(trace, None)
    base = plain_program(base, None) or base
    candidates_left = [choice for choice in candidates(base) if outcome(base, [choice]).applied[0].touched]
    taken: tuple[Choice, ...] = ()
    now, climbed = base.step_ns, [("", base.step_ns)]
    while base.fidelity.valid:
        gained = None
        for many in (1, 2):
            sets = [in_order((*taken, *added)) for added in itertools.combinations(candidates_left, many)]
            shortest = min(sets, key=lambda tried: outcome(base, tried).step_ns, default=())
            if shortest and now - outcome(base, shortest).step_ns >= MIN_GAIN * base.step_ns:
                gained = shortest
                break
        if gained is None:
            break
        added = [choice for choice in gained if choice not in taken]
        candidates_left = [choice for choice in candidates_left if choice not in added]
        now, taken = outcome(base, gained).step_ns, gained
        climbed.append((" + ".join(choice.text for choice in added), now))
    ladder = [(rung.added, rung.predicted_step_ns.value) for rung in best(trace).result.ladder]
    assert ladder == (climbed if base.fidelity.valid else [])


def test_events_on_one_stream_say_what_needs_what() -> None:
    """Copies on the kernels' stream, with the events that would join two streams."""
    trace = laboratory("offload_pipeline/one_stream")
    guessed = of(trace, "side-stream")
    assert any(not assumption.shown for assumption in guessed.assumptions)


def test_a_recording_without_launches_is_not_predicted() -> None:
    ops = [Op(Kind.COMPUTE, at * MS, at * MS + 500 * US) for at in range(5)]
    result = of(make_trace(ops), "pin")
    assert not result.replay.valid and result.predicted_step_ns is None and result.buckets == {}
    assert "no recorded launch" in " ".join(result.replay.reasons)


def test_ops_that_lack_their_launch_are_not_predicted() -> None:
    step = [Do("kernel", 50 * US, work_ns=20 * US)] * 10
    trace = record(repeated(step, 4))
    launch = trace.gpu_ops.launch.copy()
    launch[[20, 25]] = -1
    result = of(replace(trace, gpu_ops=replace(trace.gpu_ops, launch=launch)), "graph")
    assert not result.replay.valid and "5.0%" in result.replay.reasons[0]


def test_another_gpus_constants_are_reported_and_its_link_may_be_any() -> None:
    trace = record(repeated([Do("pageable", 20 * MS), Do("kernel", 1 * MS)], 4), gb_per_s=10.0)
    baseline, other = of(trace, "pin"), of(replace(trace, device_names={0: "NVIDIA GeForce RTX 3060"}), "pin")
    assert not baseline.replay.reasons and "H200" in " ".join(other.replay.reasons)
    assert baseline.predicted_step_ns is not None and other.predicted_step_ns is not None
    width = other.predicted_step_ns.high - other.predicted_step_ns.low
    assert width > 10 * (baseline.predicted_step_ns.high - baseline.predicted_step_ns.low)
    assert other.predicted_step_ns.value > 1.5 * baseline.predicted_step_ns.value


def test_steps_that_differ_widen_the_interval_and_are_reported() -> None:
    program = [do for length in (2, 2, 3, 4, 2, 2) for do in (Do("step"), Do("h2d", 1 * MS), Do("kernel", length * MS))]
    result = of(record(program), "side-stream")
    assert result.predicted_step_ns is not None
    assert result.predicted_step_ns.high > 1.3 * result.predicted_step_ns.value
    assert "vary" in " ".join(result.replay.reasons)


def test_a_wait_for_what_the_host_may_read_is_not_suggested() -> None:
    step = [Do("kernel", 1 * MS), Do("d2h", 1 * MS), Do("sync"), Do("kernel", 10 * US, work_ns=500 * US)]
    trace = record(repeated(step, 4))
    asked = of(trace, "no-sync cudaDeviceSynchronize")
    assert asked.gain_ns is not None and asked.gain_ns.value > 300 * US
    assert asked.predicted_step_ns is not None and asked.predicted_step_ns.high >= asked.replayed_step_ns
    assert not any("no-sync" in name for rung in best(trace).result.ladder for name in rung.interventions)


@pytest.mark.parametrize("asked", ["pim", "no-sync", "pin harder", ""])
def test_an_intervention_that_makes_no_sense_is_refused(asked: str) -> None:
    with pytest.raises(UsageError):
        predict(record(repeated([Do("kernel", 10 * US)], 2)), [asked])


def test_a_plain_step_that_is_shorter_than_the_gpus_work_is_doubted() -> None:
    trace = record(repeated([Do("pageable", MS), Do("kernel", 3 * MS)], 4))
    for told_ms, doubted in ((3, True), (4, False)):
        reasons = predict(trace, ["pin"], plain_step_ns=told_ms * MS).result.replay.reasons
        assert any("The GPU works for longer than 3.00 ms" in reason for reason in reasons) is doubted


def test_a_trace_without_gpu_activity_is_refused() -> None:
    with pytest.raises(UsageError, match="GPU"):
        predict(make_trace())


def test_every_intervention_says_what_it_is() -> None:
    for intervention in INTERVENTIONS.values():
        assert (
            intervention.title
            and intervention.texts.meaning.endswith(".")
            and intervention.texts.advice
            and intervention.texts.assumptions
        )


def test_things_that_wait_for_each_other_are_no_prediction() -> None:
    graph = prepare(record(repeated([Do("kernel", 10 * US)], 2)), None).graph
    both = np.array([0, 1])
    with pytest.raises(Deadlock):
        replay(replace(graph, orders=Orders.of(both, both[::-1], 0, OrderReason.DATA)))


# -- what once went wrong -------------------------------------------------------------------------


def test_streams_that_wait_for_each_other_again_and_again_are_no_riddle() -> None:
    """Each wait passes on the other stream's waits; nothing runs in between."""
    rounds = 200
    ops = [
        Op(
            Kind.COMPUTE,
            1 * MS + number * MS,
            1 * MS + number * MS + 100 * US,
            stream,
            (number * MS, number * MS + 5 * US),
        )
        for number in (1, rounds + 2)
        for stream in (7, 13)
    ]
    waits = [
        Wait(2 * MS + number * 10 * US + side, to, source_stream=other)
        for number in range(rounds)
        for side, (to, other) in enumerate(((7, 13), (13, 7)))
    ]
    assert of(make_trace(ops, waits=waits), "side-stream").steps == 0


def test_a_copy_of_unknown_size_is_not_pinned() -> None:
    trace = record(repeated([Do("pageable", 4 * MS), Do("kernel", 1 * MS)], 4))
    unknown = replace(trace, gpu_ops=replace(trace.gpu_ops, bytes=np.full(len(trace.gpu_ops), -1)))
    result = of(unknown, "pin")
    assert result.interventions[0].touched == 0
    assert result.predicted_step_ns is not None and result.predicted_step_ns.value == result.baseline_step_ns


def test_ops_without_a_stream_are_replayed() -> None:
    trace = record(repeated([Do("h2d", 1 * MS), Do("kernel", 1 * MS)], 4))
    nowhere = replace(trace, gpu_ops=replace(trace.gpu_ops, stream=np.full(len(trace.gpu_ops), -1, np.int32)))
    assert of(nowhere, "side-stream").replay.valid


def test_small_copies_are_not_joined_across_another_call() -> None:
    step = [*[Do("h2d", 2 * US, work_ns=20 * US)] * 5, Do("kernel", 10 * US), *[Do("h2d", 2 * US, work_ns=20 * US)] * 5]
    result = of(record(repeated(step, 3), gb_per_s=5.0), "batch-copies")
    assert "30 copies" in result.interventions[0].what and "become 6 copies" in result.interventions[0].what


def test_a_graph_does_not_load_data() -> None:
    ops, notes, at = [], [], 1 * MS
    for number in range(4):
        notes.append(Host(f"ProfilerStep#{number}", at, at + 30 * MS))
        notes.append(Host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 1 * MS, at + 29 * MS))
        launches = (at + 20 * US, at + 40 * US, at + 29 * MS + 100 * US, at + 29 * MS + 200 * US)
        ops += [Op(Kind.COMPUTE, call + 6 * US, call + 12 * US, launch=(call, call + 5 * US)) for call in launches]
        at += 30 * MS
    result = of(make_trace(ops, annotations=notes), "graph")
    assert result.predicted_step_ns is not None and result.predicted_step_ns.value > 28 * MS


def test_a_calibration_of_another_gpu_is_refused() -> None:
    other = msgspec.structs.replace(shipped(), gpu="NVIDIA GeForce GTX 1050")
    with pytest.raises(UsageError, match="GTX 1050"):
        predict(record(repeated([Do("kernel", 10 * US)], 2)), ["graph"], calibration=other)
