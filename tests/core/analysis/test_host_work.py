"""Activity of launching threads: against a reference that looks at each nanosecond, and on minimal made-up traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.host_work import LONG_OP_NS, Launcher, gc_pauses
from overlapscope.analysis.periods import names_of
from overlapscope.base.intervals import Intervals
from overlapscope.base.marks import GC_PAUSE
from overlapscope.trace import op_names
from overlapscope.trace.model import Kind, Trace
from tests.support.helpers import MS, US, Host, Op, make_trace

MAIN, ENGINE = 1, 2
NODE = "autograd::engine::evaluate_function: MulBackward0"
PYTHON_NODE = "autograd::engine::evaluate_function: MyFunctionBackward"
NAMES = ("aten::mul", "aten::view", "CheckpointFunction", NODE, "MulBackward0", "mylib::tokenize", "c10d::allreduce_")
LAUNCH = "cudaLaunchKernel"


# -- reference ------------------------------------------------------------------------------------


def inside(events: Iterable[Host], t: int) -> list[Host]:
    """The events around an instant, outermost first. They are nested."""
    return sorted((e for e in events if e.start <= t < e.end), key=lambda e: (e.start, -e.end))


class Reference:
    """What a thread does at an instant, from the definitions, without intervals."""

    def __init__(self, ops: list[Host], calls: list[Host], thread: int, driver: int) -> None:
        self.ops = [op for op in ops if op.thread == thread]
        self.calls = [call for call in calls if call.thread == thread]
        self.others = [e for e in (*ops, *calls) if e.thread == driver != thread]

    def silent(self, op: Host) -> bool:
        return not any(op.start <= call.start < op.end for call in self.calls)

    def children(self, op: Host) -> list[Host]:
        rows = sorted(self.ops, key=lambda e: (e.start, -e.end))
        return [other for other in rows[rows.index(op) + 1 :] if other.start < op.end]

    def python_function(self, op: Host) -> bool:
        plain = "::" not in op.name and not (op.name.endswith("Backward0"))
        return plain and bool(self.children(op))

    def busy(self, t: int) -> bool:
        return bool(inside(self.ops, t) or inside(self.calls, t))

    def computes(self, op: Host) -> bool:
        return "::" in op.name and not op.name.startswith(("autograd::", "c10d::")) and op.name != "aten::view"

    def is_view(self, op: Host) -> bool:
        return op.name == "aten::view" and self.silent(op) and not any(map(self.computes, self.children(op)))

    def makes_views(self, op: Host) -> bool:
        views = [o for o in (op, *self.children(op)) if self.is_view(o)]
        mostly = 2 * sum(bool(inside(views, t)) for t in range(op.start, op.end)) > op.end - op.start
        return self.is_view(op) or (mostly and self.computes(op))

    def on_cpu(self, t: int) -> bool:
        for depth, op in enumerate(stack := inside(self.ops, t)):
            if not self.silent(op):
                continue
            if self.makes_views(op):
                continue
            if op.end - op.start >= LONG_OP_NS and not self.python_function(op):
                return True
            computes = self.computes(op)
            above = [o for o in stack[:depth] if not self.python_function(o) and not op_names.is_engine(o.name)]
            if computes and all(self.silent(other) for other in above):
                return True
        return False

    def dispatching(self, t: int) -> bool:
        if inside(self.calls, t):
            return True
        if stack := inside(self.ops, t):
            return not self.python_function(stack[-1])
        before = [op for op in self.ops if op.end <= t]
        after = [op for op in self.ops if op.start > t]
        if not before or not after:
            return False
        last, following = max(op.end for op in before), min(op.start for op in after)
        # The outermost ops at both ends of the pause.
        outer = max((op for op in before if op.end == last), key=lambda op: op.end - op.start)
        then = max((op for op in after if op.start == following), key=lambda op: op.end - op.start)
        nodes = op_names.is_engine(outer.name) and op_names.is_engine(then.name)
        return nodes and not any(last <= other.start < following for other in self.others)


@st.composite
def nested(draw: st.DrawFn, thread: int, names: tuple[str, ...]) -> list[Host]:
    """Events of a thread that lie in one another or apart, of different starts and ends."""
    now, open_events, done = draw(st.integers(0, 5)), list[tuple[str, int]](), list[Host]()
    for name in draw(st.lists(st.none() | st.sampled_from(names), max_size=14)):
        now += draw(st.integers(1, 6))
        if name is not None:
            open_events.append((name, now))
        elif open_events:
            opened, start = open_events.pop()
            done.append(Host(opened, start, now, thread))
    while open_events:
        now += draw(st.integers(1, 6))
        opened, start = open_events.pop()
        done.append(Host(opened, start, now, thread))
    return done


def calls_in(ops: list[Host], thread: int) -> st.SearchStrategy[list[Host]]:
    """Short calls of a thread, none across the edge of an op."""
    edges = {edge for op in ops if op.thread == thread for edge in (op.start, op.end)}
    free = [t for t in range(100) if t + 1 not in edges]
    return st.lists(st.sampled_from(free), max_size=6, unique=True).map(
        lambda starts: [Host(LAUNCH, t, t + 1, thread) for t in starts]
    )


def instants(of: Intervals) -> set[int]:
    return {t for start, end in zip(*of, strict=True) for t in range(start, end)}


def check(launcher: Launcher, expected: dict[str, Callable[[int], bool]]) -> None:
    for name, at in expected.items():
        pausing = name == "pause"
        when = launcher.inside(gc_pauses(launcher.trace)) if pausing else getattr(launcher, name)
        assert instants(when) == {t for t in range(-5, 150) if at(t)}, name


@given(st.data())
def test_every_nanosecond_of_a_thread_against_the_definitions(data: st.DataObject) -> None:
    ops = [op for thread in (MAIN, ENGINE) for op in data.draw(nested(thread, NAMES))]
    main_calls, engine_calls = (data.draw(calls_in(ops, thread)) for thread in (MAIN, ENGINE))
    pauses = [Host(f"{GC_PAUSE}2", start, start + 3, thread) for start, thread in data.draw(_PAUSES)]
    calls = [*main_calls, *engine_calls]
    gpu = [
        Op(Kind.COMPUTE, call.end + 1, call.end + 3, launch=(call.start, call.end), thread=call.thread)
        for call in calls
    ]
    trace = make_trace(gpu, cpu_ops=ops, annotations=pauses)
    threads = {op.thread for op in ops if op_names.is_engine(op.name)}
    launching = {call.thread for call in calls}
    # A thread that runs a backward pass drives it only where no other thread launches.
    driver = max(
        launching - threads or launching,
        key=lambda thread: (sum(c.thread == thread for c in calls), -thread),
        default=-1,
    )
    own, other = (Reference(ops, calls, thread, driver) for thread in (ENGINE, MAIN))

    def paused(thread: int) -> Callable[[int], bool]:
        return lambda t: bool(inside([p for p in pauses if p.thread == thread], t))

    check(
        Launcher(trace, ENGINE, ENGINE),
        {
            "pause": paused(ENGINE),
            "pauses_elsewhere": lambda t: bool(inside(pauses, t)) and not own.busy(t),
            "cpu_ops": own.on_cpu,
            "dispatch": own.dispatching,
        },
    )
    check(
        Launcher(trace, ENGINE, MAIN),
        {
            "pause": lambda t: paused(ENGINE)(t) or (paused(MAIN)(t) and not own.busy(t)),
            "pauses_elsewhere": lambda t: bool(inside(pauses, t)) and not own.busy(t) and not other.busy(t),
            "cpu_ops": lambda t: own.on_cpu(t) or (other.on_cpu(t) and not own.busy(t)),
            "dispatch": lambda t: own.dispatching(t) or (other.dispatching(t) and not own.busy(t)),
        },
    )


_PAUSES = st.lists(st.tuples(st.integers(0, 60), st.sampled_from((MAIN, ENGINE, 3))), max_size=3)


# -- causes of idle time --------------------------------------------------------------------------


def idle_of(trace: Trace) -> dict[str, int]:
    (device,) = analyze_trace(trace).result.devices
    return {cause: ns for cause, ns in device.idle_by_cause.items() if ns}


def after_a_gap(*cpu_ops: Host, thread: int = MAIN, **tables: Any) -> dict[str, int]:
    """Causes of a gap of 10 ms on a device that ends with a launch of 10 us by the thread."""
    ops = [
        Op(Kind.COMPUTE, 0, MS, launch=(-20 * US, -10 * US), thread=MAIN),
        Op(Kind.COMPUTE, 11 * MS, 12 * MS, launch=(11 * MS - 10 * US, 11 * MS), thread=thread),
    ]
    # An op on the thread shows that its ops were recorded.
    shown = Host("aten::mm", -25 * US, -5 * US)
    return idle_of(make_trace(ops, cpu_ops=[shown, *cpu_ops], **tables))


def test_time_outside_ops_is_python_and_time_inside_ops_that_launch_is_dispatch() -> None:
    gap = after_a_gap(Host("aten::addmm", 10 * MS, 11 * MS + 5 * US))
    assert gap == {"python": 9 * MS, "dispatch": MS}


def test_short_gaps_hold_python_too() -> None:
    """A gap of 30 us from op to op: what counts is what the host was inside, not how fast launches follow."""
    ops = [Op(Kind.COMPUTE, at, at + 20 * US, launch=(at - 10 * US, at - 5 * US)) for at in range(0, 500 * US, 50 * US)]
    cpu_ops = [Host("aten::mul", at - 12 * US, at - 4 * US) for at in range(0, 500 * US, 50 * US)]
    gap = idle_of(make_trace(ops, cpu_ops=cpu_ops))
    # Of each gap of 30 us, op and launch call take 7 us until the call returns, and the latency moves all by 5 us.
    assert gap == {"python": 9 * 23 * US, "dispatch": 9 * 7 * US}


def test_views_and_allocations_are_dispatch_and_arithmetic_is_work_on_the_cpu() -> None:
    gap = after_a_gap(
        Host("aten::view", 2 * MS, 2 * MS + 50 * US),
        Host("aten::empty", 3 * MS, 3 * MS + 50 * US),
        Host("aten::add_", 4 * MS, 4 * MS + 50 * US),
    )
    assert (gap["dispatch"], gap["cpu-ops"]) == (110 * US, 50 * US)


def test_an_op_without_launches_inside_one_that_launches_is_dispatch_unless_it_is_long() -> None:
    outer = Host("aten::mm", 10 * MS, 11 * MS + 5 * US)
    assert "cpu-ops" not in after_a_gap(outer, Host("aten::add", 10 * MS + US, 10 * MS + 51 * US))
    assert after_a_gap(outer, Host("aten::add", 10 * MS + US, 10 * MS + 201 * US))["cpu-ops"] == 200 * US


@pytest.mark.parametrize("pause", [200 * US, 201 * US])
def test_the_engine_between_nodes_of_a_backward_pass_is_dispatch_and_a_long_pause_is_python(pause: int) -> None:
    nodes = [Host(NODE, 2 * MS, 10 * MS - pause, ENGINE), Host(NODE, 10 * MS, 11 * MS + 5 * US, ENGINE)]
    launches = [Host("cudaEventRecord", 2 * MS + US, 2 * MS + 2 * US, ENGINE)]
    gap = after_a_gap(*nodes, thread=ENGINE, calls=launches)
    long = pause if pause > 200 * US else 0
    assert gap == {"python": MS + long, "dispatch": 9 * MS - long}


def test_an_op_that_mostly_makes_views_is_dispatch_however_long_it_takes() -> None:
    views = [Host("aten::slice", at, at + 40 * US) for at in range(2 * MS, 6 * MS, 50 * US)]
    assert after_a_gap(Host("aten::unflatten_dense_tensors", 2 * MS, 6 * MS), *views)["dispatch"] == 4 * MS + 10 * US
    assert after_a_gap(Host("aten::view", 2 * MS, 6 * MS))["dispatch"] == 4 * MS + 10 * US
    assert after_a_gap(Host("aten::empty", 2 * MS, 6 * MS))["cpu-ops"] == 4 * MS, "it clears pages"
    few = views[: len(views) // 2]
    assert after_a_gap(Host("mylib::tokenize", 2 * MS, 6 * MS), *few)["cpu-ops"] == 4 * MS


def test_the_forward_pass_between_two_backward_passes_is_not_the_engines() -> None:
    nodes = [Host(NODE, 2 * MS, 10 * MS - 100 * US, ENGINE), Host(NODE, 10 * MS, 11 * MS + 5 * US, ENGINE)]
    launches = [Host("cudaEventRecord", 2 * MS + US, 2 * MS + 2 * US, ENGINE)]
    forward = Host("aten::view", 10 * MS - 50 * US, 10 * MS - 40 * US)
    gap = after_a_gap(*nodes, forward, thread=ENGINE, calls=launches)
    assert gap == {"python": MS + 90 * US, "dispatch": 9 * MS - 90 * US}


def test_a_python_function_in_the_backward_pass_is_python() -> None:
    node = Host(PYTHON_NODE, 2 * MS, 11 * MS + 5 * US, ENGINE)
    function = Host("MyFunctionBackward", 3 * MS, 11 * MS + 4 * US, ENGINE)
    launching = Host("aten::mm", 10 * MS, 11 * MS + 3 * US, ENGINE)
    gap = after_a_gap(node, function, launching, thread=ENGINE)
    assert gap == {"python": 8 * MS, "dispatch": 2 * MS}


def test_a_hook_whose_frames_were_recorded_is_python() -> None:
    node = Host(NODE, 2 * MS, 11 * MS + 5 * US, ENGINE)
    hook = Host("train.py(12): hook", 3 * MS, 9 * MS, ENGINE)
    assert after_a_gap(node, thread=ENGINE, python_frames=[hook]) == {"python": 7 * MS, "dispatch": 3 * MS}


@pytest.mark.parametrize("table", ["annotations", "cpu_ops"])
def test_a_collection_is_a_cause_of_its_own_and_no_range(table: str) -> None:
    pause = Host(f"{GC_PAUSE}2", 2 * MS, 7 * MS)
    gap = after_a_gap(pause) if table == "cpu_ops" else after_a_gap(annotations=[pause])
    assert gap["gc-pause"] == 5 * MS
    trace = make_trace([Op(Kind.COMPUTE, 0, MS, launch=(0, 1))], annotations=[pause, Host("forward", 0, 1)])
    assert names_of(trace.annotations) == ([], ["forward"])
    [device] = analyze_trace(trace).result.devices
    assert [period.name for period in device.ranges] == ["forward"]


def test_a_recorded_call_of_gc_collect_is_a_collection_unless_the_recorder_notes_all() -> None:
    frames = [Host("serve.py(12): deliver", MS, 9 * MS), Host("<built-in function collect>", 2 * MS, 7 * MS)]
    assert after_a_gap(python_frames=frames)["gc-pause"] == 5 * MS
    noted = Host(f"{GC_PAUSE}2", 3 * MS, 6 * MS)
    assert after_a_gap(annotations=[noted], python_frames=frames)["gc-pause"] == 3 * MS


def test_a_collection_on_another_thread_stops_python_and_not_what_runs_in_c() -> None:
    pause = Host(f"{GC_PAUSE}2", 9 * MS, 11 * MS, thread=3)
    gap = after_a_gap(Host("aten::mm", 10 * MS, 11 * MS + 5 * US), annotations=[pause])
    assert gap == {"python": 8 * MS, "gc-pause": MS, "dispatch": MS}


def test_without_recorded_ops_launches_that_follow_closely_are_dispatch() -> None:
    ops = [Op(Kind.COMPUTE, at, at + 20 * US, launch=(at - 10 * US, at - 5 * US)) for at in (0, 100 * US, 2 * MS)]
    assert idle_of(make_trace(ops)) == {"not-recorded": 1880 * US - 5 * US, "dispatch": 85 * US}
    assert idle_of(make_trace(ops, framework="cuda")) == idle_of(make_trace(ops))
    # The op of another thread shows nothing of this one, and a frame shows that it ran Python.
    assert idle_of(make_trace(ops, cpu_ops=[Host("aten::mm", 0, 2 * MS, thread=9)])) == idle_of(make_trace(ops))
    frame = Host("train.py(12): load", 500 * US, 1000 * US)
    assert idle_of(make_trace(ops, python_frames=[frame])) == {
        "not-recorded": 1380 * US - 5 * US,
        "python": 500 * US,
        "dispatch": 85 * US,
    }


@pytest.mark.parametrize(
    ("name", "works"),
    [
        ("aten::add_", True),
        ("aten::_foreach_add_", True),
        ("mylib::tokenize", True),
        ("aten::t", False),
        ("aten::view", False),
        ("aten::empty_strided", False),
        ("aten::is_nonzero", False),
        ("aten::tanh", True),
        ("aten::topk", True),
        ("c10d::allreduce_", False),
        ("torch::autograd::AccumulateGrad", False),
        ("CheckpointFunction", False),
    ],
)
def test_ops_that_compute_are_told_from_those_that_arrange(name: str, works: bool) -> None:
    assert op_names.works(name) is works


def test_calls_of_the_system_do_not_show_that_the_rest_is_python() -> None:
    """Nsight Systems records system calls by default, which says nothing of the time between them."""
    ops = [Op(Kind.COMPUTE, at, at + 20 * US, launch=(at - 10 * US, at - 5 * US)) for at in (0, 2 * MS)]
    read = Host("read", 500 * US, 550 * US)
    gap = idle_of(make_trace(ops, cpu_ops=[read], recorder="nsys"))
    assert set(gap) == {"not-recorded", "dispatch"} and gap["not-recorded"] > 1900 * US
    assert "python" in idle_of(make_trace(ops, cpu_ops=[read, Host("aten::mm", 0, 10 * US)], recorder="nsys"))
