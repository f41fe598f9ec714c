"""Pages, in the order of the navigation.

A page's module has `callbacks` and a function `layout`, which takes the `PageContext` and, if the page needs figures,
the device.
"""

from __future__ import annotations

from types import ModuleType
from typing import Literal

from msgspec import Struct

from overlapscope.base.registry import load


class PageKind(Struct, frozen=True):
    """A page."""

    name: str
    """Its path, and the name of its module in this package."""
    title: str
    needs: Literal["nothing", "trace", "figures"] = "figures"
    """Required data; figures are those of a device whose trace is usable."""
    switched: bool = False
    """True if the header's switch between recording and plain program applies."""

    @property
    def module(self) -> ModuleType:
        """The module that draws it."""
        module: ModuleType = load(f"{__name__}.{self.name}")
        return module


PAGES = {
    page.name: page
    for page in (
        PageKind("traces", "Traces", needs="nothing"),
        PageKind("overview", "Overview", switched=True),
        PageKind("timeline", "Timeline", needs="trace", switched=True),
        PageKind("copies", "Copies", switched=True),
        PageKind("idle", "Idle & stalls", switched=True),
        PageKind("steps", "Steps", switched=True),
        PageKind("whatif", "What if"),
        PageKind("compare", "Compare", needs="trace"),
        PageKind("ranks", "Ranks", needs="nothing"),
        PageKind("history", "History", needs="nothing"),
        PageKind("hta", "HTA", needs="trace"),
        PageKind("laboratory", "Laboratory", needs="nothing"),
    )
}
