"""Where in the dashboard a person is: what its URL says, and the links to elsewhere, and to instants of a trace."""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.results import Window
from overlapscope.base.intervals import I64
from overlapscope.trace.model import Trace

FIRST_PAGE = "overview"
RECORDED = "recorded"
_IN_URL = {
    "trace": "trace",
    "device": "device",
    "start_ns": "from",
    "end_ns": "to",
    "other": "with",
    "report": "report",
    "of": "of",
    "experiment": "experiment",
    "job": "job",
    "metric": "metric",
    "by": "by",
    "entry": "entry",
    "against": "against",
}


class UrlState(Struct, frozen=True):
    """One page on one trace. Times are relative to `Lanes.origin_ns`."""

    base: str = "/"
    """What comes before every path: `--base-path`, with a slash at both ends."""
    page: str = FIRST_PAGE
    trace: str | None = None
    device: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    other: str | None = None
    """The second trace of the page Compare."""
    report: str | None = None
    """The report that the page Ranks shows."""
    of: str | None = None
    """`RECORDED` where the recording is asked for; else the plain program is shown of a trace that has one."""
    experiment: str | None = None
    """The experiment that the page Laboratory shows."""
    job: str | None = None
    """Whose reports the page History shows."""
    metric: str | None = None
    by: str | None = None
    """What a point of it is: a commit, an hour or a report."""
    entry: str | None = None
    """The id of the stored report that is open there."""
    against: str | None = None
    """And of the one that it is compared with."""

    def href(self, page: str | None = None, **changes: str | int | None) -> str:
        """The URL path of this place with the given fields changed. Spans stay behind on another page or timeline."""
        there = replace(self, **changes)
        there = replace(there, page=self.page if page is None else page)
        if (there.trace, there.page, there.of) != (self.trace, self.page, self.of):
            there = replace(there, start_ns=changes.get("start_ns"), end_ns=changes.get("end_ns"))
        if there.trace != self.trace:
            there = replace(there, device=changes.get("device"))
        known = {name: getattr(there, field) for field, name in _IN_URL.items()}
        query = urlencode({name: value for name, value in known.items() if value is not None}, safe="/")
        return f"{self.base}{there.page}{'?' if query else ''}{query}"


def parse(base: str, pathname: str | None, search: str | None) -> UrlState:
    """The place that a URL's path and query name; what makes no sense in it is left out."""
    path = (pathname or "").removeprefix(base).strip("/")
    asked = {name: values[-1] for name, values in parse_qs((search or "").removeprefix("?")).items()}
    return UrlState(
        base=base,
        page=path or FIRST_PAGE,
        trace=asked.get("trace"),
        device=_number(asked.get("device")),
        start_ns=_number(asked.get("from")),
        end_ns=_number(asked.get("to")),
        other=asked.get("with"),
        report=asked.get("report"),
        of=RECORDED if asked.get("of") == RECORDED else None,
        experiment=asked.get("experiment"),
        job=asked.get("job"),
        metric=asked.get("metric"),
        by=asked.get("by"),
        entry=asked.get("entry"),
        against=asked.get("against"),
    )


def _number(text: str | None) -> int | None:
    try:
        value = int(text or "")
    except ValueError:
        return None
    # No time is longer, and JSON's writers take no longer number.
    return value if abs(value) < 1 << 63 else None


# -- instants of a trace --------------------------------------------------------------------------


def instant_href(url: UrlState, trace: str, window: Window) -> str:
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
