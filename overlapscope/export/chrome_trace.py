"""A Trace as a Chrome trace in Kineto's format, for Perfetto, chrome://tracing, HTA and our own reader.

Reading it again gives the same tables, with two exceptions: `place`, and the device of a wait's stream if it is not the
waiting device, for which the format has no field. Grids and blocks of kernels, shapes of ops and the process id are
missing, because a Trace does not hold them.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.base.grouping import distinct
from overlapscope.base.marks import (
    FOUND,
    FRAMEWORK,
    HOST_ACTIVITY,
    METADATA,
    ORIGIN,
    PLAIN_STEPS,
    PREDICTION,
    RECORDER,
    STEP_SOURCE,
    THREADS,
    TORCH,
    WARM_UP_STEPS,
)
from overlapscope.base.words import clean
from overlapscope.trace import op_names
from overlapscope.trace.model import (
    I32,
    I64,
    DeviceAnnotations,
    GpuOps,
    HostEvents,
    Index,
    Memory,
    PlainSteps,
    Sync,
    Trace,
    TraceTable,
)

HOST_PID: Final = 1 << 22
"""Stands for the process id, which a Trace does not hold. No device and no Linux process has this number."""

_WAIT_LANE_OFFSET: Final = 1_000_000
"""Offset that newer versions of Kineto add to a stream's number, for the lane of the waits on it."""
_GPU_SORT: Final = 5_000_000
"""Index by which Kineto sorts devices below the host."""
_ROWS_AT_ONCE: Final = 10_000
_GZIP_LEVEL: Final = 1
_DRIVER = re.compile(r"cu[A-Z]")
_SIDES = re.compile(r"\([^()]+ -> [^()]+\)$")
_CATEGORIES: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_SYNC_KINDS: Final = {
    Sync.STREAM_WAIT_EVENT: "Stream Wait Event",
    Sync.EVENT: "Event Sync",
    Sync.STREAM: "Stream Sync",
    Sync.CONTEXT: "Context Sync",
}

Column = Sequence[Any]


def blocks(trace: Trace, *, packed: bool) -> Iterator[bytes]:
    """Yield the file block by block, as gzip if `packed`. A prediction states its changes."""
    text = (piece.encode() for piece in _pieces(trace))
    if not packed:
        yield from text
        return
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
    yield from filter(None, map(packer.compress, text))
    yield packer.flush()


def microseconds(ns: int) -> str:
    """Return a time as the format writes it: exact, with three decimals."""
    return f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


def op_category(name: str) -> str:
    """Return the category in which Kineto writes a GPU op of that name."""
    return "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"


def call_category(name: str) -> str:
    """Return the category in which Kineto writes a runtime call of that name."""
    return "cuda_driver" if _DRIVER.match(name) else "cuda_runtime"


def metadata_event(what: str, pid: int, tid: int, **args: str | int) -> str:
    """Return an event that names or sorts a process or thread."""
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


def _pieces(trace: Trace) -> Iterator[str]:
    head = json.dumps(_head(trace), indent=2)
    yield f'{head[:-2]},\n  "traceEvents": [\n'
    separator = ""
    for events in _ChromeEvents(trace).all():
        some = ",\n".join(events)
        if some:
            yield separator + some
            separator = ",\n"
    yield f'\n],\n  "traceName": {json.dumps(_title(trace))}\n}}\n'


def _title(trace: Trace) -> str:
    name, changes = PurePath(trace.source).name, trace.predicted_by
    return name if changes is None else f"prediction of {name} with {', '.join(changes) or 'nothing changed'}"


