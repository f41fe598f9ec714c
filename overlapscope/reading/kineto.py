"""Traces from Kineto's Chrome traces (`torch.profiler`'s `export_chrome_trace`).

The file is read once, in blocks, so memory holds the columns and a block of the text (`_stream`, `_columns`).
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from overlapscope.base.marks import EVENT_NOTES, STEP
from overlapscope.base.memory import usable_cores
from overlapscope.errors import UnreadableTrace
from overlapscope.reading._columns import EventColumns
from overlapscope.reading._events import EventTable, Losses, valid_text
from overlapscope.reading._metadata import device_names, flags, integer, recorded_fields, versions
from overlapscope.reading._progress import Progress, ReadingBar
from overlapscope.reading._stream import EventStream
from overlapscope.reading._tables import Finished
from overlapscope.reading._times import LARGEST_TOTAL_NS, UNREADABLE, is_possible, recording
from overlapscope.reading.file_names import file_and_part, rank_in_name, shown_source
from overlapscope.reading.files import LIMIT_BYTES, SourceFile, chosen_part, place
from overlapscope.reading.source import ReadRequest
from overlapscope.trace.model import Damage, DeviceAnnotations, HostEvents, Index, Syncs, Trace

_LARGEST_BASE_NS = 1 << 62
_OWN_HEADER = re.compile(rb"\s*\{\s*\n")
_OWN_EVENT = re.compile(rb'\{\s*\n\s*"(?:ph|name)": "[^"\n]*", "')
"""Layout of events that Kineto writes itself: several fields in a line, but not all of them."""
_MAX_UNKNOWN = 1_000_000
"""Maximum events of kinds that torch.profiler doesn't record before the first of those that it does."""
_FOREIGN = (
    "has no event of a kind that torch.profiler records, so another program wrote it; pass a Chrome trace of "
    "torch.profiler (`export_chrome_trace`)."
)
_MIN_SHARED_BYTES = 32 << 20
"""Plain files of a smaller size are read before a thread could start."""
_MIN_SHARED_PACKED_BYTES = 2 << 20
_LOOKED_THROUGH_BYTES = 16 << 20
"""Bytes of a file of another layout to look through for several processes. Reading it finds those that come later."""


def read(
    path: str | Path, *, limit_bytes: int = LIMIT_BYTES, progress: Progress = True, threads: int | None = None
) -> Trace:
    """Return the Trace in a file of JSON, plain or packed by gzip or zstd.

    Times are `baseTimeNanoseconds` + `ts`, exact to the nanosecond. A damaged file is read as far as possible, and
    `Trace.damage` describes the losses.

    Args:
        path: Path of the file.
        limit_bytes: Maximum unpacked size.
        progress: Whether to show a bar on stderr if stderr is a terminal and reading takes over a second; or a function
            to call instead with the bytes read so far and in total.
        threads: Number of threads, which doesn't change the Trace; by default one per usable core for a large file.

    Raises:
        UnreadableTrace: The file has no readable trace.
    """
    located, _ = file_and_part(Path(path))
    file = SourceFile(located, limit_bytes=limit_bytes)
    if threads is None:
        is_large = file.packed_bytes >= (_MIN_SHARED_BYTES if file.plain else _MIN_SHARED_PACKED_BYTES)
        threads = usable_cores() if is_large else 1
    columns = EventColumns(str(path))
    stream = EventStream(file, threads)
    with closing(stream.batches()) as batches, ReadingBar(str(path), file.packed_bytes, progress) as bar:
        for batch in batches:
            columns.add(batch)
            if columns.events > _MAX_UNKNOWN and not columns.parts:
                raise stream.unreadable(_FOREIGN)
            bar.at(file.packed_bytes_read)
    if columns.events and not columns.parts and not columns.markers and "schemaVersion" not in stream.metadata:
        raise stream.unreadable(_FOREIGN)
    count, part = _keep_process(Path(path), columns, limit_bytes)
    trace = assemble(str(path), columns, stream.metadata, stream.losses, file.unpacked_bytes)
    _check_steps(path, trace)
    # The metadata are those of one of the processes, so the others' ranks are not known from them.
    return replace(trace, rank=part) if count > 1 and rank_in_name(located.name) is None else trace


