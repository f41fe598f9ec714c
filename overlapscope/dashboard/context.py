"""Context of a page: the address, the traces it names, and light or dark."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.figures import Window
from overlapscope.analysis.results import Device
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.opened import Opened
from overlapscope.dashboard.url import FIRST_PAGE, TRACES_PAGE, UrlState, parse
from overlapscope.documents.colors import palette
from overlapscope.report.page import DeviceReport

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
    def replayed(self) -> bool:
        """True if the page shows the plain program."""
        return self.opened is not self.loaded

    @property
    def section(self) -> DeviceReport:
        """Report on the device to show."""
        return self.opened.section(self.url.device)

    @property
    def spoken(self) -> DeviceReport:
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

    def timeline_href(self, window: Window) -> str:
        """Return the URL of the timeline around a window, with as much time again on either side."""
        lanes = self.opened.lanes
        margin = max(window.end_ns - window.start_ns, _MARGIN_NS)
        start, end = window.start_ns - margin - lanes.origin_ns, window.end_ns + margin - lanes.origin_ns
        return self.url.href("timeline", start_ns=max(0, start), end_ns=min(end, max(lanes.end_ns, 1)))

    @property
    def colors(self) -> dict[str, str]:
        """Palette, by name."""
        return palette(self.dark)
