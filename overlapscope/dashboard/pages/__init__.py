"""Pages, in the order of the navigation.

A page's module has a function `layout`, which takes the `PageContext` and, if the page needs figures, the device. It
returns the blocks and components below the page's title, or the whole page as a component. The module may have
`callbacks` and a `LEAD`, which is a sentence on the question that the page answers. A page that needs no trace may have
a function `waits`: it returns the progress of what the page waits for, and None when the page can be shown.
"""

from __future__ import annotations

from types import ModuleType
from typing import Literal

from msgspec import Struct

from overlapscope.base.registry import load
from overlapscope.plugin import PluginPage, plugins

Needs = Literal["nothing", "trace", "figures"]


class PageKind(Struct, frozen=True):
    """A page, and what it needs."""

    page: PluginPage
    needs: Needs = "figures"
    """Required data; figures are those of a device whose trace is usable."""
    switched: bool = False
    """True if the header's switch between recording and plain program applies."""
    extra: str | None = None
    """The extra without which it has nothing to show."""

    @property
    def module(self) -> ModuleType:
        """The module that draws it."""
        module: ModuleType = load(self.page.place)
        return module


def with_data() -> dict[str, PluginPage]:
    """Return the pages of plugins that show data of their own, by name."""
    return {page.name: page for plugin in plugins() for page in plugin.pages if page.data}


def _core_page(name: str, title: str, needs: Needs = "figures", *, switched: bool = False) -> PageKind:
    return PageKind(PluginPage(name, title, f"{__name__}.{name}"), needs, switched)


PAGES = {
    kind.page.name: kind
    for kind in (
        _core_page("traces", "Traces", "nothing"),
        _core_page("overview", "Overview", switched=True),
        _core_page("timeline", "Timeline", "trace", switched=True),
        _core_page("copies", "Copies", switched=True),
        _core_page("idle", "Idle & stalls", switched=True),
        _core_page("kernels", "Kernels and ops", switched=True),
        _core_page("steps", "Steps", switched=True),
        _core_page("whatif", "What if"),
        _core_page("compare", "Compare", "trace"),
        _core_page("ranks", "Ranks", "nothing"),
        *(
            PageKind(
                page,
                "nothing" if page.files or page.data else "trace",
                extra=plugin.name if plugin.extra else None,
            )
            for plugin in plugins()
            for page in plugin.pages
        ),
    )
}
