"""Answers by brute force over a raw file, without overlapscope's reader or analysis.

Each function of `RAW` takes a file and what `questions.yaml` states besides. Times are integer nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from overlapscope.trace.model import Kind
from tests.fuzz.sweep import Edges, lengths

_JAX: Final = Path(__file__).parents[1] / "jax"
_GPU: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_CALLS: Final = frozenset({"cuda_runtime", "cuda_driver"})
_COPIES: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_MEMORY: Final = {0: "Pageable", 1: "Pinned"}


class RawOp(NamedTuple):
    """A GPU op."""

    device: int
    stream: int
    kind: Kind
    name: str
    start: int
    end: int
    bytes: int
    correlation: int


# -- files ----------------------------------------------------------------------------------------------


@cache
def document(path: Path) -> dict[str, Any]:
    """JSON, with decimals as they are written."""
    document: dict[str, Any] = json.loads(unpacked(path), parse_float=Decimal)
    return document


def unpacked(path: Path) -> bytes:
    """Return the unpacked content of a file."""
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


@cache
def ops(path: Path) -> tuple[RawOp, ...]:
    """Return the GPU ops of a Chrome trace of PyTorch, of one of JAX, or of an exported report of Nsight Systems."""
    events = {".sqlite": _of_nsys, ".pb": _of_jax}.get(path.suffix, _of_kineto)(path)
    return tuple(sorted(events, key=lambda op: (op.start, op.end)))


def _of_kineto(path: Path) -> Iterator[RawOp]:
    for event in _events(path, _GPU):
        args, name = event["args"], event["name"]
        device, kind = args.get("device", event["pid"]), _kind(name, copy=event["cat"] != "kernel")
        yield RawOp(device, args["stream"], kind, name, *_times(path, event), args.get("bytes", 0), args["correlation"])


def _of_jax(path: Path) -> Iterator[RawOp]:
    """Yield the ops of the Chrome trace that jax.profiler wrote beside the XSpace."""
    events = document(_JAX / path.name.replace(".xplane.pb", ".trace.json.gz"))["traceEvents"]
    [device] = [
        event["pid"] for event in events if event.get("name") == "process_name" and "GPU" in event["args"]["name"]
    ]
    for event in events:
        if event.get("ph") == "X" and event["pid"] == device:
            start = round(Decimal(event["ts"]) * 1000)
            end, size = start + round(Decimal(event["dur"]) * 1000), re.search(r"size:(\d+)", str(event["args"]))
            name = event["name"].replace("H2D", " HtoD").replace("D2H", " DtoH")
            copy = name.startswith("Memcpy")
            yield RawOp(0, event["tid"], _kind(name, copy=copy), name, start, end, int(size[1]) if size else 0, 0)


def _of_nsys(path: Path) -> Iterator[RawOp]:
    with closing(sqlite3.connect(path)) as file:
        names = dict(file.execute("SELECT id, value FROM StringIds"))
        kernels = "SELECT deviceId, streamId, demangledName, start, end, correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL"
        for device, stream, name, start, end, correlation in file.execute(kernels):
            yield RawOp(device, stream, _kind(names[name], copy=False), names[name], start, end, 0, correlation)
        copies = (
            "SELECT deviceId, streamId, copyKind, srcKind, dstKind, start, end, bytes, correlationId "
            "FROM CUPTI_ACTIVITY_KIND_MEMCPY"
        )
        for device, stream, way, source, target, start, end, size, correlation in file.execute(copies):
            name = f"Memcpy {_COPIES[way]} ({_MEMORY.get(source, 'Device')} -> {_MEMORY.get(target, 'Device')})"
            yield RawOp(device, stream, _kind(name, copy=True), name, start, end, size, correlation)
        if file.execute("SELECT 1 FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_MEMSET'").fetchone():
            sets = "SELECT deviceId, streamId, start, end, correlationId FROM CUPTI_ACTIVITY_KIND_MEMSET"
            for device, stream, start, end, correlation in file.execute(sets):
                yield RawOp(device, stream, Kind.OTHER, "Memset", start, end, 0, correlation)


def _kind(name: str, *, copy: bool) -> Kind:
    if copy:
        return Kind.H2D if "HtoD" in name else Kind.D2H if "DtoH" in name else Kind.OTHER
    return Kind.COMM if "nccl" in name.lower() else Kind.COMPUTE


def _events(path: Path, categories: frozenset[str]) -> Iterator[dict[str, Any]]:
    return (
        event for event in document(path)["traceEvents"] if event.get("cat") in categories and event.get("ph") == "X"
    )


def _times(path: Path, event: dict[str, Any]) -> tuple[int, int]:
    start = document(path).get("baseTimeNanoseconds", 0) + round(Decimal(event["ts"]) * 1000)
    return start, start + round(Decimal(event["dur"]) * 1000)


# -- figures --------------------------------------------------------------------------------------------


def bucket(path: Path, figure: str, device: int = 0) -> float | None:
    """Return a figure of a device's whole window: a bucket, a length, or one of two percentages."""
    mine = [op for op in ops(path) if op.device == device]
    begin, over = min(op.start for op in mine), max(op.end for op in mine)
    ns = _lengths(mine, (begin, over))
    engines = (ns["sm_ns"], ns["h2d_ns"], ns["d2h_ns"])
    percentages = {
        "hidden_copy_pct": _hidden(ns),
        "efficiency_pct": _percent(sum(engines) - ns["busy_ns"], sum(engines) - max(engines)),
    }
    return percentages[figure] if figure in percentages else {**ns, "span_ns": over - begin}[figure]


