"""Tests of reading healthy traces, in every dialect."""

from __future__ import annotations

import gzip
import json
import random
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis import analyze_trace
from overlapscope.errors import UnreadableTrace
from overlapscope.reading import expand, files, load, load_all
from overlapscope.trace.model import Kind, Memory, Sync, Trace
from tests.support.helpers import tried

pytestmark = pytest.mark.afresh

DATA = Path(__file__).parents[3] / "traces"
REAL = tried(sorted((DATA / "known_causes").glob("*.json.gz")))
BASE_NS = 1_790_857_026_000_000_000


def event(cat: str, name: str, ts: Any, dur: Any, **rest: Any) -> dict[str, Any]:
    args = rest.pop("args", {})
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": args,
        **rest,
    }


def kernel(ts: Any, dur: Any = 1.0, **args: Any) -> dict[str, Any]:
    return event("kernel", "gemm", ts, dur, args={"device": 0, "stream": 7, "correlation": 1, **args})


def call(ts: Any, dur: Any = 1.0, correlation: Any = 1, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return event("cuda_runtime", name, ts, dur, pid=99, tid=99, args={"correlation": correlation})


def document(events: list[Any], **metadata: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events, **metadata}


def write(path: Path, content: Any) -> Path:
    if isinstance(content, str):
        path.write_text(content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(json.dumps(content))
    return path


def read(tmp_path: Path, content: Any) -> Trace:
    return load(write(tmp_path / "trace.json", content))


def same(first: Trace, other: Trace) -> bool:
    """Return whether two traces hold the same events, with names spelled out."""
    tables = ("gpu_ops", "runtime_calls", "cpu_ops", "annotations", "python_frames", "overheads", "syncs")
    for table in tables:
        a, b = getattr(first, table), getattr(other, table)
        if [a.name(i) for i in range(len(a))] != [b.name(i) for i in range(len(b))]:
            return False
        columns = [c for c in type(a).__struct_fields__ if c not in ("names", "name_id")]
        if not all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns):
            return False
    return (first.rank, first.start_ns, first.end_ns) == (other.rank, other.start_ns, other.end_ns)


def exact_ns(text: str, base: int = BASE_NS) -> int:
    return base + int(Decimal(text) * 1000)


# -- real traces


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name.split(".")[0])
def test_every_event_of_a_real_trace_is_kept_with_its_exact_time(path: Path) -> None:
    expected = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    trace = load(path)
    base = expected["baseTimeNanoseconds"]
    tables = {
        ("kernel", "gpu_memcpy", "gpu_memset"): trace.gpu_ops,
        ("cuda_runtime", "cuda_driver"): trace.runtime_calls,
        ("cpu_op",): trace.cpu_ops,
        ("user_annotation",): trace.annotations,
        ("python_function",): trace.python_frames,
        ("overhead",): trace.overheads,
        ("cuda_sync",): trace.syncs,
    }
    for categories, table in tables.items():
        wanted = sorted(
            (base + int(e["ts"] * 1000), -int(e["dur"] * 1000), e["name"])
            for e in expected["traceEvents"]
            if e.get("cat") in categories
        )
        got = [
            (int(start), int(start - end), table.name(row))
            for row, (start, end) in enumerate(zip(table.start_ns, table.end_ns, strict=True))
        ]
        assert [row[:2] for row in got] == [row[:2] for row in wanted]
        assert sorted(got) == wanted
    assert trace.damage == type(trace.damage)()
    assert trace.device_names == {0: "NVIDIA H200"}
    assert trace.versions["cuda_runtime"] == "13000"
    assert trace.start_ns > 0
    assert trace.end_ns >= trace.gpu_ops.end_ns.max()


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name.split(".")[0])
def test_each_gpu_op_points_at_the_call_that_launched_it(path: Path) -> None:
    trace = load(path)
    ops, calls = trace.gpu_ops, trace.runtime_calls
    launched = ops.launch >= 0
    assert np.array_equal(calls.correlation[ops.launch[launched]], ops.correlation[launched])
    assert not np.isin(ops.correlation[~launched], calls.correlation).any()


def test_small_blocks_give_the_same_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / "known_causes" / "host_sync_stacks.json.gz"
    whole = load(path)
    for size in (97, 1000, 4096, 65_536):
        monkeypatch.setattr(files, "BLOCK_BYTES", size)
        small = load(path)
        assert same(whole, small)
        assert small.damage == whole.damage


