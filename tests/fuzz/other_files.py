"""Mutated files that are not traces of torch.profiler:

Databases of Nsight Systems, recordings of XLA's profiler and of Ascend NPUs, histories, settings, settings that are not
files, and traces whose entries in the cache are not as they were written.
"""

from __future__ import annotations

import json
import lzma
import os
import random
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.fuzz.corpus import OriginalTrace, few
from tests.support.endless_tables import make_endless
from tests.support.helpers import TRACES
from tests.support.trace_views import TraceView
from tests.support.xspace import Plane, xspace

SETTINGS_KINDS: Final = ("dangling link", "directory", "pipe", "device")
"""Things other than files that can have the name of a settings file."""
_TABLES: Final = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "StringIds"),
    *("TARGET_INFO_CUDA_STREAM", "TARGET_INFO_GPU", "sqlite_schema"),
)
_NUMBERS: Final = (None, 0, -1, 1 << 31, (1 << 63) - 1, -(1 << 63), 1.5, "", "x" * 3000)
_VALUES: Final = (*_NUMBERS, "\x1b[31m", b"\xff", 7 << 24)
_MOST_INSTRUCTIONS: Final = 1_000_000
"""Instructions of SQLite's machine that a mutation may take: far more than any table of these databases needs."""
_PLANE_NAMES: Final = (
    *("/host:CPU", "/device:GPU:0", "/device:GPU:1", "/device:TPU:0", "Task Environment", "", "/host:metadata"),
    *("/device:GPU:" + "9" * 40, "/device:GPU:-1", "\x1b[31m"),
)
_EVENT_NAMES: Final = ("fusion", "MemcpyH2D", "MemcpyD2H", "Memset", "cuLaunchKernel", "PjitFunction(f)", "", "$x")
_SIZES: Final = (0, 1, 7, 7, (1 << 63) - 1)
_DETAILS: Final = (
    *("kind_src:pageable kind_dst:device size:4096 dest:0 async:1", "kind_src:x size:-1", "size:99999999999999999999"),
    *("kind:device size:4096 async:1", "kind:device size:", ""),
)
_STATISTICS: Final = {
    "correlation_id": _SIZES,
    "device_ordinal": _SIZES,
    "memcpy_details": _DETAILS,
    "memset_details": _DETAILS,
    "hlo_op": ("fusion.1", "", "\x1b[31m"),
    "kernel_details": ("regs:1", ""),
}

_SETTINGS: Final = """\
aggregate = "median"
skip_steps = 1
forbid = ["pageable-memory", "same-stream"]
[budgets]
efficiency_pct = { min = "80%", level = "warn" }
idle_pct = { max = 10, scope = "window", allow_missing = true }
copy_bandwidth = { min = "10 GB/s", direction = "h2d" }
[budgets.step_time]
max = "12 ms"
max_increase = "5%"
aggregate = "p90"
ranks = "each"
[[exceptions]]
rule = "pageable-memory"
reason = "known"
until = 2030-01-31
"""
_WORDS: Final = (
    "[budgets]",
    "[[budgets]]",
    "budgets",
    "max",
    "noise_floor",
    "tool",
    '"\\u0000"',
    "trace",
    "'[*'",
    "a.b.c",
)
_LITERALS: Final = (
    *("0", "-1", "1e308", "nan", "inf", "-inf", "9" * 400, "true", '""', '"-5 ms"', '"1e9999 s"', '"9" * 99', "[]"),
    *(
        '"x\\u001b[31m"',
        '"each"',
        '"p0"',
        '"["',
        "{}",
        "{ max = 1 }",
        "[{}]",
        "[" * 3000,
        "1979-05-27T07:32:00Z",
        "07:32:00",
    ),
    *('"٣ ms"', '"5 %%"', '"' + "(" * 3000 + '"', "0x7fffffffffffffffff", '["*", ""]', "'a'"),
)

Mutator = Callable[[random.Random, Path], None]