def hidden_in_steps(path: Path) -> float | None:
    """Return the hidden share of copies in the judged steps of the only device."""
    steps = judged_steps(path)
    return _hidden(_lengths(ops(path), (steps[0][0], steps[-1][1])))


def _lengths(mine: Iterable[RawOp], window: tuple[int, int]) -> dict[str, int]:
    edges: Edges = []
    for op in mine:
        if op.end > op.start:
            edges += ((op.start, op.kind, 1), (op.end, op.kind, -1))
    [ns] = lengths(sorted(edges), [window])
    return ns


def _hidden(ns: dict[str, int]) -> float | None:
    return _percent(ns["copy_ns"] - ns["exposed_copy_ns"], ns["copy_ns"])


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def longest(path: Path, kind: str, stream: int) -> int:
    """Return the longest duration of the ops of a kind on a stream."""
    return max(op.end - op.start for op in ops(path) if (op.kind.name, op.stream) == (kind, stream))


def total(path: Path, of: str, kind: str, device: int = 0, memory: str = "") -> int:
    """Number, bytes or nanoseconds of the ops of a kind, of those whose name says so."""
    mine = [op for op in ops(path) if (op.kind.name, op.device) == (kind, device) and memory in op.name]
    return {"count": len(mine), "bytes": sum(op.bytes for op in mine), "ns": sum(op.end - op.start for op in mine)}[of]


def rate(path: Path, kind: str) -> float:
    """Return the rate of the only copy, in 1e9 bytes per second."""
    [op] = (op for op in ops(path) if op.kind.name == kind)
    return op.bytes / (op.end - op.start)


def longest_gap(path: Path) -> int:
    """Return the longest time between two ops in which nothing runs."""
    longest, end = 0, ops(path)[0].end
    for op in ops(path):
        longest, end = max(longest, op.start - end), max(op.end, end)
    return longest


def longest_copy(path: Path, memory: str) -> str:
    """Return the name of the longest copy of this memory kind."""
    return max((op for op in ops(path) if memory in op.name), key=lambda op: op.end - op.start).name


def lead_in(path: Path) -> int:
    """Return the time from the first op to the end of the last one whose launch was not recorded."""
    launched = {event["args"]["correlation"] for event in _events(path, _CALLS)}
    return max(op.end for op in ops(path) if op.correlation not in launched) - ops(path)[0].start


def calls(path: Path, name: str, of: str) -> int:
    """Return the number of calls of a name, or their nanoseconds."""
    mine = [_times(path, event) for event in _events(path, _CALLS) if event["name"] == name]
    return len(mine) if of == "count" else sum(end - start for start, end in mine)


def line(path: Path, call: str, script: str) -> str:
    """Return the innermost line of a script around the longest call of a name."""
    mine = [_times(path, event) for event in _events(path, _CALLS) if event["name"] == call]
    return _line(path, max(mine, key=lambda pair: pair[1] - pair[0]), script)


