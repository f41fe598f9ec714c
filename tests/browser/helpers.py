"""Going about in the dashboard."""

from __future__ import annotations

import base64
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page, Response, Route, ViewportSize, expect

from overlapscope.dashboard import pages
from overlapscope.dashboard.context import TRACES_PAGE
from tests.support.dashboard_process import Served

SIZE = ViewportSize(width=1440, height=900)
PAGES = tuple(name for name in pages.PAGES if name != TRACES_PAGE)
"""All pages but the list of traces, which changes until all of them are read."""


def url(served: Served, name: str = "overview", **query: str | int) -> str:
    """Return the URL of a page; `query` as in `trace=`, `from=`, `to=`, `with=`; it lets a browser in."""
    return f"{served.base}{name}?{urlencode(query | {'token': served.token})}"


def visit(page: Page, served: Served, name: str = "overview", **query: str | int) -> None:
    """Open a page and wait until it is complete. If a page of the server is open already, do as a link would, which
    spares loading all scripts anew."""
    if page.url.startswith(served.base):
        base = urlsplit(served.base).path
        if _is_at(page.url, name, str(query.get("trace", ""))):
            # Perhaps as Dash knows the address already, and would show nothing new.
            follow(page, f"{base}nothing")
        follow(page, f"{base}{name}?{urlencode(query, safe='/')}")
    else:
        page.goto(url(served, name, **query))
    settle(page)


def follow(page: Page, href: str) -> None:
    """Goes where a link would lead, and waits for the answer that shows it."""

    def shown(response: Response) -> bool:
        return "..content.children" in (response.request.post_data or "")

    with page.expect_response(shown):
        page.evaluate("href => window.dash_clientside.set_props('url', { href })", href)


def late(page: Page, requests: str, by_ms: int = 400) -> None:
    """Delays some requests."""

    def wait(route: Route) -> None:
        page.wait_for_timeout(by_ms)
        route.continue_()

    page.route(requests, wait)


@contextlib.contextmanager
def holding(page: Page, requests: str, posting: str = "") -> Iterator[None]:
    """Hold back some requests to the server inside the block: with `posting`, those that post this text."""
    kept: list[Route] = []
    over = False

    def hold(route: Route) -> None:
        if over or posting not in (route.request.post_data or ""):
            route.continue_()
        else:
            kept.append(route)

    page.route(requests, hold)
    yield
    over = True
    for route in kept:
        route.continue_()


def reset(page: Page) -> None:
    """Leaves a page as the next test wants it: in light, and of the usual size."""
    page.unroute_all(behavior="ignoreErrors")
    page.set_viewport_size(SIZE)
    if page.locator("html[data-mantine-color-scheme=dark] #scheme-toggle").count():
        page.locator("#scheme-toggle").click()
        settle(page)


def forget(page: Page) -> None:
    """Leaves the page, and has its browser forget cookies and what pages kept."""
    page.goto("about:blank")
    page.context.clear_cookies()
    page.context.new_cdp_session(page).send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})


# Dash has no open requests and has drawn all answers, for three frames: an answer may cause further requests.
_SETTLED = """(asked) => {
    const state = window.store && window.store.getState().callbacks;
    const busy = !state || Object.entries(state).some(
        ([name, calls]) => !['stored', 'completed'].includes(name) && calls.length);
    const loading = !document.querySelector('#content > *');
    const grids = document.querySelectorAll('#content .ag-root-wrapper').length;
    const charts = [...document.querySelectorAll('#content .dash-graph')];
    // Dash listens to a chart some time after it is drawn, and then has it drawn once more.
    const hears = (plot) => plot && plot._ev && plot._ev._events.plotly_click;
    const drawn = charts.every((chart) => hears(chart.querySelector('.js-plotly-plot')))
        && !document.querySelector('#content .dash-graph--pending')
        && grids === document.querySelectorAll('#content .grid').length;
    const known = window.settling === asked ? window.calmFrames : 0;
    window.settling = asked;
    window.calmFrames = busy || loading || !drawn ? 0 : known + 1;
    return window.calmFrames >= 3;
}"""

_ASKED = itertools.count()


def settle(page: Page) -> None:
    """Wait until a page is shown with its charts and tables, and no callback is on its way."""
    page.wait_for_function(_SETTLED, arg=next(_ASKED), timeout=60_000)


def go(page: Page, name: str) -> None:
    """Goes to another page by the navigation."""
    page.locator(f"#go-{name}").click()
    arrive(page, name)


def arrive(page: Page, name: str, trace: str = "") -> None:
    """Wait until a page is shown, of a trace whose id begins with `trace`."""
    page.wait_for_url(lambda url: _is_at(url, name, trace))
    # The navigation arrives together with the page's content.
    expect(page.locator(f"#go-{name}")).to_have_attribute("data-active", "true", timeout=30_000)
    settle(page)


def _is_at(url: str, name: str, trace: str) -> bool:
    parts = urlsplit(url)
    shown = parse_qs(parts.query).get("trace", [""])[-1]
    return parts.path.endswith(f"/{name}") and shown.startswith(trace)


def check_accessible(page: Page, *, colors_alone: bool = False) -> None:
    """Check the page against WCAG 2.1 A and AA with axe-core, or only against its rules on colors."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(AXE_SCRIPT)
    rules = ["color-contrast", "link-in-text-block"] if colors_alone else ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
    violations = page.evaluate("rules => axe.run({ runOnly: rules, resultTypes: ['violations'] })", rules)
    sentences = [
        f"{violation['id']}: {node['html']}: {node['failureSummary']}"
        for violation in violations["violations"]
        for node in violation["nodes"]
    ]
    assert sentences == [], f"{page.url}: {sentences}"


def drop(page: Page, *files: Path) -> None:
    """Drags files over the page and drops them."""
    contents = [{"name": file.name, "base64": base64.b64encode(file.read_bytes()).decode()} for file in files]
    transfer = page.evaluate_handle(
        """(files) => {
            const transfer = new DataTransfer();
            for (const file of files) {
                transfer.items.add(new File([Uint8Array.from(atob(file.base64), (c) => c.charCodeAt(0))], file.name));
            }
            return transfer;
        }""",
        contents,
    )
    page.dispatch_event("body", "dragenter", {"dataTransfer": transfer})
    expect(page.locator("#upload-message")).to_have_text("Drop a trace to open it")
    page.dispatch_event("body", "dragover", {"dataTransfer": transfer})
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})


def choose(page: Page, file: Path) -> None:
    """Chooses a file with the button."""
    with page.expect_file_chooser() as chooser:
        page.locator("#upload-button").click()
    chooser.value.set_files(file)
