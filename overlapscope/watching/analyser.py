"""A process that analyses a recording: `python -m overlapscope.watching.analyser`.

It reads an `AnalysisTask` from stdin, as a line of JSON, and writes an `Analysed` to stdout. Its priority is
low, and it ends when its stdin is closed, at the latest with the program that started it.
"""

from __future__ import annotations

import io
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec

from overlapscope.base import disk
from overlapscope.errors import OverlapscopeError
from overlapscope.history.entry import Entry, Origin

LIMIT_S: Final = 600
"""Time after which the process ends, in seconds."""
_NICEST = 19


class AnalysisTask(msgspec.Struct, frozen=True, kw_only=True):
    """A recording to analyse."""

    trace: str
    """Trace file."""
    plain_step_ns: int | None
    """Length of a step without the profiler, in nanoseconds; None if unknown."""
    report: str
    """File of the report, in HTML."""
    history: str
    """History to add the figures to: its file, or a directory or URL that is a file drop."""
    origin: Origin


class Analysed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an analysis."""

    scalars: dict[str, float] = {}
    report: bool = False
    """True if the report was written."""
    failures: tuple[str, ...] = ()
    """Sentences on failures."""
    cpu_s: float = 0.0
    """Processor time of the process, in seconds."""
    max_rss_bytes: int = 0
    """Maximum memory of the process."""


def main() -> None:
    """Read a task, and write its result."""
    os.nice(_NICEST)
    signal.alarm(LIMIT_S)
    # Output of libraries must not mix with the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    with io.FileIO(0, closefd=False) as stdin:
        task = msgspec.json.decode(stdin.readline(), type=AnalysisTask)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    done = analyse(task)
    used = resource.getrusage(resource.RUSAGE_SELF)
    done = msgspec.structs.replace(
        done,
        cpu_s=used.ru_utime + used.ru_stime,
        max_rss_bytes=used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    )
    with open(answer, "wb") as out:
        out.write(msgspec.json.encode(done))


def _end_with_stdin() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def analyse(task: AnalysisTask) -> Analysed:
    """Analyze a recording, write its report, and add it to the history. Failures become sentences."""
    from overlapscope import timeline
    from overlapscope.analysis import analyze_trace
    from overlapscope.history import figures
    from overlapscope.reading import load
    from overlapscope.render.html import render
    from overlapscope.report.model import build
    from overlapscope.report.page import Page
    from overlapscope.timeline.file import document

    failures: list[str] = []
    scalars: dict[str, float] = {}
    written = False
    try:
        analysis = analyze_trace(load(task.trace, progress=False, cache=False))
        report = build([analysis], plain_step_ns=task.plain_step_ns)
        scalars = figures.scalars(report)
        failures += _add(figures.entry(report, task.origin), task.history)
        html = render(document(Page(report), [timeline.build(analysis)]))
        disk.write(Path(task.report), [html.encode("utf-8", "replace")])
        written = True
    except OverlapscopeError as error:
        failures.append(str(error))
    except Exception as error:
        failures.append(f"a recording could not be analyzed ({type(error).__name__}: {error}).")
    return Analysed(scalars=scalars, report=written, failures=tuple(failures))


def _add(entry: Entry, history: str) -> list[str]:
    from overlapscope.history import drop, store
    from overlapscope.ranks.files import is_url

    try:
        if is_url(history) or os.path.isdir(history):
            drop.put(entry, history)
        else:
            with store.Store.open(history) as kept:
                kept.add(entry)
    except OverlapscopeError as error:
        return [str(error)]
    return []


if __name__ == "__main__":
    main()
