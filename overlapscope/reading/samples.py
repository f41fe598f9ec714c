"""The sample recordings that come with overlapscope."""

from __future__ import annotations

from pathlib import Path

from overlapscope.errors import UnreadableTrace

_PACKAGE = Path(__file__).parents[1]


def sample_traces() -> Path:
    """The directory of the sample recordings: inside an installed package, or `traces/` of a checkout.

    Raises UnreadableTrace where there are none, as in a checkout without its `traces/`.
    """
    for directory in (_PACKAGE / "traces", _PACKAGE.parent / "traces"):
        if any(directory.glob("*.json*")):
            return directory
    raise UnreadableTrace("this copy of overlapscope has no sample traces; install it anew, or check out `traces/`.")
