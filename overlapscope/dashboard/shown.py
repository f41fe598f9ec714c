"""What a page is given to show."""

from __future__ import annotations

from dataclasses import dataclass, replace

from overlapscope.dashboard.library import Library, Opened
from overlapscope.dashboard.place import Place
from overlapscope.report.page import Section


def settled(library: Library, place: Place) -> Place:
    """The place with a trace: the first where the URL names none."""
    entries = library.entries()
    return replace(place, trace=entries[0].id) if place.trace is None and entries else place


@dataclass(frozen=True, slots=True)
class Shown:
    """A place, with the traces that its URL names."""

    place: Place
    library: Library
    trace: Opened | None
    """None only on pages that can do without (`pages.PAGES`)."""
    other: Opened | None
    """The second trace of the page Compare, where one is chosen."""
    dark: bool

    @property
    def loaded(self) -> Opened:
        """The trace, on a page that needs one."""
        if self.trace is None:
            raise RuntimeError(f"the page {self.place.page} was shown without a trace")
        return self.trace

    @property
    def opened(self) -> Opened:
        """What is shown of it: its plain program or the recording."""
        return self.loaded.of(self.place.of)

    @property
    def replayed(self) -> bool:
        """Whether that is the plain program."""
        return self.opened is not self.loaded

    @property
    def section(self) -> Section:
        """The device that is shown."""
        return self.opened.section(self.place.device)
