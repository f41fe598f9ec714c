"""Measures how long people wait, beside the last release: `python -m benchmarks [--large] [--release VERSION]`.

Each figure is the shortest of some runs in processes of their own, on a machine that has nothing else to do. What was
measured for each release is kept in `benchmarks/measured/waits.json`; `--release` keeps this one under its version.
Writes `docs/evaluation/waits.md` and its picture.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from benchmarks import ranks, waits_plot, whatif_speed
from benchmarks.dashboard import first_page
from benchmarks.performance import staged
from benchmarks.processes import HERE, OURS, SOURCE, grown, hardware, run, say
from benchmarks.ranks_job import Job
from tests.browser import chromium

KEPT: Final = HERE / "measured" / "waits.json"
PAGE: Final = HERE.parent / "docs" / "evaluation" / "waits.md"
PICTURE: Final = PAGE.with_suffix(".png")
OPS: Final = whatif_speed.OPS
_RUNS: Final = 5


@dataclass(frozen=True, slots=True)
class Wait:
    """How long somebody waits for something."""

    what: str
    wanted_s: float
    seconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the page, print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="also traces of 1 GB, and 512 ranks")
    parser.add_argument("--release", metavar="VERSION", help="keep the figures as those of this version")
    options = parser.parse_args(arguments)
    kept: dict[str, dict[str, float]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        found = list(measured(Path(scratch), large=options.large))
    last = next((version for version in reversed(kept) if version != options.release), None)
    text = page(found, last, kept.get(last or "", {}))
    if options.release:
        kept[options.release] = {wait.what: round(wait.seconds, 3) for wait in found}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    waits_plot.draw(kept | {"now": {wait.what: wait.seconds for wait in found}}, PICTURE)
    PAGE.write_text(text, encoding="utf-8")
    print(text)


def measured(folder: Path, *, large: bool) -> Iterator[Wait]:
    """Every figure, as it is known."""
    trace = folder / "seed.json"
    with gzip.open(SOURCE) as seed, trace.open("wb") as plain:
        shutil.copyfileobj(seed, plain)
    yield Wait("`overlapscope --help`", 0.07, shortest(lambda: run([*OURS, "--help"]).seconds))
    small = HERE.parent / "traces" / "pipeline_1stream.json.gz"
    yield Wait("`analyze`, 1 MB", 0.15, shortest(lambda: analyzed(small)))
    yield from _pages(trace, "11 MB", 1.0)
    for megabytes, wanted_s, page_s in ((250, 0.5, 2.0), *([(1000, 1.8, 4.0)] if large else [])):
        trace = grown(folder, megabytes)
        yield Wait(f"`analyze`, {megabytes} MB", wanted_s, shortest(lambda: analyzed(trace)))  # noqa: B023
        if megabytes == 250:
            yield _reader(trace)
        yield from _pages(trace, f"{megabytes} MB", page_s)
        trace.unlink()
    say(f"predictions of {OPS:,} ops")
    speeds = [json.loads(run([sys.executable, "-m", whatif_speed.__name__, str(OPS)]).stdout) for _ in range(2)]
    for name, what, wanted_s in (
        ("a replay", "replay", 0.5),
        (f"`whatif --{whatif_speed.CHANGE}`", "prediction", 3.0),
        ("`whatif --best`", "best", 8.0),
    ):
        yield Wait(f"{name}, {OPS:,} GPU ops", wanted_s, min(one[what] for one in speeds))
    if large:
        place = folder / "ranks"
        place.mkdir()
        packed = sum(path.stat().st_size for path in Job(512).write(place)) / 1e6
        say(f"512 ranks, {packed:.0f} MB")
        yield Wait(f"`ranks`, 512 of {packed:.0f} MB, two workers", 18.0, ranks.command(place, 2).seconds)


def _reader(trace: Path) -> Wait:
    """Reading alone, of which 1.4 times a bare decode on as many cores is wanted."""
    seconds = staged(trace, "--repeats", str(_RUNS))["seconds"]
    wanted_s = 1.4 * seconds["bare typed decode, one process"] / len(os.sched_getaffinity(0))
    return Wait("of which reading", wanted_s, seconds["reading, all cores"])


def _pages(trace: Path, size: str, wanted_s: float) -> Iterator[Wait]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        seconds = shortest(lambda: first_page(browser, trace).verdict_s, runs=3)
        browser.close()
    yield Wait(f"first page of the dashboard, {size}", wanted_s, seconds)


def analyzed(trace: Path) -> float:
    """Seconds from the command to the printed report."""
    return run([*OURS, "analyze", "--no-cache", trace]).seconds


def shortest(measure: Callable[[], float], runs: int = _RUNS) -> float:
    """Of some runs behind one that fills the caches: what the machine does besides only makes them longer."""
    say("measuring")
    measure()
    return min(measure() for _ in range(runs))


def page(found: Sequence[Wait], last: str | None, before: dict[str, float]) -> str:
    """The table, with the last release's figures beside it."""
    lines = [
        "# How long people wait",
        "",
        "Written by `python -m benchmarks`. Each figure is the shortest of some runs, from the start of a process of",
        "its own; that of a first page is when its verdict has been drawn ([the rest](performance-dashboard.md)).",
        f"{hardware()}.",
        "",
        f"| | wanted | measured | | {last or 'last release'} |",
        "|---|---|---|---|---|",
    ]
    for wait in found:
        verdict = "met" if wait.seconds <= wait.wanted_s else "**missed**"
        then = f"{before[wait.what]:.2f} s" if wait.what in before else "not measured"
        lines.append(f"| {wait.what} | {wait.wanted_s:.2f} s | {wait.seconds:.2f} s | {verdict} | {then} |")
    return "\n".join([*lines, "", f"![What was measured for each release]({PICTURE.name})", ""])


if __name__ == "__main__":
    main()
