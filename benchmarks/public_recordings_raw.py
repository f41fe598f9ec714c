"""Work of devices and threads from raw files, without overlapscope's code, and the time of a window by sweeping.

`benchmarks.public_recordings` compares it with overlapscope's figures.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

ORDER: Final = ("compute", "comm", "copy", "other", "loading", "ops")
"""Classes of work of a device, then of a thread. An instant in which several run belongs to the first."""
COMM: Final = re.compile(
    r"nccl|rccl|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|internode|intranode",
    re.IGNORECASE,
)
RANGE: Final = re.compile(r"nccl:(?!coalesced$)(\w+)")
TO_OR_FROM_HOST: Final = re.compile(r"HtoD|DtoH|H2D|D2H|Host_?To_?Device|Device_?To_?Host", re.IGNORECASE)
SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
NCCL_LAUNCHES: Final = (
    "SELECT correlationId, text, textId FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call JOIN NVTX_EVENTS AS range "
    "ON call.globalTid = range.globalTid AND call.start BETWEEN range.start AND range.end ORDER BY range.start"
)
NSYS_DIRECTIONS: Final = {1: "HtoD", 2: "DtoH"}
WITHIN_DEVICE: Final = re.compile(r"__amd_rocclr_(?:copy|fill)|Copy(?:Device_?To_?Device)|.*FillBuffer$", re.IGNORECASE)

Collective = tuple[str, str, str]
"""Name of a collective, its group and the group's ranks; the latter two are empty where not recorded."""


class PublicOp(NamedTuple):
    """Work of a device or a thread, in nanoseconds."""

    start: int
    end: int
    kind: str
    collective: Collective | None = None


class Sums(NamedTuple):
    """Time in a window by class, and time of each collective."""

    first: Counter[str]
    """Time by the first class that ran, or `idle`."""
    comm: int
    """Time in which communication ran, whatever ran beside it."""
    busy: Counter[Collective]
    exposed: Counter[Collective]


# -- Files ------------------------------------------------------------------------------------------------


def ops_of(path: Path) -> dict[int, list[PublicOp]]:
    """Return the work in a file by device."""
    devices: defaultdict[int, list[PublicOp]] = defaultdict(list)
    reader = {".sqlite": _of_nsys, ".pb": _of_xplane}.get(path.suffix, _of_kineto)
    for device, op in reader(path):
        devices[device].append(op)
    return devices


def threads_of(path: Path) -> dict[Any, list[PublicOp]]:
    """Return the CPU ops, without starts of collectives, and the loading of batches in a profiler's file by thread."""
    trace = _parsed(path)
    threads: defaultdict[Any, list[PublicOp]] = defaultdict(list)
    for event in _complete(trace):
        loads = event["name"].startswith("enumerate(DataLoader)")
        starts = event["name"].startswith("c10d::") or event["name"] == "record_param_comms"
        if loads or (event.get("cat") in ("cpu_op", "Operator") and not starts):
            threads[event["tid"]].append(PublicOp(*_span(trace, event), "loading" if loads else "ops"))
    return threads


