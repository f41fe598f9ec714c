"""Measures `overlapscope check` and `diff` as CI runs them: a cold process for an 11 MB trace, beside `analyze`.

Contracts of 1 and 10 MB are checked as well, each against a trace of about its size.

    python -m benchmarks.check [--repeats N]

Wall times of whole processes, taking turns. Writes `docs/evaluation/performance-check.md`.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from benchmarks.processes import OURS, SOURCE, ProcessUsage, median, run, say, spread
from tests.fuzz.contracts import UPLOAD, RandomAct, RandomProgram, RandomRecording

RESULTS = Path(__file__).parents[1] / "docs" / "evaluation" / "performance-check.md"
GOAL_S, LARGE_GOAL_S = 0.6, 3.0
_LARGE = "check, a contract of 10 MB"


def commands(directory: Path) -> dict[str, list[str | Path]]:
    """Measured commands by their names in the table; each ends with 0."""
    trace, baseline = directory / "trace.json", directory / "baseline.json"
    with gzip.open(SOURCE) as packed, trace.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    (directory / "overlapscope.toml").write_text("")
    run([*OURS, "check", trace, "--write-baseline", "--baseline", baseline])
    config: list[str | Path] = ["--config", directory / "overlapscope.toml"]
    budget: list[str | Path] = [*config, "--budget", "step_time <= 1 s"]
    formats = ("text", "json", "junit", "github", "gitlab", "markdown", "html", "openmetrics")
    written: list[str | Path] = [f"--format={name}:{directory / name}" for name in formats]
    against: list[str | Path] = ["--baseline", baseline, "--config", allowing(directory)]
    return {
        "analyze": [*OURS, "analyze", trace],
        "check, a budget and a forbidden rule": [*OURS, "check", trace, *budget, "--forbid", "pageable-memory"],
        "check, eight formats": [*OURS, "check", trace, *budget, *written],
        "check, beside a baseline of too few steps": [*OURS, "check", trace, *against],
        "diff, of two traces": [*OURS, "diff", trace, trace],
        "check, a contract of 1 MB": by_contract(directory, 5_000),
        _LARGE: by_contract(directory, 50_000),
    }


def by_contract(directory: Path, copies: int) -> list[str | Path]:
    """Return a check by a contract of so many copies, of a program that has every tenth of them."""
    traces = [directory / f"{number}.json" for number in (copies, copies // 10)]
    for trace, count in zip(traces, (copies, copies // 10), strict=True):
        # In a process of its own: the peak memory of a process begins with that of the process that starts it.
        writing = multiprocessing.get_context("spawn").Process(target=_write, args=(trace, count))
        writing.start()
        writing.join()
    contract = traces[0].with_suffix(".toml")
    run([*OURS, "contract", "write", traces[0], "-o", contract, "--force"])
    return [*OURS, "check", traces[1], "--contract", contract, "--other-program", "--budget", "step_time <= 9 s"]


def _write(trace: Path, copies: int) -> None:
    """Write the recording of a program with so many copies."""
    program = RandomProgram(tuple(chain.from_iterable(map(_layer, range(copies)))), 0, "everything")
    trace.write_bytes(msgspec.json.encode(RandomRecording(program, random.Random(0)).run(steps=1)))


def _layer(number: int) -> Iterator[RandomAct]:
    """Yield the acts of a layer whose weights are uploaded beside the kernels of the layer before."""
    yield RandomAct("kernel")
    yield RandomAct("upload", UPLOAD, op=f"aten::copy_to_layer_{number}")
    yield RandomAct("record", UPLOAD, event=number)
    yield RandomAct("kernel")
    yield RandomAct("wait", event=number)


def allowing(directory: Path) -> Path:
    """Return a configuration that passes unjudged budgets: the trace has three steps, and five are needed."""
    config = directory / "allowing.toml"
    config.write_text("[budgets]\nstep_time = { max_increase = 5, allow_missing = true }\n")
    return config


def table(runs: dict[str, list[ProcessUsage]]) -> list[str]:
    """Return the results as lines of markdown."""
    lines = ["| | seconds | least to most | peak MB |", "|---|---|---|---|"]
    for name, mine in runs.items():
        middle = median(mine)
        lines.append(f"| {name} | {middle.seconds:.2f} | {spread(mine)} | {middle.peak_mb:.0f} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=11, metavar="N", help="runs per figure (default: 11)")
    repeats = parser.parse_args(arguments).repeats
    with tempfile.TemporaryDirectory() as scratch:
        measured = commands(Path(scratch))
        megabytes = (Path(scratch) / "trace.json").stat().st_size / 1e6
        runs: dict[str, list[ProcessUsage]] = {name: [] for name in measured}
        for number in range(repeats):
            say(f"{number + 1} of {repeats}")
            for name, command in measured.items():
                runs[name].append(run(command))
    large_s = median(runs[_LARGE]).seconds
    checks = [median(mine).seconds for name, mine in runs.items() if name.startswith("check") and name != _LARGE]
    met = "met" if max(checks) < GOAL_S and large_s < LARGE_GOAL_S else "missed"
    text = [
        "# Performance of check and diff",
        "",
        f"Written by `python -m benchmarks.check`: medians of {repeats} whole processes each, taking turns, for a",
        f"recording of GPT-2 in training ({megabytes:.0f} MB, not packed), on the machine of",
        "[performance](performance.md).",
        "",
        f"Wanted of every check: under {GOAL_S} s, and {LARGE_GOAL_S} s by a contract of 10 MB, each contract beside a",
        f"trace of about its size. The slowest took {max(checks):.2f} s, and {large_s:.2f} s: {met}.",
        "",
        *table(runs),
        "",
    ]
    RESULTS.write_text("\n".join(text))
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
