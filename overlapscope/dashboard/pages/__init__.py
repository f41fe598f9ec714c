"""The pages, in the order of the navigation.

A page's module has its `callbacks` and a function `layout`: of the `PageContext` and, where the page needs figures, of
the device as well.
"""

from __future__ import annotations

from types import ModuleType
from typing import Literal

from msgspec import Struct

from overlapscope.base.registry import load


class PageKind(Struct, frozen=True):
    """One page."""

    name: str
    """Its path, and its module in this package."""
    title: str
    needs: Literal["nothing", "trace", "figures"] = "figures"
    """Figures: of a device, which can be believed."""
    switched: bool = False
    """Whether it shows the recording or the plain program, as the header's switch says."""

    @property
    def module(self) -> ModuleType:
        """The module that draws it."""
        module: ModuleType = load(f"{__name__}.{self.name}")
        return module


PAGES = {
    page.name: page
    for page in (
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
