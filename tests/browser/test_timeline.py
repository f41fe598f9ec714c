"""Tests of the timeline under mouse and keyboard, compared with the lanes themselves."""

from __future__ import annotations

import base64
import gzip
import json
import re
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from overlapscope import timeline as lanes
from overlapscope.analysis.strip import most_informative
from overlapscope.base.words import percent, unit_for
from overlapscope.documents.colors import palette
from overlapscope.timeline import Lanes, TimelineLane
from overlapscope.timeline.lane import row_of_call, row_of_gpu_op
from tests.browser.conftest import TRACES, Serve, Watch
from tests.browser.helpers import arrive, follow, go, late, settle, visit
from tests.support import kineto_files
from tests.support.dashboard_process import Served
from tests.support.recordings import lanes_of

PIPELINE, TRAINING, PAGEABLE = "pipeline_3stream", "gpt2_train", "known_causes/pageable_memory"
EVENT_WAIT = "known_causes/event_wait"
TWO_DEVICES = "mixed_workloads/model_on_two_devices"

# Position of a time on a lane, in pixels of the page.
_POINT = """([lane, ns]) => {
    const timeline = overlapscope.activeTimeline, box = timeline.canvas.getBoundingClientRect();
    const row = overlapscope.rowOf(timeline.rows.rows, timeline.model, lane);
    return [box.left + timeline.size.gutter + (ns - timeline.view.start) / timeline.nsPerPixel(),
            box.top + overlapscope.TOP + row.y - timeline.scroll + row.height / 2];
}"""


def drawn(trace: str) -> Lanes:
    return lanes_of(TRACES / f"{trace}.json.gz")


def stream(trace: str, label: str) -> TimelineLane:
    return next(lane for lane in drawn(trace).lanes if lane.kind == "stream" and label in lane.label)


def open_timeline(page: Page, served: Served, trace: str, **query: str | int) -> None:
    """Open the timeline of the recording, as `drawn` returns it. Without a place in `query`, it shows all GPU work."""
    visit(page, served, "timeline", trace=trace, of="recorded", **query)
    painted(page)
    if not query:
        page.get_by_role("button", name="Fit").click()
        painted(page)


def painted(page: Page) -> None:
    """Wait until the timeline shows exact data."""
    expect(page.locator("#timeline")).to_have_attribute("data-exact", "true")


def view(page: Page) -> tuple[int, int]:
    start, end = page.evaluate("[overlapscope.activeTimeline.view.start, overlapscope.activeTimeline.view.end]")
    return start, end


def tap(page: Page, key: str) -> None:
    """Presses a key for no time at all: held by a slow machine, it would move the view on and on."""
    page.evaluate(
        """key => ['keydown', 'keyup'].forEach(
            (name) => document.body.dispatchEvent(new KeyboardEvent(name, { key, bubbles: true })))""",
        key,
    )


def query(page: Page) -> dict[str, str]:
    """Return the parameters of the address."""
    pairs: dict[str, str] = page.evaluate("Object.fromEntries(new URLSearchParams(location.search))")
    return pairs


def point(page: Page, lane: TimelineLane, at_ns: float) -> tuple[float, float]:
    x, y = page.evaluate(_POINT, [lane.id, at_ns])
    return x, y


def in_url(page: Page, name: str, value: str | None) -> None:
    """Wait until the URL contains this."""
    page.wait_for_function(
        "([name, value]) => new URLSearchParams(location.search).get(name) === value", arg=[name, value]
    )


def details(page: Page) -> dict[str, str]:
    """Return the panel's facts about the selected op."""
    pairs = page.locator("#timeline-details dl > div").all()
    return {pair.locator("dt").inner_text(): pair.locator("dd").inner_text() for pair in pairs}


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()


def longest(lane: TimelineLane) -> int:
    return int(np.argmax(lane.end_ns - lane.start_ns))


# -- the first view