def settings_case(rng: random.Random) -> tuple[OriginalTrace, bytes, list[str]]:
    """Return settings with some values, keys or bytes changed, as `database_case` does."""
    lines = _SETTINGS.splitlines()
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(lines))
        key, equals, _ = lines[at].partition(" = ")
        value = rng.choice((*_LITERALS, lines[rng.randrange(len(lines))].partition(" = ")[2]))
        lines[at] = rng.choice((f"{key}{equals}{value}", f"{rng.choice(_WORDS)} = {value}", "", lines[at - 1]))
    data = bytearray("\n".join(lines).encode())
    for _ in range(rng.choice((0, 0, 0, 1, 10))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return OriginalTrace("settings", b""), bytes(data), ["other_settings"]


def history_case(rng: random.Random) -> tuple[OriginalTrace, bytes, list[str]]:
    """Return a mutated history, as `database_case` does."""
    return _mutated(rng, _history(), (other_pages, other_values, other_numbers, other_bytes))


@cache
def _history() -> OriginalTrace:
    from tests.plugins.history.histories import weeks, write

    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "history.sqlite", *weeks(4, 1, slow_from=2))
        return OriginalTrace("history of four reports", path.read_bytes())


def database_case(rng: random.Random) -> tuple[OriginalTrace, bytes, list[str]]:
    """Return a mutated database of Nsight Systems: its origin, its bytes, and the names of the mutators."""
    return _mutated(
        rng, _database(), (endless, other_pages, other_values, other_numbers, other_keys, without_table, other_bytes)
    )


def _mutated(
    rng: random.Random, origin: OriginalTrace, choices: tuple[Mutator, ...]
) -> tuple[OriginalTrace, bytes, list[str]]:
    mutators = rng.choices(choices, k=rng.choice((1, 1, 2)))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mutated.sqlite"
        path.write_bytes(origin.text)
        for mutator in mutators:
            # A mutator may find the database already damaged.
            with suppress(sqlite3.Error, UnicodeDecodeError, AssertionError, struct.error, IndexError):
                mutator(rng, path)
        return origin, path.read_bytes(), [mutator.__name__ for mutator in mutators]


@cache
def _database() -> OriginalTrace:
    return OriginalTrace("nsys/one_copy", lzma.decompress((TRACES / "nsys" / "one_copy.sqlite.xz").read_bytes()))


def endless(rng: random.Random, path: Path) -> None:
    """Have the pages of a table refer again and again to one page."""
    make_endless(path, rng.choice(_TABLES), levels=rng.choice((1, 2, 3, 4, 6)))


