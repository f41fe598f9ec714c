"""Rows of a Trace from XLA's lines of events, named as Kineto names them.

The names of events and statistics come from XLA's profiler (`xla/backends/profiler/gpu/cupti_collector.cc`), from
PJRT's marks and from JAX's Python tracer. XLA records a launch under the name of its kernel, and a copy's call under
the name of the copy.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from overlapscope.plugins.jax.xplane import XlaEvent, XlaLine
from overlapscope.reading._batch import Batch, batch_of_events
from overlapscope.reading._events import CallArgs, NamedRow, OpArgs
from overlapscope.trace.op_names import XLA_WAIT

_LARGEST_COUNT: Final = 1 << 50

_DEVICE: Final = re.compile(r"/device:GPU:(\d{1,3})")
_STREAM: Final = re.compile(r"Stream #(\d{1,9})\b.*")
_COPY: Final = re.compile(r"Memcpy(?P<from>[HDP])2(?P<to>[HDP])|MemcpyOther")
_COPY_DETAILS: Final = re.compile(
    r"kind_src:(?P<source>\w+) kind_dst:(?P<target>\w+) size:(?P<size>\d{1,15})(?!\d)"
    r"(?: dest:(?P<device>\d{1,9})(?!\d))?.*"
)
_FILL_DETAILS: Final = re.compile(r"kind:(?P<target>\w+) num_bytes:(?P<size>\d{1,15})(?!\d).*")
_NO_OP: Final = re.compile(r"UM_\w+|MemoryResidency")
"""Events on a stream's line that are not ops: counters of managed memory, and the time that memory was resident."""

_API: Final = re.compile(r"(?:cu|hip)[A-Z]\w*")
_OF_GRAPH: Final = re.compile(r" \(CudaGraph:\d+\)$")
_OVERHEADS: Final = frozenset({"COMPILER", "BUFFER_FLUSH", "INSTRUMENTATION", "RESOURCE"})
_NVTX: Final = "NVTX:"
_FRAME: Final = re.compile(r"\$(?P<file>.+\.py):(?P<line>\d+) (?P<function>.+)", re.DOTALL)
_MODULE: Final = re.compile(r"(?P<module>.+):XLA GPU module", re.DOTALL)

_OWN_MARK: Final = re.compile(
    r".*::.*|PjitFunction\(.*\)|ParseArguments|shard_args|DevicePutWithSharding|(?:PJRT|PjRt|Pjrt|[HD]2[HD]|Wait|Handle"
    r"|Resolve|Build|Allocate|backend_compile|BufferFrom|Xla|XLA|TfrtCpu|Memory(?:Alloc|Dealloc)ation).*",
    re.DOTALL,
)
"""Marks that XLA, PJRT and JAX set themselves. Other marks of a thread with steps or Python functions belong to the
program (`jax.profiler.TraceAnnotation`)."""

_OF_JAX: Final = re.compile(
    r"(?:abstract_arrays|ad|api|api_util|array|array_methods|basearray|batching|compiler|config|core|custom_derivatives"
    r"|dispatch|dtypes|indexing|lax|lax_numpy|layout|linear_util|literals|mesh|mlir|partial_eval|pjit|profiler|pxla"
    r"|random|scalar_types|sharding|sharding_impls|stages|traceback_util|tree_util|ufuncs|xla_bridge|xla_client)\.py"
)
"""Modules of JAX. The Python tracer drops their directories."""


def batch_of(lines: list[XlaLine]) -> Batch:
    """Return all rows of the Trace, as a batch."""
    rows = [row for line in lines for row in _rows(line)]
    return batch_of_events([*rows, *_steps(lines)])


def _rows(line: XlaLine) -> Iterator[NamedRow]:
    device = _DEVICE.search(line.plane)
    if device is None:
        return _host_rows(line)
    stream = _STREAM.fullmatch(line.name)
    if stream is not None:
        return _op_rows(line, int(device[1]), int(stream[1]))
    return (_row(event, "overhead", event.name, -1) for event in line.events if event.name in _OVERHEADS)


def _row(event: XlaEvent, category: str, name: str, tid: int, args: Any = None, pid: int = -1) -> NamedRow:
    return NamedRow(category, name, tid, event.start_ns, event.dur_ns, pid, args)


# -- Devices ---


def _op_rows(line: XlaLine, device: int, stream: int) -> Iterator[NamedRow]:
    for event in line.events:
        if _NO_OP.match(event.name):
            continue
        category, name, size, target = _op(event)
        args = OpArgs(
            device=device,
            from_device=device if target >= 0 else -1,
            to_device=target,
            stream=stream,
            correlation=_correlation(event),
            bytes=min(size, _LARGEST_COUNT),
        )
        yield _row(event, category, name, stream, args, device)


def _op(event: XlaEvent) -> tuple[str, str, int, int]:
    """Return category, name and size as Kineto writes them, and the device that a peer copy writes; -1 for others.

    A peer copy reads the device of its line.
    """
    stats = event.stats
    copy = _COPY.fullmatch(event.name)
    if copy is not None:
        way = f"{copy['from']}to{copy['to']}" if copy["from"] else "<unknown>"
        details = _COPY_DETAILS.fullmatch(stats.memcpy_details)
        if details is None:
            return "gpu_memcpy", f"Memcpy {way}", -1, -1
        memory = f"{_memory(details['source'])} -> {_memory(details['target'])}"
        target = int(details["device"]) if copy["from"] == "P" and details["device"] is not None else -1
        return "gpu_memcpy", f"Memcpy {way} ({memory})", int(details["size"]), target
    details = _FILL_DETAILS.fullmatch(stats.memset_details)
    if details is not None:
        return "gpu_memset", f"Memset ({_memory(details['target'])})", int(details["size"]), -1
    return "gpu_memset" if event.name == "Memset" else "kernel", event.name, -1, -1


