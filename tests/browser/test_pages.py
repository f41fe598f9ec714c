"""Overview, copies, idle and stalls, steps: on real traces, with everything on them that can be clicked."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from overlapscope import timeline as lanes
from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.average import in_frame
from overlapscope.analysis.each_copy import list_copies
from overlapscope.analysis.figures import Window
from overlapscope.analysis.strip import most_informative
from overlapscope.report.document import strip_title
from overlapscope.report.model import build
from overlapscope.report.page import DeviceReport
from overlapscope.report.page import Page as ReportPage
from overlapscope.report.tables import called
from overlapscope.report.verdict import cost, judge, to_fix
from overlapscope.rules.explained import examples, explanation
from tests.browser.conftest import TRACES, Serve
from tests.browser.helpers import arrive, check_accessible, holding, settle, visit
from tests.support import kineto_files
from tests.support.dashboard_process import Served
from tests.support.recordings import analysis_of
from tests.support.served import Pass, write_server

JUDGED = ("overview", "copies", "idle", "steps")
OFFLOAD = "laboratory/offload_pipeline/one_stream"
SYNCS = "known_causes/item_every_step_stacks"
TWO_DEVICES = "mixed_workloads/model_on_two_devices"
SHOWN = ("gpt2_train", SYNCS, "mixed_workloads/kv_offload")


def analysed(trace: str) -> TraceAnalysis:
    ending = ".trace.json.gz" if trace.startswith("laboratory") else ".json.gz"
    return analysis_of(TRACES / f"{trace}{ending}")


def section_of(trace: str) -> DeviceReport:
    return next(ReportPage(build([analysed(trace)])).sections())


def check_timeline_shows(page: Page, trace: str, window: Window) -> None:
    """Check that the timeline is open and that its span, as the URL states it, contains the window."""
    page.wait_for_url(re.compile(r"/timeline\?"))
    query = parse_qs(urlsplit(page.url).query)
    origin = lanes.build(analysed(trace)).origin_ns
    assert query["trace"] == [trace]
    shown = (int(query["from"][0]) + origin, int(query["to"][0]) + origin)
    assert shown[0] <= window.start_ns < window.end_ns <= shown[1]
    assert shown[1] - shown[0] <= 4 * max(window.end_ns - window.start_ns, 10_000)


def column(page: Page, grid: str, field: str) -> list[str]:
    """Return the texts of a column's cells, from the top; of a long grid, only the drawn ones."""
    cells: list[list[Any]] = page.locator(f'#{grid} .ag-row [col-id="{field}"]').evaluate_all(
        "cells => cells.map(cell => [Number(cell.closest('.ag-row').getAttribute('row-index')), cell.innerText])"
    )
    return [text for _, text in sorted(cells)]


@pytest.mark.parametrize("trace", SHOWN)
def test_the_answer_needs_no_scrolling(page: Page, dashboard: Served, trace: str) -> None:
    visit(page, dashboard, trace=trace)
    section = section_of(trace)
    verdict = judge(section)
    expect(page.locator("#verdict-level")).to_have_text(verdict.level)
    start = verdict.lead[:40]
    expect(page.locator("#verdict-text")).to_contain_text(start, ignore_case=True)
    expect(page.locator("#verdict-text")).to_be_in_viewport(ratio=1)
    if not verdict.of_finding:
        for sentence in filter(None, (verdict.why, verdict.remedy)):
            expect(page.get_by_text(sentence)).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("trace", [SYNCS, OFFLOAD, "gpt2_train", "laboratory/kv_offload/on_demand"])
def test_the_first_screen_says_what_to_change_where_and_what_it_saves(
    page: Page, dashboard: Served, trace: str
) -> None:
    page.set_viewport_size({"width": 1280, "height": 720})
    visit(page, dashboard, trace=trace)
    section = section_of(trace)
    finding = to_fix(section)
    assert finding is not None
    shown = page.locator("#overview-findings .mantine-Accordion-item").first
    step = page.locator("#overview-timeline-step")
    expect(step).to_have_attribute("data-exact", "true")
    for part in (
        page.locator("#verdict-text"),
        step.locator(".tl-canvas"),
        shown.get_by_text(finding.title),
        shown.get_by_text(called(finding)).first,
        shown.get_by_text(finding.advice.partition("\n")[0], exact=True),
        shown.get_by_text(cost(section, finding)),
        shown.get_by_role("button", name="copy the command"),
    ):
        expect(part).to_be_in_viewport(ratio=1)


