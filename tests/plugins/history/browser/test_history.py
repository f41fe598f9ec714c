"""Tests of the page History: a metric of stored reports, the report of each point, and a comparison of two."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from overlapscope.plugins.history.entry import Entry, digest
from overlapscope.plugins.history.store import Store
from tests.browser.conftest import Serve
from tests.browser.helpers import arrive, check_accessible, settle, visit
from tests.browser.test_hostile_names import HOSTILE, check_harmless
from tests.plugins.history.histories import FAST, weeks, write
from tests.support.check_results import passed, result
from tests.support.dashboard_process import Served


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("history") / "history.sqlite")


@pytest.fixture
def served(serve_traces: Serve, history: Path) -> Served:
    """Return a server of some weeks of a job, and of no trace."""
    return serve_traces("--history", history)


def click_point(page: Page, number: int) -> None:
    """Clicks a point of the chart, the oldest of which is 0."""
    point = page.locator("#history-chart .scatterlayer .trace").first.locator(".points path").nth(number)
    box = point.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y - 2)
    page.mouse.move(x, y)
    expect(page.locator("#history-chart .hoverlayer")).to_contain_text("UTC")
    page.mouse.click(x, y)


def test_a_history_alone_shows_since_when_it_is_worse_and_leads_to_its_reports(page: Page, served: Served) -> None:
    page.goto(served.address)
    settle(page)
    expect(page.locator("#go-history")).to_have_attribute("data-active", "true")
    expect(page.locator("#history-chart .annotation")).to_contain_text("since 0c0c0c0c0c, -91")
    click_point(page, 3)
    expect(page.locator("#history-opened")).to_contain_text("of commit 0303030303 on branch main")
    expect(page.locator("#history-opened")).to_contain_text("The host waits for the GPU in torch.cuda.synchronize()")
    settle(page)
    check_accessible(page)
    page.locator("#history-comparing").check(force=True)
    settle(page)
    click_point(page, 15)
    compared = page.locator("#history-compared")
    expect(compared).to_contain_text("Before: train.py of commit 0303030303")
    expect(compared).to_contain_text(re.compile(r"Step 1\d\d\.\d% slower"))
    settle(page)
    # The earlier report is `before`, whichever was clicked first, also in the address, which users share.
    page.reload()
    settle(page)
    expect(compared).to_contain_text("After: train.py of commit 0f0f0f0f0f")
    page.locator("#scheme-toggle").click()
    settle(page)
    check_accessible(page)
    page.locator("#history-comparing").uncheck(force=True)
    expect(page.locator("#history-opened")).to_contain_text("of commit 0303030303")
    page.get_by_role("link", name="close").click()
    expect(page.locator("#history-opened")).to_have_count(0)


def test_metric_and_what_a_point_is_are_chosen_and_kept_in_the_address(page: Page, served: Served) -> None:
    visit(page, served, "history")
    page.locator("#history-metric").fill("step_time")
    page.get_by_role("option", name="step_time").click()
    page.wait_for_url("**metric=step_time*")
    settle(page)
    expect(page.locator("#history-chart .annotation")).to_contain_text(re.compile(r"\+10\d\.\d%"))
    page.locator("#history-by").get_by_text("by hour").click()
    page.wait_for_url("**by=hour*")
    settle(page)
    expect(page.locator("#history-chart .annotation")).to_contain_text("since 2025-")
    page.reload()
    settle(page)
    expect(page.locator("#history-chart .ytitle")).to_have_text("step_time, ms")
    visit(page, served, "history", entry="0" * 32)
    expect(page.locator("#content")).to_contain_text("This report cannot be shown")
    visit(page, served, "history", job="no such", metric="nothing", by="moon")
    expect(page.locator("#history-chart .ytitle")).to_have_text("efficiency_pct, %")


def test_a_report_leads_to_its_trace_where_the_dashboard_has_it_and_tells_its_check(
    page: Page, serve_traces: Serve, tmp_path: Path
) -> None:
    first, *others = weeks(8, 1, slow_from=4)
    checked = replace(first, check=result(passed()))
    visit(page, serve_traces(FAST, "--history", write(tmp_path / "h.sqlite", checked, *others)), "history")
    click_point(page, 0)
    expect(page.locator("#history-opened")).to_contain_text("Passed")
    page.locator("#history-traces").get_by_role("link", name="timeline").click()
    arrive(page, "timeline", FAST.name.partition(".")[0])


def test_a_history_is_shown_and_what_comes_later_too(page: Page, serve_traces: Serve, tmp_path: Path) -> None:
    first, *others = weeks(8, 1)
    history = write(tmp_path / "history.sqlite", first)
    served = serve_traces("--history", history)
    visit(page, served, "history")
    points = page.locator("#history-chart .scatterlayer .trace").first.locator(".points path")
    expect(points).to_have_count(1)
    write(history, *others)
    visit(page, served, "history", by="report")
    expect(points).to_have_count(8)


def test_an_empty_history_says_how_to_fill_it(page: Page, serve_traces: Serve, tmp_path: Path) -> None:
    with Store.open(tmp_path / "history.sqlite"):
        pass
    visit(page, serve_traces("--history", tmp_path / "history.sqlite"), "history")
    expect(page.locator("#content")).to_contain_text("overlapscope history add")
    check_accessible(page)


def test_names_that_mean_harm_stay_text(page: Page, serve_traces: Serve, tmp_path: Path) -> None:
    def hostile(entry: Entry) -> Entry:
        origin = replace(entry.origin, job=HOSTILE, commit=f"{entry.origin.commit}-{HOSTILE}", branch=HOSTILE)
        origin = replace(origin, host=HOSTILE, labels={HOSTILE: HOSTILE})
        entry = replace(entry, origin=origin, gpu=HOSTILE)
        return replace(entry, id=digest(origin, entry.report, plain=entry.plain))

    entries = map(hostile, weeks(8, 1, slow_from=4))
    visit(page, serve_traces("--history", write(tmp_path / "history.sqlite", *entries)), "history")
    assert HOSTILE in page.locator("#content").inner_text()
    check_harmless(page)
    click_point(page, 5)
    expect(page.locator("#history-opened")).to_contain_text(f"on branch {HOSTILE}")
    check_harmless(page)
    page.locator("#history-job").click()
    check_harmless(page)
