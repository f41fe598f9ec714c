"""The Trace of one process in an exported report of Nsight Systems.

Tables and columns differ by version and by the options of `nsys profile --trace`, so each is read by name if it exists.
The facts come from NVIDIA's "SQLite Schema Reference" and from exports of schema 3.24 and 3.25.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import locate
from overlapscope.base.grouping import among
from overlapscope.base.words import clean
from overlapscope.errors import UnreadableTrace
from overlapscope.plugins.nsys import gpu, helper, host, syncs
from overlapscope.plugins.nsys.database import Database
from overlapscope.plugins.nsys.rows import Names, Rows, kept, ordered
from overlapscope.reading._processes import MOST_PROCESSES
from overlapscope.reading._progress import ReadingBar
from overlapscope.reading._tables import LARGEST_BYTES, too_fast, with_peer_copies
from overlapscope.reading._times import LARGEST_TOTAL_NS, is_possible, recording
from overlapscope.reading.file_names import file_and_part, rank_in_name, shown_source
from overlapscope.reading.files import LIMIT_BYTES, chosen_part, place
from overlapscope.reading.source import ReadRequest
from overlapscope.trace.lost import OF_KIND, Part
from overlapscope.trace.model import (
    Collectives,
    Damage,
    DeviceAnnotations,
    Framework,
    GpuOps,
    HostEvents,
    Kind,
    RuntimeCalls,
    Syncs,
    Trace,
)

PID_SHIFT: Final = 24
PID_MASK: Final = 0xFFFFFF
"""Bit of a serialized id at which the process's number begins."""
_LARGEST_BASE_NS: Final = 1 << 62
_WARNING: Final = 2
"""Severity of a diagnostic message from which it is a warning."""
_MOST_WARNINGS: Final = 3
_LONGEST_WARNING: Final = 200
_VERSIONS: Final = {"EXPORT_PRODUCT_VERSION": "nsys", "EXPORT_SCHEMA_VERSION": "schema"}
_PARTS: Final[dict[str, Part]] = {
    "runtime_calls": "calls",
    "cpu_ops": "ops",
    "annotations": "ranges",
    "overheads": "overheads",
    "syncs": "syncs",
}
_TABLES: Final = ("StringIds", *gpu.TABLES, *host.TABLES, syncs.SYNCS, syncs.EVENTS)


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
        process = processes[part] if processes else None
        rows = max(sum(database.rows(table) for table in _TABLES), 1)
        with ReadingBar(str(path), size, request.progress) as bar:
            done = 0

            def read_rows(count: int) -> None:
                nonlocal done
                done += count
                bar.at(min(size * done // rows, size))

            database.listen(read_rows)
            with helper.ranges(database, process) as ranges:
                trace = _assemble(database, process, ranges)
    rank = rank_in_name(file.name)
    # Several recorded processes are numbered as ranks in the order of their devices.
    rank = part if rank is None and len(processes) > 1 else rank
    return replace(trace, source=shown_source(path), rank=rank, unpacked_bytes=size)


def parts(path: Path) -> int:
    """Return the number of processes that used a GPU."""
    return len(processes_of(path))


def processes_of(path: Path) -> list[int]:
    """Return the processes that used a GPU, by their devices; none if they are not stated or the file is unreadable."""
    try:
        with closing(Database(place(path, LIMIT_BYTES), path)) as database:
            return _processes(database)
    except (UnreadableTrace, OSError):
        # Reading the report reports the error.
        return []


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
    for table in gpu.TABLES:
        for process, device in database.distinct(table, "globalPid", "deviceId", first=alone):
            first_device[process] = min(device, first_device.get(process, device))
    if len(first_device) > MOST_PROCESSES:
        raise UnreadableTrace(
            database.shown, f"names {len(first_device):,} processes, so it is damaged; export the report again."
        )
    return sorted(first_device, key=lambda process: (first_device[process], process))


def _assemble(database: Database, process: int | None, ranges: Callable[[Names], helper.Ranges]) -> Trace:
    names = Names(database)
    tables: dict[str, Rows] = {
        "gpu_ops": gpu.read(database, names, process),
        "runtime_calls": host.calls(database, names, process),
        "overheads": host.overheads(database, names, process),
    }
    tables["syncs"] = syncs.read(database, names, process, tables["runtime_calls"])
    tables["cpu_ops"], tables["annotations"] = ranges(names)
    rows, damage = _plausible_rows(tables)
    lasting = sum(float((table["end_ns"] - table["start_ns"]).sum(dtype=np.float64)) for table in rows.values())
    if lasting > LARGEST_TOTAL_NS:
        raise UnreadableTrace(database.shown, "its events last more than two years in total; export the report again.")
    base_ns = next((utc for utc, _ in database.pairs("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", "utcEpochNs")), 0)
    base_ns = base_ns if isinstance(base_ns, int) and 0 < base_ns < _LARGEST_BASE_NS else 0
    for table in rows.values():
        table["start_ns"] += base_ns
        table["end_ns"] += base_ns
    text = names.all()
    runtime_calls = RuntimeCalls(names=text, **rows["runtime_calls"])
    correlation = rows["gpu_ops"]["correlation"]
    launch = np.where(correlation > 0, locate(runtime_calls.correlation, correlation), -1)
    sides = rows["gpu_ops"]["source_device"], rows["gpu_ops"]["target_device"]
    rows["gpu_ops"]["kind"] = with_peer_copies(rows["gpu_ops"]["kind"], *sides, runtime_calls, launch)
    damage = replace(damage, impossible_sizes=_forget_impossible_sizes(rows["gpu_ops"]))
    return Trace(
        source="",
        names=text,
        gpu_ops=GpuOps(names=text, launch=launch, **rows["gpu_ops"]),
        runtime_calls=runtime_calls,
        cpu_ops=HostEvents(names=text, **rows["cpu_ops"]),
        annotations=HostEvents(names=text, **rows["annotations"]),
        python_frames=HostEvents.empty(names=text),
        overheads=HostEvents(names=text, **rows["overheads"]),
        syncs=Syncs(names=text, **rows["syncs"]),
        device_annotations=DeviceAnnotations.empty(names=text),
        collectives=Collectives.empty(names=text),
        device_names=_device_names(database, process),
        versions={
            name: str(value)
            for key, name in _VERSIONS.items()
            for stated, value in database.pairs("META_DATA_EXPORT", "name", "value")
            if stated == key
        },
        damage=damage,
        warnings=_warnings(database),
        base_ns=base_ns,
        recorder="nsys",
        framework=_framework(text),
        whole_graphs=int(among(rows["gpu_ops"]["name_id"], names.numbers(gpu.WHOLE_GRAPH)).sum()),
    )


def _plausible_rows(tables: dict[str, Rows]) -> tuple[dict[str, Rows], Damage]:
    """Return the rows that can have happened, ordered, and the number of dropped rows.

    Empties `tables`, so that large tables are not held twice.
    """
    starts = np.concatenate([rows["start_ns"] for rows in tables.values()])
    begin_ns, end_ns = recording(starts[starts > 0], None)
    lost: Counter[str] = Counter()
    ordered_tables: dict[str, Rows] = {}
    place = 0
    for name in list(tables):
        rows = tables.pop(name)
        length = rows["end_ns"] - rows["start_ns"]
        fits = is_possible(rows["start_ns"], length, begin_ns, end_ns)
        if name == "gpu_ops":
            lost.update(OF_KIND[Kind(kind)] for kind in rows["kind"][~fits].tolist())
        else:
            lost[_PARTS[name]] += int((~fits).sum())
        ordered_tables[name] = ordered(kept(rows, fits), place)
        place += int(fits.sum())
    lost = +lost
    return ordered_tables, Damage(impossible_times=lost.total(), impossible_by=dict(lost))


def _forget_impossible_sizes(ops: Rows) -> dict[str, int]:
    """Forget sizes that no copy can have moved in its time; return how many, by part."""
    fast = too_fast(ops["kind"], ops["bytes"], ops["end_ns"] - ops["start_ns"] + 1)
    wrong = fast | (ops["bytes"] > LARGEST_BYTES)
    ops["bytes"] = np.where(wrong | (ops["bytes"] < 0), -1, ops["bytes"])
    return dict(Counter(OF_KIND[Kind(kind)] for kind in ops["kind"][wrong].tolist()))


def _warnings(database: Database) -> tuple[str, ...]:
    """Return the report's warnings and errors on CUDA."""
    stated = database.pairs("DIAGNOSTIC_EVENT", "severity", "text")
    texts = (text for severity, text in stated if isinstance(severity, int) and severity >= _WARNING)
    messages = dict.fromkeys(" ".join(text.split()) for text in texts if isinstance(text, str) and "CUDA" in text)
    return tuple(text for text in messages if len(text) <= _LONGEST_WARNING)[:_MOST_WARNINGS]


def _device_names(database: Database, process: int | None) -> dict[int, str]:
    """Return the names of a process's devices.

    CUDA numbers the devices of each process anew. If that is not recorded, its numbers are assumed to be the ids of the
    GPUs.
    """
    stated = database.pairs("TARGET_INFO_GPU", "id", "name")
    products = {id: name.strip() for id, name in stated if isinstance(name, str) and name.strip()}
    numbered = database.distinct("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId", "pid")
    pid = None if process is None else process >> PID_SHIFT & PID_MASK
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
