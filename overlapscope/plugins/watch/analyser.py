"""A process that analyses a recording (`python -m overlapscope.plugins.watch.analyser`), and how a program starts it.

It reads an `AnalysisTask` from stdin, as a line of JSON, and writes an `Analysed` to stdout. Its priority is
low, and it ends when its stdin is closed, at the latest with the program that started it.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

import msgspec

from overlapscope.base import disk
from overlapscope.base.child import ROOT, Child, end_with_stdin, how_it_ended
from overlapscope.errors import OverlapscopeError
from overlapscope.report.origin import Origin, keepers

if TYPE_CHECKING:
    from overlapscope.report.model import Report

LIMIT_S: Final = 600
"""Time after which the process ends, in seconds."""
_NICEST = 19
GRACE_S: Final = 10.0
"""Time that a program waits for it at its end, in seconds."""
_LOOK_S = 1.0
_SCALARS: Final = {"ns": ("_time", "_ms", 1e-6), "gb_per_s": ("_bandwidth", "_gb_per_s", 1.0)}
"""Suffix of metrics by unit, suffix of their scalars, and factor between the two."""


class AnalysisTask(msgspec.Struct, frozen=True, kw_only=True):
    """A recording to analyse."""

    trace: str
    """Trace file."""
    plain_step_ns: int | None
    """Length of a step without the profiler, in nanoseconds; None if unknown."""
    report: str
    """File of the report, in HTML."""
    history: str
    """Place where keepers add the report (`report.origin.Keeper.place`); empty without a keeper."""
    origin: Origin


class Analysed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an analysis."""

    scalars: dict[str, float] = {}
    report: bool = False
    """True if the report was written."""
    failures: tuple[str, ...] = ()
    """Sentences on failures."""


def main() -> None:
    """Read a task, and write its result."""
    os.nice(_NICEST)
    signal.alarm(LIMIT_S)
    # Output of libraries must not mix with the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    with io.FileIO(0, closefd=False) as stdin:
        task = msgspec.json.decode(stdin.readline(), type=AnalysisTask)
    threading.Thread(target=end_with_stdin, daemon=True).start()
    done = msgspec.json.encode(analyse(task))
    with open(answer, "wb") as out:
        out.write(done)


def analyse(task: AnalysisTask) -> Analysed:
    """Analyze a recording, write its report, and hand it to keepers. Failures become sentences."""
    from overlapscope import timeline
    from overlapscope.analysis import analyze_trace
    from overlapscope.reading import load
    from overlapscope.render.html import render
    from overlapscope.report.model import build
    from overlapscope.report.page import Page
    from overlapscope.timeline.file import document

    failures: list[str] = []
    named: dict[str, float] = {}
    written = False
    try:
        analysis = analyze_trace(load(task.trace, progress=False, cache=False))
        report = build([analysis], plain_step_ns=task.plain_step_ns)
        named = scalars(report)
        for keeper in keepers():
            try:
                keeper.add(report, task.origin, task.history)
            except OverlapscopeError as error:
                failures.append(str(error))
        html = render(document(Page(report), [timeline.build(analysis)]))
        disk.write(Path(task.report), [html.encode("utf-8", "replace")])
        written = True
    except OverlapscopeError as error:
        failures.append(str(error))
    except Exception as error:
        failures.append(f"a recording could not be analyzed ({type(error).__name__}: {error}).")
    return Analysed(scalars=named, report=written, failures=tuple(failures))


def scalars(report: Report) -> dict[str, float]:
    """Return figures for tools that draw curves, by names with units: `efficiency_pct`, `idle_ms`, `copy_gb_per_s`.

    Each is the mean over the devices that have it.
    """
    from overlapscope.budgets.places import figures
    from overlapscope.catalog.measures import METRICS

    by_name: dict[str, list[float]] = {}
    for figure in figures(report):
        if figure.metric.metric in METRICS:
            ending, instead, factor = _SCALARS.get(figure.metric.unit, ("", "", 1.0))
            name = figure.metric.metric.removesuffix(ending) + instead
            by_name.setdefault(name, []).append(figure.value * factor)
    plain = [device.plain.step_ns / 1e6 for device in report.devices if device.plain is not None]
    return {name: fmean(values) for name, values in (by_name | {"plain_step_ms": plain}).items() if values}


# -- In the program ---------------------------------------------------------------------------------


def analyse_apart(task: AnalysisTask) -> Analysed:
    """Start the process, and wait for its answer. Failures become sentences."""
    try:
        return _analysed(task)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        return Analysed(failures=(f"recordings cannot be analyzed ({error}).",))


def _analysed(task: AnalysisTask) -> Analysed:
    # A new process instead of a fork, which may not use CUDA if the program has used it.
    # -P: a file of the program may have the name of a module of Python's.
    command = [sys.executable, "-P", "-m", "overlapscope.plugins.watch.analyser"]
    with TemporaryFile() as out:
        child = Child(command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL, env=_environment())
        assert child.stdin is not None
        # A process that dies before it has read the task breaks the pipe; how it ended says more.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(msgspec.json.encode(task) + b"\n")
            child.stdin.flush()
        ended = _ends_in_time(child)
        # If it still runs, it ends when its stdin is closed.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        if not ended:
            child.end()
            return Analysed(failures=("the program ended before its last recording was analyzed.",))
        out.seek(0)
        answer = out.read()
    if not answer:
        return Analysed(failures=(f"the process that analyses a recording {how_it_ended(child.returncode)}.",))
    return msgspec.json.decode(answer, type=Analysed)


def _ends_in_time(child: Child) -> bool:
    """Wait for its end, and return false if the program has ended and this takes too long."""
    until = None
    while not child.ends_within(_LOOK_S):
        if until is None and not threading.main_thread().is_alive():
            until = time.monotonic() + GRACE_S
        if until is not None and time.monotonic() >= until:
            return False
    return True


def _environment() -> dict[str, str]:
    """Return the program's environment, with a single thread of numpy and without GPUs."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OVERLAPSCOPE_WATCH", "LD_PRELOAD")
    }
    return environment | one_thread | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}


if __name__ == "__main__":
    main()
