"""The Trace of one process in an exported report of Nsight Systems.

Tables and columns differ by version and by the options of `nsys profile --trace`, so each is read by name if it exists.
The facts come from NVIDIA's "SQLite Schema Reference" and from exports of schema 3.24 and 3.25.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from overlapscope.base.marks import FRAMEWORK, METADATA, RECORDER
from overlapscope.base.words import clean
from overlapscope.errors import UnreadableTrace
from overlapscope.plugins.nsys.database import Database
from overlapscope.plugins.nsys.rows import (
    EVENTS,
    HOST,
    OPS,
    SYNCS,
    WHOLE_GRAPH,
    calls,
    device_ops,
    operators_and_ranges,
    overheads,
    synchronizations,
)
from overlapscope.reading import kineto
from overlapscope.reading._columns import EventColumns
from overlapscope.reading._events import Losses
from overlapscope.reading._processes import MAX_PROCESSES
from overlapscope.reading._progress import ReadingBar
from overlapscope.reading.file_names import file_and_part, rank_in_name
from overlapscope.reading.files import LIMIT_BYTES, chosen_part, place
from overlapscope.reading.source import ReadRequest
from overlapscope.trace.model import Framework, Trace

PID_SHIFT: Final = 24
PID_MASK: Final = 0xFFFFFF
"""Bit of a serialized id at which the process's number begins."""
_WARNING_SEVERITY: Final = 2
"""Severity of a diagnostic message from which it is a warning."""
_MAX_WARNINGS: Final = 3
_LONGEST_WARNING: Final = 200
_VERSIONS: Final = {"EXPORT_PRODUCT_VERSION": "nsys_version", "EXPORT_SCHEMA_VERSION": "schema_version"}
_TABLES: Final = ("StringIds", *OPS, *HOST, SYNCS, EVENTS)


