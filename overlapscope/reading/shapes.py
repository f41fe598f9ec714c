"""Sizes of the tensors that are inputs of CPU ops, from a trace file.

A Trace does not hold them, because few questions need them and shapes make up a third of a file's text. So the file is
read again when they are needed. If that fails for any reason, the inputs are unknown, without an error.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from overlapscope.base.kept import kept
from overlapscope.errors import UnreadableTrace
from overlapscope.reading._batch import Batch
from overlapscope.reading._cuts import at_end
from overlapscope.reading._events import NAN, NOTHING, UNDECODABLE
from overlapscope.reading._stream import EventStream
from overlapscope.reading._times import to_ns
from overlapscope.reading.files import SourceFile
from overlapscope.trace.model import I32, I64, HostEvents, Trace

_NO_LIMIT = 1 << 62
"""No limit: the file was read once within the user's limit, and is read no further than to the last op."""
_SAME_NS = 1000
"""Starts are compared as doubles, which hold the microseconds of a file to a quarter of a microsecond."""
_MOST_ELEMENTS = 1 << 60
_MOST_DIMS = 64
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


def read_inputs(trace: Trace) -> Inputs | None:
    """Return the inputs of a trace's CPU ops; None where they were not recorded or the file is missing.

    Ops are left out if another event is now at their place in the file.
    """
    return _read(trace.cpu_ops, Path(trace.source), trace.base_ns) if trace.flags.get("record_shapes") else None


@kept()
def _read(ops: HostEvents, path: Path, base_ns: int) -> Inputs | None:
    """Return the inputs; takes as long as reading the trace."""
    reading = _Reading(ops, base_ns, np.full(len(ops), -1, np.int32))
    # A damaged file may raise anything. The inputs found before the error have been checked.
    with suppress(UnreadableTrace, OSError, ValueError, *UNDECODABLE):
        if len(ops) and path.is_file():
            reading.read(SourceFile(path, limit_bytes=_NO_LIMIT))
    return reading.inputs() if (reading.number >= 0).any() else None


class _InputArgs(Struct, gc=False):
    dims: Raw = msgspec.field(default=NOTHING, name="Input Dims")
    types: Raw = msgspec.field(default=NOTHING, name="Input type")


class _Op(Struct, gc=False):
    name: str = ""
    ts: float = NAN
    args: _InputArgs | None = None


_raw_events = msgspec.json.Decoder(list[Raw])
_ops = msgspec.json.Decoder(list[_Op])


class _RawBatch(Batch):
    raw: list[Raw] = field(default_factory=list)


class _RawEvents(EventStream):
    """The events of a file as text, without those of damaged stretches."""

    def _typed_array(self, array: memoryview) -> tuple[str, Batch]:
        try:
            events = _raw_events.decode(array)
        except UNDECODABLE as error:
            return ("cut" if at_end(str(error), len(array)) else "broken"), Batch()
        return "valid", _RawBatch(count=len(events), raw=events)

    def _recover(self, pending: bytes, *, final: bool) -> Batch:
        return Batch(count=super()._recover(pending, final=final).count)


class _Reading(msgspec.Struct):
    ops: HostEvents
    base_ns: int
    number: I32
    known: dict[tuple[bytes, bytes], int] = field(default_factory=dict)
    """Signatures by their text, because ops have few distinct ones."""

    def read(self, file: SourceFile) -> None:
        by_place = np.argsort(self.ops.place, kind="stable")
        places = self.ops.place[by_place]
        begin = 0
        for batch in _RawEvents(file).batches():
            low, high = np.searchsorted(places, (begin, begin + batch.count)).tolist()
            if isinstance(batch, _RawBatch) and high > low:
                self._take([batch.raw[at] for at in (places[low:high] - begin).tolist()], by_place[low:high])
            begin += batch.count
            if high == len(places):
                return

    def _take(self, events: list[Raw], rows: I64) -> None:
        try:
            decoded = _ops.decode(b"[" + b",".join(events) + b"]")
        except UNDECODABLE:
            decoded = [_decoded(event) for event in events]
        starts = to_ns(np.array([op.ts for op in decoded])) + self.base_ns
        same = np.abs(starts - self.ops.start_ns[rows]) <= _SAME_NS
        for op, row, name_id in zip(decoded, rows.tolist(), np.where(same, self.ops.name_id[rows], -1), strict=True):
            if name_id >= 0 and op.args is not None and op.name == self.ops.names[name_id]:
                text = bytes(op.args.dims), bytes(op.args.types)
                if text[0] != _NOTHING:
                    self.number[row] = self.known.setdefault(text, len(self.known))

    def inputs(self) -> Inputs:
        return Inputs(self.number, tuple(signature(*text) for text in self.known))


def _decoded(event: Raw) -> _Op:
    with suppress(*UNDECODABLE):
        return msgspec.json.decode(event, type=_Op)
    return _Op()


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
    if not isinstance(shape, list) or len(shape) > _MOST_DIMS:
        return None
    if any(type(size) is not int or not 0 <= size < _MOST_ELEMENTS for size in shape):
        return None
    many = math.prod(shape)
    return many if many < _MOST_ELEMENTS else None
