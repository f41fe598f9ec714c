"""Time to read a large report of Nsight Systems, beside pandas' read of the same tables.

    python -m benchmarks.nsys [--rows 10000000] docs/evaluation/performance-nsight-systems.md

The report is a recording of a training on two GPUs, one of its processes, whose rows are repeated one behind another
until there are as many as asked for.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from benchmarks.processes import machine

_RECORDED = Path("traces/nsys/train_2gpu.sqlite.xz")
_TABLES = (
    *(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")),
    "NVTX_EVENTS",
)
_TIMES = ("start", "end")
_MEASURED = """
import json, resource, sys, time
begin = time.perf_counter()
{code}
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
core = sum(one.ru_utime + one.ru_stime for one in used)
print(json.dumps([time.perf_counter() - begin, core, sum(one.ru_maxrss for one in used) * 1024]))
"""
_WAYS = {
    "overlapscope, reading": """
import overlapscope as ov
from overlapscope.reading import load
trace = load(sys.argv[1], progress=False, cache=False)
""",
    "overlapscope analyze": """
from overlapscope.commands import main
main(["analyze", sys.argv[1], "--no-cache", "--format", "json", "-o", sys.argv[1] + ".json", "--force"])
""",
    "pandas, the same tables and columns": """
import sqlite3
import pandas as pd
columns = {columns!r}
database = sqlite3.connect(sys.argv[1])
tables = {{t: pd.read_sql_query("SELECT " + ", ".join(columns[t]) + " FROM " + t, database) for t in columns}}
""",
}
_COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ["start", "end", "deviceId", "streamId", "correlationId", "demangledName"],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [
        "start",
        "end",
        "deviceId",
        "streamId",
        "correlationId",
        "bytes",
        "copyKind",
        "srcKind",
        "dstKind",
    ],
    "CUPTI_ACTIVITY_KIND_MEMSET": ["start", "end", "deviceId", "streamId", "correlationId", "bytes"],
    "CUPTI_ACTIVITY_KIND_RUNTIME": ["start", "end", "nameId", "globalTid", "correlationId"],
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
        "start",
        "end",
        "deviceId",
        "streamId",
        "correlationId",
        "syncType",
        "eventId",
    ],
    "NVTX_EVENTS": ["start", "end", "eventType", "globalTid", "domainId", "text"],
}


def grow(path: Path, rows: int) -> int:
    """Write a report with at least this many rows, and return the number."""
    path.write_bytes(lzma.decompress(_RECORDED.read_bytes()))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("BEGIN")
        process: int
        (process,) = database.execute("SELECT min(globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
        for table in _TABLES:
            column = "globalTid" if table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS") else "globalPid"
            database.execute(f"DELETE FROM {table} WHERE {column} / 0x1000000 <> {process} / 0x1000000")
        database.execute(f"DELETE FROM TARGET_INFO_CUDA_STREAM WHERE processId <> {process} / 0x1000000 % 0x1000000")
        recorded: int = sum(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in _TABLES)
        first, last = database.execute("SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()
        times: int = -(-rows // recorded)
        for table in _TABLES:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            shifted = [
                f"{name} + turn.n * {2 * (last - first)}"
                if name in _TIMES
                else f"{name} + turn.n * 10000000"
                if name == "correlationId"
                else name
                for name in columns
            ]
            database.execute(
                f"WITH RECURSIVE turn(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM turn WHERE n < {times - 1}) "
                f"INSERT INTO {table} SELECT {', '.join(shifted)} FROM turn CROSS JOIN (SELECT * FROM {table})"
            )
        database.execute("COMMIT")
    return recorded * times


def measured(code: str, path: Path) -> tuple[float, float, int]:
    """Seconds, seconds of all cores, and the peak bytes of all processes of a fresh run."""
    program = _MEASURED.format(code=code.format(columns=_COLUMNS))
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    seconds, core, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, core, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("page", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.sqlite"
        rows = grow(path, args.rows)
        size = path.stat().st_size
        lines = []
        for way, code in _WAYS.items():
            seconds, core, peak = measured(code, path)
            lines.append(f"| {way} | {seconds:.1f} | {core:.1f} | {peak / 1e6:,.0f} |")
            print(lines[-1], flush=True)
    args.page.write_text(
        f"""# Reading reports of Nsight Systems

Written by `python -m benchmarks.nsys`. The report is a recording of a training, repeated until it has {rows:,} rows:
{size / 1e6:,.0f} MB. Each way has a process of its own; the file is in the page cache.

{machine(dict.fromkeys(("overlapscope", "numpy", "pandas"), sys.executable))}

| | seconds | seconds of all cores | peak MB of all processes |
|---|---|---|---|
"""
        + "\n".join(lines)
        + """

Reading shares the work between two processes. Wanted are under 15 s and 1,500 MB on two cores. The peak is
the sum of what each process took at most, though not at the same time, and pages that both share are in it twice.
"""
    )


if __name__ == "__main__":
    main()
