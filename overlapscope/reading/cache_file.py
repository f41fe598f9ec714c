"""A Trace as a file of the cache.

The file is an Arrow IPC stream of one row, in which each column of each table is a list (`gpu_ops.start_ns`), and the
string table is one as well (`names`); any program that knows Arrow reads it. Behind the stream stands what no column
is, as JSON, with the place of each column in the file, so that opening needs neither Arrow's library nor a copy. A
digest of all of it ends the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from overlapscope.base.disk import regular
from overlapscope.trace.model import Table, Trace

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"overlapscope\x00\x00\x00\x01"
_SIZES = struct.Struct("<QQ16s")
"""Bytes of the Arrow stream, bytes of the JSON, _MAGIC; the digest follows."""
_DIGEST_BYTES = 16
_NUMBERS = "biuf"
"""Kinds of dtypes that a column may have."""
_NAMES = "names"


class BrokenFile(Exception):
    """The file is none of ours, or not as it was written."""


class _Part(msgspec.Struct, frozen=True, array_like=True):
    """A column's place in the file."""

    dtype: str
    offset: int
    count: int


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unpacked_bytes: int
    scalars: msgspec.Raw
    columns: dict[str, _Part]
    name_offsets: _Part
    """`count` is one more than there are names."""
    name_text: _Part


@dataclass(frozen=True, slots=True)
class Stored:
    """What a file holds."""

    trace: Trace
    """Its `source` is empty. Its columns are views of one buffer, which is this Trace's own."""
    unpacked_bytes: int
    """How large the trace file is when unpacked."""


def stored_bytes(trace: Trace) -> int:
    """About how large the file of a trace is: its columns and names."""
    return sum(column.nbytes for _, column in _columns(trace)) + sum(map(len, trace.names))


def write(trace: Trace, unpacked_bytes: int, path: Path) -> None:
    """Write the file at `path`, over what may be there.

    Raises ImportError without pyarrow or xxhash, OSError where it cannot be written, and ValueError or TypeError for a
    trace that does not fit (a number beyond 64 bits).
    """
    import pyarrow as pa
    from xxhash import xxh3_128

    _, scalars_type = _layout()
    values = {name: getattr(trace, name) for name in scalars_type.__struct_fields__}
    scalars = msgspec.json.encode(scalars_type(**values))
    batch = _batch(trace)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    with pa.memory_map(str(path)) as file:
        content = file.read_buffer()
    dtypes = {name: column.dtype.str for name, column in _columns(trace)}
    index = msgspec.json.encode(_index(content, dtypes, msgspec.Raw(scalars), unpacked_bytes))
    tail = index + _SIZES.pack(len(content), len(index), _MAGIC)
    digest = xxh3_128(content)
    digest.update(tail)
    with path.open("ab") as end:
        end.write(tail + digest.digest())


def read(path: Path) -> Stored:
    """What the file holds. Raises BrokenFile, OSError, or ImportError without xxhash."""
    from xxhash import xxh3_128_digest

    content = _content(path)
    data = content.data
    whole = len(data) - _DIGEST_BYTES
    begin = whole - _SIZES.size
    if begin < 0:
        raise BrokenFile("too short")
    arrow_bytes, index_bytes, magic = _SIZES.unpack(data[begin:whole])
    if magic != _MAGIC or arrow_bytes + index_bytes != begin:
        raise BrokenFile("no file of this kind, or not all of it")
    if xxh3_128_digest(data[:whole]) != data[whole:]:
        raise BrokenFile("not as it was written")
    try:
        index = msgspec.json.decode(data[arrow_bytes:begin], type=_Index)
        return Stored(_trace(content[:arrow_bytes], index), index.unpacked_bytes)
    except (ValueError, TypeError, KeyError, msgspec.MsgspecError) as error:
        raise BrokenFile(str(error)) from error


# -- writing --------------------------------------------------------------------------------------


def _columns(trace: Trace) -> Iterator[tuple[str, NDArray[Any]]]:
    tables, _ = _layout()
    for table_name, table in tables.items():
        for column in _column_names(table):
            yield f"{table_name}.{column}", getattr(getattr(trace, table_name), column)