def read(path: Path, request: ReadRequest) -> Trace:
    """Return the Trace of the process that the path names, or of the only process in the file.

    Raises:
        UnreadableTrace: There is no such process, or the file is damaged.
    """
    file, _ = file_and_part(path)
    located = place(file, request.limit_bytes)
    size = located.stat().st_size
    if size > request.limit_bytes:
        raise UnreadableTrace(path, f"is larger than --max-size allows ({size:,} bytes); raise it.")
    with closing(Database(located, path)) as database:
        _check(database, path)
        processes = _processes(database)
        part = chosen_part(path, len(processes))
        database.process = processes[part] if processes else None
        rows = max(sum(database.rows(table) for table in _TABLES), 1)
        with ReadingBar(str(path), size, request.progress) as bar:
            database.listen(lambda done: bar.at(min(size * done // rows, size)))
            # Several recorded processes are numbered as ranks in the order of their devices.
            rank = part if rank_in_name(file.name) is None and len(processes) > 1 else None
            return _assemble(database, size, rank)


def parts(path: Path) -> int:
    """Return the number of processes that used a GPU."""
    try:
        with closing(Database(place(path, LIMIT_BYTES), path)) as database:
            return len(_processes(database))
    except (UnreadableTrace, OSError):
        # Reading the report reports the error.
        return 0


def _check(database: Database, path: Path) -> None:
    """Check that the database is an export of Nsight Systems.

    Raises:
        UnreadableTrace: It is not.
    """
    if "StringIds" not in database.columns or not any(
        name.startswith(("CUPTI_", "META_DATA_", "NVTX_", "TARGET_INFO_")) for name in database.columns
    ):
        raise UnreadableTrace(
            path,
            "this SQLite database was not written by `nsys export --type sqlite`: it lacks the table "
            "StringIds, or tables of CUDA.",
        )


def _processes(database: Database) -> list[int]:
    """Return the serialized ids of the processes, in the order of the devices that they used."""
    # If only one process has streams, its first op identifies it, without a search through all tables.
    alone = len(database.distinct("TARGET_INFO_CUDA_STREAM", "processId")) == 1
    first_device: dict[int, int] = {}
    for table in OPS:
        for process, device in database.distinct(table, "globalPid", "deviceId", first=alone):
            first_device[process] = min(device, first_device.get(process, device))
    if len(first_device) > MAX_PROCESSES:
        raise UnreadableTrace(
            database.shown, f"names {len(first_device):,} processes, so it is damaged; export the report again."
        )
    return sorted(first_device, key=lambda process: (first_device[process], process))


def _assemble(database: Database, size: int, rank: int | None) -> Trace:
    rows = EventColumns(str(database.shown))
    device_ops(database, rows)
    called = calls(database, rows)
    overheads(database, rows)
    synchronizations(database, rows, called)
    operators_and_ranges(database, rows)
    base_ns = next((utc for (utc,) in database.stated("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), 0)
    stated = dict(database.stated("META_DATA_EXPORT", "name", "value"))
    metadata: dict[str, Any] = {
        **{name: str(stated[key]) for key, name in _VERSIONS.items() if key in stated},
        "baseTimeNanoseconds": base_ns if isinstance(base_ns, int) and base_ns > 0 else 0,
        "deviceProperties": [{"id": id, "name": name} for id, name in _device_names(database).items()],
        "distributedInfo": {"rank": rank},
        METADATA: {RECORDER: "nsys", FRAMEWORK: _framework(rows.names)},
    }
    trace = kineto.assemble(str(database.shown), rows, metadata, Losses(), size)
    whole_graphs = trace.gpu_ops.named(lambda name: name.startswith(WHOLE_GRAPH))
    return replace(trace, warnings=_warnings(database), whole_graphs=int(whole_graphs.sum()))


def _warnings(database: Database) -> tuple[str, ...]:
    """Return the report's warnings and errors on CUDA."""
    stated = database.stated("DIAGNOSTIC_EVENT", "severity", "text")
    texts = (text for severity, text in stated if isinstance(severity, int) and severity >= _WARNING_SEVERITY)
    messages = dict.fromkeys(" ".join(text.split()) for text in texts if isinstance(text, str) and "CUDA" in text)
    return tuple(text for text in messages if len(text) <= _LONGEST_WARNING)[:_MAX_WARNINGS]


def _device_names(database: Database) -> dict[int, str]:
    """Return the names of the process's devices.

    CUDA numbers the devices of each process anew. If that is not recorded, its numbers are assumed to be the ids of the
    GPUs.
    """
    stated = database.stated("TARGET_INFO_GPU", "id", "name")
    products = {id: name.strip() for id, name in stated if isinstance(name, str) and name.strip()}
    numbered = database.distinct("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId", "pid")
    pid = None if database.process is None else database.process >> PID_SHIFT & PID_MASK
    visible_names = {cuda: products[gpu] for cuda, gpu, of in numbered if of == pid and gpu in products}
    return visible_names or {id: name for id, name in products.items() if isinstance(id, int)}


def _framework(names: Iterable[str]) -> Framework:
    """Return the framework of the program, by the names of its kernels and ranges."""
    for name in names:
        if "at::native::" in name or name.startswith(("aten::", "triton_")):
            return "pytorch"
        if name.startswith(("XlaModule:", "TSL:", "jit_")):
            return "jax"
    return "cuda"


# -- Export of Nsight Systems' own reports, whose format only nsys reads -----------------------------


def export(report: Path, target: Path) -> None:
    """Write the database of a report. `nsys` shows its progress where stderr is a terminal.

    Raises:
        UnreadableTrace: There is no `nsys`, or it fails.
    """
    import subprocess

    nsys = shutil.which("nsys")
    if nsys is None:
        raise UnreadableTrace(
            report,
            f"is a report of Nsight Systems, which only nsys can read, and nsys is not on the PATH; run "
            f"`nsys export --type sqlite {report.name}` where it is, and name the .sqlite file.",
        )
    shows = sys.stderr is not None and sys.stderr.isatty()
    command = [nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(report.absolute())]
    done = subprocess.run(
        [*command[:-1], f"--quiet={'false' if shows else 'true'}", command[-1]],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if shows else subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode or not target.is_file():
        lines = (done.stdout or b"").decode("utf-8", "replace").split("\n")
        reason = next((clean(line.strip(), 200) for line in reversed(lines) if line.strip()), "without a message")
        reason = reason.rstrip(".")
        raise UnreadableTrace(report, f"`nsys export` failed ({reason}); check the report and nsys' version.")
