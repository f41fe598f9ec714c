"""Cuts a stretch of time out of an exported report of Nsight Systems, for tests: real rows under their own schema.

    python -m benchmarks.cut_nsys REPORT.sqlite CUT.sqlite BEGIN_MS END_MS

Kept is what begins in the stretch, counted from the first kernel, and the strings that it names; what tells of the
machine, its users and their environment is not.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

_EVENTS = (
    *(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME")),
    *("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_OVERHEAD"),
    *("PROFILER_OVERHEAD", "NVTX_EVENTS", "OSRT_API"),
)
_WHOLE = (
    *("CUPTI_ACTIVITY_KIND_CUDA_EVENT", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_CUDA_STREAM"),
    *("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_SESSION_START_TIME", "ENUM_CUDA_MEMCPY_OPER"),
    *("ENUM_CUDA_MEM_KIND", "ENUM_CUPTI_SYNC_TYPE", "ENUM_CUPTI_OVERHEAD_TYPE"),
)


def cut(report: Path, target: Path, begin_ns: int, end_ns: int) -> None:
    """Write the stretch `[begin_ns, end_ns)` from the first kernel on."""
    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(f"file:{target}", uri=True, isolation_level=None)) as database:
        database.execute("ATTACH ? AS whole", (f"file:{report}?mode=ro&immutable=1",))
        schema = dict(database.execute("SELECT name, sql FROM whole.sqlite_schema WHERE type = 'table'"))
        for table in (*_EVENTS, *_WHOLE, "StringIds", "META_DATA_EXPORT"):
            if table in schema:
                database.execute(schema[table])
        first = database.execute("SELECT min(start) FROM whole.CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
        database.execute("BEGIN")
        for table in (*_EVENTS, *_WHOLE):
            if table in schema:
                where = "WHERE start >= ? AND start < ?" if table in _EVENTS else "WHERE ? < ?"
                stretch = (first + begin_ns, first + end_ns)
                database.execute(f"INSERT INTO main.{table} SELECT * FROM whole.{table} {where}", stretch)
        for table in _EVENTS:
            for column in _string_columns(database, table):
                database.execute(
                    "INSERT OR IGNORE INTO main.StringIds SELECT * FROM whole.StringIds "
                    f"WHERE id IN (SELECT {column} FROM main.{table})"
                )
        database.execute(
            "INSERT INTO main.META_DATA_EXPORT SELECT * FROM whole.META_DATA_EXPORT "
            "WHERE name GLOB 'EXPORT_PRODUCT*' OR name GLOB 'EXPORT_SCHEMA_VERSION*'"
        )
        database.execute("COMMIT")
        database.execute("DETACH whole")
        database.execute("VACUUM")


def _string_columns(database: sqlite3.Connection, table: str) -> list[str]:
    columns = {row[1] for row in database.execute(f"PRAGMA main.table_info({table})")}
    return sorted(columns & {"demangledName", "shortName", "mangledName", "nameId", "textId"})


if __name__ == "__main__":
    cut(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) * 1_000_000, int(sys.argv[4]) * 1_000_000)
