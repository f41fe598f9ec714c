"""Recordings of one and the same program, again and again, and of slowdowns planted in it.

    python -m benchmarks.repeats record OUTPUT_DIR [--seconds 360]      # on a GPU

Each recording is made as CI makes it: in a process of its own, which imports torch, sets the program up, runs it warm
and records `STEPS` steps with `overlapscope.record`. Each round has a recording of every unchanged program, with the
planted ones in between, so that drift of the machine affects all alike. No two
processes ever use the GPU at once, and none imports anything while another one records.

Sizes of slowdowns are set once, at the start, as shares of the unchanged program's recorded step. `index.json` has the
requested size and the size measured in the recording.

Each planted slowdown gets `TAKES` recordings. Those that do not fit into the given time are left out: first
the third of each, then the second, then the first of what matters least. With `--seconds 0` nothing is planted.

`tests/repeats.tar.xz` holds two such directories, `repeats/first` and, with nothing planted, `repeats/second`, each
trace unpacked, as many that are alike are smaller that way. `benchmarks.noise` evaluates them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from benchmarks.processes import RunFailed
from benchmarks.repeats_worker import (
    CHANGES,
    CLEAN,
    STEPS,
    WARM_UP,
    PlantedVariant,
    ProgramCalibration,
    WorkerJob,
    WorkerResult,
    Workers,
)

PROGRAMS = ("prefetch", "offload", "decode", "training")
REPEATS, TAKES = 8, 3
SECONDS = 360.0
SIZES_PCT = (2.0, 1.0, 5.0, 3.0, 0.5, 10.0)
"""Shares of a step, the most important first."""
COPY_SIZES_PCT = (2.0, 1.0, 5.0, 10.0)
MOST_FAILURES = 5


def planted_variants() -> Iterator[tuple[str, PlantedVariant]]:
    """Every program with everything that is planted in it, once, what matters most first."""
    sized = [
        *(PlantedVariant(f"compute_{pct:g}pct", "compute", pct) for pct in SIZES_PCT),
        *(PlantedVariant(f"copy_{pct:g}pct", "copy", pct) for pct in COPY_SIZES_PCT),
        *(PlantedVariant(f"host_{pct:g}pct", "host", pct) for pct in SIZES_PCT),
    ]
    sized.sort(key=lambda variant: SIZES_PCT.index(variant.pct or 0.0))
    for program in PROGRAMS:
        for kind in CHANGES:
            if program != "decode" or kind == "synchronize":  # It sends no batches.
                yield program, PlantedVariant(kind, kind)
    for variant, program in itertools.product(sized, PROGRAMS):
        if variant.kind != "host" or program == "decode":  # The others' hosts have time to spare.
            yield program, variant


def job_for(
    program: str, variant: PlantedVariant, number: int, calibration: ProgramCalibration, target: Path
) -> WorkerJob:
    """Return a recording with its percentage converted into the plant's argument."""
    planted_ms = (variant.pct or 0.0) / 100 * calibration.step_ms
    per_ms = {"compute": calibration.cycles_per_ms, "copy": calibration.bytes_per_ms, "host": 1e6}
    path = target / program / f"{variant.name}.{number}.trace.json.gz"
    return WorkerJob(program, path, variant, planted_ms, round(planted_ms * per_ms.get(variant.kind, 0.0)))


