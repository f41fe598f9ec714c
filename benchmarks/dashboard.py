"""Measures the dashboard in a real browser: zooming in large traces, the first page, memory, and ten clients at once.

    python -m benchmarks.dashboard [--ops N ...] [--moves N] [--repeats N]

Zooming: the timeline of a made-up trace of N GPU ops, as many launches and as many CPU ops. Zooms and pans are made
with real keys and a real mouse wheel, one after another, each from its input event to the end of drawing its exact
answer, which the page itself measures. The first page: from the start of the server's process until the overview's
verdict has been drawn, in a browser that never saw the page. Writes `docs/evaluation/performance-dashboard.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from msgspec import Struct
from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

from benchmarks.dashboard_server import TOKEN
from benchmarks.data_files import csv_text
from benchmarks.processes import HERE, MeasuredGoal, grown, hardware, say
from tests.browser import chromium
from tests.support.dashboard_process import serve

RESULTS = HERE.parent / "docs" / "evaluation" / "performance-dashboard.md"
ZOOM = RESULTS.with_name("performance-dashboard.csv")

OPS = (1_000_000, 10_000_000)
MOVES = 120
FIRST_PAGE_MB = {11: 0.7, 250: 1.2, 1000: 4.0}
"""Seconds that the first page of a trace may take, by its size."""
PAINT_MS, SERVER_MS, MB_PER_GB = 16.0, 4.0, 300.0
"""Limits: median of a move, the server's part of it, and the server's memory for each GB of trace."""
CLIENTS, CLIENT_VIEWS = 10, 30
_KNOWN = {"Authorization": f"token {TOKEN}"}
WIDTH, HEIGHT = 1440, 900
PATIENCE_MS = 60_000
MEASURE = "overlapscope:zoom-to-paint"

Move = Callable[[Page, str], None]

_EXACT = "() => document.querySelector('#timeline[data-exact=true]') !== null"
_PAINTED_AFTER = """(before) => {
    const { painted, exact } = document.getElementById('timeline').dataset;
    return exact === 'true' && Number(painted) > before;
}"""
_LANES = "() => overlapscope.activeTimeline.wanted().lanes"
_LISTEN = """
window.heard = [];
for (const kind of ['wheel', 'keydown']) {
    const hear = (event) => window.heard.push([kind, performance.now() - event.timeStamp]);
    addEventListener(kind, hear, { capture: true });
}
"""
# When frames with the verdict and with the figures of the page itself have been made, as seconds since the epoch.
_WATCH = """
const watched = { 'verdict-text': 'verdictAt', 'overview-trust': 'pageAt' };
new MutationObserver(() => {
    for (const [id, name] of Object.entries(watched)) {
        if (document.getElementById(id)) {
            delete watched[id];
            requestAnimationFrame(() => setTimeout(() => {
                window[name] = (performance.timeOrigin + performance.now()) / 1000;
            }));
        }
    }
}).observe(document, { subtree: true, childList: true });
"""
_FORGET = f"() => {{ performance.clearMeasures('{MEASURE}'); window.heard = []; }}"
_MEASURES = f"() => performance.getEntriesByName('{MEASURE}').map((entry) => entry.duration)"


class Moves(Struct, frozen=True):
    """Figures of moves with one kind of input, one for each move."""

    paint_ms: list[float]
    """From the input event to the end of drawing the exact answer."""
    heard_ms: list[float]
    """Part of it until the page receives the event: a browser delivers wheel turns with its frames."""
    server_ms: list[float]
    payload_bytes: list[int]


class Zooming(Struct, frozen=True):
    """Figures of moving about in a timeline."""

    ops: int
    moves: dict[str, Moves]
    """By the kind of input."""
    clients_ms: list[float]
    """Views while ten clients ask at once, from the request to the last byte."""
    clients_s: float
    rss_mb: float

    @property
    def paint_ms(self) -> float:
        """From a key to the end of drawing, the median; a browser hands wheel turns on later."""
        return statistics.median(self.moves["keys"].paint_ms)

    @property
    def server_ms(self) -> float:
        """The server's part of a move, the median."""
        return statistics.median(ms for moves in self.moves.values() for ms in moves.server_ms)