@pytest.mark.parametrize("size", [(1280, 720), (1440, 900)])
def test_it_opens_on_the_median_step_and_is_as_high_as_the_window_allows(
    page: Page, dashboard: Served, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    visit(page, dashboard, "timeline", trace=TRAINING, of="recorded")
    painted(page)
    device = drawn(TRAINING).analysis.devices[0].result
    window, origin = most_informative(device).window, drawn(TRAINING).origin_ns
    start, end = view(page)
    assert start <= window.start_ns - origin < window.end_ns - origin <= end
    assert end - start <= 1.05 * (window.end_ns - window.start_ns)
    box = page.locator("#timeline .tl-canvas").bounding_box()
    assert box is not None and box["height"] >= size[1] - 300
    expect(page.locator("#timeline-details")).to_be_in_viewport()


def test_an_address_that_names_an_op_or_a_selection_shows_that(page: Page, dashboard: Served) -> None:
    lane = stream(TRAINING, "7")
    row = len(lane.start_ns) - 1
    visit(page, dashboard, "timeline", trace=TRAINING, of="recorded", op=f"{lane.id}:{row}")
    painted(page)
    start, end = view(page)
    assert start <= int(lane.start_ns[row]) and int(lane.end_ns[row]) <= end


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("ProfilerStep#4", ["#4"]),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int, float)",
            ["vectorized_elementwise_kernel"],
        ),
        ("void (anonymous namespace)::softmax_warp_forward<float, 10>(float*)", ["softmax_warp_forward"]),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(cutlass::Params)", ["cutlass_80_tensorop_s1688gemm"]),
        ("aten::copy_", ["copy_"]),
        ("autograd::engine::evaluate_function: AddmmBackward0", ["AddmmBackward0"]),
        ("Memcpy HtoD (Pageable -> Device)", ["Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"]),
        ("exposed copy: pageable-memory", ["exposed copy: pageable-memory", "pageable-memory"]),
        ("train.py(12): step", ["train.py(12): step", "step"]),
        ("operator<<", ["operator<<"]),
        ("<lambda>", ["<lambda>"]),
        ("void ", ["void "]),
        ("", []),
    ],
)
def test_labels_leave_out_what_names_share(page: Page, dashboard: Served, name: str, labels: list[str]) -> None:
    if not page.url.startswith(dashboard.base):
        open_timeline(page, dashboard, PIPELINE)
    assert page.evaluate("name => overlapscope.labelsOf(name)", name) == labels


def test_a_label_that_would_say_nothing_is_left_out(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE)
    fit = """([name, letters]) => {
        const context = document.createElement("canvas").getContext("2d");
        context.font = "11px monospace";
        return overlapscope.fitLabel(context, name, letters * context.measureText("m").width + 0.1);
    }"""
    name = "exposed copy: pageable-memory"
    assert [page.evaluate(fit, [name, letters]) for letters in (29, 20, 12, 3)] == [name, "pageable-memory", "", ""]
    shortened = page.evaluate(fit, ["sm90_xmma_gemm_bf16bf16_cublas", 20])
    assert shortened.startswith("sm90_xmma") and "…" in shortened


# -- moving


@pytest.mark.parametrize(("closer", "back"), [("w", "s"), ("ArrowUp", "ArrowDown"), ("+", "-")])
def test_keys_zoom_around_the_mouse(page: Page, dashboard: Served, closer: str, back: str) -> None:
    open_timeline(page, dashboard, TRAINING)
    lane, (start, end) = stream(TRAINING, "7"), view(page)
    under = start + (end - start) * 0.3
    page.mouse.move(*point(page, lane, under))
    tap(page, closer)
    painted(page)
    nearer = view(page)
    assert nearer[1] - nearer[0] == pytest.approx((end - start) / 1.25, rel=0.01)
    assert (under - nearer[0]) / (nearer[1] - nearer[0]) == pytest.approx(0.3, abs=0.005)
    tap(page, back)
    painted(page)
    assert view(page) == pytest.approx((start, end), abs=(end - start) / 1000)


def test_keys_and_wheel_move_sideways(page: Page, dashboard: Served) -> None:
    start, end = 40_000_000, 50_000_000
    open_timeline(page, dashboard, TRAINING, **{"from": start, "to": end})
    page.mouse.move(*point(page, stream(TRAINING, "7"), 45_000_000))
    for key, sign in (("d", 1), ("a", -1), ("ArrowRight", 1), ("ArrowLeft", -1)):
        before = view(page)
        page.keyboard.press(key)
        painted(page)
        assert (view(page)[0] - before[0]) * sign > 0
        assert view(page)[1] - view(page)[0] == end - start
    before = view(page)
    page.keyboard.down("Shift")
    page.mouse.wheel(0, 100)
    page.wait_for_function("before => overlapscope.activeTimeline.view.start > before", arg=before[0])
    before = view(page)
    x, y = point(page, stream(TRAINING, "7"), before[0])
    drag(page, (x + 300, y), (x + 200, y))
    page.keyboard.up("Shift")
    assert view(page)[0] > before[0]
    expect(page.locator("#timeline-span")).to_contain_text("Drag over the lanes")


