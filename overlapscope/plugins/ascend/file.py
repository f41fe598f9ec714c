"""Traces from `trace_view.json`, the Chrome trace that torch_npu's profiler writes for Huawei's Ascend NPUs.

Events are named as Kineto names them. Processes, task types and arguments are those of msprof, which writes the
device's part of the file (`analysis/csrc/application/timeline` of https://github.com/Ascend/msprof). The process
`Overlap Analysis` has sums of rows of the other processes, so it is not read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from overlapscope.base.marks import METADATA, RECORDER
from overlapscope.reading._events import NOTHING, CallArgs, NamedRow, OpArgs
from overlapscope.reading._metadata import integer
from overlapscope.reading._times import decimal, number_to_ns
from overlapscope.reading.file_names import rank_in_name
from overlapscope.reading.files import SourceFile
from overlapscope.reading.source import ReadRequest
from overlapscope.trace import op_names
from overlapscope.trace.model import Kind, Trace

_DEVICE: Final = "Ascend Hardware"
_COMMUNICATION: Final = frozenset({"HCCL", "Communication"})
"""Process of collectives, by its earlier and its current name."""
_CANN: Final = "CANN"
_COLLECTIVES: Final = re.compile(r"(?:Group (?P<group>.+) )?Communication")
"""Thread of whole collectives. The other threads (`Plane 0`) have their parts."""
_NO_NUMBER: Final = (1 << 32) - 1
_LARGEST_COUNT: Final = 1 << 50
_DEVICE_BITS: Final = 5
_MIN_SHIFTED: Final = 1 << 10
"""msprof numbers a process by the program's id, the layer and the device: `id << 10 | layer << 5 | device`."""

_COMPUTE: Final = re.compile(
    r"(?:KERNEL_)?(?:AI_?CORE|AI_?CPU|AI_?VEC\w*|AI_VECTOR_CORE|AIC|AIV|MIX_AIC|MIX_AIV|DSA|VPC|JPEGE|JPEGD|DVPP|SIMT"
    r"|FFTS_PLUS)(?:_SQE)?"
)
_COPY: Final = re.compile(r"MEMCPY_ASYNC|(?:SDMA|PCIE_DMA)(?:_SQE)?")
_NO_WORK: Final = re.compile(
    r"WAIT|RECORD|EVENT|NOTIFY|VALUE|PLACE_HOLDER|PROFILING|CONTEXT|LABEL|MAINT|MODEL|MSTX"
    r"|\A(?:C_CORE|CDQM|HOST_CPU)(?:_SQE)?\Z",
    re.IGNORECASE,
)
"""Parts of the types of tasks in which a stream waits, signals, or is managed."""
_RUNS_COLLECTIVE: Final = re.compile(r".*(?:AicpuKernel|AivKernel)", re.DOTALL)
"""Kernels that run a collective. msprof does not count them as computing either."""
_OF_COLLECTIVE: Final = re.compile(r"HCCL\w*|COMMUNICATION|ROCCE_SQE")
"""Types of tasks that only collectives have."""

_DIRECTION: Final = re.compile(r"(?:.*acl_memcpy_)?(host|device)[ _]to[ _](host|device)(?: ex)?")
_SIDE: Final = {"host": "H", "device": "D"}

_COLLECTIVE: Final = re.compile(r"(?:hcom_)?(?P<collective>\w+?)_{1,2}(?P<group>\w{3})_(?P<number>\d{1,9})_\d+")
"""`hcom_allReduce__586_0_1`: the collective, the end of the group's name, the number in the group, the iteration."""
_SAME_SIZES: Final = frozenset({"allreduce", "broadcast", "reduce", "send", "recv"})
"""Collectives whose `count` is the number of elements of both buffers."""
_DTYPES: Final = {"FP16": "Half", "BFP16": "BFloat16", "FP32": "Float", "FP64": "Double"} | {
    f"{sign}INT{bits}": name
    for sign, names in (("", ("Char", "Short", "Int", "Long")), ("U", ("Byte", "UInt16", "UInt32", "UInt64")))
    for bits, name in zip((8, 16, 32, 64), names, strict=True)
}
"""PyTorch's names of HCCL's types."""

