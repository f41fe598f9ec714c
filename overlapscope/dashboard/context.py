"""Context of a page: its address, the loaded traces that it names, and light or dark; and links to other addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlencode

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.figures import Window
from overlapscope.analysis.host_lines import FlamePart
from overlapscope.analysis.results import Device
from overlapscope.base.intervals import I64
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.opened import RECORDED, Opened
from overlapscope.dashboard.source import line_of
from overlapscope.documents.colors import palette
from overlapscope.plugin import plugins
from overlapscope.report.page import DeviceReport
from overlapscope.trace.model import Trace

# -- Addresses -------------------------------------------------------------------------------------

FIRST_PAGE = "overview"
TRACES_PAGE = "traces"
"""The first page if there are several traces."""
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
    fields: dict[str, Any] = {field: query.get(name) for field, name in _IN_URL.items()}
    fields |= {field: _number(fields[field]) for field in ("device", "start_ns", "end_ns")}
    fields["of"] = RECORDED if fields["of"] == RECORDED else None
    names = (name for plugin in plugins() for page in plugin.pages for name in page.state)
    return UrlState(base, path, **fields, choices={name: query[name] for name in names if name in query})


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
    on_device = np.flatnonzero(ops.device == device)
    on_device = on_device[np.argsort(ops.place[on_device], kind="stable")]
    return np.concatenate([ops.start_ns[on_device], ops.end_ns[on_device]])


_MARGIN_NS = 10_000
"""Minimum time that the timeline shows on either side of a window, in nanoseconds."""


def url_of(library: Library, base: str, pathname: str | None, search: str | None) -> UrlState:
    """Parse an address; without a trace, it gets the first, and without a page that of several traces."""
    url, entries = parse(base, pathname, search), library.entries()
    if not url.page:
        url = replace(url, page=TRACES_PAGE if url.trace is None and len(entries) > 1 else FIRST_PAGE)
    return replace(url, trace=entries[0].id) if url.trace is None and entries else url


class PageContext(Struct, frozen=True):
    """An address, with those of its traces that are loaded."""

    url: UrlState
    library: Library
    trace: Opened | None
    """The trace; never None on a page that needs it (`pages.PAGES`)."""
    other: Opened | None = None
    """The second trace of the page Compare, if chosen."""
    dark: bool = False

    @classmethod
    def at(cls, url: UrlState, library: Library, *, dark: bool = False) -> PageContext:
        """Return the context of an address with the traces that are loaded."""
        return cls(url, library, library.opened(url.trace), library.opened(url.other), dark)

    @property
    def named(self) -> tuple[tuple[str, Opened | None], ...]:
        """Ids of the traces in the address, each with the trace if it is loaded."""
        pairs = ((self.url.trace, self.trace), (self.url.other, self.other))
        return tuple((id, opened) for id, opened in pairs if id is not None)

    @property
    def loaded(self) -> Opened:
        """The trace, on a page that needs it."""
        if self.trace is None:
            raise RuntimeError(f"the page {self.url.page} was shown without a trace")
        return self.trace

    @property
    def opened(self) -> Opened:
        """The program to show: the trace's plain program or its recording."""
        return self.loaded.of(self.url.of)

    @property
    def section(self) -> DeviceReport:
        """Report on the device to show."""
        return self.opened.section(self.url.device)

    @property
    def judged_section(self) -> DeviceReport:
        """Report on the same device in the program that verdict and findings are about, whichever is shown."""
        return self.loaded.of(None).section(self.url.device)

    @property
    def device(self) -> Device | None:
        """Figures of that device; None if they are unreliable or no trace is loaded."""
        return self.section.device if self.trace is not None and self.section.usable else None

    @property
    def device_analysis(self) -> DeviceAnalysis | None:
        """Analysis of that device."""
        device = self.device
        if device is None:
            return None
        return next(
            (analysis for analysis in self.opened.analysis.devices if analysis.result.device == device.device), None
        )

    @property
    def source(self) -> Callable[[FlamePart], str] | None:
        """Returns the lines of code that the trace names, for a server of this machine's user alone; else None."""
        if not self.library.shows_source:
            return None
        opened = self.opened
        return lambda part: line_of(part.file, part.line, part.function, opened.path, opened.bounds_ns[0])

    def moved(self, window: Window, device: int) -> Window:
        """Return a window of a device's recording in the timeline of the program to show."""
        return moved(window, device, self.loaded.analysis.trace, self.opened.analysis.trace)

    def timeline_href(self, window: Window) -> str:
        """Return the URL of the timeline around a window, with as much time again on either side."""
        origin, last = self.opened.bounds_ns
        margin = max(window.end_ns - window.start_ns, _MARGIN_NS)
        start, end = window.start_ns - margin - origin, window.end_ns + margin - origin
        return self.url.href("timeline", start_ns=max(0, start), end_ns=min(end, max(last - origin, 1)))

    @property
    def of(self) -> dict[str, str]:
        """Parameter of requests that names the program to show, if the address does."""
        return {} if self.url.of is None else {"of": self.url.of}

    @property
    def colors(self) -> dict[str, str]:
        """Palette, by name."""
        return palette(self.dark)
