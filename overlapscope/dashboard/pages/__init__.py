"""Pages, in the order of the navigation.

A page's module has `callbacks`, perhaps a `LEAD`, which is a sentence on the question that it answers, and a function
`layout`, which takes the `PageContext` and, if the page needs figures, the device. It returns the blocks and components
below the page's title, or the whole page as a component.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Literal

from msgspec import Struct

from overlapscope.base.registry import load
from overlapscope.plugin import PluginPage, plugins

Needs = Literal["nothing", "trace", "figures"]


class PageKind(Struct, frozen=True):
    """A page."""

    name: str
    """Its path."""
    title: str
    needs: Needs = "figures"
    """Required data; figures are those of a device whose trace is usable."""
    switched: bool = False
    """True if the header's switch between recording and plain program applies."""

    place: str = ""
    """Its module; by default the one of its name in this package."""
    extra: str | None = None
    """The extra without which it has nothing to show."""
    files: str = ""
    """Name of the files that it shows, without which it has nothing to show."""
    state: tuple[str, ...] = ()
    """Its own choices in the address."""
    has_data: bool = False
    """True if it shows data of its own, without which it has nothing to show."""

    @property
    def module(self) -> ModuleType:
        """The module that draws it."""
        module: ModuleType = load(self.place or f"{__name__}.{self.name}")
        return module


def with_data() -> dict[str, PluginPage]:
    """Return the pages of plugins that show data of their own, by name."""
    return {page.name: page for plugin in plugins() for page in plugin.pages if page.data}


def _of_plugins() -> Iterator[PageKind]:
    for plugin in plugins():
        for page in plugin.pages:
            extra = plugin.name if plugin.extra else None
            has_data = page.data is not None
            yield PageKind(
                page.name,
                page.title,
                needs="nothing" if page.files or has_data else "trace",
                place=page.place,
                extra=extra,
                files=page.files,
                state=page.state,
                has_data=has_data,
            )


PAGES = {
    page.name: page
    for page in (
        PageKind("traces", "Traces", needs="nothing"),
        PageKind("overview", "Overview", switched=True),
        PageKind("timeline", "Timeline", needs="trace", switched=True),
        PageKind("copies", "Copies", switched=True),
        PageKind("idle", "Idle & stalls", switched=True),
        PageKind("kernels", "Kernels and ops", switched=True),
        PageKind("steps", "Steps", switched=True),
        PageKind("whatif", "What if"),
        PageKind("compare", "Compare", needs="trace"),
        PageKind("ranks", "Ranks", needs="nothing"),
        *_of_plugins(),
    )
}
