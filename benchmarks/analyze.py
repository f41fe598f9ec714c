"""Measures `overlapscope analyze` and HTA's load side by side, and how ours grows with the size of the trace.

    python benchmarks/analyze.py [--hta-python PYTHON] [--repeats N]

Every figure is of a whole process of ours, from its start to its end, in wall time and in peak resident memory. HTA's
seconds are those of its load alone, without its imports; its memory is its process's. The two take turns, so that
whatever else the machine does meets both. Bytecode is cached, as an installation leaves it. Writes
`benchmarks/results.md`.
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "traces" / "gpt2_train.json.gz"
RESULTS = HERE / "results.md"

COMPARED_MB = 250
GROWTH_MB = (1, 3, 10, 30, 100, 300, 1000)
HELP_RUNS = 20

OURS = (sys.executable, "-m", "overlapscope")
HTA_LOAD = """
import sys, time
from hta.trace_analysis import TraceAnalysis
start = time.perf_counter()
TraceAnalysis(trace_files={0: sys.argv[1]})
print(time.perf_counter() - start)
"""
VERSION_OF = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"


@dataclass(frozen=True, slots=True)
class Run:
    """One process: its wall time and its peak resident memory (MB are 10^6 bytes throughout)."""

    seconds: float
    peak_mb: float
    stdout: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that was asked for, and what was measured."""

    what: str
    wanted: str
    measured: str
    met: bool


