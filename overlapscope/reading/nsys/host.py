"""What the host did: calls into CUDA and the operating system, NVTX ranges, and what the profiler itself took."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from overlapscope.reading.nsys.database import Database
from overlapscope.reading.nsys.gpu import of_process
from overlapscope.reading.nsys.names import Names
from overlapscope.reading.nsys.rows import Rows, joined, kept
from overlapscope.trace.model import I64

CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
SYSTEM: Final = "OSRT_API"
RANGES: Final = "NVTX_EVENTS"
OVERHEADS: Final = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")
TABLES: Final = (*CALLS, SYSTEM, RANGES, *OVERHEADS)

_THREAD: Final = 0xFFFFFF
"""The bits of a serialized id that have the thread's number; those above have the process."""
_VERSION: Final = re.compile(r"(cuda\w+?)_v\d{4,5}(_\w+)?")
"""`cudaLaunchKernel_v7000`: the runtime's calls carry the version that they came with."""
_RANGE_EVENTS: Final = (59, 60)
"""ENUM_NSYS_EVENT_TYPE: pushed and popped, and started and ended."""
_NEW_DOMAIN: Final = 75
_LIBRARY: Final = re.compile(r"(nccl|nvshmem|cublas|cudnn|cufft|cusparse|cusolver|cccl|libcu)", re.IGNORECASE)
"""Domains of libraries, whose ranges are calls into them."""
_EMITTED: Final = "\x01"
"""Stands behind a name from which was taken what `torch.autograd.profiler.emit_nvtx` appends: `, seq = 5, op_id = 7`.
"""
_OPERATOR: Final = re.compile(r"\w+::|\w*Backward\d*$|autograd::")
_OF_PROFILER: Final = frozenset({3, 4, 5})
"""ENUM_CUPTI_OVERHEAD_TYPE: flushed buffers, instrumentation and resources are the profiler's; the driver's compiler,
lazy loading and full launch queues are the program's."""


def calls(database: Database, names: Names, process: int | None) -> Rows:
    """The rows of `Trace.runtime_calls`, in no order."""
    return joined(_calls(database, table, names, process) for table in CALLS)


def _calls(database: Database, table: str, names: Names, process: int | None) -> Rows:
    if table in database.columns:
        database.require(table, "start", "end", "nameId")
    rows, correlation = _host(database, table, names, process, "correlationId", _without_version)
    return {**rows, "correlation": np.where(correlation > 0, correlation, -1)}


def _without_version(name: str) -> str:
    versioned = _VERSION.fullmatch(name)
    return name if versioned is None else f"{versioned[1]}{versioned[2] or ''}"


def operators_and_ranges(database: Database, names: Names, process: int | None) -> tuple[Rows, Rows]:
    """The rows of `Trace.cpu_ops` and `Trace.annotations`, in no order.

    Operators are PyTorch's, as its `emit_nvtx` marks them, libraries' own ranges, and calls of the operating system.
    """
    system, _ = _host(database, SYSTEM, names, process)
    # Nsight Systems records calls of at least a microsecond (`--osrt-threshold`). Rows without a length are its marks,
    # such as "OS runtime libraries profiling started".
    system = kept(system, system["start_ns"] != system["end_ns"])
    columns = ("start", "end", "globalTid", "domainId")
    if RANGES not in database.columns:
        return system, {name: column[:0] for name, column in system.items()}
    database.require(RANGES, "start", "end")
    operators: set[int] = set()

    def number(text: str) -> int:
        name = text.removesuffix(_EMITTED)
        found = names.number(name or "unnamed")
        if name is not text and _OPERATOR.match(name):
            operators.add(found)
        return found

    where = _of_threads(database, RANGES, process)
    if "eventType" in database.columns[RANGES]:
        where = f"{where} {'AND' if where else 'WHERE'} eventType IN {_RANGE_EVENTS}"
    table, name_id = database.integers_and_texts(RANGES, columns, _operator(_text(database)), number, where)
    # What has no end was still open when the recording ended.
    is_range = table["end"] >= 0
    of_library = np.isin(table["domainId"], _library_domains(database)) & (table["domainId"] > 0)
    is_operator = of_library | np.isin(name_id, list(operators))
    rows: Rows = {
        "start_ns": table["start"],
        "end_ns": table["end"],
        "name_id": name_id,
        "thread": _thread(table["globalTid"]),
    }
    return joined([kept(rows, is_range & is_operator), system]), kept(rows, is_range & ~is_operator)


def _text(database: Database) -> str:
    """What names a range: its own text, or a registered one."""
    there = database.columns[RANGES]
    texts = [*(["text"] if "text" in there else [])]
    texts += ["(SELECT value FROM StringIds WHERE id = textId)"] if "textId" in there else []
    return f"coalesce({', '.join((*texts, repr(''), repr('')))})"


def _operator(text: str) -> str:
    """The expression of a range's text, without what `emit_nvtx` appends to operators' names, but marked as theirs. It
    has numbers that make each text another, so taking it off first spares all of them."""
    seq, op = (f"instr({text}, ', {key} = ')" for key in ("seq", "op_id"))
    return f"iif({op}, substr({text}, 1, iif({seq}, {seq}, {op}) - 1) || char({ord(_EMITTED)}), {text})"


def _library_domains(database: Database) -> I64:
    if "domainId" not in database.columns[RANGES] or "eventType" not in database.columns[RANGES]:
        return np.empty(0, np.int64)
    where = f"WHERE eventType = {_NEW_DOMAIN}"
    domains, of_library = database.integers_and_texts(
        RANGES, ("domainId",), _text(database), lambda name: _LIBRARY.match(name) is not None, where
    )
    return domains["domainId"][of_library > 0]


def overheads(database: Database, names: Names, process: int | None) -> Rows:
    """The rows of `Trace.overheads`, in no order."""
    parts = []
    for table in OVERHEADS:
        rows, kind = _host(database, table, names, process, "overheadType")
        parts.append(kept(rows, np.isin(kind, list(_OF_PROFILER)) | (table == "PROFILER_OVERHEAD")))
    return joined(parts)


def _host(
    database: Database,
    table: str,
    names: Names,
    process: int | None,
    besides: str = "nameId",
    shown: Callable[[str], str] = str,
) -> tuple[Rows, I64]:
    """The rows of a table, and another of its columns; names as they are `shown`."""
    if table in database.columns:
        database.require(table, "start", "end")
    where = _of_threads(database, table, process)
    columns = database.integers(table, ("start", "end", "nameId", "globalTid", besides), where)
    rows: Rows = {
        "start_ns": columns["start"],
        "end_ns": columns["end"],
        "name_id": names.of_ids(columns["nameId"], shown),
        "thread": _thread(columns["globalTid"]),
    }
    return rows, columns[besides]


def _thread(serialized: I64) -> I64:
    return np.where(serialized >= 0, serialized & _THREAD, -1)


def _of_threads(database: Database, table: str, process: int | None) -> str:
    """The condition of the rows of one process' threads; of all, where the table does not tell."""
    if process is None or "globalTid" not in database.columns.get(table, frozenset()):
        return of_process(database, table, process)
    return f"WHERE globalTid BETWEEN {process} AND {process | _THREAD}"
