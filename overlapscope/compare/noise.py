"""How much the same program differs from one recording to the next.

The steps of one recording tell how much they differ among themselves, and nothing of that: the host is twice as fast on
another day, the link to it is shared. `docs/noise.md` has the measurements behind these numbers.
"""

from __future__ import annotations

from overlapscope.catalog.causes import CAUSES

GPU_SHARE = 0.01
"""Of the span: the clock of the GPU and the order of what runs on it."""
LINK_SHARE = 0.1
"""Of the time that copies and communication take: others use the link to the host, too."""
HOST_SHARE = 2.0
"""Of the time that the host decides about: it was half as fast during some recordings, from end to end."""
POINTS = 1.0
"""A percentage that changed by less, in points, is the same; more where the times it is made of are noisier."""

HOST_CAUSES = frozenset(cause.id for causes in CAUSES.values() for cause in causes.values() if cause.by_host)
"""Causes that are of the host's making: how fast it is decides how long they last."""


def floor_ns(span_ns: float, *, link_ns: float = 0.0, host_ns: float = 0.0) -> float:
    """The least change of a time that is more than noise, in a span of this length.

    `link_ns` and `host_ns`: how much of that time is the link's and the host's to decide.
    """
    return GPU_SHARE * span_ns + LINK_SHARE * link_ns + HOST_SHARE * host_ns
