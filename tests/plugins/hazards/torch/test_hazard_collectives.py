"""Data races with collectives are found, and no others: real operators of a process group, with a pretended GPU.

A comment at a line's end names it. `test_hazards_ranks_gpu.py` runs such programs on GPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed import _functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.testing._internal.distributed.fake_pg import FakeStore

from overlapscope.plugins.hazards.bookkeeping import describe
from overlapscope.plugins.hazards.checker import HazardChecker
from overlapscope.plugins.hazards.launches import HazardMode
from overlapscope.plugins.hazards.operators import collective_arguments, is_collective
from tests.plugins.hazards.books import HappensBeforeGraph, Step
from tests.plugins.hazards.pretended_gpu import NCCL_STREAM, PretendedGpu, PretendedNccl, checked, on_gpu
from tests.plugins.hazards.programs import functional_calls, name_of, world

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")

Found = list[tuple[str, str]]
SIDE = 7


class PretendedJob:
    """A rank, its GPU, and its NCCL."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = PretendedGpu(monkeypatch)
        self.nccl = PretendedNccl(self.gpu)

    def wait(self, work: int = -1) -> None:
        """As `Work.wait` does."""
        self.gpu.wait(self.nccl.ends[work])

    def found(self, program: Callable[[PretendedJob], object]) -> Found:
        with checked(self.nccl) as checker:
            program(self)
        assert checker.notes == ()
        return [tuple(name_of(p.code) for p in (h.first, h.second)) for h in checker.hazards]  # type: ignore[misc]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedJob]:
    """Rank 1 of two ranks that exchange nothing."""
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield PretendedJob(monkeypatch)
    dist.destroy_process_group()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedJob]:
    """The only rank, whose collectives end."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    yield PretendedJob(monkeypatch)
    dist.destroy_process_group()


def ones(*shape: int) -> torch.Tensor:
    return on_gpu(torch.ones(shape or (8,)))


# Wrong ----------------------------------------------------------------------------------------------------------------


def read_before_wait(job: PretendedJob) -> None:
    x = ones()
    dist.all_reduce(x, async_op=True)  # first
    x.sum()  # then
    job.wait()


def written_before_wait(job: PretendedJob) -> None:
    x, y = ones(), ones(16)
    dist.all_gather_into_tensor(y, x, async_op=True)  # first
    x.zero_()  # then
    job.wait()


def read_on_a_side_stream_after_wait(job: PretendedJob) -> None:
    x = ones()
    dist.all_reduce(x, async_op=True)  # first
    job.wait()
    with job.gpu.stream(SIDE):
        x.sum()  # then


def synchronous_and_read_on_a_side_stream(job: PretendedJob) -> None:
    x = ones()
    dist.all_reduce(x)  # first
    with job.gpu.stream(SIDE):
        x.sum()  # then


def part_of_a_list_read_before_wait(job: PretendedJob) -> None:
    x, parts = ones(), [ones(), ones()]
    dist.all_gather(parts, x, async_op=True)  # first
    parts[1].sum()  # then
    job.wait()


def scattered_sums_read_before_wait(job: PretendedJob) -> None:
    x, y = ones(16), ones(8)
    dist.reduce_scatter_tensor(y, x, async_op=True)  # first
    y.sum()  # then
    job.wait()


def exchanged_read_before_wait(job: PretendedJob) -> None:
    x, y = ones(), ones()
    dist.all_to_all_single(y, x, async_op=True)  # first
    y.sum()  # then
    job.wait()


def broadcast_read_before_wait(job: PretendedJob) -> None:
    x = ones()
    world().broadcast(x, 0)  # first
    x.sum()  # then
    job.wait()


def received_read_before_wait(job: PretendedJob) -> None:
    x = ones()
    dist.irecv(x, 0)  # first
    x.sum()  # then
    job.wait()


def sent_written_before_wait(job: PretendedJob) -> None:
    x = ones()
    dist.isend(x, 0)  # first
    x.zero_()  # then
    job.wait()


def coalesced_read_before_wait(job: PretendedJob) -> None:
    x, y = ones(), ones()
    with job.nccl.coalescing():
        dist.irecv(x, 0)  # first
        dist.isend(y, 0)
    x.sum()  # then
    job.wait()


def many_reduced_at_once_read_before_wait(job: PretendedJob) -> None:
    x, y = ones(), ones()
    with _coalescing_manager(async_ops=True):  # first
        dist.all_reduce(x)
        dist.all_reduce(y)
    y.sum()  # then
    job.wait()


def functional_result_read_before_wait(job: PretendedJob) -> None:
    x = ones()
    torch.ops._c10d_functional.all_reduce_.default(x, "sum", "0")  # first
    x.sum()  # then
    torch.ops._c10d_functional.wait_tensor.default(x)


def new_result_read_before_wait(job: PretendedJob) -> None:
    y = torch.ops._c10d_functional.all_gather_into_tensor.default(ones(), 2, "0")  # first
    y.sum()  # then
    torch.ops._c10d_functional.wait_tensor.default(y)


def input_of_a_new_result_written_before_wait(job: PretendedJob) -> None:
    x = ones()
    y = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 2, "0")  # first
    x.zero_()  # then
    torch.ops._c10d_functional.wait_tensor.default(y)


def read_while_cloned(job: PretendedJob) -> None:
    x = ones()
    with job.gpu.stream(SIDE):
        y = torch.ops._c10d_functional.all_reduce.default(x, "sum", "0")  # first
    x.zero_()  # then
    torch.ops._c10d_functional.wait_tensor.default(y)


def chunk_and_whole(job: PretendedJob) -> None:
    x = torch.ones(4, 8)
    dist.all_reduce(on_gpu(x[1]), async_op=True)  # first
    on_gpu(x).sum()  # then
    job.wait()


def two_collectives_on_streams_of_their_own(job: PretendedJob) -> None:
    x, y = ones(), ones(16)
    dist.all_reduce(x, async_op=True)  # first
    job.nccl.stream += 1
    dist.all_gather_into_tensor(y, x, async_op=True)  # then
    job.wait(0)
    job.wait(1)


@pytest.mark.parametrize(
    "program",
    [
        read_before_wait,
        written_before_wait,
        read_on_a_side_stream_after_wait,
        synchronous_and_read_on_a_side_stream,
        part_of_a_list_read_before_wait,
        scattered_sums_read_before_wait,
        exchanged_read_before_wait,
        broadcast_read_before_wait,
        received_read_before_wait,
        sent_written_before_wait,
        coalesced_read_before_wait,
        many_reduced_at_once_read_before_wait,
        functional_result_read_before_wait,
        new_result_read_before_wait,
        input_of_a_new_result_written_before_wait,
        read_while_cloned,
        two_collectives_on_streams_of_their_own,
        chunk_and_whole,
    ],
    ids=lambda value: value.__name__,
)
def test_a_use_that_does_not_wait_for_a_collective_is_found(
    job: PretendedJob, program: Callable[[PretendedJob], object]
) -> None:
    assert job.found(program) == [("first", "then")]


def test_a_report_names_the_wait_that_is_missing(job: PretendedJob) -> None:
    with checked(job.nccl) as checker:
        read_before_wait(job)
    (hazard,) = checker.hazards
    assert hazard.first.does == "writes it on stream 0x40" and hazard.second.does == "reads it on the default stream"
    assert hazard.missing == f"wait() of the collective of {hazard.first} before {hazard.second}"


def test_a_sentence_states_the_number_of_races_and_what_was_not_checked(
    job: PretendedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    with checked(job.nccl) as checker:
        read_before_wait(job)
    assert checker.report() == ("data races were not checked, because the program used no GPU.", [])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    sentence, (text,) = checker.report()
    assert sentence == "1 data race found." and text == describe(*checker.hazards)
    checker._mode.not_followed.add("c10d::send")
    assert checker.report()[0] == "1 data race found. Races with collectives were not checked for c10d::send."
    unused = HazardChecker()
    assert unused.report()[0] == "no data races found in what could be checked."


# Right ----------------------------------------------------------------------------------------------------------------


def every_collective_and_wait(job: PretendedJob) -> None:
    every_collective(job, asynchronous=True)
    every_collective(job, asynchronous=False)


def every_collective(job: PretendedJob, *, asynchronous: bool) -> None:
    x, wide, parts = ones(), ones(16), [ones(), ones()]
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(x, async_op=asynchronous),
        lambda: dist.reduce(x, 0, async_op=asynchronous),
        lambda: dist.all_gather(parts, x, async_op=asynchronous),
        lambda: dist.all_gather_into_tensor(wide, x, async_op=asynchronous),
        lambda: dist.reduce_scatter(x, parts, async_op=asynchronous),
        lambda: dist.reduce_scatter_tensor(x, wide, async_op=asynchronous),
        lambda: dist.all_to_all(parts, [x, x], async_op=asynchronous),
        lambda: dist.all_to_all_single(wide, wide.clone(), async_op=asynchronous),
        lambda: dist.scatter(x, None, 0, async_op=asynchronous),
        lambda: dist.gather(x, None, 0, async_op=asynchronous),
    ]
    for call in calls:
        torch._foreach_zero_([x, wide, *parts])
        call()
        if asynchronous:
            job.wait()
        torch._foreach_norm([x, wide, *parts])


def other_work_before_wait(job: PretendedJob) -> None:
    x, y = ones(), ones()
    dist.all_reduce(x, async_op=True)
    y.mul_(2)
    with job.gpu.stream(SIDE):
        job.wait()
        x.sum()


def read_while_read(job: PretendedJob) -> None:
    x, y = ones(), ones(16)
    dist.all_gather_into_tensor(y, x, async_op=True)
    x.sum()
    dist.isend(x, 0)
    x.sum()
    dist.reduce(x, 0, async_op=True)
    x.sum()


def chunk_of_a_buffer(job: PretendedJob) -> None:
    x = torch.ones(4, 8)
    dist.all_reduce(on_gpu(x[1]), async_op=True)
    on_gpu(x[2]).zero_()
    job.wait()
    on_gpu(x).zero_()


def functional_collectives(job: PretendedJob) -> None:
    x = ones()
    for call in functional_calls(x):
        y = call()
        x.sum()
        functional.wait_tensor(y).sum()
        x.zero_()


def inputs_that_are_cloned(job: PretendedJob) -> None:
    x = ones()
    y = torch.ops._c10d_functional.all_reduce.default(x, "sum", "0")
    x.zero_()
    torch.ops._c10d_functional.wait_tensor.default(y)
    (z,) = torch.ops._c10d_functional.all_reduce_coalesced.default([x], "sum", "0")
    x.zero_()
    torch.ops._c10d_functional.wait_tensor.default(z)


def coalesced_with_wait(job: PretendedJob) -> None:
    x, y = ones(), ones()
    with job.nccl.coalescing():
        dist.irecv(x, 0)
        dist.isend(y, 0)
    job.wait()
    x.sum(), y.zero_()
    with _coalescing_manager(async_ops=True):
        dist.all_reduce(x)
        dist.all_reduce(y)
    job.wait()
    x.sum(), y.sum()


def transposed_and_gathered(job: PretendedJob) -> None:
    """Torch copies the tensor on the current stream."""
    x = on_gpu(torch.ones(4, 8).t())
    dist.all_gather([ones(8, 4), ones(8, 4)], x, async_op=True)
    x.zero_()


def on_the_current_stream(job: PretendedJob) -> None:
    """Torch hands out streams of a pool, so a communicator may have the program's."""
    x = ones()
    job.nccl.stream = SIDE
    with job.gpu.stream(SIDE):
        dist.all_reduce(x, async_op=True)
        x.sum()


