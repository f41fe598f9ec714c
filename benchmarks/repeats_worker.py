"""Processes that record one program each, and the jobs they are given; see `benchmarks.repeats`."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import platform
import tempfile
import time
import traceback
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from benchmarks.processes import RunFailed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnContext

    from benchmarks.repeats_programs import Plant, Step

WARM_UP, STEPS = 3, 20
IDLE_PROCESSES = max(1, min(12, (os.cpu_count() or 2) - 2))
"""Number of processes that import torch at once, while nothing is recorded, and then wait for their turns."""
PATIENCE_S = 90.0
"""Time limit of a process for one task."""
KERNEL = "spin_kernel"
"""Name of the kernel of `torch.cuda._sleep` in a trace."""


class PlantedVariant(Struct, frozen=True):
    """A program, unchanged or with a single change."""

    name: str
    kind: str = "clean"
    """`clean`, `compute`, `copy` or `host`, of which `pct` is planted; or one of `CHANGES`."""
    pct: float | None = None
    """Share of a step of the clean program."""


CHANGES: dict[str, dict[str, bool]] = {
    "pageable": {"pinned": False},
    "default_stream": {"side_stream": False},
    "synchronize": {"synchronize": True},
}
CLEAN = PlantedVariant("clean")


class ProgramCalibration(Struct, frozen=True):
    """One program on this machine."""

    step_ms: float
    """Mean recorded step of the unchanged program over `STEPS`."""
    cycles_per_ms: float
    bytes_per_ms: float


class WorkerJob(Struct, frozen=True):
    """Task of a process: record, or calibrate without a `path`."""

    program: str
    path: Path | None = None
    variant: PlantedVariant = CLEAN
    planted_ms: float = 0.0
    amount: int = 0
    """The same as an argument of the plant: cycles, bytes or nanoseconds."""


class WorkerResult(Struct, frozen=True):
    """Result that the process reports."""

    calibration: ProgramCalibration | None = None
    planted_ms: float | None = None
    """Measured, per step; None where nothing with a length was planted."""
    notes: tuple[str, ...] = ()
    machine: dict[str, str | None] = field(default_factory=dict)


# -- in a process of its own -------------------------------------------------------------------------


def work(connection: Connection) -> None:
    """Import everything, say so, wait for a job, do it and send its `WorkerResult`, or the text of what went wrong.

    It waits once more when the program is set up: the process before must have left the GPU by then.
    """
    import overlapscope
    from benchmarks import repeats_programs

    _ = overlapscope.record, repeats_programs  # The first is imported only when it is asked for.
    connection.send("ready")
    try:
        job: WorkerJob = connection.recv()
        result = calibrate(job) if job.path is None else record_one(job, job.path, connection)
        connection.send(result)
    except EOFError:
        pass  # There is nothing left to do.
    except Exception:
        connection.send(traceback.format_exc())


def calibrate(job: WorkerJob) -> WorkerResult:
    """Measure the step, and the amount of each plant that makes a millisecond."""
    import torch

    import overlapscope
    from benchmarks import repeats_programs as programs

    step = programs.PROGRAMS[job.program](programs.Changes(), programs.nothing)
    programs.settle(step)
    with tempfile.TemporaryDirectory() as folder, overlapscope.record(Path(folder, "t.trace.json.gz")):
        for _ in range(WARM_UP):
            step()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        step_ms = 1e3 * (time.perf_counter() - begin) / STEPS
    calibration = ProgramCalibration(step_ms, programs.sleep_cycles_per_ms(), programs.copied_bytes_per_ms())
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
    }
    return WorkerResult(calibration=calibration, machine=machine)


def record_one(job: WorkerJob, path: Path, connection: Connection) -> WorkerResult:
    """Record `STEPS` steps behind `WARM_UP`."""
    from benchmarks import repeats_programs as programs

    plant = planted(job)
    step = programs.PROGRAMS[job.program](
        programs.Changes(**CHANGES.get(job.variant.kind, {})), programs.nothing if plant is None else plant
    )
    programs.settle(step)
    connection.send("prepared")
    connection.recv()
    notes = record_steps(step, path)
    return WorkerResult(planted_ms=None if plant is None else measured_ms(job, path), notes=notes)


def planted(job: WorkerJob) -> Plant | None:
    """Return the addition of the job's variant to each step."""
    from benchmarks import repeats_programs as programs

    match job.variant.kind:
        case "compute":
            return programs.compute_of(job.amount)
        case "copy":
            return programs.copy_of(job.amount)
        case "host":
            return programs.host_work_of(job.amount / 1e9)
        case _:
            return None