def exposed_line(path: Path, script: str) -> list[Any]:
    """Return the line of a script whose copies are exposed longest, and that time; copies do not overlap."""
    kernels = [op for op in ops(path) if op.kind in (Kind.COMPUTE, Kind.COMM)]
    launches = {event["args"]["correlation"]: _times(path, event) for event in _events(path, _CALLS)}
    exposed: dict[str, int] = {}
    for copy in (op for op in ops(path) if op.kind in (Kind.H2D, Kind.D2H)):
        free = copy.end - copy.start
        free -= sum(max(0, min(op.end, copy.end) - max(op.start, copy.start)) for op in kernels)
        where = _line(path, launches[copy.correlation], script)
        exposed[where] = exposed.get(where, 0) + free
    most = max(exposed, key=lambda where: exposed[where])
    return [most, exposed[most]]


def _line(path: Path, span: tuple[int, int], script: str) -> str:
    """Return the line of the innermost frame of a script around a span."""
    frames = (
        (*_times(path, event), str(event["name"]))
        for event in _events(path, frozenset({"python_function"}))
        if event["name"].startswith(f"{script}(")
    )
    _, _, name = max(frame for frame in frames if frame[0] <= span[0] and frame[1] >= span[1])
    number, function = name.removeprefix(f"{script}(").split("): ")
    return f"{script}:{number} in {function}"


def steps(path: Path) -> list[tuple[int, int]]:
    """Return start and end of each step.

    It begins with its first op on the busiest stream of kernels, and ends where the next step begins.
    The last ends with the window.
    """
    launches = {event["args"]["correlation"]: _times(path, event)[0] for event in _events(path, _CALLS)}
    busy: dict[int, int] = {}
    for op in ops(path):
        busy[op.stream] = busy.get(op.stream, 0) + (op.end - op.start if op.kind == Kind.COMPUTE else 0)
    main = max(busy, key=lambda stream: busy[stream])
    marked = sorted(
        _times(path, event)
        for event in _events(path, frozenset({"user_annotation"}))
        if event["name"].startswith("ProfilerStep#")
    )
    starts = [
        min(op.start for op in ops(path) if op.stream == main and begin <= launches.get(op.correlation, 0) < end)
        for begin, end in marked
    ]
    return list(pairwise([*starts, max(op.end for op in ops(path))]))


def judged_steps(path: Path) -> list[tuple[int, int]]:
    """Return the steps without the last, and without a first one of over 1.5 times the longest other."""
    first, *others = ((end - start) for start, end in steps(path))
    return steps(path)[first > 1.5 * max(others) : -1]


def average_step(path: Path) -> float:
    """Return the mean of the judged steps."""
    return statistics.fmean(end - start for start, end in judged_steps(path))


def timed_step(path: Path) -> int:
    """Return the step time around the recording: the mean of the means before and after it."""
    sides = document(path)["overlapscope"]["plain_steps"].values()
    return round(statistics.fmean(statistics.fmean(side["device_ns"]) for side in sides))


def slower_by(path: Path, before: Path) -> int:
    """Return by how much the average step is longer than in another recording."""
    return round(average_step(path)) - round(average_step(before))


def straggler(path: Path) -> int:
    """Return the rank whose late arrivals at collectives made the others wait longest.

    All ranks have the host's clock, and their last collective is the same; one may have recorded earlier ones.
    """
    ranks = [[op for op in ops(file) if op.kind == Kind.COMM][::-1] for file in sorted(path.glob("*.json.gz"))]
    waited = [0] * len(ranks)
    for meeting in zip(*ranks, strict=False):
        last = max(op.start for op in meeting)
        waited[[op.start for op in meeting].index(last)] += sum(last - op.start for op in meeting)
    return waited.index(max(waited))


def size(path: Path) -> int:
    """Return the size of the file, in bytes."""
    return path.stat().st_size


def measured(path: Path, experiment: str, variant: str) -> int:
    """Return the time of an iteration in the laboratory without a recording."""
    [mine] = (item for item in document(path)["experiments"] if item["name"] == experiment)
    [wall] = (item["wall_ms"]["median"] for item in mine["variants"] if item["name"] == variant)
    return round(float(wall) * 1_000_000)


RAW: Final[dict[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (
        *(bucket, hidden_in_steps, longest, total, rate, longest_gap, longest_copy, lead_in, calls, line),
        *(exposed_line, average_step, timed_step, slower_by, straggler, size, measured),
    )
}
