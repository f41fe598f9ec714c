"""Programs timed without overlapscope, in processes of their own, and recorded by `overlapscope run` in between.

    python -m benchmarks.plain_record --out DIR [--only NAME]... [--minutes M] [--device cpu]

Writes `DIR/results.json` and `DIR/PROGRAM/VARIANT.trace.json.gz`; existing results are kept. A round
times a program as it is and with each of its edits; the recordings lie between two rounds. Processes import by the
dozen what their scripts do, then wait until it is their turn: none imports anything while another one is measured. To
import results from elsewhere:

    cp -r DIR packed && gunzip -r packed && tar -C packed -c . | xz -T0 | split -b 15M - plain.tar.xz-

`python -m benchmarks.plain DIR docs/evaluation/plain.md` says what it shows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks import plain_runs
from benchmarks.plain_runs import (
    SCRIPTS,
    WAYS,
    PlainScript,
    PlainStepTimes,
    ProcessTimings,
    TimedProcess,
    trace_path,
    variant_of,
)
from benchmarks.plain_worker import READY
from benchmarks.processes import RunFailed

ROOT = Path(__file__).parents[1]
STEPS = 60
IDLE_PROCESSES = 14
"""At most so many are started at once, and as many as there are cores to spare."""
PATIENCE_S = 180.0
"""Time limit for the turn of one process."""


class PlannedRun(msgspec.Struct, frozen=True):
    """One process: a variant timed in a round, or recorded in a way."""

    program: str
    edits: tuple[str, ...]
    number: int | None = None
    """The round; None for a recording."""
    way: str = ""

    def __str__(self) -> str:
        what = f"plain {self.number}" if self.number else " ".join(["recorded", *WAYS[self.way]])
        return f"{self.program} {variant_of(self.edits)}, {what}"


class RunWorker:
    """A process that imports, waits, does one run and ends."""

    def __init__(self, run: PlannedRun, target: Path, device: str) -> None:
        self.run, self.target = run, target
        script = str(SCRIPTS / f"{run.program}.py")
        program = [script, "--device", device, "--steps", str(STEPS), *(f"--edit={edit}" for edit in run.edits)]
        if run.number is None:
            task = ["record", script, *WAYS[run.way], "--force", "--output", str(target), *program]
        else:
            task = ["time", str(target), *program]
        places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {"PYTHONPATH": os.pathsep.join(places)} | ({"OMP_NUM_THREADS": "1"} if device == "cpu" else {})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.plain_worker", *task],
            cwd=ROOT,
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Output of a script's imports is skipped; a script that fails in them is handled in its turn."""
        assert self._process.stdout is not None
        while self._process.stdout.readline() not in (f"{READY}\n", ""):
            pass

    def go(self) -> None:
        """Do it. Raises RunFailed."""
        try:
            output, _ = self._process.communicate("\n", timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.end()
            raise RunFailed(f"nothing after {PATIENCE_S:.0f} s") from None
        if self._process.returncode or not self.target.exists():
            raise RunFailed("\n".join(output.splitlines()[-12:]))

    def end(self) -> None:
        """End the process, which is no longer needed."""
        self._process.kill()
        self._process.communicate()


def runs_of(name: str, program: PlainScript) -> Iterator[PlannedRun]:
    """All of a program, in the order in which they are made."""
    variants = [(), *(pair.edits for pair in program.pairs)]
    yield from (PlannedRun(name, edits, 1) for edits in variants)
    yield from (PlannedRun(name, edits) for edits in [(), *program.also])
    if program.lines_too:
        yield from (PlannedRun(name, (), way=way) for way in WAYS if way)
    yield from (PlannedRun(name, edits, 2) for edits in variants)


def wanted(out: Path, names: Sequence[str]) -> list[PlannedRun]:
    """Return the missing runs of these programs."""
    complete = {(run.program, run.variant, run.number) for run in plain_runs.read(out).runs}
    programs = plain_runs.programs()
    every = [run for name in names or programs for run in runs_of(name, programs[name])]
    return [
        run
        for run in every
        if (
            not trace_path(out, run.program, variant_of(run.edits), run.way).exists()
            if run.number is None
            else (run.program, variant_of(run.edits), run.number) not in complete
        )
    ]


def measure(out: Path, runs: Sequence[PlannedRun], device: str, until: float) -> None:
    """One run after the other, until they are done or time is up."""
    begun = time.monotonic()
    at_once = min(IDLE_PROCESSES, max(2, (os.cpu_count() or 2) - 2))
    waiting = list(runs)
    with tempfile.TemporaryDirectory() as folder:
        while waiting and time.monotonic() < until:
            workers = [RunWorker(run, target_of(out, Path(folder), run), device) for run in waiting[:at_once]]
            for worker in workers:
                worker.wait_until_ready()
            for worker in workers:
                if time.monotonic() >= until:
                    worker.end()
                    continue
                waiting.remove(worker.run)
                since = time.monotonic()
                outcome = result_of(out, worker)
                now = time.monotonic()
                print(f"{now - begun:6.1f} s  {worker.run}: {now - since:.1f} s, {outcome}", flush=True)
    if waiting:
        print(f"left out for want of time: {len(waiting)} runs, from {waiting[0]} on", flush=True)


def target_of(out: Path, folder: Path, run: PlannedRun) -> Path:
    if run.number is not None:
        return folder / f"{run.program}.{variant_of(run.edits)}.{run.number}.json"
    path = trace_path(out, run.program, variant_of(run.edits), run.way)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def result_of(out: Path, worker: RunWorker) -> str:
    """Let it run, keep its measurements, and return them in a few words."""
    run = worker.run
    try:
        worker.go()
    except RunFailed as error:
        return f"failed:\n{error}"
    if run.number is None:
        return f"{worker.target.name}, {worker.target.stat().st_size / 1e6:.2f} MB"
    timed = msgspec.json.decode(worker.target.read_bytes(), type=PlainStepTimes)
    plain = TimedProcess(run.program, variant_of(run.edits), run.number, timed)
    plain_runs.write(out, ProcessTimings((*plain_runs.read(out).runs, plain)))
    return f"{len(timed.step_ns)} steps, {statistics.median(timed.step_ns) / 1e6:.3f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=plain_runs.programs())
    parser.add_argument("--minutes", type=float, default=9.0, help="begin nothing after that (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    measure(out, wanted(out, options.only), options.device, time.monotonic() + 60 * options.minutes)


if __name__ == "__main__":
    main()
