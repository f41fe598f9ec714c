"""The pages, in the order of the navigation.

A page's module has `layout(shown)`, and `register(app, library)` where it has callbacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from overlapscope.base.registry import load


@dataclass(frozen=True, slots=True)
class PageKind:
    """One page."""

    name: str
    """Its path, and its module in this package."""
    title: str
    needs_trace: bool = True
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
        PageKind("timeline", "Timeline", switched=True),
        PageKind("copies", "Copies", switched=True),
        PageKind("idle", "Idle & stalls", switched=True),
        PageKind("steps", "Steps", switched=True),
        PageKind("whatif", "What if"),
        PageKind("compare", "Compare"),
        PageKind("ranks", "Ranks", needs_trace=False),
        PageKind("hta", "HTA"),
        PageKind("laboratory", "Laboratory", needs_trace=False),
    )
}
