"""HTA on our object says what HTA says by itself: its frames are made equal, so its results are."""

from __future__ import annotations

import gzip
import json
import logging
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("hta", reason="compares with HolisticTraceAnalysis")
import hta
import pandas as pd
from hta.common.trace import add_iteration, transform_correlation_to_index
from hta.common.trace_symbol_table import TraceSymbolTable
from hta.trace_analysis import TraceAnalysis
from hypothesis import given
from hypothesis import strategies as st

import overlapscope as ov
from overlapscope.errors import UsageError
from overlapscope.export import chrome_trace
from overlapscope.export.chrome_trace import HOST_PID
from overlapscope.plugins.hta.build import StepRows, iterations, linked, microseconds, quiet
from overlapscope.plugins.hta.catalog import ANALYSES, HtaOptions
from overlapscope.plugins.hta.document import run
from tests.plugins.hta.recordings import TRACES, document, rewritten

DDP = ("ddp/rank0", "ddp/rank1")
JOBS = (
    DDP,
    ("pipeline_3stream",),
    ("known_causes/launch_bound_graph",),
    ("known_causes/host_sync_stacks",),
    ("mixed_workloads/model_on_two_devices",),
    ("mixed_workloads/kv_offload_running_ahead",),
)
"""Ranks with communication, streams, graphs, Python frames, two devices, steps whose launches are not recorded."""

OPERATOR = "aten::"
_COMPARED = sorted(set(ANALYSES) - {"counters", "stragglers"})
_SLOW = {"aten", "critical-path"}
"""Analyses for which HTA needs long if there are many launches; they are compared on the smaller recordings."""
CASES = [(job, name) for job in (DDP, JOBS[1], JOBS[2]) for name in _COMPARED if job != DDP or name not in _SLOW]
"""Jobs and analyses to compare: of those, `tests/plugins/hta/exhaustive` compares all but the second job's."""


class AnalysisPair(NamedTuple):
    """The same files, read by HTA and by us."""

    theirs: TraceAnalysis
    ours: TraceAnalysis


def read(files: dict[int, Path], **options: Any) -> AnalysisPair:
    with quiet():
        analysis = TraceAnalysis(trace_files={rank: str(path) for rank, path in files.items()}, **options)
    return AnalysisPair(analysis, ov.hta.trace_analysis(list(files.values()), **options))


def assert_same_frames(pair: AnalysisPair) -> None:
    assert pair.ours.t.get_ranks() == pair.theirs.t.get_ranks()
    for rank in pair.theirs.t.get_ranks():
        theirs, ours = pair.theirs.t.get_trace(rank), pair.ours.t.get_trace(rank)
        assert ours.index.equals(theirs.index)
        assert list(ours.columns)[-3:] == ["index_correlation", "iteration", "end"]
        assert set(ours.columns) <= set(theirs.columns)
        host = ours["pid"] == HOST_PID
        assert set(theirs["pid"][~host]).isdisjoint(theirs["pid"][host])
        assert (theirs["pid"][~host] == ours["pid"][~host]).all()
        for column in set(ours.columns) - {"pid"} - _COLLECTIVES:
            left, right = theirs[column], ours[column]
            if column in ("name", "cat"):
                left, right = (
                    rows[column].map(dict(enumerate(analysis.t.symbol_table.get_sym_table())))
                    for analysis, rows in ((pair.theirs, theirs), (pair.ours, ours))
                )
            elif column != "tid":
                assert left.dtype == right.dtype, column
            assert ((left == right) | (left.isna() & right.isna())).all(), column


_COLLECTIVES = {"collective_name", "msg_dtype", "in_msg_nelems", "out_msg_nelems", "group_size"}
"""A Trace does not have the host ops' notes on a collective; those of kernels have a separate test."""


def results(analysis: TraceAnalysis, name: str) -> Iterator[tuple[str, pd.DataFrame | str | None]]:
    """Titles and tables, or the error that HTA gives up with."""
    output = ANALYSES[name].run(analysis, HtaOptions(operator=OPERATOR))
    with quiet():
        try:
            yield from output
        except Exception as error:
            yield "error", f"{type(error).__name__}: {error}"


