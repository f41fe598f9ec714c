"""Writes `docs/evaluation/first-screen.md`: the first screen of each bundled recording.

    python -m benchmarks.first_screen      # six minutes

A browser of 1280 by 720 pixels opens the overview of every recording in `traces/` and looks which parts are on screen.
"""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page, sync_playwright

from benchmarks.data_files import csv_text
from overlapscope.dashboard.library import Library
from tests.browser import chromium
from tests.browser.helpers import visit
from tests.support.dashboard_process import Served, serve
from tests.support.helpers import TRACES

RESULTS = TRACES.parent / "docs" / "evaluation" / "first-screen.md"
SIX = (
    "gpt2_train",
    "ddp/rank1",
    "known_causes/data_loading_stacks",
    "known_causes/item_every_step_stacks",
    "laboratory/kv_offload/on_demand",
    "laboratory/offload_pipeline/one_stream",
)
_PAGE = """\
# First screen of the dashboard

**Question:** Does the overview state problem, place, edit and saving without scrolling?

In **{whole} of {found}** bundled recordings with a finding, a window of 1280 by 720 pixels shows the verdict, a step as
a timeline, the finding, the first line of its edit, and its place ({placed} have one) and saving with the button that
copies the command for it ({proven}). The other {rest} recordings have no finding, or nothing that ran on a GPU.

| recording | verdict | finding, and where | edit | saving |
|---|---|---|---|---|
{table}

A place without a line of code is of a recording without stacks; the screen says which option records them. Every
recording, with the parts that its first screen lacks: [first-screen.csv](first-screen.csv).

`python -m benchmarks.first_screen` writes this page.
"""
_LOOK = """() => {
    const card = document.querySelector('#overview-findings .mantine-Accordion-item');
    const parts = {
        verdict: document.getElementById('verdict-text'),
        step: document.querySelector('#overview-timeline-step canvas'),
        finding: card && card.querySelector('.finding-title'),
        where: card && card.querySelector('.place'),
        change: card && card.querySelector('.finding-change'),
        saves: card && card.querySelector('.finding-cost'),
        copy: card && card.querySelector('[data-copy]'),
    };
    const shown = (element) => {
        const box = element.getBoundingClientRect();
        return box.top >= 0 && box.bottom <= innerHeight;
    };
    const text = (element) => (!element ? 'none' : element.tagName === 'CANVAS' ? 'drawn' : element.textContent);
    const seen = Object.entries(parts).map(([name, element]) => [name, text(element)]);
    const missing = Object.keys(parts).filter((name) => parts[name] && !shown(parts[name]));
    return { ...Object.fromEntries(seen), missing: missing.join(', ') };
}"""


def main() -> None:
    """Look at every recording, and write the page and its CSV file."""
    traces = [entry.id for entry in Library([TRACES]).entries()]
    with sync_playwright() as playwright, serve(TRACES) as served:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        rows = {trace: _seen(page, served, trace) for trace in traces}
        browser.close()
    table = [[trace, *map(str, row.values())] for trace, row in rows.items()]
    RESULTS.with_suffix(".csv").write_text(csv_text(("recording", *next(iter(rows.values()))), table))
    RESULTS.write_text(_page(rows))


def _seen(page: Page, served: Served, trace: str) -> dict[str, Any]:
    visit(page, served, trace=trace)
    if page.locator("#overview-timeline-step").count():
        page.locator("#overview-timeline-step[data-exact=true]").wait_for()
    seen: dict[str, Any] = page.evaluate(_LOOK)
    return seen


def _page(rows: dict[str, dict[str, Any]]) -> str:
    found = [row for row in rows.values() if row["finding"] != "none"]
    whole = sum(row["missing"] == "" for row in found)
    lines = [
        f"| `{trace}` | {row['verdict']} | {row['finding']}; {row['where']} | {row['change']} | {row['saves']} |"
        for trace, row in rows.items()
        if trace in SIX
    ]
    placed, proven = (sum(row[part] != "none" for row in found) for part in ("where", "copy"))
    rest, table = len(rows) - len(found), "\n".join(lines)
    return _PAGE.format(whole=whole, found=len(found), placed=placed, proven=proven, rest=rest, table=table)


if __name__ == "__main__":
    main()
