"""Rows of a report: ops of the device, calls and ranges of the host, and synchronization records."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from overlapscope.base.columns import locate, pick
from overlapscope.base.grouping import among
from overlapscope.plugins.nsys.database import THREAD_MASK, Columns, Database
from overlapscope.reading._columns import EventColumns, device_or_none
from overlapscope.reading._events import Numbered
from overlapscope.trace import op_names
from overlapscope.trace.model import I32, I64, Bool, Sync

# -- Device ------------------------------------------------------------------------------------------

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILL: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
OPS: Final = (KERNEL, COPY, FILL, GRAPH)

WHOLE_GRAPH: Final = "CUDA graph"
"""Prefix of the names of graphs that were recorded as a single op."""
_COMMON: Final = ("start", "end", "deviceId", "streamId", "correlationId")
_GRID: Final = ("gridX", "gridY", "gridZ")
_BLOCK: Final = ("blockX", "blockY", "blockZ")
_SIDES: Final = ("srcDeviceId", "dstDeviceId")
_LARGEST_EXTENT: Final = 0x7FFFFFFF
_NO_STREAM: Final = 0x7FFFFFFF
"""Larger numbers stand for "none": 4294967295, -1 as an unsigned 32-bit number."""
_DIRECTIONS: Final = (
    *("<unknown>", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"),
    *("HtoD", "DtoH", "DtoD"),
)
"""ENUM_CUDA_MEMCPY_OPER in Kineto's spelling; the last three are migrations of managed memory."""
_FIRST_MIGRATION: Final = 11
_MEMORY: Final = (
    *("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static"),
    "Unknown",
)
"""ENUM_CUDA_MEM_KIND in Kineto's spelling."""


def device_ops(database: Database, rows: EventColumns) -> None:
    """Add the GPU ops."""
    for part in (_kernels, _copies, _fills, _graphs):
        part(database, rows)


def number(column: I64) -> I64:
    """Return the numbers of streams or events; -1 for none."""
    return np.where((column < 0) | (column > _NO_STREAM), -1, column)


def _columns(database: Database, table: str, *more: str) -> Columns:
    database.require(table, "start", "end", "deviceId", "streamId")
    return database.integers(table, (*_COMMON, *more))


def _kernels(database: Database, rows: EventColumns) -> None:
    columns = _columns(database, KERNEL, "demangledName", "shortName", *_GRID, *_BLOCK)
    ids = np.where(columns["demangledName"] >= 0, columns["demangledName"], columns["shortName"])
    extents = {"blocks": _product(columns, _GRID), "block_threads": _product(columns, _BLOCK)}
    _add(rows, columns, "kernel", database.named(rows.names, ids), **extents)


