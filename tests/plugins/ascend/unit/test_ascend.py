"""Traces of Ascend NPUs from torch_npu's `trace_view.json`."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

import overlapscope as ov
from overlapscope.analysis import analyze_trace
from overlapscope.commands import main
from overlapscope.errors import UnreadableTrace
from overlapscope.export import annotated
from overlapscope.plugins.ascend import PLUGIN
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import reduce
from overlapscope.reading.files import HEAD_BYTES
from overlapscope.trace.model import Kind, Memory, Trace
from tests.support.trace_views import BASE_US, MAIN, QUEUE, TraceView

BASE_NS = BASE_US * 1000


def read(view: TraceView, tmp_path: Path, name: str = "trace_view.json") -> Trace:
    return ov.load(view.write(tmp_path / name), progress=False, cache=False)


def step(view: TraceView, number: int, start: float, dur: float) -> None:
    view.host("cpu_op", f"ProfilerStep#{number}", start, dur)


def names(trace: Trace) -> list[str]:
    return [trace.gpu_ops.name(row) for row in range(len(trace.gpu_ops))]


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_those_of_a_count_of_every_microsecond(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    view = TraceView()
    running: dict[str, set[int]] = {"compute": set(), "comm": set(), "copy": set()}
    for kind, stream in (("compute", 2), ("copy", 3), ("comm", 4)):
        at = 10
        for number in range(30):
            at, dur = at + chance.randrange(1, 40), chance.randrange(1, 30)
            connection = 1000 * stream + number
            if kind == "compute":
                view.kernel(at, dur, connection)
            elif kind == "comm":
                view.collective(at, dur, connection, f"hcom_allReduce__586_{number}_1")
            else:
                view.call("AscendCL@aclrtMemcpyAsync", at - 5, 3, connection)
                direction: dict[str, Any] = {"operation": "host to device", "size(B)": 64}
                view.task("MEMCPY_ASYNC", "PCIE_DMA_SQE", at, dur, stream, connection_id=connection, **direction)
            running[kind] |= set(range(at, at + dur))
            at += dur
            view.task("EVENT_WAIT", "EVENT_WAIT_SQE", at, 1, stream)
        view.sums("Computing", 10, 900)
    (device,) = ov.analyze(read(view, tmp_path)).devices
    compute, comm, copy = running["compute"], running["comm"], running["copy"]
    busy = compute | comm | copy
    assert device.buckets.compute_ns == 1000 * len(compute)
    assert device.buckets.exposed_comm_ns == 1000 * len(comm - compute)
    assert device.buckets.exposed_copy_ns == 1000 * len(copy - compute - comm)
    assert device.buckets.idle_ns == 1000 * (max(busy) + 1 - min(busy) - len(busy))
    assert device.overlap.copy_ns == 1000 * len(copy)


def test_waits_signals_and_sums_are_no_work(tmp_path: Path) -> None:
    view = TraceView()
    view.kernel(10, 5, 1)
    for kind in ("EVENT_WAIT_SQE", "EVENT_RECORD_SQE", "NOTIFY_WAIT_SQE", "Notify Record", "Write Value"):
        view.task(kind, kind, 20, 50)
    view.task("PROFILING_ENABLE", "PLACE_HOLDER_SQE", 0, 1)
    view.task("turn", "C_CORE_SQE", 20, 50)
    view.sums("Computing", 0, 100)
    assert names(read(view, tmp_path)) == ["aclnnMm_MatMulV2"]


@pytest.mark.parametrize("kind", ["AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV", "AI_CPU", "AIV_SQE", "DSA_SQE"])
def test_a_task_of_a_core_is_compute_whatever_its_name(tmp_path: Path, kind: str) -> None:
    view = TraceView()
    view.task("aclnnWaitForValue_Event", kind, 10, 5)
    ops = read(view, tmp_path).gpu_ops
    assert (ops.kind.tolist(), ops.stream.tolist()) == ([Kind.COMPUTE], [2])


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("host to device", Kind.H2D),
        ("device to host", Kind.D2H),
        ("host to device ex", Kind.H2D),
        ("device to device", Kind.OTHER),
        ("addr device to device", Kind.OTHER),
        ("other", Kind.OTHER),
    ],
)
def test_a_copy_has_the_direction_that_the_profiler_states(tmp_path: Path, operation: str, expected: Kind) -> None:
    view = TraceView()
    stated: dict[str, Any] = {"operation": operation, "size(B)": 4096}
    view.task("MEMCPY_ASYNC", "SDMA_SQE", 10, 5, **stated)
    trace = read(view, tmp_path)
    ops = trace.gpu_ops
    assert (ops.kind.tolist(), ops.bytes.tolist()) == ([expected], [4096])
    assert ops.source_kind.tolist() == ops.target_kind.tolist() == [Memory.UNKNOWN]
    doubts = {check.id for check in ov.analyze(trace).traces[0].trust.checks if check.status == "warn"}
    assert ("copy-directions" in doubts) == (operation == "other")


def test_a_copy_has_the_direction_of_the_task_that_made_it(tmp_path: Path) -> None:
    view = TraceView()
    for number, way in enumerate(("host_to_device", "device_to_host")):
        at = 100 * number
        view.host("dequeue", f"Dequeue@acl_memcpy_{way}", at, 20, QUEUE)
        view.call("AscendCL@aclrtMemcpyAsync", at + 5, 10, number + 1)
        view.task("MEMCPY_ASYNC", "PCIE_DMA_SQE", at + 30, 5, connection_id=number + 1)
    view.call("AscendCL@aclrtMemcpyAsync", 150, 10, 3)
    view.task("MEMCPY_ASYNC", "PCIE_DMA_SQE", 170, 5, connection_id=3)
    assert read(view, tmp_path).gpu_ops.kind.tolist() == [Kind.H2D, Kind.D2H, Kind.OTHER]


def test_a_task_of_an_unknown_type_is_work_that_may_be_a_copy(tmp_path: Path) -> None:
    view = TraceView()
    view.kernel(0, 5, 1)
    view.task("news", "NEW_ENGINE", 10, 5)
    trace = read(view, tmp_path)
    assert trace.gpu_ops.kind.tolist() == [Kind.COMPUTE, Kind.OTHER]
    assert "copy-directions" in {c.id for c in ov.analyze(trace).traces[0].trust.checks if c.status == "warn"}


@pytest.mark.parametrize("process", ["HCCL", "Communication"])
def test_a_collective_is_one_op_on_its_stream_with_what_is_known_of_it(tmp_path: Path, process: str) -> None:
    view = TraceView(communication=process)
    args: dict[str, Any] = {"data_type": "FP32", "count": 4_097_000, "rank_size": 8}
    view.collective(10, 60, 5, "hcom_allReduce__586_3_1", **args)
    view.task("hcom_allReduce_AicpuKernel", "AI_CPU", 12, 40, 6)
    view.collective(80, 10, 6, "hcom_allGather__1t2_0_1", group="10.1.2.3%eth_60000_0_1t2")
    trace = read(view, tmp_path)
    ops, stated = trace.gpu_ops, trace.collectives
    assert names(trace) == ["hcom_allReduce__586_3_1", "hcom_allGather__1t2_0_1"]
    assert (ops.kind.tolist(), ops.stream.tolist(), ops.launch.tolist()) == ([Kind.COMM] * 2, [4, 4], [0, 1])
    assert [stated.name(row) for row in (0, 1)] == ["allreduce", "allgather"]
    assert [trace.names[group] for group in stated.group.tolist()] == ["586", "10.1.2.3%eth_60000_0_1t2"]
    assert (stated.sequence.tolist(), stated.group_size.tolist()) == ([3, 0], [8, -1])
    # The file does not say which buffer of an all-gather has that many elements.
    assert stated.elements_in.tolist() == stated.elements_out.tolist() == [4_097_000, -1]
    assert trace.names[stated.dtype[0]] == "Float"


def test_launches_steps_and_devices(tmp_path: Path) -> None:
    view = TraceView(device=3)
    step(view, 50, 0, 100)
    view.host("cpu_op", "aten::mm", 5, 20)
    view.host("enqueue", "Enqueue", 10, 2)
    view.host("dequeue", "Dequeue@aclnnMm", 15, 40, QUEUE)
    view.call("AscendCL@aclnnMm", 16, 30, 8)
    view.call("AscendCL@aclnnMmGetWorkspaceSize", 17, 2, 7)
    view.call("Node@launch", 20, 5, 9)
    view.call("AscendCL@aclrtSynchronizeStream", 60, 30, 10, MAIN)
    view.task("aclnnMm_MatMulV2", "AI_CORE", 30.5, 12.25, connection_id=9)
    trace = read(view, tmp_path)
    ops, calls = trace.gpu_ops, trace.runtime_calls
    assert (trace.recorder, trace.framework, trace.device_names) == ("torch_npu", "pytorch", {3: "Ascend NPU"})
    assert (ops.start_ns.tolist(), ops.end_ns.tolist()) == ([BASE_NS + 30_500], [BASE_NS + 42_750])
    assert [calls.name(row) for row in range(len(calls))] == ["Enqueue", "Node@launch", "aclrtSynchronizeStream"]
    assert calls.name(int(ops.launch[0])) == "Node@launch" and calls.thread.tolist() == [MAIN, QUEUE, MAIN]
    assert [trace.annotations.name(row) for row in range(len(trace.annotations))] == ["ProfilerStep#50"]
    assert ov.analyze(trace).traces[0].environment.recorder == "torch_npu"


def test_time_in_which_the_queue_is_empty_is_what_the_program_does_then(tmp_path: Path) -> None:
    """The thread that launches only waits for tasks: an op on the CPU keeps the program from making them."""
    view = TraceView()
    for number in range(4):
        at = 1000 * number
        view.host("cpu_op", "aten::sort", at, 800)
        view.host("cpu_op", "aten::mm", at + 850, 20)
        view.host("enqueue", "Enqueue", at + 860, 5)
        view.host("dequeue", "Dequeue@aclnnMm", at + 870, 20, QUEUE)
        view.call("Node@launch", at + 875, 10, number + 1)
        view.task("aclnnMm_MatMulV2", "AI_CORE", at + 890, 50, connection_id=number + 1)
    (device,) = ov.analyze(read(view, tmp_path)).devices
    assert device.idle_by_cause["cpu-ops"] == pytest.approx(3 * 800_000, rel=0.02)


def test_a_blocking_copy_that_has_no_task_is_a_loss(tmp_path: Path) -> None:
    view = TraceView()
    view.kernel(10, 5, 1)
    view.call("AscendCL@aclrtMemcpy", 30, 5, 2, MAIN)
    checks = {check.id: check for check in ov.analyze(read(view, tmp_path)).traces[0].trust.checks}
    assert "aclrtMemcpy 1 time" in checks["dropped-ops"].detail and "copies" in (checks["dropped-ops"].lost or ())


def test_event_waits_were_rebuilt_and_their_check_says_so(tmp_path: Path) -> None:
    view = TraceView()
    view.kernel(10, 5, 1)
    view.call("AscendCL@aclrtRecordEvent", 12, 1, 2)
    view.call("AscendCL@aclrtStreamWaitEvent", 14, 1, 3)
    view.kernel(30, 5, 4, stream=3)
    checks = {check.id: check for check in ov.analyze(read(view, tmp_path)).traces[0].trust.checks}
    assert checks["sync-events"].status == "warn" and "torch_npu" in checks["sync-events"].detail


def test_the_rank_is_in_the_name_or_in_the_file_beside_the_directory(tmp_path: Path) -> None:
    view = TraceView()
    view.kernel(10, 5, 1)
    assert read(view, tmp_path, "rank3.trace_view.json").rank == 3
    (tmp_path / "profiler_info_5.json").write_text("{}")
    assert read(view, tmp_path, "ASCEND_PROFILER_OUTPUT/trace_view.json").rank == 5
    assert read(view, tmp_path, "elsewhere/trace_view.json").rank is None


def test_collectives_are_matched_between_ranks(tmp_path: Path) -> None:
    joined = []
    for rank in (0, 1):
        view = TraceView(device=rank)
        for number in range(3):
            at = 1000 * number
            step(view, number, at, 990)
            view.kernel(at + 100, 200 + 300 * rank, 100 + number)
            late = at + 310 + 300 * rank
            view.collective(late, at + 900 - late, 200 + number, f"hcom_allReduce__586_{number}_1")
        joined.append(reduce(read(view, tmp_path, f"rank{rank}.trace_view.json"))[0])
    report = report_on(joined)
    assert [row.rank for row in report.ranks] == [0, 1] and report.stragglers[0].rank == 1
    assert report.matching.matched == report.matching.kernels == 6


def test_commands_take_it_and_what_is_written_of_it_keeps_its_recorder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view = TraceView()
    for number in range(3):
        step(view, number, 100 * number, 99)
        view.kernel(100 * number + 10, 30, 10 + number)
        view.collective(100 * number + 50, 40, 20 + number, f"hcom_allReduce__586_{number}_1")
    path = view.write(tmp_path / "trace_view.json")
    assert main(["analyze", str(path)]) == 0
    assert "Ascend NPU" in capsys.readouterr().out
    first = ov.load(path)
    copy = tmp_path / "copy.json.gz"
    copy.write_bytes(b"".join(annotated.write(analyze_trace(first), path)))
    again = ov.load(copy)
    assert again.recorder == "torch_npu" and names(again) == names(first)
    assert again.gpu_ops.kind.tolist() == first.gpu_ops.kind.tolist()


def test_a_truncated_file_is_read_as_far_as_it_goes_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    view = TraceView()
    for number in range(20):
        view.kernel(10 + 20 * number, 5, number + 1)
    text = view.text()
    path = tmp_path / "trace_view.json"
    path.write_text(text[: text.rindex('"AI_CORE"')])
    trace = ov.load(path, progress=False, cache=False)
    assert trace.damage.truncated and trace.damage.lost_bytes > 0 and len(trace.gpu_ops) == 19
    path.write_text("[" + '{"ts": "1736408883000000.1"' * 3 + "]")
    with pytest.raises(UnreadableTrace, match="is damaged"):
        ov.load(path, progress=False, cache=False)


@pytest.mark.parametrize(
    ("valid", "written", "ops", "repaired"),
    [
        ('"dur": 7', '"dur": NaN', 19, 1),
        ('"size(B)": 7', '"size(B)": Infinity', 20, 1),
        ('"name": "odd"', '"name": "an "odd" name"', 20, 1),
        ('"name": "odd"', '"name": odd', 19, 0),
    ],
)
def test_an_event_that_is_not_json_is_repaired_or_lost_alone(
    tmp_path: Path, valid: str, written: str, ops: int, repaired: int
) -> None:
    view = TraceView()
    for number in range(19):
        view.kernel(10 + 20 * number, 5, number + 1)
    view.task("odd", "AI_CORE", 205, 7, **{"size(B)": 7})
    view.kernel(500, 5, 30)
    assert view.text().count(valid) == 1
    path = tmp_path / "trace_view.json"
    path.write_text(view.text().replace(valid, written))
    trace = ov.load(path, progress=False, cache=False)
    assert len(trace.gpu_ops) == ops + 1 and not trace.damage.truncated
    assert (trace.damage.repaired_events, trace.damage.lost_events) == (repaired, 1 - repaired)


def test_odd_values_lose_only_their_event(tmp_path: Path) -> None:
    view = TraceView()
    view.kernel(10, 5, 1)
    view.task("k", "AI_CORE", 20, 5, connection_id="N/A")
    view.task("k", "AI_CORE", 30, -5)
    view.task("k", "AI_CORE", 40, 5, connection_id={"not": 1})
    view.events[-1]["ts"] = "never"
    trace = read(view, tmp_path)
    assert len(trace.gpu_ops) == 2 and trace.damage.impossible_times == 2


def test_without_an_npu_the_report_names_the_option(tmp_path: Path) -> None:
    view = TraceView()
    step(view, 1, 0, 100)
    view.host("cpu_op", "aten::mm", 5, 20)
    (check,) = [c for c in ov.analyze(read(view, tmp_path)).traces[0].trust.checks if c.id == "gpu-activity"]
    assert check.status == "fail" and "ProfilerActivity.NPU" in check.detail


@pytest.mark.parametrize(
    "odd",
    [
        {"name": None},
        {"name": 5},
        {"pid": None},
        {"pid": 1.5},
        {"tid": [1]},
        {"ph": None},
        {"cat": None},
        {"args": []},
        {"args": "x"},
    ],
    ids=str,
)
def test_an_event_of_unexpected_types_is_lost_alone(tmp_path: Path, odd: dict[str, Any]) -> None:
    view = TraceView()
    view.kernel(10, 5, 1)
    view.kernel(20, 5, 2)
    view.events.insert(-1, view.events[-1] | odd)
    trace = read(view, tmp_path)
    assert len(trace.gpu_ops) == 2
    assert (trace.damage.lost_events, trace.damage.truncated) == (1, False) and trace.damage.lost_bytes > 0


def test_a_truncated_file_with_an_event_of_unexpected_types_is_read(tmp_path: Path) -> None:
    view = TraceView()
    for number in range(20):
        view.kernel(10 + 20 * number, 5, number + 1)
    view.events.insert(20, view.events[-1] | {"name": None})
    path = tmp_path / "trace_view.json"
    path.write_text(view.text()[:-40])
    trace = ov.load(path, progress=False, cache=False)
    # The event that was cut is lost too.
    assert len(trace.gpu_ops) == 19 and trace.damage.lost_events == 2 and trace.damage.truncated


def test_an_event_with_bytes_that_are_no_text_is_lost_alone(tmp_path: Path) -> None:
    view = TraceView()
    view.kernel(10, 5, 1)
    view.task("odd", "AI_CORE", 20, 5)
    path = tmp_path / "trace_view.json"
    path.write_bytes(view.text().encode().replace(b'"odd"', b'"\xff"'))
    trace = ov.load(path, progress=False, cache=False)
    assert len(trace.gpu_ops) == 1 and trace.damage.lost_events == 1


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["dense", "spaced"])
@pytest.mark.parametrize("device_first", [False, True])
def test_a_file_that_begins_with_many_names_is_recognised(
    tmp_path: Path, separators: tuple[str, str], device_first: bool
) -> None:
    view = TraceView()
    view.kernel(10, 5, 1)
    (program, *_), rest = view.events[:2], view.events[2:]
    threads = [
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": n, "args": {"name": f"Thread {n}"}} for n in range(900)
    ]
    events = [*rest[:4], *threads, *rest[4:]] if device_first else [program, *threads, *rest]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events, separators=separators))
    assert path.read_text().index('"ts"') > HEAD_BYTES
    trace = ov.load(path, progress=False, cache=False)
    assert (trace.recorder, len(trace.gpu_ops)) == ("torch_npu", 1)


def test_events_of_kineto_in_a_bare_array_are_not_taken_for_it() -> None:
    process = {"name": "process_name", "ph": "M", "ts": 1.5, "pid": 1, "tid": 0, "args": {"name": "Python"}}
    op = {"name": "CANN", "cat": "user_annotation", "ph": "X", "ts": 1.5, "dur": 2, "pid": 1, "tid": 1, "args": {}}
    assert not re.match(PLUGIN.sources[0].sign, json.dumps([process, op]).encode())


def test_time_to_read_a_type_of_task_is_proportional_to_its_length(tmp_path: Path) -> None:
    view = TraceView()
    view.kernel(10, 5, 1)
    view.task("k", "WAIT" * 25_000 + "!", 20, 5)
    # A time quadratic in this length takes a minute.
    began = time.perf_counter()
    assert names(read(view, tmp_path)) == ["aclnnMm_MatMulV2"]
    assert time.perf_counter() - began < 10


def test_groups_without_known_tasks_do_not_queue_behind_each_other(tmp_path: Path) -> None:
    view = TraceView()
    view.kernel(10, 5, 1, stream=1)
    for start, group in ((20, "a"), (30, "b"), (40, "a")):
        view.collective(start, 15, start, f"hcom_allReduce__586_{start}_1", group=group)
    view.events = [event for event in view.events if event["name"] not in ("SDMA", "Notify Wait")]
    streams = read(view, tmp_path).gpu_ops.stream.tolist()
    assert streams[1] == streams[3] and len({-1, *streams}) == 4
