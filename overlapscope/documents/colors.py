"""The colour of everything that is drawn, for light and for dark, in one place.

The hues are those of Okabe and Ito (Color Universal Design, 2008), which people with any common colour blindness tell
apart: green computes, purple communicates, blue goes to the device, orange comes back, sky is a hidden copy, vermillion
an exposed one, grey is idle. Within a family lightness does the telling, and a word always stands beside the colour.
"""

from __future__ import annotations

from typing import Final

from overlapscope.analysis.causes import CopyCause, IdleCause

_OPS: Final[dict[str, tuple[str, str]]] = {
    "compute": ("#009e73", "#1fb58a"),
    "comm": ("#923f8e", "#d99ccf"),
    "h2d-pinned": ("#0f7fc4", "#2d8ad0"),
    "h2d-pageable": ("#74b3de", "#a9d5f5"),
    "h2d-other": ("#3f5f9e", "#6f8fd6"),
    "d2h-pinned": ("#e69f00", "#f0ad1c"),
    "d2h-pageable": ("#f3cc79", "#f8dc9c"),
    "d2h-other": ("#a87400", "#b98a2b"),
    "other": ("#b3a82a", "#e6da4a"),
    "hidden-copy": ("#56b4e9", "#56b4e9"),
}
_EXPOSED_COPY: Final[dict[CopyCause, tuple[str, str]]] = {
    CopyCause.LEAD_IN: ("#e3c4b4", "#7d5a4a"),
    CopyCause.PAGEABLE_MEMORY: ("#d15600", "#e2571a"),
    CopyCause.NO_COMPUTE: ("#f0a98a", "#f5bda3"),
    CopyCause.SAME_STREAM: ("#a33b00", "#b8430c"),
    CopyCause.EVENT_WAIT: ("#ee8866", "#ee8f6f"),
    CopyCause.HOST_SYNC: ("#7a2a12", "#93402a"),
    CopyCause.ENGINE_BUSY: ("#c4574b", "#dd7a6e"),
    CopyCause.LATE_ISSUE: ("#e0703a", "#ff9f70"),
    CopyCause.UNKNOWN: ("#c9a797", "#96796b"),
}
_IDLE: Final[dict[IdleCause, tuple[str, str]]] = {
    IdleCause.HOST_SYNC: ("#4d5366", "#c6cbdb"),
    IdleCause.LAUNCH_BOUND: ("#727b8e", "#a3abbd"),
    IdleCause.DATA_LOADING: ("#66786c", "#a4b8aa"),
    IdleCause.HOST_STAGING: ("#8a7768", "#c2ae9e"),
    IdleCause.ALLOCATION: ("#7b6672", "#b9a2af"),
    IdleCause.HOST_COMPUTE: ("#8b93a1", "#8a93a4"),
    IdleCause.EVENT_WAIT: ("#65617d", "#aaa5c7"),
    IdleCause.PROFILER_OVERHEAD: ("#b3b8c0", "#6b7280"),
    IdleCause.LAUNCH_LATENCY: ("#c3c7cd", "#5a606b"),
    IdleCause.LEAD_IN: ("#d9dce1", "#454a53"),
    IdleCause.MISSING_OPS: ("#c9bfae", "#6b6355"),
    IdleCause.UNKNOWN: ("#a6a6a6", "#787878"),
}
_BUCKETS: Final[dict[str, tuple[str, str]]] = {
    "exposed-comm": ("#6d2a6b", "#c078b4"),
    "exposed-copy": ("#d15600", "#e2571a"),
    "exposed-other": ("#8f861f", "#bdb23a"),
    "idle": ("#a9afb9", "#7d8592"),
    "missing-ops": ("#c9bfae", "#6b6355"),
}
_HOST: Final[dict[str, tuple[str, str]]] = {
    "blocking-call": ("#c1272d", "#ff7a70"),
    "runtime-call": ("#8496ab", "#8fa3ba"),
    "cpu-op": ("#b9c4d0", "#596675"),
    "range": ("#8d84b5", "#9d94c9"),
    "profiler": ("#cfd3d9", "#464c55"),
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
"""From little to much, for light and for dark: one hue, so that lightness tells, and the stronger the further from the
ground."""


def bucket_color(name: str) -> str:
    """The palette's name of a bucket, by the name that `Buckets.named` gives it."""
    return name.replace(" ", "-")


def palette(dark: bool) -> dict[str, str]:
    """`#rrggbb` by name: each category of the timeline, each bucket, and what a page is made of.

    A cause stands behind the bucket that it explains: `exposed-copy:same-stream`, `idle:host-sync`.
    """
    named = {
        **_OPS,
        **{f"exposed-copy:{cause}": pair for cause, pair in _EXPOSED_COPY.items()},
        **{f"idle:{cause}": pair for cause, pair in _IDLE.items()},
        **_BUCKETS,
        **_HOST,
        **_PAGE,
    }
    return {name: pair[dark] for name, pair in named.items()}
