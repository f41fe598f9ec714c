"""The host's activity in a trace is read as it was written, and nothing impossible is read."""

from __future__ import annotations

import copy
import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.export import chrome_trace
from overlapscope.reading._metadata import recorded_fields
from overlapscope.recorder.sampling.host_sampler import host_stacks
from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame, SystemFacts, ThreadStates
from tests.support.helpers import TRACES

ACTIVITY = HostActivity(
    thread=41,
    steps=20,
    span_ns=2_000_000_000,
    interval_ns=10_000_000,
    sampler="py-spy 0.4.3",
    frames=(StackFrame("/home/me/train.py", 12, "<module>"), StackFrame("/home/me/train.py", 3, "batch")),
    stacks=(SampledStack(41, (0, 1), 150, 120), SampledStack(42, (0,), 200, 0), SampledStack(41, (), 3, 3)),
    states=ThreadStates(running=400, gil_wait=50, file_io=30, other_wait=20),
    files={"/home/me/log.txt": 29},
    facts=SystemFacts(
        steps=10,
        span_ns=1_000_000_000,
        run_queue_ns=5_000_000,
        throttled_ns=1_000_000,
        involuntary_switches=12,
        kernel_ns=1_000_000,
        other_threads_cpu_ns=3_000_000_000,
        major_faults=0,
        gc_pause_ns=70_000_000,
        gc_collections=3,
        usable_cpus=4,
        quota_cpus=2.5,
        torch_threads=8,
    ),
)
NOTED: dict[str, Any] = json.loads(msgspec.json.encode(ACTIVITY))


def read(noted: Any) -> HostActivity:
    activity: HostActivity = recorded_fields({"overlapscope": {"host_activity": noted}})["host_activity"]
    return activity


@pytest.mark.parametrize("facts", [ACTIVITY.facts, SystemFacts()])
def test_a_trace_is_read_back_with_it(facts: SystemFacts, tmp_path: Path) -> None:
    trace = ov.load(TRACES / "known_causes" / "healthy_prefetch.json.gz")
    activity = replace(ACTIVITY, facts=facts)
    path = tmp_path / "again.json.gz"
    path.write_bytes(b"".join(chrome_trace.blocks(replace(trace, host_activity=activity), packed=True)))
    assert ov.load(path).host_activity == activity
    assert not trace.host_activity


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"steps": 1 << 40},
        {"span_ns": 0},
        {"span_ns": -5},
        {"thread": "41"},
        {"thread": 0},
        {"interval_ns": 0},
        {"interval_ns": 1 << 60},
        {"frames": []},
        {"frames": [["a", 1]]},
        {"stacks": [[41, [2], 5, 5]]},
        {"stacks": [[41, [-1], 5, 5]]},
        {"stacks": [[41, [0], 5, 6]]},
        {"stacks": [[41, [0], 0, 0]]},
        {"stacks": [[41, [0], 5.5, 5]]},
        {"stacks": [[41, [0] * 1001, 5, 5]]},
        {"stacks": [[41, [0], 1, 1]] * 10_001},
        {"stacks": [[41, [0], (1 << 31) - 1, 1]] * 2},
        {"states": {"running": -1}},
        {"files": {"/log": 31}},
        {"files": {"/log": 0}},
        {"facts": {"steps": 10, "span_ns": 100, "run_queue_ns": 101}},
        {"facts": {"steps": 10, "span_ns": 100, "kernel_ns": 101}},
        {"facts": {"steps": 10, "span_ns": 100, "run_queue_ns": 50, "throttled_ns": 51}},
        {"facts": {"steps": 10, "span_ns": 100, "throttled_ns": 101}},
        {"facts": {"steps": 10, "span_ns": 100, "gc_pause_ns": 101}},
        {"facts": {"run_queue_ns": 1}},
        {"facts": {"other_threads_cpu_ns": -1}},
        {"facts": {"steps": 1}},
        {"facts": {"usable_cpus": 0}},
        {"facts": {"quota_cpus": 1e300}},
        {"facts": []},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_nothing_is_read_of_one_with_an_impossible_number(change: dict[str, Any]) -> None:
    assert read(NOTED) == ACTIVITY
    assert not read(NOTED | change)


@pytest.mark.parametrize("torn", [["__cached__", 3_384_164_493, "f"], ["a", -1, "f"], ["a" * 5000, 1, "f"]])
def test_samples_with_an_impossible_frame_are_left_out(torn: list[Any]) -> None:
    """As py-spy returns them, since it doesn't stop the program while it reads its stacks."""
    frames, stacks = NOTED["frames"], NOTED["stacks"]
    assert read(NOTED | {"frames": [*frames, torn], "stacks": [*stacks, [41, [2, 0], 1, 0]]}) == replace(
        ACTIVITY, frames=(*ACTIVITY.frames, StackFrame("", 0, ""))
    )
    all_torn = read(NOTED | {"frames": [torn], "stacks": [[41, [0], 5, 5]]})
    assert (all_torn.stacks, all_torn.interval_ns, all_torn.states) == ((), 0, ACTIVITY.states)


WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-3, 300), max_size=4),
    st.dictionaries(st.text(max_size=5), st.integers(-3, 300), max_size=3),
)


def slots(value: Any) -> list[tuple[Any, Any]]:
    """Return each place in nested lists and objects, as the list or object and the index or key."""
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    nested = [value[key] for key in keys if isinstance(value[key], dict | list)]
    return [(value, key) for key in keys] + [place for inner in nested for place in slots(inner)]


