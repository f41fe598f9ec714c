"""Everyday things: dropping traces, sharing URLs, downloads, light and dark, proxies, many clients."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

import overlapscope
from benchmarks.grow import grow
from overlapscope.base.saved import encode
from tests.browser.conftest import TRACES, Serve, Watch
from tests.browser.helpers import PAGES, arrive, check_accessible, choose, drop, forget, go, holding, settle, url, visit
from tests.browser.proxy import Proxy
from tests.support.dashboard_process import Served, ask, stop

SAMPLE = TRACES / "known_causes" / "host_sync_stacks.json.gz"

TWO_DEVICES = "mixed_workloads/model_on_two_devices"
GPU_ALONE = "mixed_workloads/small_transformer_gpu_only"
"""The recordings that differ most: several devices, and GPU ops only."""

# -- every page


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_for_everybody_and_fits_its_window(page: Page, dashboard: Served, name: str) -> None:
    visit(page, dashboard, name, trace=TWO_DEVICES, **{"with": GPU_ALONE})
    assert parse_qs(urlsplit(page.url).query)["trace"] == [TWO_DEVICES]
    _check_the_dark(page)
    for width in (420, 900, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        # Charts follow the window a moment later.
        page.wait_for_function("() => document.documentElement.scrollWidth <= window.innerWidth")
        for part in ("#trace-select", "#device-select", "#upload-button", ".shell-export", "#scheme-toggle"):
            expect(page.locator(part)).to_be_in_viewport(ratio=1)
        for chart in page.locator(".js-plotly-plot").all():
            expect(chart.locator(".main-svg").first).to_be_visible()
        if width < 900:
            # What fits wide windows scrolls here.
            check_accessible(page)


def test_every_page_shows_a_trace_of_gpu_ops_alone(page: Page, dashboard: Served) -> None:
    for name in PAGES:
        visit(page, dashboard, name, trace=GPU_ALONE, **{"with": TWO_DEVICES})
        assert len(page.locator("#content").inner_text()) > 20


def test_an_experiment_is_shown_to_everybody(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "laboratory", experiment="offload_pipeline")
    check_accessible(page)
    _check_the_dark(page)


def _check_the_dark(page: Page) -> None:
    """Yield after switching the page to dark colors, and switch back at the end."""
    for scheme in ("dark", "light"):
        page.locator("#scheme-toggle").click()
        settle(page)
        expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", scheme)
        if scheme == "dark":
            check_accessible(page, colors_alone=True)


def test_a_link_takes_someone_else_to_the_same_place(own_page: Page, dashboard: Served) -> None:
    page = own_page
    visit(page, dashboard, trace="known_causes/host_sync_stacks")
    go(page, "steps")
    address, text = page.url, page.locator("#content").inner_text()
    page.go_back()
    settle(page)
    expect(page.locator("#verdict-text")).to_be_visible()
    page.reload()
    settle(page)
    expect(page.locator("#verdict-text")).to_be_visible()
    forget(page)
    page.context.request.get(url(dashboard, "nothing"))
    page.goto(address)
    settle(page)
    assert page.locator("#content").inner_text() == text


def test_another_trace_is_chosen_by_name(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "copies", trace="gpt2_train")
    page.locator("#trace-select").fill("pageable_memory")
    page.get_by_role("option", name="known_causes/pageable_memory").click()
    arrive(page, "copies", "known_causes/pageable_memory")
    expect(page.locator("#content")).to_contain_text("pageable")


def test_what_is_chosen_while_a_page_is_on_its_way_is_not_lost(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "copies", trace=TWO_DEVICES)
    with holding(page, "**/_dash-update-component*", posting="..content.children"):
        page.locator("#go-idle").click()
        page.locator("#device-select").click()
        page.get_by_role("option", name="device 1").click()
        page.wait_for_url(re.compile(r"/idle\?.*device=1"))
        page.locator("#trace-select").fill("pipeline_1stream")
        page.get_by_role("option", name="pipeline_1stream").click()
        page.wait_for_url("**/idle?trace=pipeline_1stream")
    arrive(page, "idle", "pipeline_1stream")
    expect(page.locator("#trace-select")).to_have_value("pipeline_1stream")


def test_light_and_dark_are_kept(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, trace="gpt2_train")

    def scheme() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    html = page.locator("html")
    expect(html).to_have_attribute("data-mantine-color-scheme", "light")
    light = scheme()
    page.locator("#scheme-toggle").click()
    expect(html).to_have_attribute("data-mantine-color-scheme", "dark")
    assert scheme() != light
    page.reload()
    settle(page)
    expect(html).to_have_attribute("data-mantine-color-scheme", "dark")
    go(page, "copies")
    expect(html).to_have_attribute("data-mantine-color-scheme", "dark")
    page.locator("#scheme-toggle").click()
    expect(html).to_have_attribute("data-mantine-color-scheme", "light")


def test_what_does_not_exist_is_reported_with_a_link_onward(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "nowhere")
    expect(page.locator("#content")).to_contain_text("There is no page 'nowhere'")
    page.get_by_role("link", name="the overview").click()
    expect(page.locator("#verdict-text")).to_be_visible()
    visit(page, dashboard, "idle", trace="no/such")
    expect(page.locator("#content")).to_contain_text("There is no trace 'no/such' here")


# -- starting


def test_a_directory_without_traces_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "overlapscope", "dashboard", str(tmp_path), "--no-open", "--port=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "no trace in this directory" in done.stderr


def test_the_samples_are_offered_beside_other_traces(page: Page, serve_traces: Serve) -> None:
    visit(page, serve_traces(TRACES / "ddp" / "rank0.json.gz", TRACES / "ddp" / "rank1.json.gz"))
    go(page, "traces")
    page.get_by_role("button", name="Open the samples").click()
    expect(page.locator("#traces-rows")).to_contain_text("samples/data_loading")
    expect(page.get_by_role("button", name="Open the samples")).to_be_hidden()


def test_without_a_trace_the_samples_or_the_ranks_of_a_job_can_be_opened(page: Page, serve_traces: Serve) -> None:
    visit(page, serve_traces())
    expect(page.locator("#content")).to_contain_text("No trace is open")
    page.get_by_role("button", name="Open the samples").click()
    arrive(page, "traces")
    expect(page.locator("#traces-rows tr").first).to_contain_text("samples/data_loading")
    drop(page, TRACES / "ddp" / "rank0.json.gz", TRACES / "ddp" / "rank1.json.gz")
    arrive(page, "overview", "dropped/rank0")
    expect(page.locator("#verdict-text")).to_be_visible(timeout=30_000)
    go(page, "ranks")
    expect(page.locator("#ranks-table")).to_contain_text("rank 1")


def test_progress_is_shown_while_a_large_trace_loads(own_page: Page, serve_traces: Serve, tmp_path: Path) -> None:
    page = own_page
    grow(TRACES / "gpt2_train.json.gz", tmp_path / "large.json", 40)
    (tmp_path / "a_small.json.gz").write_bytes(SAMPLE.read_bytes())
    page.add_init_script(
        """window.seen = [];
        new MutationObserver(() => {
            const shown = document.getElementById('loading');
            if (shown) {
                const bar = shown.querySelector('[role=progressbar]');
                window.seen.push([shown.innerText, bar && Number(bar.getAttribute('aria-valuenow'))]);
            }
        }).observe(document, {subtree: true, childList: true, attributes: true, characterData: true});"""
    )
    visit(page, serve_traces(tmp_path), trace="large")
    expect(page.locator("#verdict-text")).to_be_visible()
    seen = page.evaluate("window.seen")
    assert any("large" in text for text, _ in seen)
    assert all(0 <= part <= 100 for _, part in seen if part is not None)


# -- dropping


@pytest.fixture
def sample(serve_traces: Serve) -> Served:
    """Return a server of one trace, into which traces are dropped."""
    return serve_traces(SAMPLE, "--max-upload=5MB")


@pytest.mark.parametrize("way", [drop, choose], ids=["dropped", "chosen"])
def test_a_trace_is_opened(page: Page, sample: Served, way: Callable[[Page, Path], None]) -> None:
    visit(page, sample)
    way(page, TRACES / "known_causes" / "pageable_memory.json.gz")
    arrive(page, "overview", "dropped/pageable_memory")
    expect(page.locator("#content")).to_contain_text("pageable")
    # It stays when one leaves the page, and others can choose it.
    go(page, "copies")
    assert "trace=dropped" in page.url


def test_what_cannot_be_taken_is_refused_with_a_reason(page: Page, sample: Served, tmp_path: Path) -> None:
    large, empty, other = (tmp_path / f"{name}.json" for name in ("large", "empty", "notes"))
    large.write_bytes(b" " * 5_000_001)
    empty.touch()
    other.write_text('{"notes": []}')
    visit(page, sample)
    before, message = page.url, page.locator("#upload-message")
    drop(page, large)
    expect(message).to_contain_text("has 5 MB, but this server has room for")
    page.keyboard.press("Escape")
    expect(message).to_be_hidden()
    drop(page, empty)
    expect(message).to_contain_text("the file is empty")
    page.locator("#upload-close").click()
    expect(page.locator("#upload-overlay")).to_be_hidden()
    assert page.url == before
    drop(page, other)
    expect(page.locator("#content")).to_contain_text("notes cannot be shown", timeout=30_000)
    expect(page.locator("#content")).to_contain_text("traceEvents")


def test_sending_can_be_cancelled(page: Page, sample: Served, watch: Watch) -> None:
    watch.expect("ERR_ABORTED|ERR_FAILED")
    visit(page, sample)
    before = page.url
    # Never passed on: as slow as a network can be.
    page.route("**/api/upload?name=*", lambda route: None)
    drop(page, SAMPLE)
    expect(page.locator("#upload-progress")).to_be_visible()
    expect(page.locator("#upload-message")).to_contain_text(SAMPLE.name)
    page.locator("#upload-close").click()
    expect(page.locator("#upload-overlay")).to_be_hidden()
    page.unroute_all(behavior="ignoreErrors")
    assert page.url == before
    # And another can be sent.
    drop(page, SAMPLE)
    arrive(page, "overview", "dropped/")


def test_the_page_reports_that_the_server_ended_or_restarted(own_page: Page, serve_traces: Serve, watch: Watch) -> None:
    page, served = own_page, serve_traces(SAMPLE)
    watch.expect("401|body stream already read")
    visit(page, served)
    # As another server, with a token of its own, would have it.
    page.context.clear_cookies()
    page.locator("#go-copies").click()
    expect(page.locator("#connection-lost")).to_contain_text("Open the address that it printed")
    page.goto(served.address)
    settle(page)
    watch.expect("ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|the server did not respond")
    stop(served.process)
    drop(page, SAMPLE)
    expect(page.locator("#upload-message")).to_contain_text("is the dashboard still running?")
    page.keyboard.press("Escape")
    page.locator("#go-copies").click()
    expect(page.locator("#connection-lost")).to_contain_text("Is the dashboard still running?")


# -- downloads


def test_the_span_in_view_is_what_is_exported(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, "timeline", trace="gpt2_train")
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_url(re.compile("from="))
    page.locator(".shell-export").click()
    with page.expect_download() as download:
        page.locator("#export-html").click()
    asked, shown = (parse_qs(urlsplit(url).query) for url in (download.value.url, page.url))
    assert (asked["from"], asked["to"]) == (shown["from"], shown["to"])


def test_the_annotated_copy_is_a_trace_with_the_same_report(page: Page, dashboard: Served, tmp_path: Path) -> None:
    visit(page, dashboard, trace="known_causes/host_sync_stacks")
    page.locator(".shell-export").click()
    with page.expect_download() as download:
        page.locator("#export-annotated").click()
    assert download.value.suggested_filename == "host_sync_stacks.annotated.json.gz"
    file = tmp_path / "copy.json.gz"
    download.value.save_as(file)
    copied, original = (
        json.loads(encode(overlapscope.analyze(overlapscope.load(path))))["traces"][0]["devices"]
        for path in (file, SAMPLE)
    )
    assert copied == original


PERFETTO = """<script>addEventListener("message", ({ data, source }) => {
  if (data === "PING") source.postMessage("PONG", "*");
  else window.got = { title: data.perfetto.title, first: [...new Uint8Array(data.perfetto.buffer, 0, 2)] };
});</script>"""


def test_the_recording_opens_in_perfettos_page(page: Page, dashboard: Served, watch: Watch) -> None:
    watch.expect("request to elsewhere: https://ui.perfetto.dev/$")
    page.context.route(
        "https://ui.perfetto.dev/**", lambda asked: asked.fulfill(body=PERFETTO, content_type="text/html")
    )
    visit(page, dashboard, trace="known_causes/host_sync_stacks")
    page.locator(".shell-export").click()
    with page.expect_popup() as opened:
        page.locator("#export-perfetto").click()
    got = opened.value.wait_for_function("window.got").json_value()
    assert got == {"title": "known_causes/host_sync_stacks", "first": [0x1F, 0x8B]}
    opened.value.close()
    page.context.unroute("https://ui.perfetto.dev/**")


def test_a_browser_that_blocks_new_windows_downloads_the_recording(page: Page, dashboard: Served) -> None:
    visit(page, dashboard, trace="known_causes/host_sync_stacks")
    page.evaluate("window.open = () => null")
    page.locator(".shell-export").click()
    with page.expect_download() as download:
        page.locator("#export-perfetto").click()
    assert download.value.suggested_filename == "host_sync_stacks.annotated.json.gz"


# -- through a proxy


@pytest.fixture(scope="module")
def proxy_port() -> int:
    """The browser has compiled the scripts of an address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.mark.parametrize("keeps_prefix", [True, False], ids=["prefix kept", "prefix stripped"])
