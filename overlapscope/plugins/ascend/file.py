"""Traces from `trace_view.json`, the Chrome trace that torch_npu's profiler writes for Huawei's Ascend NPUs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from overlapscope.base.marks import METADATA, RECORDER
from overlapscope.errors import UnreadableTrace
from overlapscope.reading.file_names import rank_in_name
from overlapscope.reading.files import SourceFile, read_whole
from overlapscope.reading.source import ReadRequest
from overlapscope.trace.model import Trace

if TYPE_CHECKING:
    from overlapscope.plugins.ascend.rows import AscendEvent
    from overlapscope.reading._events import Losses

_LARGEST_BYTES: Final = 2 << 30
"""Maximum size of a file. Unlike Kineto's files, such a file is held in memory as a whole."""
_MOST_EVENTS: Final = 16 << 20
"""Without a limit, a hostile file could have an event in every two bytes, and take fifty times its size in memory."""
_PROFILER_INFO: Final = re.compile(r"profiler_info_(\d{1,7})\.json")
"""File that torch_npu writes in the directory above, with the rank in its name."""


def read(path: Path, request: ReadRequest) -> Trace:
    """Return the Trace in a file. Raises UnreadableTrace."""
    from overlapscope.plugins.ascend.rows import rows_of
    from overlapscope.reading import kineto
    from overlapscope.reading._batch import batch_of_named
    from overlapscope.reading._columns import EventColumns
    from overlapscope.reading._progress import ReadingBar

    file = SourceFile(path, limit_bytes=min(request.limit_bytes, _LARGEST_BYTES))
    with ReadingBar(str(path), file.packed_bytes, request.progress) as bar:
        events, losses = _decoded(path, read_whole(file, bar.at))
    rows, devices = rows_of(events)
    columns = EventColumns(str(path))
    columns.add(batch_of_named(rows))
    losses.truncated |= file.broken is not None
    return kineto.assemble(str(path), columns, _metadata(path, devices), losses, file.unpacked_bytes)


def _decoded(path: Path, text: bytes) -> tuple[list[AscendEvent], Losses]:
    """Return the readable events of a file, and its losses.

    Raises:
        UnreadableTrace: No event can be read.
    """
    import msgspec

    from overlapscope.reading._stream import boundaries

    # Most events have arguments, so they have two opening braces each.
    if text.count(b"{") > 2 * _MOST_EVENTS:
        raise UnreadableTrace(path, "has more events than any profiler records; record fewer steps.")
    try:
        return _events(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        damage = error
    for end in boundaries(text) if not text.rstrip().endswith(b"]") else ():
        try:
            events, losses = _events(text[:end] + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # The place lay within an event.
            continue
        losses.truncated = True
        losses.lost_bytes += len(text) - end
        return events, losses
    events, losses = _repaired(text)
    if not events:
        raise UnreadableTrace(path, f"is damaged ({damage}); copy or record it again.")
    return events, losses


def _repaired(text: bytes) -> tuple[list[AscendEvent], Losses]:
    """Return the events of text that is not quite JSON."""
    import msgspec

    from overlapscope.plugins.ascend.rows import AscendEvent
    from overlapscope.reading._events import Losses
    from overlapscope.reading._repair import recover_as

    def event(value: Any) -> tuple[AscendEvent, bool] | None:
        try:
            return msgspec.json.decode(msgspec.json.encode(value), type=AscendEvent), False
        except (msgspec.MsgspecError, UnicodeError, OverflowError, RecursionError):
            return None

    losses = Losses()
    inside = text.decode("utf-8", "surrogateescape").lstrip().removeprefix("[")
    recovered = recover_as(event, inside, losses, final=True)
    losses.truncated = recovered.rest is not None
    return recovered.events, losses


def _events(text: bytes) -> tuple[list[AscendEvent], Losses]:
    """Return the events of a JSON array, and as lost those with a value of an unexpected type."""
    import msgspec

    from overlapscope.plugins.ascend.rows import AscendEvent
    from overlapscope.reading._events import Losses

    losses = Losses()
    try:
        return msgspec.json.decode(text, type=list[AscendEvent]), losses
    except (msgspec.ValidationError, UnicodeDecodeError):
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
    events, decode = [], msgspec.json.Decoder(AscendEvent).decode
    for item in items:
        try:
            events.append(decode(item))
        except (msgspec.DecodeError, UnicodeDecodeError):
            losses.lose(bytes(item).decode("utf-8", "surrogateescape"))
    return events, losses


def _metadata(path: Path, devices: list[int]) -> dict[str, Any]:
    """Return the recording's metadata as Kineto would write them."""
    return {
        "deviceProperties": [{"id": device, "name": "Ascend NPU"} for device in devices],
        "distributedInfo": {"rank": _rank(path)},
        METADATA: {RECORDER: "torch_npu"},
    }


def _rank(path: Path) -> int | None:
    """Return the rank in the name of the file, or of torch_npu's file beside its directory."""
    stated = rank_in_name(str(path))
    if stated is not None or path.parent.name != "ASCEND_PROFILER_OUTPUT":
        return stated
    beside = [_PROFILER_INFO.fullmatch(file.name) for file in path.parent.parent.glob("profiler_info_*.json")]
    ranks = [int(match[1]) for match in beside if match is not None]
    return ranks[0] if len(ranks) == 1 else None
