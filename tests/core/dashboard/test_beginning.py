"""Tests of the dashboard server's answers before its application is loaded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import flask
import pytest
from werkzeug.test import Client

from overlapscope.dashboard.library import Library
from overlapscope.dashboard.server import Beginning
from overlapscope.report.verdict import judge
from tests.support.helpers import TRACES

TOKEN = "a-token-of-the-test"
KNOWN = {"Authorization": f"token {TOKEN}"}
BROWSER = {"Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"}
TRACE = TRACES / "pipeline_1stream.json.gz"


class Start:
    """A server whose application comes when `come` is set."""

    def __init__(self, library: Library, base: str = "/", fails: bool = False) -> None:
        self.come = threading.Event()
        self.fails = fails
        self.client = Client(Beginning(library, self._make, base=base, token=TOKEN))

    def _make(self) -> flask.Flask:
        self.come.wait()
        if self.fails:
            raise RuntimeError("no application")
        app = flask.Flask("whole")
        app.add_url_rule("/", "page", lambda: "the page")
        app.add_url_rule("/api/lanes", "lanes", lambda: "lanes")
        return app


@pytest.fixture(scope="module")
def library() -> Library:
    library = Library([TRACE], cache=False)
    library.wait(library.entries()[0].id)
    return library


@pytest.fixture
def start(library: Library) -> Iterator[Start]:
    start = Start(library)
    yield start
    start.come.set()


def test_requests_without_the_token_get_no_answer_and_delay_no_others(start: Start) -> None:
    for path in ("/", "/api/lanes", "/api/beginning", "/assets/x.js"):
        assert start.client.get(path).status_code == 401
        assert start.client.get(path, headers=BROWSER).status_code == 401
    other = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", **KNOWN}
    assert start.client.get("/api/beginning", headers=other).status_code == 403


def test_a_browser_is_let_in_and_gets_a_page_that_is_its_own(start: Start) -> None:
    answer = start.client.get(f"/?trace=x&token={TOKEN}", headers=BROWSER)
    assert (answer.status_code, answer.headers["Location"]) == (302, "/?trace=x")
    page = start.client.get("/?trace=x", headers=BROWSER)
    assert page.status_code == 200 and "no-store" in page.headers["Cache-Control"]
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert 'const address = "/api/beginning";' in page.text and "COLORS" not in page.text


def test_the_verdict_is_that_of_the_page_that_follows(start: Start, library: Library) -> None:
    opened = library.wait(library.entries()[0].id)
    result = judge(opened.of(None).section())
    for query in ("path=/", "path=/overview", "path=/&search=?device=0"):
        document = start.client.get(f"/api/beginning?{query}", headers=KNOWN).json
        assert document is not None and not document["done"]
        assert document["verdict"]["level"] == result.level
        assert document["verdict"]["lead"] == result.lead
    recorded = start.client.get("/api/beginning?path=/&search=?of=recorded", headers=KNOWN).json
    assert recorded is not None
    assert recorded["verdict"]["lead"] == judge(opened.section()).lead


@pytest.mark.parametrize("query", ["path=/&known=true", "path=/timeline"])
def test_nothing_new_is_waited_for(start: Start, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    document = start.client.get(f"/api/beginning?{query}", headers=KNOWN).json
    assert document is not None and document["verdict"] is None and slept


@pytest.mark.parametrize("query", ["path=/timeline", "path=/&search=?trace=none", "", "path=/&search=?device=x"])
def test_whatever_is_asked_for_has_an_answer(start: Start, query: str) -> None:
    document = start.client.get(f"/api/beginning?{query}", headers=KNOWN).json
    assert document is not None and not document["done"] and document["stage"]


def test_other_requests_wait_for_the_application_and_it_takes_over(start: Start) -> None:
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(start.client.get, path, headers=KNOWN) for path in ("/", "/api/lanes")]
        assert start.client.get("/", headers=BROWSER | KNOWN).text.startswith("<!DOCTYPE html>")
        start.come.set()
        assert [request.result(60).text for request in asked] == ["the page", "lanes"]
    assert start.client.get("/", headers=BROWSER | KNOWN).text == "the page"
    document = start.client.get("/api/beginning?path=/", headers=KNOWN).json
    assert document is not None and document["done"]


def test_a_base_path_is_part_of_the_address_and_never_a_script(library: Library) -> None:
    start = Start(library, base='/a</script>`${1}"/')
    page = start.client.get("/", headers=BROWSER | KNOWN).text
    assert "a</script>" not in page and '"/a\\u003c/script>`${1}\\"/api/beginning"' in page
    start.come.set()


def test_an_application_that_cannot_be_made_is_reported_as_failed(library: Library) -> None:
    start = Start(library, fails=True)
    start.come.set()
    with pytest.raises(RuntimeError, match="no application"):
        start.client.get("/", headers=KNOWN)
    document = start.client.get("/api/beginning?path=/", headers=KNOWN).json
    assert document is not None and document["done"]


def test_a_trace_that_cannot_be_read_has_no_verdict(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("no trace")
    library = Library([bad], cache=False)
    library.request("bad")
    start = Start(library)
    document = start.client.get("/api/beginning?path=/", headers=KNOWN).json
    assert document is not None and document["verdict"] is None
    start.come.set()
