"""Measures speed and memory beside HTA, and how far from the machine's limits: `docs/evaluation/performance.md`.

    python -m benchmarks.performance [--hta-python PYTHON] [--before FOLDER] [--repeats N]

Times are of whole processes from start to end, in turns with HTA's, so that whatever else the machine does meets both.
With `--before`, a checkout of an earlier version whose scanner is compiled, its runs take turns, too.
HTA's seconds are those of its load alone, without its imports; its memory is its process's. Bytecode is cached, as an
installation leaves it. Needs 6 GB of disk and up to half an hour.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.data_files import csv_text
from benchmarks.performance_plot import draw
from benchmarks.processes import (
    HERE,
    OURS,
    SOURCE,
    MeasuredGoal,
    ProcessUsage,
    grown,
    machine,
    median,
    peak_of_all_mb,
    run,
    say,
    spread,
)

NOW = HERE.parent
DOCS = NOW / "docs" / "evaluation"
PAGE, PLOT = DOCS / "performance.md", DOCS / "performance.png"
PROFILE, GROWTH = DOCS / "performance-profile.csv", DOCS / "performance-growth.csv"

COMPARED_MB = (10, 100, 250, 1000)
LOOKED_INTO_MB = 250
GROWTH_MB = (1, 3, 30, 300)
LARGE_MB = 5000
START_RUNS = 20
SMALL = NOW / "traces" / "pipeline_1stream.json.gz"
"""1 MB."""

HTA_LOAD = """
import sys, time
from hta.trace_analysis import TraceAnalysis
start = time.perf_counter()
TraceAnalysis(trace_files={0: sys.argv[1]})
print(time.perf_counter() - start)
"""


class Compared(Struct, frozen=True):
    """One size, both tools."""

    megabytes: float
    ours: list[ProcessUsage]
    before: list[ProcessUsage]
    """Runs of the earlier version; none without `--before`."""
    hta: list[ProcessUsage]
    peak_of_all_mb: float


def of(version: Path, *arguments: str | Path) -> ProcessUsage:
    """Run a command of a version of overlapscope, in whose folder `overlapscope` is."""
    return run([*OURS, *arguments], PYTHONPATH=str(version), PYTHONSAFEPATH="1")


def analyze(trace: Path, version: Path = NOW) -> ProcessUsage:
    return of(version, "analyze", "--no-cache", trace)


def hta_load(python: str, trace: Path) -> ProcessUsage:
    done = run([python, "-c", HTA_LOAD, trace])
    return ProcessUsage(float(done.stdout.split()[-1]), done.peak_mb)


def staged(trace: Path, *options: str) -> Any:
    """Run `benchmarks.stages` in a separate process."""
    return json.loads(run([sys.executable, "-m", "benchmarks.stages", str(trace), *options]).stdout)


def compare(trace: Path, hta_python: str, earlier: Sequence[Path], repeats: int) -> Compared:
    size = trace.stat().st_size / 1e6
    ours: list[ProcessUsage] = []
    hta: list[ProcessUsage] = []
    before: list[ProcessUsage] = []
    for number in range(repeats):
        say(f"{size:.0f} MB, HTA and overlapscope, {number + 1} of {repeats}")
        hta.append(hta_load(hta_python, trace))
        before.extend(analyze(trace, version) for version in earlier)
        ours.append(analyze(trace))
    return Compared(size, ours, before, hta, peak_of_all_mb([*OURS, "analyze", "--no-cache", trace]))


def beside_hta(rows: Sequence[Compared]) -> tuple[list[str], list[MeasuredGoal]]:
    lines = [
        "## Beside HTA",
        "",
        "HTA's load alone, as it reads traces by default, against `overlapscope analyze --no-cache`: reading,",
        "analysis, rules and the printed report, in a process of its own. Medians of runs that took turns.",
        "",
        "| MB | HTA, s | overlapscope, s | before, s | times faster | HTA, peak MB | overlapscope, peak MB "
        "| before, peak MB | share | of all, MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    targets = []
    for row in rows:
        we, they = median(row.ours), median(row.hta)
        before_s = f"{median(row.before).seconds:.2f} ({spread(row.before)})" if row.before else ""
        before_mb = f"{median(row.before).peak_mb:.0f}" if row.before else ""
        faster, share = they.seconds / we.seconds, we.peak_mb / they.peak_mb
        lines.append(
            f"| {row.megabytes:.0f} | {they.seconds:.2f} ({spread(row.hta)}) | {we.seconds:.2f} ({spread(row.ours)}) "
            f"| {before_s} | {faster:.1f} | {they.peak_mb:.0f} | {we.peak_mb:.0f} | {before_mb} | {share:.2f} "
            f"| {row.peak_of_all_mb:.0f} |"
        )
        if round(row.megabytes) == LOOKED_INTO_MB:
            targets += [
                MeasuredGoal(
                    f"faster than HTA's load, {row.megabytes:.0f} MB", "60 times", f"{faster:.1f} times", faster >= 60
                ),
                MeasuredGoal("peak memory beside HTA's, there", "0.10", f"{share:.2f}", share <= 0.1),
            ]
    largest = rows[-1]
    share = largest.peak_of_all_mb / largest.megabytes
    targets.append(
        MeasuredGoal(
            f"peak memory of all processes beside the file, {largest.megabytes:.0f} MB",
            "1.2 times",
            f"{share:.2f} times",
            share <= 1.2,
        )
    )
    return [
        *lines,
        "",
        "MB are 10^6 bytes, of the trace unpacked and of memory. The last column is the memory of",
        "all processes at one time, shared pages in part.",
        "",
        f"![Seconds and peak memory against the size of the trace]({PLOT.name})",
        "",
    ], targets


def limits(timings: dict[str, Any]) -> list[str]:
    seconds, size, events = timings["seconds"], timings["bytes"], timings["events"]
    lines = [
        f"## Distance from the limit, {size / 1e6:.0f} MB",
        "",
        f"{events:,} events. A plain read copies the file from the page cache. The bare decode makes typed objects of",
        "all events with msgspec and drops them, in one process: no reader that goes through it can need less.",
        "",
        "| | seconds | MB/s |",
        "|---|---|---|",
    ]
    for stage in (
        "plain read",
        "bare typed decode, one process",
        "reading, one process",
        "reading, all cores",
        "reading packed, one process",
        "reading packed, all cores",
        "reading from the cache",
    ):
        took = seconds[stage]
        lines.append(f"| {stage} | {took:.3f} | {size / 1e6 / took:,.0f} |")
    single_s, decode = seconds["reading, one process"], seconds["bare typed decode, one process"]
    cores = seconds["reading, one process"] / seconds["reading, all cores"]
    return [
        *lines,
        "",
        f"Reading takes {single_s / decode:.1f} times as long as the bare decode, in one process; all cores make it "
        f"{cores:.1f} times as fast.",
        f"The packed file has {timings['packed_bytes'] / 1e6:.0f} MB, the entry in the "
        f"[cache](../how-it-works/cache.md) {timings['cached_bytes'] / 1e6:.0f} MB.",
        "",
    ]


def where(timings: dict[str, Any], profiles: dict[str, list[dict[str, Any]]], whole: ProcessUsage) -> list[str]:
    seconds = timings["seconds"]
    inside = [("reading", seconds["reading, all cores"]), *((stage, seconds[stage]) for stage in ("analysis", "rules"))]
    rest = whole.seconds - sum(took for _, took in inside)
    rows = [*inside, ("start of Python, imports, drawing and end", rest)]
    lines = [
        "## Where the time goes",
        "",
        f"The whole process takes {whole.seconds:.2f} s: "
        + ", ".join(f"{stage} {100 * took / whole.seconds:.0f}%" for stage, took in rows)
        + ".",
    ]
    lines += [f"[Functions with the most time of their own]({PROFILE.name})", ""]
    functions = [
        (what, stage["function"], str(stage["calls"]), f"{1000 * stage['seconds']:.1f}", f"{100 * stage['share']:.0f}%")
        for what, profile in profiles.items()
        for stage in profile
    ]
    PROFILE.write_text(csv_text(("of", "function", "calls", "ms", "share"), functions), encoding="utf-8")
    return lines


def reopening(
    trace: Path, directory: Path, timings: dict[str, Any], repeats: int
) -> tuple[list[str], list[MeasuredGoal]]:
    """Measure a whole process on a trace that was read before."""
    folder = {"OVERLAPSCOPE_CACHE_DIR": str(directory / "cache")}
    command: list[str | Path] = [*OURS, "analyze", trace]
    first = run(command, **folder)
    again = [run(command, **folder) for _ in range(repeats)]
    without = [analyze(trace) for _ in range(repeats)]
    faster = timings["seconds"]["reading, all cores"] / timings["seconds"]["reading from the cache"]
    return [
        "## From the cache",
        "",
        f"`overlapscope analyze` of {trace.stat().st_size / 1e6:.0f} MB takes {median(without).seconds:.2f} s without "
        f"the cache, {first.seconds:.2f} s when it fills the cache, and {median(again).seconds:.2f} s from it.",
        "",
    ], [MeasuredGoal("reading again beside reading with all cores", "10 times", f"{faster:.0f} times", faster >= 10)]


def start_up(earlier: Sequence[Path]) -> list[MeasuredGoal]:
    """Measure, in turns, what a command takes beside the Python that it needs."""
    say("start-up")
    python = [sys.executable, "-c"]
    goals = []
    for what, bare, arguments, most in (
        ("`overlapscope --help` beside a bare Python", "pass", ["--help"], 1.3),
        ("`analyze` of 1 MB beside a Python that imports numpy", "import numpy", ["analyze", SMALL], 2.2),
    ):
        runs: list[list[float]] = []
        for _ in range(START_RUNS):
            versions = [of(version, *arguments).seconds for version in (NOW, *earlier)]
            runs.append([run([*python, bare]).seconds, *versions])
        alone, now, *before = map(statistics.median, zip(*runs, strict=True))
        then = "".join(f"; before: {each / alone:.1f}, {1000 * each:.0f} ms" for each in before)
        measured = f"{now / alone:.1f} times, {1000 * now:.0f} ms{then}"
        goals.append(MeasuredGoal(what, f"{most} times", measured, now <= most * alone))
    return goals


def growth(directory: Path, compared: Sequence[Compared], repeats: int) -> list[str]:
    rows = [(row.megabytes, median(row.ours)) for row in compared]
    for megabytes in GROWTH_MB:
        say(f"growth, {megabytes} MB")
        trace = grown(directory, megabytes)
        rows.append((trace.stat().st_size / 1e6, median([analyze(trace) for _ in range(repeats)])))
        trace.unlink()
    rows.sort(key=lambda row: row[0])
    sizes = [size for size, _ in rows]
    lines = ["## Growth", ""]
    cells = [(f"{size:.1f}", f"{measurement.seconds:.2f}", f"{measurement.peak_mb:.0f}") for size, measurement in rows]
    GROWTH.write_text(csv_text(("MB", "seconds", "peak MB"), cells), encoding="utf-8")
    for what, unit, values in (
        ("Time", "s", [measurement.seconds for _, measurement in rows]),
        ("Peak memory", "MB", [measurement.peak_mb for _, measurement in rows]),
    ):
        slope, start = statistics.linear_regression(sizes, values)
        fit = statistics.correlation(sizes, values) ** 2
        logs = [(math.log(size), math.log(value)) for size, value in zip(sizes, values, strict=True) if size > 9]
        power, _ = statistics.linear_regression(*zip(*logs, strict=True))
        lines.append(
            f"{what} by least squares: {start:.2f} {unit} + {slope:.4f} {unit} per MB, R² = {fit:.4f}. "
            f"From 10 MB to 1 GB it grows with the size to the power of {power:.2f}."
        )
    return [*lines, f"[Every size]({GROWTH.name})", ""]


def large(directory: Path) -> list[str]:
    say(f"{LARGE_MB} MB: growing it takes a while")
    trace = grown(directory, LARGE_MB)
    once = analyze(trace)
    peak = peak_of_all_mb([*OURS, "analyze", "--no-cache", trace])
    size = trace.stat().st_size / 1e6
    trace.unlink()
    return [
        f"## {size / 1000:.0f} GB",
        "",
        f"`overlapscope analyze` takes {once.seconds:.1f} s and {peak:.0f} MB in all processes together: "
        f"{peak / size:.2f} times the file.",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=f"Measures overlapscope, beside HTA, into {PAGE.name}.")
    parser.add_argument("--hta-python", default=sys.executable, help="Python that has traceinsight (default: this)")
    parser.add_argument("--before", type=Path, action="append", default=[], metavar="FOLDER", help="an earlier version")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs per figure (default: 5)")
    options = parser.parse_args()
    hta = dict.fromkeys(("traceinsight", "pandas"), options.hta_python)
    about = machine({**dict.fromkeys(("overlapscope", "numpy", "msgspec"), sys.executable), **hta})
    for version in (NOW, *options.before):
        analyze(SOURCE, version)  # the first run caches the bytecode
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        targets = start_up(options.before)
        compared = []
        for megabytes in COMPARED_MB:
            trace = grown(directory, megabytes)
            # HTA needs minutes for the largest.
            repeats = options.repeats if megabytes < 1000 else 1
            compared.append(compare(trace, options.hta_python, options.before, repeats))
            if megabytes == LOOKED_INTO_MB:
                say("stage by stage")
                timings = staged(trace, "--repeats", str(options.repeats))
                profiles = {what: staged(trace, "--profile", what) for what in ("reading", "analysis")}
                cached, cache_targets = reopening(trace, directory, timings, options.repeats)
                parts = where(timings, profiles, median(compared[-1].ours))
            trace.unlink()
        beside, hta_targets = beside_hta(compared)
        grew = growth(directory, compared, options.repeats)
        huge = large(directory)
    draw(
        [row.megabytes for row in compared],
        [median(row.hta) for row in compared],
        [median(row.ours) for row in compared],
        PLOT,
    )
    lines = [
        "# Performance",
        "",
        "Written by `make bench`. The traces are a recording of GPT-2 in training, grown to size by",
        "`benchmarks/grow.py`. Files are in the page cache, bytecode is cached too, processes are fresh.",
        "",
        about,
        "",
        "| | wanted | measured | |",
        "|---|---|---|---|",
        *(
            f"| {t.what} | {t.wanted} | {t.measured} | {'met' if t.met else '**missed**'} |"
            for t in [*hta_targets, *cache_targets, *targets]
        ),
        "",
        *beside,
        *limits(timings),
        *cached,
        *parts,
        *grew,
        *huge,
    ]
    text = "\n".join(lines).rstrip() + "\n"
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