def assert_same_results(pair: AnalysisPair, name: str) -> None:
    result_rows, ours = list(results(pair.theirs, name)), list(results(pair.ours, name))
    assert [title for title, _ in result_rows] == [title for title, _ in ours]
    for (title, left), (_, right) in zip(result_rows, ours, strict=True):
        if isinstance(left, pd.DataFrame) and isinstance(right, pd.DataFrame):
            pd.testing.assert_frame_equal(left, right, check_dtype=False, obj=f"{name}: {title}")
        else:
            assert type(left) is type(right) and (left is None or left == right), f"{name}: {title}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Read a job of whole microseconds once."""

    @cache
    def read_job(job: tuple[str, ...]) -> AnalysisPair:
        folder = tmp_path_factory.mktemp("whole")
        return read({rank: rewritten(name, folder) for rank, name in enumerate(job)})

    return read_job


@pytest.mark.parametrize("job", JOBS[:2])
def test_frames_are_those_that_hta_makes(job: tuple[str, ...], whole: Any) -> None:
    assert_same_frames(whole(job))


@pytest.mark.parametrize("job", JOBS[4:5])
def test_frames_are_rounded_as_hta_rounds(job: tuple[str, ...]) -> None:
    assert_same_frames(read({rank: TRACES / f"{name}.json.gz" for rank, name in enumerate(job)}))


def test_times_since_1970_stay_on_their_microsecond() -> None:
    """In nanoseconds, as old versions of torch.profiler's times are read, doubles are 256 ns apart."""
    start_us = 1_698_955_360_300_243 + np.arange(100)
    ts, dur, end = microseconds(1000 * start_us, 1000 * (start_us + 7), nanoseconds=False)
    assert (ts == start_us).all() and (dur == 7).all() and (end == start_us + 7).all()


def test_the_last_step_is_kept_where_hta_is_asked_to() -> None:
    pair = read({0: TRACES / "pipeline_3stream.json.gz"}, include_last_profiler_step=True)
    assert_same_frames(pair)
    assert len(pair.ours.t.get_trace(0)) > len(read({0: TRACES / "pipeline_3stream.json.gz"}).ours.t.get_trace(0))


@pytest.mark.parametrize(("job", "name"), [case for case in CASES if case[0] == JOBS[1]])
def test_every_analysis_says_the_same(job: tuple[str, ...], name: str, whole: Any) -> None:
    assert_same_results(whole(job), name)


def test_the_straggler_is_the_same(tmp_path: Path) -> None:
    """On kernels called as NCCL called them when HTA's search was written, and one rank that comes late."""

    def older(rank: int) -> Any:
        def change(event: dict[str, Any]) -> dict[str, Any] | None:
            if event.get("cat") == "cpu_op":
                return None
            event["name"] = str(event.get("name")).replace("ncclDevKernel", "ncclKernel")
            if event["name"].startswith("ncclKernel"):
                late_us = 500 * rank
                event["ts"], event["dur"] = event["ts"] + late_us, 2000 - late_us
            return event

        return change

    pair = read({rank: rewritten(name, tmp_path, change=older(rank)) for rank, name in enumerate(DDP)})
    assert_same_results(pair, "stragglers")
    ((_, frame),) = results(pair.ours, "stragglers")
    assert isinstance(frame, pd.DataFrame) and set(frame["rank"]) == {0, 1}


def test_counters_are_read_by_hta_itself(tmp_path: Path) -> None:
    host = {"ph": "X", "pid": 9, "tid": 9, "dur": 10}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 9, "ts": 0, "args": {"name": "python"}},
        host | {"cat": "cpu_op", "name": "aten::mul", "ts": 100, "dur": 30, "args": {}},
        host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 110, "args": {"correlation": 5}},
        {"ph": "X", "cat": "kernel", "name": "mul", "pid": 0, "tid": 7, "ts": 130, "dur": 20}
        | {"args": {"device": 0, "stream": 7, "correlation": 5}},
        {"ph": "X", "cat": "cuda_profiler_range", "name": "mul", "pid": 0, "tid": 0, "ts": 131, "dur": 20}
        | {"args": {"smsp__inst_executed.sum": 4096}},
    ]
    path = tmp_path / "counters.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (table,) = run("counters", path).tables
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["smsp__inst_executed.sum"] == 4096 and row["top_level_op"] == "aten::mul"


