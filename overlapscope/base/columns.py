"""Tables as columns: numpy arrays of equal length, whose rows refer to rows of others by index, -1 for none."""

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
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Index = NDArray[np.intp]
Integers = NDArray[np.signedinteger[Any]]
"""Whole numbers of any width."""

_DTYPES: dict[Any, type] = {
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
    "F64": np.float64,
    "Bool": np.bool_,
    "Index": np.intp,
}
"""Types of columns, by how tables spell them."""


@overload
def pick(column: Bool, rows: Integers, none: bool) -> Bool: ...
@overload
def pick(column: Integers, rows: Integers, none: int = -1) -> I64: ...
@overload
def pick(column: F64, rows: Integers, none: float = -1) -> F64: ...
def pick(column: NDArray[Any], rows: Integers, none: float = -1) -> NDArray[Any]:
    """The column's values at the rows, in their shape; `none` where there is no such row: -1, as where nothing is
    referred to, or the column's length, as where a search found nothing that follows. Whole numbers become 64 bits
    wide."""
    dtype = np.result_type(column, np.asarray(none))
    if not len(column):
        return np.full(rows.shape, none, dtype)
    values = column.take(rows, mode="clip").astype(dtype, copy=False)
    values[(rows < 0) | (rows >= len(column))] = none
    return values


def locate(column: Integers, wanted: Integers) -> I64:
    """The first row of the column that has each wanted value; -1 where none has."""
    order = np.argsort(column, kind="stable")
    rows = pick(order, np.searchsorted(column[order], wanted))
    return np.where((rows >= 0) & (pick(column, rows) == wanted), rows, -1)


def quantile(values: F64 | Integers, share: float) -> float:
    """As `np.quantile` has it, which loads numpy's masked arrays, as `np.median` does. There must be a value."""
    ordered = np.sort(values)
    place, part = divmod(share * (len(values) - 1), 1)
    low, high = float(ordered[int(place)]), float(ordered[-1 if int(place) + 1 == len(values) else int(place) + 1])
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


class Columns(Struct, frozen=True, eq=False):
    """A table: fields that are arrays are columns of equal length, any others are shared by what is taken from it."""

    def __len__(self) -> int:
        return len(getattr(self, next(iter(_dtypes(type(self))))))

    def take(self, rows: Integers | Bool | slice) -> Self:
        """The table of the given rows (an index array or a boolean mask)."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _dtypes(type(self))})

    def copied(self, *names: str) -> Self:
        """The table with some columns of its own, to be written to."""
        return replace(self, **{name: getattr(self, name).copy() for name in names})

    @classmethod
    def empty(cls, **shared: Any) -> Self:
        """A table of no rows. `shared`: its fields that are no columns."""
        return cls(**shared, **{name: np.empty(0, dtype) for name, dtype in _dtypes(cls).items()})

    @classmethod
    def filled(cls, **columns: NDArray[Any] | int) -> Self:
        """A table of these columns, in which a single value stands in every row."""
        dtypes = _dtypes(cls)
        whole = zip(columns, np.broadcast_arrays(*columns.values()), strict=True)
        return cls(**{name: values.astype(dtypes[name], copy=False) for name, values in whole})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all the tables, one after another; of none, a table of no rows."""
        if not parts:
            return cls.empty()
        return replace(
            parts[0], **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _dtypes(cls)}
        )


@kept()
def _dtypes(table: type[Columns]) -> dict[str, type]:
    """The names of a table's columns and their types."""
    spelled: dict[str, Any] = {}
    for cls in reversed(table.__mro__):
        spelled |= getattr(cls, "__annotations__", {})
    return {name: _DTYPES[spelled[name]] for name in table.__struct_fields__ if spelled[name] in _DTYPES}
