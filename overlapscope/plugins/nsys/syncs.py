"""Synchronization records, and the event record that each wait waits for."""

from __future__ import annotations

from typing import Final

import numpy as np

from overlapscope.base.columns import locate, pick
from overlapscope.plugins.nsys.database import Database
from overlapscope.plugins.nsys.gpu import number
from overlapscope.reading._batch import Numbered
from overlapscope.reading._columns import EventColumns, device_or_none
from overlapscope.trace.model import I32, I64, Sync

SYNCS: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS: Final = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"

_KINDS: Final = {1: Sync.EVENT, 2: Sync.STREAM_WAIT_EVENT, 3: Sync.STREAM, 4: Sync.CONTEXT}
"""ENUM_CUPTI_SYNC_TYPE."""
_BY_CALL: Final = (
    ("StreamWaitEvent", Sync.STREAM_WAIT_EVENT),
    ("StreamSynchronize", Sync.STREAM),
    ("EventSynchronize", Sync.EVENT),
    ("EventQuery", Sync.EVENT),
    ("DeviceSynchronize", Sync.CONTEXT),
    ("CtxSynchronize", Sync.CONTEXT),
)
"""The recorded call decides, because an export of schema 3.24.14 has a `cudaStreamSynchronize` of type 2."""
_SPELLED: Final = {
    Sync.EVENT: "Event Sync",
    Sync.STREAM_WAIT_EVENT: "Stream Wait Event",
    Sync.STREAM: "Stream Sync",
    Sync.CONTEXT: "Context Sync",
}


def read(database: Database, rows: EventColumns, calls: tuple[I32, I64]) -> None:
    """Add the synchronization records, given the names and correlations of the calls."""
    columns = database.integers(
        SYNCS,
        ("start", "end", "deviceId", "streamId", "correlationId", "syncType", "eventId", "eventSyncId"),
    )
    correlation = columns["correlationId"]
    kind = _kinds(rows.names, columns["syncType"], calls, correlation)
    spelled = np.array([rows.names[_SPELLED[Sync(each)]] for each in range(len(Sync))], np.int32)
    event, sync = number(columns["eventId"]), number(columns["eventSyncId"])
    waits = kind == Sync.STREAM_WAIT_EVENT
    record, stream, device = _recorded(database, np.where(waits, event, -1), np.where(waits, sync, -1), correlation)
    values = {
        "kind": kind,
        "device": device_or_none(columns["deviceId"]),
        "stream": number(columns["streamId"]),
        "correlation": correlation,
        "event": event,
        "source_stream": stream,
        "source_device": device,
        "record_correlation": record,
    }
    known = kind >= 0
    start_ns, dur_ns = columns["start"][known], (columns["end"] - columns["start"])[known]
    stated = {name: column[known] for name, column in values.items()}
    rows.append("cuda_sync", spelled[kind[known]], start_ns, dur_ns, **stated)


def _kinds(names: Numbered, stated: I64, calls: tuple[I32, I64], correlation: I64) -> I64:
    kinds = (next((kind for part, kind in _BY_CALL if part in name and name.startswith("cu")), -1) for name in names)
    of_name = np.fromiter(kinds, np.int64, len(names))
    called, of_call = calls
    row = np.where(correlation > 0, locate(of_call, correlation), -1)
    by_call = pick(of_name, pick(called, row))
    by_type = np.full(len(stated), -1, np.int64)
    for type_, kind in _KINDS.items():
        by_type[stated == type_] = kind
    return np.where(by_call >= 0, by_call, by_type)


def _recorded(database: Database, event: I64, sync: I64, correlation: I64) -> tuple[I64, I64, I64]:
    """Return for each wait the correlation of the call that recorded its event, and the event's stream and device.

    They are -1 where events were not recorded (`nsys profile --cuda-event-trace`). An id identifies the record that a
    wait waits for. Exports without it name only the event. The record is then the event's last before the wait, because
    correlations are assigned in order.
    """
    events = database.integers(EVENTS, ("correlationId", "deviceId", "streamId", "eventId", "eventSyncId"))
    by_id = np.where(sync >= 0, locate(number(events["eventSyncId"]), sync), -1)
    order = np.lexsort((events["correlationId"], events["eventId"]))
    keys = np.stack([events["eventId"][order], events["correlationId"][order]])
    last = np.full(len(event), -1, np.int64)
    for row in np.flatnonzero((by_id < 0) & (sync < 0) & (event >= 0)).tolist():
        low, high = np.searchsorted(keys[0], [event[row], event[row] + 1])
        before = int(np.searchsorted(keys[1][low:high], correlation[row]))
        last[row] = order[low + before - 1] if before else -1
    source = np.where(by_id >= 0, by_id, last)
    record = np.where(events["correlationId"] > 0, events["correlationId"], -1)
    return (
        pick(record, source),
        pick(number(events["streamId"]), source),
        pick(device_or_none(events["deviceId"]), source),
    )