def _memory(kind: str) -> str:
    return kind.replace("_", " ").title()


def _correlation(event: XlaEvent) -> int:
    number = event.stats.correlation_id
    return number if 0 < number < _LARGEST_COUNT else -1


# -- Hosts ---


def _host_rows(line: XlaLine) -> Iterator[NamedRow]:
    """Yield the rows of a host's thread, without instants: allocations from XLA's pools, and tasks of a thread pool."""
    ranges = _ranges(line)
    for event in line.events:
        if event.dur_ns == 0 or _is_step(event):
            continue
        name = event.name
        call = _call(event)
        if call is not None:
            yield _row(event, "cuda_driver", call, line.id, CallArgs(correlation=_correlation(event)))
        elif name.startswith("$"):
            frame = _FRAME.fullmatch(name)
            yield _row(event, "python_function", _frame_name(frame) if frame else name.removeprefix("$"), line.id)
        elif name in _OVERHEADS:
            yield _row(event, "overhead", name, line.id)
        elif name.startswith(_NVTX) or id(event) in ranges:
            yield _row(event, "user_annotation", name.removeprefix(_NVTX), line.id)
        elif (module := _MODULE.fullmatch(name)) is not None:
            yield _row(event, "user_annotation", module["module"], line.id)
        elif name != "<UNKNOWN>":
            yield _row(event, "cpu_op", name, line.id)


def _call(event: XlaEvent) -> str | None:
    """Return the call that a host's event stands for: of the driver, or of JAX when it waits for the device."""
    name, stats = event.name, event.stats
    function = name.rpartition(" ")[2] if name.startswith("$") else name
    if XLA_WAIT.fullmatch(function):
        return function
    named = _OF_GRAPH.sub("", name)
    if _API.fullmatch(named):
        return named
    if stats.device_id < 0 and stats.correlation_id <= 0:
        return None
    copy = _COPY.fullmatch(name)
    if copy is not None:
        suffix = "" if stats.memcpy_details.endswith("async:0") else "Async"
        way = {"P": "Peer"}.get(copy["from"] or "", f"{copy['from']}to{copy['to']}" if copy["from"] else "")
        return f"cuMemcpy{way}{suffix}"
    if stats.memset_details or name == "Memset":
        return "cuMemsetD8" if stats.memset_details.endswith("async:0") else "cuMemsetD8Async"
    return "cuLaunchKernel"


def _frame_name(frame: re.Match[str]) -> str:
    file = f"jax/_src/{frame['file']}" if _OF_JAX.fullmatch(frame["file"]) else frame["file"]
    return f"{file}({frame['line']}): {frame['function']}"


def _ranges(line: XlaLine) -> set[int]:
    """Return the ids of the program's own marks: events that lie inside nothing except steps and one another.

    Only threads with steps or Python functions have any, because other threads belong to XLA.
    """
    marks = [event for event in line.events if not event.name.startswith("$")]
    if len(marks) == len(line.events) and not any(map(_is_step, marks)):
        return set()
    ranges: set[int] = set()
    around: list[tuple[int, bool]] = []
    for event in sorted(marks, key=lambda event: (event.start_ns, -event.dur_ns)):
        while around and around[-1][0] <= event.start_ns:
            around.pop()
        outer = not around or around[-1][1]
        by_program = _is_step(event) or _is_range(event)
        if outer and by_program:
            ranges.add(id(event))
        around.append((event.start_ns + event.dur_ns, outer and by_program))
    return ranges


def _is_range(event: XlaEvent) -> bool:
    xlas = event.stats.source or _OWN_MARK.fullmatch(event.name) or _MODULE.fullmatch(event.name)
    return not xlas and event.name != "<UNKNOWN>" and _call(event) is None


def _is_step(event: XlaEvent) -> bool:
    return event.stats.step_num is not None or event.stats.root != 0


def _steps(lines: list[XlaLine]) -> Iterator[NamedRow]:
    """Yield the steps with the most frequent name, numbered by the program or in order; other steps become ranges."""
    steps = [(event, line.id) for line in lines if not _DEVICE.search(line.plane) for event in line.events]
    steps = sorted(((event, tid) for event, tid in steps if _is_step(event)), key=lambda step: step[0].start_ns)
    names = Counter(event.name for event, _ in steps)
    main = names.most_common(1)[0][0] if names else ""
    numbers = [-1 if event.stats.step_num is None else event.stats.step_num for event, _ in steps if event.name == main]
    counted = len({*numbers}) < len(numbers) or min(numbers, default=0) < 0
    place = 0
    for event, tid in steps:
        if event.name != main:
            yield _row(event, "user_annotation", event.name, tid)
            continue
        yield _row(event, "user_annotation", f"ProfilerStep#{place if counted else event.stats.step_num}", tid)
        place += 1