def read_requested(path: Path, request: ReadRequest) -> Trace:
    """Return the Trace in a file, read as requested. Raises UnreadableTrace."""
    return read(path, limit_bytes=request.limit_bytes, progress=request.progress)


def _keep_process(path: Path, columns: EventColumns, limit_bytes: int) -> tuple[int, int]:
    """Keep only the rows of the process that a path names.

    Returns:
        The number of processes in the file, and the number of the one kept.

    Raises:
        UnreadableTrace: The path names none of several, or they can't be told apart.
    """
    of_event = None
    if len(columns.callers) > 1:
        from overlapscope.reading._processes import processes

        of_event = processes(path, place(file_and_part(path)[0], limit_bytes), limit_bytes)
        if len(of_event) != columns.events:
            raise UnreadableTrace(
                path, "holds the events of several processes and is damaged; name the traces that it was made of."
            )
    count = 1 if of_event is None else int(of_event.max()) + 1
    part = chosen_part(path, count)
    if of_event is not None and count > 1:
        columns.keep(of_event == part)
    return count, part


def _check_steps(path: str | Path, trace: Trace) -> None:
    """Check that each step was recorded once.

    Raises:
        UnreadableTrace: One occurs again, at another time or in another thread.
    """
    notes = trace.annotations
    first: dict[int, int] = {}
    for row in np.flatnonzero(notes.named(lambda name: name.startswith(STEP))).tolist():
        earlier = first.setdefault(int(notes.name_id[row]), row)
        # PyTorch may note a step both as a range and as an operator.
        is_same = notes.thread[row] == notes.thread[earlier] and notes.start_ns[row] < notes.end_ns[earlier]
        if row != earlier and not is_same:
            raise UnreadableTrace(
                path,
                f"has {notes.name(row)} more than once, so it holds several recordings; name the file of each.",
            )


def parts(path: Path) -> int:
    """Return the number of processes in a file; 1 for a file in the layout that Kineto writes itself."""
    file = SourceFile(path)
    head = file.head()
    if _OWN_EVENT.search(head) or (b'"ph"' not in head and _OWN_HEADER.match(head)):
        return 1
    # Only files of another layout need it.
    from overlapscope.reading._processes import is_label, processes

    callers: set[int | str] = set()
    with suppress(UnreadableTrace):
        for batch in EventStream(file).batches():
            callers |= batch.callers
            if file.unpacked_bytes > _LOOKED_THROUGH_BYTES and len(callers) < 2 and not any(map(is_label, callers)):
                return 1
        return int(processes(path, place(path, LIMIT_BYTES), LIMIT_BYTES).max()) + 1 if len(callers) > 1 else 1
    # Reading the file reports the error.
    return 1


def assemble(
    source: str, columns: EventColumns, metadata: dict[str, Any], losses: Losses, unpacked_bytes: int
) -> Trace:
    """Return the Trace of all rows of a file, its metadata in Kineto's format, and the losses while reading.

    Raises:
        UnreadableTrace: The times are nonsense.
    """
    base_ns = integer(metadata.get("baseTimeNanoseconds")) or 0
    if abs(base_ns) > _LARGEST_BASE_NS:
        base_ns = 0
    finished = Finished(columns, base_ns)
    span = _stated_span(finished, columns.markers)
    work = finished.work()
    start_ns = finished.start_ns[work]
    begin_ns, end_ns = recording(start_ns[start_ns > 0], span)
    damage = _damage(source, finished, work, losses, columns.repaired, begin_ns, end_ns)
    stated = span is not None and (begin_ns, end_ns) == span
    distributed = metadata.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    rank = _ordinal(distributed.get("rank"))
    cpu_ops = finished.table(HostEvents, EventTable.CPU)
    annotations = finished.table(HostEvents, EventTable.ANNOTATION)
    syncs = finished.table(Syncs, EventTable.SYNC)
    if any(name.startswith(EVENT_NOTES) for name in finished.names):
        from overlapscope.reading._event_notes import apply

        cpu_ops, annotations, syncs = apply(cpu_ops, annotations, finished.calls, syncs)
    return Trace(
        source=shown_source(source),
        names=finished.names,
        gpu_ops=finished.gpu_ops(),
        runtime_calls=finished.calls,
        cpu_ops=cpu_ops,
        annotations=annotations,
        python_frames=finished.table(HostEvents, EventTable.PYTHON),
        overheads=finished.table(HostEvents, EventTable.OVERHEAD),
        syncs=syncs,
        device_annotations=finished.table(DeviceAnnotations, EventTable.DEVICE_ANNOTATION),
        collectives=finished.collectives(),
        device_names=_device_names(metadata, finished.mtias()),
        rank=rank if rank is not None else rank_in_name(source),
        world_size=_ordinal(distributed.get("world_size")),
        process_groups=_ordinal(distributed.get("pg_count")),
        start_ns=begin_ns + base_ns if stated else -1,
        end_ns=end_ns + base_ns if stated else -1,
        versions=versions(metadata, distributed),
        flags=flags(metadata),
        damage=damage,
        base_ns=base_ns,
        unpacked_bytes=unpacked_bytes,
        **recorded_fields(metadata),
    )