def test_the_wheel_with_control_zooms_and_alone_scrolls_the_lanes(page: Page, dashboard: Served) -> None:
    page.set_viewport_size({"width": 1000, "height": 560})
    open_timeline(page, dashboard, TRAINING)
    lane, before = stream(TRAINING, "7"), view(page)
    page.mouse.move(*point(page, lane, sum(before) / 2))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_function("before => overlapscope.activeTimeline.view.start > before", arg=before[0])
    zoomed = view(page)
    page.mouse.wheel(0, 60)
    page.wait_for_function("() => overlapscope.activeTimeline.scroll > 0")
    assert view(page) == zoomed


def test_a_held_key_zooms_on_to_single_ops_and_fit_goes_back(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, TRAINING)
    whole = view(page)
    page.keyboard.down("w")
    page.wait_for_function("() => overlapscope.activeTimeline.view.end - overlapscope.activeTimeline.view.start < 1e5")
    page.keyboard.up("w")
    page.keyboard.press("0")
    assert view(page) == whole
    painted(page)
    in_url(page, "from", str(whole[0]))


def test_keys_typed_into_a_field_do_not_move_the_view(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE)
    before = view(page)
    page.get_by_label("search by name").click()
    page.keyboard.type("wasd0f")
    assert view(page) == before
    page.keyboard.press("Escape")
    page.keyboard.press("w")
    assert view(page) != before


def test_every_zoom_is_measured_to_its_exact_painting(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, TRAINING)
    count = "performance.getEntriesByName('overlapscope:zoom-to-paint').length"
    before = page.evaluate(count)
    for key in "wwss":
        tap(page, key)
        painted(page)
    assert page.evaluate(count) == before + 4


# -- what is drawn


def test_columns_are_as_high_as_the_lanes_say(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, TRAINING)
    lane = stream(TRAINING, "7")
    start, end = view(page)
    columns = page.evaluate("Math.floor(overlapscope.activeTimeline.size.lanes)")
    answer = lanes.view(drawn(TRAINING), start, end, columns, [lane.id])
    size = int.from_bytes(answer[:4], "little")
    header = json.loads(answer[4 : 4 + size])["lanes"][0]
    shares = {
        lanes.CATEGORIES[fill["category"]]: np.frombuffer(answer, np.uint8, columns, 4 + size + fill["at"]).astype(int)
        for fill in header["fill"]
    }
    # Alone in their columns, and not so long that the op is drawn over them.
    single = (shares["compute"] > 0) & (sum((share > 0).astype(int) for share in shares.values()) == 1)
    first, count = 4 + size + header["ops"]["at"], header["ops"]["count"]
    begin = np.frombuffer(answer, "<f4", count, first) * columns / (end - start)
    length = np.frombuffer(answer, "<f4", count, first + 4 * count) * columns / (end - start)
    for left, right in zip(begin.tolist(), (begin + length).tolist(), strict=True):
        single[max(0, int(left) - 1) : int(right) + 2] = False
    assert single.sum() > 100
    heights = page.evaluate(
        """([lane, color]) => {
            const { canvas, context, size, rows, model, scroll } = overlapscope.activeTimeline;
            const row = overlapscope.rowOf(rows.rows, model, lane);
            const { data, width } = context.getImageData(
                size.gutter, overlapscope.TOP + row.y - scroll, Math.floor(size.lanes), row.height);
            const color_at = (at) => (data[at] << 16) | (data[at + 1] << 8) | data[at + 2];
            return Array.from({ length: width }, (_, x) => {
                let height = 0;
                for (let y = 0; y < row.height; y++) height += color_at(4 * (y * width + x)) === color;
                return height;
            });
        }""",
        [lane.id, int(palette(dark=False)["compute"][1:], 16)],
    )
    full = max(heights)
    expected = np.maximum(1, np.floor(shares["compute"] * full / 255 + 0.5)).astype(int)
    assert (np.array(heights)[single] == expected[single]).all()


def test_copies_from_pageable_memory_are_hatched(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PAGEABLE)
    lane = stream(PAGEABLE, "13")
    row = longest(lane)
    x, y = point(page, lane, float(lane.start_ns[row] + lane.end_ns[row]) / 2)
    colors = page.evaluate(
        """([x, y]) => {
            const { canvas, context } = overlapscope.activeTimeline, box = canvas.getBoundingClientRect();
            const { data } = context.getImageData(x - box.left - 20, y - box.top - 11, 40, 2);
            return new Set(Array.from({ length: 80 }, (_, i) => data.slice(4 * i, 4 * i + 3).join())).size;
        }""",
        [x, y],
    )
    assert colors >= 2


