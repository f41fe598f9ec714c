"""The small Python API, which is also what the command line uses."""

from __future__ import annotations

from collections.abc import Iterable

from overlapscope.analysis import analyze_trace
from overlapscope.report import Report, build
from overlapscope.sources import load
from overlapscope.trace import Trace

__all__ = ["analyze", "load"]


def analyze(
    trace: Trace | Iterable[Trace],
    *,
    device: int | None = None,
    step: str | None = None,
    range: str | None = None,
) -> Report:
    """Analyse a trace, or the traces of one job, into a report.

    `device`, `step` and `range` narrow every figure to one device, step or range; causes are found on the
    whole recording all the same.

    Raises KeyError where no device has what was asked for.
    """
    traces = (trace,) if isinstance(trace, Trace) else tuple(trace)
    analyses = [analyze_trace(one, device=device, step=step, range=range) for one in traces]
    return build(analyses, scope=step or range or "window")
