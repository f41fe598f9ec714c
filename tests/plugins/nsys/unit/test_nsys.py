"""Tests of reports of Nsight Systems: every figure is that of the database, and other files give a message."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import lzma
import os
import re
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overlapscope as ov
from overlapscope.analysis import analyze_trace
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.commands import main
from overlapscope.errors import NotInTrace, UnreadableTrace
from overlapscope.export import annotated
from overlapscope.plugins.nsys.report import parts
from overlapscope.reading import expand, load_all
from overlapscope.reading.cache import Cache
from overlapscope.reading.cache_folder import Folder
from overlapscope.reading.source import ReadRequest
from overlapscope.reading.steps import named_steps, range_steps
from overlapscope.trace.model import Kind, Sync, Trace
from tests.support.endless_tables import make_endless
from tests.support.helpers import MS, TRACES, Host, Op, make_trace
from tests.support.session import session

REPORTS = ("offload_2gpu", "train_2gpu", "one_copy")
PROCESSES = [("offload_2gpu", 0), ("offload_2gpu", 1), ("train_2gpu", 0), ("train_2gpu", 1), ("one_copy", 0)]
H2D, D2H = 1, 2
PYTORCHS = r"torch|dataloader|non_blocking|pin_memory|\.item\(|\baten::|ProfilerActivity"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a directory with the exported reports, each of which is read once."""
    folder = tmp_path_factory.mktemp("nsys")
    for name in REPORTS:
        (folder / f"{name}.sqlite").write_bytes(lzma.decompress((TRACES / "nsys" / f"{name}.sqlite.xz").read_bytes()))
    with session(folder):
        yield folder


