"""Tables as numpy arrays of equal length, whose rows refer to rows of other tables by index, -1 for none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, overload

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from overlapscope.base.kept import kept

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I8 = NDArray[np.int8]
U8 = NDArray[np.uint8]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Index = NDArray[np.intp]
Integers = NDArray[np.signedinteger[Any]]
"""Integers of any width."""

_DTYPES: dict[Any, type] = {
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
    "F64": np.float64,
    "Bool": np.bool_,
    "Index": np.intp,
}
"""Types of columns, as tables write them."""


@overload
def pick(column: Bool, rows: Integers, none: bool) -> Bool: ...
@overload
def pick(column: Integers, rows: Integers, none: int = -1) -> I64: ...
@overload
def pick(column: F64, rows: Integers, none: float = -1) -> F64: ...
def pick(column: NDArray[Any], rows: Integers, none: float = -1) -> NDArray[Any]:
    """Return the column's values at some rows, as 64-bit numbers in the shape of `rows`; `none` for a missing row.

    A row is missing if it is -1, a reference to nothing, or the column's length, the result of a search that found
    nothing.
    """
    dtype = np.result_type(column, np.asarray(none))
    if not len(column):
        return np.full(rows.shape, none, dtype)
    values = column.take(rows, mode="clip").astype(dtype, copy=False)
    values[(rows < 0) | (rows >= len(column))] = none
    return values


def mask_of(rows: Integers | Bool, count: int) -> Bool:
    """Return a mask of `count` rows that selects some rows, given by index or by another mask."""
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


def locate(column: Integers, wanted: Integers) -> I64:
    """Return the first row of the column that has each wanted value; -1 where none has."""
    order = np.argsort(column, kind="stable")
    rows = pick(order, np.searchsorted(column[order], wanted))
    return np.where((rows >= 0) & (pick(column, rows) == wanted), rows, -1)


def quantile(values: F64 | Integers, share: float) -> float:
    """Return the quantile as `np.quantile` does, without loading numpy's masked arrays. There must be a value."""
    place, part = divmod(share * (len(values) - 1), 1)
    at, after = int(place), min(int(place) + 1, len(values) - 1)
    ordered = np.partition(values, (at, after))
    low, high = float(ordered[at]), float(ordered[after])
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


class Columns(Struct, frozen=True, eq=False):
    """A table. Its arrays are columns of equal length; other fields stay the same for any selection of rows."""

    def __len__(self) -> int:
        return len(getattr(self, next(iter(dtypes(type(self))))))

    def take(self, rows: Integers | Bool | slice) -> Self:
        """Return the table of some rows (an index array, a boolean mask or a slice)."""
        if not isinstance(rows, slice):
            # Masks and narrow indices would be converted for each column.
            rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.intp, copy=False)
        return replace(self, **{name: getattr(self, name)[rows] for name in dtypes(type(self))})

    def copied(self, *names: str) -> Self:
        """Return the table with private, writable copies of some columns."""
        return replace(self, **{name: getattr(self, name).copy() for name in names})

    @classmethod
    def empty(cls, **shared: Any) -> Self:
        """Return a table without rows. `shared` are the fields that are not columns."""
        return cls(**shared, **{name: np.empty(0, dtype) for name, dtype in dtypes(cls).items()})

    @classmethod
    def filled(cls, **fields: Any) -> Self:
        """Return a table of some columns and other fields. A single value fills its column."""
        of = dtypes(cls)
        filled = zip(of, np.broadcast_arrays(*(fields[name] for name in of)), strict=True)
        return cls(**fields | {name: values.astype(of[name], copy=False) for name, values in filled})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all tables, table after table; without tables, a table without rows."""
        if not parts:
            return cls.empty()
        return replace(
            parts[0], **{name: np.concatenate([getattr(part, name) for part in parts]) for name in dtypes(cls)}
        )


@kept()
def dtypes(table: type[Columns]) -> dict[str, type]:
    """Return the names of a table's columns and their types."""
    spelled: dict[str, Any] = {}
    for cls in reversed(table.__mro__):
        spelled |= getattr(cls, "__annotations__", {})
    return {name: _DTYPES[spelled[name]] for name in table.__struct_fields__ if spelled[name] in _DTYPES}
