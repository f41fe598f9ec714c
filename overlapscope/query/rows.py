"""Fills the tables: columns of a Trace as they lie in memory, results of its analysis row by row, all as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.each_copy import list_copies
from overlapscope.analysis.edges import EXACT
from overlapscope.analysis.host import Sites, line_text, name_text, sites, sites_of_calls
from overlapscope.analysis.pieces import Pieces
from overlapscope.analysis.results import Device
from overlapscope.base.columns import I64, Integers
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.query.tables import Table, Type
from overlapscope.report.model import Report, build
from overlapscope.trace.model import HostEvents, Kind, Memory, RuntimeCalls, Trace
from overlapscope.trace.model import Table as Events

if TYPE_CHECKING:
    import pyarrow as pa

Values = Any
"""A column: an array of Arrow or numpy, or a list."""
Filled = dict[str, Values]


@dataclass(frozen=True, eq=False)
class Job:
    """The traces that are asked about, analysed once and when a table needs it."""

    traces: tuple[Trace, ...]

    @cached_property
    def analyses(self) -> tuple[TraceAnalysis, ...]:
        return tuple(map(analyze_trace, self.traces))

    @cached_property
    def report(self) -> Report:
        """With the plain program, and findings over all the traces."""
        return build(self.analyses)


def fill(table: Table, job: Job) -> pa.Table:
    """One of `TABLES`, with the rows of all traces, one trace after another."""
    import pyarrow as pa

    types: dict[Type, pa.DataType] = {
        "integer": pa.int64(),
        "number": pa.float64(),
        "text": pa.dictionary(pa.int32(), pa.string()),
        "boolean": pa.bool_(),
    }
    schema = pa.schema([(column.name, types[column.type]) for column in table.columns])
    parts = [_part(filled, job.traces[number], schema) for number, filled in _parts(table, job)]
    return pa.concat_tables([schema.empty_table(), *parts])


def _parts(table: Table, job: Job) -> Iterator[tuple[int, Filled]]:
    """The columns of each trace, or of each device of it, with the number of the trace."""
    for number, done in enumerate(job.analyses):
        if table.name in _FROM_RESULTS:
            yield number, _records(table, _FROM_RESULTS[table.name](job, number))
        else:
            yield from ((number, filled) for filled in _FROM_COLUMNS[table.name](done))


def _part(filled: Filled, trace: Trace, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    rows = len(next(iter(filled.values())))
    rank = pa.nulls(rows) if trace.rank is None else np.full(rows, trace.rank)
    filled = filled | {"source": _words(np.zeros(rows, np.int32), [trace.source]), "rank": rank}
    return pa.table([_column(filled[field.name], field.type) for field in schema], schema=schema)


def _column(values: Values, of: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if isinstance(values, list):
        return pa.array([utf8(value) if isinstance(value, str) else value for value in values], of)
    array = pa.array(values) if isinstance(values, np.ndarray) else values
    return array if array.type == of else array.cast(of)


# -- results, row by row ----------------------------------------------------------------------------


def _records(table: Table, rows: Iterable[Mapping[str, Any]]) -> Filled:
    rows = list(rows)
    return {column.name: [row.get(column.field or column.name) for row in rows] for column in table.columns[2:]}


_PARTS: Final = ("window", "buckets", "engines", "overlap", "where", "example")
"""Of the structures of results: a device has an `overlap`, a finding an `example`."""


def _flat(result: msgspec.Struct, **more: Any) -> dict[str, Any]:
    """A structure's fields, with those of its parts beside them."""
    fields = more
    for name, value in msgspec.structs.asdict(result).items():
        fields |= _flat(value) if name in _PARTS and isinstance(value, msgspec.Struct) else {name: value}
    return fields


def _devices(job: Job, number: int) -> tuple[Device, ...]:
    return job.report.traces[number].devices


def _of_devices(name: str) -> Callable[[Job, int], Iterator[dict[str, Any]]]:
    """A row for each of something that each device has several of."""

    def rows(job: Job, number: int) -> Iterator[dict[str, Any]]:
        results = (device.result for device in job.analyses[number].devices)
        return (_flat(one, device=device.device) for device in results for one in getattr(device, name))

    return rows