def zooming(browser: Browser, ops: int, count: int) -> Zooming:
    with made_up(ops) as (address, process):
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
        context.add_init_script(_LISTEN)
        page = context.new_page()
        page.goto(f"{address}&{urlencode({'token': TOKEN})}")
        page.wait_for_function(_EXACT, timeout=PATIENCE_MS)
        page.wait_for_timeout(1000)
        moves = {"keys": moved(page, address, by_key, count), "wheel": moved(page, address, by_wheel, count)}
        lanes = page.evaluate(_LANES)
        end = page.evaluate("() => overlapscope.activeTimeline.model.end")
        context.close()
        begin = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            each = list(pool.map(lambda seed: client(address, lanes, end, seed), range(CLIENTS)))
        seconds = time.perf_counter() - begin
        rss_mb = memory_mb(process.pid, "VmRSS")
    return Zooming(ops, moves, [ms for entry in each for ms in entry], seconds, rss_mb)


@contextlib.contextmanager
def made_up(ops: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yield a server of a made-up trace: the address of its timeline, and its process."""
    command = [sys.executable, "-m", "benchmarks.dashboard_server", str(ops)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the server of {ops} ops did not start")
        try:
            yield address, process
        finally:
            process.terminate()


def moved(page: Page, address: str, move: Move, count: int) -> Moves:
    """Measure `count` moves, after some to warm up."""
    move_about(page, move, 10, seed=1)
    page.evaluate(_FORGET)
    asked(address, "/benchmark/views")
    move_about(page, move, count, seed=2)
    views = json.loads(asked(address, "/benchmark/views"))["views"]
    return Moves(
        page.evaluate(_MEASURES),
        [ms for event, ms in page.evaluate("() => window.heard") if event == EVENTS[move]],
        [1000 * seconds for seconds, _ in views],
        [size for _, size in views],
    )


def move_about(page: Page, move: Move, count: int, seed: int) -> None:
    """Zooms in at places at random, looks around, and zooms out again, waiting for each exact picture."""
    draw = random.Random(seed)
    box = page.locator("#timeline canvas").first.bounding_box()
    assert box is not None
    page.keyboard.press("0")
    depth = 0
    for _ in range(count):
        page.mouse.move(box["x"] + box["width"] * draw.uniform(0.3, 0.9), box["y"] + box["height"] * 0.6)
        page.wait_for_timeout(draw.uniform(30, 60))
        before = int(page.locator("#timeline").get_attribute("data-painted") or 0)
        what = draw.choice(("in", "in", "in", "out", "left", "right")) if 2 < depth < 24 else "in"
        if depth == 24:
            page.keyboard.press("0")
            depth = 0
        else:
            move(page, what)
            depth += {"in": 1, "out": -1}.get(what, 0)
        with contextlib.suppress(TimeoutError):
            # A move against the trace's edge changes nothing.
            page.wait_for_function(_PAINTED_AFTER, arg=before, timeout=2000)


def by_key(page: Page, what: str) -> None:
    page.keyboard.press({"in": "w", "out": "s", "left": "a", "right": "d"}[what])


def by_wheel(page: Page, what: str) -> None:
    with held(page, "Control" if what in ("in", "out") else "Shift"):
        page.mouse.wheel(0, -200 if what in ("in", "left") else 200)


EVENTS: dict[Move, str] = {by_key: "keydown", by_wheel: "wheel"}


@contextlib.contextmanager
def held(page: Page, key: str) -> Iterator[None]:
    page.keyboard.down(key)
    yield
    page.keyboard.up(key)


def asked(address: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=_KNOWN)
        return connection.getresponse().read()


def client(address: str, lanes: Sequence[int], end_ns: int, seed: int) -> list[float]:
    """Milliseconds that each of some views at random took over one connection."""
    draw = random.Random(seed)
    trace = urlsplit(address).query
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    taken = []
    with contextlib.closing(connection):
        for _ in range(CLIENT_VIEWS):
            length = int(end_ns * 10 ** draw.uniform(-5, 0))
            start = draw.randrange(max(1, end_ns - length))
            query = f"{trace}&start={start}&end={start + length}&columns=1100&lanes={','.join(map(str, lanes))}"
            begin = time.perf_counter()
            connection.request("GET", f"/api/timeline/view?{query}", headers=_KNOWN | {"Accept-Encoding": "gzip"})
            response = connection.getresponse()
            response.read()
            taken.append(1000 * (time.perf_counter() - begin))
            if response.status != http.HTTPStatus.OK:
                raise RuntimeError(f"a view was answered with {response.status}")
    return taken


class FirstPage(Struct, frozen=True):
    """Seconds from the start of the server's process."""

    listening_s: float
    verdict_s: float
    page_s: float
    rss_mb: float
    peak_mb: float


def first_page(browser: Browser, trace: Path) -> FirstPage:
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    context.add_init_script(_WATCH)
    page = context.new_page()
    begin = time.time()
    # The cache is off, as for a trace that is opened for the first time.
    with serve(trace, "--no-cache") as served:
        listening = time.time() - begin
        page.goto(served.address)
        verdict, whole = (
            page.wait_for_function(f"() => window.{name}", timeout=PATIENCE_MS).json_value() - begin
            for name in ("verdictAt", "pageAt")
        )
        page.goto(f"{served.base}timeline")
        page.wait_for_function(_EXACT, timeout=PATIENCE_MS)
        pid = served.process.pid
        first_page = FirstPage(listening, verdict, whole, memory_mb(pid, "VmRSS"), memory_mb(pid, "VmHWM"))
        context.close()
    return first_page


def memory_mb(pid: int, what: str) -> float:
    """Resident memory of a process (`VmRSS`), or the most it ever had (`VmHWM`), as Linux tells it."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) * 1024 / 1e6


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that at least `part` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]


# -- what is written


ZOOMED = (
    *("GPU ops", "by", "moves", "painted, median", "painted, p95", "painted, longest"),
    *("before the page hears of it, median", "server, median", "server, p95", "payload, median", "payload, largest"),
)


def zoom_report(results: Sequence[Zooming]) -> tuple[list[str], list[MeasuredGoal]]:
    lines = ["## Zooming and panning", "", f"Every figure: [{ZOOM.name}]({ZOOM.name})."]
    rows = []
    targets = []
    for result in results:
        name = f"{result.ops:,}"
        for kind, moves in result.moves.items():
            each, heard = moves.paint_ms, statistics.median(moves.heard_ms)
            rows.append(
                [
                    *(name, kind, str(len(each)), f"{statistics.median(each):.1f} ms"),
                    *(f"{percentile(each, 0.95):.1f} ms", f"{max(each):.1f} ms", f"{heard:.1f} ms"),
                    f"{statistics.median(moves.server_ms):.2f} ms",
                    f"{percentile(moves.server_ms, 0.95):.2f} ms",
                    f"{statistics.median(moves.payload_bytes) / 1000:.1f} kB",
                    f"{max(moves.payload_bytes) / 1000:.1f} kB",
                ]
            )
        paint, server, paint_95 = result.paint_ms, result.server_ms, percentile(result.moves["keys"].paint_ms, 0.95)
        largest = max(size for moves in result.moves.values() for size in moves.payload_bytes) / 1000
        key, share = f"key to painted, {name} GPU ops", f"server's share, {name} GPU ops, median"
        targets += [
            MeasuredGoal(f"{key}, median", f"under {PAINT_MS:.0f} ms", f"{paint:.1f} ms", paint < PAINT_MS),
            MeasuredGoal(f"{key}, p95", "under 60 ms", f"{paint_95:.1f} ms", paint_95 < 60),
            MeasuredGoal(share, f"under {SERVER_MS:.0f} ms", f"{server:.2f} ms", server < SERVER_MS),
            MeasuredGoal(f"payload, {name} GPU ops, largest", "under 50 kB", f"{largest:.1f} kB", largest < 50),
        ]
    ZOOM.write_text(csv_text(ZOOMED, rows), encoding="utf-8")
    lines += [
        "",
        f"Ten clients at once, each asking for {CLIENT_VIEWS} views at random over one connection:",
        "",
        "| GPU ops | views per second | median | p95 | resident memory |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        clients = result.clients_ms
        lines.append(
            f"| {result.ops:,} | {len(clients) / result.clients_s:.0f} | {statistics.median(clients):.1f} ms "
            f"| {percentile(clients, 0.95):.1f} ms | {result.rss_mb:.0f} MB |"
        )
    return [*lines, ""], targets


def page_report(pages: dict[float, list[FirstPage]]) -> tuple[list[str], list[MeasuredGoal]]:
    lines = [
        "## The first page, and memory",
        "",
        "From the start of the process; memory is resident after the overview and the timeline were shown.",
        "",
        "| MB | listening | verdict shown, median | whole page, median | resident MB | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    targets = []
    for size, runs in pages.items():
        verdict = statistics.median(run.verdict_s for run in runs)
        resident = statistics.median(run.rss_mb for run in runs)
        lines.append(
            f"| {size:.0f} | {statistics.median(run.listening_s for run in runs):.2f} s | {verdict:.2f} s "
            f"| {statistics.median(run.page_s for run in runs):.2f} s | {resident:.0f} "
            f"| {statistics.median(run.peak_mb for run in runs):.0f} |"
        )
        wanted = next((limit for asked, limit in FIRST_PAGE_MB.items() if abs(asked - size) < 0.05 * asked), None)
        if wanted is not None:
            took = f"{verdict:.2f} s"
            targets.append(MeasuredGoal(f"first page, {size:.0f} MB", f"under {wanted} s", took, verdict < wanted))
    if len(pages) > 1:
        start, slope = memory(pages)
        lines += ["", f"Resident memory by least squares: {start:.0f} MB + {slope:.0f} MB per GB of trace."]
        limit = f"under {MB_PER_GB:.0f} MB"
        targets.append(
            MeasuredGoal("memory of the server for a GB of trace", limit, f"{slope:.0f} MB", slope < MB_PER_GB)
        )
    return [*lines, ""], targets


def memory(pages: dict[float, list[FirstPage]]) -> tuple[float, float]:
    """Return the server's resident memory by least squares: MB without a trace, and MB for each GB of it."""
    resident_mb = [statistics.median(run.rss_mb for run in runs) for runs in pages.values()]
    slope, start = statistics.linear_regression(list(pages), resident_mb)
    return start, 1000 * slope


def machine(browser: Browser) -> str:
    """Describe the machine without naming it."""
    return (
        f"{hardware()}, Chromium {browser.version} without a GPU, {WIDTH} by {HEIGHT} pixels. "
        "Server and browser share the machine."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=f"Measures the dashboard into {RESULTS.name}.")
    parser.add_argument("--ops", type=int, nargs="*", default=OPS, metavar="N", help="GPU ops of the made-up traces")
    parser.add_argument("--moves", type=int, default=MOVES, metavar="N", help=f"zooms and pans (default: {MOVES})")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs of a first page (default: 5)")
    options = parser.parse_args()
    path = chromium.find()
    if path is None:
        sys.exit(chromium.MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        about = machine(browser)
        pages = {}
        with tempfile.TemporaryDirectory() as directory:
            for megabytes in FIRST_PAGE_MB:
                say(f"first page, {megabytes} MB")
                trace = grown(Path(directory), megabytes)
                runs = [first_page(browser, trace) for _ in range(options.repeats)]
                pages[trace.stat().st_size / 1e6] = runs
                trace.unlink()
        results = []
        for ops in options.ops:
            say(f"zooming, {ops} GPU ops")
            results.append(zooming(browser, ops, options.moves))
        browser.close()
    zoomed, targets = zoom_report(results)
    paged, more = page_report(pages)
    lines = [
        "# Performance of the dashboard",
        "",
        "Written by `python -m benchmarks.dashboard`. A move is one key or one turn of the mouse wheel, from its input",
        "event to the end of drawing the exact answer. The traces to zoom in are synthetic",
        "(`benchmarks/synthetic_trace.py`); the others are grown from a recording of GPT-2 in training",
        "(`benchmarks/grow.py`). MB are 10^6 bytes, unpacked.",
        "",
        about,
        "",
        "| | wanted | measured | |",
        "|---|---|---|---|",
        *(f"| {t.what} | {t.wanted} | {t.measured} | {'met' if t.met else '**missed**'} |" for t in [*targets, *more]),
        "",
        *zoomed,
        *paged,
    ]
    text = "\n".join(lines)
    RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