def _parsed(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    trace = json.loads(text.decode(errors="replace"), parse_float=Decimal, strict=False)
    return trace if isinstance(trace, dict) else {"traceEvents": trace}


def _complete(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("ph") == "X"]


def _span(trace: dict[str, Any], event: dict[str, Any]) -> tuple[int, int]:
    base_ns, start = trace.get("baseTimeNanoseconds", 0), Decimal(event["ts"])
    return base_ns + round(start * 1000), base_ns + round((start + Decimal(event.get("dur", 0))) * 1000)


def _of_kineto(path: Path) -> Iterator[tuple[int, PublicOp]]:
    trace = _parsed(path)
    events = _complete(trace)
    calls = {
        event["args"]["correlation"]: event
        for event in reversed(events)
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    ranges: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "user_annotation" and RANGE.fullmatch(event["name"]):
            ranges[event["tid"]].append(event)
    for event in events:
        # Kineto's first releases wrote `Kernel`, `Memcpy` and `Memset`.
        category = str(event.get("cat", "")).lower().removeprefix("gpu_")
        on_mtia = category == "mtia_ccp_events" and event["name"] not in ("event_wait", "event_record")
        if category in ("kernel", "memcpy", "memset") or on_mtia:
            args = event["args"]
            kind = _kind(args.get("direction", event["name"]), category, args)
            call = calls.get(args.get("correlation")) if kind == "comm" else None
            inside = [each["name"] for each in ranges[call["tid"]] if _runs_at(each, call["ts"])] if call else []
            collective = _collective(event["name"], args, inside) if kind == "comm" else None
            yield int(args.get("device", event["pid"])), PublicOp(*_span(trace, event), kind, collective)


def _runs_at(event: dict[str, Any], at: Any) -> bool:
    return bool(event["ts"] <= at < event["ts"] + event["dur"])


def _of_nsys(path: Path) -> Iterator[tuple[int, PublicOp]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
        start_times = file.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME") if SESSION in tables else ()
        base_ns = next((at for (at,) in start_times), 0)
        names = dict(file.execute("SELECT id, value FROM StringIds"))
        launched_in = defaultdict[int, list[str]](list)
        for correlation, text, name in file.execute(NCCL_LAUNCHES) if "NVTX_EVENTS" in tables else ():
            # `nccl:all_to_all, op_id = 7`
            words = (text or names.get(name, "")).partition(",")[0]
            if RANGE.fullmatch(words):
                launched_in[correlation].append(words)
        for category, value_column in (("KERNEL", "demangledName"), ("MEMCPY", "copyKind"), ("MEMSET", "0")):
            table = f"CUPTI_ACTIVITY_KIND_{category}"
            columns = f"deviceId, start, end, correlationId, {value_column}"
            for device, start, end, correlation, value in (
                file.execute(f"SELECT {columns} FROM {table}") if table in tables else ()
            ):
                name = names[value] if category == "KERNEL" else NSYS_DIRECTIONS.get(value, "")
                kind = _kind(name, category.lower(), {})
                collective = _collective(name, {}, launched_in[correlation]) if kind == "comm" else None
                yield device, PublicOp(start + base_ns, end + base_ns, kind, collective)


def _of_xplane(path: Path) -> Iterator[tuple[int, PublicOp]]:
    planes = [list(_fields(part)) for number, part in _fields(path.read_bytes()) if number == 1]
    stats = [(_names(plane, 5).get(stat[1]), stat) for plane in planes for stat in _messages(plane, 6)]
    base_ns = next((stat.get(3) or stat[4] for name, stat in stats if name == "profile_start_time"), 0)
    for plane in planes:
        device = re.fullmatch(rb"/device:GPU:(\d+)", dict(plane)[2])
        if device is None:
            continue
        names = _names(plane, 4)
        for line in (list(_fields(value)) for number, value in plane if number == 3):
            begin_ns = base_ns + dict(line).get(3, 0)
            for event in _messages(line, 4) if dict(line).get(2, b"").startswith(b"Stream #") else ():
                name, start_ps = names[event[1]], event.get(2, 0)
                category = "memcpy" if name.startswith("Memcpy") else "kernel"
                start, end = (begin_ns + at // 1000 for at in (start_ps, start_ps + event.get(3, 0)))
                yield int(device[1]), PublicOp(start, end, _kind(name, category, {}))


def _names(plane: list[tuple[int, Any]], field: int) -> dict[int, str]:
    entries = _messages(plane, field)
    return {entry[1]: dict(_fields(entry[2])).get(2, b"").decode() for entry in entries}


def _messages(message: list[tuple[int, Any]], field: int) -> list[dict[int, Any]]:
    return [dict(_fields(value)) for number, value in message if number == field]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Return the fields of a message of protocol buffers: their numbers, and integers or bytes."""
    at = 0

    def integer() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        number, wire = divmod(integer(), 8)
        if wire == 0:
            yield number, integer()
        else:
            length = integer() if wire == 2 else 8 if wire == 1 else 4
            yield number, message[at : at + length]
            at += length


def _kind(name: str, category: str, args: dict[str, Any]) -> str:
    if category == "memset" or (category == "kernel" and WITHIN_DEVICE.match(name)):
        return "other"
    if category == "memcpy" or name.startswith(("CopyHost", "CopyDevice", "MEMORY_COPY", "HOST_TO", "DEVICE_TO")):
        return "copy" if TO_OR_FROM_HOST.search(name) else "other"
    is_comm = "Collective name" in args or (COMM.search(_bare(name)) and not name.startswith("triton_"))
    return "comm" if is_comm else "compute"


def _collective(name: str, args: dict[str, Any], ranges: Sequence[str]) -> Collective:
    if "Collective name" in args:
        return args["Collective name"], args.get("Process Group Name", ""), args.get("Process Group Ranks", "")
    return (ranges[-1].removeprefix("nccl:") if ranges else _bare(name)), "", ""


def _bare(name: str) -> str:
    return re.split(r"[<(]", name.replace("(anonymous namespace)::", "").removeprefix("void "))[0]


# -- Sums -------------------------------------------------------------------------------------------------


def sweep(ops: Iterable[PublicOp], begin: int, end: int) -> Sums:
    """Add up the time of a window, from edge to edge of its work."""
    edges = [(at, op, change) for op in ops for at, change in ((op.start, 1), (op.end, -1)) if op.end > op.start]
    first: Counter[str] = Counter()
    busy: Counter[Collective] = Counter()
    exposed: Counter[Collective] = Counter()
    running: Counter[str] = Counter()
    met: Counter[Collective] = Counter()
    comm, before = 0, begin
    for at, op, change in [*sorted(edges, key=lambda edge: edge[0]), (end, None, 0)]:
        length = min(at, end) - before
        if length > 0:
            leading = next((kind for kind in ORDER if running[kind]), "idle")
            first[leading] += length
            comm += length if running["comm"] else 0
            for collective in [each for each, count in met.items() if count]:
                busy[collective] += length
                exposed[collective] += length if leading != "compute" else 0
            before = min(at, end)
        if op is not None:
            running[op.kind] += change
            if op.collective is not None:
                met[op.collective] += change
    return Sums(first, comm, busy, exposed)


def waited(ops: Sequence[Sequence[PublicOp]], judged_from: Sequence[int], windows: Sequence[tuple[int, int]]) -> int:
    """Return the time that ranks waited for the last in a collective, which all have as often, in their windows."""
    total = 0
    last = [max(each.start for each in met) for met in zip(*ops, strict=True)]
    judged = [
        all(op.start >= since for op, since in zip(met, judged_from, strict=True)) for met in zip(*ops, strict=True)
    ]
    for mine, (begin, end) in zip(ops, windows, strict=True):
        over = begin
        for op, arrival, counts in zip(mine, last, judged, strict=True):
            start, stop = max(op.start, over), min(arrival, op.end, end)
            if counts and stop > start:
                total += stop - start
                over = stop
    return total
