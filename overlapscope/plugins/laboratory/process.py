"""The process that runs a variant, or one for each rank of a job, as its parent sees it, and what each rank reports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from overlapscope.base.child import Child, how_it_ended
from overlapscope.plugins.laboratory.experiment import WrongResults
from overlapscope.plugins.laboratory.results import TimeSpread

OUTPUT: Final = "output"
"""Name of the file with the output of the process and its programs."""
_WORKER: Final = "overlapscope.plugins.laboratory.worker"
_POLL_S: Final = 0.02
_GRACE_S: Final = 10.0
"""Seconds that a process has to exit by itself."""
_LAST_LINES: Final = 3
_CRASH: Final = re.compile(r"Fatal Python error: .*")
_CRASHED_AT: Final = re.compile(r"^Current thread .*\n\s*(.+)", re.MULTILINE)
_SIGNALLED: Final = re.compile(r"Signal (\d+) \(SIG")

Phase = Literal["preparing", "timing", "recording"]


class VariantTask(msgspec.Struct, frozen=True):
    """A variant to run."""

    path: str
    """Scenario file."""
    variant: str
    scale: str
    repeat: int
    trace: str
    """File to record into."""
    directory: str
    """Directory for the output and each rank's `VariantMeasured`, named `rank0.json`."""


class VariantMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a rank, replaced after each phase so that it outlives a process that dies."""

    rank: int
    pid: int
    phases: tuple[Phase, ...] = ()
    """Phases begun so far."""
    wall_ms: TimeSpread | None = None
    host_ms: TimeSpread | None = None
    figures: dict[str, float | None] = {}
    wrong_results: WrongResults | None = None
    trace: str | None = None
    notes: tuple[str, ...] = ()
    ended: bool = False
    """True if the rank has finished the variant, or failed."""
    error: str | None = None


def run(
    task: VariantTask, ranks: int, begun: Callable[[Phase], None]
) -> tuple[tuple[VariantMeasured, ...], str | None]:
    """Run a variant until all ranks have finished it, or one has failed, or the process has died.

    Args:
        task: The variant.
        ranks: Number of processes.
        begun: Called at the beginning of each phase of the first rank.

    Returns:
        The reports of the ranks that made one, and the error, if any.
    """
    directory = Path(task.directory)
    with open(directory / OUTPUT, "wb") as output:
        command = [*_launcher(ranks), _WORKER, msgspec.json.encode(task).decode()]
        child = Child(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
    reports: tuple[VariantMeasured, ...] = ()
    reported, finished = 0, False
    try:
        while True:
            died = child.poll() is not None
            reports = _reports(directory)
            phases = reports[0].phases if reports and reports[0].rank == 0 else ()
            for phase in phases[reported:]:
                begun(phase)
            reported = len(phases)
            error = next((report for report in reports if report.error is not None), None)
            if error is not None:
                return reports, f"rank {error.rank}: {error.error}" if ranks > 1 else error.error
            finished = len(reports) == ranks and all(report.ended for report in reports)
            if finished or died:
                return reports, None if finished else _how_it_died(child.returncode, directory / OUTPUT, ranks)
            time.sleep(_POLL_S)
    finally:
        _end(child, [report.pid for report in reports], finished=finished)


def _launcher(ranks: int) -> list[str]:
    if ranks == 1:
        return [sys.executable, "-X", "faulthandler", "-m"]
    job = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [sys.executable, "-m", *job, "-m"]


def _reports(directory: Path) -> tuple[VariantMeasured, ...]:
    """Return the ranks' reports so far, by rank; each rank replaces its file at once."""
    files = (path.read_bytes() for path in directory.glob("rank*.json"))
    return tuple(
        sorted((msgspec.json.decode(data, type=VariantMeasured) for data in files), key=lambda each: each.rank)
    )


def _how_it_died(code: int, output: Path, ranks: int) -> str:
    text = output.read_text(errors="replace")
    signalled = _SIGNALLED.search(text) if ranks > 1 else None
    return how_it_died(-int(signalled[1]) if signalled else code, text)


def how_it_died(code: int, output: str) -> str:
    """Return a clause on how a process ended, with its exit code and the end of its output."""
    why = ", perhaps because the machine ran out of memory" if code == -signal.SIGKILL else ""
    return f"its process {how_it_ended(code)}{why}{_last_words(output)}"


def _last_words(output: str) -> str:
    """Return the end of the output as a part of a sentence; after a crash, the crash and its place in Python."""
    crash, where = _CRASH.search(output), _CRASHED_AT.search(output)
    if crash is not None:
        shown = [crash[0], *([where[1]] if where else [])]
    else:
        shown = [line.strip() for line in output.splitlines() if line.strip()][-_LAST_LINES:]
    return f"; its last words: {' | '.join(shown)}" if shown else ""


def _end(child: Child, pids: Sequence[int], *, finished: bool) -> None:
    """End the processes, which end by themselves if they have `finished`, or when their stdin is closed."""
    if finished:
        child.ends_within(_GRACE_S)
    if child.stdin is not None:
        child.stdin.close()
    if not child.ends_within(_GRACE_S):
        # Ranks, which may be stuck in a call, have sessions of their own.
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    child.end()
