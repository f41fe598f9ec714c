"""Traces from recordings of `jax.profiler`.

They are XLA's protocol buffer (`*.xplane.pb`), or the Chrome trace beside it (`*.trace.json.gz`), which has at most a
million events and fewer details.

The names of events and statistics come from XLA's profiler (`xla/backends/profiler/gpu/cupti_collector.cc`), from
PJRT's marks and from JAX's Python tracer. XLA records a launch under the name of its kernel, and a copy's call under
the name of the copy.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from overlapscope.base.marks import FRAMEWORK, METADATA, RECORDER
from overlapscope.errors import UnreadableTrace
from overlapscope.plugins.jax import XSPACE
from overlapscope.reading._events import Batch, CallArgs, NamedRow, OpArgs, batch_of_events
from overlapscope.reading.files import SourceFile
from overlapscope.reading.source import ReadRequest
from overlapscope.trace.model import Trace
from overlapscope.trace.op_names import XLA_WAIT

if TYPE_CHECKING:
    from overlapscope.plugins.jax.xplane import XlaEvent, XlaLine, XlaRecording

_OTHER_DEVICE: Final = re.compile(r"/device:(?!GPU)(\w+):\d+")
_DROPPED: Final = re.compile(r"(\d{1,15}) (?:\w+ ){0,3}events? dropped|dropped (\d{1,15})", re.IGNORECASE)
_LARGEST_BYTES: Final = 2 << 30
"""Maximum size of a protocol buffer. Such a file is held in memory as a whole."""
_ENVIRONMENT: Final = "Task Environment"
_VERSIONS: Final = frozenset({"jax_version", "jaxlib_version", "cuda_runtime_version", "cuda_driver_version"})
_RELATIVE_NS: Final = 1 << 57
"""Smaller times count from the beginning of the recording; as times since 1970 they would be before 1975."""


def read(path: Path, request: ReadRequest) -> Trace:
    """Return the Trace in a file. Raises UnreadableTrace."""
    from overlapscope.plugins.jax.xplane import JsonEvent, recording_of
    from overlapscope.reading import kineto
    from overlapscope.reading._columns import EventColumns
    from overlapscope.reading._events import Losses
    from overlapscope.reading._progress import ReadingBar
    from overlapscope.reading.raw_events import events_as

    file = SourceFile(path, limit_bytes=request.limit_bytes)
    with ReadingBar(str(path), file.packed_bytes, request.progress) as bar:
        if re.match(XSPACE, file.head()):
            recording = _of_buffer(file, bar.at)
            dropped = [match for text in recording.warnings for match in _DROPPED.finditer(text)]
            losses = Losses(file.broken is not None, lost_events=sum(int(match[1] or match[2]) for match in dropped))
            for text in recording.warnings:
                losses.remember(f"the profiler says: {text}")
        else:
            events, losses = events_as(JsonEvent, file, bar.at, strict=False)
            recording = recording_of(events)
    others = {match[1] for line in recording.lines if (match := _OTHER_DEVICE.search(line.plane))}
    if others and not any("/device:GPU:" in line.plane for line in recording.lines):
        raise UnreadableTrace(
            path, f"was recorded on a {sorted(others)[0]}; overlapscope reads recordings of GPUs and of CPUs."
        )
    columns = EventColumns(str(path))
    columns.add(batch_of(recording.lines))
    trace = kineto.assemble(str(path), columns, _metadata(recording), losses, file.unpacked_bytes)
    began, ended = _span(recording)
    return replace(trace, start_ns=began, end_ns=ended)


def _of_buffer(file: SourceFile, at: Callable[[int], None]) -> XlaRecording:
    """Return the recording in a protocol buffer.

    Raises:
        UnreadableTrace: The buffer is too large, cut off or damaged.
    """
    from overlapscope.plugins.jax.xplane import NotAnXSpace, read_xspace

    file.limit_bytes = min(file.limit_bytes, _LARGEST_BYTES)
    blocks = []
    for block in file:
        blocks.append(block)
        at(file.packed_bytes_read)
    try:
        return read_xspace(b"".join(blocks))
    except NotAnXSpace as error:
        raise UnreadableTrace(
            file.path,
            f"is cut off or damaged ({error}); copy or record it again, or name the .trace.json.gz beside it.",
        ) from None


def _metadata(recording: XlaRecording) -> dict[str, Any]:
    """Return the recording's metadata as Kineto would write them."""
    planes = recording.plane_stats
    names = {plane: about.get("gpu_device_name") for plane, about in planes.items() if plane.startswith("/device:GPU:")}
    began = _environment_stat(recording, "profile_start_time")
    relative = all(event.start_ns < _RELATIVE_NS for line in recording.lines for event in line.events[:1])
    return {
        **{key: value for key, value in planes.get("/host:metadata", {}).items() if key in _VERSIONS},
        "baseTimeNanoseconds": began if began > 0 and relative else 0,
        "deviceProperties": [{"id": plane.rpartition(":")[2], "name": name} for plane, name in names.items()],
        METADATA: {RECORDER: "jax", FRAMEWORK: "jax"},
    }


def _span(recording: XlaRecording) -> tuple[int, int]:
    """Return when recording began and ended; -1 where the file does not state it."""
    began, ended = _environment_stat(recording, "profile_start_time"), _environment_stat(recording, "profile_stop_time")
    return (began, ended) if 0 < began < ended else (-1, -1)


def _environment_stat(recording: XlaRecording, name: str) -> int:
    value = recording.plane_stats.get(_ENVIRONMENT, {}).get(name)
    return value if isinstance(value, int) else -1


# -- Rows of a Trace, named as Kineto names them ------------------------------------------------------

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
