"""A page and a measure that another package's plugin adds."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.helpers import url
from tests.support.dashboard_process import serve
from tests.support.helpers import TRACES
from tests.support.toy_plugin import install


def test_a_page_of_another_package_is_in_the_navigation_and_is_shown(own_page: Page, tmp_path: Path) -> None:
    with serve(TRACES / "streamed0_pinned0.json.gz", environment=install(tmp_path)) as served:
        own_page.goto(url(served))
        own_page.get_by_role("link", name="Toys").click()
        expect(own_page.get_by_text("a page of toys")).to_be_visible()
        own_page.get_by_role("link", name="Steps").click()
        # Its measure is a column of the steps.
        header = own_page.locator("#steps-table .ag-header-cell", has_text="longest idle gap")
        header.scroll_into_view_if_needed()
        expect(header).to_be_visible()
