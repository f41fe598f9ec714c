"""Compare, Ranks and Laboratory, and the export of a view."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from playwright.sync_api import Page, expect

from overlapscope.base.saved import encode
from tests.browser.conftest import TRACES, Serve
from tests.browser.helpers import arrive, go, holding, settle, visit
from tests.support.dashboard_process import Served
from tests.support.ranks_samples import job

BEFORE, AFTER = "pipeline_1stream", "pipeline_3stream"

# -- compare


def canvases(page: Page) -> list[str]:
    return [
        str(page.locator(f"#compare-timeline-{name} canvas").first.evaluate("canvas => canvas.toDataURL()"))
        for name in ("before", "after")
    ]


def exact(page: Page) -> None:
    for name in ("before", "after"):
        expect(page.locator(f"#compare-timeline-{name}")).to_have_attribute("data-exact", "true", timeout=30_000)


def test_two_traces_are_compared(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "compare", trace=BEFORE, **{"with": AFTER})
    expect(page.locator("#compare-level")).to_have_text("faster")
    expect(page.locator("#compare-text")).to_contain_text(re.compile(r"Step 5\d\.\d% faster .* now hidden"))
    expect(page.locator("#compare-changes tr").filter(has_text="exposed copy").first).to_contain_text("better")
    details = page.locator("#compare-changes details")
    expect(details.first).to_contain_text("Overlap")
    expect(details.first.locator("table")).not_to_be_visible()
    details.first.locator("summary").click()
    expect(details.first.locator("table")).to_be_visible()
    expect(page.locator("#content")).not_to_contain_text("-v lists all")
    findings = page.locator("#compare-findings tr")
    expect(findings.filter(has_text="one-way-copies")).to_contain_text("gone")
    expect(findings.filter(has_text="host-sync")).to_contain_text("same")


def test_zooming_one_timeline_zooms_the_other(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "compare", trace=BEFORE, **{"with": AFTER})
    exact(page)
    before = canvases(page)
    page.locator("#compare-timeline-before").get_by_role("button", name="zoom in").click()
    exact(page)
    after = canvases(page)
    assert before[0] != after[0] and before[1] != after[1]


def in_view(page: Page) -> list[int]:
    """Return the span shown by the timeline that was last used, relative to its zero, which the other one shares."""
    shown: list[int] = page.evaluate(
        "(({ view, offset }) => [view.start - offset, view.end - offset])(overlapscope.activeTimeline)"
    )
    return shown


def test_a_view_that_was_zoomed_to_outlives_the_arrival_of_the_other_timeline(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "copies", trace=BEFORE, **{"with": AFTER})
    with holding(page, f"**/api/timeline/model?trace={AFTER}*"):
        page.locator("#go-compare").click()
        before = page.locator("#compare-timeline-before")
        expect(before).to_have_attribute("data-exact", "true", timeout=30_000)
        before.get_by_role("button", name="zoom in").click()
        zoomed = in_view(page)
    exact(page)
    settle(page)
    assert in_view(page) == zoomed


def test_two_timelines_stay_where_they_are_in_light_and_dark(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "compare", trace=BEFORE, **{"with": AFTER})
    page.locator("#compare-timeline-before").get_by_role("button", name="zoom in").click()
    exact(page)
    zoomed = in_view(page)
    page.locator("#scheme-toggle").click()
    settle(page)
    exact(page)
    assert in_view(page) == zoomed


def test_the_second_trace_is_chosen_from_all(page: Page, serve_traces: Serve) -> None:
    files = (TRACES / f"{name}.json.gz" for name in ("gpt2_train", BEFORE, AFTER))
    visit(page, serve_traces(*files), "compare", trace=BEFORE)
    expect(page.locator("#content")).to_contain_text("Choose the second trace")
    page.locator("#compare-after").click()
    page.locator("#compare-after").fill(AFTER)
    page.get_by_role("option", name=AFTER).click()
    page.wait_for_url(f"**with={AFTER}*")
    expect(page.locator("#compare-text")).to_be_visible(timeout=30_000)
    page.locator("#compare-after").click()
    page.locator("#compare-after").fill("gpt2")
    page.get_by_role("option", name="gpt2_train").click()
    page.wait_for_url("**with=gpt2_train*")
    page.go_back()
    page.wait_for_url(f"**with={AFTER}*")
    # The address is there before Dash knows of it.
    expect(page.locator("#compare-after")).to_have_value(AFTER, timeout=30_000)
    settle(page)
    page.locator("#compare-swap").click()
    expect(page.locator("#compare-text")).to_contain_text("slower", timeout=30_000)
    assert f"trace={AFTER}" in page.url and f"with={BEFORE}" in page.url


def test_what_cannot_be_compared_is_reported(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "compare", trace="gpt2_train", **{"with": "known_causes/host_sync_stacks"})
    expect(page.locator("#content")).to_contain_text("steps")


def test_one_trace_alone_says_how_to_open_more(page: Page, serve_traces: Serve) -> None:
    messages = {
        "compare": "A comparison needs two",
        "ranks": "torchrun --nproc-per-node 8 -m overlapscope run train.py",
        "laboratory": "overlapscope scenarios run --all",
    }
    for name, sentence in messages.items():
        visit(page, serve_traces(TRACES / "gpt2_train.json.gz"), name)
        expect(page.locator("#content")).to_contain_text(sentence)


# -- ranks


def test_ranks_of_a_folder_are_read_and_compared(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "ranks", trace="ddp/rank0")
    expect(page.locator("#ranks-text")).to_contain_text("rank 1 delays them most", timeout=30_000)
    expect(page.locator("#ranks-table .ag-center-cols-container .ag-row")).to_have_count(2)
    for chart in ("0", "steps", "buckets"):
        expect(page.locator(f"#ranks-{chart} .main-svg").first).to_be_visible()
    page.locator("#ranks-table").get_by_role("link", name="open").nth(1).click()
    arrive(page, "overview", "ddp/rank1")
    expect(page.locator("#verdict-text")).to_be_visible()


def test_a_collective_that_was_waited_in_leads_to_the_timeline_of_who_came_last(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "ranks", trace="ddp/rank0")
    page.locator("#ranks-meetings").get_by_role("link", name="timeline").first.click()
    arrive(page, "timeline", "ddp/rank1")
    expect(page.locator("#timeline")).to_have_attribute("data-exact", "true")


def click_rank(page: Page, rank: int) -> None:
    """Clicks a place of the map of a thousand ranks."""
    box = page.locator("#ranks-0 .nsewdrag").first.bounding_box()
    assert box is not None
    x, y = box["x"] + (rank % 32 + 0.5) * box["width"] / 32, box["y"] + (rank // 32 + 0.5) * box["height"] / 32
    page.mouse.move(x, y - 2)
    page.mouse.move(x, y)
    expect(page.locator("#ranks-0 .hoverlayer")).to_contain_text(f"rank {rank}")
    page.mouse.click(x, y)


def test_the_map_of_a_thousand_ranks_opens_ranks(page: Page, serve_traces: Serve, tmp_path: Path) -> None:
    report = tmp_path / "ranks.json"
    report.write_bytes(encode(job(1024, missing=(*range(40, 48), 700), broken=(7,))))
    shutil.copy(TRACES / "ddp" / "rank1.json.gz", tmp_path / "rank33.json.gz")
    visit(page, serve_traces(report, tmp_path / "rank33.json.gz"), "ranks")
    expect(page.locator("#ranks-text")).to_contain_text("Rank 5 delays each other rank")
    expect(page.locator("#content")).to_contain_text("40 to 47, 700")
    expect(page.locator("#ranks-table .ag-center-cols-container .ag-row").first).to_contain_text("rank 0")
    map_of = page.locator("#ranks-0 .js-plotly-plot")
    assert map_of.evaluate("chart => [chart.data[0].z.length, chart.data[0].z[0].length]") == [32, 32]
    # A rank whose trace is not here stays where it is.
    click_rank(page, 34)
    settle(page)
    assert "/ranks" in page.url
    click_rank(page, 33)
    arrive(page, "overview", "rank33")


def test_reports_alone_open_where_they_are_shown(page: Page, serve_traces: Serve, tmp_path: Path) -> None:
    for name, late in (("monday", 1), ("tuesday", 2)):
        (tmp_path / f"{name}.json").write_bytes(encode(job(4, late)))
    served = serve_traces(tmp_path)
    page.goto(served.address)
    settle(page)
    expect(page.locator("#ranks-text")).to_contain_text("Rank 1 delays each other rank")
    page.locator("#ranks-source").click()
    page.get_by_role("option", name="tuesday.json").click()
    expect(page.locator("#ranks-text")).to_contain_text("Rank 2 delays each other rank")
    assert "report=tuesday.json" in page.url


def test_traces_that_are_no_ranks_are_a_plain_table(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "ranks", trace="streamed0_pinned0")
    rows = page.locator("#ranks-table .ag-center-cols-container .ag-row")
    expect(rows).to_have_count(4, timeout=30_000)
    content = page.locator("#content")
    expect(content).to_contain_text("Traces side by side")
    assert not re.search(r"\brank", content.inner_text(), re.IGNORECASE)
    assert content.locator(".dash-graph").count() == 0


# -- laboratory


def test_an_index_leads_to_each_experiment_which_has_an_address(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "laboratory")
    line = page.locator("#laboratory-index tr").filter(has_text="offload_pipeline")
    expect(line).to_contain_text(re.compile(r"two_streams is 1\.8\d times as fast as one_stream"))
    expect(line).to_contain_text("20 of 20")
    line.get_by_role("link", name="open").click()
    page.wait_for_url(re.compile("experiment=offload_pipeline"))
    settle(page)
    expect(page.locator("#laboratory-variants tr")).to_have_count(4)
    expect(page.locator("#laboratory-detail .js-plotly-plot").first).to_be_visible()
    expect(page.locator("#laboratory-detail")).to_contain_text("two_streams is faster than one_stream")
    go(page, "laboratory")
    expect(page.locator("#laboratory-index")).to_be_visible()
    visit(page, dashboard, "laboratory", experiment="no such")
    expect(page.locator("#content")).to_contain_text("There is no experiment 'no such' here")


def test_a_variant_can_be_opened_and_compared(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "laboratory", experiment="offload_pipeline")
    lines = page.locator("#laboratory-variants tr")
    lines.filter(has_text="three_streams").get_by_role("link", name="compare with the first").click()
    arrive(page, "compare", "laboratory/offload_pipeline/one_stream")
    expect(page.locator("#compare-text")).to_contain_text("faster", timeout=30_000)
    page.go_back()
    lines.nth(1).get_by_role("link", name="open").click()
    arrive(page, "overview", "laboratory/offload_pipeline/one_stream")


# -- export


def test_a_view_is_exported_and_opens_from_the_disk(page: Page, dashboard: Served, tmp_path: Path) -> None:
    visit(page, dashboard, trace="gpt2_train")
    page.locator(".shell-export").click()
    with page.expect_download() as download:
        page.locator("#export-html").click()
    assert download.value.suggested_filename == "gpt2_train.html"
    target = tmp_path / "exported.html"
    download.value.save_as(target)
    assert target.stat().st_size < 5_000_000
    page.goto(target.as_uri())
    expect(page.locator("html[data-charts=drawn]")).to_have_count(1, timeout=30_000)
    expect(page.locator("h1")).to_contain_text("gpt2_train")
