"""Tests of the page What if: switches, their gains, and the timelines before and after."""

from __future__ import annotations

from urllib.parse import parse_qs

from playwright.sync_api import Page, expect

from overlapscope.prediction.document import headline
from overlapscope.prediction.predict import predict
from tests.browser.conftest import TRACES
from tests.browser.helpers import arrive, settle, visit
from tests.support.dashboard_process import Served
from tests.support.recordings import trace_of

TRACE = "laboratory/offload_pipeline/one_stream"
SYNCS = "known_causes/item_every_step_stacks"
SIDES = ("before", "after")


def changes(page: Page) -> list[str]:
    """Return the changes that are switched on according to the address."""
    query: str = page.evaluate("location.search")
    return parse_qs(query.removeprefix("?")).get("change", [])


def pictures(page: Page) -> list[str]:
    """Both timelines, once each shows its view exactly."""
    for name in SIDES:
        expect(page.locator(f"#whatif-timeline-{name}")).to_have_attribute("data-exact", "true")
    canvases = [page.locator(f"#whatif-timeline-{name} canvas").first for name in SIDES]
    return [str(canvas.evaluate("canvas => canvas.toDataURL()")) for canvas in canvases]


def test_a_switch_shows_what_it_gains_and_the_timeline_it_leads_to(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "whatif", trace=TRACE, change="")
    expect(page.locator("#whatif-text")).to_contain_text("so changes can be predicted")
    for change, is_offered in (("side-stream", True), ("faster-loader", False), ("pin", False)):
        expect(page.locator(f"label[for=whatif-{change}]").first).to_be_visible(visible=is_offered)
    before = pictures(page)
    page.locator("#whatif-timeline-after").get_by_role("button", name="zoom in").click()
    zoomed = pictures(page)
    assert before[0] != zoomed[0] and before[1] != zoomed[1]

    page.locator("#whatif-side-stream").check(force=True)
    result = predict(trace_of(TRACES / f"{TRACE}.trace.json.gz"), ["side-stream"]).result
    expect(page.locator("#whatif-text")).to_have_text(headline(result))
    expect(page.locator("#whatif-text")).to_contain_text(" less; saves ")
    expect(page.locator("#whatif-details")).to_contain_text(result.interventions[0].what)
    expect(page.locator("#whatif-details")).to_contain_text("torch.cuda.stream")
    expect(page.locator("#whatif-details")).to_contain_text("exposed copy")
    expect(page.locator("#whatif-details")).to_contain_text("upload")
    settle(page)
    after = pictures(page)
    assert after[0] == zoomed[0], "the view stays where it was zoomed to"
    assert after[1] != zoomed[1]
    for width in (800, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("() => document.documentElement.scrollWidth <= window.innerWidth")


def test_an_address_brings_its_switches_along_and_a_search_those_of_the_best(page: Page, dashboard: Served) -> None:
    asked = "no-sync aten::_local_scalar_dense"
    visit(page, dashboard, "whatif", trace=SYNCS, change=asked)
    expect(page.locator("#whatif-no-sync")).to_be_checked()
    expect(page.locator("#whatif-details")).to_contain_text("aten::_local_scalar_dense")
    # A new page is made for the other colors.
    page.locator("#scheme-toggle").click()
    settle(page)
    expect(page.locator("#whatif-details")).to_contain_text("aten::_local_scalar_dense")
    assert changes(page) == [asked]
    page.locator("#whatif-best").click()
    expect(page.locator("#whatif-rungs-table tr").last).to_be_visible()
    settle(page)
    best = changes(page)
    assert best and best != [asked]
    for change in best:
        page.locator(f"#whatif-{change.split()[0]}").uncheck(force=True)
    expect(page.locator("#whatif-text")).to_contain_text("so changes can be predicted")
    assert changes(page) == []


def test_a_finding_opens_its_prediction_with_which_the_page_begins_anyway(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, trace=TRACE)
    page.locator("#overview-findings").get_by_role("link", name="try it in What if").first.click()
    arrive(page, "whatif")
    expect(page.locator("#whatif-text")).to_contain_text(" less; saves ")
    fix, sentence = changes(page), page.locator("#whatif-text").inner_text()
    for change in fix:
        expect(page.locator(f"#whatif-{change.split()[0]}")).to_be_checked()
    visit(page, dashboard, "whatif", trace=TRACE)
    expect(page.locator("#whatif-text")).to_have_text(sentence)
    assert changes(page) == fix
    # Nothing switched on is a choice, too, and outlives a reload.
    for change in fix:
        page.locator(f"#whatif-{change.split()[0]}").uncheck(force=True)
    expect(page.locator("#whatif-text")).to_contain_text("so changes can be predicted")
    page.reload()
    settle(page)
    expect(page.locator("#whatif-text")).to_contain_text("so changes can be predicted")


def test_a_call_that_the_trace_does_not_have_is_refused(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "whatif", trace=SYNCS, change="no-sync cudaStreamSynchronise")
    expect(page.locator("#whatif-error")).to_contain_text("did you mean 'cudaStreamSynchronize'?")
