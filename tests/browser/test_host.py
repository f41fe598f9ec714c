"""Sampled lines of the host: the flame graph and its table, on the dashboard and in a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, ViewportSize, expect

from overlapscope.commands import main
from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame
from tests.browser.conftest import SCREENSHOTS, TRACES, Serve
from tests.browser.helpers import arrive, check_accessible, settle, visit
from tests.browser.test_hostile_names import HOSTILE, check_harmless
from tests.support.helpers import with_host_activity

SAMPLES = Path(__file__).parents[1] / "host_samples.trace.json.gz"
"""A program on the CPU, recorded by `overlapscope run`, of which a third waits in `load` and over half tokenizes."""
_TORCH = "/venv/lib/python3.12/site-packages/torch"
_SIZE = ViewportSize(width=1280, height=1400)


def _of_gpu(name: str) -> HostActivity:
    """Return samples of a program whose finding names the line `known_causes.py:272`."""
    frames = (
        StackFrame("/home/me/known_causes.py", 458, "<module>"),
        StackFrame("/home/me/known_causes.py", 272, "step"),
        StackFrame(f"{_TORCH}/_tensor.py", 625, "Tensor.backward"),
        StackFrame(f"/home/me/{name}.py", 7, name),
    )
    stacks = (SampledStack(1, (0, 1, 2), 60, 60), SampledStack(1, (0, 3), 30, 5), SampledStack(1, (0, 1), 10, 10))
    return HostActivity(
        thread=1, steps=20, span_ns=200_000_000, interval_ns=1, sampler="py-spy 0.4.3", frames=frames, stacks=stacks
    )


@pytest.fixture(scope="module")
def of_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    source = TRACES / "known_causes" / "item_every_step_stacks.json.gz"
    with_host_activity(source, folder / "hostile.json.gz", _of_gpu(HOSTILE))
    return with_host_activity(source, folder / "gpu.json.gz", _of_gpu("logs"))


def _look(page: Page, name: str) -> None:
    """Keep a picture of the panel."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page.locator("#host-flame").scroll_into_view_if_needed()
    page.screenshot(path=SCREENSHOTS / f"test_host-{name}.png", full_page=True)


def test_a_program_on_the_cpu_is_shown_by_line_in_light_and_dark(page: Page, serve_traces: Serve) -> None:
    page.set_viewport_size(_SIZE)
    visit(page, serve_traces(SAMPLES), "idle")
    expect(page.locator("#content")).to_contain_text("Estimated from 229 samples (py-spy 0.4.3) of the main thread")
    expect(page.locator("#content")).not_to_contain_text("The GPU waits")
    rows = page.locator("#host-lines .ag-center-cols-container .ag-row")
    expect(rows.first).to_contain_text(re.compile(r"train.py:14\s*tokenize"))
    expect(rows.nth(1)).to_contain_text(re.compile(r"train.py:20\s*load"))
    expect(page.locator("#host-flame .slice").filter(has_text="tokenize (train.py:14)").first).to_be_visible()
    _look(page, "cpu-light")
    check_accessible(page)
    page.locator("#scheme-toggle").click()
    settle(page)
    _look(page, "cpu-dark")
    check_accessible(page, colors_alone=True)


def test_functions_that_only_call_another_are_left_out(
    page: Page, serve_traces: Serve, of_gpu: Path, tmp_path: Path
) -> None:
    activity = _of_gpu("logs")
    wrapper = StackFrame(f"{_TORCH}/nn/modules/module.py", 1775, "Module._call_impl")
    activity = replace(
        activity,
        frames=(*activity.frames, wrapper),
        stacks=(*activity.stacks, SampledStack(1, (0, 1, len(activity.frames)), 50, 50)),
    )
    source = TRACES / "known_causes" / "item_every_step_stacks.json.gz"
    visit(page, serve_traces(with_host_activity(source, tmp_path / "wrapped.json.gz", activity)), "idle")
    expect(page.locator("#host-flame .slice").first).to_be_visible()
    expect(page.locator("#host-flame .slice").filter(has_text="_call_impl")).to_have_count(0)
    check_accessible(page)


def test_a_click_on_a_function_enlarges_it(page: Page, serve_traces: Serve) -> None:
    visit(page, serve_traces(SAMPLES), "idle")
    part = page.locator("#host-flame .slice").filter(has_text="load (train.py:20)").first
    before = part.bounding_box()
    part.click()
    page.wait_for_timeout(1000)
    after = part.bounding_box()
    assert before is not None and after is not None and after["width"] > 2 * before["width"]


def test_a_line_leads_to_its_finding_and_the_gpus_waits_are_stated(
    page: Page, serve_traces: Serve, of_gpu: Path
) -> None:
    page.set_viewport_size(_SIZE)
    visit(page, serve_traces(of_gpu), "idle")
    expect(page.locator("#content")).to_contain_text(re.compile(r"The GPU waits for the host for .* of a step: "))
    row = page.locator("#host-lines .ag-row").filter(has_text="known_causes.py:272").first
    expect(row).to_contain_text("host-sync")
    _look(page, "gpu-light")
    check_accessible(page)
    page.locator("#host-lines").get_by_role("link", name="open").first.click()
    arrive(page, "overview")
    expect(page.locator("#overview-findings")).to_contain_text("host-sync")


def test_names_of_functions_that_mean_harm_stay_text(
    page: Page, serve_traces: Serve, of_gpu: Path, tmp_path: Path
) -> None:
    hostile = of_gpu.with_name("hostile.json.gz")
    visit(page, serve_traces(hostile), "idle")
    expect(page.locator("#host-lines")).to_contain_text(HOSTILE)
    for part in page.locator("#host-flame .slice").all():
        part.hover(force=True)
        check_harmless(page)
    assert HOSTILE in page.locator("#host-flame").inner_text() or HOSTILE[:20] in str(
        page.locator("#host-flame").text_content()
    )
    report = tmp_path / "report.html"
    assert main(["analyze", str(hostile), "--format", "html", "--output", str(report)]) == 0
    page.goto(report.as_uri())
    expect(page.locator("html[data-charts=drawn]")).to_have_count(1, timeout=30_000)
    expect(page.locator("#trace-0-host .slice").first).to_be_visible()
    expect(page.locator("body")).to_contain_text(HOSTILE)
    check_harmless(page)
