"""Sizes as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

from overlapscope.base.words import shorten

MOST_BYTES = 2**63 - 1
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def parse(text: str) -> int:
    """Bytes of a size such as `20GB`, `1.5 GiB`, `4096` or `0`; raises ValueError where it is none."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it like 20GB or 512MiB")
    base = 1024 if match[3] else 1000
    size = Decimal(match[1]) * base ** " kmgt".index(match[2].lower() or " ")
    if size > MOST_BYTES:
        raise ValueError(f"{shorten(text, 40)!r} is more than any file holds")
    return int(size)