# -- results drawn into copies


def _few_ops(event: dict[str, Any]) -> dict[str, Any] | None:
    """HTA takes a millisecond for each event that it draws or not."""
    name = str(event.get("name"))
    dropped = event["ph"] in "sf" or (event.get("cat") == "cpu_op" and name not in ("aten::linear", "aten::copy_"))
    return None if dropped else event


@pytest.mark.parametrize(
    ("name", "mark", "recording"),
    [("sequences", "Patterns", "ddp/rank0"), ("critical-path", "critical", "pipeline_3stream")],
)
def test_what_is_found_is_drawn_into_the_same_events(name: str, mark: str, recording: str, tmp_path: Path) -> None:
    pair = read({0: rewritten(recording, tmp_path, change=_few_ops)})
    marked = []
    for side, analysis in zip(("own", "ours"), pair, strict=True):
        drawn = tmp_path / side
        drawn.mkdir()
        with quiet():
            assert list(ANALYSES[name].run(analysis, HtaOptions(operator="aten::linear", overlay=drawn)))
        (file,) = drawn.iterdir()
        packed = file.read_bytes()
        events = json.loads(gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed)["traceEvents"]
        marked.append([(e["ts"], e["pid"], e["tid"], e["args"][mark]) for e in events if mark in (e.get("args") or {})])
    assert marked[0] and marked[0] == marked[1]


# -- what differs on purpose


def test_what_our_recorder_noted_fills_in_what_cuda_does_not_say() -> None:
    path = TRACES / "recorder" / "overlapscope.trace.json.gz"
    pair = read({0: path})
    theirs, ours = pair.theirs.t.get_trace(0), pair.ours.t.get_trace(0)
    left_out = theirs.drop(index=ours.index)
    names = pair.theirs.t.symbol_table.get_sym_table()
    assert all(names[name].startswith("overlapscope::") for name in left_out["name"])
    waits = ours["wait_on_stream"] >= 0
    assert waits.sum() >= (theirs["wait_on_stream"] >= 0).sum()
    assert (theirs.loc[ours.index, "ts"] == ours["ts"]).all()


def test_kernels_say_what_collective_they_are() -> None:
    rows = ov.hta.trace_analysis(TRACES / "ddp" / "rank0.json.gz").t.get_trace(0)
    if "collective_name" not in rows:
        pytest.skip("HTA reads it from 0.6 on")
    named = rows[rows["collective_name"] != ""]
    assert set(named["collective_name"]) == {"allreduce"} and (named["group_size"] == 2).all()
    events = document("ddp/rank0")["traceEvents"]
    for place, notes in named[["collective_name", "in_msg_nelems", "msg_dtype"]].iterrows():
        args = events[place]["args"]
        assert (args["Collective name"], args["In msg nelems"], args["dtype"]) == tuple(notes)


# -- traces of a job


def test_traces_and_files_may_be_given() -> None:
    paths = [TRACES / "ddp" / f"rank{rank}.json.gz" for rank in (1, 0)]
    assert ov.hta.trace_analysis([paths[0], ov.load(paths[1])]).t.get_ranks() == [0, 1]
    assert ov.hta.trace_analysis(TRACES / "ddp").t.get_ranks() == [0, 1]


def test_traces_without_a_rank_get_one_that_is_free() -> None:
    nameless = ov.load(TRACES / "pipeline_1stream.json.gz"), ov.load(TRACES / "pipeline_3stream.json.gz")
    assert [trace.rank for trace in nameless] == [None, None]
    analysis = ov.hta.trace_analysis([nameless[0], ov.load(TRACES / "ddp" / "rank0.json.gz"), nameless[1]])
    assert analysis.t.get_ranks() == [0, 1, 2]
    assert analysis.t.trace_files[0].endswith("ddp/rank0.json.gz")
    assert analysis.t.trace_files[1].endswith("pipeline_1stream.json.gz")


