"""Findings about the host: lines of samples, and what makes the launches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import ValidationError
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.analysis import analyze_trace
from overlapscope.analysis.results import SampledStep
from overlapscope.base.saved import MAX_FIGURE, decode, encode
from overlapscope.catalog.causes import IDLE, IdleCause
from overlapscope.report.model import build, from_json
from overlapscope.report.page import Page
from overlapscope.report.verdict import Verdict, judge
from overlapscope.rules.finding import Finding
from overlapscope.rules.findings import find_all
from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame, SystemFacts, ThreadStates
from overlapscope.trace.model import Kind, Trace
from tests.core.analysis.test_host_sampled import STEP, program
from tests.support.helpers import MS, US, Host, Op, make_trace

NODE = "autograd::engine::evaluate_function: AddmmBackward0"
LOADER = "/lib/python3.11/site-packages/torch/utils/data/dataloader.py"


def activity(*stacks: tuple[list[tuple[str, int, str]], int], thread: int = 1) -> HostActivity:
    frames = [StackFrame(*frame) for stack, _ in stacks for frame in stack]
    numbered, first = list[SampledStack](), 0
    for stack, samples in stacks:
        numbered.append(SampledStack(thread, tuple(range(first, first + len(stack))), samples, samples))
        first += len(stack)
    return HostActivity(thread=1, steps=10, span_ns=10 * STEP, frames=tuple(frames), stacks=tuple(numbered))


def finding(trace: Trace, rule: str) -> Finding:
    return next(found for found in find_all([analyze_trace(trace)]) if found.rule == rule)


def test_python_is_found_at_the_line_with_the_most_samples_and_the_function_it_calls() -> None:
    sampled = activity(
        (
            [("/app/train.py", 212, "step"), ("/lib/site-packages/torch/nn/utils/clip_grad.py", 9, "clip_grad_norm_")],
            60,
        ),
        ([("/app/train.py", 118, "get_batch")], 30),
        ([("/app/train.py", 300, "step"), ("/lib/site-packages/torch/autograd/graph.py", 8, "_engine_run")], 10),
    )
    found = finding(replace(program(), host_activity=sampled), "python")
    assert "while the host runs Python between launches, most in clip_grad_norm_ (train.py:212)" in found.title
    assert "6.00 ms in clip_grad_norm_ (train.py:212) and 3.00 ms in train.py:118" in found.detail
    assert "train.py:300" not in found.detail, "a backward pass runs in C++"
    assert found.where is not None and found.where.line == "train.py:212 in step"


def test_a_line_is_not_named_after_a_function_that_few_of_its_samples_are_in() -> None:
    line, queue = ("/app/train.py", 69, "step"), ("/lib/python3.12/queue.py", 165, "Queue.get")
    found = finding(replace(program(), host_activity=activity(([line], 34), ([line, queue], 1))), "python")
    assert "between launches, most in train.py:69 (" in found.title


def test_a_thread_that_sleeps_between_launches_is_not_said_to_run_python() -> None:
    waiting = activity(([("/app/train.py", 68, "next_batch"), ("/lib/python3.12/queue.py", 171, "Queue.get")], 60))
    asleep = replace(waiting, stacks=tuple(replace(stack, running=9) for stack in waiting.stacks))
    found, running = (finding(replace(program(), host_activity=each), "python") for each in (asleep, waiting))
    assert "while the host sleeps or waits between launches, most in Queue.get (train.py:68)" in found.title
    assert found.advice.startswith("Wait elsewhere") and running.advice.startswith("Run less Python")


def test_without_samples_a_finding_names_ranges() -> None:
    marks = [Host(f"ProfilerStep#{n}", n * STEP - 200 * US, (n + 1) * STEP - 200 * US) for n in range(5)]
    sparse = [Host("sparse arch", n * STEP + 4 * MS, n * STEP + 9 * MS) for n in range(5)]
    detail = finding(program(*marks, *sparse), "python").detail
    assert detail.endswith(" By range, per step: 5.00 ms sparse arch.")


def test_collections_that_the_program_calls_have_their_line_and_advice_of_their_own() -> None:
    starts = range(0, 3 * STEP, STEP)
    ops = [Op(Kind.COMPUTE, at, at + MS, launch=(at - 20 * US, at - 10 * US)) for at in starts]
    shown = [Host("aten::mm", at - 25 * US, at - 5 * US) for at in starts]
    names = "serve.py(12): deliver", "<built-in function collect>"
    frames = [Host(name, at + 4 * MS, at + 9 * MS) for at in starts for name in names]
    found = finding(make_trace(ops, cpu_ops=shown, python_frames=frames), "gc-pause")
    assert found.where is not None and found.where.line == "serve.py:12 in deliver"
    assert "The program calls gc.collect()." in found.detail and "not at all" in found.advice


def test_a_wait_for_the_lock_names_the_other_thread_and_its_line() -> None:
    other = activity(([("/app/train.py", 50, "step")], 10), ([("/app/stats.py", 29, "count")], 90))
    stacks = (other.stacks[0], replace(other.stacks[1], thread=7))
    sampled = replace(other, stacks=stacks, states=ThreadStates(running=1, gil_wait=1))
    trace = replace(program(), host_activity=sampled, thread_names={7: "Thread-1 (count)"})
    assert "Thread Thread-1 (count) ran most, at stats.py:29." in finding(trace, "gil-wait").detail


def test_loading_is_divided_by_kind_of_work() -> None:
    next_ = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    ops = [Op(Kind.COMPUTE, at, at + MS, launch=(at - 20 * US, at - 10 * US)) for at in range(0, 3 * STEP, STEP)]
    loads = [Host(next_, at + MS, at + STEP - 100 * US) for at in range(0, 2 * STEP, STEP)]
    marks = [Host(f"ProfilerStep#{n}", n * STEP - 50 * US, (n + 1) * STEP - 50 * US) for n in range(3)]
    shown = [Host("aten::mm", op.start - 25 * US, op.start - 5 * US) for op in ops]
    inside = [("/app/train.py", 9, "<module>"), (LOADER, 700, "__next__")]
    sampled = activity(
        ([*inside, ("/app/data.py", 38, "__getitem__")], 60),
        ([*inside, (LOADER.replace("dataloader", "_utils/collate"), 5, "default_collate")], 30),
        ([("/app/train.py", 12, "<module>")], 10),
    )
    trace = replace(make_trace(ops, annotations=[*marks, *loads], cpu_ops=shown), host_activity=sampled)
    found = finding(trace, "data-loading")
    assert "Of the loading, making samples takes 6.00 ms and collation takes 3.00 ms a step." in found.detail
    assert "most in data.py:38" in found.title
    # A batch takes 8.9 ms to make, and the GPU 1 ms.
    assert "DataLoader(num_workers=9), or one for each CPU if there are fewer.\n" in found.advice
    assert "pin_memory" not in found.advice, "no copy of pageable memory was recorded"
    few = replace(sampled, facts=SystemFacts(usable_cpus=6, quota_cpus=4.5))
    assert "num_workers=4).\n" in finding(replace(trace, host_activity=few), "data-loading").advice


@pytest.mark.parametrize(
    ("first", "second", "advised"),
    [
        ("Single", "Multi", "num_workers=5"),
        ("Multi", "Single", "as many workers"),
        ("StatefulSingle", "Multi", "num_workers=5"),
    ],
)
def test_advice_on_workers_fits_the_loader_that_takes_most_time(first: str, second: str, advised: str) -> None:
    names = [f"enumerate(DataLoader)#_{kind}ProcessDataLoaderIter.__next__" for kind in (first, second)]
    ops = [Op(Kind.COMPUTE, at, at + MS, launch=(at - 20 * US, at - 10 * US)) for at in range(0, 3 * STEP, STEP)]
    loads = [
        Host(names[place], place * STEP + MS, (place + 1) * STEP - 100 * US - place * 5 * MS) for place in range(2)
    ]
    marks = [Host(f"ProfilerStep#{n}", n * STEP - 50 * US, (n + 1) * STEP - 50 * US) for n in range(3)]
    found = finding(make_trace(ops, annotations=[*marks, *loads]), "data-loading")
    assert advised in found.advice + found.detail
    assert ("The loader has no workers" in found.detail) == ("num" in advised)


@pytest.mark.parametrize(("cpus", "step_us"), [(None, 1100), (1, 8900), (4, 2225), (8, 1113), (9, 1100)])
def test_workers_load_no_faster_than_the_cpus_allow(cpus: int | None, step_us: int) -> None:
    """Batches of 8.9 ms, and 1.1 ms of other work."""
    next_ = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    starts = range(0, 8 * STEP, STEP)
    ops = [Op(Kind.COMPUTE, at, at + US, launch=(at - 20 * US, at - 10 * US)) for at in starts]
    loads = [Host(next_, at + MS, at + STEP - 100 * US) for at in starts]
    marks = [Host(f"ProfilerStep#{n}", n * STEP - 50 * US, (n + 1) * STEP - 50 * US) for n in range(8)]
    trace = replace(
        make_trace(ops, annotations=[*marks, *loads]),
        host_activity=replace(activity(), facts=SystemFacts(usable_cpus=cpus)),
    )
    step = ov.whatif(trace, ["faster-loader"], plain_step_ns=STEP).predicted_step_ns
    assert step is not None and step.value == pytest.approx(step_us * US, rel=0.02)
    assert step.high >= 8900 * US and step.low <= 1.02 * 1100 * US


@pytest.mark.parametrize("own_ms", [10, 80])
def test_other_processes_are_named_if_they_took_the_cpu(own_ms: int) -> None:
    waited = SystemFacts(
        steps=10,
        span_ns=10 * STEP,
        run_queue_ns=50 * MS,
        other_threads_cpu_ns=own_ms * MS,
        usable_cpus=2,
        torch_threads=8,
    )
    found = finding(replace(program(), host_activity=replace(activity(), facts=waited)), "preempted")
    others = "Meanwhile, other processes ran more than the program's other threads did." in found.detail
    own = "torch has 8 threads for 2 CPUs" in found.advice
    assert (others, own) == ((True, False) if own_ms == 10 else (False, True))


def launching(optimizer_ops: str, optimizer: str = "AdamW") -> Trace:
    """Steps of 60 launches by an optimizer, 30 by the backward pass and 10 by the forward pass."""
    ops, cpu_ops, notes = [], [], []
    now = 0
    for number in range(4):
        begin = now
        for name, count, thread in (("aten::linear", 10, 1), (NODE, 30, 2), (optimizer_ops, 60, 1)):
            start = now
            for _ in range(count):
                ops.append(
                    Op(Kind.COMPUTE, now + 9 * US, now + 10 * US, launch=(now + 2 * US, now + 5 * US), thread=thread)
                )
                cpu_ops.append(Host(name, now + US, now + 6 * US, thread))
                now += 10 * US
            if name == optimizer_ops:
                notes.append(Host(f"Optimizer.step#{optimizer}.step", start, now))
            if name == "aten::linear":
                notes.append(Host("forward", start, now))
        notes.append(Host(f"ProfilerStep#{number}", begin, now))
    return make_trace(ops, cpu_ops=cpu_ops, annotations=notes)


def test_launches_are_counted_by_what_makes_them() -> None:
    found = finding(launching("aten::mul_"), "dispatch")
    who = "60 of 100 launches a step come from AdamW.step(), which isn't fused, and 30 from the backward pass"
    assert found.title.endswith(f"): {who}")
    assert found.advice.startswith("Pass fused=True to AdamW.\n")
    assert found.saving is not None and found.saving.fix == ("fused",)


def test_launches_name_the_line_with_the_most_samples() -> None:
    torch = "/lib/site-packages/torch/"
    sampled = activity(
        ([("/app/train.py", 27, "<module>"), (f"{torch}optim/adamw.py", 9, "_single_tensor_adamw")], 80),
        ([("/app/train.py", 25, "<module>"), (f"{torch}autograd/graph.py", 8, "_engine_run_backward")], 20),
    )
    found = finding(replace(launching("aten::mul_"), host_activity=sampled), "dispatch")
    assert "while the host launches, most in _single_tensor_adamw (train.py:27)" in found.title
    assert found.where is not None and found.where.line == "train.py:27 in <module>"


def test_an_optimizer_that_is_fused_gets_no_advice_to_fuse_it() -> None:
    fused = finding(launching("aten::_fused_adamw_"), "dispatch")
    assert "fused" not in fused.title + fused.advice
    assert "which uses foreach and isn't fused" in finding(launching("aten::_foreach_mul_"), "dispatch").title


def test_an_optimizer_that_cannot_be_fused_gets_no_advice_to_fuse_it() -> None:
    found = finding(launching("aten::mul_", "Shampoo"), "dispatch")
    assert "60 of 100 launches a step come from Shampoo.step() and 30" in found.title
    assert "fused" not in found.title + found.advice


def test_a_fused_optimizer_saves_no_more_than_samples_show_in_its_updates() -> None:
    """Steps of 1 ms, 0.6 of which are launches of the optimizer in the recording."""
    optimizer = [("/lib/torch/optim/adam.py", 9, "Adam.step"), ("/lib/torch/optim/adam.py", 5, "_single_tensor_adam")]
    others = [("/app/train.py", 4, "forward")]
    grouping = [optimizer[0], ("/lib/torch/optim/adam.py", 7, "Adam._init_group")]
    gains = []
    for updates in (80, 30):
        samples = activity((optimizer, updates), (grouping, 10), (others, 90 - updates))
        trace = replace(launching("aten::add_"), host_activity=replace(samples, steps=100, span_ns=100 * MS))
        gain = ov.whatif(trace, ["fused"], plain_step_ns=MS).gain_ns
        assert gain is not None
        gains.append(gain)
    assert gains[0].value > 550 * US
    assert gains[1].value == pytest.approx(300 * US, rel=0.1)
    assert gains[1].low < 260 * US and gains[1].high > 340 * US


def test_a_range_around_every_launch_is_not_named() -> None:
    ops = [Op(Kind.COMPUTE, at, at + US, launch=(at - 20 * US, at - 10 * US)) for at in range(0, 5 * MS, 100 * US)]
    cpu_ops = [Host("aten::mul", op.start - 80 * US, op.start - 5 * US) for op in ops]
    whole, half = Host("whole run", -MS, 6 * MS), Host("half", -MS, 2 * MS)
    assert "whole run" not in finding(make_trace(ops, cpu_ops=cpu_ops, annotations=[whole]), "dispatch").title
    assert "come from half" in finding(make_trace(ops, cpu_ops=cpu_ops, annotations=[half]), "dispatch").title


def test_only_a_program_with_an_optimizer_is_advised_on_it() -> None:
    ops = [Op(Kind.COMPUTE, at, at + US, launch=(at - 20 * US, at - 10 * US)) for at in range(0, 5 * MS, 100 * US)]
    cpu_ops = [Host("aten::mul", op.start - 50 * US, op.start - 5 * US) for op in ops]
    forward = make_trace(ops, cpu_ops=cpu_ops)
    training = make_trace(ops, cpu_ops=cpu_ops, annotations=[Host("Optimizer.step#SGD.step", 0, MS)])
    for rule in ("dispatch", "python"):
        assert "fused" not in finding(forward, rule).advice
        assert "SGD" in finding(training, rule).advice
    assert "fused" not in finding(make_trace(ops), "dispatch").advice


# -- places of host time --------------------------------------------------------------------------


def loop(
    *host: Host, calls: Sequence[Host] = (), frames: Sequence[Host] = (), launch: str = "cudaLaunchKernel"
) -> Trace:
    """Ten kernels of 1 ms, 10 ms apart, launched in `aten::mm`; host events stand in each of the gaps between them.

    The gap begins at 1 ms, and the launch call takes the 50 us before 10 ms.
    """
    ops, cpu_ops, called, shown = list[Op](), list[Host](), list[Host](), list[Host]()
    for begin in range(0, 100 * MS, 10 * MS):
        ops.append(Op(Kind.COMPUTE, begin, begin + MS, launch=(begin - 50 * US, begin), call=launch))
        cpu_ops.append(Host("aten::mm", begin - 100 * US, begin + 10 * US))
        for events, at in ((host, cpu_ops), (calls, called), (frames, shown)):
            at += [Host(name, begin + start, begin + end, thread) for name, start, end, thread in events]
    return make_trace(ops, cpu_ops=cpu_ops, calls=called, python_frames=shown)


def test_a_long_piece_is_of_the_lines_that_take_its_time_not_of_the_line_at_its_beginning() -> None:
    frames = [
        Host("train.py(1): main", 0, 10 * MS),
        Host("data.py(3): tokenize", 1 * MS, 2 * MS),
        Host("data.py(9): resize", 2 * MS, 8 * MS),
        Host("torch/functional.py(2): zoom", 3 * MS, 7 * MS),
    ]
    found = finding(loop(frames=frames), "python")
    assert found.where is not None and found.where.line == "data.py:9 in resize"
    assert "By place: 54.0 ms (9 times) at data.py:9 in resize" in found.detail
    assert "9.00 ms (9 times) at data.py:3 in tokenize" in found.detail
    assert "In 9 idle gaps the launching thread was in Python" in found.detail


def test_a_gap_counts_once_however_many_activities_it_is_cut_into() -> None:
    noise = [Host("aten::add", at, at + 150 * US) for at in range(2 * MS, 9 * MS, MS)]
    assert "In 9 idle gaps the launching thread was in Python" in finding(loop(*noise), "python").detail
    assert "In 9 idle gaps the launching thread was inside ops" in finding(loop(*noise), "cpu-ops").detail


def test_dispatch_is_named_by_the_op_it_is_in_and_a_call_that_the_op_makes() -> None:
    host = [
        Host("aten::zeros", 2 * MS, 9 * MS),
        Host("aten::empty", 2 * MS, 2 * MS + 50 * US),
        Host("aten::zero_", 3 * MS, 4 * MS),
    ]
    calls = [Host("cudaFuncGetAttributes", 3 * MS, 3 * MS + 20 * US), Host("cudaMemsetAsync", 8 * MS, 8 * MS + US)]
    detail = finding(loop(*host, calls=calls), "dispatch").detail
    assert "By place: 53.5 ms (9 times) cudaMemsetAsync in aten::zeros" in detail
    assert "9.00 ms (9 times) cudaFuncGetAttributes in aten::zero_" in detail
    assert "in aten::empty" not in detail


@pytest.mark.parametrize(("launches", "is_slow"), [(1, True), (10, False)])
def test_an_op_that_takes_milliseconds_for_a_launch_does_something_else_besides(launches: int, is_slow: bool) -> None:
    ops, host, at = [Op(Kind.COMPUTE, 0, MS)], list[Host](), MS
    for _ in range(10):
        host.append(Host("aten::_cudnn_attention_forward", at, at + 5 * MS))
        starts = range(at + 5 * MS - launches * 100 * US, at + 5 * MS, 100 * US)
        ops += [Op(Kind.COMPUTE, each + 20 * US, each + 30 * US, launch=(each, each + 10 * US)) for each in starts]
        at += 6 * MS
    found = finding(make_trace(ops, cpu_ops=host), "dispatch")
    assert ("in 10 calls of aten::_cudnn_attention_forward" in found.title) == is_slow
    assert found.advice.startswith("Find out what aten::_cudnn_attention_forward does") == is_slow


def test_ops_that_read_the_same_are_one_place() -> None:
    host = [Host("aten::item", 2 * MS, 4 * MS), Host("aten::_local_scalar_dense", 5 * MS, 7 * MS)]
    calls = [Host("cudaStreamSynchronize", 2 * MS, 3 * MS), Host("cudaStreamSynchronize", 5 * MS, 6 * MS)]
    found = finding(loop(*host, calls=calls), "host-sync")
    assert "By place: 18.0 ms (18 times) cudaStreamSynchronize in .item()." in found.detail


def test_time_outside_ops_is_not_left_out_of_the_places_of_loading() -> None:
    next_ = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    trace = loop(Host("aten::stack", 2 * MS, 4 * MS))
    loads = [Host(next_, at + MS, at + 9 * MS) for at in range(0, 100 * MS, 10 * MS)]
    trace = replace(trace, annotations=make_trace(annotations=loads).annotations)
    found = finding(trace, "data-loading")
    assert "By place: 54.0 ms (9 times) where no op was recorded; 18.0 ms (9 times) aten::stack." in found.detail
    assert found.where is None or found.where.op is None, "a quarter of the time is not the place"


def test_the_engine_is_the_place_of_time_between_nodes() -> None:
    nodes = [Host(NODE, at, at + 50 * US) for at in range(2 * MS, 9 * MS, 200 * US)]
    detail = finding(loop(*nodes), "dispatch").detail
    assert "By place: 45.9 ms (9 times) between nodes of the backward pass; 15.8 ms (9 times) AddmmBackward0" in detail


# -- programs without a GPU -----------------------------------------------------------------------


def judge_trace(trace: Trace) -> Verdict:
    [section] = Page(build([analyze_trace(trace)])).sections()
    return judge(section)


def test_a_program_without_a_gpu_gets_its_lines_and_waits() -> None:
    marks = [Host(f"ProfilerStep#{n}", n * STEP, (n + 1) * STEP) for n in range(3)]
    cpu_ops = [Host("aten::mm", n * STEP + MS, n * STEP + 2 * MS) for n in range(3)]
    sampled = replace(
        activity(([("/app/train.py", 9, "step"), ("/lib/site-packages/x/y.py", 1, "parse")], 75), ([], 25)),
        states=ThreadStates(running=90, gil_wait=10),
        facts=SystemFacts(steps=10, span_ns=10 * STEP, run_queue_ns=20 * MS, gc_pause_ns=5 * MS),
    )
    trace = replace(make_trace(cpu_ops=cpu_ops, annotations=marks), host_activity=sampled)
    sampled_step = analyze_trace(trace).result.sampled
    assert sampled_step is not None
    lines = [(line.line, line.calls, line.time_ns) for line in sampled_step.lines]
    assert lines == [("train.py:9", "parse", 7500 * US)]
    assert sampled_step.by_cause == {"gil-wait": MS, "preempted": 2 * MS, "gc-pause": 500 * US}
    verdict = judge_trace(trace)
    assert verdict.lead == (
        "A step takes 10.0 ms: 55.0% elsewhere, such as in Python, 20.0% waiting for a CPU, 10.0% in ops, 10.0% "
        "waiting for Python's lock, which another thread holds and 5.0% in Python's garbage collector."
    )
    assert verdict.remedy.endswith("Start with parse (train.py:9): a step can become at most 7.50 ms shorter.")


def test_the_costliest_function_comes_before_a_shorter_wait_however_many_lines_it_has() -> None:
    marks = [Host(f"ProfilerStep#{n}", n * STEP, (n + 1) * STEP) for n in range(3)]
    sampled = replace(
        activity(
            *(([("/app/train.py", line, "tokenize")], 16) for line in (7, 8, 9)), ([("/app/train.py", 3, "f")], 17)
        ),
        facts=SystemFacts(steps=10, span_ns=10 * STEP, gc_pause_ns=20 * MS),
    )
    trace = make_trace(cpu_ops=[Host("aten::mm", MS, 2 * MS)], annotations=marks)
    verdict = judge_trace(replace(trace, host_activity=sampled))
    start = "Start with tokenize (mostly train.py:7): a step can become at most 7.38 ms shorter."
    assert verdict.remedy == f"Next: {IDLE[IdleCause.GC_PAUSE].words.remedy} {start}"
    assert verdict.level == "poor"


def test_lines_of_a_script_are_no_function_to_start_with() -> None:
    marks = [Host(f"ProfilerStep#{n}", n * STEP, (n + 1) * STEP) for n in range(3)]
    of_script = (([("/app/train.py", line, "<module>")], 20) for line in (7, 8))
    sampled = activity(*of_script, ([("/app/train.py", 3, "parse")], 30), ([], 30))
    trace = make_trace(cpu_ops=[Host("aten::mm", MS, 2 * MS)], annotations=marks)
    verdict = judge_trace(replace(trace, host_activity=sampled))
    assert verdict.remedy == "Next: Start with parse (train.py:3): a step can become at most 3.00 ms shorter."


def test_a_file_states_no_unknown_causes_and_no_impossible_times() -> None:
    """Anyone may have changed a report."""
    step = SampledStep(step_ns=10 * MS, by_cause={"file-io": MS, "swapped-out": 2 * MS})
    marks = [Host(f"ProfilerStep#{n}", n * STEP, (n + 1) * STEP) for n in range(3)]
    report = build([analyze_trace(make_trace(cpu_ops=[Host("aten::mm", 0, 3 * STEP - MS)], annotations=marks))])
    [section] = Page(from_json(encode(report))).sections()
    assert section.host_parts == {"ops": 9_666_667, "python": 333_333}
    with pytest.raises(ValidationError, match="Expected causes"):
        from_json(encode(report).replace(b'"python"', b'"swapped-out"'))
    with pytest.raises(ValidationError, match="parts that add up to the step"):
        from_json(encode(report).replace(b"333333", b"333334"))
    for impossible_ns in (-MS, 2 * MAX_FIGURE):
        with pytest.raises(ValidationError):
            decode(encode(replace(step, by_cause={"gil-wait": impossible_ns})), SampledStep)
