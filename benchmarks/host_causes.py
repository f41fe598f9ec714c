"""Programs with a planted cause on the host, timed without overlapscope and recorded by `overlapscope run`.

    python -m benchmarks.host_causes record OUT [--only NAME]... [--minutes 9] [--device cpu]
    python -m benchmarks.host_causes page OUT docs/evaluation/host-causes.md

`record` runs each program of `tests/programs/host` as it is and with `--fixed`, with a hook that only reads the clock
(`benchmarks/plain_worker.py`), and under `overlapscope run`, in three rounds. A program has a GPU and CPUs of its own,
since processes that share a GPU take turns of milliseconds. It writes `OUT/results.json` and `OUT/traces`. `page`
analyzes the traces and compares the reports with the truth (`benchmarks/host_causes_page.py`).
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
from typing import Literal

import msgspec

from benchmarks.plain_runs import PlainStepTimes
from benchmarks.public_programs_runs import GpuLane, lanes_and_spare
from tests.programs.host.options import NOT_POSSIBLE

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "tests" / "programs" / "host"
RESULTS = "results.json"
PATIENCE_S = 120.0
"""Maximum length of one run."""
ROUNDS: tuple[tuple[Way, ...], ...] = (("planted", "fixed", "recorded"), ("planted", "fixed"), ("planted", "fixed"))
"""Runs of each program that plants a cause."""
TIMED = ("--steps", "60")
RECORDED = ("--steps", "60", "--seconds", "9")
"""Enough for the recorded steps, those timed before and after them, and those in which the host is sampled."""
TAIL = 2000
"""Number of characters to keep from the end of a run's output."""

Way = Literal["planted", "fixed", "recorded"]
_WRITING = threading.Lock()


class PlantedCauses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The truth about a script."""

    causes: tuple[str, ...]


class HostCauseRun(msgspec.Struct, frozen=True):
    """One run of a program."""

    program: str
    way: Way
    wall_s: float
    exit_code: int | None
    """None if it took too long."""
    printed: str
    planted_ns: tuple[int, ...] = ()
    """Length of the planted part of each step, as measured by the program."""
    timed: PlainStepTimes | None = None


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
    for number, ways in enumerate(ROUNDS):
        waiting = [name for name in names if truths[name].causes or number == 0]

        def work(lane: GpuLane, waiting: list[str] = waiting, ways: tuple[Way, ...] = ways) -> None:
            os.sched_setaffinity(0, lane.cores)  # for this thread and the processes that it starts
            while waiting:
                name = waiting.pop(0)
                run_all(out, name, ways if truths[name].causes else ("recorded",), device, lane.gpu, until)

        with ThreadPoolExecutor(len(lanes)) as pool:
            list(pool.map(work, lanes))


def run_all(out: Path, name: str, ways: Sequence[Way], device: str, gpu: str, until: float) -> None:
    """Run a program in these ways, and note the results."""
    for way in ways:
        if time.monotonic() > until:
            print(f"left out for want of time: {name}, {way}", flush=True)
            continue
        done = run(out, name, way, device, gpu)
        with _WRITING:
            (out / RESULTS).write_bytes(msgspec.json.encode([*read(out), done]))
        print(f"{name}, {way}: {done.wall_s:.1f} s, exit code {done.exit_code}", flush=True)


def run(out: Path, name: str, way: Way, device: str, gpu: str) -> HostCauseRun:
    """Run a program once."""
    script, times = str(SCRIPTS / f"{name}.py"), out / f"{name}.times.json"
    times.unlink(missing_ok=True)
    if way == "recorded":
        trace = str(trace_path(out, name))
        command = ["-m", "overlapscope", "run", "--force", "-o", trace, script, *RECORDED]
    else:
        command = ["-m", "benchmarks.plain_worker", "time", str(times), script, *TIMED]
        command += ["--fixed"] if way == "fixed" else []
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
    timed = msgspec.json.decode(times.read_bytes(), type=PlainStepTimes) if times.exists() else None
    times.unlink(missing_ok=True)
    wall_s = round(time.monotonic() - began, 3)
    return HostCauseRun(name, way, wall_s, exit_code, printed[-TAIL:], planted_in(printed), timed)


def planted_in(printed: str) -> tuple[int, ...]:
    """Return the planted time of each step as a program printed it."""
    lines = [line for line in printed.splitlines() if line.startswith('{"planted_ns"')]
    return msgspec.json.decode(lines[-1], type=dict[str, tuple[int, ...]])["planted_ns"] if lines else ()


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
