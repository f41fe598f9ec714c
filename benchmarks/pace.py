"""Compare the step that `overlapscope run` reports with a clock inside the same process, over all steps.

    python -m benchmarks.pace record OUT [--only NAME]...
    python -m benchmarks.pace page OUT docs/evaluation/pace.md

`record` runs each program of `tests/programs/pace.py` three times, and writes `OUT/pace.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.noise import table, wrapped
from tests.programs.pace import USUAL

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "programs" / "pace.py"
PATIENCE_S = 180
RUNS = 3
_RECORDED = 45
"""Number of first steps, some of which are recorded."""
_PAUSE, _PAUSE_NS = 5, 50_000_000
"""A step longer than this multiple of the median, and than this, contains a pause of the recorder, unless it is long on
purpose."""


def record(out: Path, names: list[str]) -> None:
    """Run the programs, and write what each clocked and what the report says."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    out.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    for _ in range(RUNS):
        runs += [run(name) for name in names]
        load = f"{os.cpu_count()} CPUs under a load of {os.getloadavg()[0]:.1f}"
        measured = {"machine": f"{gpu}, torch {torch.__version__}, {load}", "runs": runs}
        (out / "pace.json").write_text(json.dumps(measured, indent=1))


def run(name: str) -> dict[str, Any]:
    """Run a program under `overlapscope run`, and return its steps and the report's figures, in nanoseconds."""
    with tempfile.TemporaryDirectory() as folder:
        clock, trace = Path(folder) / "clock.json", Path(folder) / "x.json.gz"
        ours = [sys.executable, "-m", "overlapscope"]
        command = [*ours, "run", "-o", str(trace), str(SCRIPT), name, str(clock)]
        begun = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        printed = [line for line in done.stderr.splitlines() if line.startswith("overlapscope:")]
        print(name, done.returncode, f"{time.monotonic() - begun:.0f} s", *printed[-6:], sep="\n  ", flush=True)
        analyze = [*ours, "analyze", "--format", "json", "--no-cache", str(trace)]
        report = json.loads(subprocess.run(analyze, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
        result = report["traces"][0]
        plain = (result["devices"][0]["plain"] if result["devices"] else result["host"]["plain"]) or {}
        return {
            "name": name,
            "clock": json.loads(clock.read_text()),
            "reported": {key: plain.get(key) for key in ("step_ns", "low_ns", "high_ns", "recorded_step_ns")},
            "again": sum(bool(re.search("recorded instead", line)) for line in printed),
        }


def usual_steps(run: dict[str, Any]) -> list[int]:
    """Return the lengths of steps at the usual pace, without those in which the recorder starts, stops and writes."""
    steps = run["clock"][max(_RECORDED, USUAL[run["name"]]) :]
    longest_ns = max(_PAUSE_NS, _PAUSE * statistics.median(ns for ns, _ in steps))
    return [ns for ns, on_purpose in steps if on_purpose or ns < longest_ns]


def page(measured: dict[str, Any]) -> str:
    """Return the page."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for each in measured["runs"]:
        runs.setdefault(each["name"], []).append(each)
    rows, errors = [], []
    for name, of_program in runs.items():
        usual = [usual_steps(each) for each in of_program]
        means = [statistics.fmean(lengths) for lengths in usual]
        reported = [each["reported"]["step_ns"] for each in of_program]
        off = [100 * (ns / mean - 1) for ns, mean in zip(reported, means, strict=True) if ns is not None]
        errors += off
        rows.append(
            (
                name,
                _each([mean / 1e6 for mean in means], ".2f"),
                _each([statistics.median(lengths) / 1e6 for lengths in usual], ".2f"),
                _each([ns / 1e6 for ns in reported if ns is not None], ".2f"),
                f"{_each(off, '+.1f')}%",
                _each([each["again"] for each in of_program], "d"),
            )
        )
    sizes = [abs(error) for error in errors]
    text = wrapped(f"""# Pace of a program

**Question:** Is the step that `overlapscope run` reports the program's? Programs whose pace changes, or whose steps
differ (`tests/programs/pace.py`), clocked their steps themselves, in the same process, while `overlapscope run`
recorded some of them on {measured["machine"]}. Steps in which the recorder starts, stops or writes don't count. Each
program ran {len(next(iter(runs.values())))} times.

The reported step is off by {statistics.median(sizes):.1f}% in the median and {max(sizes):.1f}% at worst. "Again" counts
how often steps were recorded anew.""")
    heads = ("program", "mean, ms", "median, ms", "reported, ms", "off by", "again")
    written = wrapped(
        "`python -m benchmarks.pace` writes this page. Means are of the steps at the usual pace, up to the end."
    )
    return f"{text.strip()}\n\n{table(heads, rows, words=1)}\n\n{written.strip()}\n"


def _each(values: Sequence[float], style: str) -> str:
    return ", ".join(format(value, style) for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--only", action="append", choices=USUAL, default=[])
    writing = commands.add_parser("page")
    writing.add_argument("out", type=Path)
    writing.add_argument("page", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        record(options.out, options.only or list(USUAL))
    else:
        options.page.write_text(page(json.loads((options.out / "pace.json").read_text())))


if __name__ == "__main__":
    main()