def test_everything_works_behind_a_prefix(page: Page, serve_traces: Serve, proxy_port: int, keeps_prefix: bool) -> None:
    others = (TRACES / f"{name}.json.gz" for name in ("gpt2_train", "pipeline_1stream"))
    served = serve_traces(*others, "--base-path=/user/me/proxy")
    assert served.base.endswith("/user/me/proxy/")
    with Proxy(served.port, "/user/me/proxy/", keeps_prefix=keeps_prefix, at=proxy_port) as address:
        page.goto(f"{address}?token={served.token}")
        settle(page)
        assert page.url == address
        expect(page.locator("#traces-rows")).to_be_visible()
        # Pages with routes of their own: the timeline, grids and charts, two timelines at once.
        for name in ("timeline", "compare"):
            go(page, name)
            assert page.url.startswith(f"{address}{name}")
        page.locator("#compare-after").click()
        page.get_by_role("option").last.click()
        expect(page.locator(".tl[data-exact=true]")).to_have_count(2)
        drop(page, SAMPLE)
        arrive(page, "overview", "dropped/")
        assert page.url.startswith(f"{address}overview")
        expect(page.locator("#verdict-text")).to_be_visible()


# -- many at once


def test_ten_clients_at_once_get_what_one_gets(dashboard: Served) -> None:
    paths = [f"/api/annotated?trace={trace}" for trace in (TWO_DEVICES, GPU_ALONE)]
    paths += ["/_dash-layout", "/api/timeline/model?trace=gpt2_train"]
    paths += [
        f"/api/timeline/view?trace=gpt2_train&start={n}000000&end=90000000&columns=1200&lanes=0,1" for n in range(5)
    ]
    alone = [ask(dashboard, path) for path in paths]
    assert {answer.status for answer in alone} == {HTTPStatus.OK}

    def client(number: int) -> list[tuple[int, bytes]]:
        order = [(at + number) % len(paths) for at in range(len(paths))]
        answers = {at: ask(dashboard, paths[at]) for at in order}
        return [(answers[at].status, answers[at].body) for at in range(len(paths))]

    with ThreadPoolExecutor(10) as pool:
        for answers in pool.map(client, range(10)):
            assert answers == [(answer.status, answer.body) for answer in alone]
