"""Names from a trace that mean harm: they stay text wherever they are shown."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Serve
from tests.browser.helpers import PAGES, drop, visit
from tests.support import kineto_files
from tests.support.dashboard_process import ask

HOSTILE = "<img src=x onerror=window.hacked=1>"
TRACE, OTHER = (f"{HOSTILE}/{HOSTILE} rank{rank}" for rank in range(2))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two traces in which every text is an attack, including the names of files and folder."""
    folder = tmp_path_factory.mktemp("hostile") / HOSTILE
    folder.mkdir()
    steps = []
    for step in range(4):
        at, first = 1000 * step, 10 * step + 1
        steps += [
            kineto_files.host("user_annotation", f"ProfilerStep#{step}", at, 900),
            kineto_files.host("user_annotation", f"=range {HOSTILE}", at + 1, 800),
            kineto_files.host("python_function", f"{HOSTILE}.py(12): {HOSTILE}", at, 900),
            kineto_files.host("cpu_op", f"aten::{HOSTILE}", at + 2, 700),
            kineto_files.call(at + 5, 2, first),
            kineto_files.call(at + 10, 2, first + 1, name="cudaMemcpyAsync"),
            kineto_files.call(at + 20, 400, first + 2, name="cudaStreamSynchronize"),
            kineto_files.call(at + 30, 2, first + 3, name=f"cudaLaunchKernel{HOSTILE}"),
            kineto_files.call(at + 450, 2, first + 4),
            kineto_files.kernel(at + 10, 100, correlation=first, name=f"void {HOSTILE}<float>(int)"),
            kineto_files.memcpy(at + 120, 200, correlation=first + 1, bytes=1 << 20),
            kineto_files.memcpy(at + 330, 50, correlation=first + 3, name=f"Memcpy DtoD {HOSTILE}"),
            kineto_files.kernel(at + 460, 90, correlation=first + 4, name=f"ncclDevKernel_{HOSTILE}", stream=20),
        ]
    properties = [{"id": 0, "name": f"GPU {HOSTILE}"}]
    for rank in range(2):
        kineto_files.write(
            folder / f"{HOSTILE} rank{rank}.json",
            steps,
            deviceProperties=properties,
            distributedInfo={"rank": rank, "world_size": 2, "backend": HOSTILE},
            cuda_runtime_version=HOSTILE,
            trace_id=HOSTILE,
        )
    return folder.parent


def check_harmless(page: Page) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src='x']").count() == 0


def test_names_that_mean_harm_stay_text_on_every_page(page: Page, hostile: Path, serve_traces: Serve) -> None:
    served = serve_traces(hostile)
    for name in PAGES:
        visit(page, served, name, trace=TRACE, **{"with": OTHER})
        check_harmless(page)
        assert (
            name == "laboratory"
            or HOSTILE in page.locator("body").inner_text() + page.locator("input").first.input_value()
        )
        for shown in page.locator(".js-plotly-plot .nsewdrag").all():
            shown.hover(force=True)
            check_harmless(page)
        cells = page.locator(".ag-row .ag-cell").all()[:20]
        for cell in cells:
            cell.hover(force=True)
        if cells:
            # Until the tooltip of the last one is there.
            page.wait_for_timeout(600)
        check_harmless(page)
    page.locator("#trace-select").click()
    check_harmless(page)


def test_names_that_a_spreadsheet_would_run_stay_text(
    page: Page, hostile: Path, serve_traces: Serve, tmp_path: Path
) -> None:
    visit(page, serve_traces(hostile), "steps", trace=TRACE)
    expect(page.locator("#steps-ranges")).to_contain_text(f"=range {HOSTILE}")
    with page.expect_download() as download:
        page.locator("#steps-ranges-csv").click()
    download.value.save_as(tmp_path / "ranges.csv")
    with (tmp_path / "ranges.csv").open(newline="", encoding="utf-8-sig") as file:
        first, *_ = [row[0] for row in csv.reader(file)][1:]
    assert first == f"'=range {HOSTILE}"


def test_names_that_mean_harm_stay_text_in_messages(page: Page, hostile: Path, serve_traces: Serve) -> None:
    served = serve_traces(hostile)
    visit(page, served, HOSTILE.replace("/", ""))
    check_harmless(page)
    visit(page, served, trace=HOSTILE)
    expect(page.locator("#content")).to_contain_text(HOSTILE)
    check_harmless(page)
    nothing = hostile / f"{HOSTILE}.json"
    nothing.write_bytes(b"")
    drop(page, nothing)
    expect(page.locator("#upload-message")).to_contain_text(HOSTILE)
    check_harmless(page)
    nothing.write_bytes(b'{"a": 1}')
    page.keyboard.press("Escape")
    drop(page, nothing)
    expect(page.locator("#content")).to_contain_text("cannot be shown", timeout=30_000)
    check_harmless(page)


def test_names_that_mean_harm_stay_text_in_the_exported_report(
    page: Page, hostile: Path, serve_traces: Serve, tmp_path: Path
) -> None:
    answer = ask(serve_traces(hostile), f"/api/export.html?trace={quote(TRACE, safe='')}")
    assert answer.status == 200
    file = tmp_path / "report.html"
    file.write_bytes(answer.body)
    page.goto(file.as_uri())
    page.wait_for_load_state("networkidle")
    expect(page.locator("body")).to_contain_text(re.compile(re.escape(HOSTILE)))
    check_harmless(page)
    assert page.locator("a[href^='http']").count() == 0 or "overlapscope" in page.content()
