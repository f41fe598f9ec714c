"""How many data races were found, as `overlapscope run` says it; and what it said, read back."""

from __future__ import annotations

import re
from typing import Final

from overlapscope.base.words import plural

_NONE: Final = "no data races found in what could be checked."
_SOME: Final = re.compile(r": ([\d,]+) data races? found\.$", re.MULTILINE)


def said(count: int) -> str:
    """Half of `overlapscope: ...`."""
    return f"{plural(count, 'data race')} found." if count else _NONE


def read(output: str) -> int | None:
    """How many a run said in its output; None where it said nothing of them."""
    some = _SOME.search(output)
    return int(some[1].replace(",", "")) if some else 0 if f": {_NONE}" in output else None
