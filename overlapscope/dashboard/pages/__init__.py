"""The pages, in the order of the navigation.

A page's module has `layout(shown)`, and `register(app, library)` where it has callbacks.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, slots=True)
class PageKind:
    """One page."""

    name: str
    """Its path, and its module in this package."""
    title: str
    needs_trace: bool = True

    @property
    def module(self) -> ModuleType:
        """The module that draws it."""
        return importlib.import_module(f"{__name__}.{self.name}")


PAGES = {
    page.name: page
    for page in (
        PageKind("overview", "Overview"),
        PageKind("timeline", "Timeline"),
        PageKind("copies", "Copies"),
        PageKind("idle", "Idle & stalls"),
        PageKind("steps", "Steps"),
        PageKind("whatif", "What if"),
        PageKind("compare", "Compare"),
        PageKind("ranks", "Ranks", needs_trace=False),
        PageKind("hta", "HTA"),
        PageKind("laboratory", "Laboratory", needs_trace=False),
    )
}
