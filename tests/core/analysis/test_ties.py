"""Threads that hand over to each other, told from a recording that does not say so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.host_order import Relation, relations
from overlapscope.prediction.base import prepare
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import check_names
from overlapscope.prediction.outcomes import spread
from overlapscope.prediction.predict import predict
from overlapscope.trace.model import HostEvents, Kind, Trace
from tests.support.helpers import MS, TRACES, US, Host, Op, make_trace
from tests.support.recordings import trace_of

MAIN, OTHER = 1, 2
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
STEPS, LAUNCHES = 6, 40
LOADING = 4 * MS
WORK = LAUNCHES * 100 * US


def training(backward_op: str = "", *, ops: bool = True, beside: bool = False) -> Trace:
    """Steps of a loader's next, a forward pass, and a backward pass on a thread of its own while the main one waits.

    Each launch comes 50 us after the one before. With `beside` the other thread launches all the time instead, every
    70 us, whatever the main one does.
    """
    launches, cpu_ops, notes = [], [], []

    def launch(at: int, thread: int, name: str, stream: int = 7) -> int:
        launches.append(
            Op(Kind.COMPUTE, at + 12 * US, at + 22 * US, stream, (at + 5 * US, at + 10 * US), thread=thread)
        )
        cpu_ops.append(Host(name, at, at + 40 * US, thread))
        return at + 50 * US

    now = 1 * MS
    for number in range(STEPS):
        began = now
        now += LOADING
        notes.append(Host(LOADER, began + 10 * US, now, MAIN))
        for _ in range(LAUNCHES):
            now = launch(now, MAIN, "aten::mm")
        now += 30 * US
        for _ in range(LAUNCHES):
            now = launch(now, OTHER, backward_op) if not beside else launch(now, MAIN, "aten::mm")
        now += 30 * US
        notes.append(Host(f"ProfilerStep#{number}", began, now, MAIN))
    if beside:
        for at in range(1 * MS, now, 70 * US):
            launch(at, OTHER, "aten::add", 13)
    return make_trace(launches, cpu_ops=cpu_ops if ops else (), annotations=notes, device_names={0: "NVIDIA H200"})


@pytest.mark.parametrize(
    "backward_op",
    [
        "autograd::engine::evaluate_function: MmBackward0",
        "CudnnConvolutionBackward",
        "torch::autograd::AccumulateGrad",
        "something::else",
    ],
)
@pytest.mark.parametrize("ops", [True, False])
def test_a_backward_pass_comes_when_it_is_called(backward_op: str, ops: bool) -> None:
    result = predict(training(backward_op, ops=ops), ["faster-loader"]).result
    assert result.predicted_step_ns is not None
    assert result.replayed_step_ns == result.recorded_step_ns
    assert result.gain_ns is not None and result.gain_ns.value == pytest.approx(LOADING, rel=0.02)
    assert not result.replay.reasons


def test_a_thread_by_itself_stays_and_the_interval_says_so() -> None:
    trace = training(beside=True)
    graph = prepare(trace, None).graph
    assert relations(trace, graph.threads) == {(0, 1): Relation.BESIDE}
    assert (graph.calls.handed_by < 0).all()
    result = predict(trace, ["faster-loader"]).result
    assert "does not show what 1 thread with" in " ".join(result.replay.reasons)
    lucky = spread(graph, Stance.BEST, plain=False, changed=True).calls
    follows = lucky.handed_by >= 0
    assert follows.any() and (lucky.thread[follows] == 1).all() and (lucky.thread[lucky.handed_by[follows]] == 0).all()


def test_two_threads_seen_once_are_not_said_to_take_turns() -> None:
    """One burst of each may be apart by chance."""
    calls = [Host("cudaLaunchKernel", at * US, at * US + 5 * US, MAIN) for at in range(0, 100, 10)]
    calls += [Host("cudaLaunchKernel", at * US, at * US + 5 * US, OTHER) for at in range(9000, 9100, 10)]
    assert relations(make_trace(calls=calls), (MAIN, OTHER)) == {(0, 1): Relation.UNKNOWN}


def test_threads_that_seldom_work_are_not_said_to_take_turns() -> None:
    """Among many independent threads, some never meet."""
    random = np.random.default_rng(1)
    calls = [
        Host("cudaLaunchKernel", at, at + 5 * US, thread)
        for thread in range(20)
        for at in random.integers(0, 1000 * MS, 600).tolist()
    ]
    assert Relation.TURNS not in relations(make_trace(calls=calls), range(20)).values()


def test_threads_that_work_in_few_bursts_are_not_said_to_take_turns() -> None:
    """Bursts of independent threads often miss each other, however many calls each has."""
    random, found = np.random.default_rng(1), list[Relation]()
    for _ in range(20):
        begins = {MAIN: range(0, 1000 * MS, 200 * MS), OTHER: random.integers(0, 994 * MS, 5).tolist()}
        calls = [
            Host("cudaLaunchKernel", at, at + 50 * US, thread)
            for thread, bursts in begins.items()
            for burst in bursts
            for at in range(burst, burst + 6 * MS, 60 * US)
        ]
        found += relations(make_trace(calls=calls), (MAIN, OTHER)).values()
    assert found.count(Relation.TURNS) <= 1 and found.count(Relation.UNKNOWN) > 10


def bursts(thread: int, begin: int) -> Iterator[Host]:
    for number in range(20):
        for at in range(begin, begin + 3000, 100):
            yield Host("cudaLaunchKernel", number * MS + at * 100, number * MS + at * 100 + 5 * US, thread)


def test_threads_take_turns_whichever_comes_first() -> None:
    trace = make_trace(calls=[*bursts(MAIN, 0), *bursts(OTHER, 3000)])
    assert relations(trace, (MAIN, OTHER)) == relations(trace, (OTHER, MAIN)) == {(0, 1): Relation.TURNS}
    overlapping = make_trace(calls=[*bursts(MAIN, 0), *bursts(OTHER, 1520)])
    assert relations(overlapping, (MAIN, OTHER)) == {(0, 1): Relation.BESIDE}


@pytest.mark.parametrize("name", ["gpt2_train", "further/training/naive", "second/texts/no_workers"])
def test_a_recording_without_ops_has_the_same_ties(name: str) -> None:
    trace = trace_of(TRACES / f"{name}.json.gz")
    light = replace(trace, cpu_ops=HostEvents.empty(names=trace.names))
    handed, without = (prepare(recording, None).graph.calls.handed_by for recording in (trace, light))
    assert handed.max() >= 0
    assert np.array_equal(handed, without)


# -- calls inside an op --------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["aten::item", "aten::_local_scalar_dense", "cudaStreamSynchronize"])
def test_a_blocking_call_is_found_at_any_depth(asked: str) -> None:
    trace = trace_of(TRACES / "known_causes/item_every_step.json.gz")
    check_names(trace, [f"no-sync {asked}"])
    assert predict(trace, [f"no-sync {asked}"]).result.interventions[0].touched == 4


def test_a_blocking_call_is_found_inside_a_range_of_its_thread() -> None:
    kernels = [Op(Kind.COMPUTE, at * MS, at * MS + 900 * US, launch=(at * MS - 20 * US, at * MS)) for at in (1, 2, 3)]
    calls = [Host("cudaStreamSynchronize", at * MS + 10 * US, at * MS + 905 * US) for at in (1, 2, 3)]
    notes = [Host("read loss", 2 * MS, 2 * MS + 950 * US), Host("read loss", 3 * MS, 3 * MS + 950 * US, thread=9)]
    result = predict(make_trace(kernels, calls=calls, annotations=notes), ["no-sync read loss"]).result
    assert result.interventions[0].touched == 1


def test_item_is_not_a_copy_that_might_not_block_even_where_no_ops_were_recorded() -> None:
    for name, blocks in (("item_every_step", False), ("blocking_copy", True)):
        trace = trace_of(TRACES / f"known_causes/{name}.json.gz")
        light = replace(trace, cpu_ops=HostEvents.empty(names=trace.names))
        with_ops, without = (predict(item, ["non-blocking"]).result.interventions[0].touched for item in (trace, light))
        assert with_ops == without and (without > 0) == blocks
