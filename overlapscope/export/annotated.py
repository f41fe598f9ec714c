"""A copy of a trace with additional tracks for the results of the analysis, for Perfetto.

Each device gets a process with three threads: `buckets` (the parts of the window), `causes` (why each exposed copy and
idle piece exists) and `steps`. The file's text stays unchanged, however it is packed or damaged. Only a block of it is
in memory at a time.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.groups import sites_of_ops
from overlapscope.analysis.pieces import Pieces
from overlapscope.base.intervals import I64, Intervals, cut, intersect, subtract
from overlapscope.base.words import clean
from overlapscope.catalog.causes import COMM_CAUSES, COPY_CAUSES, IDLE_CAUSES
from overlapscope.errors import UnreadableTrace
from overlapscope.export import chrome_trace
from overlapscope.export.chrome_trace import metadata_event, microseconds
from overlapscope.reading.files import SourceFile
from overlapscope.reading.source import KINETO, source_of
from overlapscope.trace.host import Sites, sites
from overlapscope.trace.model import Trace

CATEGORY = "overlapscope"
"""Category of our events, which every reader of traces ignores, including ours."""
THREADS = ("buckets", "causes", "steps")

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BLANK = b" \t\r\n"
_MAX_HEADER_BYTES = 64 << 20

_FIRST_ID = 1_900_000_000
"""First of our ids of processes and threads, far above those of Linux and of devices."""
_GZIP_LEVEL = 1
_EVENTS_AT_ONCE = 5_000


def write(analysis: TraceAnalysis, path: Path) -> Iterator[bytes]:
    """Yield the annotated copy of the analyzed file, as gzip in blocks.

    Raises:
        UnreadableTrace: The file can no longer be read.
    """
    blocks = iter(_text(analysis, path))
    head, rest = _opening(path, blocks)
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
    # Our events need a comma after them if the file has any.
    comma = b"" if rest.strip(_BLANK)[:1] in (b"", b"]") else b",\n"
    pieces = chain([head], _events(analysis), [comma, rest], blocks)
    yield from filter(None, map(packer.compress, pieces))
    yield packer.flush()


# -- The file ---


def _text(analysis: TraceAnalysis, path: Path) -> Iterable[bytes]:
    """Return the blocks of the file, or, for sources other than Kineto, of the trace in Kineto's format."""
    if source_of(path) is KINETO:
        # The file was read before, so its size is not a reason to refuse it now.
        return map(bytes, SourceFile(path, limit_bytes=sys.maxsize))
    return chrome_trace.blocks(analysis.trace, packed=False)


def _opening(path: Path, blocks: Iterator[bytes]) -> tuple[bytes, bytes]:
    """Return the text up to and including the bracket that opens the events array, and the text read after it."""
    head = b""
    for block in blocks:
        head += block
        begun = head.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)
        if begun.startswith(b"["):
            place = len(head) - len(begun) + 1
        elif (match := _ARRAY.search(head)) is not None:
            place = match.end()
        elif len(head) > _MAX_HEADER_BYTES:
            break
        else:
            continue
        rest = head[place:]
        while not rest.strip(_BLANK) and (block := next(blocks, b"")):
            rest += block
        return head[:place], rest
    raise UnreadableTrace(f"{path}: no longer has an events array; was it changed after it was opened?")


# -- Our events ---


def _events(analysis: TraceAnalysis) -> Iterator[bytes]:
    """Yield our events as JSON, separated by commas."""
    events = chain.from_iterable(
        _device(analysis.trace, device, _FIRST_ID + number * (1 + len(THREADS)))
        for number, device in enumerate(analysis.devices)
    )
    separator = b"\n"
    while some := list(islice(events, _EVENTS_AT_ONCE)):
        yield separator + b",\n".join(some)
        separator = b",\n"