def test_groups_fold(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE)
    box = page.locator("#timeline canvas.tl-canvas").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 40, box["y"] + 60)
    page.wait_for_function("() => overlapscope.activeTimeline.folded.has('device 0')")
    after = page.locator("#timeline canvas.tl-canvas").bounding_box()
    assert after is not None and after["height"] < box["height"]


# -- choosing


def test_a_click_on_a_copy_tells_all_that_is_known_of_it(page: Page, dashboard: Served) -> None:
    lane = stream(PIPELINE, "25")
    row = longest(lane)
    open_timeline(page, dashboard, PIPELINE)
    page.mouse.click(*point(page, lane, float(lane.start_ns[row] + lane.end_ns[row]) / 2))
    op = lanes.op(drawn(PIPELINE), lane.id, row)
    expect(page.locator("#timeline-details .tl-title")).to_have_text(op["title"])
    shown = details(page)
    for name, value in op["facts"]:
        # An op may wait for several events.
        assert name in ("start", "cause", "event") or shown[name] == value
    assert {"bytes", "bandwidth", "launched by", "cause", "event"} <= set(shown)
    in_url(page, "op", f"{lane.id}:{row}")
    page.get_by_role("button", name=re.compile("^launched by")).click()
    expect(page.locator("#timeline-details .tl-title")).to_have_text("cudaMemcpyAsync")
    page.get_by_role("button", name=re.compile("^launches")).click()
    expect(page.locator("#timeline-details .tl-title")).to_have_text(op["title"])


def test_a_click_on_any_end_of_an_event_wait_draws_all_of_it(page: Page, dashboard: Served) -> None:
    lanes_of = drawn(EVENT_WAIT)
    (device,) = lanes_of.analysis.devices
    edges, number = device.edges, len(device.edges.held) // 2
    source, held = (row_of_gpu_op(lanes_of, int(ops[number])) for ops in (edges.source, edges.held))
    record, wait = (row_of_call(lanes_of, int(calls[number])) for calls in (edges.record, edges.wait))
    for place in (record, wait, source, held):
        op = lanes.op(lanes_of, *place)
        length = max(op["end"] - op["start"], 1_000)
        where = {"from": op["start"] - 2 * length, "to": op["end"] + 2 * length}
        open_timeline(page, dashboard, EVENT_WAIT, **where)
        page.mouse.click(*point(page, lanes_of.lanes[place.lane], (op["start"] + op["end"]) / 2))
        in_url(page, "op", f"{place.lane}:{place.row}")
        arrows = page.evaluate("overlapscope.activeTimeline.chosen.arrows")
        ends = {tuple((arrow[end]["lane"], arrow[end]["row"]) for end in ("from", "to")) for arrow in arrows}
        assert {(tuple(source), tuple(held)), (tuple(record), tuple(wait))} <= ends
        shown = page.locator("#timeline-details")
        expect(shown.locator("dt", has_text=re.compile("^event$")).first).to_be_visible()
    page.get_by_role("button", name=re.compile("^waits for: .*rebuilt")).first.click()
    in_url(page, "op", f"{source.lane}:{source.row}")
    page.get_by_role("button", name=re.compile("^event recorded by: .*rebuilt")).last.click()
    in_url(page, "op", f"{record.lane}:{record.row}")
    page.get_by_role("button", name=re.compile("^event waited for by: ")).click()
    in_url(page, "op", f"{wait.lane}:{wait.row}")
    page.get_by_role("button", name=re.compile("^op held back: ")).click()
    in_url(page, "op", f"{held.lane}:{held.row}")


def test_a_click_where_ops_are_too_narrow_to_be_drawn_finds_one(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, TRAINING)
    lane, (start, end) = stream(TRAINING, "7"), view(page)
    lengths = lane.end_ns - lane.start_ns
    column = (end - start) / page.evaluate("overlapscope.activeTimeline.size.lanes")
    row = int(np.flatnonzero(lengths < 2 * column)[50])
    page.mouse.click(*point(page, lane, float(lane.start_ns[row] + lane.end_ns[row]) / 2))
    expect(page.locator("#timeline-details .tl-title")).to_be_visible()
    page.wait_for_function("() => overlapscope.activeTimeline.chosen")
    chosen = page.evaluate("overlapscope.activeTimeline.chosen")
    assert chosen["lane"] == lane.id
    assert abs(chosen["start"] - int(lane.start_ns[row])) < 5 * column


