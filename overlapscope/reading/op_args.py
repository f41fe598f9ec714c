"""Arguments of some CPU ops or annotations, from a trace file that is read once more: shapes of inputs.

A Trace does not hold them, because few questions need them and they make up a third of a file's text. If the file is
missing or damaged, they are unknown, without an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct

from overlapscope.base.kept import kept
from overlapscope.errors import UnreadableTrace
from overlapscope.reading._events import NAN, NOTHING, UNDECODABLE
from overlapscope.reading._times import to_ns
from overlapscope.reading.file_names import file_and_part
from overlapscope.reading.files import SourceFile
from overlapscope.trace.model import I32, HostEvents, Trace

T = TypeVar("T", bound=Struct)

_NO_LIMIT = 1 << 62
"""No limit: the file was read once within the user's limit, and is read no further than to the last event."""
_SAME_NS = 1000
"""Starts are compared as doubles, which hold the microseconds of a file to a quarter of a microsecond."""


class _Op(Struct, Generic[T], gc=False):
    name: str = ""
    ts: float = NAN
    args: T | None = None


def read_args(trace: Trace, events: HostEvents, kind: type[T]) -> Iterator[tuple[int, T]]:
    """Yield rows of `events`, each with its arguments as a struct of the given kind.

    Events are left out if they have no arguments, if these don't fit the struct, or if another event is now at their
    place in the file. If the file is missing or damaged, nothing more is yielded.
    """
    path, _ = file_and_part(Path(trace.source))
    op_type: Any = _Op[kind]  # type: ignore[valid-type]
    by_place = np.argsort(events.place, kind="stable")
    places, begin, high = events.place[by_place], 0, 0
    # A damaged file may raise anything. The arguments found before the error have been checked.
    with suppress(UnreadableTrace, OSError, ValueError, *UNDECODABLE):
        if not len(events) or not path.is_file():
            return
        # Most recordings need none of it.
        from overlapscope.reading.raw_events import RawEvents, decoded

        for batch in RawEvents(SourceFile(path, limit_bytes=_NO_LIMIT)).batches():
            low, high = high, int(np.searchsorted(places, begin + batch.count))
            rows, texts = by_place[low:high], [batch.raw[at] for at in (places[low:high] - begin).tolist()]
            ops = [op or _Op() for op in decoded(texts, op_type)]
            starts = to_ns(np.array([op.ts for op in ops], np.float64)) + trace.base_ns
            same = np.abs(starts - events.start_ns[rows]) <= _SAME_NS
            for op, row, name_id in zip(ops, rows.tolist(), np.where(same, events.name_id[rows], -1), strict=True):
                if name_id >= 0 and op.args is not None and op.name == events.names[name_id]:
                    yield row, op.args
            begin += batch.count
            if high == len(places):
                return


# -- Sizes of the tensors that are inputs of CPU ops -------------------------------------------------

_MAX_ELEMENTS = 1 << 60
_MAX_DIMS = 64
_NOTHING = bytes(NOTHING)

ITEM_BYTES = {
    **dict.fromkeys(("bool", "char", "signed char", "unsigned char"), 1),
    **dict.fromkeys(("short", "short int", "unsigned short", "c10::Half", "c10::BFloat16"), 2),
    **dict.fromkeys(("int", "unsigned int", "float"), 4),
    **dict.fromkeys(("long", "long int", "unsigned long", "double", "c10::complex<float>"), 8),
    "c10::complex<double>": 16,
}
"""Bytes of an element, by PyTorch's names of types."""
_NO_TENSOR = frozenset(
    ("Scalar", "ScalarList", "Int", "Bool", "Double", "IntList", "DoubleList", "BoolList", "None", "String", "Device")
    + ("nullptr (uninitialized)",)
)


class Signature(msgspec.Struct, frozen=True):
    """The inputs of an op, as far as they are known."""

    elements: tuple[int, ...]
    """Number of elements of each tensor, including tensors in lists."""
    first: int
    """Number of elements of the first input; -1 where it is not a tensor."""
    first_type: str
    """Element type of the first input, such as `float`."""
    whole: bool
    """True if the shape of every named tensor is known. PyTorch leaves out the shapes of long lists."""
    unnamed: bool
    """True if an input has no named type: usually no value at all, but also a list of optional tensors."""


class Inputs(msgspec.Struct, frozen=True, eq=False):
    """The inputs of all CPU ops of a trace."""

    number: I32
    """Index in `signatures` for each row of `Trace.cpu_ops`; -1 where unknown."""
    signatures: tuple[Signature, ...]


def read_inputs(trace: Trace, events: HostEvents | None = None) -> Inputs | None:
    """Return the inputs of a trace's CPU ops; None where they were not recorded or the file is missing.

    Ops are left out if another event is now at their place in the file.

    Args:
        trace: The trace.
        events: Some events of the trace, to return their inputs instead.
    """
    ops = trace.cpu_ops if events is None else events
    return _read_inputs(trace, ops) if trace.flags.get("record_shapes") else None


@kept()
def _read_inputs(trace: Trace, ops: HostEvents) -> Inputs | None:
    """Return the inputs; takes as long as reading the trace."""
    number = np.full(len(ops), -1, np.int32)
    # Signatures have numbers by their text, because ops have few distinct ones.
    numbers: dict[tuple[bytes, bytes], int] = {}
    for row, args in read_args(trace, ops, _InputArgs):
        text = bytes(args.dims), bytes(args.types)
        if text[0] != _NOTHING:
            number[row] = numbers.setdefault(text, len(numbers))
    return Inputs(number, tuple(signature(*text) for text in numbers)) if numbers else None


class _InputArgs(Struct, gc=False):
    dims: Raw = msgspec.field(default=NOTHING, name="Input Dims")
    types: Raw = msgspec.field(default=NOTHING, name="Input type")


@lru_cache(maxsize=4096)
def signature(dims: bytes, types: bytes) -> Signature:
    """Return the signature in the `Input Dims` and `Input type` of an op's arguments."""
    nothing = Signature((), -1, "", False, True)
    try:
        shapes, kinds = msgspec.json.decode(dims), msgspec.json.decode(types)
    except UNDECODABLE:
        return nothing
    if not isinstance(shapes, list) or not isinstance(kinds, list) or len(shapes) != len(kinds):
        return nothing
    elements: list[int] = []
    first, whole, unnamed = -1, True, False
    for place, (shape, kind) in enumerate(zip(shapes, kinds, strict=True)):
        if kind in _NO_TENSOR if isinstance(kind, str) else False:
            continue
        if shape == [] and kind not in ITEM_BYTES and not str(kind).startswith("c10::"):
            # An empty shape may also stand for a list that is too long, or that is not described.
            whole &= kind != "TensorList"
            unnamed |= kind != "TensorList"
            continue
        listed = shape if kind == "TensorList" and isinstance(shape, list) else [shape]
        counts = [_elements(count) for count in listed]
        whole &= None not in counts
        elements += [count for count in counts if count is not None]
        if place == 0 and kind != "TensorList" and counts[0] is not None:
            first = counts[0]
    first_type = kinds[0] if kinds and isinstance(kinds[0], str) else ""
    return Signature(tuple(dict.fromkeys(elements)), first, first_type, whole, unnamed)


def _elements(shape: Any) -> int | None:
    """Return the number of elements of a tensor; None where `shape` is not a shape."""
    if not isinstance(shape, list) or len(shape) > _MAX_DIMS:
        return None
    if any(type(size) is not int or not 0 <= size < _MAX_ELEMENTS for size in shape):
        return None
    many = math.prod(shape)
    return many if many < _MAX_ELEMENTS else None
