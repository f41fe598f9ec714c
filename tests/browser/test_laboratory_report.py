"""The laboratory's report in a browser."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from overlapscope.commands import main
from overlapscope.plugins.laboratory.results import write_results
from tests.plugins.laboratory.unit.test_laboratory_report import made_results


def test_the_html_report_draws_itself_in_a_browser(page: Page, tmp_path: Path) -> None:
    write_results(made_results(), tmp_path)
    assert main(["scenarios", "report", "--results", str(tmp_path)]) == 0
    page.goto((tmp_path / "report.html").as_uri())
    expect(page.locator("html[data-charts=drawn]")).to_have_count(1)
    assert page.locator(".plot .main-svg").count() >= 2
    expect(page.locator("body")).to_contain_text("one_stream")