def test_the_first_screen_draws_the_step_that_the_terminal_draws(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, trace=OFFLOAD)
    device = section_of(OFFLOAD).window
    assert device is not None
    extent = most_informative(device)
    expect(page.get_by_text(strip_title(extent))).to_be_in_viewport()
    expect(page.locator("#overview-timeline-step")).to_have_attribute("data-exact", "true")
    kinds, view = page.evaluate(
        """() => [[...new Set(overlapscope.activeTimeline.model.lanes.map((lane) => lane.kind))],
                  overlapscope.activeTimeline.toCaller(overlapscope.activeTimeline.view)]"""
    )
    span_ns = extent.window.end_ns - extent.window.start_ns
    assert kinds == ["overlap", "stream"]
    assert (view["start"], view["end"]) == pytest.approx((-0.02 * span_ns, 1.02 * span_ns), abs=0.001 * span_ns)


def test_a_button_copies_the_command_of_a_finding(page: Page, dashboard: Served) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(page, dashboard, trace=OFFLOAD)
    button = page.get_by_role("button", name="copy the command").first
    command = button.get_attribute("data-copy")
    button.click()
    expect(button).to_have_text("Copied")
    assert command is not None and command.startswith("overlapscope whatif ")
    assert page.evaluate("navigator.clipboard.readText()") == command
    expect(button).to_have_text("Copy")


def test_a_finding_has_evidence_advice_and_code_and_leads_to_its_place(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, trace=SYNCS)
    finding = section_of(SYNCS).findings[0]
    card = page.locator("#overview-findings .mantine-Accordion-item").first
    for text in (finding.title, finding.detail, *finding.advice.splitlines(), "known_causes.py:272"):
        expect(card).to_contain_text(text)
    assert finding.example is not None
    for number, code in enumerate(examples(finding.rule)):
        shown = card.locator("pre").nth(number).inner_text()
        assert shown.split() == code.split()
    card.get_by_text("means and how it is computed").click()
    expect(card).to_contain_text(explanation(finding.rule).meaning[:60])
    card.get_by_text("show in timeline").click()
    check_timeline_shows(page, SYNCS, finding.example)


def test_findings_open_and_close(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, trace=OFFLOAD)
    first, second = section_of(OFFLOAD).findings[:2]
    advice = page.get_by_text(second.advice.partition("\n")[0])
    expect(page.get_by_text(first.advice.partition("\n")[0])).to_be_visible()
    expect(advice).not_to_be_visible()
    page.get_by_text(second.title).click()
    expect(advice).to_be_visible()


def test_warnings_say_what_they_make_unknown(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, trace="known_causes/host_sync_stacks")
    trust = page.locator("#overview-trust")
    expect(trust).to_contain_text("Trust: degraded")
    expect(trust).to_contain_text("step-skew")
    expect(trust).to_contain_text("leave out copies that ran early for it")


def test_a_click_on_a_copy_shows_it_in_the_timeline(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "copies", trace=OFFLOAD)
    chart = page.locator("#copies-bandwidth .js-plotly-plot")
    expect(chart).to_be_visible()
    row = page.evaluate(
        """() => {
            const chart = document.querySelector('#copies-bandwidth .js-plotly-plot');
            chart.emit('plotly_click', {points: [{curveNumber: 0, pointNumber: 0, x: 1, y: 1,
                data: chart.data[0], fullData: chart._fullData[0], customdata: chart.data[0].customdata[0]}]});
            return chart.data[0].customdata[0][0];
        }"""
    )
    copies = list_copies(analysed(OFFLOAD).devices[0])
    (number,) = (copies.row == row).nonzero()[0].tolist()
    window = Window(start_ns=int(copies.start_ns[number]), end_ns=int(copies.end_ns[number]))
    check_timeline_shows(page, OFFLOAD, window)


def test_a_click_on_a_step_shows_it_in_the_timeline(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "steps", trace=OFFLOAD)
    bar = page.locator("#steps-chart .barlayer .point path").first
    box = bar.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    check_timeline_shows(page, OFFLOAD, analysed(OFFLOAD).devices[0].result.steps[0].window)