def _causes(job: Job, number: int) -> Iterator[dict[str, Any]]:
    return (row for device in job.analyses[number].devices for row in _by_cause(device.result, device.result.device))


def _plain_causes(job: Job, number: int) -> Iterator[dict[str, Any]]:
    for device in _devices(job, number):
        if device.plain is not None and device.plain.buckets is not None:
            yield from _by_cause(device.plain, device.device)


def _by_cause(of: Any, device: int) -> Iterator[dict[str, Any]]:
    for subject, times in (("exposed-copy", of.exposed_copy_by_cause), ("idle", of.idle_by_cause)):
        for cause, time_ns in times.items():
            yield {"device": device, "subject": subject, "cause": cause, "time_ns": time_ns}


def _findings(job: Job, number: int) -> Iterator[dict[str, Any]]:
    of = job.traces[number]
    return (_flat(one) for one in job.report.findings if (one.source, one.rank) == (of.source, of.rank))


_FROM_RESULTS: Final[dict[str, Callable[[Job, int], Iterable[Mapping[str, Any]]]]] = {
    "traces": lambda job, number: [
        _flat(job.analyses[number].result.environment, verdict=job.analyses[number].result.trust.verdict)
    ],
    "checks": lambda job, number: map(_flat, job.analyses[number].result.trust.checks),
    "devices": lambda job, number: (_flat(device.result) for device in job.analyses[number].devices),
    "causes": _causes,
    "plain_steps": lambda job, number: (
        _flat(device.plain, device=device.device) for device in _devices(job, number) if device.plain is not None
    ),
    "plain_causes": _plain_causes,
    "steps": _of_devices("steps"),
    "ranges": _of_devices("ranges"),
    "findings": _findings,
    "stalls": _of_devices("host_stalls"),
}

# -- columns ----------------------------------------------------------------------------------------


def utf8(text: str) -> str:
    """Text that Arrow takes: a name in a trace may have halves of characters."""
    return text.encode("utf-8", "backslashreplace").decode()


def _numbers(values: Integers, none: int = -1) -> pa.Array:
    """Numbers, of which one stands for none."""
    import pyarrow as pa

    return pa.array(values, mask=values == none)


