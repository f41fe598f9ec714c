"""The page HTA: its analyses on the trace that is shown."""

from __future__ import annotations

import csv
import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.helpers import visit
from tests.support.dashboard_process import Served

pytest.importorskip("overlapscope.plugins.hta")


def choose(page: Page, name: str) -> None:
    page.locator("#hta-name").click()
    page.locator("#hta-name").fill(f"{name}:")
    page.get_by_role("option", name=re.compile(f"^{name}:")).click()


def test_an_analysis_is_run_and_its_table_shown_and_saved(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "hta", trace="ddp/rank0")
    expect(page.get_by_text("all 2 ranks")).to_be_visible()
    page.locator("#hta-run").click()
    expect(page.locator("#hta-heading")).to_contain_text("HTA temporal", timeout=60_000)
    expect(page.locator("#hta-heading")).to_contain_text("ranks 0, 1")
    expect(page.locator("#hta-table-0 .ag-row")).to_have_count(2)
    with page.expect_download() as download:
        page.locator("#hta-csv").click()
    rows = list(csv.reader(download.value.path().read_text().splitlines()))
    assert rows[0][0] == "rank" and [row[0] for row in rows[1:]] == ["0", "1"]


def test_where_hta_gives_up_it_says_so_and_nanoseconds_help(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "hta", trace="gpt2_train")
    expect(page.locator("#hta-operator")).to_be_hidden()
    choose(page, "sequences")
    page.locator("#hta-operator").fill("aten::linear")
    page.locator("#hta-run").click()
    expect(page.locator("#hta-error")).to_contain_text("failed", timeout=60_000)
    page.locator("#hta-nanoseconds").click()
    page.locator("#hta-run").click()
    expect(page.locator("#hta-content")).to_contain_text("Kernel sequences under aten::linear", timeout=60_000)
