"""A report of Nsight Systems on the dashboard."""

from __future__ import annotations

import lzma
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.conftest import TRACES, Serve
from tests.browser.helpers import PAGES, visit


def test_every_page_shows_a_process_of_a_report(page: Page, serve_traces: Serve, tmp_path: Path) -> None:
    report = tmp_path / "train.sqlite"
    report.write_bytes(lzma.decompress((TRACES / "nsys" / "train_2gpu.sqlite.xz").read_bytes()))
    served = serve_traces(report)
    visit(page, served, trace="train@1")
    expect(page.locator("#verdict-text")).to_contain_text("communication")
    for name in PAGES[1:]:
        visit(page, served, name, trace="train@1")
        assert len(page.locator("#content").inner_text()) > 20
