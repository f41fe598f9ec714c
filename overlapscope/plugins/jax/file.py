"""Traces from recordings of `jax.profiler`.

They are XLA's protocol buffer (`*.xplane.pb`), or the Chrome trace beside it (`*.trace.json.gz`), which has at most a
million events and fewer details.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from overlapscope.base.marks import FRAMEWORK, METADATA, RECORDER
from overlapscope.errors import UnreadableTrace
from overlapscope.plugins.jax import XSPACE
from overlapscope.reading.files import SourceFile
from overlapscope.reading.source import ReadRequest
from overlapscope.trace.model import Trace

if TYPE_CHECKING:
    from overlapscope.plugins.jax.xplane import XlaRecording

_OTHER_DEVICE: Final = re.compile(r"/device:(?!GPU)(\w+):\d+")
_DROPPED: Final = re.compile(r"(\d{1,15}) (?:\w+ ){0,3}events? dropped|dropped (\d{1,15})", re.IGNORECASE)
_LARGEST_BYTES: Final = 2 << 30
"""Maximum size of a protocol buffer. Such a file is held in memory as a whole."""
_ENVIRONMENT: Final = "Task Environment"
_VERSIONS: Final = frozenset({"jax_version", "jaxlib_version", "cuda_runtime_version", "cuda_driver_version"})
_RELATIVE_NS: Final = 1 << 57
"""Smaller times count from the beginning of the recording; as times since 1970 they would be before 1975."""


def read(path: Path, request: ReadRequest) -> Trace:
    """Return the Trace in a file. Raises UnreadableTrace."""
    from overlapscope.plugins.jax.rows import batch_of
    from overlapscope.plugins.jax.xplane import JsonEvent, recording_of
    from overlapscope.reading import kineto
    from overlapscope.reading._columns import EventColumns
    from overlapscope.reading._events import Losses
    from overlapscope.reading._progress import ReadingBar
    from overlapscope.reading._stream import events_as

    file = SourceFile(path, limit_bytes=request.limit_bytes)
    with ReadingBar(str(path), file.packed_bytes, request.progress) as bar:
        if re.match(XSPACE, file.head()):
            recording = _of_buffer(file, bar.at)
            dropped = [match for text in recording.warnings for match in _DROPPED.finditer(text)]
            losses = Losses(file.broken is not None, lost_events=sum(int(match[1] or match[2]) for match in dropped))
            for text in recording.warnings:
                losses.remember(f"the profiler says: {text}")
        else:
            events, losses = events_as(JsonEvent, file, bar.at, strict=False)
            recording = recording_of(events)
    others = {match[1] for line in recording.lines if (match := _OTHER_DEVICE.search(line.plane))}
    if others and not any("/device:GPU:" in line.plane for line in recording.lines):
        raise UnreadableTrace(
            path, f"was recorded on a {sorted(others)[0]}; overlapscope reads recordings of GPUs and of CPUs."
        )
    columns = EventColumns(str(path))
    columns.add(batch_of(recording.lines))
    trace = kineto.assemble(str(path), columns, _metadata(recording), losses, file.unpacked_bytes)
    began, ended = _span(recording)
    return replace(trace, start_ns=began, end_ns=ended)


def _of_buffer(file: SourceFile, at: Callable[[int], None]) -> XlaRecording:
    """Return the recording in a protocol buffer.

    Raises:
        UnreadableTrace: The buffer is too large, cut off or damaged.
    """
    from overlapscope.plugins.jax.xplane import NotAnXSpace, read_xspace

    file.limit_bytes = min(file.limit_bytes, _LARGEST_BYTES)
    blocks = []
    for block in file:
        blocks.append(block)
        at(file.packed_bytes_read)
    try:
        return read_xspace(b"".join(blocks))
    except NotAnXSpace as error:
        raise UnreadableTrace(
            file.path,
            f"is cut off or damaged ({error}); copy or record it again, or name the .trace.json.gz beside it.",
        ) from None


def _metadata(recording: XlaRecording) -> dict[str, Any]:
    """Return the recording's metadata as Kineto would write them."""
    planes = recording.plane_stats
    names = {plane: about.get("gpu_device_name") for plane, about in planes.items() if plane.startswith("/device:GPU:")}
    began = _environment_stat(recording, "profile_start_time")
    relative = all(event.start_ns < _RELATIVE_NS for line in recording.lines for event in line.events[:1])
    return {
        **{key: value for key, value in planes.get("/host:metadata", {}).items() if key in _VERSIONS},
        "baseTimeNanoseconds": began if began > 0 and relative else 0,
        "deviceProperties": [{"id": plane.rpartition(":")[2], "name": name} for plane, name in names.items()],
        METADATA: {RECORDER: "jax", FRAMEWORK: "jax"},
    }


def _span(recording: XlaRecording) -> tuple[int, int]:
    """Return when recording began and ended; -1 where the file does not state it."""
    began, ended = _environment_stat(recording, "profile_start_time"), _environment_stat(recording, "profile_stop_time")
    return (began, ended) if 0 < began < ended else (-1, -1)


def _environment_stat(recording: XlaRecording, name: str) -> int:
    value = recording.plane_stats.get(_ENVIRONMENT, {}).get(name)
    return value if isinstance(value, int) else -1