def _batch(trace: Trace) -> pa.RecordBatch:
    import pyarrow as pa

    lists = {_NAMES: _list(pa.array(trace.names, pa.large_string()))}
    for name, column in _columns(trace):
        # Arrow packs truth values into bits; as bytes they need no unpacking.
        lists[name] = _list(pa.array(column.view(np.int8) if column.dtype == np.bool_ else column))
    return pa.RecordBatch.from_arrays(list(lists.values()), names=list(lists))


def _list(values: pa.Array) -> pa.LargeListArray:
    import pyarrow as pa

    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)


def _index(content: pa.Buffer, dtypes: dict[str, str], scalars: msgspec.Raw, unpacked_bytes: int) -> _Index:
    """Where Arrow has put the columns."""
    import pyarrow as pa

    batch = pa.ipc.open_stream(content).read_next_batch()

    def part(dtype: str, buffer: pa.Buffer, count: int) -> _Part:
        offset = buffer.address - content.address if count else 0
        found = _Part(dtype, offset, count)
        # Also where Arrow has copied it, or the dtype is one that could not be read.
        _column(np.frombuffer(content, np.uint8), found)
        return found

    columns = {}
    for name, dtype in dtypes.items():
        values = batch.column(name).values
        columns[name] = part(dtype, values.buffers()[1], len(values))
    names = batch.column(_NAMES).values
    _, offsets, text = names.buffers()
    text_bytes = int(np.frombuffer(offsets, "<i8")[len(names)]) if len(names) else 0
    name_offsets = part("<i8", offsets, len(names) + 1 if len(names) else 0)
    return _Index(unpacked_bytes, scalars, columns, name_offsets, part("|u1", text, text_bytes))


# -- reading --------------------------------------------------------------------------------------


def _content(path: Path) -> NDArray[np.uint8]:
    """All of the file, in memory of our own: a mapped file that another machine removes from a network folder would
    take the process along, and what is used afterwards would not be what was checked.
    """
    with open(path, "rb", buffering=0, opener=regular) as file:
        file.seek(0, 2)
        content = np.empty(file.tell(), np.uint8)
        file.seek(0)
        left = content.data
        while left:
            count = file.readinto(left)
            if not count:
                raise BrokenFile("became shorter while it was read")
            left = left[count:]
    return content


def _trace(arrow: NDArray[np.uint8], index: _Index) -> Trace:
    tables, scalars_type = _layout()
    expected = [f"{name}.{column}" for name, table in tables.items() for column in _column_names(table)]
    if list(index.columns) != expected:
        raise ValueError("the columns are those of another version")
    names = _names(arrow, index)
    parts: dict[str, Any] = {"source": "", "names": names}
    for name, table in tables.items():
        columns = {column: _column(arrow, index.columns[f"{name}.{column}"]) for column in _column_names(table)}
        if len({len(column) for column in columns.values()}) != 1:
            raise ValueError("the columns of a table differ in length")
        parts[name] = table(names=names, **columns)
    scalars = msgspec.json.decode(index.scalars, type=scalars_type)
    return Trace(**parts, **{name: getattr(scalars, name) for name in scalars_type.__struct_fields__})


def _names(arrow: NDArray[np.uint8], index: _Index) -> tuple[str, ...]:
    offsets = _column(arrow, index.name_offsets).tolist()
    text = _column(arrow, index.name_text).tobytes()
    return tuple(text[begin:end].decode() for begin, end in pairwise(offsets))


def _column(arrow: NDArray[np.uint8], part: _Part) -> NDArray[Any]:
    if np.dtype(part.dtype).kind not in _NUMBERS:
        raise ValueError(f"a column of {part.dtype}")
    return np.frombuffer(arrow.data, part.dtype, part.count, part.offset) if part.count else np.empty(0, part.dtype)


# -- what a Trace consists of ---------------------------------------------------------------------


@cache
def _layout() -> tuple[dict[str, type[Table]], type[msgspec.Struct]]:
    """The tables of a Trace, and a struct of its other fields, but for the source and the names."""
    hints = get_type_hints(Trace)
    tables = {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, Table)}
    rest = [(name, kind) for name, kind in hints.items() if name not in tables and name not in ("source", "names")]
    return tables, msgspec.defstruct("Scalars", rest, frozen=True, forbid_unknown_fields=True)


def _column_names(table: type[Table]) -> list[str]:
    return [field.name for field in fields(table) if field.name != "names"]