def _product(columns: Columns, extents: Sequence[str]) -> I64:
    """Return the product of extents in three directions; -1 where one is missing or out of range."""
    x, y, z = (np.where(column <= _LARGEST_EXTENT, column, -1) for column in map(columns.__getitem__, extents))
    plane = x * y
    known = (x > 0) & (y > 0) & (z > 0) & (plane <= np.iinfo(np.int64).max // np.maximum(z, 1))
    return np.where(known, plane * z, -1)


def _copies(database: Database, rows: EventColumns) -> None:
    columns = _columns(database, COPY, "bytes", "copyKind", "srcKind", "dstKind", *_SIDES)
    kinds = (columns[name] for name in ("copyKind", "srcKind", "dstKind"))
    # Page migrations are on no stream, whatever number the table has.
    columns["streamId"] = np.where(columns["copyKind"] >= _FIRST_MIGRATION, -1, columns["streamId"])
    source, target = (device_or_none(columns[side]) for side in _SIDES)
    name = _spelled(rows.names, _copy_name, *kinds)
    _add(rows, columns, "gpu_memcpy", name, bytes=columns["bytes"], source_device=source, target_device=target)


def _copy_name(direction: int, source: int, target: int) -> str:
    way = _DIRECTIONS[direction] if 0 <= direction < len(_DIRECTIONS) else "<unknown>"
    if direction >= _FIRST_MIGRATION:
        return f"Migration {way} (Managed -> Managed)"
    return f"Memcpy {way} ({_memory(source)} -> {_memory(target)})"


def _memory(kind: int) -> str:
    return _MEMORY[kind] if 0 <= kind < len(_MEMORY) else "Unknown"


def _fills(database: Database, rows: EventColumns) -> None:
    columns = _columns(database, FILL, "bytes", "memKind")
    name = _spelled(rows.names, lambda kind: f"Memset ({_memory(kind)})", columns["memKind"])
    _add(rows, columns, "gpu_memset", name, bytes=columns["bytes"])


def _graphs(database: Database, rows: EventColumns) -> None:
    columns = _columns(database, GRAPH, "graphId")
    name = _spelled(rows.names, lambda id: f"{WHOLE_GRAPH} {id}" if id >= 0 else WHOLE_GRAPH, columns["graphId"])
    _add(rows, columns, "kernel", name)


def _spelled(names: Numbered, spell: Callable[..., str], *columns: I64) -> I32:
    """Return the number of each row's name, which is composed from its values in some columns."""
    distinct, back = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return np.array([names[spell(*row)] for row in distinct.tolist()], np.int32)[back.reshape(-1)]


def _add(rows: EventColumns, columns: Columns, category: str, name: I32, **values: I64) -> None:
    rows.append(
        category,
        name,
        columns["start"],
        columns["end"] - columns["start"],
        device=device_or_none(columns["deviceId"]),
        stream=number(columns["streamId"]),
        correlation=columns["correlationId"],
        **values,
    )


# -- Host --------------------------------------------------------------------------------------------

CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
SYSTEM: Final = "OSRT_API"
RANGES: Final = "NVTX_EVENTS"
OVERHEADS: Final = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")
HOST: Final = (*CALLS, SYSTEM, RANGES, *OVERHEADS)

_VERSION: Final = re.compile(r"(cuda\w+?)_v\d{4,5}(_\w+)?")
"""`cudaLaunchKernel_v7000`: names of the runtime's calls end in the version that introduced them."""
_RANGE_EVENTS: Final = (59, 60)
"""ENUM_NSYS_EVENT_TYPE: ranges that are pushed and popped, and ranges that are started and ended."""
_NEW_DOMAIN: Final = 75
_LIBRARY: Final = re.compile(r"(nccl|nvshmem|cublas|cudnn|cufft|cusparse|cusolver|cccl|libcu)", re.IGNORECASE)
"""Domains of libraries, whose ranges are calls of the library."""
_EMITTED: Final = "\x01"
"""Marks a name without its ending from `torch.autograd.profiler.emit_nvtx`: `, seq = 5, op_id = 7`."""
_OF_PROFILER: Final = frozenset({3, 4, 5})
"""ENUM_CUPTI_OVERHEAD_TYPE. The profiler causes buffer flushes, instrumentation and resources; the program causes the
driver's compiler, lazy loading and full launch queues."""


class HostRows(NamedTuple):
    """Rows of the host, in no order."""

    name: I32
    start_ns: I64
    dur_ns: I64
    thread: I64

    def kept(self, keep: Bool) -> HostRows:
        """Return the rows that a mask selects."""
        return HostRows(self.name[keep], self.start_ns[keep], self.dur_ns[keep], self.thread[keep])


def calls(database: Database, rows: EventColumns) -> tuple[I32, I64]:
    """Add the calls of CUDA; return their names and correlations."""
    names, correlations = [], []
    for table in CALLS:
        database.require(table, "start", "end", "nameId")
        called, correlation = _host(database, table, rows.names, "correlationId", _without_version)
        rows.append("cuda_runtime", *called, correlation=correlation)
        names.append(called.name)
        correlations.append(correlation)
    return np.concatenate(names), np.concatenate(correlations)


def _without_version(name: str) -> str:
    versioned = _VERSION.fullmatch(name)
    return name if versioned is None else f"{versioned[1]}{versioned[2] or ''}"


def operators_and_ranges(database: Database, rows: EventColumns) -> None:
    """Add the rows of `Trace.cpu_ops` and those of `Trace.annotations`.

    Operators are PyTorch's, as its `emit_nvtx` marks them, the ranges of libraries, and calls of the operating system.
    """
    names = rows.names
    system, _ = _host(database, SYSTEM, names)
    # Nsight Systems records calls of at least a microsecond (`--osrt-threshold`). Rows without a length are its marks,
    # such as "OS runtime libraries profiling started".
    system = system.kept(system.dur_ns != 0)
    columns = ("start", "end", "globalTid", "domainId", "textId")
    if RANGES not in database.columns:
        rows.append("cpu_op", *system)
        return
    database.require(RANGES, "start", "end")
    operators: set[int] = set()

    def number(text: str) -> int:
        name = text.removesuffix(_EMITTED)
        if not name:
            return -1
        name_number = names[name]
        if name is not text and op_names.is_operator(name):
            operators.add(name_number)
        return name_number

    where = database.of_process(RANGES)
    if "eventType" in database.columns[RANGES]:
        where = f"{where} AND eventType IN {_RANGE_EVENTS}"
    table = database.integers(RANGES, columns, where)
    name_id = database.texts(RANGES, _operator(_text(database)), number, where)
    # A range has either a text or the id of a registered one.
    registered = name_id < 0
    name_id[registered] = database.named(names, table["textId"][registered])
    # A range without an end was still open when the recording ended.
    is_range = table["end"] >= 0
    of_library = among(table["domainId"], _library_domains(database)) & (table["domainId"] > 0)
    is_operator = of_library | among(name_id, list(operators))
    ranges = HostRows(name_id, table["start"], table["end"] - table["start"], _thread(table["globalTid"]))
    for category, part in (
        ("cpu_op", ranges.kept(is_range & is_operator)),
        ("cpu_op", system),
        ("user_annotation", ranges.kept(is_range & ~is_operator)),
    ):
        rows.append(category, *part)


def _text(database: Database) -> str:
    """Return the SQL expression of a range's own text; empty for a range with a registered text."""
    return "ifnull(text, '')" if "text" in database.columns[RANGES] else "''"


def _operator(text: str) -> str:
    """Return the SQL expression of a range's name, with a mark in place of the ending from `emit_nvtx`.

    The ending has numbers that make each text distinct, so removing it first avoids decoding them all.
    """
    seq, op = (f"instr({text}, ', {key} = ')" for key in ("seq", "op_id"))
    return f"iif({op}, substr({text}, 1, iif({seq}, {seq}, {op}) - 1) || char({ord(_EMITTED)}), {text})"


def _library_domains(database: Database) -> I64:
    if "domainId" not in database.columns[RANGES] or "eventType" not in database.columns[RANGES]:
        return np.empty(0, np.int64)
    where = f"eventType = {_NEW_DOMAIN}"
    domains = database.integers(RANGES, ("domainId", "textId"), where)
    of_library = database.texts(RANGES, _text(database), lambda name: _LIBRARY.match(name) is not None, where)
    registered = [id for id in set(domains["textId"].tolist()) if _LIBRARY.match(database.string(id))]
    return domains["domainId"][(of_library > 0) | np.isin(domains["textId"], registered)]


def overheads(database: Database, rows: EventColumns) -> None:
    """Add the profiler's overhead."""
    for table in OVERHEADS:
        found, kind = _host(database, table, rows.names, "overheadType")
        rows.append("overhead", *found.kept(among(kind, list(_OF_PROFILER)) | (table == "PROFILER_OVERHEAD")))


def _host(
    database: Database, table: str, names: Numbered, besides: str = "nameId", shown: Callable[[str], str] = str
) -> tuple[HostRows, I64]:
    """Return the rows of a table, and the column `besides`; `shown` converts names."""
    database.require(table, "start", "end")
    columns = database.integers(table, ("start", "end", "nameId", "globalTid", besides))
    name = database.named(names, columns["nameId"], shown)
    dur_ns = columns["end"] - columns["start"]
    return HostRows(name, columns["start"], dur_ns, _thread(columns["globalTid"])), columns[besides]


def _thread(serialized: I64) -> I64:
    return np.where(serialized >= 0, serialized & THREAD_MASK, -1)


# -- Synchronizations, and the event record that each wait waits for ---------------------------------

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


def synchronizations(database: Database, rows: EventColumns, calls: tuple[I32, I64]) -> None:
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
