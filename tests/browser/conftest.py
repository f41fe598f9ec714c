"""One browser, one server and one page per pytest worker; a page tolerates no errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.browser import chromium
from tests.browser.helpers import SIZE, reset
from tests.support.dashboard_process import Served, serve

TRACES = Path(__file__).parents[2] / "traces"
SCREENSHOTS = Path(__file__).parent / "screenshots"

Serve = Callable[..., Served]

# A machine that runs other tests at once may take its time.
expect.set_options(timeout=20_000)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium.find()
    assert path is not None, chromium.MISSING
    with sync_playwright() as playwright:
        # Whatever a page asks for, nothing can leave this machine.
        rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", rules])
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def serve_traces() -> Iterator[Serve]:
    """Starts a server of the given traces and options, once for all tests that ask for the same."""
    known: dict[tuple[str, ...], Served] = {}
    with contextlib.ExitStack() as running:

        def start(*arguments: str | Path) -> Served:
            key = tuple(map(str, arguments))
            if key not in known or known[key].process.poll() is not None:
                known[key] = running.enter_context(serve(*arguments))
            return known[key]

        yield start


@pytest.fixture(scope="package")
def dashboard(serve_traces: Serve) -> Served:
    """A server of all the bundled recordings."""
    return serve_traces(TRACES)


@dataclass
class Watch:
    """What went wrong on a page. A test that means to provoke an error says so with `expect`."""

    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def expect(self, pattern: str) -> None:
        """Let errors pass in which the pattern is found."""
        self.expected.append(pattern)

    def on(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("weberror", lambda error: self.problems.append(f"page error: {error.error}"))
        context.on("request", self._request)

    def remaining(self) -> list[str]:
        return [one for one in self.problems if not any(re.search(pattern, one) for pattern in self.expected)]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "assert"):
            self.problems.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in ("127.0.0.1", "localhost"):
            self.problems.append(f"request to elsewhere: {request.url}")


@pytest.fixture(scope="package")
def all_watched() -> Watch:
    return Watch()


@pytest.fixture
def watch(all_watched: Watch) -> Watch:
    """What goes wrong on the pages of this test."""
    all_watched.problems.clear()
    all_watched.expected.clear()
    return all_watched


@pytest.fixture
def own_servers() -> list[str]:
    """Where the servers are that this test has started."""
    return []


@pytest.fixture
def serve_own(own_servers: list[str]) -> Iterator[Serve]:
    """Starts a server for one test alone, which ends after the test's page."""
    with contextlib.ExitStack() as running:

        def start(*arguments: str | Path) -> Served:
            served = running.enter_context(serve(*arguments))
            own_servers.append(served.base)
            return served

        yield start


@pytest.fixture(scope="package")
def profile(browser: Browser, all_watched: Watch) -> Iterator[BrowserContext]:
    with _profile(browser, all_watched) as context:
        yield context


@pytest.fixture
def page(
    profile: BrowserContext, serve_own: Serve, own_servers: list[str], watch: Watch, request: pytest.FixtureRequest
) -> Iterator[Page]:
    """A page that tests share, since loading its scripts costs more than most of them do: each gets it with nothing
    shown, in light and of the usual size, kept as a screenshot when the test ends. Any error on it fails the test."""
    failed = request.session.testsfailed
    page = profile.pages[0] if profile.pages else profile.new_page()
    yield page
    _keep(page, request)
    try:
        reset(page)
        if page.url.startswith(tuple(own_servers)):
            # It would miss what ends with the test, in the middle of another.
            page.goto("about:blank")
    finally:
        if request.session.testsfailed > failed or watch.remaining():
            page.close()
    assert watch.remaining() == []


@pytest.fixture
def own_page(browser: Browser, serve_own: Serve, watch: Watch, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The same in a fresh profile, for tests of what a profile keeps or of a server that ends."""
    with _profile(browser, watch) as context:
        page = context.new_page()
        yield page
        _keep(page, request)
    assert watch.remaining() == []


@contextlib.contextmanager
def _profile(browser: Browser, watch: Watch) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport=SIZE, accept_downloads=True)
    watch.on(context)
    yield context
    context.close()


def _keep(page: Page, request: pytest.FixtureRequest) -> None:
    SCREENSHOTS.mkdir(exist_ok=True)
    name = re.sub(r"[^\w.-]+", "-", f"{request.node.path.stem}-{request.node.name}").strip("-")
    # The process behind it may have been ended by the test.
    with contextlib.suppress(Exception):
        page.screenshot(path=SCREENSHOTS / f"{name[:150]}.jpeg", quality=60)