_RUNTIME: Final = "privateuse1_runtime"
_HOST: Final = {
    **{category: category for category in ("cpu_op", "python_function", "user_annotation")},
    "enqueue": _RUNTIME,
    "dequeue": "cpu_op",
}
"""Kineto's categories of torch_npu's. A thread of torch_npu takes tasks from its queue and launches them."""
_CALL: Final = re.compile(r"AscendCL@(?P<acl>aclrt\w+)|Runtime@.*|Node@launch", re.DOTALL)
"""Calls of CANN's runtime. Other rows of CANN prepare operators."""


class AscendArgs(Struct, gc=False):
    """Arguments that are read."""

    name: Any = None
    """Name of a process or thread, in events that give it one."""
    task_type: Any = field(default=None, name="Task Type")
    connection: Any = field(default=None, name="connection_id")
    """Number that a call of CANN shares with the device's tasks that it launched."""
    bytes: Any = field(default=None, name="size(B)")
    operation: Any = None
    """Direction of a copy."""
    dtype: Any = field(default=None, name="data_type")
    count: Any = None
    rank_size: Any = None


class AscendEvent(Struct, gc=False):
    """An event of the file."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: AscendArgs | None = None

    @property
    def start_ns(self) -> int:
        """Start in nanoseconds."""
        return _ns(self.ts)

    @property
    def dur_ns(self) -> int:
        """Duration in nanoseconds."""
        return _ns(self.dur)


def _ns(microseconds: Raw) -> int:
    return number_to_ns(decimal(bytes(microseconds).strip(b'"').decode("ascii", "replace")))


def rows_of(events: list[AscendEvent]) -> tuple[list[NamedRow], list[int]]:
    """Return all rows of the Trace, and the devices in ascending order."""
    processes: dict[int | str, str] = {}
    threads: dict[tuple[int | str, int | str], str] = {}
    for event in events:
        if event.ph == "M" and event.args is not None and isinstance(event.args.name, str):
            if event.name == "process_name":
                processes[event.pid] = event.args.name
            elif event.name == "thread_name":
                threads[event.pid, event.tid] = event.args.name
    host: list[NamedRow] = []
    tasks, cann = [], []
    collectives: list[tuple[AscendEvent, str]] = []
    for event in events:
        if event.ph != "X":
            continue
        process = processes.get(event.pid)
        if process == _DEVICE:
            tasks.append(event)
        elif process == _CANN:
            cann.append(event)
        elif process in _COMMUNICATION:
            thread = _COLLECTIVES.fullmatch(threads.get((event.pid, event.tid), ""))
            if thread is not None:
                collectives.append((event, thread["group"] or ""))
        elif event.cat in _HOST:
            category = _HOST[event.cat]
            host.append(_row(event, category, event.name, CallArgs() if category == _RUNTIME else None))
    ops = [*_collective_rows(collectives, tasks), *_task_rows(collectives, tasks, _directions(cann, host))]
    return [*host, *_cann_rows(cann, ops), *ops], sorted({int(op.pid) for op in ops})


def _row(event: AscendEvent, category: str, name: str, args: Any = None) -> NamedRow:
    return NamedRow(category, name, _number(event.tid), event.start_ns, event.dur_ns, args=args)


def _number(value: Any, below: int = _NO_NUMBER) -> int:
    """Return a number that the file states; -1 for none."""
    number = integer(value)
    return number if number is not None and 0 <= number < below else -1


def _connection(event: AscendEvent) -> int:
    return -1 if event.args is None else _number(event.args.connection)


# -- Devices ---


def _device(event: AscendEvent) -> int:
    pid = integer(event.pid) or 0
    return pid % (1 << _DEVICE_BITS) if pid >= _MIN_SHIFTED else 0


def _collective_rows(collectives: list[tuple[AscendEvent, str]], tasks: list[AscendEvent]) -> Iterator[NamedRow]:
    """Yield the collectives, each on the stream of its first task.

    A collective without a known task gets a stream of its thread. If several groups shared a stream, they would seem to
    wait for each other.
    """
    streams: dict[tuple[int, int], int] = {}
    for task in sorted(tasks, key=lambda task: task.start_ns):
        streams.setdefault((_device(task), _connection(task)), _number(task.tid))
    taken = {_number(task.tid) for task in tasks}
    free = (stream for stream in count(1) if stream not in taken)
    of_thread: defaultdict[tuple[int | str, int | str], int] = defaultdict(lambda: next(free))
    for event, group in collectives:
        device, connection = _device(event), _connection(event)
        stream = streams.get((device, connection), -1) if connection >= 0 else -1
        if stream < 0:
            stream = of_thread[event.pid, event.tid]
        known = op_names.kind("kernel", event.name) == Kind.COMM
        args = _collective_args(event, group, device, stream)
        name = event.name if known else f"hcom_{event.name}"
        yield NamedRow("kernel", name, stream, event.start_ns, event.dur_ns, device, args)


def _collective_args(event: AscendEvent, group: str, device: int, stream: int) -> OpArgs:
    stated, named = event.args or AscendArgs(), _COLLECTIVE.fullmatch(event.name)
    collective = (named["collective"] if named else event.name).lower().replace("receive", "recv")
    if not group or group.isdigit():
        # Older files number the groups, each rank in its own order.
        group = named["group"] if named else ""
    elements = _number(stated.count, _LARGEST_COUNT) if collective in _SAME_SIZES else -1
    return OpArgs(
        device=device,
        stream=stream,
        correlation=_connection(event),
        collective=collective,
        group=Raw(msgspec.json.encode(group)) if group else NOTHING,
        group_size=_number(stated.rank_size),
        elements_in=elements,
        elements_out=elements,
        dtype=_DTYPES.get(stated.dtype, "") if isinstance(stated.dtype, str) else "",
        sequence=int(named["number"]) if named else -1,
    )


def _task_rows(
    collectives: list[tuple[AscendEvent, str]], tasks: list[AscendEvent], directions: dict[int, str]
) -> Iterator[NamedRow]:
    """Yield the work of streams: no waits, and no parts of collectives."""
    communicating = {(_device(event), _connection(event)) for event, _ in collectives if _connection(event) >= 0}
    for task in tasks:
        device, connection = _device(task), _connection(task)
        stated = task.args or AscendArgs()
        kind = str(stated.task_type or "").replace(" ", "_")
        alike = _RUNS_COLLECTIVE.fullmatch(task.name) or _OF_COLLECTIVE.fullmatch(kind)
        if not kind or (device, connection) in communicating or (collectives and alike):
            continue
        stream, size = _number(task.tid), -1
        if _COMPUTE.fullmatch(kind):
            category, name = "kernel", task.name
        elif _COPY.fullmatch(kind) or _COPY.fullmatch(task.name):
            way = _way(str(stated.operation or "")) or directions.get(connection, "<unknown>")
            category, name = "gpu_memcpy", f"Memcpy {way}"
            size = _number(stated.bytes, _LARGEST_COUNT) or -1
        elif _NO_WORK.search(kind):
            continue
        else:
            # Work of an unknown type may be anything, so it counts as a copy of unknown direction.
            category, name = "gpu_memcpy", task.name
        args = OpArgs(device=device, stream=stream, correlation=connection, bytes=size)
        yield NamedRow(category, name, stream, task.start_ns, task.dur_ns, device, args)


def _way(stated: str) -> str:
    """Return a direction as Kineto writes it, such as `HtoD`; empty where none is stated."""
    match = _DIRECTION.fullmatch(stated.removeprefix("addr "))
    return "" if match is None else f"{_SIDE[match[1]]}to{_SIDE[match[2]]}"


# -- Hosts ---


def _directions(cann: list[AscendEvent], host: list[NamedRow]) -> dict[int, str]:
    """Return the directions of copies by their connections, for calls inside a task that names the direction.

    `Dequeue@acl_memcpy_host_to_device` is an example of such a task.
    """
    copying: defaultdict[int | str, list[tuple[int, int, str]]] = defaultdict(list)
    for row in sorted(host, key=lambda row: row.start_ns):
        way = _way(row.name) if "acl_memcpy_" in row.name else ""
        if way:
            copying[row.tid].append((row.start_ns, row.start_ns + row.dur_ns, way))
    directions: dict[int, str] = {}
    for call in cann:
        if "aclrtMemcpy" in call.name:
            of_thread = copying[_number(call.tid)]
            at = bisect_right(of_thread, call.start_ns, key=lambda task: task[0]) - 1
            if at >= 0 and call.start_ns < of_thread[at][1]:
                directions[_connection(call)] = of_thread[at][2]
    return directions


def _cann_rows(cann: list[AscendEvent], ops: list[NamedRow]) -> Iterator[NamedRow]:
    """Yield the calls that launch work or belong to the runtime, and all other rows as operators."""
    launching = {op.args.correlation for op in ops}
    # The innermost of several calls with the same number launched the work.
    of_connection = {_connection(event): event for event in sorted(cann, key=lambda event: event.start_ns)}
    for event in cann:
        connection, call = _connection(event), _CALL.fullmatch(event.name)
        innermost = connection >= 0 and of_connection[connection] is event
        if call is None and not (innermost and connection in launching):
            yield _row(event, "cpu_op", event.name)
            continue
        name = call["acl"] if call is not None and call["acl"] else event.name
        yield _row(event, _RUNTIME, name, CallArgs(correlation=connection if innermost else -1))


_PROFILER_INFO: Final = re.compile(r"profiler_info_(\d{1,7})\.json")
"""File that torch_npu writes in the directory above, with the rank in its name."""


def read(path: Path, request: ReadRequest) -> Trace:
    """Return the Trace in a file. Raises UnreadableTrace."""
    from overlapscope.reading import kineto
    from overlapscope.reading._columns import EventColumns
    from overlapscope.reading._events import batch_of_events
    from overlapscope.reading._progress import ReadingBar
    from overlapscope.reading.raw_events import events_as

    file = SourceFile(path, limit_bytes=request.limit_bytes)
    with ReadingBar(str(path), file.packed_bytes, request.progress) as bar:
        events, losses = events_as(AscendEvent, file, bar.at)
    rows, devices = rows_of(events)
    columns = EventColumns(str(path))
    columns.add(batch_of_events(rows))
    return kineto.assemble(str(path), columns, _metadata(path, devices), losses, file.unpacked_bytes)


def _metadata(path: Path, devices: list[int]) -> dict[str, Any]:
    """Return the recording's metadata as Kineto would write them."""
    return {
        "deviceProperties": [{"id": device, "name": "Ascend NPU"} for device in devices],
        "distributedInfo": {"rank": _rank(path)},
        METADATA: {RECORDER: "torch_npu"},
    }


def _rank(path: Path) -> int | None:
    """Return the rank in the name of the file, or of torch_npu's file beside its directory."""
    stated = rank_in_name(str(path))
    if stated is not None or path.parent.name != "ASCEND_PROFILER_OUTPUT":
        return stated
    beside = [_PROFILER_INFO.fullmatch(file.name) for file in path.parent.parent.glob("profiler_info_*.json")]
    ranks = [int(match[1]) for match in beside if match is not None]
    return ranks[0] if len(ranks) == 1 else None
