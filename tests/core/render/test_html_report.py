"""Tests of the report as an HTML file: complete, small, harmless, and with tiles for every zoom."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overlapscope import timeline as lanes
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.commands import main
from overlapscope.reading import expand
from overlapscope.render import html
from overlapscope.report.model import build
from overlapscope.report.page import Page
from overlapscope.rules.explained import examples
from overlapscope.timeline import Lanes
from overlapscope.timeline.file import DRAWN_COLUMNS, MIN_COLUMN_NS, TimeSpan, pyramids
from overlapscope.timeline.file import document as file_document
from overlapscope.trace.model import Kind, Trace
from tests.support.helpers import MS, US, Host, Op, make_trace, thorough
from tests.support.recordings import analysis_of

TRACES = Path(__file__).parents[3] / "traces"
LIMIT_BYTES = 5_000_000
HOSTILE = "</script><img src=x onerror=alert(1)>"


def analyses(name: str) -> tuple[TraceAnalysis, ...]:
    return tuple(analysis_of(path) for path in expand([TRACES / name]))


@cache
def rendered(name: str) -> str:
    done = analyses(name)
    return html.render(file_document(Page(build(done)), [lanes.build(part) for part in done]))


def of_trace(trace: Trace) -> str:
    analysis = analyze_trace(trace)
    return html.render(file_document(Page(build([analysis])), [lanes.build(analysis)]))


def data(document: str, name: str) -> Any:
    """Return the document's attached data of a name."""
    [packed] = re.findall(rf'<script type="text/plain" id="packed-{name}">([^<]*)</script>', document)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


class Parsed(HTMLParser):
    """Parser of a page that notes its text, the addresses that it loads, and unclosed tags."""

    VOID = ("meta", "br", "img")

    def __init__(self, document: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.attributes: list[dict[str, str | None]] = []
        self.feed(document)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))
        self.loaded += [value for name, value in attrs if name in ("src", "href") and value and value[0] != "#"]
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.text += f" {data}"


# -- the file -------------------------------------------------------------------------------------

SHOWN = ["pipeline_1stream.json.gz", "ddp"]
if thorough():
    SHOWN += ["gpt2_train.json.gz", "pipeline_3stream.json.gz", "laboratory/fsdp_offload/offload.traces"]


@pytest.mark.parametrize("name", SHOWN)
def test_the_report_is_one_small_file_that_loads_nothing(name: str) -> None:
    document = rendered(name)
    page = Parsed(document)
    assert page.loaded == [] and page.open == []
    assert len(document.encode()) < LIMIT_BYTES
    assert len(page.ids) == len(set(page.ids))
    assert "default-src 'none'" in document and "form-action 'none'" in document


def test_a_report_is_the_same_every_time() -> None:
    done = analyses("pipeline_1stream.json.gz")
    again = html.render(file_document(Page(build(done)), [lanes.build(part) for part in done]))
    assert again == rendered("pipeline_1stream.json.gz")


def test_it_says_what_the_other_reports_say() -> None:
    text = Parsed(rendered("pipeline_1stream.json.gz")).text
    for part in (
        "in each step of 29.5 ms, copies run alone for 22.4 ms (76.2%;",
        "exposed copy 22.44 ms 76.2%",
        "Uploads and downloads take turns",
        "saves about 15.4 ms a step (52.2%)",
        "no-compute 16.36 72.9",
        "Every check of the trace passed.",
    ):
        assert part in text, part


def test_every_finding_has_its_evidence_advice_and_code() -> None:
    findings = Page(build(analyses("ddp"))).findings
    text = Parsed(rendered("ddp")).text
    assert findings
    for finding in findings:
        for part in (
            finding.title,
            finding.detail,
            finding.advice,
            *examples(finding.rule),
        ):
            assert " ".join(part.split()) in text, part


@pytest.mark.parametrize("name", SHOWN)
def test_a_finding_leads_into_its_own_timeline(name: str) -> None:
    document = rendered(name)
    timelines = data(document, "timelines")
    buttons = [attribute for attribute in Parsed(document).attributes if "data-timeline" in attribute]
    assert len(buttons) == len([each for each in Page(build(analyses(name))).findings if each.example is not None])
    for button in buttons:
        model = timelines[button["data-timeline"]]["model"]
        start, end = map(int, str(button["data-example"]).split())
        first, last = map(int, str(button["data-view"]).split())
        assert model["start"] <= first <= start <= end <= last <= model["end"]


def test_several_ranks_are_compared_before_each_is_reported() -> None:
    document = rendered("ddp")
    text = Parsed(document).text
    assert text.index("Traces") < text.index("Findings")
    assert "rank0.json.gz, rank 0" in text and "rank1.json.gz, rank 1" in text
    assert {"timeline-0", "timeline-1"} == set(data(document, "timelines"))


def test_charts_are_there_for_light_and_dark() -> None:
    charts = data(rendered("ddp"), "charts")
    page = Parsed(rendered("ddp"))
    assert charts.keys() == {attribute["id"] for attribute in page.attributes if attribute.get("class") == "plot"}
    assert all(light != dark for light, dark in charts.values())