def test_where_a_click_leads_does_not_matter_once_one_has_gone_elsewhere(page: Page, dashboard: Served) -> None:
    """However late its answer."""
    visit(page, dashboard, "steps", trace=OFFLOAD)

    box = page.locator("#steps-chart .barlayer .point path").first.bounding_box()
    assert box is not None
    click = '"steps-chart.clickData"'
    with holding(page, "**/_dash-update-component*", posting=click):
        with page.expect_request(lambda request: click in (request.post_data or "")):
            page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.locator("#go-copies").click()
        expect(page.locator("#copies-bandwidth")).to_be_visible()
    settle(page)
    arrive(page, "copies")


def follow(page: Page, link: Locator) -> None:
    """Follows a link, which must not load the page anew."""
    page.evaluate("window.same = true")
    link.click()
    page.wait_for_url(re.compile(r"/timeline\?"))
    settle(page)
    assert page.evaluate("window.same") is True


def test_rows_lead_to_the_timeline(page: Page, dashboard: Served) -> None:
    result = analysed(SYNCS).devices[0].result
    visit(page, dashboard, "idle", trace=SYNCS, of="recorded")
    follow(page, page.locator("#idle-evidence .timeline-link").first)
    check_timeline_shows(page, SYNCS, next(group for group in result.evidence if group.subject == "idle").example)
    page.go_back()
    page.wait_for_url(re.compile(r"/idle\?"))
    settle(page)
    expect(page.locator("#idle-evidence")).to_be_visible()
    visit(page, dashboard, "steps", trace=SYNCS, of="recorded")
    follow(page, page.locator("#steps-table .timeline-link").first)
    check_timeline_shows(page, SYNCS, result.steps[0].window)


def test_causes_of_exposed_communication_lead_to_the_timeline(page: Page, dashboard: Served) -> None:
    trace = "ddp/rank1"
    visit(page, dashboard, "idle", trace=trace, of="recorded")
    expect(page.locator("#exposed-comm-evidence")).to_contain_text("allreduce of default_pg (2 ranks)")
    check_accessible(page)
    follow(page, page.locator("#exposed-comm-evidence .timeline-link").first)
    cases = in_frame(analysed(trace).devices[0].result).evidence
    check_timeline_shows(page, trace, next(case for case in cases if case.subject == "exposed-comm").example)


def test_kernels_are_found_by_name_and_lead_to_the_longest(page: Page, dashboard: Served) -> None:
    trace = "ddp/rank1"
    kernels = [group for group in in_frame(analysed(trace).devices[0].result).kernels if group.comm]
    visit(page, dashboard, "kernels", trace=trace, of="recorded")
    expect(page.locator("#content")).to_contain_text("Figures are of an average step.")
    page.locator("#kernels-table-search").fill("nccl")
    rows = page.locator("#kernels-table .ag-center-cols-container .ag-row")
    expect(rows).to_have_count(len(kernels))
    exposed = column(page, "kernels-table", "exposed")
    assert [float(text) for text in exposed] == pytest.approx([group.exposed_ns / 1e6 for group in kernels], abs=0.005)
    follow(page, page.locator("#kernels-table .timeline-link").first)
    check_timeline_shows(page, trace, kernels[0].example)


def test_tables_sort_by_number_not_by_letter(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "idle", trace="gpt2_train")
    header = page.locator('#idle-evidence .ag-header-cell[col-id="count"]')
    header.click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    # Rows are drawn a moment after the title says that they are sorted.
    settle(page)
    counts = [float(text.replace(",", "")) for text in column(page, "idle-evidence", "count")]
    assert len(counts) > 5
    assert counts == sorted(counts)


