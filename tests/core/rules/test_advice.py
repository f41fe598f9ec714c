"""Advice names nothing that the program does already, and fits what it copies, launches and loads."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from overlapscope.analysis import analyze_trace
from overlapscope.catalog.causes import CommCause
from overlapscope.report.model import build
from overlapscope.report.tables import findings_note
from overlapscope.rules.finding import Finding
from overlapscope.rules.findings import find_all
from overlapscope.trace.model import Framework, Kind, Memory, Trace
from tests.core.rules.test_host_findings import NODE, finding, launching, loop
from tests.support.comm_programs import PLANTED, play
from tests.support.helpers import MS, US, Host, Op, make_trace

STEPS = [Host(f"ProfilerStep#{number}", number * 10 * MS, (number + 1) * 10 * MS) for number in range(6)]


def steps(*ops: Op, host: tuple[Host, ...] = (), notes: tuple[Host, ...] = ()) -> Trace:
    """Six steps of 10 ms, each with the given ops and events."""

    def later(event: Host, by: int) -> Host:
        return event._replace(start=event.start + by, end=event.end + by)

    starts = [number * 10 * MS for number in range(6)]
    return make_trace(
        [
            op._replace(
                start=op.start + at, end=op.end + at, launch=op.launch and (op.launch[0] + at, op.launch[1] + at)
            )
            for at in starts
            for op in ops
        ],
        cpu_ops=[later(event, at) for at in starts for event in host],
        annotations=[*STEPS, *(later(note, at) for at in starts for note in notes)],
    )


def copy(kind: Kind, start: int, end: int, at: int, **rest: object) -> Op:
    sides = {"source": Memory.PINNED} if kind == Kind.H2D else {"source": Memory.DEVICE, "target": Memory.PINNED}
    return Op(kind, start, end, 7, (at, at + 5 * US), "cudaMemcpyAsync", size=1 << 20, **sides | rest)  # type: ignore[arg-type]


def named(trace: Trace, *names: str) -> Trace:
    """Return a trace in which host events of these names stand, too."""
    more = [Host(name, 0, 10) for name in names]
    return replace(trace, names=(*trace.names, *(event.name for event in more)))


def test_compiled_code_is_not_to_be_compiled() -> None:
    trace = named(launching("aten::_foreach_mul_", "Shampoo"), "Torch-Compiled Region: 0/0")
    advice = finding(trace, "dispatch").advice
    assert advice.startswith('Launch less often: compile with mode="reduce-overhead".\n')
    assert "torch.compile" not in advice
    assert "torch.compile" in finding(loop(Host("train", 1, 2)), "python").advice
    assert "torch.compile" not in finding(named(loop(), "triton_poi_fused_add_0"), "python").advice


def test_launches_outside_graphs_are_counted_and_no_graph_is_advised() -> None:
    trace = launching("aten::mul_", "Shampoo")
    calls = trace.runtime_calls
    graph = len(trace.names)
    graphs = replace(calls, names=(*trace.names, "cudaGraphLaunch"), name_id=calls.name_id.copy())
    graphs.name_id[::10] = graph
    found = finding(replace(trace, names=graphs.names, runtime_calls=graphs), "dispatch")
    assert "), 90 of 100 launches a step outside the CUDA graphs" in found.title
    assert "mode=" not in found.advice and "torch.cuda.graph" not in found.advice


def test_gradients_that_are_filled_with_zeros_are_to_be_dropped() -> None:
    trace = launching("aten::zero_", "SGD")
    names = tuple(name.replace("Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad") for name in trace.names)
    tables = {part: replace(getattr(trace, part), names=names) for part in ("annotations", "cpu_ops", "runtime_calls")}
    found = finding(replace(trace, names=names, **tables), "dispatch")
    assert "60 of 100 launches a step come from SGD.zero_grad()" in found.title
    assert found.advice.startswith("Call zero_grad(set_to_none=True)")


def test_data_parallel_is_to_become_distributed() -> None:
    trace = named(launching("aten::mul_"), "DataParallel.forward")
    assert finding(trace, "dispatch").advice.startswith("Use DistributedDataParallel instead of DataParallel")
    python = loop(Host("train", 1, 2))
    assert finding(named(python, "Broadcast", "Gather"), "python").advice.startswith("Use DistributedDataParallel")
    assert "Distributed" not in finding(named(python, "Gather"), "python").advice


COMPUTE = Op(Kind.COMPUTE, 0, 6 * MS, launch=(-20 * US, -10 * US))


@pytest.mark.parametrize(
    ("framework", "advice"),
    [
        ("pytorch", "Download on a stream of its own, after an event, and read the data one step later."),
        ("cuda", "Give downloads (D2H) a separate stream."),
        ("jax", "Start downloads early: call x.copy_to_host_async() right after computing x."),
    ],
)
def test_a_download_is_not_told_to_be_issued_ahead_of_its_use(framework: Framework, advice: str) -> None:
    trace = replace(steps(COMPUTE, copy(Kind.D2H, 6 * MS, 9 * MS, -5 * US)), framework=framework)
    assert finding(trace, "same-stream").advice.partition("\n")[0] == advice


def test_an_upload_is_to_be_issued_ahead_of_its_use() -> None:
    advice = finding(
        steps(copy(Kind.H2D, 0, 3 * MS, -30 * US), COMPUTE._replace(start=3 * MS, end=9 * MS)), "same-stream"
    )
    assert "one step ahead of their use" in advice.advice and "downloads" not in advice.advice


@pytest.mark.parametrize(
    ("memory", "rule", "advice"),
    [
        (Memory.PINNED, "same-stream", "Save less on the host: "),
        (Memory.PAGEABLE, "pageable-memory", "Pass pin_memory=True to save_on_cpu."),
    ],
)
def test_saved_tensors_are_not_told_to_be_prefetched(memory: Memory, rule: str, advice: str) -> None:
    host = (
        Host("aten::linear", -100 * US, -20 * US),
        Host("aten::copy_", -90 * US, -30 * US),
        Host(NODE, 100 * US, 200 * US),
        Host("aten::copy_", 120 * US, 180 * US),
    )
    trace = steps(
        COMPUTE._replace(end=4 * MS, launch=(-120 * US, -110 * US)),
        copy(Kind.D2H, 4 * MS, 6 * MS, -60 * US, target=memory),
        copy(Kind.H2D, 6 * MS, 8 * MS, 150 * US, source=memory),
        COMPUTE._replace(start=8 * MS, end=9 * MS, launch=(190 * US, 195 * US)),
        host=host,
    )
    found = finding(trace, rule)
    assert found.advice.startswith(advice)
    assert "step ahead" not in found.advice and "DataLoader" not in found.advice


def exposed(*names: str) -> Finding:
    """Return the finding on a collective that runs alone in a program with the given names."""
    launch = (-9 * MS, -9 * MS + 5 * US)
    comm = Op(Kind.COMM, 6 * MS, 9 * MS, 30, launch, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")
    trace = steps(COMPUTE._replace(launch=launch), comm, host=(Host("aten::mm", -9 * MS - 9, -9 * MS + 9),))
    return finding(named(trace, *names), "exposed-comm")


def test_only_programs_with_ddp_or_fsdp_are_told_their_options() -> None:
    for word in ("DDP", "FSDP", "no_sync"):
        assert word not in exposed().advice
    ddp = exposed("DistributedDataParallel.forward").advice
    assert "DDP: " in ddp and "FSDP" not in ddp


def test_a_collective_that_nothing_hides_may_be_prefetched_or_wait_for_a_late_rank() -> None:
    """The trace of one rank doesn't show whether it waited."""
    found = finding(play(PLANTED[CommCause.NO_COMPUTE]).trace, "exposed-comm")
    assert found.title.endswith("no-compute")
    assert "Compare the ranks first" in found.advice and "FSDP: prefetch further ahead" in found.advice


def test_a_loader_with_workers_is_told_how_many_more_keep_up() -> None:
    next_ = Host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 5 * MS, 9900 * US)
    found = finding(steps(COMPUTE._replace(end=5 * MS), notes=(next_,)), "data-loading")
    assert "About 2.0 times as many workers would keep up, if each has a CPU." in found.detail
    assert found.advice.startswith("Use more DataLoader workers (num_workers)")


def test_a_report_says_once_how_to_get_lines_of_code() -> None:
    trace = launching("aten::mul_")
    report = build([analyze_trace(trace)])
    note = findings_note(report.traces, report.findings)
    assert "No line of code was recorded: `overlapscope run --stacks` shows it" in note
    frames = make_trace(python_frames=[Host("train.py(1): step", 0, 10)]).python_frames
    stacks = build([analyze_trace(replace(trace, flags={"with_stack": True}, python_frames=frames))])
    assert "line" not in findings_note(stacks.traces, stacks.findings)
    assert not any("--stacks" in found.detail for found in find_all([analyze_trace(trace)]))
