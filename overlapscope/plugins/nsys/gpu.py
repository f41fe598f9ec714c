"""Rows of the device: kernels, copies, memsets, and CUDA graphs recorded as a single op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from overlapscope.plugins.nsys.database import Columns, Database
from overlapscope.reading._batch import Numbered
from overlapscope.reading._columns import EventColumns, device_or_none
from overlapscope.trace.model import I32, I64

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILL: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
TABLES: Final = (KERNEL, COPY, FILL, GRAPH)

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


def read(database: Database, rows: EventColumns) -> None:
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
