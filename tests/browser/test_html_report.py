"""The report in a file, opened from the disk: it draws everything, requests nothing, and runs no code from names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from overlapscope import timeline as lanes
from overlapscope.commands import main
from tests.browser.conftest import TRACES
from tests.browser.test_hostile_names import HOSTILE, check_harmless
from tests.support import kineto_files
from tests.support.recordings import lanes_of

Write = Callable[..., Path]
BREAKOUT = "</script><img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Write the report of a trace, once for all tests that request it."""
    folder, written = tmp_path_factory.mktemp("reports"), dict[str, Path]()

    def once(trace: Path) -> Path:
        if str(trace) not in written:
            target = folder / f"{len(written)}.html"
            assert main(["analyze", str(trace), "--format", "html", "--output", str(target)]) == 0
            written[str(trace)] = target
        return written[str(trace)]

    return once


def read(page: Page, report: Path) -> list[str]:
    """Open the file, wait until everything is drawn, and return the addresses of all other requests."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    expect(page.locator("html[data-charts=drawn]")).to_have_count(1, timeout=30_000)
    exact(page)
    return [url for url in asked if url != report.as_uri() and not url.startswith(("data:", "blob:"))]


def show(page: Page, report: Path) -> None:
    """Open the file, unless the previous test left it open."""
    if page.url != report.as_uri():
        read(page, report)


def exact(page: Page, number: int = 0) -> None:
    expect(page.locator(f"#timeline-{number}")).to_have_attribute("data-exact", "true", timeout=30_000)


def in_view(page: Page) -> str:
    """Return a picture of the timeline's canvas, as a data URL."""
    return str(page.locator("#timeline-0 canvas").first.evaluate("canvas => canvas.toDataURL()"))


@pytest.mark.parametrize("trace", ["gpt2_train.json.gz", "ddp"])
def test_everything_is_drawn_and_nothing_is_asked_for(page: Page, write: Write, trace: str) -> None:
    assert read(page, write(TRACES / trace)) == []
    plots = page.locator(".plot")
    assert plots.count() >= 2
    assert page.locator(".plot .main-svg").count() >= plots.count()
    for mount in page.locator(".timeline .mount").all():
        expect(mount.locator("canvas").first).to_be_visible()
    assert page.locator(".failed").count() == 0


def test_a_finding_leads_to_its_place_in_the_timeline(page: Page, write: Write) -> None:
    show(page, write(TRACES / "gpt2_train.json.gz"))
    before = in_view(page)
    page.get_by_role("button", name="Show in the timeline").first.click()
    expect(page.locator("#timeline-0")).to_be_in_viewport()
    exact(page)
    assert in_view(page) != before


def test_the_timeline_can_be_zoomed_down_to_single_ops_and_searched(page: Page, write: Write) -> None:
    show(page, write(TRACES / "gpt2_train.json.gz"))
    canvas = page.locator("#timeline-0 canvas").first
    canvas.scroll_into_view_if_needed()
    seen = {in_view(page)}
    for _ in range(5):
        page.locator("#timeline-0").get_by_role("button", name="zoom in").click()
        exact(page)
        seen.add(in_view(page))
    assert len(seen) == 6
    page.locator("#timeline-0 input").fill("gemm")
    page.locator("#timeline-0 input").press("Enter")
    expect(page.locator("#timeline-0 .tl-count")).to_contain_text("of")


# The source of the report's first timeline.
_SOURCE = """async () => {
    const { model, tiles, worst } = (await overlapscope.data("timelines"))["timeline-0"];
    return overlapscope.staticSource(tiles, model.categories, worst);
}"""


@pytest.mark.parametrize("trace", ["pipeline_3stream.json.gz", "mixed_workloads/model_on_two_devices.json.gz"])
def test_the_worst_cases_are_those_of_the_dashboard(page: Page, write: Write, trace: str) -> None:
    drawn = lanes_of(TRACES / trace)
    read(page, write(TRACES / trace))
    ask = f"async ([kind, number]) => (await ({_SOURCE})()).worst(kind, number)"
    for kind in lanes.SUBJECTS:
        for number in (0, 1):
            in_browser, worst_op = page.evaluate(ask, [kind, number]), lanes.worst(drawn, kind, number)
            assert in_browser["count"] == worst_op["count"]
            names = ("lane", "row", "start", "end")
            assert [in_browser["match"] and in_browser["match"][name] for name in names] == [
                worst_op["match"] and worst_op["match"][name] for name in names
            ]
    button = page.locator("#timeline-0").get_by_role("button", name="worst exposed copy")
    match = lanes.worst(drawn, "exposed-copy", 0)["match"]
    button.click()
    expect(button).to_have_text(re.compile(r"exposed copy 1/\d"))
    expect(page.locator("#timeline-0 .tl-title")).to_have_text(drawn.lane(match["lane"]).name(match["row"]))


