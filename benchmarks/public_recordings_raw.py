"""Work of devices from raw files, without overlapscope's code: what each op is, and the time of a window by sweeping.

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

ORDER: Final = ("compute", "comm", "copy", "other")
"""Classes of work. An instant in which several run belongs to the first."""
COMM: Final = re.compile(
    r"nccl|rccl|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|internode|intranode",
    re.IGNORECASE,
)
RANGE: Final = re.compile(r"nccl:(?!coalesced$)(\w+)")
TO_OR_FROM_HOST: Final = re.compile(r"HtoD|DtoH|Host_?To_?Device|Device_?To_?Host", re.IGNORECASE)
WITHIN_DEVICE: Final = re.compile(r"__amd_rocclr_(?:copy|fill)|Copy(?:Device_?To_?Device)|.*FillBuffer$", re.IGNORECASE)

Collective = tuple[str, str, str]
"""Name of a collective, its group and the group's ranks; the latter two are empty where not recorded."""


class PublicOp(NamedTuple):
    """Work of a device, in nanoseconds."""

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
    for device, op in _of_nsys(path) if path.suffix == ".sqlite" else _of_kineto(path):
        devices[device].append(op)
    return devices


def _of_kineto(path: Path) -> Iterator[tuple[int, PublicOp]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    trace = json.loads(text.decode(errors="replace"), parse_float=Decimal, strict=False)
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    calls = {
        event["args"]["correlation"]: event
        for event in reversed(events)
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    ranges: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "user_annotation" and RANGE.fullmatch(event["name"]):
            ranges[event["tid"]].append(event)
    base_ns = trace.get("baseTimeNanoseconds", 0)
    for event in events:
        # Kineto's first releases wrote `Kernel`, `Memcpy` and `Memset`.
        category = event.get("cat", "").lower().removeprefix("gpu_")
        if category in ("kernel", "memcpy", "memset"):
            args, start = event["args"], Decimal(event["ts"])
            kind = _kind(event["name"], category, args)
            call = calls.get(args.get("correlation")) if kind == "comm" else None
            inside = [each["name"] for each in ranges[call["tid"]] if _runs_at(each, call["ts"])] if call else []
            collective = _collective(event["name"], args, inside) if kind == "comm" else None
            begin, end = (base_ns + round(at * 1000) for at in (start, start + Decimal(event.get("dur", 0))))
            yield int(args.get("device", event["pid"])), PublicOp(begin, end, kind, collective)


def _runs_at(event: dict[str, Any], at: Any) -> bool:
    return bool(event["ts"] <= at < event["ts"] + event["dur"])


def _of_nsys(path: Path) -> Iterator[tuple[int, PublicOp]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        (base_ns,) = file.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
        names = dict(file.execute("SELECT id, value FROM StringIds"))
        launched_in = defaultdict[int, list[str]](list)
        for correlation, text, name in file.execute(
            "SELECT correlationId, text, textId FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call JOIN NVTX_EVENTS AS range "
            "ON call.globalTid = range.globalTid AND call.start BETWEEN range.start AND range.end ORDER BY range.start"
        ):
            # `nccl:all_to_all, op_id = 7`
            words = (text or names.get(name, "")).partition(",")[0]
            if RANGE.fullmatch(words):
                launched_in[correlation].append(words)
        queries = {
            "kernel": "SELECT deviceId, start, end, correlationId, demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL",
            "memcpy": "SELECT deviceId, start, end, correlationId, copyKind FROM CUPTI_ACTIVITY_KIND_MEMCPY",
            "memset": "SELECT deviceId, start, end, correlationId, 0 FROM CUPTI_ACTIVITY_KIND_MEMSET",
        }
        for category, query in queries.items():
            for device, start, end, correlation, value in file.execute(query):
                # Copies of kinds 1 and 2 are to and from the host.
                name = names[value] if category == "kernel" else {1: "HtoD", 2: "DtoH"}.get(value, "")
                kind = _kind(name, category, {})
                collective = _collective(name, {}, launched_in[correlation]) if kind == "comm" else None
                yield device, PublicOp(start + base_ns, end + base_ns, kind, collective)


def _kind(name: str, category: str, args: dict[str, Any]) -> str:
    if category == "memset" or (category == "kernel" and WITHIN_DEVICE.match(name)):
        return "other"
    if category == "memcpy" or name.startswith(("CopyHost", "CopyDevice", "MEMORY_COPY")):
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