def record_steps(step: Step, path: Path) -> tuple[str, ...]:
    import overlapscope

    with overlapscope.record(path, warmup=WARM_UP, active=STEPS, plain_steps=0) as recorder:
        for _ in range(WARM_UP + STEPS):
            step()
            recorder.step()
    return recorder.notes


def measured_ms(job: WorkerJob, path: Path) -> float | None:
    """Return the mean length of the planted work over all steps; host work takes its argument."""
    if job.variant.kind == "host":
        return job.planted_ms
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    durations_us = [float(event["dur"]) for event in events if is_planted(job, event)]
    return sum(durations_us) / 1e3 / (WARM_UP + STEPS)


def is_planted(job: WorkerJob, event: dict[str, Any]) -> bool:
    """Return whether an event of the trace is the job's planted kernel or copy."""
    if job.variant.kind == "compute":
        return event.get("cat") == "kernel" and KERNEL in event["name"]
    return event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"] and event["args"].get("bytes") == job.amount


# -- where the jobs come from ------------------------------------------------------------------------


class JobWorker:
    """A process that imports, waits, does one job and ends."""

    def __init__(self, context: SpawnContext) -> None:
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def answer(self) -> object:
        """Return the process's next message. Raises RunFailed if it sends an error or nothing."""
        if not self._connection.poll(PATIENCE_S):
            self.process.kill()
            raise RunFailed(f"nothing was heard of it for {PATIENCE_S:.0f} s")
        try:
            message: object = self._connection.recv()
        except EOFError:
            self.process.join()
            raise RunFailed(f"its process ended with code {self.process.exitcode}") from None
        if isinstance(message, str) and message not in ("ready", "prepared"):
            raise RunFailed(message)
        return message

    def tell(self, what: WorkerJob | str) -> None:
        """Send a message. Raises RunFailed if the process has ended."""
        try:
            self._connection.send(what)
        except OSError:
            raise RunFailed("its process has gone") from None

    def end(self) -> None:
        """Tell the process that it is no longer needed, and wait for its end."""
        self._connection.close()
        self.process.join(PATIENCE_S)
        self.process.kill()


class Workers:
    """Processes ready to do one job each, started by the dozen."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._ready: deque[JobWorker] = deque()
        self._last: JobWorker | None = None

    def do(self, job: WorkerJob) -> WorkerResult:
        """Have a job done by a fresh process. Raises RunFailed."""
        if not self._ready:
            self._start()
        worker = self._ready.popleft()
        previous, self._last = self._last, worker
        worker.tell(job)
        if previous is not None:
            previous.end()
        if job.path is not None:
            worker.answer()  # Prepared.
            worker.tell("go")
        answer = worker.answer()
        if not isinstance(answer, WorkerResult):
            raise RunFailed(f"{answer!r} instead of an outcome")
        return answer

    def end(self) -> None:
        """Let all processes go."""
        for worker in (*self._ready, *([] if self._last is None else [self._last])):
            worker.end()

    def _start(self) -> None:
        started = [JobWorker(self._context) for _ in range(IDLE_PROCESSES)]
        for worker in started:
            worker.answer()  # Ready.
        self._ready.extend(started)