def test_ops_are_as_long_as_they_are(page: Page, write: Write) -> None:
    """Tiles hold times as short floats, and cut off what reaches out of them."""
    drawn = lanes_of(TRACES / "gpt2_train.json.gz")
    show(page, write(TRACES / "gpt2_train.json.gz"))
    answer = page.evaluate(f"""async () => {{
        const source = await ({_SOURCE})(), found = [];
        const {{ count }} = await source.search("cuda", -1e9, 1);
        for (let after = -1e9; found.length < Math.min(count, 500); after = found.at(-1)) {{
            found.push((await source.search("cuda", after, 1)).match);
        }}
        return found;
    }}""")
    assert len(answer) == 500
    for entry in answer:
        lane = drawn.lane(entry["lane"])
        start, end = int(lane.start_ns[entry["row"]]), int(lane.end_ns[entry["row"]])
        assert entry["end"] - entry["start"] == end - start
        assert entry["start"] == pytest.approx(start, abs=16)


def test_code_before_and_after_stands_behind_a_click(page: Page, write: Write) -> None:
    show(page, write(TRACES / "gpt2_train.json.gz"))
    code = page.locator(".finding pre").first
    expect(code).to_be_hidden()
    page.get_by_text("PyTorch code before and after").first.click()
    expect(code).to_be_visible()


def test_light_and_dark_can_be_switched(page: Page, write: Write) -> None:
    page.emulate_media(color_scheme="dark")
    read(page, write(TRACES / "gpt2_train.json.gz"))

    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    def words() -> str:
        return str(page.locator(".plot text").first.evaluate("text => text.style.fill"))

    dark, light_words = ground(), words()
    page.locator("#theme").click()
    assert ground() != dark
    page.wait_for_function("before => document.querySelector('.plot text').style.fill !== before", arg=light_words)
    page.locator("#theme").click()
    assert ground() == dark


def test_charts_offer_no_way_to_send_them_anywhere(page: Page, write: Write) -> None:
    show(page, write(TRACES / "gpt2_train.json.gz"))
    titles = page.locator(".modebar-btn").evaluate_all("all => all.map(one => one.dataset.title)")
    assert "Download plot as a PNG" in titles
    assert not [title for title in titles if "hare" in title or "loud" in title]


def test_names_that_mean_harm_stay_text(page: Page, write: Write, tmp_path: Path) -> None:
    trace = tmp_path / "hostile.json"
    events = []
    for step in range(4):
        at, first = 1000 * step, 10 * step + 1
        events += [
            kineto_files.host("user_annotation", f"ProfilerStep#{step}", at, 900),
            kineto_files.host("user_annotation", f"range {BREAKOUT}", at + 1, 800),
            kineto_files.call(at + 5, 2, first),
            kineto_files.call(at + 20, 400, first + 2, name=f"cudaStreamSynchronize{BREAKOUT}"),
            kineto_files.call(at + 450, 2, first + 4),
            kineto_files.kernel(at + 10, 100, correlation=first, name=f"void {BREAKOUT}"),
            kineto_files.kernel(at + 460, 90, correlation=first + 4, name=HOSTILE),
        ]
    kineto_files.write(trace, events, deviceProperties=[{"id": 0, "name": f"GPU {BREAKOUT}"}])
    assert read(page, write(trace)) == []
    check_harmless(page)
    box = page.locator("#timeline-0 canvas").first.bounding_box()
    assert box is not None
    for part in (0.3, 0.5, 0.7):
        page.mouse.move(box["x"] + box["width"] * part, box["y"] + box["height"] * 0.6)
        page.mouse.click(box["x"] + box["width"] * part, box["y"] + box["height"] * 0.6)
    for shown in page.locator(".plot .nsewdrag").all():
        shown.hover(force=True)
    check_harmless(page)
    assert BREAKOUT in page.locator("h1").inner_text()


def test_an_old_browser_is_told_what_it_lacks(own_page: Page, write: Write) -> None:
    own_page.add_init_script("delete window.DecompressionStream")
    own_page.goto(write(TRACES / "gpt2_train.json.gz").as_uri())
    expect(own_page.locator("h1")).to_contain_text("gpt2_train")
    why = own_page.locator(".timeline .mount").first.evaluate("one => getComputedStyle(one, '::after').content")
    assert "too old" in why