def _device_names(metadata: dict[str, Any], mtias: set[int]) -> dict[int, str]:
    """Return the names of devices. Meta's MTIAs state their generation at most, such as `ARTEMIS`."""
    names = device_names(metadata.get("deviceProperties"))
    return names | {device: f"MTIA {names.get(device, '')}".rstrip() for device in mtias}


def _damage(
    source: str, finished: Finished, work: Index, losses: Losses, repaired: int, begin_ns: int, end_ns: int
) -> Damage:
    """Return the losses while reading; drop events that can't have happened in `[begin_ns, end_ns]`, and such sizes.

    `work` are the rows of all tables.

    Raises:
        UnreadableTrace: The durations add up to years.
    """
    copied = finished.rows(EventTable.DEVICE_ANNOTATION)
    dur_ns = finished.dur_ns[work]
    happened = is_possible(finished.start_ns[work], dur_ns, begin_ns, end_ns)
    lost = work[~happened]
    impossible = finished.parts(lost)
    finished.drop(lost)
    # These are copies of annotations on the host, so nothing is lost.
    finished.drop(copied[~is_possible(finished.start_ns[copied], finished.dur_ns[copied], begin_ns, end_ns)])
    if dur_ns[happened].sum(dtype=np.float64) > LARGEST_TOTAL_NS:
        raise UnreadableTrace(
            source, "its events last more than two years in total, so its times are damaged; record it again."
        )
    example = [_impossible_time(finished, row) for row in lost[:1].tolist()]
    return Damage(
        truncated=losses.truncated,
        lost_bytes=losses.lost_bytes,
        lost_events=losses.lost_events,
        repaired_events=losses.repaired_events + repaired,
        impossible_times=sum(impossible.values()),
        impossible_by=impossible,
        impossible_sizes=finished.forget_impossible_sizes(),
        examples=tuple(valid_text(text) for text in (*losses.examples, *example)[:3]),
    )


def _stated_span(finished: Finished, markers: list[tuple[str, int, int]]) -> tuple[int, int] | None:
    """Return when recording began and ended according to the file, without the base time; None if not stated.

    The `Trace` span ends when the host stopped. `Record Window End` comes after it, when the last GPU op had ended.
    """
    # Rows of category `Trace` state when recording was on.
    spans = finished.rows(EventTable.SPAN)
    spans = spans[(finished.start_ns[spans] > 0) & (finished.dur_ns[spans] >= 0)]
    begins = [ns for name, ns, _ in markers if ns > 0 and name.startswith("Iteration Start")]
    ends = [ns for name, ns, _ in markers if ns > 0 and name.startswith("Record Window End")]
    begins += finished.start_ns[spans].tolist()
    if not begins:
        return None
    if not ends:
        ends = (finished.start_ns[spans] + finished.dur_ns[spans]).tolist()
    begin = min(begins)
    end = max(ends, default=begin)
    return (begin, end) if end > begin else None


def _impossible_time(finished: Finished, row: int) -> str:
    start, dur = int(finished.start_ns[row]), int(finished.dur_ns[row])
    when = "unreadable" if start == UNREADABLE else f"{start} ns"
    length = "unreadable" if dur == UNREADABLE else f"{dur} ns"
    return f"impossible time: {finished.name(row)[:60]} starts at {when}, lasts {length}"


def _ordinal(value: Any) -> int | None:
    """Return a number that can be a rank; None otherwise."""
    number = integer(value)
    return number if number is not None and 0 <= number < 1 << 31 else None