def test_a_table_is_saved_as_csv_with_exact_numbers(page: Page, dashboard: Served, tmp_path: Path) -> None:
    visit(page, dashboard, "copies", trace=OFFLOAD)
    with page.expect_download() as download:
        page.locator("#copies-groups-csv").click()
    assert download.value.suggested_filename == "copies-groups.csv"
    download.value.save_as(tmp_path / "saved.csv")
    with (tmp_path / "saved.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    section = section_of(OFFLOAD)
    assert section.device is not None
    groups = section.device.copies
    assert [section.steps * int(row["bytes"]) for row in rows] == [group.bytes for group in groups]
    assert [float(row["time, ms"]) * 1e6 for row in rows] == pytest.approx([group.time_ns for group in groups])
    assert [row["copies"] for row in rows] == [group.direction for group in groups]


def test_stalls_name_their_line_of_code(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "idle", trace=SYNCS)
    expect(page.locator("#idle-stalls")).to_contain_text(re.compile(r"known_causes\.py:\d+"))


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of recordings that each lack something: copies, steps, a GPU."""
    folder = tmp_path_factory.mktemp("odd")
    kernels = [kineto_files.call(10, 2, 1), kineto_files.kernel(15, 100, correlation=1)]
    kineto_files.write(folder / "kernel.json", kernels)
    kineto_files.write(folder / "cpu.json", [kineto_files.host("cpu_op", "aten::add", 10, 5)])
    return folder


def test_a_row_opens_its_place_in_the_timeline(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "steps", trace=OFFLOAD, of="recorded")
    page.locator("#steps-table .ag-row [col-id=compute]").first.click()
    check_timeline_shows(page, OFFLOAD, analysed(OFFLOAD).devices[0].result.steps[0].window)


def test_several_traces_are_listed_with_their_verdicts(page: Page, odd: Path, serve_traces: Serve) -> None:
    served = serve_traces(odd)
    page.goto(served.address)
    settle(page)
    rows = page.locator("#traces-rows tr")
    expect(rows).to_have_count(2)
    expect(page.locator("#traces-listed")).not_to_contain_text("of 2 read")
    expect(rows.first).to_contain_text("kernel")
    expect(rows.filter(has_text="kernel")).to_contain_text("nothing is copied")
    expect(rows.filter(has_text="cpu")).to_contain_text("in ops")
    check_accessible(page)
    for width in (420, 900):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("() => document.documentElement.scrollWidth <= window.innerWidth")
    # The header's choice leads on, too.
    page.locator("#trace-select").fill("kernel")
    page.get_by_role("option", name="kernel").click()
    arrive(page, "overview", "kernel")
    page.locator(".shell-name").click()
    rows.filter(has_text="cpu").get_by_role("link", name="open").click()
    arrive(page, "overview", "cpu")
    expect(page.locator("#verdict-text")).to_contain_text("in ops")


def test_pages_that_have_nothing_to_show_are_hidden(page: Page, odd: Path, serve_traces: Serve) -> None:
    served = serve_traces(odd)
    visit(page, served, trace="cpu")
    for name in ("overview", "timeline", "compare", "ranks", "traces"):
        expect(page.locator(f"#go-{name}")).to_be_visible()
    for name in ("copies", "steps", "whatif", "history", "laboratory"):
        expect(page.locator(f"#go-{name}")).to_have_count(0)
    visit(page, served, "history", trace="kernel")
    expect(page.locator("#go-history")).to_be_visible()
    expect(page.locator("#go-whatif")).to_be_visible()


def test_what_is_missing_is_reported(page: Page, odd: Path, serve_traces: Serve) -> None:
    served = serve_traces(odd)
    expected = {
        "overview": "nothing is copied between host and device",
        "copies": "Nothing is copied",
        "idle": "None in this recording",
        "steps": "overlapscope.step()",
    }
    for name, sentence in expected.items():
        visit(page, served, name, trace="kernel")
        expect(page.locator("#content")).to_contain_text(sentence, ignore_case=True)


def test_a_recording_without_a_gpu_shows_what_the_host_did(page: Page, odd: Path, serve_traces: Serve) -> None:
    served = serve_traces(odd)
    for name in JUDGED:
        visit(page, served, name, trace="cpu")
        # Without samples, waits on the host don't show.
        expect(page.locator("#verdict-level")).to_have_text("unknown")
        expect(page.locator("#content")).to_contain_text("no GPU activity")
        expect(page.locator("#content")).not_to_contain_text("To record again")
        expect(page.locator("#content")).to_contain_text("aten::add")
        assert page.locator(".js-plotly-plot").count() == 0


def test_phases_of_a_server_are_side_by_side(page: Page, serve_traces: Serve, tmp_path: Path) -> None:
    prefill, decode = "execute_context_2(600)_generation_0(0)", "execute_context_0(0)_generation_7(7)"
    passes = [Pass([prefill], gpu=3000)] * 3 + [Pass([decode])] * 9
    served = serve_traces(write_server(tmp_path / "server.json", passes))
    visit(page, served)
    table = page.locator("#overview-phases")
    expect(page.locator("#content")).to_contain_text("Steps by phase")
    expect(table).to_contain_text("tokens a second")
    check_accessible(page)
