"""Whole processes, measured: their wall time and their memory. Traces of any size to measure them with."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

HERE = Path(__file__).parent
SOURCE = HERE.parent / "traces" / "gpt2_train.json.gz"
OURS = (sys.executable, "-m", "overlapscope")

VERSION_OF = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
_SAMPLE_S = 0.005


class ProcessUsage(Struct, frozen=True):
    """One process: its wall time and its peak resident memory (MB are 10^6 bytes throughout)."""

    seconds: float
    peak_mb: float
    """Peak of this process alone."""
    stdout: str = ""


class RunFailed(Exception):
    """A program could not be run or measured. The text says why, or is its last output."""


class MeasuredGoal(Struct, frozen=True):
    """A goal and the measured figure."""

    what: str
    wanted: str
    measured: str
    met: bool


def run(command: Sequence[str | Path], **environment: str) -> ProcessUsage:
    """Run a command to its end, with bytecode cached. Raises CalledProcessError if it fails.

    This process imports nothing big: Linux adds memory that a child shares with it before `exec` to the child's peak.
    """
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | environment
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=variables)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(command), out.read(), err.read())
        unit = 1 if sys.platform == "darwin" else 1024
        return ProcessUsage(seconds, usage.ru_maxrss * unit / 1e6, out.read())


def peak_of_all_mb(command: Sequence[str | Path], **environment: str) -> float:
    """Peak memory of a command and all that it starts, pages that they share counted once; sampled on Linux, where
    that can be known. Measured apart from the time, which it costs.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=dict(os.environ) | environment
    )
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(_SAMPLE_S):
            peak = max(peak, sum(map(_proportional_bytes, _tree(process.pid))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    done.set()
    watcher.join()
    if code:
        raise subprocess.CalledProcessError(code, list(command))
    return peak / 1e6


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(process for child in children for process in _tree(int(child)))]


def _proportional_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def grown(directory: Path, megabytes: int) -> Path:
    """Return a trace of that size, in the page cache as far as memory allows."""
    trace = directory / f"grown_{megabytes}mb.json"
    run([sys.executable, HERE / "grow.py", SOURCE, trace, "--mb", str(megabytes)])
    return trace


def median(runs: Sequence[ProcessUsage]) -> ProcessUsage:
    """Return the medians of their figures."""
    return ProcessUsage(statistics.median(r.seconds for r in runs), statistics.median(r.peak_mb for r in runs))


def spread(runs: Sequence[ProcessUsage]) -> str:
    """Return the shortest and the longest time."""
    seconds = sorted(r.seconds for r in runs)
    return f"{seconds[0]:.2f} to {seconds[-1]:.2f}"


def machine(packages: dict[str, str]) -> str:
    """Describe the machine without naming it. `packages` are stated with their versions, each with the
    Python that has it.
    """
    versions = (f"{name} {run([python, '-c', VERSION_OF, name]).stdout.strip()}" for name, python in packages.items())
    return f"{', '.join([hardware(), *versions])}."


def hardware() -> str:
    """Return the machine, its system and this Python, as the beginning of a sentence."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return (
        f"{cpu}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB of memory, {platform.system()}; "
        f"Python {platform.python_version()}"
    )


def say(progress: str) -> None:
    """Tell the person who waits how far it is."""
    print(progress, file=sys.stderr, flush=True)