def memory_that_is_used_again(job: PretendedJob) -> None:
    from torch.cuda import _gpu_trace

    x = ones()
    dist.all_reduce(x, async_op=True)
    _gpu_trace.MemoryAllocationCallbacks.fire_callbacks(x.data_ptr())
    x.zero_()


@pytest.mark.parametrize(
    "program",
    [
        every_collective_and_wait,
        other_work_before_wait,
        read_while_read,
        chunk_of_a_buffer,
        functional_collectives,
        inputs_that_are_cloned,
        coalesced_with_wait,
        transposed_and_gathered,
        on_the_current_stream,
        memory_that_is_used_again,
    ],
    ids=lambda value: value.__name__,
)
def test_a_program_that_waits_is_not_accused(job: PretendedJob, program: Callable[[PretendedJob], object]) -> None:
    assert job.found(program) == []


def test_the_host_may_wait_for_a_work_instead_of_the_stream(alone: PretendedJob) -> None:
    def program(job: PretendedJob) -> None:
        x = ones()
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        while not work.is_completed():
            pass
        x.sum()
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        work.wait(timedelta(minutes=1))
        x.sum()

    assert alone.found(program) == []


def test_the_root_of_a_broadcast_only_reads(alone: PretendedJob) -> None:
    def program(job: PretendedJob) -> None:
        x = ones()
        world().broadcast(x, 0)
        x.sum()
        job.wait()
        y = torch.ops._c10d_functional.broadcast_.default(x, 0, "0")
        x.sum()
        torch.ops._c10d_functional.wait_tensor.default(y)

    assert alone.found(program) == []