def query(path: Path, text: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(text).fetchall()


def gpu_tables(path: Path) -> list[str]:
    there = {name for (name,) in query(path, "SELECT name FROM sqlite_schema")}
    return [kind for kind in ("KERNEL", "MEMCPY", "MEMSET") if f"CUPTI_ACTIVITY_KIND_{kind}" in there]


def processes(path: Path) -> list[int]:
    rows = query(path, "SELECT min(deviceId), globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY globalPid ORDER BY 1")
    return [process for _, process in rows]


def of(reports: Path, name: str, number: int) -> tuple[Path, int, Trace]:
    path = reports / f"{name}.sqlite"
    result = processes(path)
    # As the file has it, without steps by the period of its launches.
    return path, result[number], ov.load(f"{path}@{number}" if len(result) > 1 else path, periodic=False)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems want names of text")
def test_a_report_may_have_a_name_that_is_no_text(reports: Path, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"%41\xff.sqlite")
    shutil.copy(reports / "one_copy.sqlite", path)
    assert expand([tmp_path]) == [path]
    assert len(ov.load(path).gpu_ops)


# -- figures ---------------------------------------------------------------------------------------


def sweep(path: Path, process: int) -> dict[str, int]:
    """Return the buckets of a process's only device from the rows of the database alone, instant by instant."""
    changes: Counter[tuple[int, str]] = Counter()
    for table in gpu_tables(path):
        name = "(SELECT value FROM StringIds WHERE id = shortName)" if table == "KERNEL" else "''"
        way = "copyKind" if table == "MEMCPY" else "0"
        where = f"FROM CUPTI_ACTIVITY_KIND_{table} WHERE globalPid = {process}"
        for start, end, kernel, direction in query(path, f"SELECT start, end, {name}, {way} {where}"):
            copies = table == "MEMCPY" and direction in (H2D, D2H)
            kind = "copy" if copies else "other" if table != "KERNEL" else "comm" if "nccl" in kernel else "compute"
            changes[start, kind] += 1
            changes[end, kind] -= 1
    running: Counter[str] = Counter()
    buckets: Counter[str] = Counter()
    instants = sorted({at for at, _ in changes})
    for at, following in zip(instants, [*instants[1:], instants[-1]], strict=True):
        for kind in ("compute", "comm", "copy", "other"):
            running[kind] += changes[at, kind]
        first = next((kind for kind in ("compute", "comm", "copy", "other") if running[kind]), "idle")
        buckets[first] += following - at
        buckets["U(copy)"] += (following - at) * bool(running["copy"])
    return {**buckets, "span": instants[-1] - instants[0]}


@pytest.mark.parametrize(("name", "number"), PROCESSES)
def test_buckets_are_those_of_a_sweep_over_the_databases_rows(reports: Path, name: str, number: int) -> None:
    path, process, trace = of(reports, name, number)
    truth = Counter(sweep(path, process))
    (device,) = ov.analyze(trace).devices
    buckets = device.buckets
    assert device.span_ns == truth["span"]
    assert buckets.compute_ns == truth["compute"]
    assert buckets.exposed_comm_ns == truth["comm"]
    assert buckets.exposed_copy_ns == truth["copy"]
    assert buckets.exposed_other_ns == truth["other"]
    assert buckets.idle_ns == truth["idle"]
    assert device.overlap.copy_ns == truth["U(copy)"]


@pytest.mark.parametrize(("name", "number"), PROCESSES)
def test_kernels_have_the_databases_grids_and_blocks(reports: Path, name: str, number: int) -> None:
    path, process, trace = of(reports, name, number)
    truth = query(
        path,
        "SELECT gridX * gridY * gridZ, blockX * blockY * blockZ FROM CUPTI_ACTIVITY_KIND_KERNEL "
        f"WHERE globalPid = {process}",
    )
    ops = trace.gpu_ops
    kernels = ops.take((ops.kind == Kind.COMPUTE) | (ops.kind == Kind.COMM))
    assert sorted(zip(kernels.blocks.tolist(), kernels.block_threads.tolist(), strict=True)) == sorted(truth)


@pytest.mark.parametrize(("name", "number"), PROCESSES)
def test_copies_have_the_databases_directions_memory_kinds_sizes_and_times(
    reports: Path, name: str, number: int
) -> None:
    path, process, trace = of(reports, name, number)
    ops = trace.gpu_ops
    kinds = {0: "pageable", 1: "pinned", 2: "device"}
    truth = {
        (way, kinds[source], kinds[target]): (count, size, time)
        for way, source, target, count, size, time in query(
            path,
            "SELECT copyKind, srcKind, dstKind, count(*), sum(bytes), sum(end - start) FROM "
            f"CUPTI_ACTIVITY_KIND_MEMCPY WHERE globalPid = {process} AND copyKind IN (1, 2) GROUP BY 1, 2, 3",
        )
    }
    frame = ops.take(ops.is_copy).to_pandas()
    frame["time"] = frame.end_ns - frame.start_ns
    copies = {
        (H2D if kind == "h2d" else D2H, source, target): (len(rows), rows["bytes"].sum(), rows["time"].sum())
        for (kind, source, target), rows in frame.groupby(["kind", "source_kind", "target_kind"], observed=True)
    }
    assert copies == truth


@pytest.mark.parametrize(("name", "number"), PROCESSES)
def test_each_op_has_the_call_that_launched_it(reports: Path, name: str, number: int) -> None:
    path, process, trace = of(reports, name, number)
    ops, calls = trace.gpu_ops, trace.runtime_calls
    joined = " UNION ALL ".join(
        f"SELECT g.start, g.streamId, r.start, (SELECT value FROM StringIds WHERE id = r.nameId) "
        f"FROM CUPTI_ACTIVITY_KIND_{table} g JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = g.correlationId "
        f"AND r.globalTid / 0x1000000 = g.globalPid / 0x1000000 WHERE g.globalPid = {process}"
        for table in gpu_tables(path)
    )
    launched = np.flatnonzero(ops.launch >= 0)
    rows = [
        (start - trace.base_ns, stream, called - trace.base_ns, name)
        for start, stream, called, name in zip(
            ops.start_ns[launched].tolist(),
            ops.stream[launched].tolist(),
            calls.start_ns[ops.launch[launched]].tolist(),
            (calls.name(row) for row in ops.launch[launched].tolist()),
            strict=True,
        )
    ]
    truth = [(start, stream, called, name.partition("_v")[0]) for start, stream, called, name in query(path, joined)]
    assert sorted(rows) == sorted(truth)


@pytest.mark.parametrize(("name", "number"), PROCESSES)
def test_calls_waits_and_ranges_are_those_of_the_process(reports: Path, name: str, number: int) -> None:
    path, process, trace = of(reports, name, number)
    threads = f"globalTid BETWEEN {process} AND {process} + 0xFFFFFF"
    (calls,) = query(path, f"SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE {threads}")
    runtime_calls = trace.runtime_calls
    assert (len(runtime_calls), int((runtime_calls.end_ns - runtime_calls.start_ns).sum())) == calls
    waits = query(
        path,
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId "
        f"WHERE value LIKE 'cudaStreamWaitEvent%' AND {threads}",
    )[0][0]
    assert int((trace.syncs.kind == Sync.STREAM_WAIT_EVENT).sum()) == waits
    if name != "one_copy":
        (ranges,) = query(
            path, f"SELECT count(*), sum(end - start) FROM NVTX_EVENTS WHERE eventType = 59 AND {threads}"
        )
        tables = (trace.cpu_ops, trace.annotations)
        assert (sum(map(len, tables)), sum(int((t.end_ns - t.start_ns).sum()) for t in tables)) == ranges


def test_the_call_says_what_a_wait_is_where_the_export_calls_it_something_else(reports: Path) -> None:
    # Schema 3.24.14 gave this `cudaStreamSynchronize` the type of a stream's wait for an event.
    trace = of(reports, "one_copy", 0)[2]
    assert trace.syncs.kind.tolist() == [Sync.STREAM]


# -- messages ------------------------------------------------------------------------------------


def test_a_report_of_several_processes_is_one_trace_for_each(reports: Path) -> None:
    path = reports / "train_2gpu.sqlite"
    assert [location.name for location in expand(path)] == ["train_2gpu.sqlite@0", "train_2gpu.sqlite@1"]
    traces = load_all(path)
    assert [trace.rank for trace in traces] == [0, 1]
    assert [trace.devices for trace in traces] == [(0,), (1,)]
    assert {(trace.recorder, trace.framework) for trace in traces} == {("nsys", "pytorch")}
    with pytest.raises(UnreadableTrace, match=r"holds 2 processes; name one of .*@0 and .*@1\."):
        ov.load(path)
    with pytest.raises(UnreadableTrace, match="has 2 processes, counted from 0"):
        ov.load(f"{path}@2")


def test_analyze_prints_a_report(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(reports / "one_copy.sqlite")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("one_copy.sqlite, NVIDIA GeForce RTX 3080: In all that was")
    assert "GPU is idle for 22.4 ms" in out
    assert "the host launches kernels for the first time" in " ".join(out.split())
    # The cost of recording with Nsight Systems is unknown.
    assert "program without the profiler" not in out


# -- files that are not reports --------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a database in the file `report.sqlite`, to be filled."""
    with closing(sqlite3.connect(tmp_path / "report.sqlite")) as connection:
        yield connection


def sentence(path: Path) -> str:
    with pytest.raises(UnreadableTrace) as caught:
        ov.load(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and message.endswith(".") and "\n" not in message
    return message


KERNELS = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, shortName)"
STRINGS = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)"


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (["CREATE TABLE notes (text)"], "lacks the table StringIds"),
        ([STRINGS], "it lacks the table StringIds, or tables of CUDA"),
        ([STRINGS, "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, deviceId)"], "has no column end, streamId"),
        ([STRINGS, KERNELS, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x', 1, 0, 7, 1, 1)"], "whole numbers"),
        ([STRINGS, KERNELS, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1.5, 2, 0, 7, 1, 1)"], "whole numbers"),
        ([STRINGS, KERNELS, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 9e99, 0, 7, 1, 1)"], "whole numbers"),
    ],
)
def test_a_foreign_database_is_one_sentence(
    tmp_path: Path, database: sqlite3.Connection, statements: list[str], says: str
) -> None:
    for statement in statements:
        database.execute(statement)
    database.commit()
    assert says in sentence(tmp_path / "report.sqlite")


def test_a_report_without_rows_has_no_gpu_activity(
    tmp_path: Path, database: sqlite3.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute(STRINGS)
    database.execute(KERNELS)
    database.commit()
    assert len(ov.load(tmp_path / "report.sqlite").gpu_ops) == 0
    main(["analyze", str(tmp_path / "report.sqlite")])
    printed = " ".join(capsys.readouterr().out.split())
    assert "The trace has no GPU activity" in printed and "`nsys profile --trace=cuda`" in printed
    assert "torch" not in printed


def test_a_report_that_says_itself_that_it_lacks_cuda_is_quoted(
    tmp_path: Path, database: sqlite3.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute(STRINGS)
    database.execute(KERNELS)
    database.execute("CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)")
    messages = [
        (1, "Number of CUDA events collected: 0."),
        (2, "No NVTX events collected. Does the process use NVTX?"),
        (2, "No CUDA events collected. Does the process use CUDA?"),
        (2, "No CUDA events collected. Does the process use CUDA?"),
    ]
    database.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (?, ?)", messages)
    database.commit()
    main(["analyze", str(tmp_path / "report.sqlite")])
    printed = " ".join(capsys.readouterr().out.split())
    assert 'kind. Nsight Systems itself says: "No CUDA events collected. Does the process use CUDA?" Overlap' in printed


@pytest.mark.parametrize("length", [16, 100, 5000, 50_000])
def test_a_damaged_report_is_one_sentence(reports: Path, tmp_path: Path, length: int) -> None:
    content = (reports / "one_copy.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(content[:length])
    assert "the database cannot be read" in sentence(path)
    path.write_bytes(content[:length].ljust(len(content), b"\xff"))
    assert "the database cannot be read" in sentence(path)


def test_a_compressed_report_is_to_be_unpacked_and_not_called_damaged(reports: Path, tmp_path: Path) -> None:
    path = tmp_path / "one_copy.sqlite.gz"
    path.write_bytes(gzip.compress((reports / "one_copy.sqlite").read_bytes()))
    assert sentence(path).endswith("the database is compressed; unpack it first, for example with `gunzip -k`.")


def test_changes_in_a_write_ahead_log_are_not_left_out_in_silence(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(STRINGS)
    database.execute(KERNELS)
    database.commit()
    assert "report.sqlite-wal beside it holds changes" in sentence(tmp_path / "report.sqlite")


def test_nothing_of_a_database_is_run_and_nothing_is_written(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute(STRINGS)
    # A view in the place of a table would run its author's SQL.
    database.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT writefile('x', 'y') AS start")
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, streamId)")
    database.commit()
    path = tmp_path / "report.sqlite"
    before = path.read_bytes(), sorted(tmp_path.iterdir())
    assert len(ov.load(path).gpu_ops) == 0
    assert (path.read_bytes(), sorted(tmp_path.iterdir())) == before


def test_times_that_cannot_be_are_left_out_and_counted(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute(STRINGS)
    database.execute(KERNELS)
    rows = [(1000 * n, 1000 * n + 500, 0, 7, n, 1) for n in range(1, 10)]
    rows += [(4000, 3000, 0, 7, 99, 1), (5000, 1 << 60, 0, 7, 98, 1)]
    database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", rows)
    database.commit()
    trace = ov.load(tmp_path / "report.sqlite")
    assert len(trace.gpu_ops) == 9
    assert trace.damage.impossible_by == {"compute": 2}


def test_marks_among_calls_of_the_system_are_no_calls(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute(STRINGS)
    database.execute(KERNELS)
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 9000, 0, 7, 1, 1)")
    database.execute("INSERT INTO StringIds VALUES (70, 'OS runtime libraries profiling started'), (71, 'poll')")
    database.execute("CREATE TABLE OSRT_API (start INT, end INT, globalTid INT, nameId INT)")
    database.execute("INSERT INTO OSRT_API VALUES (500, 500, 1, 70), (1500, 4500, 1, 71)")
    database.commit()
    trace = ov.load(tmp_path / "report.sqlite")
    assert [trace.cpu_ops.name(row) for row in range(len(trace.cpu_ops))] == ["poll"]
    [times] = [check for check in ov.analyze(trace).traces[0].trust.checks if check.id == "durations"]
    assert times.status == "ok"


def test_calls_of_the_system_are_called_so(
    tmp_path: Path, database: sqlite3.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute(STRINGS)
    database.execute(KERNELS)
    database.execute("INSERT INTO StringIds VALUES (71, 'poll')")
    database.execute("CREATE TABLE OSRT_API (start INT, end INT, globalTid INT, nameId INT)")
    database.executemany(
        "INSERT INTO OSRT_API VALUES (?, ?, 1, 71)", [(10_000 * n, 10_000 * n + 9000) for n in range(9)]
    )
    database.commit()
    assert main(["analyze", str(tmp_path / "report.sqlite")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "% in ops and system calls" in out and "Start with the ops and system calls: poll takes 81.0 us." in out


# -- everything after the trace -----------------------------------------------------------------------


def test_a_chrome_trace_of_it_for_perfetto_reads_as_the_same(reports: Path, tmp_path: Path) -> None:
    path, _, trace = of(reports, "train_2gpu", 0)
    analysis = analyze_trace(trace)
    written = tmp_path / "annotated.json.gz"
    written.write_bytes(b"".join(annotated.write(analysis, Path(f"{path}@0"))))
    again = ov.load(written)
    assert again.recorder == "nsys"
    assert ov.analyze(again).devices[0].buckets == analysis.result.devices[0].buckets
    assert b'"name":"buckets"' in gzip.decompress(written.read_bytes()).replace(b": ", b":")


def test_the_cache_keeps_each_process_by_itself(reports: Path, tmp_path: Path) -> None:
    cache = Cache(Folder(tmp_path), 1 << 30, least_bytes=0, settled_ns=0)
    for _ in range(2):
        for number in (0, 1):
            trace = cache.load(reports / f"train_2gpu.sqlite@{number}", ReadRequest(progress=False))
            assert (trace.rank, trace.devices) == (number, (number,))
    assert len(cache.folder.held()) == 2


@pytest.mark.parametrize("command", ["analyze", "whatif", "diff", "check", "html"])
def test_commands_read_it(reports: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    single = str(reports / "offload_2gpu.sqlite@0")
    other = str(reports / "offload_2gpu.sqlite@1")
    words = {
        "analyze": ["analyze", single, other],
        "whatif": ["whatif", single, "--side-stream"],
        "diff": ["diff", single, other],
        "check": ["check", single],
        "html": ["analyze", single, "--format", "html", "-o", str(tmp_path / "report.html")],
    }
    # Parts of this one are lost, so nothing can be judged.
    assert main(words[command]) == (3 if command == "check" else 0)
    captured = capsys.readouterr()
    assert "offload_2gpu.sqlite@0" in captured.out + captured.err + (
        (tmp_path / "report.html").read_text() if command == "html" else ""
    )


def test_an_output_does_not_overwrite_the_report(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = reports / "train_2gpu.sqlite"
    assert main(["analyze", f"{path}@0", "--format", "json", "--force", "-o", str(path)]) == 2
    assert "is also an input" in " ".join(capsys.readouterr().err.split())


# -- steps ----------------------------------------------------------------------------------------------


def annotated_loop(names: list[str], outer: str = "") -> Trace:
    """Return a loop that launches one kernel in each range, from one thread; 10 ms a turn."""
    return make_trace(
        [
            Op(Kind.COMPUTE, at + 2 * MS, at + 8 * MS, launch=(at + MS, at + MS + 1000))
            for at in range(0, len(names) * 10 * MS, 10 * MS)
        ],
        annotations=[
            *(Host(name, n * 10 * MS, n * 10 * MS + 9 * MS) for n, name in enumerate(names)),
            *([Host(outer, 0, len(names) * 10 * MS)] if outer else []),
        ],
    )


def steps_of(trace: Trace) -> list[str]:
    return [name for name in map(trace.annotations.name, range(len(trace.annotations))) if name.startswith("Prof")]


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["iteration 4", "iteration 5", "iteration 6"], [4, 5, 6]),
        (["train_step"] * 4, [0, 1, 2, 3]),
        (["step[7]", "step[8]", "step[9]"], [7, 8, 9]),
        (["once", "twice"], []),
    ],
)
def test_ranges_that_repeat_around_the_launches_are_steps(names: list[str], steps: list[int]) -> None:
    trace = range_steps(annotated_loop(names, outer="main"))
    assert steps_of(trace) == [f"ProfilerStep#{number}" for number in steps]
    if steps:
        (device,) = ov.analyze(trace).devices
        assert [step.name for step in device.steps] == steps_of(trace)
        assert [step.span_ns for step in device.steps[:-1]] == [10 * MS] * (len(steps) - 1)


def test_steps_by_takes_the_ranges_of_a_name() -> None:
    trace = named_steps(annotated_loop(["a 1", "b 1", "a 2", "b 2"]), "a *")
    assert steps_of(trace) == ["ProfilerStep#1", "ProfilerStep#2"]
    assert trace.steps_by == "a *"
    # The steps it had are none any more.
    assert steps_of(named_steps(trace, "b *")) == ["ProfilerStep#1", "ProfilerStep#2"]
    with pytest.raises(NotInTrace, match="no range is named 'c'"):
        named_steps(trace, "c")


def test_steps_by_is_an_option_of_the_commands(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(reports / "train_2gpu.sqlite@0")
    assert main(["analyze", path, "--steps-by", "no such *"]) == 2
    assert "no range is named 'no such *'" in " ".join(capsys.readouterr().err.split())


def test_steps_of_tensorrt_llm_come_before_other_ranges(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute(STRINGS)
    database.execute("INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel'), (2, 'gemm')")
    database.execute(KERNELS)
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, nameId, globalTid, correlationId)")
    database.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, text, globalTid)")
    for number, (prefill, decode) in enumerate([(2, 0), (0, 7), (1, 7), (0, 7)]):
        at = 10_000 * number
        mark = f"[Executor] _forward_step {number + 40}: {prefill} ctx reqs, {decode} gen reqs"
        ranges = [(at, at + 5000, 59, mark, 5), (at + 10, at + 4000, 59, f"layer {number}", 5)]
        database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", ranges)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 1, 5, ?)", (at + 20, at + 60, number))
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, ?, 2)", (at + 90, at + 900, number)
        )
    database.commit()
    trace = ov.load(tmp_path / "report.sqlite")
    assert trace.step_source == "marks of TensorRT-LLM"
    assert steps_of(trace) == [
        "ProfilerStep#0 (prefill: 2 requests)",
        "ProfilerStep#1 (decode: 7 requests)",
        "ProfilerStep#2 (mixed: 8 requests, 7 decode)",
        "ProfilerStep#3 (decode: 7 requests)",
    ]


def test_graphs_recorded_as_one_op_are_reported(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute(STRINGS)
    database.execute(KERNELS)
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 2000, 0, 7, 1, 1)")
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, streamId, graphId)")
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (3000, 9000, 0, 7, 5)")
    database.commit()
    trace = ov.load(tmp_path / "report.sqlite")
    assert [trace.gpu_ops.name(row) for row in range(2)] == ["unnamed", "CUDA graph 5"]
    (result,) = ov.analyze(trace).traces
    assert [check.status for check in result.trust.checks if check.id == "graphs"] == ["warn"]
    assert result.devices[0].buckets.compute_ns == 7000


def test_events_say_what_a_stream_waited_for(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute(STRINGS)
    database.execute(KERNELS)
    for id_, name in enumerate(
        ("kernel", "cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020", "cudaLaunchKernel_v7000")
    ):
        database.execute("INSERT INTO StringIds VALUES (?, ?)", (id_, name))
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, nameId, globalTid, correlationId)")
    calls = [(100, 110, 3, 1), (120, 130, 1, 2), (140, 150, 1, 3), (160, 170, 2, 4), (180, 190, 3, 5)]
    database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, 5, ?)", calls)
    database.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, ?, ?, 0)", [(200, 300, 7, 1), (300, 400, 13, 5)]
    )
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION "
        "(start, end, deviceId, streamId, correlationId, syncType, eventId, eventSyncId)"
    )
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES (161, 169, 0, 13, 4, 2, 9, 70)")
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT (deviceId, streamId, correlationId, eventId, eventSyncId)"
    )
    # The event was recorded twice; the id says that the first record was waited for.
    database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (0, ?, ?, 9, ?)", [(7, 2, 70), (13, 3, 71)])
    database.commit()
    syncs = ov.load(tmp_path / "report.sqlite").syncs
    assert (syncs.source_stream.tolist(), syncs.record_correlation.tolist()) == ([7], [2])
    database.execute("UPDATE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SET eventSyncId = 4294967295")
    database.commit()
    syncs = ov.load(tmp_path / "report.sqlite").syncs
    assert (syncs.source_stream.tolist(), syncs.record_correlation.tolist()) == ([13], [3])


@pytest.mark.parametrize(
    "table", ["CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "TARGET_INFO_CUDA_STREAM"]
)
def test_pages_that_refer_to_one_page_again_and_again_are_one_sentence(
    table: str, reports: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.sqlite"
    shutil.copy(reports / "one_copy.sqlite", path)
    make_endless(path, table)
    with pytest.raises(UnreadableTrace, match=r"^\S+: the database (is damaged|cannot be read)"):
        ov.load(path)
    assert parts(path) <= 1


def test_a_database_with_a_process_in_each_row_is_damaged(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute(STRINGS)
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, globalPid)")
    rows = [(n, n + 1, 0, 7, n << 24) for n in range(20_000)]
    database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?)", rows)
    database.commit()
    assert "names 20,000 processes" in sentence(tmp_path / "report.sqlite")
    assert expand(tmp_path / "report.sqlite") == [tmp_path / "report.sqlite"]


def test_a_number_that_no_device_has_is_no_device(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute(STRINGS)
    database.execute(KERNELS)
    numbers = [0, 255, 256, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -1, -(1 << 63), *range(1000, 100_000_000, 132_275)]
    rows = [(1000 * n, 1000 * n + 500, device, 7, n, 1) for n, device in enumerate(numbers, 1)]
    database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", rows)
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, srcDeviceId, dstDeviceId)"
    )
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 9, 0, 7, 2147483647, 1)")
    database.commit()
    trace = ov.load(tmp_path / "report.sqlite")
    assert trace.devices == (-1, 0, 255)
    assert (trace.gpu_ops.source_device.max(), trace.gpu_ops.target_device.max()) == (-1, 1)
    assert [device.device for device in ov.analyze(trace).devices] == [-1, 0, 255]


