"""The recorder's notes on CUDA events, moved from the host's events into the sync records.

`overlapscope.recorder.event_notes` writes the notes; `overlapscope.base.marks` describes their format.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from overlapscope.base.marks import EVENT_RECORD, EVENT_WAIT
from overlapscope.trace.model import HostEvents, RuntimeCalls, Sync, Syncs

_NOTE = re.compile(f"({re.escape(EVENT_RECORD)}|{re.escape(EVENT_WAIT)})" + r"(\d{1,18})@(\d{1,9})\.(\d{1,9})")
_RECORDS = re.compile(r"cu(da)?EventRecord\w*")
_WAITS = re.compile(r"cu(da)?StreamWaitEvent\w*")


class _EventNote(NamedTuple):
    number: int
    device: int
    stream: int
    correlation: int
    """Correlation of the call that the note encloses."""


def apply(
    cpu_ops: HostEvents, annotations: HostEvents, calls: RuntimeCalls, syncs: Syncs
) -> tuple[HostEvents, HostEvents, Syncs]:
    """Return CPU ops and annotations without the notes, and sync records with the source streams and record calls.

    Notes are CPU ops or, in a light recording, annotations.

    The sync records stay unchanged where a waiting stream has another number in its note than in its sync record. In
    that case the recorder does not number streams as the trace does.
    """
    tables = cpu_ops, annotations
    noted = [table.named(lambda name: name.startswith((EVENT_RECORD, EVENT_WAIT))) for table in tables]
    if not any(rows.any() for rows in noted):
        return cpu_ops, annotations, syncs
    notes = [table.take(rows) for table, rows in zip(tables, noted, strict=True)]
    cpu_ops, annotations = (table.take(~rows) for table, rows in zip(tables, noted, strict=True))
    records = {note.number: note for table in notes for note in _read(table, calls, EVENT_RECORD, _RECORDS)}
    waits = {note.correlation: note for table in notes for note in _read(table, calls, EVENT_WAIT, _WAITS)}
    stream, device, record = syncs.source_stream.copy(), syncs.source_device.copy(), syncs.record_correlation.copy()
    unstated = (syncs.kind == Sync.STREAM_WAIT_EVENT) & (syncs.source_stream < 0)
    for row in np.flatnonzero(unstated).tolist():
        wait = waits.get(int(syncs.correlation[row]))
        if wait is None:
            continue
        if (wait.device, wait.stream) != (int(syncs.device[row]), int(syncs.stream[row])):
            return cpu_ops, annotations, syncs
        source = records.get(wait.number)
        if source is not None:
            stream[row], device[row], record[row] = source.stream, source.device, source.correlation
    stated = replace(syncs, source_stream=stream, source_device=device, record_correlation=record)
    return cpu_ops, annotations, stated


def _read(notes: HostEvents, calls: RuntimeCalls, kind: str, call_name: re.Pattern[str]) -> list[_EventNote]:
    """Return the notes of a kind that enclose exactly one call of the expected name on their thread."""
    rows = np.flatnonzero(calls.named(lambda name: call_name.fullmatch(name) is not None))
    told: list[_EventNote] = []
    for thread in np.unique(notes.thread):
        of_thread = rows[calls.thread[rows] == thread]
        noted = np.flatnonzero(notes.thread == thread)
        first = np.searchsorted(calls.start_ns[of_thread], notes.start_ns[noted], side="left")
        after = np.searchsorted(calls.start_ns[of_thread], notes.end_ns[noted], side="left")
        for note, at, end in zip(noted.tolist(), first.tolist(), after.tolist(), strict=True):
            match = _NOTE.fullmatch(notes.name(note))
            if match is not None and match[1] == kind and end - at == 1:
                told.append(
                    _EventNote(int(match[2]), int(match[3]), int(match[4]), int(calls.correlation[of_thread[at]]))
                )
    return [note for note in told if note.correlation > 0]
