"""The switch between the recording and the plain program, on a trace around which plain steps were timed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import TRACES, Serve
from tests.browser.helpers import arrive, go, settle, visit
from tests.support.dashboard_process import Served
from tests.support.helpers import with_plain_steps

RECORDED = "These figures describe the recording."
REPLAYED = "These figures describe the program without the profiler"
PLAIN_STEP = "33.48"
"""One of the steps whose mean is the timed step."""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings with plain steps, and one without."""
    folder = tmp_path_factory.mktemp("switch")
    for name, step_ns in (("timed", 35_700_000), ("later", 40_000_000)):
        with_plain_steps(TRACES / "gpt2_train.json.gz", folder / f"{name}.json.gz", step_ns)
    shutil.copy(TRACES / "jax" / "late.xplane.pb", folder / "untimed.xplane.pb")
    return folder


@pytest.fixture
def served(serve_traces: Serve, recordings: Path) -> Served:
    return serve_traces(recordings)


def switch(page: Page) -> Locator:
    return page.get_by_role("radiogroup", name="recorded or plain")


def press(page: Page, key: str) -> None:
    """Move the switch by the keyboard."""
    shown = page.url
    switch(page).locator("input:checked").press(key)
    page.wait_for_url(lambda url: url != shown)
    settle(page)


def choose_trace(page: Page, name: str) -> None:
    page.locator("#trace-select").fill(name)
    page.get_by_role("option", name=name).click()
    arrive(page, "overview", name)


def test_the_switch_changes_the_figures_and_stays_as_it_is(page: Page, served: Served) -> None:
    visit(page, served, trace="timed")
    figures = page.locator("#content")
    expect(switch(page).get_by_label("Plain")).to_be_checked()
    expect(figures).to_contain_text("35.70")
    press(page, "ArrowLeft")
    assert "of=recorded" in page.url
    expect(figures).to_contain_text("52.07")

    go(page, "steps")
    expect(switch(page).get_by_label("Recorded")).to_be_checked()
    expect(page.locator("#content")).not_to_contain_text(REPLAYED)
    expect(page.locator("#steps-table")).not_to_contain_text(PLAIN_STEP)
    press(page, "ArrowRight")
    assert "of=" not in page.url
    expect(page.locator("#content")).to_contain_text(REPLAYED)
    expect(page.locator("#steps-table")).to_contain_text(PLAIN_STEP)


def test_a_recording_beside_its_program_is_not_judged(page: Page, served: Served) -> None:
    """Its cards, verdict and findings would otherwise be of two programs."""
    visit(page, served, trace="timed")
    level, lead, findings = (page.locator(f"#{id}") for id in ("verdict-level", "verdict-text", "overview-findings"))
    expect(level).not_to_have_text("recorded")
    expect(findings).to_contain_text("saves about")
    press(page, "ArrowLeft")
    expect(level).to_have_text("recorded")
    expect(lead).to_contain_text("in each step of 52.1 ms")
    expect(page.locator("#verdict")).to_contain_text("Without the profiler a step takes 35.7 ms")
    expect(page.locator("#content")).not_to_contain_text("saves")
    report = page.request.get(page.url.replace("/overview", "/api/export.html")).text()
    assert "This report is on its recording." in report and "saves about" not in report
    findings.get_by_role("link", name="show them").click()
    expect(level).not_to_have_text("recorded")
    expect(findings).to_contain_text("saves about")


def test_the_choice_outlives_a_trace_that_has_none(page: Page, served: Served) -> None:
    visit(page, served, trace="timed")
    press(page, "ArrowLeft")
    choose_trace(page, "untimed")
    expect(switch(page)).to_be_hidden()
    choose_trace(page, "later")
    expect(switch(page).get_by_label("Recorded")).to_be_checked()
    expect(page.locator("#content")).to_contain_text("52.07")
    # Back through where one was.
    for name in ("untimed", "timed"):
        page.go_back()
        arrive(page, "overview", name)
    page.go_back()
    settle(page)
    expect(switch(page).get_by_label("Plain")).to_be_checked()


def test_it_says_what_it_is(page: Page, served: Served) -> None:
    visit(page, served, trace="timed")
    switch(page).hover()
    expect(page.get_by_text("Plain shows the timeline replayed without that cost.")).to_be_visible()


def test_without_timed_steps_there_is_nothing_to_choose(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, trace="gpt2_train")
    expect(switch(page)).to_be_hidden()
    expect(page.locator("#content")).to_contain_text("52.07")
    expect(page.locator("#verdict")).to_contain_text("Without the profiler a step takes between 31.8 and 52.1 ms;")


def test_a_timeline_stays_where_it_is(page: Page, served: Served) -> None:
    """At the same op, which runs at another time."""
    visit(page, served, trace="timed")
    page.locator("#overview-findings").get_by_text("show in timeline").first.click()
    arrive(page, "timeline")
    shown_program = page.locator("#timeline-program")
    expect(shown_program).to_contain_text(REPLAYED)
    timeline = page.locator("#timeline")
    expect(timeline).to_have_attribute("data-exact", "true")
    shown = [page.url]
    for key in ("ArrowLeft", "ArrowRight"):
        press(page, key)
        expect(timeline).to_have_attribute("data-exact", "true")
        expect(shown_program).to_contain_text(
            REPLAYED if key == "ArrowRight" else "These figures describe the recording."
        )
        expect(page.locator(".tl-legend")).to_contain_text("idle: ")
        shown.append(page.url)
    assert shown[0] == shown[2] != shown[1]


def test_pages_that_choose_by_themselves_have_no_switch(page: Page, served: Served) -> None:
    """A diff compares like with like, and a prediction begins with the plain program."""
    visit(page, served, "compare", trace="timed", of="recorded", **{"with": "later"})
    expect(page.locator("#content")).to_contain_text(REPLAYED)
    expect(switch(page)).to_be_hidden()
    visit(page, served, "compare", trace="timed", **{"with": "untimed"})
    expect(page.locator("#content")).not_to_contain_text(REPLAYED)
    visit(page, served, "whatif", trace="timed", of="recorded", change="")
    expect(page.locator("#whatif-drawn")).to_contain_text("as it runs while nothing is recorded")
    expect(page.locator("#whatif")).to_contain_text("takes 35.70 ms without the profiler")
    expect(page.locator("#whatif-timeline-before")).to_have_attribute("data-exact", "true")
    expect(switch(page)).to_be_hidden()


def test_it_fits_a_narrow_window(page: Page, served: Served) -> None:
    page.set_viewport_size({"width": 900, "height": 700})
    visit(page, served, trace="timed")
    page.wait_for_function("() => document.documentElement.scrollWidth <= window.innerWidth")
    expect(page.locator("#scheme-toggle")).to_be_in_viewport(ratio=1)
