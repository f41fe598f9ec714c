"""Tests of how a browser gets the token, and where it is kept."""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from overlapscope.dashboard import launch
from tests.browser.conftest import TRACES, Serve, Watch
from tests.browser.helpers import settle, visit
from tests.support.file_server import file_server

SAMPLE = TRACES / "streamed0_pinned0.json.gz"
# Its server imports Dash while it answers already, as for a user (`loaded=False`).


@contextlib.contextmanager
def other_site(directory: Path, html: str) -> Iterator[str]:
    """Yield a page at 127.0.0.1, which is another site than localhost."""
    (directory / "index.html").write_text(html)
    with file_server(directory) as url:
        yield f"{url}/"


def test_the_browser_that_is_opened_gets_in_and_its_history_has_no_token(
    own_page: Page, serve_traces: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, served = own_page, serve_traces(SAMPLE, loaded=False)
    monkeypatch.setattr("overlapscope.dashboard.upload.own_directory", lambda: tmp_path)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", page.goto)
    launch.open_browser(served.address)
    page.wait_for_url(served.base)
    settle(page)
    expect(page.locator("#verdict-text")).to_be_visible()
    history = page.context.new_cdp_session(page).send("Page.getNavigationHistory")["entries"]
    assert history and all(served.token not in entry["url"] for entry in history)
    (cookie,) = page.context.cookies()
    assert served.token not in cookie["value"] and cookie["httpOnly"] and cookie["sameSite"] == "Lax"


def test_the_verdict_that_comes_before_the_page_is_that_of_the_page(own_page: Page, serve_traces: Serve) -> None:
    page, served = own_page, serve_traces(SAMPLE, loaded=False)
    page.add_init_script(
        """new MutationObserver(() => {
            const text = document.getElementById('verdict-text')?.textContent;
            if (text) sessionStorage.setItem(performance.timeOrigin, text);
        }).observe(document, { subtree: true, childList: true });"""
    )
    page.goto(served.address)
    expect(page.locator("#content")).to_be_visible()
    expect(page).to_have_url(served.base)
    kept = page.evaluate("() => Object.entries(sessionStorage)")
    verdicts = {text for when, text in kept if when.replace(".", "").isdigit()}
    assert verdicts == {page.locator("#verdict-text").text_content()}


def test_a_link_from_another_site_finds_one_logged_in(own_page: Page, serve_traces: Serve, tmp_path: Path) -> None:
    page, served = own_page, serve_traces(SAMPLE, loaded=False)
    visit(page, served)
    there = f"{served.base.replace('127.0.0.1', 'localhost')}steps"
    page.goto(f"{there}?token={served.token}")
    with other_site(tmp_path, f'<link rel="icon" href="data:,"><a href="{there}">look at this</a>') as address:
        page.goto(address)
        page.get_by_text("look at this").click()
        page.wait_for_url(there)
        settle(page)


def test_a_notebook_of_another_name_shows_its_frame(own_page: Page, watch: Watch, tmp_path: Path) -> None:
    """Though the browser keeps nothing for it, cookies least of all."""
    page = own_page
    watch.expect("localStorage")
    frame = launch.frame([SAMPLE], height=700)
    with other_site(tmp_path, f'<link rel="icon" href="data:,">{frame._repr_html_()}') as address:
        page.goto(address)
        inside = page.frame_locator("iframe")
        expect(inside.locator("#verdict-text")).to_be_visible()
        inside.locator("#go-timeline").click()
        expect(inside.locator("#timeline[data-exact=true]")).to_be_visible()


def test_another_sites_page_cannot_frame_a_dashboard(
    own_page: Page, serve_traces: Serve, watch: Watch, tmp_path: Path
) -> None:
    page, served = own_page, serve_traces(SAMPLE, loaded=False)
    visit(page, served)
    watch.expect("frame-ancestors|Framing")
    framing = f'<link rel="icon" href="data:,"><iframe src="{served.base}"></iframe>'
    refused = page.expect_console_message(lambda message: "frame-ancestors" in message.text)
    with other_site(tmp_path, framing) as address, refused:
        page.goto(address)
