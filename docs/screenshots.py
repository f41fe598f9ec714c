"""Takes the pictures of the dashboard, with a browser: `python -m docs.screenshots`, in the repository's root.

Commands on the pages name the recordings relative to it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from overlapscope.base.saved import encode
from tests.browser import chromium
from tests.browser.helpers import settle, visit
from tests.support.dashboard_process import Served, serve
from tests.support.ranks_samples import job

IMAGES = Path(__file__).parent / "images"
TRACES = Path("traces")
SAMPLES = Path("overlapscope", "samples")
TRACE = "laboratory/offload_pipeline/two_streams"
WIDTH, HEIGHT = 1280, 860


def main() -> None:
    """Write `overview.png`, `timeline.png`, `whatif.png` and `ranks.png`."""
    with sync_playwright() as playwright, serve(TRACES) as served:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        overview(page, served)
        whatif(page, served)
        ranks(page)
        with serve(SAMPLES) as samples:
            timeline(page, samples)
        browser.close()


def overview(page: Page, served: Served) -> None:
    visit(page, served, "overview", trace=TRACE.replace("two_streams", "one_stream"))
    expect(page.locator("#overview-timeline-step[data-exact=true]")).to_be_visible()
    page.screenshot(path=IMAGES / "overview.png")


def timeline(page: Page, served: Served) -> None:
    """Draw steps that copy their batch from pageable memory, with the worst exposed copy selected."""
    visit(page, served, "timeline", trace="training_naive")
    page.get_by_role("button", name="exposed copy").click()
    expect(page.locator("#timeline[data-exact=true]")).to_be_visible()
    page.get_by_role("button", name="Zoom out").click()
    expect(page.locator("#timeline[data-exact=true]")).to_be_visible()
    page.wait_for_timeout(300)
    page.screenshot(path=IMAGES / "timeline.png", clip={"x": 0, "y": 0, "width": WIDTH, "height": 760})


def whatif(page: Page, served: Served) -> None:
    """Draw a pipeline on one stream, and its prediction on three."""
    page.set_viewport_size({"width": WIDTH, "height": 1640})
    visit(page, served, "whatif", trace=TRACE.replace("two_streams", "one_stream"), change="side-stream")
    expect(page.locator("#whatif-timeline-after[data-exact=true]")).to_be_visible()
    page.screenshot(path=IMAGES / "whatif.png")
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


def ranks(page: Page) -> None:
    """Draw a thousand ranks, made of two recorded ones."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "ranks.json"
        report.write_bytes(encode(job(1024, missing=(*range(40, 48), 700), broken=(7,))))
        with serve(report) as served:
            page.goto(served.address)
            settle(page)
            page.set_viewport_size({"width": WIDTH, "height": 1330})
            settle(page)
            page.screenshot(path=IMAGES / "ranks.png")


if __name__ == "__main__":
    main()
