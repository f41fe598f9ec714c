"""One browser, one page and two servers at a time per pytest worker; a page tolerates no errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec import Struct, field
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.browser import chromium
from tests.browser.helpers import SIZE, forget, reset
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
        # Whatever a page asks for, nothing can leave this machine. Pages of one process share compiled scripts.
        rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
        flags = ["--no-sandbox", "--renderer-process-limit=1", rules]
        launched = playwright.chromium.launch(executable_path=path, args=flags)
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def dashboard() -> Iterator[Served]:
    """Yield a server of all the bundled recordings, as a user starts it."""
    with serve(TRACES) as served:
        yield served


@pytest.fixture(scope="package")
def serve_traces(profile: BrowserContext) -> Iterator[Serve]:
    """Start a server of the given traces and options, unless it runs already. It ends the previous server. All have
    one port, as for a user: the browser has compiled the scripts of that address."""
    running_arguments: tuple[tuple[str, ...], bool] | None = None
    served: Served | None = None
    with contextlib.ExitStack() as running:

        def start(*arguments: str | Path, loaded: bool = True) -> Served:
            nonlocal running_arguments, served
            asked = tuple(map(str, arguments)), loaded
            if served is None or running_arguments != asked or served.process.poll() is not None:
                port = 0 if served is None else served.port
                for page in profile.pages:
                    if served is not None and page.url.startswith(served.base):
                        page.goto("about:blank")
                running.close()
                running_arguments, served = asked, running.enter_context(serve(*arguments, port=port, loaded=loaded))
            return served

        yield start


class Watch(Struct, dict=True):  # Playwright keeps notes on the owners of its listeners
    """Errors on a page, and Plotly's warnings. A test that means to provoke an error says so with `expect`."""

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
        return [
            problem for problem in self.problems if not any(re.search(pattern, problem) for pattern in self.expected)
        ]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "assert") or message.text.startswith("WARN: "):
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
    """Yield the errors on the pages of this test."""
    all_watched.problems.clear()
    all_watched.expected.clear()
    return all_watched


@pytest.fixture(scope="package")
def profile(browser: Browser, all_watched: Watch) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport=SIZE, accept_downloads=True)
    all_watched.on(context)
    yield context
    context.close()


@pytest.fixture
def page(profile: BrowserContext, watch: Watch, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Return a page that tests share, because loading its scripts costs more than most tests do. Each test gets it
    in light colors and the usual size, and calls `visit`. It is kept as a screenshot when the test ends. Any error
    on it fails
    the test."""
    failed = request.session.testsfailed
    page = profile.pages[0] if profile.pages else profile.new_page()
    yield page
    _keep(page, request)
    try:
        reset(page)
    finally:
        if request.session.testsfailed > failed or watch.remaining():
            page.close()
    assert watch.remaining() == []


@pytest.fixture
def own_page(profile: BrowserContext, watch: Watch, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Return a page of a fresh profile with cached scripts only, for tests of cookies or of a server that ends."""
    # Open pages need their cookies.
    for other in profile.pages:
        other.goto("about:blank")
    page = profile.new_page()
    forget(page)
    yield page
    _keep(page, request)
    forget(page)
    page.close()
    assert watch.remaining() == []


def _keep(page: Page, request: pytest.FixtureRequest) -> None:
    SCREENSHOTS.mkdir(exist_ok=True)
    name = re.sub(r"[^\w.-]+", "-", f"{request.node.path.stem}-{request.node.name}").strip("-")
    # The test may have ended the server's process.
    with contextlib.suppress(Exception):
        page.screenshot(path=SCREENSHOTS / f"{name[:150]}.jpeg", quality=60)
