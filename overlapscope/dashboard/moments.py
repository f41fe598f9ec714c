"""Instants of a trace: links to one, and where it is in another timeline, of its recording or its plain program."""

from __future__ import annotations

from urllib.parse import urlencode

import numpy as np

from overlapscope.analysis.results import Window
from overlapscope.base.intervals import I64
from overlapscope.dashboard.url import UrlState
from overlapscope.trace.model import Trace


def href(url: UrlState, trace: str, window: Window) -> str:
    """To the timeline of a trace that need not be loaded yet, around a window of its recording (`routes.register`)."""
    of = {} if url.of is None else {"of": url.of}
    query = urlencode({"trace": trace, **of, "start": window.start_ns, "end": window.end_ns}, safe="/")
    return f"{url.base}api/at?{query}"


def moved(window: Window, device: int, before: Trace, after: Trace) -> Window:
    """The same window in another timeline, in which the same ops of a device run at other times.

    An instant between the beginning or end of two ops is moved in proportion, one outside of all with the nearest op.
    Where streams run differently beside one another, an instant is that of the stream that is further.
    """
    if before is after:
        return window
    here, there = _edges(before, device), _edges(after, device)
    if not len(here):
        return window
    order = np.argsort(here, kind="stable")
    # Near zero, so that floats are exact.
    first, last, origin = int(here.min()), int(here.max()), int(there.min())
    known, target = here[order] - first, np.maximum.accumulate(there[order] - origin)

    def instant(at_ns: int) -> int:
        inside = min(max(at_ns, first), last)
        return round(float(np.interp(inside - first, known, target))) + origin + at_ns - inside

    return Window(start_ns=instant(window.start_ns), end_ns=instant(window.end_ns))


def _edges(trace: Trace, device: int) -> I64:
    """When each op of a device begins, then when each ends, in an order that all timelines of a trace share."""
    ops = trace.gpu_ops
    mine = np.flatnonzero(ops.device == device)
    mine = mine[np.argsort(ops.place[mine], kind="stable")]
    return np.concatenate([ops.start_ns[mine], ops.end_ns[mine]])
