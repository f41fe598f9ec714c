"""Reading of usual events into columns by `scan.c`, a compiled library.

The library takes a whole array of events or refuses it. Python reads the arrays that it refuses, and all arrays if it
was not built. `hatch_build.py` compiles it; the columns are the same with and without it.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
from msgspec import Raw

from overlapscope.base.grouping import distinct
from overlapscope.reading._events import (
    UNDECODABLE,
    Batch,
    EventArguments,
    EventTable,
    OpArgs,
    bounds_recording,
    decoded_text,
    number,
    rows_of,
    table_of,
)
from overlapscope.trace.model import I32, I64

LIBRARY = Path(__file__).with_name("libscan.so")
_SOURCE = LIBRARY.with_name("scan.c")

_T = TypeVar("_T", bound=np.generic)

CATEGORIES = (
    *("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "python_function"),
    *("user_annotation", "gpu_user_annotation", "cuda_sync", "overhead", "Trace", "xpu_runtime", "xpu_driver"),
)
"""Frequent categories. Python reads arrays with an event of any other category."""
_WITH_INSTANTS = (*CATEGORIES, "")
"""Categories of rows. Instants that bound the recording have none."""
_TABLE_OF: Final[I32] = np.array([table_of[category] for category in _WITH_INSTANTS], dtype=np.int32)
"""Table for each category."""
_PASSED_OVER_IN = {
    **dict.fromkeys(("ac2g", "fwdbwd"), "stf"),
    "cpu_instant_event": "i",
    **dict.fromkeys(("cuda_event", "cuda_profiler_range"), "X"),
}
"""Frequent categories that no table takes, with the phases that they come in."""

_PLAIN, _CALL, _OP, _PASSED_OVER, _INSTANT = range(5)
_SHAPES = {EventTable.GPU: _OP, EventTable.SYNC: _OP, EventTable.DEVICE_ANNOTATION: _OP, EventTable.RUNTIME: _CALL}
_IS_OP = np.array([_SHAPES.get(table) == _OP for table in EventTable])
_TYPES = {int: 0, str: 1, Raw: 2}
_TEXT = -(1 << 62)
"""A process or thread that is a text is stored as the smallest integer plus the text's number, which is below this."""

_names = msgspec.json.Decoder(list[str])
_texts = msgspec.json.Decoder(list[Raw])


class _Word(ctypes.Structure):
    _fields_ = [
        ("text", ctypes.c_char_p),
        ("length", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("phases", ctypes.c_char_p),
    ]


class _Wanted(ctypes.Structure):
    _fields_ = [
        ("categories", ctypes.POINTER(_Word)),
        ("arguments", ctypes.POINTER(_Word)),
        ("n_categories", ctypes.c_int64),
        ("n_arguments", ctypes.c_int64),
        ("correlation", ctypes.c_int64),
        ("defaults", ctypes.POINTER(ctypes.c_int64)),
    ]


class _Words(ctypes.Structure):
    _fields_ = [
        ("json", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("bytes", "room", "count")),
        *((name, ctypes.c_void_p) for name in ("hashes", "ends", "slots")),
        *((name, ctypes.c_int64) for name in ("most", "n_slots")),
    ]


class _Columns(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("events", "rows", "n_calls", "n_ops", "no_duration")),
        *((name, ctypes.c_int64) for name in ("row_room", "call_room", "op_room")),
        *((name, ctypes.c_void_p) for name in ("category", "place", "name", "start_ns", "dur_ns", "thread")),
        *((name, ctypes.c_void_p) for name in ("calls", "ops")),
        ("names", _Words),
        ("texts", _Words),
    ]


_PLACES = {attribute: place for place, attribute in enumerate(("pid", *OpArgs.__struct_fields__))}


@cache
def _library() -> ctypes.CDLL | None:
    """Return the library; None where it was not built, is for another machine, or is older than its source."""
    try:
        if _SOURCE.exists() and _SOURCE.stat().st_mtime_ns > LIBRARY.stat().st_mtime_ns:
            return None
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None
    library.overlapscope_scanner.restype = ctypes.POINTER(_Columns)
    library.overlapscope_scanner.argtypes = [ctypes.POINTER(_Wanted), ctypes.c_uint64]
    library.overlapscope_scan.argtypes = [ctypes.POINTER(_Columns), ctypes.c_void_p, ctypes.c_int64]
    library.overlapscope_free.argtypes = [ctypes.POINTER(_Columns)]
    return library


def is_compiled() -> bool:
    """Return whether there is a compiled library."""
    return _library() is not None


