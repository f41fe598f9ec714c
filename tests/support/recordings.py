"""The bundled recordings, each read and analyzed once for all tests of a process.

The session that `tests/conftest.py` begins keeps the results. Commands that a test calls share them.
"""

from __future__ import annotations

from pathlib import Path

from overlapscope import timeline
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.reading import load
from overlapscope.report.model import Report, build
from overlapscope.timeline import Lanes
from overlapscope.trace.model import Trace


def trace_of(recording: Path) -> Trace:
    """Return the trace in a recording."""
    return load(recording, progress=False, cache=False)


def analysis_of(recording: Path) -> TraceAnalysis:
    """Return the analysis of a recording."""
    return analyze_trace(trace_of(recording))


def report_of(recording: Path) -> Report:
    """Return the report on a recording alone."""
    return build([analysis_of(recording)])


def lanes_of(recording: Path) -> Lanes:
    """Return the timeline of a recording, ready to be drawn."""
    return timeline.build(analysis_of(recording))
