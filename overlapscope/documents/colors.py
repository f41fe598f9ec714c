"""Colors and patterns of everything the product draws, for light and for dark.

The hues of ops are those of Okabe and Ito (Color Universal Design, 2008): green is compute, purple communication, blue
copies to the device, orange copies back, sky a hidden copy, vermillion an exposed copy.

The causes of a bucket, and the parts of the timeline's overlap lane, differ in pattern, or else in color by at least
`MIN_COLOR_DISTANCE` (CIEDE2000) to people with normal vision and with each kind of color blindness (Machado et al.
2009). Each has a contrast of 3 to 1 with the page. There are more causes than such colors, so colors repeat with
another pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from overlapscope.catalog.buckets import BUCKETS
from overlapscope.catalog.causes import CAUSES, CopyCause, IdleCause, Subject

Pattern = Literal["", "rising", "falling", "crossed", "dotted", "ruled"]
"""Marks on a color; empty for a plain color."""

MIN_COLOR_DISTANCE: Final = 12
"""Least difference in color between two causes of the same pattern that are shown side by side (CIEDE2000)."""

_OPS: Final[dict[str, tuple[str, str]]] = {
    "comm": ("#6d2a6b", "#c078b4"),
    "h2d-pinned": ("#1e64d2", "#a0befa"),
    "h2d-pageable": ("#74b3de", "#5f97dc"),
    "h2d-other": ("#3f5f9e", "#6f8fd6"),
    "d2h-pinned": ("#e69f00", "#f0ad1c"),
    "d2h-pageable": ("#f3cc79", "#f8dc9c"),
    "d2h-other": ("#a87400", "#b98a2b"),
    "p2p": ("#6e6712", "#968d2a"),
    "other": ("#b3a82a", "#e6da4a"),
    "hidden-copy": ("#466ebe", "#96b4fa"),
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


_CAUSES: Final[Mapping[Subject, tuple[tuple[str, str], ...]]] = {
    "exposed-copy": (
        ("#d15600", "#e2571a"),
        ("#a00a00", "#f08caa"),
        ("#b47882", "#f0d2a0"),
        ("#641e28", "#a05a6e"),
        ("#8c505a", "#b4966e"),
    ),
    "exposed-comm": (
        ("#6d2a6b", "#c078b4"),
        ("#aa8296", "#fac8dc"),
        ("#645abe", "#a050a0"),
        ("#8c82e6", "#c8b4fa"),
        ("#6e5a64", "#826e78"),
    ),
    "exposed-other": (
        ("#6e640a", "#b46e00"),
        ("#78825a", "#96a078"),
        ("#8f861f", "#bdb23a"),
        ("#463200", "#dce6be"),
        ("#505a3c", "#786e50"),
    ),
    "idle": (
        ("#004646", "#46786e"),
        ("#be8228", "#b49628"),
        ("#463278", "#7864aa"),
        ("#646478", "#d2e6fa"),
        ("#965a14", "#966432"),
        ("#645a46", "#f0d278"),
        ("#643200", "#e6e6d2"),
        ("#828c96", "#8296a0"),
    ),
}
"""Colors of the causes of a bucket, for light and dark: the first causes have them plain, the next with a pattern."""
_CAUSE_PATTERNS: Final[Mapping[Subject, tuple[Pattern, ...]]] = {
    "exposed-copy": ("falling", "crossed"),
    "exposed-comm": ("dotted", "rising", "ruled"),
    "exposed-other": ("dotted",),
    "idle": ("", "rising", "ruled"),
}
_COMMON: Final = (
    CopyCause.PAGEABLE_MEMORY,
    CopyCause.SAME_STREAM,
    CopyCause.NO_COMPUTE,
    CopyCause.LATE_ISSUE,
    CopyCause.EVENT_WAIT,
    IdleCause.HOST_SYNC,
    IdleCause.PYTHON,
    IdleCause.DISPATCH,
    IdleCause.CPU_OPS,
    IdleCause.DATA_LOADING,
    IdleCause.HOST_STAGING,
    IdleCause.ALLOCATION,
    IdleCause.LAUNCH_LATENCY,
)
"""Causes that most recordings have, which differ in color alone. They come before the others of their bucket."""


def _looks() -> dict[str, tuple[tuple[str, str], Pattern]]:
    """Return the colors and the pattern of each cause, by its name in the palette."""
    looks: dict[str, tuple[tuple[str, str], Pattern]] = {}
    for subject, causes in CAUSES.items():
        colors, patterns = _CAUSES[subject], _CAUSE_PATTERNS[subject]
        ids = [*causes]
        # Causes of different buckets may have the same name.
        common = [id for cause in _COMMON for id in ids if id is cause]
        for number, id in enumerate([*common, *(id for id in ids if id not in common)]):
            turn, place = divmod(number, len(colors))
            looks[f"{subject}:{id}"] = colors[place], patterns[turn]
    return looks


_LOOKS: Final = _looks()
PATTERNS: Final[Mapping[str, Pattern]] = {
    "h2d-pageable": "rising",
    "d2h-pageable": "rising",
    "exposed-comm": "dotted",
    "exposed-other": "dotted",
    "blocking-call": "ruled",
    **{name: pattern for name, (_, pattern) in _LOOKS.items() if pattern},
}
"""Patterns by name in the palette; other names have none. They show the most important facts without color: copies from
pageable memory are hatched one way, exposed time is hatched the other way or dotted, blocking calls are ruled."""


def palette(dark: bool) -> dict[str, str]:
    """Return `#rrggbb` by name: for each category of the timeline, each bucket and each part of a page.

    A cause has its bucket as a prefix: `exposed-copy:same-stream`, `idle:host-sync`.
    """
    named = {
        **_OPS,
        **{bucket.id: bucket.colors for bucket in BUCKETS.values()},
        **{name: colors for name, (colors, _) in _LOOKS.items()},
        **_HOST,
        **_PAGE,
    }
    return {name: pair[dark] for name, pair in named.items()}
