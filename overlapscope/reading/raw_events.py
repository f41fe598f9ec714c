"""The events of a file as text, or as structs of any type."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from overlapscope.errors import UnreadableTrace
from overlapscope.reading._events import NOTHING, UNDECODABLE, Batch, Losses, convert
from overlapscope.reading._stream import EventStream, at_end
from overlapscope.reading.files import SourceFile

_raw_events = msgspec.json.Decoder(list[Raw])
_MAX_EVENTS = 16 << 20
"""Without a limit, a hostile file could have an event in every two bytes, and take fifty times its size in memory."""
_T = TypeVar("_T", bound=Struct)


def _as_text(value: Any) -> tuple[Raw, bool] | None:
    """Return the text of an event that was recovered from damaged text; `null` where JSON can't hold it."""
    if convert(value) is None:
        return None
    with suppress(TypeError, ValueError, OverflowError, RecursionError):
        return Raw(msgspec.json.encode(value)), False
    return NOTHING, False


class RawEvents(EventStream):
    """The events of a file as text."""

    _repairable = staticmethod(_as_text)
    _batch_of = staticmethod(lambda raw: Batch(count=len(raw), raw=raw))

    def _typed_array(self, array: memoryview) -> tuple[str, Batch]:
        try:
            return "valid", self._batch_of(_raw_events.decode(array))
        except UNDECODABLE as error:
            return ("cut" if at_end(str(error), len(array)) else "broken"), Batch()


def decoded(raw: list[Raw], kind: type[_T], *, strict: bool = True) -> list[_T | None]:
    """Return events as structs; None for those that don't fit. Unless `strict`, numbers may be texts."""
    try:
        return [*msgspec.json.decode(b"[" + b",".join(raw) + b"]", type=list[kind], strict=strict)]  # type: ignore[valid-type]
    except UNDECODABLE:
        return [_decoded_alone(event, kind, strict) for event in raw]


def _decoded_alone(event: Raw, kind: type[_T], strict: bool) -> _T | None:
    with suppress(*UNDECODABLE):
        return msgspec.json.decode(event, type=kind, strict=strict)
    return None


def events_as(
    kind: type[_T], file: SourceFile, at: Callable[[int], None], *, strict: bool = True
) -> tuple[list[_T], Losses]:
    """Return all events of a file as structs, and its losses, among which are events that don't fit.

    Args:
        kind: Type of the structs.
        file: The file.
        at: Function to call with the number of bytes read so far.
        strict: Whether numbers must not be texts.

    Raises:
        UnreadableTrace: The file has no readable event, or too many.
    """
    stream = RawEvents(file)
    events: list[_T] = []
    for batch in stream.batches():
        for raw, event in zip(batch.raw, decoded(batch.raw, kind, strict=strict), strict=True):
            if event is None:
                stream.losses.lose(bytes(raw).decode("utf-8", "surrogateescape"))
            else:
                events.append(event)
        if len(events) > _MAX_EVENTS:
            raise UnreadableTrace(file.path, "has more events than any profiler records; record fewer steps.")
        at(file.packed_bytes_read)
    return events, stream.losses