def test_the_mouse_over_an_op_tells_what_it_is(page: Page, dashboard: Served) -> None:
    lane = stream(PIPELINE, "33")
    row = longest(lane)
    open_timeline(page, dashboard, PIPELINE)
    page.mouse.move(*point(page, lane, float(lane.start_ns[row] + lane.end_ns[row]) / 2))
    tooltip = page.locator(".tl-tooltip")
    expect(tooltip).to_contain_text(lane.name(row))
    expect(tooltip).to_contain_text("bandwidth")
    page.mouse.move(2, 2)
    expect(tooltip).to_be_hidden()


def test_search_goes_from_match_to_match(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE)
    page.get_by_label("search by name").fill("memcpy HTOD")
    count = lanes.search(drawn(PIPELINE), "memcpy htod", -1, 1)["count"]
    expect(page.locator(".tl-count")).to_have_text(f"{count:,} matches")
    after: int | lanes.LaneRow = view(page)[0] - 1
    for number in (1, 2):
        page.keyboard.press("Enter")
        match = lanes.search(drawn(PIPELINE), "memcpy htod", after, 1)["match"]
        after = lanes.LaneRow(match["lane"], match["row"])
        expect(page.locator(".tl-count")).to_have_text(f"{number} of {count:,}")
        in_url(page, "op", f"{match['lane']}:{match['row']}")
        start, end = view(page)
        assert start < match["start"] and match["end"] < end
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".tl-count")).to_have_text(f"1 of {count:,}")
    page.get_by_label("search by name").fill("no such kernel")
    expect(page.locator(".tl-count")).to_have_text("no match")


# All matches and the first again, then one step back: in the server's answers or in tiles.
_WALK = """async ([text, tiles]) => {
    const { source, model } = overlapscope.activeTimeline;
    const asked = tiles ? overlapscope.staticSource(tiles, model.categories) : source;
    const { count } = await asked.search(text, -1, 1);
    const found = [];
    let after = -1;
    for (let step = 0; step < count + 2; step++) {
        const { number, match } = await asked.search(text, after, step <= count ? 1 : -1);
        found.push([number, match.lane, match.row, match.start]);
        after = { lane: match.lane, row: match.row };
    }
    return found;
}"""


def test_search_visits_all_that_begin_at_once(page: Page, dashboard: Served) -> None:
    """A kernel and the piece of the overlap lane below it begin at the same instant."""
    every = sorted(
        (int(start), lane.id, row)
        for lane in drawn(EVENT_WAIT).lanes
        for row, start in enumerate(lane.start_ns)
        if "m" in lane.name(row).lower()
    )
    count, end = len(every), drawn(EVENT_WAIT).end_ns
    expected = [[number + 1, lane, row, start] for number, (start, lane, row) in enumerate(every)]
    open_timeline(page, dashboard, EVENT_WAIT, **{"from": 0, "to": end})
    assert page.evaluate(_WALK, ["m", None]) == [*expected, expected[0], expected[-1]]
    # Tiles name the ops that are wide enough in them.
    tile = lanes.view(drawn(EVENT_WAIT), 0, end, 20_000, range(len(drawn(EVENT_WAIT).lanes)))
    *wide, again, back = page.evaluate(_WALK, ["m", [base64.b64encode(gzip.compress(tile)).decode()]])
    assert [again, back] == [wide[0], wide[-1]]
    assert [number for number, *_ in wide] == list(range(1, len(wide) + 1))
    assert {(lane, row) for _, lane, row, _ in wide} < {(lane, row) for _, lane, row in every}
    for walked in (expected, wide):
        begun = [start for *_, start in walked]
        assert len(set(begun)) < len(begun) == len({(lane, row) for _, lane, row, _ in walked})
    page.get_by_label("search by name").fill("m")
    for number, (_, lane, row) in enumerate(every[:6]):
        page.keyboard.press("Enter")
        expect(page.locator(".tl-count")).to_have_text(f"{number + 1} of {count:,}")
        in_url(page, "op", f"{lane}:{row}")
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".tl-count")).to_have_text(f"5 of {count:,}")


@pytest.mark.parametrize(
    ("word", "kind"), [("exposed copy", "exposed-copy"), ("idle gap", "idle"), ("host stall", "stall")]
)
def test_buttons_go_to_the_worst_case_after_case(page: Page, dashboard: Served, word: str, kind: lanes.Subject) -> None:
    open_timeline(page, dashboard, PIPELINE)
    button = page.get_by_role("button", name=f"worst {word}")
    for number in range(2):
        button.click()
        worst_op = lanes.worst(drawn(PIPELINE), kind, number)
        match = worst_op["match"]
        expect(button).to_have_text(f"{word} {number + 1}/{worst_op['count']:,}")
        in_url(page, "op", f"{match['lane']}:{match['row']}")
        start, end = view(page)
        assert start <= match["start"] and match["end"] <= end


