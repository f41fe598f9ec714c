"""The bundled recordings, each read and analysed once for all tests of a process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.reading import load
from overlapscope.report.model import Report, build
from overlapscope.trace.model import Trace


@cache
def trace_of(recording: Path) -> Trace:
    """As it is read, without the cache of read traces."""
    return load(recording, progress=False, cache=False)


@cache
def analysis_of(recording: Path) -> TraceAnalysis:
    return analyze_trace(trace_of(recording))


@cache
def report_of(recording: Path) -> Report:
    return build([analysis_of(recording)])
