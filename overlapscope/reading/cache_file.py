"""A Trace as a file of the cache.

The columns of all tables come first, just as numpy holds them, in order of decreasing item size, so that all are
aligned without padding. Then follow, as JSON, the other values and the place and checksum of each column, and finally
the place of that JSON. So opening takes three reads and no copy.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import cache
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from overlapscope.base.disk import regular
from overlapscope.trace.model import Trace, TraceTable

_END = struct.Struct("<QI16s")
"""Bytes of the JSON, its CRC-32, _MAGIC."""
_MAGIC = b"overlapscope\x00\x00\x00\x04"
_NUMBERS = "biuf"
"""Kinds of dtypes that a column may have."""
_NAME_ENDS, _NAME_TEXT = "names.end", "names.text"
"""Columns of the string table: the end of each name in the text of all names, and that text in UTF-8."""
_WORDS = 1 << 15
"""Number of 64-bit words to weigh at once. These and their weights stay in a core's cache."""


class BrokenFile(Exception):
    """The file is not a cache file, or not as it was written."""


class _StoredColumn(msgspec.Struct, frozen=True, array_like=True):
    """Place of a column in the file."""

    dtype: str
    offset: int
    count: int
    checksum: int


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    scalars: msgspec.Raw
    columns: dict[str, _StoredColumn]


def stored_bytes(trace: Trace) -> int:
    """Return the approximate file size of a trace: its columns and names."""
    return sum(column.nbytes for _, column in _table_columns(trace)) + sum(map(len, trace.names))


def write(trace: Trace, path: Path, key: str) -> None:
    """Write the file at `path`, replacing any other. `key` states what the trace was read from.

    Raises:
        OSError: The file cannot be written.
        ValueError: The trace does not fit, because a number exceeds 64 bits.
        TypeError: Likewise.
    """
    _, scalars_type = _layout()
    scalars = scalars_type(**{name: getattr(trace, name) for name in scalars_type.__struct_fields__})
    columns = {**dict(_table_columns(trace)), **_name_columns(trace.names)}
    parts = {}
    with path.open("wb") as file:
        for name, column in sorted(columns.items(), key=lambda item: -item[1].itemsize):
            content = np.ascontiguousarray(column).view(np.uint8)
            parts[name] = _StoredColumn(column.dtype.str, file.tell(), len(column), _checksum(content))
            file.write(content.data)
        index = msgspec.json.encode(_Index(key, msgspec.Raw(msgspec.json.encode(scalars)), parts))
        file.write(index + _END.pack(len(index), zlib.crc32(index), _MAGIC))


def read(path: Path, key: str) -> Trace:
    """Return the Trace in the file, without its `source`. Its columns are views of a single buffer.

    Raises:
        BrokenFile: The file is not a cache file, or not as it was written with this key.
        OSError: The file cannot be read.
    """
    with open(path, "rb", buffering=0, opener=regular) as file:
        index_end = file.seek(0, 2) - _END.size
        if index_end < 0:
            raise BrokenFile("too short")
        index_bytes, index_checksum, magic = _END.unpack(_part(file, index_end, _END.size).data)
        index_begin = index_end - index_bytes
        if magic != _MAGIC or index_begin < 0:
            raise BrokenFile("no file of this kind, or not all of it")
        written = _part(file, index_begin, index_bytes).data
        if zlib.crc32(written) != index_checksum:
            raise BrokenFile("its index is not as it was written")
        try:
            index = msgspec.json.decode(written, type=_Index)
            if index.key != key:
                raise BrokenFile(f"it was written as {index.key}")
            if sum(part.count * np.dtype(part.dtype).itemsize for part in index.columns.values()) != index_begin:
                raise BrokenFile("its columns don't fill it")
            return _trace(_part(file, 0, index_begin), index)
        except (ValueError, TypeError, KeyError, msgspec.MsgspecError) as error:
            raise BrokenFile(str(error)) from error