# -- late answers


def test_each_key_press_and_click_counts_however_late_the_answer_to_the_one_before(
    page: Page, dashboard: Served
) -> None:
    open_timeline(page, dashboard, PIPELINE)
    count = lanes.search(drawn(PIPELINE), "memcpy htod", -1, 1)["count"]
    page.get_by_label("search by name").fill("memcpy htod")
    expect(page.locator(".tl-count")).to_have_text(f"{count:,} matches")
    late(page, "**/api/timeline/search?*")
    late(page, "**/api/timeline/worst?*")
    for _ in range(3):
        page.keyboard.press("Enter")
    expect(page.locator(".tl-count")).to_have_text(f"3 of {count:,}")
    worst = page.get_by_role("button", name="worst idle gap")
    worst.dblclick()
    expect(worst).to_have_text(f"idle gap 2/{lanes.worst(drawn(PIPELINE), 'idle', 1)['count']:,}")


def test_the_view_stays_where_it_was_moved_to_before_a_late_match(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE)
    late(page, "**/api/timeline/worst?*")
    page.get_by_role("button", name="worst exposed copy").click()
    page.keyboard.press("w")
    moved = view(page)
    match = lanes.worst(drawn(PIPELINE), "exposed-copy", 0)["match"]
    in_url(page, "op", f"{match['lane']}:{match['row']}")
    expect(page.locator("#timeline-details .tl-title")).to_be_visible()
    assert view(page) == moved


def test_an_op_that_was_clicked_stays_chosen_whatever_an_earlier_search_finds(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE)
    lane = stream(PIPELINE, "33")
    row, before = longest(lane), view(page)
    late(page, "**/api/timeline/search?*")
    page.get_by_label("search by name").fill("memcpy htod")
    with page.expect_response("**/api/timeline/search?*"):
        page.keyboard.press("Enter")
        page.mouse.click(*point(page, lane, float(lane.start_ns[row] + lane.end_ns[row]) / 2))
    expect(page.locator(".tl-count")).to_contain_text("1 of")
    match = lanes.search(drawn(PIPELINE), "memcpy htod", before[0] - 1, 1)["match"]
    # As long as it would take to choose it.
    page.evaluate("([lane, row]) => overlapscope.activeTimeline.source.op(lane, row)", [match["lane"], match["row"]])
    chosen = page.evaluate("overlapscope.activeTimeline.chosen")
    assert (chosen["lane"], chosen["row"]) == (lane.id, row)
    assert view(page) == before


def test_a_view_is_drawn_though_the_one_before_it_could_not_be_had(page: Page, dashboard: Served, watch: Watch) -> None:
    watch.expect("ERR_FAILED")
    open_timeline(page, dashboard, PIPELINE)
    page.route("**/api/timeline/view?*", lambda route: route.abort(), times=1)
    # The second move comes while the view of the first is being asked for.
    page.evaluate("() => [1, 2].forEach(() => overlapscope.zoom(overlapscope.activeTimeline, 0.8, 0))")
    painted(page)
    expect(page.locator(".tl-problem")).to_be_hidden()


# -- spans and places


def test_a_dragged_span_shows_its_exact_figures(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE)
    lane = stream(PIPELINE, "29")
    drag(page, point(page, lane, 12_000_000), point(page, lane, 31_000_000))
    shown = page.locator("#timeline-span")
    expect(shown).to_contain_text("Selected time")
    page.wait_for_function("() => new URLSearchParams(location.search).has('sel')")
    start, end = map(int, query(page)["sel"].split("-"))
    assert start == pytest.approx(12_000_000, abs=200_000) and end == pytest.approx(31_000_000, abs=200_000)
    period = lanes.span(drawn(PIPELINE), 0, start, end)
    unit = unit_for(period.span_ns)
    for ns in (period.buckets.compute_ns, period.buckets.exposed_copy_ns, period.buckets.idle_ns):
        expect(shown.get_by_role("cell", name=unit.number(ns), exact=True).first).to_be_visible()
    expect(shown).to_contain_text(percent(period.overlap.efficiency_pct))
    expect(shown).to_contain_text(percent(period.overlap.hidden_copy_pct))
    drag(page, point(page, lane, end), point(page, lane, 40_000_000))
    page.wait_for_function(
        "end => Number(new URLSearchParams(location.search).get('sel').split('-')[1]) > end", arg=end
    )
    page.keyboard.press("Escape")
    expect(shown).to_contain_text("Drag over the lanes")
    in_url(page, "sel", None)