@cache
def _wanted() -> _Wanted:
    categories = [_word(category, _SHAPES.get(table_of[category], _PLAIN)) for category in CATEGORIES]
    categories.append(_word("", _INSTANT))
    categories += [_word(name, _PASSED_OVER, phases) for name, phases in _PASSED_OVER_IN.items()]
    keys, defaults = OpArgs.__struct_encode_fields__, OpArgs.__struct_defaults__
    arguments = [_word(key, _TYPES[type(default)]) for key, default in zip(keys, defaults, strict=True)]
    return _Wanted(
        (_Word * len(categories))(*categories),
        (_Word * len(arguments))(*arguments),
        len(categories),
        len(arguments),
        keys.index("correlation"),
        (ctypes.c_int64 * len(defaults))(*(value if isinstance(value, int) else -1 for value in defaults)),
    )


def _word(text: str, kind: int, phases: str = "") -> _Word:
    return _Word(text.encode(), len(text), kind, phases.encode())


def scanner() -> Callable[[memoryview], Batch | None]:
    """Return a function that reads a JSON array in writable memory; it returns None for arrays left to Python."""
    library = _library()
    # With a random seed, a file cannot choose texts with equal hashes.
    seed = int.from_bytes(os.urandom(8), "little")
    if library is None or not (state := library.overlapscope_scanner(_wanted(), seed)):
        return lambda _array: None

    def scan(array: memoryview) -> Batch | None:
        begin = ctypes.c_char.from_buffer(array)
        if not library.overlapscope_scan(state, ctypes.addressof(begin), len(array)):
            return None
        return _batch(state.contents)

    weakref.finalize(scan, library.overlapscope_free, state)
    return scan


def _batch(columns: _Columns) -> Batch | None:
    """Return the batch in the library's columns; None where a text is not UTF-8."""
    try:
        words = _names.decode(_json(columns.names))
        raw = _json(columns.texts)
        raw.decode()
        texts = _texts.decode(raw)
    except UNDECODABLE:
        return None
    rows = columns.rows
    thread = _identities(_array(columns.thread, rows, np.int64), texts)
    batch = Batch(
        words=words,
        name=_array(columns.name, rows, np.int32),
        categories=_WITH_INSTANTS,
        category=_array(columns.category, rows, np.int32),
        place=_array(columns.place, rows, np.int32),
        start_ns=_array(columns.start_ns, rows, np.int64),
        dur_ns=_array(columns.dur_ns, rows, np.int64),
        thread=thread,
        repaired=columns.no_duration,
        count=columns.events,
    )
    _take_instants(batch, texts)
    tables = _TABLE_OF[batch.category]
    ops = _array(columns.ops, columns.n_ops * len(_PLACES), np.int64).reshape(-1, len(_PLACES))
    ops[:, 0] = _identities(ops[:, 0], texts)
    shown = _IS_OP[tables]
    for table, at in rows_of(tables):
        if table == EventTable.RUNTIME:
            calls = _array(columns.calls, columns.n_calls * 2, np.int64).reshape(-1, 2)
            written = distinct(calls[:, 0]).tolist()
            batch.callers = {each if each >= _TEXT else decoded_text(texts[each + (1 << 63)]) for each in written}
            batch.parts[table] = at, EventArguments(batch.thread[at], calls, {"pid": 0, "correlation": 1}, texts)
        else:
            batch.parts[table] = at, EventArguments(batch.thread[at], ops[tables[shown] == table], _PLACES, texts)
    return batch


def _take_instants(batch: Batch, texts: list[Raw]) -> None:
    """Move the instants of a batch from its rows to its markers."""
    is_row = batch.category != len(CATEGORIES)
    if is_row.all():
        return
    for row in np.flatnonzero(~is_row).tolist():
        name = decoded_text(texts[batch.name[row]])
        if bounds_recording(name):
            batch.markers.append((name, int(batch.start_ns[row]), int(batch.place[row])))
    for column in ("name", "category", "place", "start_ns", "dur_ns", "thread"):
        setattr(batch, column, getattr(batch, column)[is_row])


def _json(words: _Words) -> bytes:
    """Return a JSON array of the texts."""
    return b"[" + ctypes.string_at(words.json, words.bytes)[1:] + b"]" if words.bytes else b"[]"


def _array(address: int, count: int, dtype: type[_T]) -> np.ndarray[tuple[int], np.dtype[_T]]:
    array = np.empty(count, dtype)
    if count:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
    return array


def _identities(values: I64, texts: list[Raw]) -> I64:
    for row in np.flatnonzero(values < _TEXT).tolist():
        values[row] = number(decoded_text(texts[int(values[row]) + (1 << 63)]))
    return values