def _part(file: FileIO, begin: int, count: int) -> NDArray[np.uint8]:
    """Return a part of the content in private memory.

    If the file were mapped and another machine removed it from a network folder, this process would crash. Its content
    could also change after the check.

    Raises:
        BrokenFile: The file became shorter meanwhile.
    """
    content = np.empty(count, np.uint8)
    file.seek(begin)
    unread = content.data
    while unread:
        read = file.readinto(unread)
        if not read:
            raise BrokenFile("became shorter while it was read")
        unread = unread[read:]
    return content


def _trace(content: NDArray[np.uint8], index: _Index) -> Trace:
    """Return the Trace in the content of a file.

    Raises:
        ValueError: The columns are not those of a Trace, or not as they were written.
    """
    columns = {name: _column(content, part) for name, part in index.columns.items()}
    ends, text = columns.pop(_NAME_ENDS), columns.pop(_NAME_TEXT).tobytes()
    names = tuple(text[begin:end].decode() for begin, end in pairwise([0, *ends.tolist()]))
    tables, scalars_type = _layout()
    parts: dict[str, Any] = {"source": "", "names": names}
    for name, table in tables.items():
        of_table = {column: columns.pop(f"{name}.{column}") for column in _column_names(table)}
        if len({len(column) for column in of_table.values()}) != 1:
            raise ValueError("the columns of a table differ in length")
        parts[name] = table(names=names, **of_table)
    if columns:
        raise ValueError("the columns are those of another version")
    scalars = msgspec.json.decode(index.scalars, type=scalars_type)
    return Trace(**parts, **{name: getattr(scalars, name) for name in scalars_type.__struct_fields__})


def _column(content: NDArray[np.uint8], part: _StoredColumn) -> NDArray[Any]:
    dtype = np.dtype(part.dtype)
    if dtype.kind not in _NUMBERS:
        raise ValueError(f"a column of {part.dtype}")
    column = content[part.offset : part.offset + part.count * dtype.itemsize]
    if _checksum(column) != part.checksum:
        raise ValueError("a column is not as it was written")
    return column.view(dtype)


def _checksum(content: NDArray[np.uint8]) -> int:
    """Return a checksum: the sum modulo 2**64 of the 64-bit words, each times an odd number of its own.

    It detects accidental changes nearly as fast as memory can be read. A CRC of all columns would take as long as
    reading them.
    """
    whole = len(content) // 8
    total = int.from_bytes(content[8 * whole :].tobytes(), "little")
    words = content[: 8 * whole].view("<u8")
    for begin in range(0, whole, _WORDS):
        block = words[begin : begin + _WORDS]
        total = (total * 31 + int(np.dot(block, _weights()[: len(block)]))) % (1 << 64)
    return total


@cache
def _weights() -> NDArray[np.uint64]:
    return np.arange(1, 2 * _WORDS, 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


# -- Layout of a Trace ---


def _table_columns(trace: Trace) -> Iterator[tuple[str, NDArray[Any]]]:
    tables, _ = _layout()
    for table_name, table in tables.items():
        for column in _column_names(table):
            yield f"{table_name}.{column}", getattr(getattr(trace, table_name), column)


def _name_columns(names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    encoded = [name.encode() for name in names]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return {_NAME_ENDS: ends, _NAME_TEXT: np.frombuffer(b"".join(encoded), np.uint8)}


@cache
def _layout() -> tuple[dict[str, type[TraceTable]], type[msgspec.Struct]]:
    """Return the tables of a Trace, and a struct of its other fields, except the source and the names."""
    hints = get_type_hints(Trace)
    tables = {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, TraceTable)}
    rest = [(name, kind) for name, kind in hints.items() if name not in tables and name not in ("source", "names")]
    return tables, msgspec.defstruct("Scalars", rest, frozen=True, forbid_unknown_fields=True)


def _column_names(table: type[TraceTable]) -> list[str]:
    return [name for name in table.__struct_fields__ if name != "names"]
