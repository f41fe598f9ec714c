"""The recorder's notes on CUDA events, moved from the host's events into the sync records.

`overlapscope.recorder.marks` writes the notes; `overlapscope.base.marks` describes their format.

Unless a collective runs on the current stream, ProcessGroupNCCL records an event there, for which the collective's
stream waits. It records another after the launch, for which `Work.wait` waits (PyTorch 2.11,
torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: `syncStream`, `collective`, `pointToPoint`,
`WorkNCCL::synchronizeStream`). NCCL records and waits right before and right after the launch (`find_nccl_waits`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from overlapscope.base.grouping import distinct
from overlapscope.base.marks import COLLECTIVE, EVENT_NOTES, EVENT_RECORD, EVENT_WAIT, WORK_WAIT
from overlapscope.trace.model import HostEvents, RuntimeCalls, Sync, Syncs

_NOTE = re.compile(f"({'|'.join(map(re.escape, EVENT_NOTES))})" + r"(\d{1,18})@(\d{1,9})\.(\d{1,9})")
_RECORDS = re.compile(r"cu(da)?EventRecord\w*")
_WAITS = re.compile(r"cu(da)?StreamWaitEvent\w*")
_IN_COLLECTIVE = re.compile("(pw)?p?(nw)+pn*")
"""Calls of a collective: PyTorch and NCCL record events (p, n), streams wait (w). Timing adds a record at its start."""
_PYTORCH_RECORDS = "cudaEventRecordWithFlags"


class _EventNote(NamedTuple):
    number: int
    device: int
    stream: int
    correlations: tuple[int, ...]
    """Correlations of the calls that the note encloses."""
    calls: str
    """Each call as in `_IN_COLLECTIVE`."""

    @property
    def where(self) -> tuple[int, int]:
        """Device and stream."""
        return self.device, self.stream

    @property
    def correlation(self) -> int:
        """Correlation of the first call."""
        return self.correlations[0]


def apply(
    cpu_ops: HostEvents, annotations: HostEvents, calls: RuntimeCalls, syncs: Syncs
) -> tuple[HostEvents, HostEvents, Syncs]:
    """Return CPU ops and annotations without the notes, and sync records with the source streams and record calls.

    Notes are CPU ops or, in a light recording, annotations.

    The sync records stay unchanged where a waiting stream has another number in its note than in its sync record. In
    that case the recorder does not number streams as the trace does.
    """
    tables = cpu_ops, annotations
    noted = [table.named(lambda name: name.startswith(EVENT_NOTES)) for table in tables]
    if not any(rows.any() for rows in noted):
        return cpu_ops, annotations, syncs
    notes = [table.take(rows) for table, rows in zip(tables, noted, strict=True)]
    cpu_ops, annotations = (table.take(~rows) for table, rows in zip(tables, noted, strict=True))
    read = [note for table in notes for note in _read(table, calls)]
    single = {kind: [note for of, note in read if of == kind and len(note.calls) == 1] for kind in EVENT_NOTES}
    waits = {note.correlation: note for note in single[EVENT_WAIT] if note.calls == "w"}
    unstated = (syncs.kind == Sync.STREAM_WAIT_EVENT) & (syncs.source_stream < 0)
    row_of = {int(syncs.correlation[row]): row for row in np.flatnonzero(unstated).tolist()}
    waiting = {at: (int(syncs.device[row]), int(syncs.stream[row])) for at, row in row_of.items()}
    works = {note.correlation: note for note in single[WORK_WAIT] if note.calls == "w"}
    # A collective may be on another device than the current one.
    here = {at: note for at, note in works.items() if waiting.get(at, note.where)[0] == note.device}
    if any(waiting.get(at, note.where) != note.where for at, note in (waits | here).items()):
        return cpu_ops, annotations, syncs
    records = {note.number: note for note in single[EVENT_RECORD] if note.calls != "w"}
    sources = {at: records.get(note.number) for at, note in waits.items()}
    for note in (note for kind, note in read if kind == COLLECTIVE and _IN_COLLECTIVE.fullmatch(note.calls)):
        streams = {waiting[at] for at in note.correlations if at in waiting}
        on_its_own = note.calls.startswith("pw")
        if on_its_own and waiting.get(note.correlations[1], note.where)[0] == note.device:
            sources[note.correlations[1]] = note
        if len(streams) == 1 and (on_its_own or streams == {note.where}):
            end = note.correlations[note.calls.rindex("p")]
            records[note.number] = _EventNote(note.number, *streams.pop(), (end,), "p")
    sources |= {at: records.get(note.number) for at, note in works.items()}
    stream, device, record = syncs.source_stream.copy(), syncs.source_device.copy(), syncs.record_correlation.copy()
    for at, source in sources.items():
        if source is not None and at in row_of:
            row = row_of[at]
            stream[row], device[row], record[row] = source.stream, source.device, source.correlation
    return cpu_ops, annotations, replace(syncs, source_stream=stream, source_device=device, record_correlation=record)


def _read(notes: HostEvents, calls: RuntimeCalls) -> list[tuple[str, _EventNote]]:
    """Return notes and their kinds, with the calls on the note's thread that record events or wait for them."""
    waits = calls.named(_WAITS.fullmatch)
    rows = np.flatnonzero(waits | calls.named(_RECORDS.fullmatch))
    letters = np.where(waits, "w", np.where(calls.named(_PYTORCH_RECORDS.__eq__), "p", "n"))
    matched: list[tuple[str, _EventNote]] = []
    for thread in distinct(notes.thread):
        of_thread = rows[calls.thread[rows] == thread]
        noted = np.flatnonzero(notes.thread == thread)
        first = np.searchsorted(calls.start_ns[of_thread], notes.start_ns[noted], side="left")
        after = np.searchsorted(calls.start_ns[of_thread], notes.end_ns[noted], side="left")
        for note, at, end in zip(noted.tolist(), first.tolist(), after.tolist(), strict=True):
            match = _NOTE.fullmatch(notes.name(note))
            inside = of_thread[at:end]
            correlations = tuple(calls.correlation[inside].tolist())
            if match is not None and len(inside) and min(correlations) > 0:
                number, device, stream = int(match[2]), int(match[3]), int(match[4])
                matched.append((match[1], _EventNote(number, device, stream, correlations, "".join(letters[inside]))))
    return matched