def test_names_need_no_key_to_be_found_by(tmp_path: Path, database: sqlite3.Connection) -> None:
    # Each search through a table without a key would take thousands of instructions; all must share some millions.
    database.execute("CREATE TABLE StringIds (id, value)")
    database.execute(KERNELS)
    database.execute(
        "CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT, domainId INT)"
    )
    count = 3000
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", ((n, f"name {n}") for n in range(3 * count)))
    kernels = [(1000 * n, 1000 * n + 500, 0, 7, n, n) for n in range(1, count)]
    database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", kernels)
    ranges: list[tuple[int, int, int, str | None, int | None, int]]
    ranges = [(1000 * n, 1000 * n + 900, 59, None, count + n, 0) for n in range(1, count)]
    ranges += [(1, 2, 59, "its own", None, 0), (1, 3, 59, None, 99_999, 0), (1, 4, 59, None, None, 0)]
    database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", ranges)
    database.commit()
    trace = ov.load(tmp_path / "report.sqlite")
    assert [trace.gpu_ops.name(row) for row in range(count - 1)] == [f"name {n}" for n in range(1, count)]
    named = [trace.annotations.name(row) for row in range(len(trace.annotations))]
    assert named == ["unnamed", "unnamed", "its own", *(f"name {count + n}" for n in range(1, count))]


