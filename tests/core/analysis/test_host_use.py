"""Tests of where the time of a program without GPU activity goes, compared with a count of every nanosecond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.host_use import describe_host
from overlapscope.analysis.results import HostUse, host_parts
from overlapscope.commands import main
from overlapscope.export.chrome_trace import blocks
from overlapscope.reading import load
from overlapscope.trace.model import Trace
from tests.support.helpers import Host, Op, make_trace

NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WAIT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
SPANS = st.tuples(st.integers(0, 60), st.integers(1, 30))


def use(trace: Trace) -> HostUse:
    host_time = describe_host(trace)
    assert host_time is not None
    return host_time


def stepped(lengths: list[int]) -> list[Host]:
    steps, now = [], 0
    for number, length in enumerate(lengths):
        steps.append(Host(f"ProfilerStep#{number}", now, now + length))
        now += length
    return steps


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    loads=st.lists(SPANS, max_size=4),
    ops=st.lists(st.tuples(SPANS, st.sampled_from("abc"), st.integers(1, 2)), max_size=8),
)
def test_every_nanosecond_of_a_step_is_in_one_part(
    lengths: list[int], loads: list[tuple[int, int]], ops: list[tuple[tuple[int, int], str, int]]
) -> None:
    steps = stepped(lengths)
    loading = [Host(NEXT, start, start + length) for start, length in loads]
    events = [Host(name, start, start + length, thread) for (start, length), name, thread in ops]
    host_time = use(make_trace(cpu_ops=events, annotations=[*steps, *loading]))

    def inside(some: list[Host], ns: int, thread: int = 1) -> bool:
        return any(row.start <= ns < row.end for row in some if row.thread == thread)

    def working(step: Host) -> bool:
        return any(inside(events, ns) and not inside(loading, ns) for ns in range(step.start, step.end))

    *others, last = steps
    if any(map(working, others)) and not any(inside([*events, *loading], ns) for ns in range(last.start, last.end)):
        steps = others
    for step, shown in zip(steps, host_time.steps, strict=True):
        each, parts = range(step.start, step.end), host_parts(shown)
        assert shown.span_ns == sum(parts.values()) == len(each)
        assert parts["data-loading"] == sum(inside(loading, ns) for ns in each)
        assert parts["ops"] == sum(inside(events, ns) and not inside(loading, ns) for ns in each)
    steps = steps[host_time.per_step.first :]
    assert len(steps) == len(host_time.judged) == host_time.per_step.steps
    assert sum(op.time_ns for op in host_time.ops) == sum(host_parts(step)["ops"] for step in host_time.judged)
    # The op that began first, and is the longest of these, gets the time that it covers.
    judged = range(steps[0].start, steps[-1].end)
    order = sorted((event for event in events if event.thread == 1), key=lambda event: (event.start, -event.end))
    owners = [next((item.name for item in order if item.start <= ns < item.end), None) for ns in judged]
    mine = {op.op: op.time_ns for op in host_time.ops}
    for name in "abc":
        expected = sum(owner == name and not inside(loading, ns) for ns, owner in zip(judged, owners, strict=True))
        assert mine.get(name, 0) == expected
    busy = {thread.thread: thread.busy_ns for thread in host_time.threads}
    for thread in {event.thread for event in events}:
        assert busy[thread] == sum(inside(events, ns, thread) for ns in judged)


@pytest.mark.parametrize(
    ("names", "loader"),
    [
        ([NEXT], "own-thread"),
        # As torchdata's StatefulDataLoader names it.
        (["enumerate(DataLoader)#_StatefulSingleProcessDataLoaderIter.__next__"], "own-thread"),
        ([WAIT], "workers"),
        ([NEXT, WAIT], "workers"),
        ([WAIT, NEXT], "own-thread"),
        (["other"], "none"),
    ],
)
def test_who_makes_most_of_the_batches_is_reported(names: list[str], loader: str) -> None:
    loads = [Host(name, 3 + place, 4 + 3 * place) for place, name in enumerate(names)]
    trace = make_trace(cpu_ops=[Host("aten::mm", 1, 2)], annotations=[*stepped([10]), *loads])
    assert use(trace).loader == loader


def test_without_steps_the_whole_recording_is_looked_at() -> None:
    host_time = use(
        make_trace(cpu_ops=[Host("aten::mm", 10, 20), Host("aten::add", 30, 35), Host("x", 0, 90, thread=2)])
    )
    assert not host_time.by_steps
    assert [(step.span_ns, step.buckets.compute_ns) for step in host_time.steps] == [(90, 15)]


def test_warm_up_steps_are_left_out() -> None:
    trace = make_trace(cpu_ops=[Host("aten::mm", 1, 2)], annotations=stepped([50, 10, 10]), warm_up_steps=1)
    assert [step.name for step in use(trace).steps] == ["ProfilerStep#1", "ProfilerStep#2"]


def test_a_step_that_opens_after_the_last_iteration_is_left_out() -> None:
    trace = make_trace(cpu_ops=[Host("aten::mm", 1, 2), Host("aten::mm", 11, 12)], annotations=stepped([10, 10, 3]))
    assert [step.span_ns for step in use(trace).steps] == [10, 10]
    trace = make_trace(cpu_ops=[Host("aten::mm", 1, 2)], annotations=stepped([10, 10, 3]))
    assert [step.span_ns for step in use(trace).steps] == [10, 10]


def test_a_step_reaches_to_the_next_one_so_that_loading_between_marks_counts() -> None:
    marks = [Host(f"ProfilerStep#{number}", 40 * number, 40 * number + 10) for number in range(5)]
    loads = [Host(NEXT, 40 * number + 10, 40 * number + 40) for number in range(4)]
    ops = [Host("aten::mm", mark.start, mark.end) for mark in marks]
    host_time = use(make_trace(cpu_ops=ops, annotations=[*marks, *loads]))
    assert [step.span_ns for step in host_time.steps] == [40, 40, 40, 40, 10]
    # Nobody knows how long the last one goes on.
    assert (host_time.per_step.steps, host_time.per_step.span_ns) == (4, 40)
    assert host_time.per_step.idle_by_cause["data-loading"] == 30


def test_marks_that_begin_at_once_lose_no_time() -> None:
    marks = [Host("ProfilerStep#0", 0, 0), Host("ProfilerStep#1", 0, 100)]
    host_time = use(make_trace(cpu_ops=[Host("aten::mm", 10, 90)], annotations=marks))
    assert sum(step.span_ns for step in host_time.steps) == 100


def test_a_trace_with_gpu_activity_has_no_such_figures() -> None:
    trace = make_trace([Op(0, 0, 10)], cpu_ops=[Host("aten::mm", 1, 2)])  # type: ignore[arg-type]
    assert analyze_trace(trace).result.host is None
    assert describe_host(make_trace()) is None


# -- in commands

MS_US = 1000.0


def write(path: Path, *, loading_ms: float, rank: int | None = None, lose: str | None = None) -> str:
    """Eight steps of 10 ms: loading, 4 ms of ops, nothing."""
    events: list[dict[str, Any]] = []
    for step in range(8):
        at, jitter = 1.5 + step * 10 * MS_US, step % 3 / 10
        for category, name, start, length in (
            ("user_annotation", f"ProfilerStep#{step}", at, 10 * MS_US),
            ("user_annotation", NEXT, at + 10, loading_ms * MS_US + jitter),
            ("cpu_op", "aten::linear", at + 5 * MS_US, 4 * MS_US),
            ("cpu_op", "aten::addmm", at + 6 * MS_US, MS_US),
        ):
            event = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "pid": 1, "tid": 1}
            events.append(event | ({"dur": -1} if name == lose else {}))
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return str(path)


def test_analyze_says_where_the_time_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "cpu.json", loading_ms=2)
    for form in ("text", "markdown", "html"):
        assert main(["analyze", path, "--format", form]) == 0
        printed = " ".join(capsys.readouterr().out.replace("\\", "").split())
        assert (
            "A step takes 10.0 ms: 40.0% in ops, 40.0% elsewhere, such as in Python and 20.0% loading data." in printed
        )
        assert (
            "use num_workers" in printed
            and "aten::linear" in printed.replace("&#8203;", "")
            and "aten::addmm" not in printed
        )
    assert main(["analyze", path, "--format", "json"]) == 0
    [trace] = json.loads(capsys.readouterr().out)["traces"]
    assert [(item["op"], item["count"]) for item in trace["host"]["ops"]] == [("aten::linear", 8)]


@pytest.mark.parametrize(
    ("threads", "name"),
    [
        ({"1": "MainThread", "x": "y", "2": 3}, "the main thread"),
        ({"1": "Thread-1 (train)"}, "Thread-1 (train)"),
        (None, "thread 1"),
    ],
)
def test_the_thread_of_the_steps_is_named(
    threads: dict[str, object] | None, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(write(tmp_path / "cpu.json", loading_ms=2))
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "overlapscope": {"threads": threads}}))
    assert main(["analyze", str(path)]) == 0
    assert f"\nwhere a step goes, on {name} " in capsys.readouterr().out
    again = load(path)
    (tmp_path / "again.json").write_bytes(b"".join(blocks(again, packed=False)))
    assert load(tmp_path / "again.json").thread_names == again.thread_names


def test_only_whole_numbers_of_found_things_are_read(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "cpu.json", loading_ms=2))
    content = json.loads(path.read_text())
    for found, read in (({"hazards": 2, "a": -1, "b": "x", "c": True, "d": 1.5e99}, {"hazards": 2}), ([2], {})):
        path.write_text(json.dumps({**content, "overlapscope": {"found": found}}))
        assert load(path).found == read


@pytest.mark.parametrize(
    ("loading_ms", "what"),
    [
        (1, "lines take the time elsewhere."),
        (2, "Start with the ops: aten::linear takes 4.00 ms."),
        (7, "in Python. Next: The thr"),
    ],
)
def test_the_largest_part_decides_what_to_do_first(
    loading_ms: float, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", write(tmp_path / "cpu.json", loading_ms=loading_ms)]) == 0
    assert what in " ".join(capsys.readouterr().out.split())


def test_the_step_without_the_profiler_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(write(tmp_path / "cpu.json", loading_ms=2))
    side = {"host_ns": [8_000_000] * 5 + [9_000_000] * 5 + [30_000_000], "device_ns": []}
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "overlapscope": {"plain_steps": {"before": side, "after": side}}}))
    assert main(["analyze", str(path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "A step takes 10.5 ms: 40.0% in ops, 40.0% elsewhere, such as in Python and 20.0% loading data." in output
    assert (
        "Figures are of the program without the profiler: a step takes 10.5 ms (measured, 8.0 to 14.8 ms); in the "
        "recording a step takes 10.0 ms. The 8 judged steps of the recording take 10.0 ms each."
    ) in output


def test_a_recording_without_ops_does_not_blame_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(write(tmp_path / "light.json", loading_ms=2))
    content = json.loads(path.read_text())
    events = [event for event in content["traceEvents"] if event.get("cat") != "cpu_op"]
    path.write_text(json.dumps({**content, "traceEvents": events}))
    assert main(["analyze", str(path)]) == 0
    assert "80.0% in Python or ops, of which none was recorded and 20.0%" in " ".join(capsys.readouterr().out.split())


def test_recordings_without_a_gpu_are_compared_by_their_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write(tmp_path / f"loading{ms}.json", loading_ms=ms) for ms in (1, 3)]
    assert main(["analyze", *paths]) == 0
    title, first, second, *_ = capsys.readouterr().out.splitlines()
    assert title.split() == ["trace", "steps", "step", "ms", "loading", "ops", "elsewhere"]
    assert first.split() == ["loading1", "8", "10.00", "1.00", "4.00", "5.00"]
    assert second.split() == ["loading3", "8", "10.00", "3.00", "4.00", "3.00"]


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        ("host_step_time <= 11 ms", 0),
        ("p90 host_step_time <= 9 ms", 1),
        ("host_loading_pct <= 25%", 0),
        ("host_loading_pct <= 15%", 1),
        ("window host_step_time <= 11 ms", 3),
        ("step_time <= 11 ms", 3),
        ("idle_pct <= 100%", 3),
        ("efficiency_pct >= 0%", 3),
    ],
)
def test_check_holds_steps_and_loading_to_budgets(budget: str, code: int, tmp_path: Path) -> None:
    assert main(["check", write(tmp_path / "cpu.json", loading_ms=2), "--budget", budget]) == code


@pytest.mark.parametrize("lost", ["ProfilerStep#3", NEXT, "aten::linear"])
def test_what_was_lost_does_not_pass(lost: str, tmp_path: Path) -> None:
    path = write(tmp_path / "cpu.json", loading_ms=2, lose=lost)
    assert main(["check", path, "--budget", "host_step_time <= 1 s", "--budget", "host_loading_pct <= 99%"]) == 3


def test_a_program_that_used_a_gpu_is_held_to_none_of_them(tmp_path: Path) -> None:
    for path in ("traces/streamed1_pinned1.json.gz", "traces/laboratory/pin_cost/pinned_to.trace.json.gz"):
        assert main(["check", path, "--budget", "host_step_time <= 100 s"]) == 3
    content = json.loads(Path(write(tmp_path / "cpu.json", loading_ms=2)).read_text())
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 20.5, "dur": -3.0, "pid": 0, "tid": 7}
    launch = kernel | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 3.0}
    for remaining in (kernel, launch):
        (tmp_path / "lost.json").write_text(json.dumps(content | {"traceEvents": [*content["traceEvents"], remaining]}))
        assert main(["check", str(tmp_path / "lost.json"), "--budget", "host_step_time <= 100 s"]) == 3


def test_without_a_budget_only_loading_is_judged(tmp_path: Path) -> None:
    assert main(["check", write(tmp_path / "cpu.json", loading_ms=2)]) == 1
    assert main(["check", write(tmp_path / "cpu.json", loading_ms=1)]) == 3
