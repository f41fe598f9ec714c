"""Takes the pictures of the dashboard, with a browser: `python -m docs.screenshots`."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests.browser import chromium
from tests.browser.helpers import visit
from tests.dashboard_process import Served, serve

HERE = Path(__file__).parent
TRACES = HERE.parent / "traces"
TRACE = "laboratory/offload_pipeline/two_streams"
WIDTH, HEIGHT = 1280, 860


def main() -> None:
    """Writes `overview.png` and `timeline.png`."""
    with sync_playwright() as playwright, serve(TRACES) as served:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        overview(page, served)
        timeline(page, served)
        browser.close()


def overview(page: Page, served: Served) -> None:
    visit(page, served, "overview", trace=TRACE)
    page.screenshot(path=HERE / "overview.png")


def timeline(page: Page, served: Served) -> None:
    """Zoomed into the worst exposed copy, which is chosen, with a span selected around it."""
    visit(page, served, "timeline", trace=TRACE)
    page.get_by_role("button", name="exposed copy").click()
    expect(page.locator("#timeline[data-exact=true]")).to_be_visible()
    for _ in range(3):
        page.get_by_role("button", name="Zoom out").click()
    expect(page.locator("#timeline[data-exact=true]")).to_be_visible()
    page.wait_for_timeout(300)
    page.screenshot(path=HERE / "timeline.png")


if __name__ == "__main__":
    main()