def test_sync_records_keep_stream_event_and_correlation(tmp_path: Path) -> None:
    def sync(kind: str, ts: float, **args: Any) -> dict[str, Any]:
        return event("cuda_sync", kind, ts, 1.0, tid=1_000_007, args={"cuda_sync_kind": kind, "device": 0, **args})

    trace = read(
        tmp_path,
        document(
            [
                kernel(5.0),
                sync("Stream Sync", 10.0, stream=7, correlation=4),
                sync("Context Sync", 20.0, stream=4294967295, correlation=5),
                sync(
                    "Stream Wait Event",
                    30.0,
                    stream=9,
                    correlation=6,
                    wait_on_stream=7,
                    wait_on_cuda_event_record_corr_id=3,
                    wait_on_cuda_event_id=14,
                ),
                sync("Event Sync", 40.0, stream=-1, correlation=7, wait_on_stream=-1, wait_on_cuda_event_id=14),
            ]
        ),
    )
    syncs = trace.syncs
    assert syncs.kind.tolist() == [Sync.STREAM, Sync.CONTEXT, Sync.STREAM_WAIT_EVENT, Sync.EVENT]
    assert syncs.stream.tolist() == [7, -1, 9, -1]
    assert syncs.correlation.tolist() == [4, 5, 6, 7]
    assert syncs.source_stream.tolist() == [-1, -1, 7, -1]
    assert syncs.record_correlation.tolist() == [-1, -1, 3, -1]
    assert syncs.event.tolist() == [-1, -1, 14, 14]
    assert len(trace.gpu_ops) == 1


def test_sync_of_xpu_has_a_kind_and_no_stream(tmp_path: Path) -> None:
    args = {"correlation": 3, "Type": "HOST_COMMAND_QUEUE", "Queue_handle": "0x00005581"}
    trace = read(tmp_path, document([event("xpu_sync", "zeCommandQueueSynchronize", 5, 2, pid=-1, tid=41, args=args)]))
    assert trace.syncs.kind.tolist() == [Sync.STREAM]
    assert trace.syncs.stream.tolist() == [-1]


# -- times


@given(
    base=st.sampled_from([0, BASE_NS]),
    ns=st.lists(st.integers(1, 8_795_000_000_000_000), min_size=1, max_size=20),
    large=st.booleans(),
    digits=st.integers(0, 3),
)
def test_times_are_exact_in_text_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, base: int, ns: list[int], large: bool, digits: int
) -> None:
    # Within a minute, so that all are possible; at epoch microseconds or below 2**43.
    origin = 1_700_000_000_000_000_000 if large else min(ns)
    texts = []
    for item in ns:
        us, rest = divmod(origin + item % 60_000_000_000, 1000)
        texts.append(f"{us}.{rest:03}"[: len(str(us)) + (digits and digits + 1)])
    events = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{text},"dur":{i}.00{i % 10}}}'
        for i, text in enumerate(texts)
    )
    path = tmp_path_factory.mktemp("times") / "t.json"
    path.write_text(f'{{"baseTimeNanoseconds":{base},"traceEvents":[{events}]}}')
    ops = load(path).gpu_ops
    wanted = sorted((exact_ns(text, base), -(i * 1000 + i % 10)) for i, text in enumerate(texts))
    assert list(zip(ops.start_ns.tolist(), (ops.start_ns - ops.end_ns).tolist(), strict=True)) == wanted


def test_base_time_is_added_wherever_it_stands(tmp_path: Path) -> None:
    before = read(tmp_path, {"baseTimeNanoseconds": BASE_NS, "traceEvents": [kernel(1.5)]})
    after = read(tmp_path, {"traceEvents": [kernel(1.5)], "baseTimeNanoseconds": BASE_NS})
    assert before.gpu_ops.start_ns.tolist() == after.gpu_ops.start_ns.tolist() == [BASE_NS + 1500]


def test_recording_window_comes_from_span_and_markers(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        document(
            [
                kernel(15.0),
                event("Trace", "PyTorch Profiler (0)", 10.0, 20.0, pid="Spans", tid="PyTorch Profiler"),
                {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 35.25},
            ]
        ),
    )
    assert (trace.start_ns, trace.end_ns) == (BASE_NS + 10_000, BASE_NS + 35_250)
    assert len(trace.gpu_ops) == 1


