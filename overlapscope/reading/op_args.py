"""Arguments of some CPU ops or annotations, from a trace file that is read once more.

A Trace does not hold them, because few questions need them and they make up a third of a file's text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from overlapscope.errors import UnreadableTrace
from overlapscope.reading._batch import Batch
from overlapscope.reading._cuts import at_end
from overlapscope.reading._events import NAN, UNDECODABLE
from overlapscope.reading._stream import EventStream
from overlapscope.reading._times import to_ns
from overlapscope.reading.file_names import file_and_part
from overlapscope.reading.files import SourceFile
from overlapscope.trace.model import I64, HostEvents, Trace

T = TypeVar("T", bound=Struct)

_NO_LIMIT = 1 << 62
"""No limit: the file was read once within the user's limit, and is read no further than to the last event."""
_SAME_NS = 1000
"""Starts are compared as doubles, which hold the microseconds of a file to a quarter of a microsecond."""


class _Op(Struct, Generic[T], gc=False):
    name: str = ""
    ts: float = NAN
    args: T | None = None


_raw_events = msgspec.json.Decoder(list[Raw])


class RawBatch(Batch):
    """Events as text."""

    raw: list[Raw] = field(default_factory=list)


class RawEvents(EventStream):
    """The events of a file as text, without those of damaged stretches."""

    def _typed_array(self, array: memoryview) -> tuple[str, Batch]:
        try:
            events = _raw_events.decode(array)
        except UNDECODABLE as error:
            return ("cut" if at_end(str(error), len(array)) else "broken"), Batch()
        return "valid", RawBatch(count=len(events), raw=events)

    def _recover(self, pending: bytes, *, final: bool) -> Batch:
        return Batch(count=super()._recover(pending, final=final).count)


def read_args(trace: Trace, events: HostEvents, kind: type[T]) -> Iterator[tuple[int, T]]:
    """Yield rows of `events`, each with its arguments as a struct of the given kind.

    Events are left out if they have no arguments, if these don't fit the struct, or if another event is now at their
    place in the file. If the file is missing or damaged, nothing more is yielded.
    """
    path, _ = file_and_part(Path(trace.source))
    # A damaged file may raise anything. The arguments found before the error have been checked.
    with suppress(UnreadableTrace, OSError, ValueError, *UNDECODABLE):
        if len(events) and path.is_file():
            yield from _read(SourceFile(path, limit_bytes=_NO_LIMIT), events, trace.base_ns, kind)


def _read(file: SourceFile, events: HostEvents, base_ns: int, kind: type[T]) -> Iterator[tuple[int, T]]:
    by_place = np.argsort(events.place, kind="stable")
    places = events.place[by_place]
    begin = 0
    for batch in RawEvents(file).batches():
        low, high = np.searchsorted(places, (begin, begin + batch.count)).tolist()
        if isinstance(batch, RawBatch) and high > low:
            texts = [batch.raw[at] for at in (places[low:high] - begin).tolist()]
            yield from _matching(texts, events, by_place[low:high], base_ns, kind)
        begin += batch.count
        if high == len(places):
            return


def _matching(texts: list[Raw], events: HostEvents, rows: I64, base_ns: int, kind: type[T]) -> Iterator[tuple[int, T]]:
    """Yield the arguments of the events whose name and start are as expected."""
    op_type: Any = _Op[kind]  # type: ignore[valid-type]
    try:
        decoded = msgspec.json.decode(b"[" + b",".join(texts) + b"]", type=list[op_type])
    except UNDECODABLE:
        decoded = [_decoded(text, op_type) for text in texts]
    starts = to_ns(np.array([op.ts for op in decoded])) + base_ns
    same = np.abs(starts - events.start_ns[rows]) <= _SAME_NS
    for op, row, name_id in zip(decoded, rows.tolist(), np.where(same, events.name_id[rows], -1), strict=True):
        if name_id >= 0 and op.args is not None and op.name == events.names[name_id]:
            yield row, op.args


def _decoded(event: Raw, op_type: Any) -> Any:
    with suppress(*UNDECODABLE):
        return msgspec.json.decode(event, type=op_type)
    return _Op()