def test_a_reader_of_another_program_reads_nothing_of_pytorch(reports: Path, tmp_path: Path) -> None:
    """The reports with names as a CUDA C++ program would have them, and the traces of JAX."""
    # Copies, because the output names files, and the checkout may have any name.
    traces = [Path(shutil.copy(TRACES / "jax" / f"{name}.xplane.pb", tmp_path)) for name in ("late", "prefetched")]
    for name in REPORTS:
        traces.append(tmp_path / f"{name}.sqlite")
        shutil.copy(reports / traces[-1].name, traces[-1])
        with closing(sqlite3.connect(traces[-1])) as database:
            _rename(database)
    changes = [f"--{name}" for name in INTERVENTIONS if name not in ("no-sync", "less-host")]
    changes.append("--less-host=python")
    commands = [
        ["diff", "-v", *map(str, traces[:2])],
        ["whatif", "-v", str(traces[0]), "--no-sync=np.asarray(jax.Array)"],
    ]
    for trace in map(str, traces):
        commands += [["analyze", "-v", trace], ["check", "-v", trace, "--budget", "idle_pct <= 0%"]]
        commands += [["whatif", "-v", f"{trace}@0" if "2gpu" in trace else trace, *changes]]
    # A change that comes after another may have nothing left to do, and says less.
    of_both = itertools.cycle((str(traces[0]), f"{traces[3]}@0"))
    commands += [["whatif", "-v", trace, change] for change, trace in zip(changes, of_both, strict=False)]
    with session(tmp_path):
        for command in commands:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                assert main(command) in (0, 1, 3), command
            # The document of a prediction does not know what recorded the trace, and says whom the advice is for.
            output = " ".join(out.getvalue().split()).replace("for PyTorch, `overlapscope run` measures it", "")
            match = re.search(PYTORCHS, output, re.IGNORECASE)
            assert not match, (command, output[max(match.start() - 80, 0) : match.end() + 80])


def _rename(database: sqlite3.Connection) -> None:
    tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    for table, column in [("StringIds", "value"), ("NVTX_EVENTS", "text")]:
        if (table,) in tables:
            for old in ("at::native::", "aten::", "triton_", "torch"):
                database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, 'own_')", [old])
    database.commit()
