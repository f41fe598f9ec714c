"""Rows of the host: calls of CUDA and the operating system, NVTX ranges, and the profiler's overhead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from overlapscope.base.grouping import among
from overlapscope.plugins.nsys.database import Database
from overlapscope.plugins.nsys.gpu import process_condition
from overlapscope.plugins.nsys.rows import Names, Rows, joined, kept
from overlapscope.trace import op_names
from overlapscope.trace.model import I64

CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
SYSTEM: Final = "OSRT_API"
RANGES: Final = "NVTX_EVENTS"
OVERHEADS: Final = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")
TABLES: Final = (*CALLS, SYSTEM, RANGES, *OVERHEADS)

_THREAD: Final = 0xFFFFFF
"""Bits of a serialized id that hold the thread's number; higher bits hold the process."""
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


def calls(database: Database, names: Names, process: int | None) -> Rows:
    """Return the rows of `Trace.runtime_calls`, in no order."""
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
    """Return the rows of `Trace.cpu_ops` and `Trace.annotations`, in no order.

    Operators are PyTorch's, as its `emit_nvtx` marks them, the ranges of libraries, and calls of the operating system.
    """
    system, _ = _host(database, SYSTEM, names, process)
    # Nsight Systems records calls of at least a microsecond (`--osrt-threshold`). Rows without a length are its marks,
    # such as "OS runtime libraries profiling started".
    system = kept(system, system["start_ns"] != system["end_ns"])
    columns = ("start", "end", "globalTid", "domainId", "textId")
    if RANGES not in database.columns:
        return system, {name: column[:0] for name, column in system.items()}
    database.require(RANGES, "start", "end")
    operators: set[int] = set()

    def number(text: str) -> int:
        name = text.removesuffix(_EMITTED)
        if not name:
            return -1
        name_number = names.number(name)
        if name is not text and op_names.is_operator(name):
            operators.add(name_number)
        return name_number

    where = _threads_condition(database, RANGES, process)
    if "eventType" in database.columns[RANGES]:
        where = f"{where} {'AND' if where else 'WHERE'} eventType IN {_RANGE_EVENTS}"
    table, name_id = database.integers_and_texts(RANGES, columns, _operator(_text(database)), number, where)
    # A range has either a text or the id of a registered one.
    registered = name_id < 0
    name_id[registered] = names.from_ids(table["textId"][registered])
    # A range without an end was still open when the recording ended.
    is_range = table["end"] >= 0
    of_library = among(table["domainId"], _library_domains(database)) & (table["domainId"] > 0)
    is_operator = of_library | among(name_id, list(operators))
    rows: Rows = {
        "start_ns": table["start"],
        "end_ns": table["end"],
        "name_id": name_id,
        "thread": _thread(table["globalTid"]),
    }
    return joined([kept(rows, is_range & is_operator), system]), kept(rows, is_range & ~is_operator)


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
    where = f"WHERE eventType = {_NEW_DOMAIN}"
    domains, of_library = database.integers_and_texts(
        RANGES, ("domainId", "textId"), _text(database), lambda name: _LIBRARY.match(name) is not None, where
    )
    registered = [id for id in set(domains["textId"].tolist()) if _LIBRARY.match(database.string(id))]
    return domains["domainId"][(of_library > 0) | np.isin(domains["textId"], registered)]


def overheads(database: Database, names: Names, process: int | None) -> Rows:
    """Return the rows of `Trace.overheads`, in no order."""
    parts = []
    for table in OVERHEADS:
        rows, kind = _host(database, table, names, process, "overheadType")
        parts.append(kept(rows, among(kind, list(_OF_PROFILER)) | (table == "PROFILER_OVERHEAD")))
    return joined(parts)


def _host(
    database: Database,
    table: str,
    names: Names,
    process: int | None,
    besides: str = "nameId",
    shown: Callable[[str], str] = str,
) -> tuple[Rows, I64]:
    """Return the rows of a table, and the column `besides`; `shown` converts names."""
    if table in database.columns:
        database.require(table, "start", "end")
    where = _threads_condition(database, table, process)
    columns = database.integers(table, ("start", "end", "nameId", "globalTid", besides), where)
    rows: Rows = {
        "start_ns": columns["start"],
        "end_ns": columns["end"],
        "name_id": names.from_ids(columns["nameId"], shown),
        "thread": _thread(columns["globalTid"]),
    }
    return rows, columns[besides]


def _thread(serialized: I64) -> I64:
    return np.where(serialized >= 0, serialized & _THREAD, -1)


def _threads_condition(database: Database, table: str, process: int | None) -> str:
    """Return the SQL condition for the rows of a process's threads; for all rows if the table has no threads."""
    if process is None or "globalTid" not in database.columns.get(table, frozenset()):
        return process_condition(database, table, process)
    return f"WHERE globalTid BETWEEN {process} AND {process | _THREAD}"
