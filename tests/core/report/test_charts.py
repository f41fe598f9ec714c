"""Tests that charts show the report's figures, in numbers and in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec.structs import replace

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.each_copy import EachCopy, list_copies
from overlapscope.documents.colors import palette
from overlapscope.report import charts, lists
from overlapscope.report.charts import MAX_STEPS, choose, drawn_steps
from overlapscope.report.model import build
from overlapscope.report.page import DeviceReport, Page
from overlapscope.report.tables import bar, cause_tables
from overlapscope.trace.model import Kind, Memory, Trace
from tests.support.helpers import TRACES, US, Host, Op, make_trace, tried
from tests.support.recordings import analysis_of, report_of

RECORDINGS = tried(
    [
        *sorted((TRACES / "known_causes").glob("*.json.gz")),
        TRACES / "laboratory/offload_pipeline/one_stream.trace.json.gz",
        TRACES / "mixed_workloads/model_on_two_devices.json.gz",
    ]
)
BOTH = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
EACH = pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
EVIL = "<img src=x onerror=alert(1)>\x1b[31m&lt;b>"


def sections_of(analysis: TraceAnalysis) -> list[DeviceReport]:
    return list(Page(build([analysis]), verbose=True).sections())


def sections_in(path: Path) -> list[DeviceReport]:
    return list(Page(report_of(path)).sections())


def figures(analysis: TraceAnalysis, sections: list[DeviceReport], dark: bool) -> list[dict[str, Any]]:
    figures = []
    for section, device in zip(sections, analysis.devices, strict=True):
        assert section.device is not None
        figures += [charts.steps(section, section.device, dark)]
        figures.append(charts.bandwidth(section, list_copies(device), dark))
    return figures


@BOTH
@EACH
def test_a_figure_is_plain_json_with_units_in_its_hovers(path: Path, dark: bool) -> None:
    for figure in figures(analysis_of(path), sections_in(path), dark):
        assert "NaN" not in json.dumps(figure)
        assert figure["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"
        for trace in figure["data"]:
            assert trace.get("hoverinfo") == "skip" or "<extra></extra>" in trace["hovertemplate"]


@EACH
def test_the_parts_of_a_bar_are_the_span(path: Path) -> None:
    for section in sections_in(path):
        assert section.device is not None
        parts = bar(section.device, section.unit).parts
        assert sum(part.amount for part in parts) == section.device.span_ns
        cells = [row.cells[0] for table in cause_tables(section.device, section.unit) for row in table.rows]
        assert {*(part.color for part in parts), *(cell.color for cell in cells)} <= palette(False).keys()
        # "< 0.1" adds nothing, and stands for what "> 99.9" lacks.
        exact = sum(float(part.share.lstrip("> ")) for part in parts if "<" not in part.share)
        assert exact == pytest.approx(99.9 if any(">" in part.share for part in parts) else 100)


@EACH
def test_each_step_is_as_high_as_its_span(path: Path) -> None:
    for section in sections_in(path):
        assert section.device is not None
        bars = [trace for trace in charts.steps(section, section.device, False)["data"] if trace["type"] == "bar"]
        heights = np.sum([trace["y"] for trace in bars], axis=0) if bars else []
        spans = [step.span_ns / section.unit.ns for step in section.device.steps]
        assert list(heights) == pytest.approx(spans)


def test_many_steps_are_thinned_but_no_outlier_is_lost() -> None:
    ops, notes, at = [], [], 0
    for number in range(3 * MAX_STEPS):
        length = 9000 if number == 1234 else 1000
        ops.append(Op(Kind.COMPUTE, at, at + length, launch=(10 * number + 1, 10 * number + 2)))
        notes.append(Host(f"ProfilerStep#{number}", 10 * number, 10 * number + 10))
        at += length
    (section,) = sections_of(analyze_trace(make_trace(ops, annotations=notes)))
    assert section.device is not None
    rows = drawn_steps(section.device).tolist()
    assert len(rows) <= MAX_STEPS + 1
    assert 1234 in rows
    marks = [trace for trace in charts.steps(section, section.device, False)["data"] if trace["name"] == "outlier"]
    assert [trace["x"] for trace in marks] == [[1234]]


def copies_of(sizes: Any, lengths: Any, exposed: Any, directions: Any, memories: Any) -> EachCopy:
    count = len(sizes)
    start = np.zeros(count, np.int64)
    memory = np.where(memories, Memory.PINNED, Memory.PAGEABLE)
    columns = {
        "names": (),
        "row": np.arange(count),
        "kind": np.where(directions, Kind.H2D, Kind.D2H),
        "source_kind": memory,
        "target_kind": memory,
        "start_ns": start,
        "end_ns": start + lengths,
        "bytes": sizes,
        "exposed_ns": np.minimum(exposed, lengths),
        "cause": np.where(exposed > 0, 3, -1),
    }
    return EachCopy.filled(**dict.fromkeys(EachCopy.__struct_fields__, -1) | columns)


def columns(low: int, high: int) -> st.SearchStrategy[Any]:
    return hnp.arrays(np.int64, 300, elements=st.integers(low, high))


@given(
    columns(-1, 2**40),
    columns(1, 10**9),
    columns(0, 10**9),
    hnp.arrays(np.bool_, 300),
    hnp.arrays(np.bool_, 300),
    st.integers(40, 320),
)
def test_thinning_keeps_the_most_exposed_and_the_fastest(
    sizes: Any, lengths: Any, exposed: Any, directions: Any, memories: Any, most: int
) -> None:
    copies = copies_of(sizes, lengths, exposed, directions, memories)
    drawn, sized = choose(copies, most), np.flatnonzero(sizes > 0)
    assert len(drawn) <= most and (len(sized) > most or len(drawn) == len(sized))
    assert (np.diff(drawn) > 0).all() and np.isin(drawn, sized).all()
    if len(sized):
        for column in (copies.exposed_ns, copies.gb_per_s):
            assert column[drawn].max() == column[sized].max()


def evil_trace() -> Trace:
    step, half = 100 * US, 50 * US
    ops = [
        op
        for n in range(6)
        for op in (
            Op(Kind.H2D, n * step, n * step + half, launch=(n * step - 9, n * step - 8), size=1 << 20, name=EVIL),
            Op(Kind.COMPUTE, n * step + half, (n + 1) * step, launch=(n * step - 7, n * step - 6), name=EVIL),
        )
    ]
    notes = [Host(f"ProfilerStep#{n}", n * step - 10, (n + 1) * step - 10) for n in range(6)]
    notes += [Host(EVIL, n * step - 10, n * step - 5) for n in range(6)]
    return make_trace(ops, annotations=notes, cpu_ops=[Host(EVIL, -20, 6 * step)], source=f"{EVIL}.json")


@BOTH
def test_foreign_names_are_harmless_in_every_figure(dark: bool) -> None:
    analysis = analyze_trace(evil_trace())
    for figure in figures(analysis, sections_of(analysis), dark):
        text = json.dumps(figure)
        assert "<img" not in text
        assert "\\u001b[" not in text


def test_foreign_names_are_cleaned_in_every_grid() -> None:
    analysis = analyze_trace(evil_trace())
    (section,), (device,) = sections_of(analysis), analysis.devices
    tables = [lists.ranges(section, device.result), lists.evidence(section, device.result, "exposed-copy")]
    texts = [cell.text for grid in tables for row in grid.rows for cell in row.cells]
    assert any("<img" in text for text in texts)
    assert not any("\x1b" in text for text in texts)


@EACH
def test_every_row_of_a_grid_has_a_cell_for_each_column(path: Path) -> None:
    analysis = analysis_of(path)
    for section, device in zip(sections_of(analysis), analysis.devices, strict=True):
        result = device.result
        tables = [
            lists.copies(section, result),
            lists.evidence(section, result, "exposed-copy"),
            lists.evidence(section, result, "idle"),
            lists.stalls(section, result),
            lists.each_step(section, result),
            lists.ranges(section, result),
        ]
        for table in tables:
            assert all(len(row.cells) == len(table.columns) for row in table.rows)
            assert len({column.id for column in table.columns}) == len(table.columns)
        stalls = lists.stalls(section, result)
        assert len(stalls.rows) == len(result.host_stalls)


@pytest.mark.parametrize("threads", [(1, 1), (1, 2)])
def test_host_stalls_that_differ_only_in_their_thread_show_it(threads: tuple[int, int]) -> None:
    ops = [Op(Kind.COMPUTE, at, at + 90 * US, launch=(at - US, at)) for at in (0, 200 * US, 400 * US)]
    calls = [Host("cudaStreamSynchronize", 50 * US + n * 200 * US, 150 * US + n * 200 * US, threads[n]) for n in (0, 1)]
    analysis = analyze_trace(make_trace(ops, calls=calls))
    [section], [device] = sections_of(analysis), analysis.devices
    [thread] = [column for column in lists.stalls(section, device.result).columns if column.id == "thread"]
    assert thread.extra is (threads == (1, 1))


def test_shares_of_idle_time_leave_out_time_in_which_the_gpu_may_have_worked() -> None:
    [section] = sections_in(TRACES / "known_causes" / "host_compute.json.gz")
    idle = section.device
    assert idle is not None
    more_ns = 9 * idle.buckets.idle_ns
    longer = replace(
        idle,
        span_ns=idle.span_ns + more_ns,
        buckets=replace(idle.buckets, idle_ns=idle.buckets.idle_ns + more_ns),
        idle_by_cause=idle.idle_by_cause | {"missing-ops": more_ns},
        evidence=(*idle.evidence, replace(idle.evidence[0], subject="idle", cause="missing-ops", time_ns=more_ns)),
    )
    assert lists.evidence(section, longer, "idle").rows == lists.evidence(section, idle, "idle").rows
    assert lists.stalls(section, longer).rows == lists.stalls(section, idle).rows