def test_window_is_unknown_where_the_file_does_not_say(tmp_path: Path) -> None:
    trace = read(tmp_path, document([kernel(15.0)]))
    assert (trace.start_ns, trace.end_ns) == (-1, -1)


def test_rows_are_sorted_by_start_with_the_longest_first(tmp_path: Path) -> None:
    spans = [(5, 1), (3, 9), (5, 4), (1, 1), (5, 2)]
    trace = read(tmp_path, document([event("cpu_op", f"op{d}", t, d) for t, d in spans]))
    assert [trace.cpu_ops.name(i) for i in range(5)] == ["op1", "op9", "op4", "op2", "op1"]


# -- GPU ops


def test_device_and_stream_fall_back_to_process_and_thread(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        document(
            [
                event("kernel", "a", 1, 1, pid=3, tid=11, args={"device": 2, "stream": 0}),
                event("kernel", "b", 2, 1, pid=3, tid=11),
                event("Kernel", "c", 3, 1, pid=1, tid="stream 7"),
                event("kernel", "d", 4, 1, pid="somewhere", tid="", args={"stream": 4294967295}),
                event("kernel", "e", 5, 1, args={"device": 0, "stream": -1}),
                event("kernel", "f", 6, 1, args={"device": 0, "stream": 18446744073709551615}),
                event(
                    "gpu_memcpy",
                    "Memcpy PtoP (Device -> Device)",
                    7,
                    1,
                    pid=5,
                    args={"fromDevice": 0, "inDevice": 1, "toDevice": 4, "stream": 9},
                ),
                event("kernel", "h", 8, 1, tid=12, args={"device": 0, "sycl queue": 5}),
            ]
        ),
    )
    assert trace.gpu_ops.device.tolist() == [2, 3, 1, -1, 0, 0, 1, 0]
    assert trace.gpu_ops.stream.tolist() == [0, 11, 7, -1, -1, -1, 9, 5]


def test_streams_that_are_addresses_stay_apart(tmp_path: Path) -> None:
    streams = [94_000_000_000_000, 94_000_000_000_064, 94_000_000_000_000]
    trace = read(tmp_path, document([kernel(i, stream=stream) for i, stream in enumerate(streams, 1)]))
    first, second, third = trace.gpu_ops.stream.tolist()
    assert first == third != second
    assert min(first, second) >= 0


def test_copies_keep_bytes_and_memory_kinds(tmp_path: Path) -> None:
    copy = event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1, 1, args={"device": 0, "stream": 7, "bytes": 4096})
    trace = read(tmp_path, document([copy, kernel(3)]))
    ops = trace.gpu_ops
    assert ops.bytes.tolist() == [4096, -1]
    assert ops.kind.tolist() == [Kind.D2H, Kind.COMPUTE]
    assert ops.source_kind.tolist() == [Memory.DEVICE, Memory.UNKNOWN]
    assert ops.target_kind.tolist() == [Memory.PAGEABLE, Memory.UNKNOWN]


def test_what_is_not_work_stays_out_of_gpu_ops(tmp_path: Path) -> None:
    others = (
        "gpu_user_annotation",
        "cuda_sync",
        "overhead",
        "cuda_event",
        "collective_comm",
        "mtia_insight",
        "Trace",
    )
    trace = read(tmp_path, document([kernel(5), *(event(cat, cat, 5, 1) for cat in others)]))
    assert len(trace.gpu_ops) == 1
    assert len(trace.overheads) == len(trace.syncs) == 1


def test_waits_and_signals_of_mtia_are_not_work(tmp_path: Path) -> None:
    names = ("event_wait", "event_record", "fc-dtype_Float", "dma_request")
    args = {"stream": 1}
    trace = read(tmp_path, document([event("mtia_ccp_events", name, 5, 1, args=args) for name in names]))
    assert [trace.gpu_ops.name(row) for row in range(2)] == ["dma_request", "fc-dtype_Float"]
    assert trace.gpu_ops.kind.tolist() == [Kind.OTHER, Kind.COMPUTE]