def test_two_traces_of_one_rank_are_refused() -> None:
    path = TRACES / "ddp" / "rank0.json.gz"
    with pytest.raises(UsageError, match=r"rank0.* are both of rank 0.*leave one out"):
        ov.hta.trace_analysis([ov.load(path), ov.load(path)])


def test_a_trace_without_events_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"traceEvents": []}')
    with pytest.raises(UsageError, match="has no events"):
        ov.hta.trace_analysis(path)


def test_hta_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run("critical-path", TRACES / "pipeline_3stream.json.gz")
    assert result.tables
    assert capfd.readouterr() == ("", "")


# -- what HTA adds to its rows, on any rows


@st.composite
def rows(draw: st.DrawFn) -> pd.DataFrame:
    count = draw(st.integers(1, 24))

    def column(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=count, max_size=count))

    # Places in a file ascend, and not all of its events are rows.
    index = np.cumsum(column(st.integers(1, 3)))
    return pd.DataFrame(
        {
            "index": index,
            "name": column(st.sampled_from([0, 0, 0, 1, 2, 3])),
            "cat": column(st.just(4)),
            "ts": column(st.integers(0, 60)),
            "dur": np.array(column(st.integers(0, 30)), np.float64),
            "stream": column(st.sampled_from([-1, -1, 0, 7])),
            "correlation": column(st.sampled_from([-1, 0, 5, 6, 7])),
        },
        index=pd.Index(index),
    )


@given(rows())
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_links_and_steps_are_those_of_hta(frame: pd.DataFrame) -> None:
    symbols = TraceSymbolTable()
    symbols.add_symbols(["kernel_of_its_own", "ProfilerStep#3", "ProfilerStep #14", "Event Sync", "kernel"])
    ours = frame.copy()
    with quiet():
        theirs = transform_correlation_to_index(frame, symbols)
        add_iteration(theirs, symbols)
    stream, correlation, name = (ours[column].to_numpy() for column in ("stream", "correlation", "name"))
    on_gpu = ((stream >= 0) & (correlation >= 0)) | (name == 3)
    index = ours["index"].to_numpy()
    links = linked(index, correlation, on_gpu)
    assert links.tolist() == theirs["index_correlation"].tolist()
    ts, dur = ours["ts"].to_numpy(), ours["dur"].to_numpy()
    at = np.flatnonzero((name == 1) | (name == 2))
    steps = StepRows(ts[at], ts[at] + dur[at], np.where(name[at] == 1, 3, 14))
    np.testing.assert_array_equal(iterations(ts, stream, index, links, steps), theirs["iteration"])


def test_the_logs_of_others_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    before = list(logging.getLogger().handlers), logging.getLogger("hta").disabled
    with quiet():
        logging.getLogger().error("heard")
        # HTA's behavior if it meets a node twice.
        code = compile(
            "logging.error('not heard')", str(Path(str(hta.__file__)).parent / "common" / "call_stack.py"), "exec"
        )
        exec(code, {"logging": logging})
    assert [record.message for record in caplog.records] == ["heard"]
    assert (list(logging.getLogger().handlers), logging.getLogger("hta").disabled) == before


def test_hta_takes_a_chrome_trace_of_ours_for_the_recording(tmp_path: Path) -> None:
    source = TRACES / "known_causes" / "launch_bound_graph.json.gz"
    path = tmp_path / "again.json.gz"
    path.write_bytes(b"".join(chrome_trace.blocks(ov.load(source), packed=True)))
    with quiet():
        first, second = (
            TraceAnalysis(trace_files={0: str(item)}, trace_dir="/").get_temporal_breakdown(visualize=False)
            for item in (source, path)
        )
    assert first.equals(second)
