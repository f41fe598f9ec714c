"""Rows of the host: calls of CUDA and the operating system, NVTX ranges, and the profiler's overhead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from overlapscope.base.grouping import among
from overlapscope.plugins.nsys.database import THREAD, Database
from overlapscope.reading._batch import Numbered
from overlapscope.reading._columns import EventColumns
from overlapscope.trace import op_names
from overlapscope.trace.model import I32, I64, Bool

CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
SYSTEM: Final = "OSRT_API"
RANGES: Final = "NVTX_EVENTS"
OVERHEADS: Final = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")
TABLES: Final = (*CALLS, SYSTEM, RANGES, *OVERHEADS)

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
    return np.where(serialized >= 0, serialized & THREAD, -1)
