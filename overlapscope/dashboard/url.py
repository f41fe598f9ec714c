"""Addresses in the dashboard: the state in a URL, and links to other places and to instants of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlencode

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.figures import Window
from overlapscope.base.intervals import I64
from overlapscope.plugin import plugins
from overlapscope.trace.model import Trace

FIRST_PAGE = "overview"
TRACES_PAGE = "traces"
"""The first page if there are several traces."""
RECORDED = "recorded"
_IN_URL = {
    "trace": "trace",
    "device": "device",
    "start_ns": "from",
    "end_ns": "to",
    "other": "with",
    "report": "report",
    "of": "of",
}


class UrlState(Struct, frozen=True):
    """A page on a trace. Times are relative to `Lanes.origin_ns`."""

    base: str = "/"
    """Prefix of every path: `--base-path`, with a slash at both ends."""
    page: str = FIRST_PAGE
    trace: str | None = None
    device: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    other: str | None = None
    """The second trace of the page Compare."""
    report: str | None = None
    """The report on the page Ranks."""
    of: str | None = None
    """`RECORDED` for the recording; otherwise the plain program is shown if the trace has one."""
    choices: Mapping[str, str] = {}
    """Choices on pages of plugins, by the names of `PluginPage.state`."""

    def href(self, page: str | None = None, **changes: str | int | None) -> str:
        """Return the URL path of this place with the given fields and choices changed.

        The span is dropped if the page or timeline changes.
        """
        fields = {name: value for name, value in changes.items() if name in _IN_URL}
        target = replace(self, page=self.page if page is None else page, **fields)
        if (target.trace, target.page, target.of) != (self.trace, self.page, self.of):
            target = replace(target, start_ns=changes.get("start_ns"), end_ns=changes.get("end_ns"))
        if target.trace != self.trace:
            target = replace(target, device=changes.get("device"))
        parameters: dict[str, str | int | None] = {name: getattr(target, field) for field, name in _IN_URL.items()}
        parameters |= {**self.choices, **{name: value for name, value in changes.items() if name not in _IN_URL}}
        query = urlencode({name: value for name, value in parameters.items() if value is not None}, safe="/")
        return f"{self.base}{target.page}{'?' if query else ''}{query}"

    def whatif_href(self, changes: Sequence[str]) -> str:
        """Return the URL of the page What if with some changes switched on."""
        href = self.href("whatif")
        return f"{href}{'&' if '?' in href else '?'}{urlencode([('change', change) for change in changes])}"


def parse(base: str, pathname: str | None, search: str | None) -> UrlState:
    """Parse a URL's path and query, ignoring invalid values. The page is empty if the path names none."""
    path = (pathname or "").removeprefix(base).strip("/")
    query = {name: values[-1] for name, values in parse_qs((search or "").removeprefix("?")).items()}
    asked: dict[str, Any] = {field: query.get(name) for field, name in _IN_URL.items()}
    asked |= {field: _number(asked[field]) for field in ("device", "start_ns", "end_ns")}
    asked["of"] = RECORDED if asked["of"] == RECORDED else None
    names = (name for plugin in plugins() for page in plugin.pages for name in page.state)
    return UrlState(base, path, **asked, choices={name: query[name] for name in names if name in query})


def _number(text: str | None) -> int | None:
    try:
        value = int(text or "")
    except ValueError:
        return None
    # Times fit in 64 bits, and JSON encoders take no longer numbers.
    return value if abs(value) < 1 << 63 else None


# -- Instants of a trace ---------------------------------------------------------------------------


def instant_href(url: UrlState, trace: str, window: Window) -> str:
    """Return the URL that leads to the timeline around a window of a recording, loaded or not (`routes.register`)."""
    of = {} if url.of is None else {"of": url.of}
    query = urlencode({"trace": trace, **of, "start": window.start_ns, "end": window.end_ns}, safe="/")
    return f"{url.base}api/at?{query}"


def moved(window: Window, device: int, before: Trace, after: Trace) -> Window:
    """Return the same window in another timeline, where the same ops of a device run at other times.

    An instant between the starts and ends of two ops moves in proportion, and an instant outside all ops moves with the
    nearest op. If streams shift against each other, the later of their instants counts.
    """
    if before is after:
        return window
    edges_before, edges_after = _edges(before, device), _edges(after, device)
    if not len(edges_before):
        return window
    order = np.argsort(edges_before, kind="stable")
    # Relative to the first, so that floats are exact.
    first, last, origin = int(edges_before.min()), int(edges_before.max()), int(edges_after.min())
    sources, targets = edges_before[order] - first, np.maximum.accumulate(edges_after[order] - origin)

    def instant(at_ns: int) -> int:
        inside = min(max(at_ns, first), last)
        return round(float(np.interp(inside - first, sources, targets))) + origin + at_ns - inside

    return Window(start_ns=instant(window.start_ns), end_ns=instant(window.end_ns))


def _edges(trace: Trace, device: int) -> I64:
    """Return the starts of all ops of a device, then their ends, in an order that all timelines of a trace share."""
    ops = trace.gpu_ops
    mine = np.flatnonzero(ops.device == device)
    mine = mine[np.argsort(ops.place[mine], kind="stable")]
    return np.concatenate([ops.start_ns[mine], ops.end_ns[mine]])