def run(command: Sequence[str | Path]) -> Run:
    """Runs a command to its end. Raises CalledProcessError if it fails.

    This process imports nothing big: Linux counts what a child shares with it before `exec` into the child's peak.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(command), out.read(), err.read())
        unit = 1 if sys.platform == "darwin" else 1024
        return Run(seconds, usage.ru_maxrss * unit / 1e6, out.read())


def analyze(trace: Path) -> Run:
    return run([*OURS, "analyze", trace])


def hta_load(python: str, trace: Path) -> Run:
    done = run([python, "-c", HTA_LOAD, trace])
    return Run(float(done.stdout.split()[-1]), done.peak_mb)


def grown(directory: Path, megabytes: int) -> Path:
    trace = directory / f"grown_{megabytes}mb.json"
    run([sys.executable, HERE / "grow.py", SOURCE, trace, "--mb", str(megabytes)])
    return trace


def median(runs: Sequence[Run]) -> Run:
    return Run(statistics.median(r.seconds for r in runs), statistics.median(r.peak_mb for r in runs))


def spread(runs: Sequence[Run]) -> str:
    seconds = sorted(r.seconds for r in runs)
    return f"{seconds[0]:.2f} to {seconds[-1]:.2f}"


def compare(directory: Path, hta_python: str, repeats: int) -> tuple[list[str], list[Target]]:
    trace = grown(directory, COMPARED_MB)
    ours, hta = [], []
    for number in range(repeats):
        say(f"{COMPARED_MB} MB, HTA and overlapscope, {number + 1} of {repeats}")
        hta.append(hta_load(hta_python, trace))
        ours.append(analyze(trace))
    trace.unlink()
    we, they = median(ours), median(hta)
    faster, memory = they.seconds / we.seconds, we.peak_mb / they.peak_mb
    lines = [
        f"## Beside HTA, {COMPARED_MB} MB",
        "",
        f"Medians of {repeats} runs each, taking turns.",
        "",
        "| | seconds | least to most | peak MB |",
        "|---|---|---|---|",
        f"| HTA, load alone | {they.seconds:.2f} | {spread(hta)} | {they.peak_mb:.0f} |",
        f"| `overlapscope analyze`, whole process | {we.seconds:.2f} | {spread(ours)} | {we.peak_mb:.0f} |",
        f"| ratio | {faster:.1f} times faster | | {memory:.2f} of the memory |",
        "",
    ]
    return lines, [
        Target(f"faster than HTA's load, {COMPARED_MB} MB", "25 times", f"{faster:.1f} times", faster >= 25),
        Target(f"peak memory beside HTA's, {COMPARED_MB} MB", "0.6 at most", f"{memory:.2f}", memory <= 0.6),
    ]


def start_up(directory: Path) -> list[Target]:
    say("start-up")
    trace = directory / "seed.json"
    with gzip.open(SOURCE) as packed, open(trace, "wb") as plain:
        shutil.copyfileobj(packed, plain)
    size = trace.stat().st_size / 1e6
    helped = median([run([*OURS, "--help"]) for _ in range(HELP_RUNS)]).seconds
    analyzed = median([analyze(trace) for _ in range(HELP_RUNS // 2)]).seconds
    trace.unlink()
    return [
        Target("`overlapscope --help`", "under 150 ms", f"{helped * 1000:.0f} ms", helped < 0.150),
        Target(f"`overlapscope analyze`, {size:.0f} MB", "under 0.6 s", f"{analyzed:.2f} s", analyzed < 0.6),
    ]


def growth(directory: Path, repeats: int) -> list[str]:
    rows: list[tuple[float, Run]] = []
    for megabytes in GROWTH_MB:
        say(f"growth, {megabytes} MB")
        trace = grown(directory, megabytes)
        rows.append((trace.stat().st_size / 1e6, median([analyze(trace) for _ in range(repeats)])))
        trace.unlink()
    sizes = [size for size, _ in rows]
    lines = ["## Growth", "", f"Medians of {repeats} runs each.", "", "| MB | seconds | peak MB |", "|---|---|---|"]
    lines += [f"| {size:.1f} | {one.seconds:.2f} | {one.peak_mb:.0f} |" for size, one in rows]
    for what, unit, values in (
        ("Time", "s", [one.seconds for _, one in rows]),
        ("Peak memory", "MB", [one.peak_mb for _, one in rows]),
    ):
        slope, start = statistics.linear_regression(sizes, values)
        fit = statistics.correlation(sizes, values) ** 2
        lines += ["", f"{what} by least squares: {start:.2f} {unit} + {slope:.4f} {unit} per MB, R² = {fit:.4f}."]
        lines += ["", "```", *plot(sizes, values, unit), "```"]
    return [*lines, ""]


def plot(xs: Sequence[float], ys: Sequence[float], unit: str, width: int = 61, height: int = 11) -> list[str]:
    """The points of a curve on two logarithmic axes, as text."""
    low, high = math.log(min(ys)), math.log(max(ys))
    left, right = math.log(min(xs)), math.log(max(xs))
    grid = [[" "] * width for _ in range(height)]
    for x, y in zip(xs, ys, strict=True):
        row = round((high - math.log(y)) / (high - low or 1) * (height - 1))
        grid[row][round((math.log(x) - left) / (right - left) * (width - 1))] = "o"
    labels = {0: f"{max(ys):.4g} {unit}", height - 1: f"{min(ys):.4g} {unit}"}
    lines = [f"{labels.get(i, ''):>10} |{''.join(row).rstrip()}" for i, row in enumerate(grid)]
    first, last = f"{min(xs):.4g} MB", f"{max(xs):.4g} MB"
    return [*lines, " " * 11 + "+" + "-" * width, " " * 12 + first + last.rjust(width - len(first))]


def machine(hta_python: str) -> str:
    """What the figures were measured on, without naming it."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    versions = ", ".join(
        f"{name} {run([python, '-c', VERSION_OF, name]).stdout.strip()}"
        for python, name in (
            (sys.executable, "overlapscope"),
            (sys.executable, "numpy"),
            (sys.executable, "msgspec"),
            (hta_python, "traceinsight"),
            (hta_python, "pandas"),
        )
    )
    return (
        f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GB of memory, {platform.system()}; "
        f"Python {platform.python_version()}, {versions}."
    )


def say(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures overlapscope, beside HTA, into benchmarks/results.md.")
    parser.add_argument("--hta-python", default=sys.executable, help="Python that has traceinsight (default: this)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs per figure (default: 5)")
    options = parser.parse_args()
    about = machine(options.hta_python)
    analyze(SOURCE)  # the first run caches the bytecode
    with tempfile.TemporaryDirectory() as directory:
        compared, targets = compare(Path(directory), options.hta_python, options.repeats)
        targets += start_up(Path(directory))
        grew = growth(Path(directory), options.repeats)
    lines = [
        "# Speed and memory",
        "",
        "Written by `make bench`. The traces are a recording of GPT-2 in training, grown to size by",
        "`benchmarks/grow.py`; MB are 10^6 bytes, of the trace unpacked and of resident memory. Files are in the page",
        "cache, bytecode is cached too, processes are fresh. Memory is the largest process'; large plain files are",
        "read by several, which together need less while they read than the analysis does afterwards.",
        "",
        about,
        "",
        "| | wanted | measured | |",
        "|---|---|---|---|",
        *(f"| {t.what} | {t.wanted} | {t.measured} | {'met' if t.met else '**missed**'} |" for t in targets),
        "",
        *compared,
        *grew,
    ]
    text = "\n".join(lines)
    RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