def other_pages(rng: random.Random, path: Path) -> None:
    """Have pages refer to other pages, to themselves, or to none."""
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack_from(">H", data, 16)
    pages = len(data) // size
    if pages < 2:
        return
    for _ in range(rng.choice((1, 2, 10))):
        page = rng.randrange(1, pages) * size
        data[page] = rng.choice((2, 5, 5, 10, 13, data[page]))
        struct.pack_into(">I", data, page + 8, rng.choice((0, page // size + 1, rng.randrange(pages + 2), 1 << 31)))
    path.write_bytes(data)


def _connected(path: Path) -> sqlite3.Connection:
    """Return a connection that gives up statements without end, as on a table that is endless already."""
    database = sqlite3.connect(path)
    database.set_progress_handler(lambda: 1, _MOST_INSTRUCTIONS)
    return database


def other_values(rng: random.Random, path: Path) -> None:
    """Change a column of some rows."""
    with closing(_connected(path)) as database, database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for table in rng.choices(tables, k=rng.choice((1, 1, 3))):
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            where = rng.choice(("", f"WHERE rowid % {rng.randrange(2, 9)} = 0"))
            database.execute(f'UPDATE "{table}" SET "{rng.choice(columns)}" = ? {where}', (rng.choice(_VALUES),))


def other_numbers(rng: random.Random, path: Path) -> None:
    """Number devices, streams, threads and names in each row anew, by numbers that are few, many or huge."""
    with closing(_connected(path)) as database, database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for table in rng.choices(tables, k=rng.choice((1, 3, 9))):
            about = database.execute(f'PRAGMA table_info("{table}")').fetchall()
            numbers = [row[1] for row in about if "INT" in row[2].upper()]
            if numbers:
                each, most = rng.choice((1, 7919, 132_275, 1 << 24)), rng.choice((2, 256, 756, (1 << 31) - 1, 1 << 62))
                number = rng.choice(("max(0, rowid)", "(SELECT count(*) FROM sqlite_schema)"))
                database.execute(f'UPDATE "{table}" SET "{rng.choice(numbers)}" = ({number} * {each}) % {most}')


def other_keys(rng: random.Random, path: Path) -> None:
    """Give a table other keys or none, double its rows, or put a view in its place."""
    table = rng.choice(_TABLES[:-1])
    with closing(_connected(path)) as database, database:
        database.execute(f'ALTER TABLE "{table}" RENAME TO before')
        rows = f"SELECT * FROM before {rng.choice(('', 'UNION ALL SELECT * FROM before', 'ORDER BY random()'))}"
        columns = ", ".join(f'"{row[1]}"' for row in database.execute("PRAGMA table_info(before)"))
        how = rng.choice(("table", "table", "view", "keyed"))
        if how == "keyed":
            database.execute(f'CREATE TABLE "{table}" ({columns}, PRIMARY KEY ({columns})) WITHOUT ROWID')
            database.execute(f'INSERT OR IGNORE INTO "{table}" {rows}')
        else:
            database.execute(f'CREATE {how} "{table}" AS {rows}')


def ascend_case(rng: random.Random) -> tuple[OriginalTrace, bytes, list[str]]:
    """Return a mutated recording of an Ascend NPU, as `database_case` does."""
    origin = _ascend()
    events = json.loads(origin.text)
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        event = rng.choice(events)
        holder = rng.choice((event, event.get("args") or event))
        key, how = rng.choice([*holder, "connection_id"]), rng.randrange(4)
        if how == 0:
            holder.pop(key, None)
        elif how == 1:
            holder[key] = rng.choice(
                (*_NUMBERS, [], {"a": 1}, True, "9" * 40, "-1", "nan", "Model", "\x1b[31m", "\ud800")
            )
        elif how == 2:
            holder[key] = rng.choice(events).get(key)
        else:
            events.insert(rng.randrange(len(events)), dict(event))
        if not isinstance(event.get("args"), dict):
            event["args"] = {"args": event.get("args")}
    data = bytearray(json.dumps(events).encode())
    for _ in range(rng.choice((0, 0, 0, 1, 10))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return origin, bytes(data if rng.random() < 0.9 else data[: rng.randrange(len(data))]), ["other_events"]


@cache
def _ascend() -> OriginalTrace:
    view = TraceView()
    for number in range(3):
        view.host("cpu_op", f"ProfilerStep#{number}", 300 * number, 290)
    for number in range(8):
        at = 100 * number + 10
        view.kernel(at, 30, 3 * number)
        view.collective(at + 20, 30, 3 * number + 1, f"hcom_allReduce__586_{number}_1")
        view.call("AscendCL@aclrtMemcpyAsync", at, 3, 3 * number + 2)
        copy = {"operation": "host to device", "size(B)": 64, "connection_id": 3 * number + 2}
        view.task("MEMCPY_ASYNC", "PCIE_DMA_SQE", at + 40, 30, 3, **copy)
        view.task("EVENT_WAIT", "EVENT_WAIT_SQE", at + 60, 1)
    view.sums("Computing", 10, 900)
    return OriginalTrace("made up, of an Ascend NPU", view.text().encode())


def cached_case(rng: random.Random) -> tuple[OriginalTrace, bytes, list[str]]:
    """Return a whole trace. The oracle spoils its entry in the cache."""
    origin = rng.choice(few())
    return origin, origin.text, ["cached"]


def spoil(rng: random.Random, folder: Path) -> None:
    """Change files of a cache: copy them over each other, cut, stretch or change them."""
    held = sorted(file for file in folder.iterdir() if file.suffix == ".npy")
    for file in rng.choices(held, k=rng.choice((1, 1, 2, 5))):
        how = rng.randrange(4)
        data = bytearray(_beginning(file))
        if how == 0:
            file.write_bytes(_beginning(rng.choice(held)))
        elif how == 1:
            os.truncate(file, rng.choice((0, 1, len(data) // 2, len(data) + 1, 1 << 33, 100_000_000_000)))
        elif data:
            for _ in range(rng.choice((1, 10))):
                data[rng.randrange(len(data))] = rng.randrange(256)
            file.write_bytes(data)


def _beginning(file: Path) -> bytes:
    """Return all of a file that isn't stretched."""
    with file.open("rb") as opened:
        return opened.read(1 << 24)


def without_table(rng: random.Random, path: Path) -> None:
    """Drop a table, or make it a view that never ends."""
    table = rng.choice(_TABLES[:-1])
    with closing(_connected(path)) as database, database:
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        database.execute(f'DROP TABLE "{table}"')
        if columns and rng.random() < 0.5:
            values = ", ".join(f'n AS "{column}"' for column in columns)
            endless_rows = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
            database.execute(f'CREATE VIEW "{table}" AS {endless_rows} SELECT {values} FROM c')


def other_bytes(rng: random.Random, path: Path) -> None:
    """Change some bytes, or cut the file."""
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 10, 300))):
        data[rng.randrange(100, len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    path.write_bytes(data if rng.random() < 0.8 else data[: rng.randrange(len(data))])


def plane_case(rng: random.Random) -> tuple[OriginalTrace, bytes, list[str]]:
    """Return a recording of XLA's profiler, made up or mutated: its origin, its bytes, and the mutations."""
    how = rng.randrange(4)
    if how == 0:
        origin = _recording(rng.choice(("late", "prefetched")))
        data = bytearray(origin.text)
        for _ in range(rng.choice((1, 5, 100))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return origin, bytes(data if rng.random() < 0.8 else data[: rng.randrange(len(data))]), ["other_bytes"]
    planes = [_plane(rng) for _ in range(rng.choice((0, 1, 2, 5)))]
    if how == 1:
        planes += [Plane(rng.choice(_PLANE_NAMES), {(0, ""): []} if rng.random() < 0.5 else {})] * rng.choice(
            (50, 50, 50, 5000)
        )
    data_ = xspace(Plane("/host:CPU"), *planes, warnings=("7 events dropped",) if rng.random() < 0.1 else ())
    return OriginalTrace("made up by hand", b""), data_, ["many_planes" if how == 1 else "planes"]


@cache
def _recording(name: str) -> OriginalTrace:
    return OriginalTrace(f"jax/{name}", (TRACES / "jax" / f"{name}.xplane.pb").read_bytes())


def _plane(rng: random.Random) -> Plane:
    lines = {}
    for _ in range(rng.choice((0, 1, 3))):
        title = rng.choice(("Stream #7(MemcpyH2D)", "Stream #13(Compute)", "python", "XLA Modules", "Steps", ""))
        events = []
        for number in range(rng.choice((0, 3, 30))):
            statistics = _statistics(rng)
            begin = rng.choice((number * 1000, 0, 1 << 50, (1 << 62) // 1000))
            length = rng.choice((500, 0, 5000, (1 << 62) // 1000))
            events.append((rng.choice(_EVENT_NAMES), begin, length, statistics))
        lines[rng.randrange(1 << 40), title] = events
    return Plane(rng.choice(_PLANE_NAMES), lines, {"clock_rate": rng.choice((1, 1 << 60))})


def _statistics(rng: random.Random) -> dict[str, str | int]:
    names = rng.sample(list(_STATISTICS), rng.randrange(4))
    if rng.random() < 0.01:
        return {name: rng.choice((*_SIZES, *_DETAILS)) for name in names}
    return {name: rng.choice(_STATISTICS[name]) for name in names}
