"""Messages of collectives: their size and rows, whom they reach, and bus bandwidth by the arithmetic of nccl-tests.

https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md derives the factors. PyTorch names types of elements
as in `c10/core/ScalarType.h`, and collectives as in `ProcessGroupNCCL.cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

import numpy as np

from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64, Bool
from overlapscope.trace.model import I32, Collectives

_BYTES: Final = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz", "Float8_e8m0fnu"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Size of an element by its type."""
_PARTS = re.compile(r"\[(\d{1,15}(?:, \d{1,15})*)\]")

_FACTORS: Final[tuple[tuple[re.Pattern[str], Callable[[int], Fraction]], ...]] = (
    (re.compile(r"all_?reduce", re.IGNORECASE), lambda ranks: Fraction(2 * (ranks - 1), ranks)),
    (
        re.compile(r"all_?gather|reduce_?scatter|all_?to_?all|gather|scatter", re.IGNORECASE),
        lambda ranks: Fraction(ranks - 1, ranks),
    ),
    (re.compile(r"broadcast|reduce|send|recv", re.IGNORECASE), lambda ranks: Fraction(1)),
)
"""Collectives, and the factor between algorithm and bus bandwidth for a number of ranks."""


def bus_factor(collective: str, ranks: int) -> Fraction | None:
    """Return the bus bandwidth per algorithm bandwidth; None if unknown.

    Args:
        collective: Name of the collective as recorded, such as `_allgather_base`.
        ranks: Number of ranks in the group.
    """
    if ranks < 1:
        return None
    return next((factor(ranks) for name, factor in _FACTORS if name.search(collective)), None)


def bytes_of_type(dtype: str) -> int:
    """Return the size of an element by PyTorch's name of its type; -1 where unknown."""
    return _BYTES.get(dtype, -1)


def element_bytes(recorded: Collectives, names: Sequence[str]) -> I64:
    """Return the size of an element of each message; -1 where unknown."""
    return _from_texts(recorded.dtype, names, bytes_of_type)


def message_bytes(recorded: Collectives, names: Sequence[str]) -> I64:
    """Return the size of each message as nccl-tests counts it: of the larger buffer of a rank; -1 where unknown."""
    element = element_bytes(recorded, names)
    elements = np.maximum(recorded.elements_in, recorded.elements_out)
    return np.where((element > 0) & (elements >= 0), element * elements, -1)


def reaches_all(recorded: Collectives, names: Sequence[str]) -> I64:
    """Return for each all-to-all 1 if the rank sends to all ranks and receives from all, otherwise 0; -1 if unknown.

    An all-to-all without split sizes is even. PyTorch shortens the split sizes of large groups, which makes them
    unknown.
    """
    size = recorded.group_size.astype(np.int64)
    reaches = np.ones(len(size), np.int64)
    for parts, elements in ((recorded.parts_in, recorded.elements_in), (recorded.parts_out, recorded.elements_out)):
        least = _from_texts(parts, names, lambda text: min(_split(text), default=-1))
        count = _from_texts(parts, names, lambda text: len(_split(text)))
        even = _from_texts(parts, names, lambda text: int(text == "[]")) == 1
        unknown = np.where(even, elements < 0, count != size) | (size < 1)
        all_sides = np.where(unknown, -1, np.where(even, elements >= size, least > 0))
        reaches = np.where((reaches == 0) | (all_sides == 0), 0, np.minimum(reaches, all_sides))
    return reaches


def has_splits(recorded: Collectives, names: Sequence[str]) -> Bool:
    """Return a mask of the collectives that were called with split sizes."""
    sides = (recorded.parts_in, recorded.parts_out)
    one, other = (_from_texts(parts, names, lambda text: int(text not in {"", "[]"})) == 1 for parts in sides)
    given: Bool = one | other
    return given


def split_rows(parts: I32, names: Sequence[str]) -> I64:
    """Return the sum of split sizes, which are rows of a tensor; -1 without any, or if PyTorch shortened the list."""
    return _from_texts(parts, names, lambda text: sum(_split(text)) if _split(text) else -1)


def _split(text: str) -> list[int]:
    parts = _PARTS.fullmatch(text)
    return [int(part) for part in parts[1].split(", ")] if parts else []


def _from_texts(ids: I32, names: Sequence[str], figure: Callable[[str], int]) -> I64:
    """Return a figure of the text of each row; -1 where there is no text."""
    distinct, which = np.unique(ids, return_inverse=True)
    figures = np.array([figure(names[text]) if text >= 0 else -1 for text in distinct.tolist()], np.int64)
    return pick(figures, which.ravel())
