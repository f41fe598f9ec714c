"""Colors of everything the product draws, for light and for dark.

The hues are those of Okabe and Ito (Color Universal Design, 2008), which people with any common color blindness can
tell apart: green is compute, purple communication, blue copies to the device, orange copies back, sky a hidden copy,
vermillion an exposed copy, grey idle time. Lightness separates the members of a family, and a word always accompanies
the color.
"""

from __future__ import annotations

from typing import Final

from overlapscope.catalog.buckets import BUCKETS
from overlapscope.catalog.causes import CAUSES

_OPS: Final[dict[str, tuple[str, str]]] = {
    "comm": ("#923f8e", "#d99ccf"),
    "h2d-pinned": ("#0f7fc4", "#2d8ad0"),
    "h2d-pageable": ("#74b3de", "#a9d5f5"),
    "h2d-other": ("#3f5f9e", "#6f8fd6"),
    "d2h-pinned": ("#e69f00", "#f0ad1c"),
    "d2h-pageable": ("#f3cc79", "#f8dc9c"),
    "d2h-other": ("#a87400", "#b98a2b"),
    "p2p": ("#6e6712", "#968d2a"),
    "other": ("#b3a82a", "#e6da4a"),
    "hidden-copy": ("#56b4e9", "#56b4e9"),
}
_HOST: Final[dict[str, tuple[str, str]]] = {
    "blocking-call": ("#c1272d", "#ff7a70"),
    "runtime-call": ("#8496ab", "#8fa3ba"),
    "cpu-op": ("#b9c4d0", "#596675"),
    "range": ("#8d84b5", "#9d94c9"),
    "profiler": ("#cfd3d9", "#464c55"),
    "python-line": ("#7fb0a3", "#4f8577"),
    "step": ("#5d6f8f", "#7f93b8"),
}
_PAGE: Final[dict[str, tuple[str, str]]] = {
    "background": ("#f8f9fa", "#1c1c1c"),
    "panel": ("#ffffff", "#242424"),
    "text": ("#1b1f24", "#e8e8e8"),
    "muted": ("#5b6470", "#a9adb3"),
    "grid": ("#e1e4e9", "#3d3d3d"),
    "accent": ("#0067a3", "#6cb8ee"),
    "good": ("#00704f", "#3fd3a3"),
    "fair": ("#8a5a00", "#f5b83d"),
    "poor": ("#b23a00", "#ff9466"),
}


HEAT: Final[tuple[tuple[str, ...], tuple[str, ...]]] = (
    ("#fbf1ea", "#f6cdb2", "#ec9a66", "#cf6220", "#963600", "#561d00"),
    ("#38302b", "#5f3620", "#95450f", "#d9681f", "#ffa36b", "#ffe2cf"),
)
"""Steps from low to high, for light and for dark. Lightness carries the value in a single hue: the stronger the color,
the further it is from the background."""


def palette(dark: bool) -> dict[str, str]:
    """Return `#rrggbb` by name: for each category of the timeline, each bucket and each part of a page.

    A cause has its bucket as a prefix: `exposed-copy:same-stream`, `idle:host-sync`.
    """
    named = {
        **_OPS,
        **{bucket.id: bucket.colors for bucket in BUCKETS.values()},
        **{f"{of}:{cause.id}": cause.words.colors for of, causes in CAUSES.items() for cause in causes.values()},
        **_HOST,
        **_PAGE,
    }
    return {name: pair[dark] for name, pair in named.items()}