def test_names_from_a_trace_cannot_act() -> None:
    ops = [
        Op(Kind.COMPUTE, n * MS, n * MS + 900 * US, launch=(n * MS - 50, n * MS - 10), name=f"{HOSTILE} kernel {n}")
        for n in range(1, 5)
    ]
    calls = [Host(f"cudaStreamSynchronize{HOSTILE}", n * MS + US, n * MS + 950 * US) for n in range(1, 5)]
    annotations = [Host(f"{HOSTILE} range", MS - 100, 4 * MS), Host("ProfilerStep#1", MS - 100, 3 * MS)]
    document = of_trace(make_trace(ops, calls=calls, annotations=annotations, source=f"/tmp/{HOSTILE}.json"))
    page = Parsed(document)
    assert "img" not in page.tags and page.open == []
    assert document.count("</script>") == document.count("<script")
    assert HOSTILE in page.text
    # In a browser, they are text as well.
    tiles = data(document, "timelines")["timeline-0"]["tiles"]
    assert any(HOSTILE in name for tile in tiles for name in header_of(tile)["names"])


@pytest.mark.parametrize(
    "trace",
    [
        make_trace(),
        make_trace(cpu_ops=[Host("aten::mm", 0, 10)]),
        make_trace([Op(Kind.COMPUTE, 5, 5)]),
        make_trace([Op(Kind.H2D, 5, 50, launch=(1, 2))]),
    ],
    ids=["nothing", "no GPU op", "an op of no length", "one copy"],
)
def test_a_trace_with_next_to_nothing_in_it_has_a_report(trace: Trace) -> None:
    page = Parsed(of_trace(trace))
    assert page.open == [] and "Trust:" in page.text


# -- tiles ----------------------------------------------------------------------------------------


def header_of(tile: str) -> dict[str, Any]:
    raw = gzip.decompress(base64.b64decode(tile))
    (length,) = struct.unpack_from("<I", raw)
    header: dict[str, Any] = json.loads(raw[4 : 4 + length])
    return header


def drawn_in(tile: str) -> set[tuple[int, int]]:
    """Lane and row of every op that a tile draws singly."""
    raw = gzip.decompress(base64.b64decode(tile))
    (length,) = struct.unpack_from("<I", raw)
    header = json.loads(raw[4 : 4 + length])
    drawn_ops = set()
    for lane in header["lanes"]:
        count, at = lane["ops"]["count"], lane["ops"]["at"]
        rows = np.frombuffer(raw, "<u4", count, 4 + length + at + 8 * count)
        drawn_ops |= {(lane["lane"], row) for row in rows.tolist()}
    return drawn_ops


def prepared(name: str) -> list[Lanes]:
    return [lanes.build(analysis) for analysis in analyses(name)]


def test_with_room_enough_every_op_is_drawn_singly_somewhere() -> None:
    [pyramid] = pyramids(lanes_known := prepared("pipeline_3stream.json.gz"), [[]], 10**9)
    drawn = set().union(*map(drawn_in, pyramid["tiles"]))
    least_ns = DRAWN_COLUMNS * MIN_COLUMN_NS * 4
    for lane in lanes_known[0].lanes:
        long = np.flatnonzero(lane.end_ns - lane.start_ns >= least_ns)
        assert {(lane.id, row) for row in long.tolist()} <= drawn, lane.label


@pytest.mark.parametrize("budget", [0, 50_000, 400_000])
def test_tiles_keep_to_their_budget_and_begin_with_the_whole(budget: int) -> None:
    lanes_known = prepared("ddp")
    result = pyramids(lanes_known, [[], []], budget)
    first = [len(base64.b64decode(entry["tiles"][0])) for entry in result]
    spent = sum(len(base64.b64decode(tile)) for entry in result for tile in entry["tiles"])
    assert spent <= max(budget, sum(first))
    for pyramid, trace in zip(result, lanes_known, strict=True):
        header = header_of(pyramid["tiles"][0])
        assert header["start"] <= trace.start_ns and header["end"] >= trace.end_ns


def test_no_trace_is_zoomed_into_much_further_than_another() -> None:
    result = pyramids(prepared("ddp"), [[], []], 300_000)
    finest = [min(header["end"] - header["start"] for header in map(header_of, entry["tiles"])) for entry in result]
    assert max(finest) < 8 * min(finest)


def test_an_example_has_a_tile_of_its_own_around_it() -> None:
    lanes_known = prepared("gpt2_train.json.gz")
    example = TimeSpan(1_000_000, 1_050_000)
    [pyramid] = pyramids(lanes_known, [[example]], 100_000)
    spans = [(header["start"], header["end"]) for header in map(header_of, pyramid["tiles"])]
    assert any(start <= example.start_ns and end >= example.end_ns and end - start < 5 * 50_000 for start, end in spans)


# -- the command ----------------------------------------------------------------------------------


def test_the_command_writes_it(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    arguments = ["analyze", str(TRACES / "ddp"), "--format", "html", "--output", str(target)]
    assert main(arguments) == 0
    assert target.read_text() == rendered("ddp")


def test_one_step_is_shown_alone(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    trace = str(TRACES / "gpt2_train.json.gz")
    assert main(["analyze", trace, "--format", "html", "--step", "4", "--output", str(target)]) == 0
    document = target.read_text()
    assert "ProfilerStep#4" in Parsed(document).text
    timeline = data(document, "timelines")["timeline-0"]
    start, end = timeline["view"]
    assert 0 < start < end < timeline["model"]["end"]
