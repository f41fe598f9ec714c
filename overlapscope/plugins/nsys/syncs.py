"""Synchronization records, and the event record that each wait waits for."""

from __future__ import annotations

from typing import Final

import numpy as np

from overlapscope.base.columns import locate, pick
from overlapscope.plugins.nsys.database import Database
from overlapscope.plugins.nsys.gpu import number, process_condition
from overlapscope.plugins.nsys.rows import Names, Rows
from overlapscope.reading._columns import device_or_none
from overlapscope.trace.model import I64, Sync

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


def read(database: Database, names: Names, process: int | None, calls: Rows) -> Rows:
    """Return the rows of `Trace.syncs`, in no order, given the rows of `Trace.runtime_calls`."""
    columns = database.integers(
        SYNCS,
        ("start", "end", "deviceId", "streamId", "correlationId", "syncType", "eventId", "eventSyncId"),
        process_condition(database, SYNCS, process),
    )
    correlation = np.where(columns["correlationId"] > 0, columns["correlationId"], -1)
    kind = _kinds(names, columns["syncType"], calls, correlation)
    has_kind = kind >= 0
    spelled = np.array([names.number(_SPELLED[Sync(each)]) for each in range(len(Sync))], np.int32)
    event, sync = number(columns["eventId"]), number(columns["eventSyncId"])
    waits = kind == Sync.STREAM_WAIT_EVENT
    record, stream, device = _recorded(
        database, process, np.where(waits, event, -1), np.where(waits, sync, -1), correlation
    )
    rows: Rows = {
        "start_ns": columns["start"],
        "end_ns": columns["end"],
        "name_id": pick(spelled, kind.astype(np.int64)).astype(np.int32),
        "kind": kind,
        "device": device_or_none(columns["deviceId"]).astype(np.int32),
        "stream": number(columns["streamId"]).astype(np.int32),
        "correlation": correlation,
        "event": event,
        "source_stream": stream.astype(np.int32),
        "source_device": device.astype(np.int32),
        "record_correlation": record,
    }
    return {name: column[has_kind] for name, column in rows.items()}


def _kinds(names: Names, stated: I64, calls: Rows, correlation: I64) -> I64:
    text = names.all()
    kinds = (next((kind for part, kind in _BY_CALL if part in name and name.startswith("cu")), -1) for name in text)
    of_name = np.fromiter(kinds, np.int64, len(text))
    row = np.where(correlation > 0, locate(calls["correlation"], correlation), -1)
    by_call = pick(of_name, pick(calls["name_id"], row))
    by_type = np.full(len(stated), -1, np.int64)
    for type_, kind in _KINDS.items():
        by_type[stated == type_] = kind
    return np.where(by_call >= 0, by_call, by_type).astype(np.int8)


def _recorded(database: Database, process: int | None, event: I64, sync: I64, correlation: I64) -> tuple[I64, I64, I64]:
    """Return for each wait the correlation of the call that recorded its event, and the event's stream and device.

    They are -1 where events were not recorded (`nsys profile --cuda-event-trace`). An id identifies the record that a
    wait waits for. Exports without it name only the event. The record is then the event's last before the wait, because
    correlations are assigned in order.
    """
    events = database.integers(
        EVENTS,
        ("correlationId", "deviceId", "streamId", "eventId", "eventSyncId"),
        process_condition(database, EVENTS, process),
    )
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