def _head(trace: Trace) -> dict[str, Any]:
    """Return the metadata around the events, under the names that the reader looks for."""
    versions = {name: _number(value) for name, value in trace.versions.items()}
    torch, schema = versions.pop("torch", None), versions.pop("schema", None)
    changes = trace.predicted_by
    ours = _stated(
        {
            TORCH: None if torch is None else str(torch),
            WARM_UP_STEPS: trace.warm_up_steps or None,
            STEP_SOURCE: trace.step_source or None,
            THREADS: trace.thread_names or None,
            RECORDER: trace.recorder if trace.recorder != "kineto" else None,
            FRAMEWORK: trace.framework if trace.framework != "pytorch" else None,
            ORIGIN: trace.origin,
            PLAIN_STEPS: trace.plain_steps if trace.plain_steps != PlainSteps() else None,
            HOST_ACTIVITY: trace.host_activity or None,
            FOUND: trace.found or None,
            PREDICTION: None if changes is None else {"of": PurePath(trace.source).name, "interventions": changes},
        }
    )
    ranks = _stated({"rank": trace.rank, "world_size": trace.world_size, "pg_count": trace.process_groups})
    return {
        **({"schemaVersion": schema} if schema is not None else {}),
        "deviceProperties": [{"id": ordinal, "name": name} for ordinal, name in trace.device_names.items()],
        **({"distributedInfo": ranks} if ranks else {}),
        **{f"{name}_version": value for name, value in versions.items()},
        **{name: int(flag) for name, flag in trace.flags.items()},
        **({METADATA: ours} if ours else {}),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": trace.base_ns,
    }