def test_copies_of_mtia_state_their_direction_in_an_argument(tmp_path: Path) -> None:
    stated = [{"stream": 1, "size": 64, "direction": way} for way in ("HOST_TO_DEVICE", "DEVICE_TO_HOST", "SIDEWAYS")]
    copies = [event("mtia_ccp_events", "dma_request", 5 + at, 1, args=args) for at, args in enumerate(stated)]
    ops = read(tmp_path, document(copies)).gpu_ops
    assert ops.kind.tolist() == [Kind.H2D, Kind.D2H, Kind.OTHER]
    assert ops.bytes.tolist() == [64, 64, 64]
    assert [ops.name(row) for row in range(3)] == [
        "Memcpy HtoD (dma_request)",
        "Memcpy DtoH (dma_request)",
        "dma_request",
    ]


def test_all_kernels_of_a_graph_point_at_its_launch(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        document([call(1, 2, 5, "cudaGraphLaunch"), *(kernel(3 + i, correlation=5) for i in range(4))]),
    )
    assert trace.gpu_ops.launch.tolist() == [0, 0, 0, 0]


def test_of_calls_that_share_a_correlation_the_earliest_launched(tmp_path: Path) -> None:
    trace = read(tmp_path, document([call(4, 1, 5), call(2, 3, 5), call(1, 1, 6), kernel(9, correlation=5)]))
    assert trace.runtime_calls.start_ns[trace.gpu_ops.launch[0]] == BASE_NS + 2000


@pytest.mark.parametrize("correlation", [0, -1, None])
def test_no_correlation_is_not_a_launch(tmp_path: Path, correlation: int | None) -> None:
    args = {} if correlation is None else {"correlation": correlation}
    orphan = event("kernel", "k", 9, 1, args={"device": 0, "stream": 7, **args})
    trace = read(tmp_path, document([call(1, 1, 0), orphan]))
    assert trace.gpu_ops.launch.tolist() == [-1]
    assert trace.gpu_ops.correlation.tolist() == [-1]


def test_huge_numbers_do_not_overflow(tmp_path: Path) -> None:
    huge = 10**30
    strange = kernel(5.0, correlation=huge, bytes=huge, stream=huge, device=huge)
    strange["tid"] = huge
    trace = read(tmp_path, document([strange, event("cpu_op", "op", 5, 1, tid=2**64 - 2, pid=huge)]))
    assert len(trace.gpu_ops) == len(trace.cpu_ops) == 1
    assert trace.cpu_ops.thread.tolist() == [-2]


# -- dialects


def test_a_bare_array_of_events_is_a_trace(tmp_path: Path) -> None:
    trace = read(tmp_path, [call(1), kernel(3)])
    assert trace.gpu_ops.launch.tolist() == [0]
    assert trace.gpu_ops.start_ns.tolist() == [3000]