def test_a_shared_url_restores_view_span_and_op(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE)
    lane = stream(PIPELINE, "25")
    page.get_by_role("button", name="worst exposed copy").click()
    page.wait_for_function("() => new URLSearchParams(location.search).has('op')")
    painted(page)
    drag(page, point(page, lane, view(page)[0] + 100_000), point(page, lane, view(page)[1] - 100_000))
    expect(page.locator("#timeline-span")).to_contain_text("Selected time")
    page.wait_for_function("() => ['from', 'op', 'sel'].every((one) => new URLSearchParams(location.search).has(one))")
    address, shown = page.evaluate("location.href"), page.locator("#timeline-span").inner_text()
    title = page.locator("#timeline-details .tl-title").inner_text()
    before = view(page)
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#timeline-details .tl-title")).to_have_text(title)
    expect(page.locator("#timeline-span")).to_contain_text("Selected time")
    painted(page)
    assert page.locator("#timeline-span").inner_text() == shown
    assert view(page) == before
    assert page.url == address


def test_light_and_dark_keep_the_place(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE, **{"from": 10_000_000, "to": 20_000_000})
    corner = """() => [...overlapscope.activeTimeline.context.getImageData(
        overlapscope.activeTimeline.canvas.width - 2, overlapscope.TOP + 2, 1, 1).data]"""
    light = page.evaluate(corner)
    page.locator("#scheme-toggle").click()
    page.wait_for_function(f"before => String(({corner})()) !== String(before)", arg=light)
    assert view(page) == (10_000_000, 20_000_000)


def test_what_was_zoomed_to_outlives_light_and_dark_and_another_device(page: Page, dashboard: Served) -> None:
    """The page is made anew, from an address that Dash knows as it was before the zooming."""
    open_timeline(page, dashboard, TWO_DEVICES)
    page.keyboard.press("w")
    painted(page)
    zoomed = view(page)
    in_url(page, "from", str(zoomed[0]))
    mounted = page.locator("#timeline canvas.tl-canvas").element_handle()
    page.locator("#scheme-toggle").click()
    page.wait_for_function("old => !old.isConnected", arg=mounted)
    painted(page)
    assert view(page) == zoomed
    page.keyboard.press("w")
    painted(page)
    zoomed = view(page)
    in_url(page, "from", str(zoomed[0]))
    page.locator("#device-select").click()
    page.get_by_role("option", name="device 1").click()
    in_url(page, "device", "1")
    settle(page)
    painted(page)
    assert view(page) == zoomed


# Actions in quick succession: the timeline is moved, then clicked, or moved back.
_MOVE = "([start, end]) => overlapscope.setView(overlapscope.activeTimeline, { start, end })"
_MOVE_AND_CLICK = f"([start, end, button]) => {{ ({_MOVE})([start, end]); document.querySelector(button).click(); }}"
_MOVE_AND_GO_BACK = f"([start, end]) => {{ ({_MOVE})([start, end]); history.back(); }}"


def test_a_view_is_still_there_though_the_page_was_left_at_once(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, TRAINING)
    page.evaluate(_MOVE_AND_CLICK, [40_000_000, 50_000_000, "#go-copies"])
    arrive(page, "copies")
    assert "from=" not in page.url
    page.go_back()
    arrive(page, "timeline")
    painted(page)
    assert view(page) == (40_000_000, 50_000_000)
    in_url(page, "from", "40000000")


def test_a_view_is_still_there_though_the_page_was_made_anew_at_once(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, TWO_DEVICES)
    mounted = page.locator("#timeline canvas.tl-canvas").element_handle()
    page.evaluate("overlapscope.fold(overlapscope.activeTimeline, 'device 0')")
    page.evaluate(_MOVE_AND_CLICK, [1_000_000, 2_000_000, "#scheme-toggle"])
    page.wait_for_function("old => !old.isConnected", arg=mounted)
    settle(page)
    assert view(page) == (1_000_000, 2_000_000)
    assert page.evaluate("overlapscope.activeTimeline.folded.has('device 0')")
    in_url(page, "from", "1000000")