def _stated(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that aren't None, as JSON has them."""
    return {name: msgspec.to_builtins(value) for name, value in values.items() if value is not None}


def _number(text: str) -> int | str:
    """Return a version, as a number if possible."""
    return int(text) if text.isdecimal() and str(int(text)) == text else text


class _ChromeEvents:
    """The events of a trace as lines of JSON."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names = [json.dumps(name) for name in trace.names]
        self._call_categories = list(map(call_category, trace.names))
        self._spelled, self._spelling = _spellings(trace.gpu_ops)
        self._collectives = {place: row for row, place in enumerate(trace.collectives.place.tolist())}

    def all(self) -> Iterator[Iterable[str]]:
        """Yield the events in blocks, with the rows of a table in order, which the reader keeps for equal starts."""
        trace = self._trace
        yield _lanes(trace)
        yield self._span()
        for table, draw in (
            (trace.annotations, partial(self._host, trace.annotations, "user_annotation")),
            (trace.cpu_ops, partial(self._host, trace.cpu_ops, "cpu_op")),
            (trace.python_frames, partial(self._host, trace.python_frames, "python_function")),
            (trace.overheads, partial(self._host, trace.overheads, "overhead")),
            (trace.runtime_calls, self._calls),
            (trace.gpu_ops, self._ops),
            (trace.gpu_ops, self._flows),
            (trace.device_annotations, self._device_annotations),
            (trace.syncs, self._syncs),
        ):
            for first in range(0, len(table), _ROWS_AT_ONCE):
                yield draw(np.arange(first, min(first + _ROWS_AT_ONCE, len(table))))

    def _span(self) -> Iterator[str]:
        """Yield the events that state when recording was on."""
        trace = self._trace
        if trace.start_ns >= 0 and trace.end_ns >= 0:
            start, length = trace.start_ns - trace.base_ns, trace.end_ns - trace.start_ns
            yield (
                '{"ph":"X","cat":"Trace","name":"PyTorch Profiler (0)","pid":"Spans","tid":"PyTorch Profiler",'
                f'"ts":{microseconds(start)},"dur":{microseconds(length)},"args":{{}}}}'
            )

    def _host(self, table: HostEvents, category: str, rows: Index) -> Iterator[str]:
        return self._complete(table, rows, [category] * len(rows), [HOST_PID] * len(rows), table.thread[rows].tolist())

    def _calls(self, rows: Index) -> Iterator[str]:
        calls = self._trace.runtime_calls
        return self._complete(
            calls,
            rows,
            [self._call_categories[name] for name in calls.name_id[rows].tolist()],
            [HOST_PID] * len(rows),
            calls.thread[rows].tolist(),
            _args(correlation=calls.correlation[rows].tolist()),
        )

    def _ops(self, rows: Index) -> Iterator[str]:
        ops = self._trace.gpu_ops
        device, stream = ops.device[rows].tolist(), ops.stream[rows].tolist()
        args = _args(
            device=device,
            stream=stream,
            correlation=ops.correlation[rows].tolist(),
            bytes=ops.bytes[rows].tolist(),
            **{"memory bandwidth (GB/s)": ops.stated_gb_per_s[rows].tolist()},
            fromDevice=ops.source_device[rows].tolist(),
            toDevice=ops.target_device[rows].tolist(),
            grid=_grids(ops.blocks[rows]),
            block=_grids(ops.block_threads[rows]),
            **{"graph node id": ops.graph_node[rows].tolist()},
        )
        if self._collectives:
            args = list(map(self._with_collective, args, ops.place[rows].tolist()))
        spelled = [self._spelled[number] for number in self._spelling[rows].tolist()]
        categories, names = [category for category, _ in spelled], [name for _, name in spelled]
        return self._complete(ops, rows, categories, device, stream, args, names)

    def _with_collective(self, args: str, place: int) -> str:
        row = self._collectives.get(place)
        if row is None:
            return args
        collectives = self._trace.collectives
        texts: dict[str, I32] = {
            "Collective name": collectives.name_id,
            "Process Group Name": collectives.group,
            "Process Group Ranks": collectives.ranks,
            "dtype": collectives.dtype,
            "Process Group Description": collectives.description,
            "In split size": collectives.parts_in,
            "Out split size": collectives.parts_out,
        }
        numbers: dict[str, I32 | I64] = {
            "Group size": collectives.group_size,
            "In msg nelems": collectives.elements_in,
            "Out msg nelems": collectives.elements_out,
            "Seq": collectives.sequence,
        }
        parts = [f'"{key}":{self._names[column[row]]}' for key, column in texts.items() if column[row] >= 0]
        parts += [f'"{key}":{column[row]}' for key, column in numbers.items() if column[row] >= 0]
        # A kernel of a collective states at least its stream, so its arguments are not empty.
        return f"{args[:-1]}{',' if args != '{}' else ''}{','.join(parts)}}}"

    def _flows(self, rows: Index) -> Iterator[str]:
        """Yield a flow from each launch to its op. Each op of a graph launch has a flow of its own."""
        trace = self._trace
        ops, calls = trace.gpu_ops, trace.runtime_calls
        rows = rows[ops.launch[rows] >= 0]
        launch = ops.launch[rows]
        begin, end = (calls.start_ns[launch] - trace.base_ns).tolist(), (ops.start_ns[rows] - trace.base_ns).tolist()
        lanes = zip(calls.thread[launch].tolist(), ops.device[rows].tolist(), ops.stream[rows].tolist(), strict=True)
        for number, (thread, device, stream), first, last in zip(rows.tolist(), lanes, begin, end, strict=True):
            flow = f'"id":{number + 1},"cat":"ac2g","name":"ac2g"'
            yield f'{{"ph":"s",{flow},"pid":{HOST_PID},"tid":{thread},"ts":{microseconds(first)}}}'
            yield f'{{"ph":"f",{flow},"pid":{device},"tid":{stream},"ts":{microseconds(last)},"bp":"e"}}'

    def _device_annotations(self, rows: Index) -> Iterator[str]:
        copies: DeviceAnnotations = self._trace.device_annotations
        device, stream = copies.device[rows].tolist(), copies.stream[rows].tolist()
        return self._complete(copies, rows, ["gpu_user_annotation"] * len(rows), device, stream)

    def _syncs(self, rows: Index) -> Iterator[str]:
        syncs = self._trace.syncs
        device = syncs.device[rows]
        source = np.where(syncs.source_device[rows] == device, syncs.source_stream[rows], -1)
        args = _args(
            cuda_sync_kind=[f'"{_SYNC_KINDS[Sync(kind)]}"' for kind in syncs.kind[rows].tolist()],
            device=device.tolist(),
            stream=syncs.stream[rows].tolist(),
            correlation=syncs.correlation[rows].tolist(),
            wait_on_cuda_event_id=syncs.event[rows].tolist(),
            wait_on_stream=source.tolist(),
            wait_on_cuda_event_record_corr_id=syncs.record_correlation[rows].tolist(),
        )
        lanes = (_WAIT_LANE_OFFSET + syncs.stream[rows]).tolist()
        return self._complete(syncs, rows, ["cuda_sync"] * len(rows), device.tolist(), lanes, args)

    def _complete(
        self,
        table: TraceTable,
        rows: Index,
        category: Column,
        pid: Column,
        tid: Column,
        args: Column | None = None,
        names: Column | None = None,
    ) -> Iterator[str]:
        """Yield complete events; names are those of the table, unless they are given as JSON."""
        start = (table.start_ns[rows] - self._trace.base_ns).tolist()
        length = (table.end_ns[rows] - table.start_ns[rows]).tolist()
        names = names or [self._names[name] for name in table.name_id[rows].tolist()]
        each = zip(category, names, pid, tid, start, length, args or ["{}"] * len(rows), strict=True)
        for cat, name, process, thread, begin, ns, args in each:
            yield (
                f'{{"ph":"X","cat":"{cat}","name":{name},"pid":{process},"tid":{thread},'
                f'"ts":{microseconds(begin)},"dur":{microseconds(ns)},"args":{args}}}'
            )


def _args(**columns: Column) -> list[str]:
    """Return arguments as JSON objects, from columns of JSON values; values of -1 are left out."""
    keys = [f'"{key}":' for key in columns]
    return [
        "{" + ",".join(f"{key}{value}" for key, value in zip(keys, row, strict=True) if value != -1) + "}"
        for row in zip(*columns.values(), strict=True)
    ]


def _grids(items: I64) -> list[str | int]:
    """Return grids with these numbers of items as JSON; -1 for none."""
    return [f"[{count},1,1]" if count > 0 else -1 for count in items.tolist()]


def _spellings(ops: GpuOps) -> tuple[list[tuple[str, str]], I64]:
    """Return categories and names (as JSON) that make the reader classify the ops correctly, and a row for each op."""
    names = len(ops.names)
    judged = np.stack([ops.kind, ops.source_kind, ops.target_kind]).astype(np.int64)
    key = ((judged[0] * 8 + judged[1]) * 8 + judged[2]) * names + ops.name_id
    distinct, back = np.unique(key, return_inverse=True)
    spellings = []
    for spelling in distinct.tolist():
        kinds, name = divmod(spelling, names)
        category, spelled = _spelled(ops.names[name], kinds // 64, Memory(kinds // 8 % 8), Memory(kinds % 8))
        spellings.append((category, json.dumps(spelled)))
    return spellings, back.astype(np.int64)


def _spelled(name: str, kind: int, source: Memory, target: Memory) -> tuple[str, str]:
    """Return the name of an op and a matching category; another name if this name implies other memory."""
    likely = op_category(name)
    other = _SIDES.sub(f"({source.name.capitalize()} -> {target.name.capitalize()})", name)
    for spelled in (name, other):
        for category in (likely, *_CATEGORIES):
            judged = op_names.kind(category, spelled), *op_names.memory_kinds(category, spelled)
            if judged == (kind, source, target):
                return category, spelled
    return likely, name


def _lanes(trace: Trace) -> Iterator[str]:
    """Yield the names of processes and threads: the host above the devices, each stream above the waits on it."""
    yield metadata_event("process_name", HOST_PID, 0, name="host")
    yield metadata_event("process_labels", HOST_PID, 0, labels="CPU")
    yield metadata_event("process_sort_index", HOST_PID, 0, sort_index=0)
    hosts = (trace.annotations, trace.cpu_ops, trace.python_frames, trace.overheads, trace.runtime_calls)
    for thread in distinct(np.concatenate([table.thread for table in hosts])).tolist():
        yield metadata_event("thread_name", HOST_PID, thread, name=f"thread {thread}")
    tables = (trace.gpu_ops, trace.device_annotations, trace.syncs)
    for device in distinct(np.concatenate([table.device for table in tables])).tolist():
        yield metadata_event("process_name", device, 0, name=clean(trace.device_names.get(device, "GPU")))
        yield metadata_event("process_labels", device, 0, labels=f"GPU {device}")
        yield metadata_event("process_sort_index", device, 0, sort_index=_GPU_SORT + device)
        streams = [table.stream[table.device == device] for table in tables]
        for stream in distinct(np.concatenate(streams[:2])).tolist():
            yield from _lane(device, stream, f"stream {stream}", 2 * stream)
        for stream in distinct(streams[2]).tolist():
            what = f"stream {stream}" if stream >= 0 else "the device, or an event"
            yield from _lane(device, _WAIT_LANE_OFFSET + stream, f"waits for {what}", 2 * stream + 1)


def _lane(device: int, tid: int, name: str, sort_index: int) -> Iterator[str]:
    yield metadata_event("thread_name", device, tid, name=name)
    yield metadata_event("thread_sort_index", device, tid, sort_index=sort_index)