def _words(ids: Integers, words: Iterable[str], none: int = -1) -> pa.Array:
    """Text by its place among words."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(
        pa.array(ids.astype(np.int32, copy=False), mask=ids == none),
        pa.array([utf8(word) for word in words], pa.string()),
    )


def _labels(values: Integers, labels: type[IntEnum], none: int = -1) -> pa.Array:
    return _words(values, [label.name.lower() for label in labels], none)


def _names(trace: Trace, ids: Integers, said: Callable[[Trace, int], str | None] = name_text) -> pa.Array:
    """Names by their rows in `Trace.names`; -1 is none."""
    distinct, place = np.unique(ids, return_inverse=True)
    return _words(np.where(ids < 0, -1, place), [said(trace, row) or "" for row in distinct.tolist()])


def _times(table: Events | Pieces) -> Filled:
    return {"start_ns": table.start_ns, "end_ns": table.end_ns, "duration_ns": table.end_ns - table.start_ns}


def _site(trace: Trace, found: Sites) -> Filled:
    return {
        "op": _names(trace, found.op),
        "call": _names(trace, found.call),
        "line": _names(trace, found.line, line_text),
    }


def _gpu_ops(done: TraceAnalysis) -> Iterator[Filled]:
    trace, ops = done.trace, done.trace.gpu_ops
    yield {
        "id": np.arange(len(ops)),
        "device": _numbers(ops.device),
        "stream": _numbers(ops.stream),
        "name": _names(trace, ops.name_id),
        "kind": _labels(ops.kind, Kind),
        **_times(ops),
        "bytes": _numbers(ops.bytes),
        "source_kind": _labels(ops.source_kind, Memory, Memory.UNKNOWN),
        "target_kind": _labels(ops.target_kind, Memory, Memory.UNKNOWN),
        "correlation": _numbers(ops.correlation),
        "runtime_call": _numbers(ops.launch),
        **_site(trace, sites_of_calls(trace, ops.launch)),
    }


def _places(trace: Trace, device: DeviceAnalysis) -> I64:
    """Row in `Trace.gpu_ops` of each row of `Timeline.ops`."""
    return np.flatnonzero(trace.gpu_ops.device == device.timeline.device)


def _copies(done: TraceAnalysis) -> Iterator[Filled]:
    trace = done.trace
    for device in done.devices:
        copies = list_copies(device)
        ops = device.timeline.ops.take(copies.row)
        yield {
            "gpu_op": _places(trace, device)[copies.row],
            "device": _numbers(ops.device),
            "stream": _numbers(ops.stream),
            "direction": _labels(ops.kind, Kind),
            "source_kind": _labels(ops.source_kind, Memory, Memory.UNKNOWN),
            "target_kind": _labels(ops.target_kind, Memory, Memory.UNKNOWN),
            **_times(ops),
            "bytes": _numbers(ops.bytes),
            "gb_per_s": _rates(copies.gb_per_s),
            "exposed_ns": copies.exposed_ns,
            "cause": _words(copies.cause, COPY_CAUSES),
            **_site(trace, sites_of_calls(trace, ops.launch)),
        }


def _rates(values: Any) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, mask=np.isnan(values))


def _pieces(device: DeviceAnalysis, pieces: Pieces, causes: Iterable[str]) -> Filled:
    return {
        "device": np.full(len(pieces), device.timeline.device),
        **_times(pieces),
        "cause": _words(pieces.cause, causes),
        "confidence": _words((pieces.confidence == EXACT).astype(np.int8), ("rebuilt", "exact")),
    }


def _exposed_pieces(done: TraceAnalysis) -> Iterator[Filled]:
    for device in done.devices:
        pieces, ops = device.exposed, device.timeline.ops
        yield {
            **_pieces(device, pieces, COPY_CAUSES),
            "gpu_op": _places(done.trace, device)[pieces.copy],
            **_site(done.trace, sites_of_calls(done.trace, ops.launch[pieces.copy])),
        }


def _idle_pieces(done: TraceAnalysis) -> Iterator[Filled]:
    for device in done.devices:
        pieces = device.idle
        yield {
            **_pieces(device, pieces, IDLE_CAUSES),
            "gap": np.searchsorted(device.timeline.idle.starts, pieces.start_ns, side="right") - 1,
            "thread": _numbers(pieces.thread),
            **_site(done.trace, sites(done.trace, pieces.call, pieces.thread, pieces.host_ns)),
        }


def _collectives(done: TraceAnalysis) -> Iterator[Filled]:
    trace, found = done.trace, done.trace.collectives
    yield {
        "name": _names(trace, found.name_id),
        **_times(found),
        "process_group": _names(trace, found.group),
        "group_ranks": _names(trace, found.ranks),
        "dtype": _names(trace, found.dtype),
        **{
            name: _numbers(getattr(found, name))
            for name in (
                "device",
                "stream",
                "correlation",
                "group_size",
                "elements_in",
                "elements_out",
                "sequence",
            )
        },
    }


def _host(of: Callable[[Trace], HostEvents]) -> Callable[[TraceAnalysis], Iterator[Filled]]:
    def rows(done: TraceAnalysis) -> Iterator[Filled]:
        events = of(done.trace)
        more = {"correlation": _numbers(events.correlation)} if isinstance(events, RuntimeCalls) else {}
        yield {
            "id": np.arange(len(events)),
            "thread": _numbers(events.thread),
            "name": _names(done.trace, events.name_id),
            **_times(events),
            **more,
        }

    return rows


_FROM_COLUMNS: Final[dict[str, Callable[[TraceAnalysis], Iterator[Filled]]]] = {
    "gpu_ops": _gpu_ops,
    "copies": _copies,
    "exposed_pieces": _exposed_pieces,
    "idle_pieces": _idle_pieces,
    "collectives": _collectives,
    "runtime_calls": _host(lambda trace: trace.runtime_calls),
    "cpu_ops": _host(lambda trace: trace.cpu_ops),
    "annotations": _host(lambda trace: trace.annotations),
}
