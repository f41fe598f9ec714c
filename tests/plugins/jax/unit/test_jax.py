"""Traces of `jax.profiler`: figures by brute force over the events that JAX itself writes as JSON, and files that are
made up, damaged, cut, or of other devices.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import overlapscope as ov
from overlapscope.base.saved import encode
from overlapscope.commands import main
from overlapscope.errors import UnreadableTrace
from overlapscope.plugins.jax import xplane
from overlapscope.prediction.predict import predict
from overlapscope.reading import find_traces, raw_events
from overlapscope.trace.model import Kind, Memory, Trace
from tests.support.helpers import TRACES, US
from tests.support.recordings import report_of, trace_of
from tests.support.xspace import Plane, xspace

LATE, PREFETCHED = (TRACES / "jax" / f"{name}.xplane.pb" for name in ("late", "prefetched"))
JSON = Path(__file__).parents[3] / "jax"
BOTH = pytest.mark.parametrize("recording", [LATE, PREFETCHED], ids=lambda path: path.name)

Event = dict[str, Any]


def events(recording: Path) -> list[Event]:
    """Return the complete events of the Chrome trace of the same recording."""
    text = gzip.decompress((JSON / f"{recording.name.removesuffix('.xplane.pb')}.trace.json.gz").read_bytes())
    return [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]


def at(event: Event) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def swept(spans: dict[str, list[tuple[int, int]]]) -> dict[frozenset[str], int]:
    """For how long exactly the named things ran at once, by a sweep over every instant at which anything changes."""
    changes = sorted(
        (when, name, step)
        for name, sides in spans.items()
        for side in sides
        for when, step in zip(side, (1, -1), strict=True)
    )
    running = dict.fromkeys(spans, 0)
    lengths: dict[frozenset[str], int] = {}
    for (when, name, step), following in zip(changes, [*changes[1:], changes[-1]], strict=True):
        running[name] += step
        now = frozenset(name for name, count in running.items() if count)
        lengths[now] = lengths.get(now, 0) + following[0] - when
    return lengths


# -- the two real recordings


@BOTH
def test_figures_are_those_of_a_sweep_over_the_events(recording: Path) -> None:
    device = report_of(recording).traces[0].devices[0]
    gpu = [event for event in events(recording) if event["pid"] == 1]
    copies = [at(event) for event in gpu if event["name"].startswith("Memcpy")]
    compute = [at(event) for event in gpu if not event["name"].startswith("Memcpy")]
    lengths = swept({"copy": copies, "compute": compute})
    both, alone = (
        lengths[frozenset({"copy", "compute"})] if recording == PREFETCHED else 0,
        lengths[frozenset({"copy"})],
    )
    assert device.buckets.exposed_copy_ns == alone
    assert device.overlap.copy_ns == alone + both
    assert device.overlap.hidden_copy_ns == both
    assert device.buckets.compute_ns == lengths[frozenset({"compute"})] + both
    assert device.buckets.idle_ns == lengths[frozenset()]
    assert round(device.overlap.hidden_copy_pct or 0, 1) == (0.0 if recording == LATE else 16.3)


@BOTH
def test_copies_have_the_sizes_memory_and_calls_that_the_recording_states(recording: Path) -> None:
    ops, calls = trace_of(recording).gpu_ops, trace_of(recording).runtime_calls
    everything = events(recording)
    copied = [event["args"] for event in everything if event["pid"] == 1 and event["name"] == "MemcpyH2D"]
    uploads = ops.take(ops.kind == Kind.H2D)
    assert uploads.bytes.tolist() == [int(args["memcpy_details"].split("size:")[1].split()[0]) for args in copied]
    assert {*uploads.source_kind.tolist()} == {Memory.PINNED} and {*uploads.target_kind.tolist()} == {Memory.DEVICE}
    by_correlation = {
        int(event["args"]["correlation_id"]): at(event)
        for event in everything
        if event["pid"] != 1 and int(event.get("args", {}).get("correlation_id", 0))
    }
    launched = zip(calls.start_ns[ops.launch], calls.end_ns[ops.launch], strict=True)
    base = trace_of(recording).base_ns
    assert [(start - base, end - base) for start, end in launched] == [
        by_correlation[correlation] for correlation in ops.correlation.tolist()
    ]


@BOTH
def test_idle_time_while_xla_stages_an_array_is_staging(recording: Path) -> None:
    """The gap ends one latency after the staging that it waited for, so both need not agree to the nanosecond."""
    device = report_of(recording).traces[0].devices[0]
    everything = events(recording)
    stages = [at(event) for event in everything if event["name"] == "H2D Dispatch"]
    window = device.window.start_ns - trace_of(recording).base_ns, device.window.end_ns - trace_of(recording).base_ns
    lengths = swept({"window": [window], "op": [at(e) for e in everything if e["pid"] == 1], "stage": stages})
    idle_staging = lengths[frozenset({"window", "stage"})]
    assert device.idle_by_cause["host-staging"] == pytest.approx(idle_staging, rel=0.03)
    assert device.idle_by_cause["host-staging"] > 0.85 * device.buckets.idle_ns


@BOTH
def test_copies_are_exposed_because_they_were_issued_late(recording: Path) -> None:
    """Each began within 50 us of its call, or no kernel ran between the two."""
    device = report_of(recording).traces[0].devices[0]
    gpu = [event for event in events(recording) if event["pid"] == 1]
    calls = {
        event["args"]["correlation_id"]: at(event)
        for event in events(recording)
        if event["pid"] != 1 and event["name"].startswith("Memcpy")
    }
    uploads = [event for event in gpu if event["name"] == "MemcpyH2D"]
    kernels = [at(event) for event in gpu if not event["name"].startswith("Memcpy")]
    for event in uploads:
        issued, began = calls[event["args"]["correlation_id"]][1], at(event)[0]
        assert began - issued < 50 * US or not any(start < began and end > issued for start, end in kernels)
    causes = device.exposed_copy_by_cause
    assert causes["late-issue"] > 0.99 * device.buckets.exposed_copy_ns
    assert sum(causes.values()) == device.buckets.exposed_copy_ns


def test_both_files_of_a_recording_are_the_same_trace() -> None:
    """Except contents that only the protocol buffer has, and names that the JSON shortens."""
    first, other = trace_of(LATE), trace_of(JSON / "late.trace.json.gz")
    assert (first.recorder, first.framework) == (other.recorder, other.framework) == ("jax", "jax")
    assert (first.versions["jax"], first.device_names, first.end_ns - first.start_ns) == (
        "0.11.2",
        {0: "NVIDIA H200"},
        120_153_714,
    )
    assert first.start_ns == first.base_ns > 10**18 and other.start_ns == -1 and other.base_ns == 0
    for name in ("gpu_ops", "runtime_calls", "cpu_ops", "annotations", "python_frames"):
        this, that = getattr(first, name), getattr(other, name)
        for column in ("start_ns", "end_ns"):
            offset = first.base_ns
            assert np.array_equal(getattr(this, column) - offset, getattr(that, column)), (name, column)
    assert np.array_equal(first.gpu_ops.launch, other.gpu_ops.launch)
    names = [[trace.gpu_ops.name(row) for row in range(len(trace.gpu_ops))] for trace in (first, other)]
    assert names[0] == names[1]


def test_steps_modules_and_waits_have_their_names() -> None:
    trace = trace_of(LATE)
    notes = [trace.annotations.name(row) for row in range(len(trace.annotations))]
    assert [name for name in notes if name.startswith("ProfilerStep")] == [f"ProfilerStep#{n}" for n in range(6)]
    assert {*notes} - {name for name in notes if name.startswith("ProfilerStep")} == {
        "jit_f",
        "jit_convert_element_type",
    }
    stall = report_of(LATE).traces[0].devices[0].host_stalls[0]
    assert (stall.call, stall.count) == ("np.asarray(jax.Array)", 6)
    assert stall.where is not None and "record_jax.py" in stall.where


def test_what_prefetching_brings_lies_in_the_predicted_interval() -> None:
    """The prefetched program also reads its result once, at the end."""
    changes = ("prefetch", "no-sync np.asarray(jax.Array)")
    result = predict(trace_of(LATE), changes).result
    assert result.predicted_step_ns is not None
    window = report_of(PREFETCHED).traces[0].devices[0].window
    step_ns = (window.end_ns - window.start_ns) / 6
    assert result.predicted_step_ns.low < step_ns < result.predicted_step_ns.high
    assert result.predicted_step_ns.high > result.baseline_step_ns > step_ns


def test_commands_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(LATE), str(PREFETCHED)]) == 0
    assert "less idle (host-staging)" in capsys.readouterr().out
    assert main(["check", str(LATE), "--budget", "step_time <= 10 ms"]) == 1
    assert main(["check", str(PREFETCHED), "--budget", "step_time <= 10 ms"]) == 0
    page = tmp_path / "report.html"
    assert main(["analyze", str(LATE), "--format", "html", "-o", str(page)]) == 0
    assert "H2D Dispatch" in page.read_text()


def test_what_is_written_of_it_is_still_of_jax(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "predicted.json"
    assert main(["whatif", str(LATE), "--prefetch", "--timeline", str(target)]) == 0
    again = ov.load(target)
    assert (again.recorder, again.framework) == ("jax", "jax")
    assert "jax.device_put" in capsys.readouterr().out


def test_no_step_is_estimated_from_what_torch_profiler_costs() -> None:
    assert report_of(LATE).traces[0].devices[0].plain is None


# -- where it lies


def test_a_directory_of_jax_profiler_stands_for_its_newest_recording(tmp_path: Path) -> None:
    for run in ("2026_11_20_10_00_00", "2026_11_22_21_37_17"):
        folder = tmp_path / "plugins" / "profile" / run
        folder.mkdir(parents=True)
        shutil.copy(LATE, folder / "vm.xplane.pb")
        for name in ("vm.trace.json.gz", "perfetto_trace.json.gz"):
            shutil.copy(JSON / "late.trace.json.gz", folder / name)
    result = find_traces(tmp_path)
    assert result.files == (folder / "vm.xplane.pb",)
    assert result.notes == (f"{tmp_path}: 1 older recording in plugins/profile left out; name its directory.",)
    assert find_traces(folder).files == result.files


def test_the_chrome_trace_is_read_where_nothing_better_lies_beside_it(tmp_path: Path) -> None:
    shutil.copy(JSON / "late.trace.json.gz", tmp_path / "vm.trace.json.gz")
    assert [path.name for path in find_traces(tmp_path).files] == ["vm.trace.json.gz"]


# -- made-up recordings


def read(tmp_path: Path, content: bytes, name: str = "any.name") -> Trace:
    path = tmp_path / name
    path.write_bytes(content)
    return ov.load(path, progress=False, cache=False)


def host(*events: tuple[str, int, int, dict[str, Any]], thread: int = 7) -> Plane:
    return Plane("/host:CPU", {(thread, "python"): list(events)})


def device(number: int, *events: tuple[str, int, int, dict[str, Any]], line: str = "Stream #5(Compute)") -> Plane:
    return Plane(f"/device:GPU:{number}", {(5, line): list(events)}, {"gpu_device_name": f"GPU {number}"})


def launch(correlation: int, start: int, device_id: int = 0) -> tuple[str, int, int, dict[str, Any]]:
    return "fusion", start, 5 * US, {"device_id": device_id, "correlation_id": correlation}


def test_several_devices_are_distinguished(tmp_path: Path) -> None:
    planes = (
        device(0, ("fusion", 30 * US, 9 * US, {"correlation_id": 1})),
        device(1, ("fusion", 31 * US, 9 * US, {"correlation_id": 2})),
        host(launch(1, 10 * US), launch(2, 20 * US, 1)),
    )
    trace = read(tmp_path, xspace(*planes))
    assert trace.devices == (0, 1) and trace.device_names == {0: "GPU 0", 1: "GPU 1"}
    assert trace.gpu_ops.launch.tolist() == [0, 1]
    assert [trace.runtime_calls.name(row) for row in (0, 1)] == ["cuLaunchKernel"] * 2


@pytest.mark.parametrize(
    ("name", "stats", "expected"),
    [
        ("MemcpyH2D", {"memcpy_details": "kind_src:pageable kind_dst:device size:64 dest:0 async:1"}, Kind.H2D),
        ("MemcpyD2H", {"memcpy_details": "kind_src:device kind_dst:pinned size:64 dest:0 async:1"}, Kind.D2H),
        ("MemcpyD2D", {"memcpy_details": "kind_src:device kind_dst:device size:64 dest:0 async:1"}, Kind.OTHER),
        ("MemcpyP2P", {"memcpy_details": "kind_src:device kind_dst:device size:64 dest:1 async:1"}, Kind.P2P),
        ("MemcpyOther", {"memcpy_details": "kind_src:array kind_dst:pageable size:64 dest:0 async:1"}, Kind.D2H),
        ("MemcpyH2D", {}, Kind.H2D),
        ("Memset", {"memset_details": "kind:device num_bytes:64 async:1"}, Kind.OTHER),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", {}, Kind.COMM),
        ("loop_add_fusion", {}, Kind.COMPUTE),
    ],
)
def test_an_op_is_what_the_profiler_says_of_it(
    tmp_path: Path, name: str, stats: dict[str, Any], expected: Kind
) -> None:
    ops = read(tmp_path, xspace(device(0, (name, 10 * US, US, stats)))).gpu_ops
    assert (ops.kind.tolist(), ops.bytes.tolist()) == ([expected], [64 if stats else -1])


def test_a_name_like_a_planes_makes_no_trace_of_jax(tmp_path: Path) -> None:
    recording = TRACES / "streamed0_pinned0.json.gz"
    text = gzip.decompress(recording.read_bytes()).replace(b'"Spans"', b'"/device:GPU:0"')
    named = text.replace(b'"traceEvents"', b'"name": "/device:GPU:0", "traceEvents"', 1)
    assert read(tmp_path, named).recorder == "kineto"


def test_lines_that_are_no_streams_and_counters_are_no_work(tmp_path: Path) -> None:
    plane = device(0, ("fusion", 10 * US, US, {}), ("UM_BYTES_TRANSFER_HTOD", 11 * US, US, {}))
    plane.lines[(1, "XLA Modules")] = [("jit_f", 0, 90 * US, {})]
    plane.lines[(2, "CUPTI overhead")] = [("BUFFER_FLUSH", 5 * US, US, {})]
    trace = read(tmp_path, xspace(plane))
    assert (len(trace.gpu_ops), len(trace.overheads)) == (1, 1)


def test_the_programs_own_marks_are_ranges_and_xlas_are_not(tmp_path: Path) -> None:
    marks = host(
        ("train", 0, 100 * US, {"_r": 1, "step_num": 3}),
        ("load batch", US, 10 * US, {}),
        ("decode", 2 * US, 3 * US, {}),
        ("PjitFunction(f)", 20 * US, 30 * US, {}),
        ("inside of XLA", 21 * US, 5 * US, {}),
        ("marked by XLA", 60 * US, 5 * US, {"_src": "external/xla/pjrt.cc"}),
        ("NVTX:mine", 70 * US, 5 * US, {}),
    )
    trace = read(tmp_path, xspace(marks, Plane("/host:CPU", {(8, "worker"): [("not told", 0, US, {})]})))
    notes = [trace.annotations.name(row) for row in range(len(trace.annotations))]
    assert notes == ["ProfilerStep#3", "load batch", "decode", "mine"]


@pytest.mark.parametrize("numbers", [(None, None), (4, 4), (-1, 2)])
def test_steps_without_numbers_of_their_own_are_counted(tmp_path: Path, numbers: tuple[int | None, int | None]) -> None:
    stats = [{"_r": 1} | ({} if number is None else {"step_num": number}) for number in numbers]
    steps = [("train", n * 100 * US, 90 * US, stat) for n, stat in enumerate(stats)]
    other = ("eval", 500 * US, 90 * US, {"_r": 1, "step_num": 0})
    trace = read(tmp_path, xspace(host(*steps, other)))
    notes = [trace.annotations.name(row) for row in range(len(trace.annotations))]
    assert notes == ["ProfilerStep#0", "ProfilerStep#1", "eval"]


def test_what_the_profiler_dropped_is_reported(tmp_path: Path) -> None:
    warning = "3 callback api events dropped; 40 activity events dropped."
    trace = read(tmp_path, xspace(device(0, ("fusion", 10 * US, US, {})), warnings=(warning,)))
    assert trace.damage.lost_events == 43
    check = next(c for c in ov.analyze(trace).traces[0].trust.checks if c.id == "events-readable")
    assert check.status == "warn" and warning in check.detail


def test_a_recording_without_a_gpu_says_so_in_words_of_jax(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.xplane.pb"
    path.write_bytes(xspace(host(("PjitFunction(f)", US, US, {}))))
    main(["analyze", str(path)])
    captured = capsys.readouterr()
    assert "ProfilerActivity" not in captured.out + captured.err


def test_a_recording_of_a_tpu_is_refused(tmp_path: Path) -> None:
    tpu = Plane("/device:TPU:0", {(1, "XLA Ops"): [("fusion", US, US, {})]})
    with pytest.raises(UnreadableTrace, match="was recorded on a TPU; overlapscope reads recordings of GPUs"):
        read(tmp_path, xspace(tpu))


# -- damage


def test_a_protocol_buffer_that_was_cut_is_refused(tmp_path: Path) -> None:
    whole = LATE.read_bytes()
    with pytest.raises(UnreadableTrace, match=r"is cut off or damaged .*; copy or record it again"):
        read(tmp_path, whole[: len(whole) // 2])


def test_of_json_that_was_cut_all_whole_events_are_read(tmp_path: Path) -> None:
    text = gzip.decompress((JSON / "late.trace.json.gz").read_bytes())
    trace = read(tmp_path, text[: len(text) - 3000])
    assert trace.damage.truncated
    assert 0 < len(trace.gpu_ops) < len(trace_of(LATE).gpu_ops)
    packed = gzip.compress(text)
    assert read(tmp_path, packed[: len(packed) - 500]).damage.truncated


def test_of_json_that_is_damaged_all_other_events_are_read(tmp_path: Path) -> None:
    text = gzip.decompress((JSON / "late.trace.json.gz").read_bytes())
    kernel = text.index(b'"ph":"X"')
    place = text.index(b'"dur":', kernel)
    trace = read(tmp_path, text[:place] + b'"dur":"x' + text[place + 6 :])
    assert 1 <= trace.damage.lost_events <= 2 and not trace.damage.truncated
    assert len(trace.gpu_ops) >= len(trace_of(LATE).gpu_ops) - 2


@pytest.mark.parametrize("recording", [LATE, JSON / "late.trace.json.gz"], ids=["xplane", "json"])
def test_a_file_of_more_events_than_there_can_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recording: Path
) -> None:
    """An event may be of two bytes, which memory could not hold."""
    monkeypatch.setattr(xplane, "MAX_EVENTS", 1000)
    monkeypatch.setattr(raw_events, "_MAX_EVENTS", 1000)
    with pytest.raises(UnreadableTrace, match="more events than any profiler records"):
        read(tmp_path, recording.read_bytes())


@pytest.mark.parametrize("recording", [LATE, JSON / "late.trace.json.gz"], ids=["xplane", "json"])
def test_mutated_files_are_read_or_refused_in_a_sentence(tmp_path: Path, recording: Path) -> None:
    """Never another error, and no figure that is impossible."""
    small = _small(recording)
    for seed in range(60):
        chance = random.Random(seed)
        data = bytearray(small)
        for _ in range(chance.choice((1, 3, 20))):
            place = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[place] = chance.randrange(256)
                case 1:
                    del data[place : place + chance.randrange(1, 40)]
                case 2:
                    data[place:place] = chance.randbytes(chance.randrange(1, 12))
                case 3:
                    data[place : place + 9] = b"\xff" * 9
        with suppress(UnreadableTrace):
            report = ov.analyze(read(tmp_path, bytes(data)))
            assert encode(report)
            for device in report.traces[0].devices:
                assert sum(msgspec.structs.astuple(device.buckets)) == device.span_ns, seed


def _small(recording: Path) -> bytes:
    """Return a piece of it: all that a reader looks at, in few events."""
    if recording.name.endswith(".gz"):
        document = json.loads(gzip.decompress(recording.read_bytes()))
        kept = [e for e in document["traceEvents"] if not str(e.get("name")).startswith("$")]
        return json.dumps(document | {"traceEvents": kept}).encode()
    return xspace(
        device(0, *(("fusion", n * 20 * US, 9 * US, {"correlation_id": n + 1}) for n in range(9))),
        host(*(launch(n + 1, n * 20 * US) for n in range(9)), ("train", 0, 100 * US, {"_r": 1, "step_num": 3})),
        Plane("Task Environment", stats={"profile_start_time": 10**18, "profile_stop_time": 10**18 + 10**9}),
    )


def test_a_file_of_many_empty_planes_is_read_in_time_by_its_size() -> None:
    # If all lines were counted again for each plane, this would take a minute.
    planes = [Plane("", {(0, ""): []})] * 60_000
    assert len(xplane.read_xspace(xspace(*planes)).lines) == len(planes)