class RecordingIndex(Struct):
    """Return the recordings so far; `index.json` has them at any time."""

    target: Path
    calibrations: dict[str, ProgramCalibration] = field(default_factory=dict)
    machine: dict[str, str | None] = field(default_factory=dict)
    recordings: list[dict[str, Any]] = field(default_factory=list)
    failures: int = 0
    begun: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begun

    def add(self, job: WorkerJob, path: Path, number: int, begun_s: float, outcome: WorkerResult) -> None:
        clean = job.variant.pct is None
        self.recordings.append(
            {
                "program": job.program,
                "variant": job.variant.name,
                "kind": job.variant.kind,
                "number": number,
                "file": path.relative_to(self.target).as_posix(),
                "begun_s": round(begun_s, 2),
                "asked_pct": job.variant.pct,
                "asked_ms": None if clean else round(job.planted_ms, 6),
                "planted_ms": None if outcome.planted_ms is None else round(outcome.planted_ms, 6),
                "notes": outcome.notes,
            }
        )

    def write(self) -> None:
        index = {
            "machine": self.machine,
            "warm_up": WARM_UP,
            "steps": STEPS,
            "calibration": {program: asdict(constants) for program, constants in self.calibrations.items()},
            "recordings": self.recordings,
        }
        written = self.target / "index.json.part"
        written.write_text(json.dumps(index, indent=1) + "\n")
        written.replace(self.target / "index.json")


def record(target: Path, seconds: float) -> None:
    """Record everything, into `target`. Raises SystemExit where that does not work."""
    for program in PROGRAMS:
        (target / program).mkdir(parents=True, exist_ok=True)
    progress, workers = RecordingIndex(target), Workers()
    try:
        for program in PROGRAMS:
            outcome = workers.do(WorkerJob(program))
            if outcome.calibration is not None:
                progress.calibrations[program], progress.machine = outcome.calibration, outcome.machine
            print(f"{progress.elapsed_s:6.1f} s  {program}: {outcome.calibration}", flush=True)
        run(progress, seconds, workers.do)
    except RunFailed as error:
        raise SystemExit(f"gave up: {error}") from None
    finally:
        workers.end()
    complete = len(progress.recordings)
    print(f"{complete} recordings in {progress.elapsed_s:.0f} s, {progress.failures} failed", flush=True)


def run(progress: RecordingIndex, seconds: float, do: Callable[[WorkerJob], WorkerResult]) -> None:
    """All rounds. Raises RunFailed after too many failures."""
    variants = list(planted_variants())
    queue = deque((program, variant, take) for take in range(1, TAKES + 1) for program, variant in variants)
    for number in range(1, REPEATS + 1):
        for program in PROGRAMS:
            attempt(progress, do, program, CLEAN, number)
        until = seconds * number / REPEATS
        for _ in range(math.ceil(len(queue) / (REPEATS + 1 - number))):
            if progress.elapsed_s > until:
                break
            attempt(progress, do, *queue.popleft())
        print(f"round {number} of {REPEATS} is over; {len(queue)} to go", flush=True)
    if queue:
        print(f"left out for want of time: {len(queue)} recordings", flush=True)


def attempt(
    progress: RecordingIndex,
    do: Callable[[WorkerJob], WorkerResult],
    program: str,
    variant: PlantedVariant,
    number: int,
) -> None:
    job = job_for(program, variant, number, progress.calibrations[program], progress.target)
    if job.path is None:
        raise ValueError("a recording needs a path")
    begun_s = progress.elapsed_s
    try:
        outcome = do(job)
    except RunFailed as error:
        progress.failures += 1
        print(f"{progress.elapsed_s:6.1f} s  {program} {variant.name} {number} failed: {error}", flush=True)
        if progress.failures > MOST_FAILURES:
            raise
        return
    progress.add(job, job.path, number, begun_s, outcome)
    progress.write()
    size_kb = job.path.stat().st_size / 1e3
    of = "" if outcome.planted_ms is None else f", {job.planted_ms:.4f} ms asked, {outcome.planted_ms:.4f} ms planted"
    took = progress.elapsed_s - begun_s
    what = f"{program} {variant.name} {number}: {took:.1f} s, {size_kb:.0f} kB{of}"
    print(f"{progress.elapsed_s:6.1f} s  {what}", flush=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="make all recordings, on a GPU")
    recording.add_argument("target", type=Path, metavar="OUTPUT_DIR")
    recording.add_argument("--seconds", type=float, default=SECONDS, help="about how long it may take (%(default)s)")
    options = parser.parse_args(arguments)
    record(options.target.absolute(), options.seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