def _device(trace: Trace, device: DeviceAnalysis, pid: int) -> Iterator[bytes]:
    tracks = [_Track(trace.base_ns, pid, pid + 1 + number) for number in range(len(THREADS))]
    yield _metadata("process_name", pid, pid, name=f"overlapscope device {device.result.device}")
    yield _metadata("process_sort_index", pid, pid, sort_index=-1)
    for number, (track, name) in enumerate(zip(tracks, THREADS, strict=True)):
        yield _metadata("thread_name", pid, track.tid, name=name)
        yield _metadata("thread_sort_index", pid, track.tid, sort_index=number)
    buckets, causes, steps = tracks
    yield from _buckets(device, buckets)
    yield from _causes(trace, device, causes)
    row, start, end = cut(device.steps.start_ns, device.steps.end_ns, device.windows)
    for which, begin, stop in zip(row.tolist(), start.tolist(), end.tolist(), strict=True):
        yield steps.piece(trace.annotations.name(int(device.steps.row[which])), begin, stop)


def _metadata(what: str, pid: int, tid: int, **args: str | int) -> bytes:
    return metadata_event(what, pid, tid, **args).encode()


class _Track(Struct, frozen=True):
    """One of the added threads."""

    base_ns: int
    pid: int
    tid: int

    def piece(self, name: str, start_ns: int, end_ns: int, **args: str | int | None) -> bytes:
        """Return an event as JSON, without arguments that are None."""
        stated = {"ns": end_ns - start_ns} | {key: value for key, value in args.items() if value is not None}
        return (
            f'{{"ph":"X","cat":"{CATEGORY}","name":{json.dumps(clean(name))},"pid":{self.pid},"tid":{self.tid},'
            f'"ts":{microseconds(start_ns - self.base_ns)},"dur":{microseconds(end_ns - start_ns)},'
            f'"args":{json.dumps(stated)}}}'
        ).encode()


def _buckets(device: DeviceAnalysis, track: _Track) -> Iterator[bytes]:
    """Yield the window in pieces without gaps or overlaps. A hidden copy belongs to the bucket that hides it."""
    timeline = device.timeline
    parts: list[tuple[str, str, Intervals]] = [
        ("compute", "compute", subtract(timeline.compute, timeline.copy)),
        ("hidden copy", "compute", intersect(timeline.compute, timeline.copy)),
        ("exposed comm", "exposed comm", subtract(timeline.exposed_comm, timeline.copy)),
        ("hidden copy", "exposed comm", intersect(timeline.exposed_comm, timeline.copy)),
        ("exposed copy", "exposed copy", timeline.exposed_copy),
        ("exposed other", "exposed other", timeline.exposed_other),
        ("idle", "idle", timeline.idle),
    ]
    for name, bucket, when in parts:
        inside = intersect(when, device.windows)
        for start, end in zip(inside.starts.tolist(), inside.ends.tolist(), strict=True):
            yield track.piece(name, start, end, bucket=bucket)


def _causes(trace: Trace, device: DeviceAnalysis, track: _Track) -> Iterator[bytes]:
    """Yield the pieces of exposed copies, exposed communication and idle time, with what is known of their place."""
    ops = device.timeline.ops
    copies, comm = device.exposed.inside(device.windows), device.exposed_comm.inside(device.windows)
    idle = device.idle.inside(device.windows)
    kinds: tuple[tuple[str, Pieces, Sequence[str], Sites, str, I64 | None], ...] = (
        ("exposed copy", copies, COPY_CAUSES, sites_of_ops(trace, ops.take(copies.op), copies.call), "copy", copies.op),
        ("exposed comm", comm, COMM_CAUSES, sites_of_ops(trace, ops.take(comm.op), comm.call), "collective", comm.op),
        ("idle", idle, IDLE_CAUSES, sites(trace, idle.call, idle.thread, idle.host_ns), "", None),
    )
    for what, pieces, causes, where, role, op in kinds:
        for number, (start, end) in enumerate(zip(pieces.start_ns.tolist(), pieces.end_ns.tolist(), strict=True)):
            place = {} if op is None else {role: ops.name(int(op[number]))}
            place |= {word: text for word, text in asdict(where.site_at(trace, number)).items() if text is not None}
            name = f"{what}: {causes[pieces.cause[number]]}"
            yield track.piece(name, start, end, **{word: clean(text) for word, text in place.items()})