@pytest.mark.parametrize("indent", [None, 0, 2, "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_layout_does_not_matter(tmp_path: Path, indent: Any, newline: str, bom: str) -> None:
    text = bom + json.dumps(document([call(1), kernel(3)]), indent=indent).replace("\n", newline)
    trace = read(tmp_path, text.encode())
    assert same(trace, read(tmp_path, document([call(1), kernel(3)])))
    assert trace.damage.repaired_events == 0


def test_metadata_may_stand_on_either_side_of_the_events(tmp_path: Path) -> None:
    info = {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0"}, {"pg_name": "1"}]}
    events = [kernel(float(i)) for i in range(1, 50)]
    before = read(tmp_path, {"distributedInfo": info, "traceEvents": events})
    after = read(tmp_path, {"traceEvents": events, "distributedInfo": info, "traceName": "x"})
    assert before.rank == after.rank == 3
    assert before.world_size == after.world_size == 8
    assert same(before, after)
    assert after.damage == before.damage


def test_the_word_trace_events_elsewhere_is_not_the_events(tmp_path: Path) -> None:
    tricky = {
        "note": 'say "traceEvents": [',
        "inner": {"traceEvents": [{"ph": "X"}]},
        "traceEvents": [kernel(2)],
    }
    assert len(read(tmp_path, tricky).gpu_ops) == 1


def test_keys_of_an_event_may_come_in_any_order(tmp_path: Path) -> None:
    shuffled = [dict(random.Random(i).sample(list(kernel(i).items()), 8)) for i in range(1, 20)]
    assert same(read(tmp_path, document(shuffled)), read(tmp_path, document([kernel(i) for i in range(1, 20)])))


@given(name=st.text(st.characters(codec="utf-8"), max_size=40), size=st.integers(40, 300))
def test_any_name_survives_any_cut_between_blocks(
    tmp_path_factory: pytest.TempPathFactory, name: str, size: int
) -> None:
    nested = {"list": [{"a": 1}, {"b": [{}, {}]}], "text": '"}, {"ph": "X"}, ]}'}
    events = [event("cpu_op", f"{name}}}, {{{i}", i, 1, args=nested) for i in range(1, 12)]
    path = write(tmp_path_factory.mktemp("names") / "t.json", document(events))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK_BYTES", size)
        trace = load(path)
    assert [trace.cpu_ops.name(i) for i in range(11)] == [event["name"] for event in events]
    assert trace.damage == type(trace.damage)()


def test_string_ids_do_not_break_host_tables(tmp_path: Path) -> None:
    trace = read(tmp_path, document([event("cpu_op", "op", 1, 1, pid="Spans", tid=tid) for tid in ("12", "", "main")]))
    assert trace.cpu_ops.thread.tolist() == [-1, -1, 12]


def test_unknown_phases_and_categories_are_passed_over(tmp_path: Path) -> None:
    others = [{"ph": phase, "name": "n", "ts": 1} for phase in "BECbneMstfiIPNOD?"]
    trace = read(tmp_path, document([*others, event("new_category", "n", 1, 1), kernel(1)]))
    assert len(trace.gpu_ops) == 1
    assert trace.damage == type(trace.damage)()


def test_first_releases_of_kineto_are_read(tmp_path: Path) -> None:
    """Categories and `stream N` threads as kineto's first public `output_json.cpp` wrote them."""
    start = 1_600_712_345_678_901
    events = [
        event("Operator", "aten::mm", start, 90, pid=5, tid=5),
        event("Operator", "ProfilerStep#1", start, 99, pid=5, tid=5),
        event("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, 2, pid=5, tid=5),
        event("Runtime", "cudaLaunchKernel", start + 3, 5, pid=5, tid=5, args={"cbid": 211, "correlation": 8}),
        event(
            "Kernel",
            "sgemm",
            start + 20,
            50,
            tid="stream 7",
            args={"device": 0, "stream": 7, "correlation": 8},
        ),
        event("Memcpy", "Memcpy HtoD (Pageable -> Device)", start + 80, 4, tid="stream 7", args={"bytes": 64}),
        event("Memset", "Memset (Device)", start + 90, 1, tid="stream 7"),
    ]
    trace = read(tmp_path, events)
    assert trace.gpu_ops.kind.tolist() == [Kind.COMPUTE, Kind.H2D, Kind.OTHER]
    assert trace.gpu_ops.stream.tolist() == [7, 7, 7]
    assert trace.gpu_ops.launch.tolist() == [0, -1, -1]
    assert trace.gpu_ops.start_ns[0] == (start + 20) * 1000
    assert [trace.annotations.name(row).partition("#")[0] for row in range(2)] == [
        "ProfilerStep",
        "enumerate(DataLoader)",
    ]
    assert len(trace.cpu_ops) == 1


def test_rocm_calls_and_copies_are_read(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        document(
            [
                event("cuda_runtime", "hipMemcpyAsync", 1, 2, args={"cid": 83, "correlation": 4}),
                event(
                    "gpu_memcpy",
                    "Memcpy HtoD (Host -> Device)",
                    2,
                    2,
                    args={"device": 0, "stream": 0, "correlation": 4},
                ),
            ]
        ),
    )
    assert trace.gpu_ops.kind.tolist() == [Kind.H2D]
    assert trace.gpu_ops.source_kind.tolist() == [Memory.UNKNOWN]
    assert trace.gpu_ops.launch.tolist() == [0]


def test_a_trace_without_gpu_activity_is_not_an_error(tmp_path: Path) -> None:
    trace = read(tmp_path, document([event("cpu_op", "aten::add", 1, 1)]))
    assert (len(trace.gpu_ops), len(trace.cpu_ops), trace.devices) == (0, 1, ())


def test_an_empty_list_of_events_is_an_empty_trace(tmp_path: Path) -> None:
    contents: list[Any] = [{"traceEvents": []}, {"traceEvents": [], "traceName": "x"}, []]
    for content in contents:
        trace = read(tmp_path, content)
        assert (len(trace.gpu_ops), trace.damage) == (0, type(trace.damage)())


# -- files


@pytest.mark.parametrize("suffix", ["json.gz", "json.zst", "json", "trace"])
@pytest.mark.parametrize("pack", ["plain", "gzip", "zstd"])
def test_packing_is_told_from_content_and_not_from_the_name(tmp_path: Path, suffix: str, pack: str) -> None:
    content = json.dumps(document([kernel(2.5)])).encode()
    if pack == "gzip":
        content = gzip.compress(content)
    if pack == "zstd":
        zstd = pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
        content = zstd.compress(content)
    assert len(load(write(tmp_path / f"t.{suffix}", content)).gpu_ops) == 1


def test_gzip_members_are_joined(tmp_path: Path) -> None:
    content = json.dumps(document([kernel(i) for i in range(1, 9)])).encode()
    packed = gzip.compress(content[:150]) + gzip.compress(content[150:]) + b"\0" * 512
    trace = read(tmp_path, packed)
    assert len(trace.gpu_ops) == 8
    assert not trace.damage.truncated


def test_little_is_read_ahead_of_a_packed_member(tmp_path: Path) -> None:
    members = gzip.compress(b"{}") * (1 << 15)
    file = files.SourceFile(write(tmp_path / "t.json.gz", members))
    assert next(iter(file)) == b"{}"
    # All of this is copied for each member, so that the time of many is quadratic in it.
    assert file.packed_bytes_read <= len(members) / 8


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("trace_rank_12.json", 12),
        ("RANK-1.json", 1),
        ("frank5.json", None),
        ("t_0.json", None),
    ],
)
def test_rank_comes_from_the_file_name_where_the_trace_does_not_say(
    tmp_path: Path, name: str, rank: int | None
) -> None:
    assert load(write(tmp_path / name, document([kernel(2)]))).rank == rank
    content = document([kernel(2)], distributedInfo={"rank": 7, "world_size": 8})
    assert load(write(tmp_path / name, content)).rank == 7


def test_a_directory_stands_for_its_traces_in_natural_order(tmp_path: Path) -> None:
    for name in ("rank10.json", "rank2.json", "rank1.json"):
        write(tmp_path / name, document([kernel(2)]))
    (tmp_path / "notes.txt").write_text("no trace")
    (tmp_path / "sub").mkdir()
    assert [path.name for path in expand(tmp_path)] == ["rank1.json", "rank2.json", "rank10.json"]
    assert [trace.rank for trace in load_all(tmp_path)] == [1, 2, 10]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", document([kernel(2)]))
    (tmp_path / "link.json").symlink_to(path)
    assert len(expand([path, str(path), tmp_path / ".." / tmp_path.name / "a.json", tmp_path])) == 1


def test_two_files_of_one_rank_are_both_kept(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / name, document([kernel(2)], distributedInfo={"rank": 0}))
    assert [trace.rank for trace in load_all(str(tmp_path / "*.json"))] == [0, 0]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t[1].json", document([kernel(2)]))
    assert expand(path) == [path]


def test_a_pattern_or_directory_without_traces_is_an_error(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "*.json"):
        with pytest.raises(UnreadableTrace, match="no"):
            expand(source)


def test_reading_writes_nothing_where_there_is_no_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    read(tmp_path, document([kernel(2)]))
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_full_launch_queue_is_not_an_overhead_of_the_profiler(tmp_path: Path) -> None:
    """Though CUPTI lists it as such."""
    overheads = [event("overhead", name, 1, 2) for name in ("Command Buffer Full", "Buffer Flush")]
    trace = read(tmp_path, {"traceEvents": [kernel(0, 9), *overheads]})
    assert [trace.overheads.name(row) for row in range(len(trace.overheads))] == ["Buffer Flush"]


# -- an event does not depend on those beside it ---------------------------------------------------

NEIGHBOURS = {
    "none": b"",
    "a process as a float": b'{"ph":"X","cat":"cpu_op","name":"n","pid":0.0,"tid":7,"ts":2.0,"dur":1.0}',
    "an unknown category": b'{"ph":"X","cat":"bar","name":"n","pid":0,"tid":7,"ts":2.0,"dur":1.0}',
    "a large time": b'{"ph":"X","cat":"bar","name":"n","pid":0,"tid":7,"ts":9000000000000.5,"dur":1.0}',
    "no JSON": b'{"ph":"X","cat":"bar","name":"n","pid":0,"tid":7,"ts":NaN,"dur":1.0}',
    "a bad name": b'{"ph":"X","cat":"cpu_op","name":"n\xfe","pid":0,"tid":7,"ts":2.0,"dur":1.0}',
}
BAD_BYTES = {
    b'{"ph":"s","cat":"ac2g","name":"a\xff","id":1,"pid":0,"tid":7,"ts":1.0}': 0,
    b'{"ph":"X","cat":"cuda_event","name":"a\xff","pid":0,"tid":7,"ts":1.0,"dur":1.0}': 0,
    b'{"ph":"i","cat":"cpu_instant_event","name":"a\xff","pid":0,"tid":7,"ts":1.0,"s":"t"}': 0,
    b'{"ph":"X","cat":"cpu_op","name":"a","pid":0,"tid":7,"ts":1.0,"dur":1.0,"args":{"x":"\xff"}}': 0,
    b'{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":9.0,"dur":1.0,"args":{"Collective name":"\xff"}}': 0,
    b'{"ph":"X","cat":"foo\xff","name":"a","pid":0,"tid":7,"ts":9.0,"dur":1.0}': 0,
    b'{"ph":"X","cat":"kernel","name":"a\xff","pid":0,"tid":7,"ts":9.0,"dur":1.0}': 1,
    b'{"ph":"X","cat":"cpu_op","name":"a","pid":0,"tid":"\xff","ts":9.0,"dur":1.0}': 1,
}
"""Events with bytes that are not UTF-8, and whether the reader keeps the part with these bytes."""


def read_raw(tmp_path: Path, *events: bytes) -> Trace:
    usual = msgspec.json.encode(kernel(1))
    return load(write(tmp_path / "t.json", b'{"traceEvents":[' + b",".join(filter(None, (usual, *events))) + b"]}"))


@pytest.mark.parametrize("neighbour", NEIGHBOURS.values(), ids=list(NEIGHBOURS))
def test_bad_bytes_count_only_in_what_is_read_whatever_stands_beside(neighbour: bytes, tmp_path: Path) -> None:
    without = read_raw(tmp_path, neighbour).damage.repaired_events
    for event, repaired in BAD_BYTES.items():
        for beside in ((event, neighbour), (neighbour, event)):
            assert read_raw(tmp_path, *beside).damage.repaired_events == without + repaired, event


@pytest.mark.parametrize(
    "start", ["2.0005", "1.0015", "4294967296.0005", "4294967295.9995", "-2.0005", "1e-3", "0.1235"]
)
def test_a_time_does_not_depend_on_how_those_beside_it_are_read(start: str, tmp_path: Path) -> None:
    event = b'{"ph":"X","cat":"cpu_op","name":"mine","pid":0,"tid":7,"ts":%s,"dur":1.0}' % start.encode()
    starts = set()
    for neighbour in NEIGHBOURS.values():
        ops = read_raw(tmp_path, event, neighbour).cpu_ops
        starts |= {int(ops.start_ns[row]) for row in range(len(ops)) if ops.name(row) == "mine"}
    assert len(starts) == 1


def test_the_order_of_events_changes_nothing_though_their_times_are_equal(tmp_path: Path) -> None:
    recorded = json.loads(gzip.decompress((DATA / "known_causes/late_issue.json.gz").read_bytes()))
    for event in recorded["traceEvents"]:
        if event.get("ph") == "X":
            event["ts"], event["dur"] = 20 * round(event["ts"] / 20), max(20 * round(event["dur"] / 20), 20)
    results = set()
    for seed in range(4):
        events = random.Random(seed).sample(recorded["traceEvents"], len(recorded["traceEvents"]))
        source = write(tmp_path / "t.json", json.dumps(recorded | {"traceEvents": events}).encode())
        results.add(msgspec.json.encode(analyze_trace(load(source)).result))
    assert len(results) == 1
