"""Measures how long people wait, beside the last release: `python -m benchmarks [--large] [--release VERSION]`.

Each figure is the shortest of some runs in processes of their own, on a machine that has nothing else to do.
`benchmarks/measured/waits.json`
keeps the figures of each release; `--release` stores these under its version.
Writes `docs/evaluation/waits.md` and its picture.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from playwright.sync_api import Browser, sync_playwright

from benchmarks import dashboard, ranks, waits_plot, whatif_speed
from benchmarks.dashboard import FirstPage, first_page
from benchmarks.performance import staged
from benchmarks.processes import HERE, OURS, SOURCE, grown, hardware, run, say
from benchmarks.ranks_job import SyntheticJob
from tests.browser import chromium

KEPT: Final = HERE / "measured" / "waits.json"
PAGE: Final = HERE.parent / "docs" / "evaluation" / "waits.md"
PICTURE: Final = PAGE.with_suffix(".png")
OPS: Final = whatif_speed.OPS
PACE: Final = "the bare typed decode of 250 MB, one process"
"""Speed of a machine, measured by work that no version of ours changes: msgspec making typed objects of a trace's
events."""
PACE_S: Final = 0.34
"""Machine on which the goals were set."""
PROGRAM: Final = """
import itertools, sys, time
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in {steps}:
    optimizer.zero_grad()
    model(torch.ones(32, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.002)
print("ended", file=sys.stderr)
"""
"""A program that uses the CPU alone."""
_RUNS: Final = 5


class MeasuredWait(Struct, frozen=True):
    """A wait in seconds, or memory."""

    what: str
    wanted: float
    measured: float
    unit: Literal["s", "MB"] = "s"

    def text(self, value: float) -> str:
        """Return a value in its unit."""
        if self.unit == "MB":
            return f"{value:.0f} MB"
        return f"{value:.2f} s" if self.wanted >= 0.05 else f"{1000 * value:.1f} ms"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the page, print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="also traces of 1 GB, zooming, and 512 ranks")
    parser.add_argument("--release", metavar="VERSION", help="keep the figures as those of this version")
    options = parser.parse_args(arguments)
    kept: dict[str, dict[str, float]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        waits = list(measured(Path(scratch), large=options.large))
    last = next((version for version in reversed(kept) if version != options.release), None)
    text = page(waits, last, kept.get(last or "", {}))
    if options.release:
        kept[options.release] = {wait.what: round(wait.measured, 4) for wait in waits}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    now = {wait.what: wait.measured for wait in waits if wait.unit == "s"}
    timed = {version: {what: then[what] for what in now if what in then} for version, then in kept.items()}
    waits_plot.draw(timed | {"now": now}, PICTURE)
    PAGE.write_text(text, encoding="utf-8")
    print(text)


def measured(folder: Path, *, large: bool) -> Iterator[MeasuredWait]:
    """Yield every figure as soon as it is known."""
    trace = folder / "seed.json"
    with gzip.open(SOURCE) as seed, trace.open("wb") as plain:
        shutil.copyfileobj(seed, plain)
    yield MeasuredWait("`overlapscope --help`", 0.07, shortest(lambda: run([*OURS, "--help"]).seconds))
    for what, steps, begins in (
        ("the complete recording of a program that goes on", "itertools.count()", "overlapscope: without the profiler"),
        ("a program's end", "range(60)", "ended"),
    ):
        waits = [reported_after(steps, begins) for _ in range(3)]
        yield MeasuredWait(f"`run`, from {what} to the report", 1.0, min(waits))
    small = HERE.parent / "traces" / "pipeline_1stream.json.gz"
    yield MeasuredWait("`analyze`, 1 MB", 0.15, shortest(lambda: analyzed(small)))
    pages = {trace.stat().st_size / 1e6: _pages(trace)}
    yield _first_page("11 MB", dashboard.FIRST_PAGE_MB[11], *pages.values())
    for megabytes, wanted_s in ((250, 0.5), *([(1000, 1.8)] if large else [])):
        trace = grown(folder, megabytes)
        yield MeasuredWait(f"`analyze`, {megabytes} MB", wanted_s, shortest(lambda: analyzed(trace)))  # noqa: B023
        if megabytes == 250:
            yield from _reader(trace)
        pages[megabytes] = _pages(trace)
        yield _first_page(f"{megabytes} MB", dashboard.FIRST_PAGE_MB[megabytes], pages[megabytes])
        trace.unlink()
    memory_mb = dashboard.memory(pages)[1]
    yield MeasuredWait("memory of the dashboard's server for a GB of trace", dashboard.MB_PER_GB, memory_mb, "MB")
    say(f"predictions of {OPS:,} ops")
    speeds = [json.loads(run([sys.executable, "-m", whatif_speed.__name__, str(OPS)]).stdout) for _ in range(2)]
    for name, what, wanted_s in (
        ("a replay", "replay", 0.5),
        (f"`whatif --{whatif_speed.CHANGE}`", "prediction", 3.0),
        ("`whatif --best`", "best", 8.0),
    ):
        yield MeasuredWait(f"{name}, {OPS:,} GPU ops", wanted_s, min(speed[what] for speed in speeds))
    if large:
        yield from _zooms()
        place = folder / "ranks"
        place.mkdir()
        packed = sum(path.stat().st_size for path in SyntheticJob(512).write(place)) / 1e6
        say(f"512 ranks, {packed:.0f} MB")
        yield MeasuredWait(f"`ranks`, 512 of {packed:.0f} MB, two workers", 18.0, ranks.command(place, 2).seconds)


def _reader(trace: Path) -> Iterator[MeasuredWait]:
    """Measure reading alone, and a bare decode on as many cores. The goal is 1.4 times the latter."""
    seconds = staged(trace, "--repeats", str(_RUNS))["seconds"]
    yield MeasuredWait("of which reading", 1.4 * PACE_S / len(os.sched_getaffinity(0)), seconds["reading, all cores"])
    yield MeasuredWait(PACE, PACE_S, seconds["bare typed decode, one process"])


def _pages(trace: Path) -> list[FirstPage]:
    """Three first pages, after a run that fills the caches."""
    say("the first page of the dashboard")
    with _browser() as browser:
        return [first_page(browser, trace) for _ in range(4)][1:]


def _first_page(size: str, wanted_s: float, pages: Sequence[FirstPage]) -> MeasuredWait:
    return MeasuredWait(f"first page of the dashboard, {size}", wanted_s, min(page.verdict_s for page in pages))


def _zooms() -> Iterator[MeasuredWait]:
    ops = dashboard.OPS[-1]
    say(f"zooming, {ops:,} GPU ops")
    with _browser() as browser:
        moved = dashboard.zooming(browser, ops, dashboard.MOVES)
    yield MeasuredWait(f"a zoom, {ops:,} GPU ops", dashboard.PAINT_MS / 1000, moved.paint_ms / 1000)
    yield MeasuredWait("of which the server", dashboard.SERVER_MS / 1000, moved.server_ms / 1000)


@contextmanager
def _browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        yield browser
        browser.close()


def analyzed(trace: Path) -> float:
    """Seconds from the command to the printed report."""
    return run([*OURS, "analyze", "--no-cache", trace]).seconds


def reported_after(steps: str, begins: str) -> float:
    """Seconds from a printed line to the report, for a program of these steps; the line begins so."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*OURS, "run", "-o", str(Path(folder, "x.json.gz")), "-c", PROGRAM.format(steps=steps)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            begin = 0.0
            for line in process.stderr:
                if line.startswith(begins):
                    begin = time.perf_counter()
                elif begin and not line.startswith("overlapscope"):
                    process.kill()
                    return time.perf_counter() - begin
    raise RuntimeError("the program ended before its report")


def shortest(measure: Callable[[], float], runs: int = _RUNS) -> float:
    """Return the shortest of some runs, after one that fills the caches: other work only makes them longer."""
    say("measuring")
    measure()
    return min(measure() for _ in range(runs))


def page(waits: Sequence[MeasuredWait], last: str | None, before: dict[str, float]) -> str:
    """Return the table, with the last release's figures beside it if they were measured."""
    pace_s = next(wait.measured for wait in waits if wait.what == PACE)
    lines = [
        "# How long people wait",
        "",
        "Written by `python -m benchmarks`. Each figure is the shortest of some runs, from the start of a process of",
        "its own; that of a first page is when its verdict has been drawn ([the rest](performance-dashboard.md)).",
        f"{hardware()}.",
        "",
        f"The goals were set on a machine that takes {PACE_S} s for {PACE}: msgspec makes typed objects of the events,",
        f"which no version of overlapscope changes. This machine takes {pace_s:.2f} s, so here a goal is "
        f"{pace_s / PACE_S:.2f} times as long.",
        "",
        f"| | goal here | measured | |{f' {last} |' if last else ''}",
        f"|---|---|---|---|{'---|' if last else ''}",
    ]
    for wait in waits:
        if wait.what == PACE:
            continue
        here = wait.wanted * pace_s / PACE_S if wait.unit == "s" else wait.wanted
        verdict = "met" if wait.measured <= here else "**missed**"
        cells = [wait.what, wait.text(here), wait.text(wait.measured), verdict]
        if last:
            cells.append(wait.text(before[wait.what]) if wait.what in before else "not measured")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"![What was measured for each release]({PICTURE.name})", ""])


if __name__ == "__main__":
    main()
