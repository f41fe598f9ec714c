"""Programs with a planted cause on the host, which measure it themselves, recorded by `overlapscope run`.

    python -m benchmarks.host_causes record OUT [--only NAME]... [--minutes 9] [--device cpu]
    python -m benchmarks.host_causes page OUT docs/evaluation/host-causes.md

`record` runs each program of `tests/programs/host` once. After its recording, the program runs blocks of steps in turn
with and without the cause: processes of a program differ by up to half, and so can't show the gain. A program has a GPU
and CPUs of its own, since processes that share a GPU take turns of milliseconds. `record` writes `OUT/results.json` and
`OUT/traces`. `page` analyzes the traces and compares the reports with the truth (`benchmarks/host_causes_page.py`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from benchmarks.plain_runs import MachineVersions
from benchmarks.public_programs_runs import GpuLane, lanes_and_spare
from tests.programs.host.options import NOT_POSSIBLE

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "tests" / "programs" / "host"
RESULTS = "results.json"
PATIENCE_S = 120.0
"""Maximum length of one run."""
RECORDED = ("--steps", "60", "--seconds", "7")
"""Enough for the steps up to the end of the recording, then for those that are timed, and in which the host is sampled.
"""
MEASURED = ("--blocks", "8")
TIMED = ("--plain-steps", "20")
"""Waits differ from step to step, so that the mean of the usual 10 steps would say little."""
TAIL = 2000
"""Number of characters to keep from the end of a run's output."""

_WRITING = threading.Lock()


class PlantedCauses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The truth about a script."""

    causes: tuple[str, ...]


class StepBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps in a row, as measured by the program."""

    fixed: bool
    """True without the cause."""
    steps: int
    span_ns: int
    planted_ns: int
    """Time in the planted part of all these steps together."""


class MeasuredBlocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements that a program prints at its end."""

    blocks: tuple[StepBlock, ...]
    machine: MachineVersions


class HostCauseRun(msgspec.Struct, frozen=True):
    """The run of a program."""

    program: str
    wall_s: float
    exit_code: int | None
    """None if it took too long."""
    printed: str
    measured: MeasuredBlocks | None = None


def programs() -> dict[str, PlantedCauses]:
    """Read the list."""
    return msgspec.toml.decode((SCRIPTS / "programs.toml").read_bytes(), type=dict[str, PlantedCauses])


def trace_path(out: Path, program: str) -> Path:
    """Return the path of a program's recording."""
    return out / "traces" / f"{program}.trace.json.gz"


def read(out: Path) -> list[HostCauseRun]:
    """Read the runs so far."""
    path = out / RESULTS
    return msgspec.json.decode(path.read_bytes(), type=list[HostCauseRun]) if path.exists() else []


def record(out: Path, names: Sequence[str], device: str, until: float) -> None:
    """Run the programs, and start no run after `until`."""
    (out / "traces").mkdir(parents=True, exist_ok=True)
    truths = programs()
    lanes, _ = lanes_and_spare()
    waiting = [*names]

    def work(lane: GpuLane) -> None:
        os.sched_setaffinity(0, lane.cores)  # for this thread and the processes that it starts
        while waiting:
            name = waiting.pop(0)
            if time.monotonic() > until:
                print(f"left out for want of time: {name}", flush=True)
                continue
            done = run(out, name, bool(truths[name].causes), device, lane.gpu)
            with _WRITING:
                (out / RESULTS).write_bytes(msgspec.json.encode([*read(out), done]))
            print(f"{name}: {done.wall_s:.1f} s, exit code {done.exit_code}", flush=True)

    with ThreadPoolExecutor(len(lanes)) as pool:
        list(pool.map(work, lanes))


def run(out: Path, name: str, planted: bool, device: str, gpu: str) -> HostCauseRun:
    """Run and record a program."""
    command = ["-m", "overlapscope", "run", "--force", *TIMED, "-o", str(trace_path(out, name))]
    command += [str(SCRIPTS / f"{name}.py"), *RECORDED, *(MEASURED if planted else ())]
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *command, "--device", device],
        cwd=out,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places), "CUDA_VISIBLE_DEVICES": gpu},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, _ = process.communicate("\n", timeout=PATIENCE_S)
        exit_code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        printed, exit_code = process.communicate()[0], None
    wall_s = round(time.monotonic() - began, 3)
    return HostCauseRun(name, wall_s, exit_code, printed[-TAIL:], measured_in(printed))


def measured_in(printed: str) -> MeasuredBlocks | None:
    """Return the blocks of steps as a program printed them."""
    lines = [line for line in printed.splitlines() if line.startswith('{"blocks"')]
    return msgspec.json.decode(lines[-1], type=MeasuredBlocks) if lines else None


def possible(run: HostCauseRun) -> bool:
    """Return whether the program could plant its cause on this machine."""
    return run.exit_code != NOT_POSSIBLE


def main() -> None:
    from benchmarks.host_causes_page import files

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path, metavar="OUT")
    recording.add_argument("--only", action="append", metavar="NAME", choices=programs(), help="may be repeated")
    recording.add_argument("--minutes", type=float, default=9.0, help="start no run after that (%(default)s)")
    recording.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    paging = commands.add_parser("page")
    paging.add_argument("out", type=Path, metavar="OUT")
    paging.add_argument("page", type=Path)
    options = parser.parse_args()
    out = options.out.absolute()
    if options.command == "record":
        record(out, options.only or [*programs()], options.device, time.monotonic() + 60 * options.minutes)
    else:
        for path, text in files(out, options.page).items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