def test_collectives_of_parallel_training_are_seen(alone: PretendedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    begin = HazardMode.begin

    def noted(self: HazardMode, operator: Any, args: Any, kwargs: Any) -> Any:
        seen.append(operator._schema.name)
        return begin(self, operator, args, kwargs)

    monkeypatch.setattr(HazardMode, "begin", noted)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    loss = model(torch.ones(2, 4)).sum()
    with checked(alone.nccl) as checker:
        loss.backward()
    assert "c10d::allreduce_" in seen and checker.notes == () and checker.hazards == ()


# Unknown --------------------------------------------------------------------------------------------------------------


def test_a_collective_whose_stream_is_unknown_is_named_and_never_accused(job: PretendedJob) -> None:
    """As if a library launched it without events that torch reports."""
    checker, x = HazardChecker(), ones()
    checker.start()
    dist.all_reduce(x, async_op=True)
    with job.gpu.stream(SIDE):
        x.zero_()
    checker.stop()
    assert checker.hazards == ()
    assert checker.notes == ("Races with collectives were not checked for c10d::allreduce_.",)


def test_a_collective_that_raises_leaves_the_order_of_streams_known(job: PretendedJob) -> None:
    class Failing(PretendedNccl):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = super().__torch_dispatch__(func, types, args, kwargs)
            if func._schema.name.startswith("c10d::"):
                raise RuntimeError
            return result

    job.nccl = Failing(job.gpu)

    def program(job: PretendedJob) -> None:
        x = ones()
        x.zero_()
        with pytest.raises(RuntimeError):
            dist.all_reduce(x, async_op=True)
        with job.gpu.stream(SIDE):
            job.wait()  # The stream of the collective waited for the write.
            x.zero_()

    assert job.found(program) == []


def test_every_collective_of_this_torch_is_known() -> None:
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, short = schema.name.partition("::")
        if namespace != "c10d" or not any("Tensor" in str(argument.type) for argument in schema.arguments):
            continue
        operator = getattr(torch.ops.c10d, short).default
        known = collective_arguments(operator)
        assert known is not None or not is_collective(operator), schema
        if known is not None and short != "send":
            assert [used.written for used in known.used].count(True) == 1, schema


# Against brute force --------------------------------------------------------------------------------------------------

Action = tuple[str, int, int, int]
"""An action, its stream, its tensor, and its communicator or work."""
_WHAT = ("write", "read", "async", "sync", "wait", "join")
_ACTIONS = st.lists(
    st.tuples(st.sampled_from(_WHAT), st.sampled_from((0, SIDE)), st.integers(0, 2), st.integers(0, 3)), max_size=16
)


def on_streams(actions: list[Action]) -> tuple[list[Step], list[int]]:
    """Return the steps of the actions, and the number of steps up to the end of each action."""
    steps: list[Step] = []
    counts: list[int] = []
    ends: list[int] = []
    events = itertools.count()
    for what, stream, slot, number in actions:
        if what in ("write", "read", "sync"):
            steps.append(Step("use", stream, start=4 * slot, write=what != "read"))
        elif what == "async":
            begin, end, own = next(events), next(events), NCCL_STREAM + number % 2
            steps += [Step("record", stream, begin), Step("wait", own, begin)]
            steps += [Step("use", own, start=4 * slot, write=True), Step("record", own, end)]
            ends.append(end)
        elif what == "wait" and ends:
            steps.append(Step("wait", stream, ends[number % len(ends)]))
        elif what == "join":
            event = next(events)
            steps += [Step("record", stream, event), Step("wait", SIDE - stream, event)]
        counts.append(len(steps))
    return steps, counts


def first_found(job: PretendedJob, actions: list[Action]) -> int | None:
    """The first action at which the checker reports a race."""
    tensors, ends = [ones() for _ in range(3)], list[int]()
    with checked(job.nccl) as checker:
        for at, (what, stream, slot, number) in enumerate(actions):
            with job.gpu.stream(stream):
                if what == "write":
                    tensors[slot].zero_()
                elif what == "read":
                    tensors[slot].sum()
                elif what in ("async", "sync"):
                    job.nccl.stream = NCCL_STREAM + number % 2
                    dist.all_reduce(tensors[slot], async_op=what == "async")
                    ends += job.nccl.ends[-1:] if what == "async" else []
                elif what == "wait" and ends:
                    job.gpu.wait(ends[number % len(ends)])
                elif what == "join":
                    job.gpu.stream_waits(SIDE - stream, job.gpu.record())
            if checker.hazards:
                return at
    return None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_ACTIONS)
def test_the_first_race_is_that_of_a_graph_of_what_happens_before_what(
    job: PretendedJob, actions: list[Action]
) -> None:
    steps, counts = on_streams(actions)
    race = HappensBeforeGraph(steps).first_race_on_device()
    expected = None if race is None else next(at for at, count in enumerate(counts) if race < count)
    assert first_found(job, actions) == expected
