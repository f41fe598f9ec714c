"""The sentence of `overlapscope run` on data races, and the number read back from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from overlapscope.base.words import plural

_NONE: Final = "no data races found in what could be checked."
_SOME: Final = re.compile(r": ([\d,]+) data races? found\.(?= |$)", re.MULTILINE)


def sentence(count: int, unchecked: Sequence[str]) -> str:
    """Return the sentence on this number of data races, and those on unchecked parts."""
    return " ".join((f"{plural(count, 'data race')} found." if count else _NONE, *unchecked))


def read(output: str) -> int | None:
    """Return the number of data races that a run printed; None if it printed none."""
    some = _SOME.search(output)
    return int(some[1].replace(",", "")) if some else 0 if f": {_NONE}" in output else None