def test_a_view_does_not_overwrite_the_place_that_one_went_back_to(page: Page, dashboard: Served) -> None:
    """However late the page of that place is."""
    here, there, moved = (10_000_000, 20_000_000), (30_000_000, 40_000_000), (50_000_000, 60_000_000)
    open_timeline(page, dashboard, TRAINING, **{"from": here[0], "to": here[1]})
    follow(page, f"{urlsplit(dashboard.base).path}timeline?trace={TRAINING}&from={there[0]}&to={there[1]}")
    settle(page)
    assert view(page) == there

    late(page, "**/_dash-update-component*")
    with page.expect_response("**/_dash-update-component*"):
        page.evaluate(_MOVE_AND_GO_BACK, moved)
    settle(page)
    assert view(page) == here
    in_url(page, "from", str(here[0]))
    page.go_forward()
    settle(page)
    assert view(page) == moved
    in_url(page, "from", str(moved[0]))


def test_the_address_and_the_view_agree_after_a_link_to_where_the_page_began(page: Page, dashboard: Served) -> None:
    """Dash does not notice such a link: it has not seen that the timeline was moved since."""
    began = (10_000_000, 20_000_000)
    open_timeline(page, dashboard, TRAINING, **{"from": began[0], "to": began[1]})
    page.keyboard.press("w")
    painted(page)
    zoomed = view(page)
    in_url(page, "from", str(zoomed[0]))
    page.locator("#go-timeline").click()
    in_url(page, "from", str(began[0]))
    assert view(page) == began
    page.go_back()
    in_url(page, "from", str(zoomed[0]))
    settle(page)
    assert view(page) == zoomed


def test_a_shared_span_is_still_of_its_own_device(page: Page, dashboard: Served) -> None:
    """The address shows the first device; the span was dragged over the lanes of the second."""
    open_timeline(page, dashboard, TWO_DEVICES)
    lane = next(lane for lane in drawn(TWO_DEVICES).lanes if lane.device == 1 and lane.kind == "stream")
    page.evaluate("id => overlapscope.revealLane(overlapscope.activeTimeline, id)", lane.id)
    start, end = view(page)
    drag(page, point(page, lane, start + (end - start) * 0.4), point(page, lane, start + (end - start) * 0.7))
    expect(page.locator("#timeline-span")).to_contain_text("on device 1")
    page.wait_for_function("() => new URLSearchParams(location.search).has('sel')")
    address, shown = page.evaluate("location.href"), page.locator("#timeline-span").inner_text()
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#timeline-span")).to_contain_text("on device 1")
    assert page.locator("#timeline-span").inner_text() == shown


def test_a_double_click_fits_its_op_however_late_the_answer(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE)
    lane = stream(PIPELINE, "25")
    row = longest(lane)

    late(page, "**/api/timeline/op?*")
    page.mouse.dblclick(*point(page, lane, float(lane.start_ns[row] + lane.end_ns[row]) / 2))
    in_url(page, "op", f"{lane.id}:{row}")
    length = int(lane.end_ns[row] - lane.start_ns[row])
    page.wait_for_function(
        "most => overlapscope.activeTimeline.view.end - overlapscope.activeTimeline.view.start < most", arg=1.3 * length
    )


def test_arrows_scroll_a_long_page_until_one_is_at_the_timeline(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "compare", trace="pipeline_1stream", **{"with": PIPELINE})
    expect(page.locator(".tl[data-exact=true]")).to_have_count(2)
    before = view(page)
    # Tests share a page, and the one before may have left the mouse where a timeline is now.
    page.mouse.move(0, 0)
    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => window.scrollY > 0")
    assert view(page) == before
    page.locator(".tl-canvas").first.hover()
    page.keyboard.press("ArrowUp")
    assert view(page) != before


def test_help_opens_and_closes(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="keys and mouse")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="keys and mouse")).to_be_hidden()


def test_the_timeline_left_behind_does_not_touch_the_next_page(page: Page, dashboard: Served) -> None:
    open_timeline(page, dashboard, PIPELINE)
    page.keyboard.press("w")
    go(page, "copies")
    page.keyboard.press("w")
    page.wait_for_timeout(500)
    assert "from=" not in page.url


def test_a_trace_without_a_gpu_op_still_shows_its_threads(
    page: Page, serve_traces: Serve, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("host_only")
    file = kineto_files.write(folder / "host.json", [kineto_files.host("cpu_op", "aten::only", 0, 500)])
    open_timeline(page, serve_traces(file), "host")
    expect(page.locator(".tl-toolbar .tl-button").first).to_be_visible()
    expect(page.locator(".tl-worst")).to_have_count(0)
    page.get_by_label("search by name").fill("only")
    page.keyboard.press("Enter")
    expect(page.locator("#timeline-details .tl-title")).to_have_text("aten::only")