@given(st.lists(st.tuples(st.integers(0, 1 << 20), WRONG), min_size=1, max_size=4))
def test_a_damaged_one_is_read_as_possible_numbers_or_not_at_all(damage: list[tuple[int, Any]]) -> None:
    noted = copy.deepcopy(NOTED)
    for number, wrong in damage:
        if places := slots(noted):
            holder, key = places[number % len(places)]
            holder[key] = wrong
    activity = read(noted)
    if not activity:
        return
    assert activity.steps > 0 and activity.span_ns > 0 <= activity.interval_ns
    for stack in activity.stacks:
        assert 0 <= stack.running <= stack.samples > 0
        assert all(0 <= frame < len(activity.frames) for frame in stack.frames)
    states, facts = activity.states, activity.facts
    assert min(states.running, states.gil_wait, states.file_io, states.other_wait) >= 0
    assert sum(activity.files.values()) <= states.file_io
    assert 0 <= (facts.throttled_ns or 0) <= (facts.span_ns if facts.run_queue_ns is None else facts.run_queue_ns)
    assert all(0 <= (ns or 0) <= facts.span_ns for ns in (facts.run_queue_ns, facts.gc_pause_ns, facts.kernel_ns))
    assert facts.quota_cpus is None or (math.isfinite(facts.quota_cpus) and facts.quota_cpus > 0)


@given(WRONG)
def test_anything_else_in_its_place_is_nothing(wrong: Any) -> None:
    assert not read(wrong)
    assert recorded_fields({"overlapscope": wrong})["host_activity"] == HostActivity()


# -- Stacks that are kept ---------------------------------------------------------------------------


def frame(line: int, function: str = "f", file: str = "/train.py") -> list[Any]:
    return [file, line, function]


def test_samples_of_running_threads_are_found_by_line_then_by_function() -> None:
    every = [[1, [frame(1), frame(2)], 4], [1, [frame(1), frame(3)], 4], [2, [frame(9, "wait")], 8]]
    running = [[1, [frame(1), frame(2)], 3], [1, [frame(1), frame(7)], 3], [3, [frame(1)], 5]]
    frames, stacks = host_stacks(every, running)
    shown = {(stack.thread, frames[stack.frames[-1]].line): (stack.samples, stack.running) for stack in stacks}
    # Line 7 was not seen otherwise: its samples count for the other lines of its function.
    assert shown[2, 9] == (8, 0)
    assert shown[1, 2][0] == shown[1, 3][0] == 4
    assert shown[1, 2][1] + shown[1, 3][1] == 6 and shown[1, 2][1] >= 3


def test_generators_that_were_seen_without_their_callers_count_for_them() -> None:
    loop, other, generator = frame(1, "<module>"), frame(2, "other"), frame(3, "<genexpr>")
    every = [[1, [loop, generator], 5], [1, [loop, other, generator], 6], [1, [generator], 3], [2, [generator], 4]]
    frames, stacks = host_stacks(every, every)
    shown = [(stack.thread, [frames[n].line for n in stack.frames], stack.samples, stack.running) for stack in stacks]
    assert shown == [(1, [1, 2, 3], 9, 9), (1, [1, 3], 5, 5), (2, [3], 4, 4)]


def test_many_stacks_that_begin_differently_take_little_time() -> None:
    """As on autograd's thread, where each hook is outermost."""
    outer = [frame(line, "inner") for line in range(5)]
    every = [[1, [frame(1, "backward"), *outer, frame(line)], 2] for line in range(6000)]
    every += [[1, [frame(line, f"hook_{line}"), *outer, frame(line)], 1] for line in range(6000)]
    begin = time.process_time()
    _, stacks = host_stacks(every, [])
    assert time.process_time() - begin < 3
    assert sum(stack.samples for stack in stacks) == 18_000


def test_rare_stacks_of_a_thread_become_one_without_frames() -> None:
    every = [[1, [frame(line)], 2 if line <= 1000 else 1] for line in range(1, 4001)]
    frames, stacks = host_stacks(every, every)
    assert len(frames) == 2000
    (rest,) = [stack for stack in stacks if not stack.frames]
    assert (rest.thread, rest.samples, rest.running) == (1, 2000, 2000)
    assert sum(stack.samples for stack in stacks) == 5000


def test_long_names_and_deep_stacks_take_limited_space() -> None:
    deep = [frame(line, "f" * 1000) for line in range(1000)]
    frames, stacks = host_stacks([[1, deep, 5], [1, [frame(1)], 1]], [])
    assert max(len(stack.frames) for stack in stacks) <= 200
    assert len(msgspec.json.encode([frames, stacks])) < 500_000
    assert sum(stack.samples for stack in stacks) == 6


def test_the_recorder_s_own_frames_are_left_out() -> None:
    own = str(Path(ov.__file__).parent / "recorder")
    starts = [frame(1, "main", f"{own}/../commands/__init__.py"), frame(1, "_run", f"{own}/script.py")]
    wrapped = [*starts, frame(1), frame(2, "wrapped", f"{own}/step_sources.py"), frame(3, "step", "/torch.py")]
    marks = [*starts, frame(1), frame(2, "step", f"{own}/recording.py")]
    thread = [frame(1, "Thread.run", threading.__file__), frame(1, "poll", f"{own}/memory_guard.py")]
    frames, stacks = host_stacks([[1, wrapped, 3], [1, marks, 2], [2, thread, 9]], [])
    functions = [[frames[number].function for number in stack.frames] for stack in stacks]
    assert functions == [["f", "step"], ["f", "step"]]
