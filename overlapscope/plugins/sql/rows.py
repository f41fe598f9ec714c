"""Rows of the tables as Arrow arrays: from columns of a Trace, and from results of its analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.collectives import comm_kinds, message_bytes
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.each_copy import list_copies
from overlapscope.analysis.event_waits import EXACT
from overlapscope.analysis.exposed_comm import GATHERS, NO_DEPTH, lead_ns, prefetch_depths
from overlapscope.analysis.figures import PerStep, PhaseFigures
from overlapscope.analysis.groups import sites_of_ops
from overlapscope.analysis.pieces import Exposed, Pieces, main_cause
from overlapscope.analysis.results import Device, Plain, TraceResult
from overlapscope.base.columns import I64, Integers, pick
from overlapscope.base.grouping import rows_by
from overlapscope.base.intervals import covered, intersect
from overlapscope.catalog.causes import COMM_CAUSES, COPY_CAUSES, IDLE_CAUSES, CommCause
from overlapscope.plugins.sql.tables import SqlColumn, SqlTable, Type
from overlapscope.report.model import Report
from overlapscope.report.page import DeviceReport, Page
from overlapscope.rules.finding import Finding
from overlapscope.tools import QueriedTraces
from overlapscope.trace.host import Sites, line_text, name_text, sites
from overlapscope.trace.model import Kind, Memory, Trace, TraceTable
from overlapscope.trace.servers import batch_in

if TYPE_CHECKING:
    import pyarrow as pa

Values = Any
"""A column: an Arrow array, a numpy array or a list."""
Filled = dict[str, Values]


def fill(table: SqlTable, job: QueriedTraces) -> pa.Table:
    """Return one of `TABLES` with the rows of all traces, in their order."""
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


def _parts(table: SqlTable, job: QueriedTraces) -> Iterator[tuple[int, Filled]]:
    """Yield the columns of each trace, or of each of its devices, with the number of the trace."""
    for number, done in enumerate(job.analyses):
        if table.name in _FROM_COLUMNS:
            yield from ((number, filled) for filled in _FROM_COLUMNS[table.name](done))
        else:
            yield number, _records(table.columns[2:], _results(table, job, number))


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


# -- Results ---------------------------------------------------------------------------------------


def _records(columns: Iterable[SqlColumn], rows: Iterable[Mapping[str, Any]]) -> Filled:
    rows = list(rows)
    return {column.name: [row.get(column.name) for row in rows] for column in columns}


_PARTS: Final = ("window", "buckets", "engines", "overlap", "where", "example", "saving", "time")
"""Fields of results that are structures, such as `overlap` of a device and `example` of a finding."""


def _flat(result: msgspec.Struct, **more: Any) -> dict[str, Any]:
    """Return a structure's fields and those of its parts in a flat mapping."""
    flat = more
    for name, value in asdict(result).items():
        flat |= _flat(value) if name in _PARTS and isinstance(value, msgspec.Struct) else {name: value}
    return flat


def _results(table: SqlTable, job: QueriedTraces, number: int) -> Iterable[Mapping[str, Any]]:
    if table.name == "findings":
        of = (job.traces[number].source, job.traces[number].rank)
        return (_finding(each) for each in job.report.findings if (each.source, each.rank) == of)
    # The report is expensive, so it is computed only for tables about the plain program.
    recorded = table.figures == "recorded"
    return _FROM_RESULTS[table.name](job.analyses[number].result if recorded else job.report.traces[number])


def _finding(finding: Finding) -> dict[str, Any]:
    flat = _flat(finding)
    return flat | {f"example_{end}": flat.get(end) for end in ("start_ns", "end_ns")}


def _device_rows(name: str) -> Callable[[TraceResult], Iterable[Mapping[str, Any]]]:
    """Return a function that yields a row for each element of a tuple in each device."""
    return lambda of: (_flat(each, device=device.device) for device in of.devices for each in getattr(device, name))


def _by_cause(source: Device | PerStep | Plain, device: int) -> Iterator[Mapping[str, Any]]:
    for subject, times in source.by_subject.items():
        for cause, time_ns in times.items():
            yield {"device": device, "subject": subject, "cause": cause, "time_ns": time_ns}


def _per_step(of: TraceResult) -> Iterator[tuple[DeviceReport, int, PerStep]]:
    """Yield the section of each device with an average step, its ordinal and that step, as people read them."""
    for section in Page(Report(traces=(of,), findings=())).sections():
        if section.device is not None and section.device.per_step is not None:
            yield section, section.device.device, section.device.per_step


def _average_step(section: DeviceReport, device: int, step: PerStep) -> dict[str, Any]:
    origin = section.plain_origin
    return _flat(step, device=device, program="recorded" if origin is None else "plain", origin=origin)


def _phases(of: TraceResult) -> Iterator[tuple[PhaseFigures, PerStep, int]]:
    """Yield each phase that a device's whole steps have, with an average step, and the device."""
    for device in of.devices:
        for phase in device.served.phases if device.served else ():
            if phase.per_step is not None:
                yield phase, phase.per_step, device.device


def _steps(of: TraceResult) -> Iterator[Mapping[str, Any]]:
    for row in _device_rows("steps")(of):
        yield {**row, **({} if (batch := batch_in(row["name"])) is None else asdict(batch))}


def _plain(of: TraceResult) -> list[tuple[Plain, int]]:
    return [(device.plain, device.device) for device in of.devices if device.plain is not None]


_FROM_RESULTS: Final[dict[str, Callable[[TraceResult], Iterable[Mapping[str, Any]]]]] = {
    "traces": lambda of: [_flat(of.environment, verdict=of.trust.verdict)],
    "checks": lambda of: map(_flat, of.trust.checks),
    "devices": lambda of: map(_flat, of.devices),
    "causes": lambda of: chain.from_iterable(_by_cause(device, device.device) for device in of.devices),
    "per_step": lambda of: starmap(_average_step, _per_step(of)),
    "causes_per_step": lambda of: chain.from_iterable(_by_cause(step, device) for _, device, step in _per_step(of)),
    "plain_steps": lambda of: (_flat(plain, device=device) for plain, device in _plain(of)),
    "plain_causes": lambda of: chain.from_iterable(starmap(_by_cause, _plain(of))),
    "phases": lambda of: (_flat(step, device=device) | _flat(phase) for phase, step, device in _phases(of)),
    "phase_causes": lambda of: (
        {**row, "phase": phase.phase} for phase, step, device in _phases(of) for row in _by_cause(step, device)
    ),
    "steps": _steps,
    "ranges": _device_rows("ranges"),
    "stalls": lambda of: ({**row, "line": row["where"]} for row in _device_rows("host_stalls")(of)),
}


# -- Columns ---------------------------------------------------------------------------------------


def utf8(text: str) -> str:
    """Return text that Arrow accepts. Names in traces may contain lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _numbers(values: NDArray[Any], none: float = -1) -> pa.Array:
    """Return numbers as an Arrow array, with NULL for the value `none`."""
    import pyarrow as pa

    return pa.array(values, mask=np.isnan(values) if np.isnan(none) else values == none)


def _words(ids: Integers, words: Iterable[str], none: int = -1) -> pa.Array:
    """Return text from indexes of words."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(
        pa.array(ids.astype(np.int32, copy=False), mask=ids == none),
        pa.array([utf8(word) for word in words], pa.string()),
    )


def _names(trace: Trace, ids: Integers, text_of: Callable[[Trace, int], str | None] = name_text) -> pa.Array:
    """Return names from their rows in `Trace.names`; -1 means NULL."""
    distinct, place = np.unique(ids, return_inverse=True)
    return _words(np.where(ids < 0, -1, place), [text_of(trace, row) or "" for row in distinct.tolist()])


def _times(table: TraceTable | Pieces) -> Filled:
    return {"start_ns": table.start_ns, "end_ns": table.end_ns, "duration_ns": table.end_ns - table.start_ns}


def _events(trace: Trace, table: TraceTable) -> Filled:
    """Return all columns of a table of the trace, with names and enumerations as text."""
    filled: Filled = {"id": np.arange(len(table)), "name": _names(trace, table.name_id)}
    for column, values in asdict(table).items():
        labels = table.labels.get(column)
        if labels is not None:
            none = Memory.UNKNOWN if labels is Memory else -1
            filled[column] = _words(values, [label.name.lower() for label in labels], none)
        elif column != "names":
            filled[column] = _numbers(values)
    return filled | _times(table)


def _site(trace: Trace, places: Sites) -> Filled:
    return {
        "op": _names(trace, places.op),
        "call": _names(trace, places.call),
        "line": _names(trace, places.line, line_text),
    }


def _gpu_ops(done: TraceAnalysis) -> Iterator[Filled]:
    trace, ops = done.trace, done.trace.gpu_ops
    filled = _events(trace, ops)
    yield filled | {"runtime_call": filled["launch"]} | _site(trace, sites_of_ops(trace, ops))


def _rows_in_trace(trace: Trace, device: DeviceAnalysis, rows: I64) -> I64:
    """Convert rows of `Timeline.ops` to rows of `Trace.gpu_ops`."""
    return np.flatnonzero(trace.gpu_ops.device == device.timeline.device)[rows]


def _copies(done: TraceAnalysis) -> Iterator[Filled]:
    trace = done.trace
    for device in done.devices:
        copies = list_copies(device)
        ops = device.timeline.ops.take(copies.row)
        filled = _events(trace, ops)
        yield filled | {
            "gpu_op": _rows_in_trace(trace, device, copies.row),
            "direction": filled["kind"],
            "gb_per_s": _numbers(copies.gb_per_s, np.nan),
            "exposed_ns": copies.exposed_ns,
            "cause": _words(copies.cause, COPY_CAUSES),
            **_site(trace, sites_of_ops(trace, ops)),
        }


def _peer_copies(done: TraceAnalysis) -> Iterator[Filled]:
    trace = done.trace
    for device in done.devices:
        timeline, windows = device.timeline, device.windows
        ran = covered(windows, timeline.ops.start_ns, timeline.ops.end_ns) > 0
        rows = np.flatnonzero((timeline.ops.kind == Kind.P2P) & ran)
        ops = timeline.ops.take(rows)
        rate = ops.bytes / (ops.end_ns - ops.start_ns)
        yield _events(trace, ops) | {
            "gpu_op": _rows_in_trace(trace, device, rows),
            "gb_per_s": _numbers(np.where(ops.bytes >= 0, rate, np.nan), np.nan),
            "exposed_ns": covered(intersect(timeline.exposed_p2p, windows), ops.start_ns, ops.end_ns),
            **_site(trace, sites_of_ops(trace, ops)),
        }


def _pieces(device: DeviceAnalysis, pieces: Pieces, causes: Iterable[str]) -> Filled:
    return {
        "device": np.full(len(pieces), device.timeline.device),
        **_times(pieces),
        "cause": _words(pieces.cause, causes),
        "confidence": _words((pieces.confidence == EXACT).astype(np.int8), ("rebuilt", "exact")),
    }


def _exposed(trace: Trace, device: DeviceAnalysis, pieces: Exposed, causes: Iterable[str]) -> Filled:
    return {
        **_pieces(device, pieces, causes),
        "gpu_op": _rows_in_trace(trace, device, pieces.op),
        **_site(trace, sites_of_ops(trace, device.timeline.ops.take(pieces.op), pieces.call)),
    }


def _comm_kernels(done: TraceAnalysis) -> Iterator[Filled]:
    trace = done.trace
    for device in done.devices:
        ops, begun, windows = device.timeline.ops, device.comm, device.windows
        begun = begun.take(covered(windows, ops.start_ns[begun.op], ops.end_ns[begun.op]) > 0)
        kernels = ops.take(begun.op)
        pieces = device.exposed_comm.inside(windows)
        row = np.searchsorted(begun.op, pieces.op)
        exposed_ns = np.zeros(len(kernels), np.int64)
        np.add.at(exposed_ns, row, pieces.length_ns)
        kinds = comm_kinds(trace, kernels)
        depth = np.full(len(kernels), NO_DEPTH)
        for kind, rows in rows_by(kinds.kind):
            if GATHERS.search(kinds.kinds[kind].collective):
                depth[rows] = prefetch_depths(ops, trace.runtime_calls, begun.take(rows))
        yield {
            **_events(trace, kernels),
            "gpu_op": _rows_in_trace(trace, device, begun.op),
            "collective": _words(kinds.kind, [kind.words for kind in kinds.kinds]),
            "exposed_ns": exposed_ns,
            "cause": _words(main_cause(row, pieces.cause, pieces.length_ns, len(kernels)), COMM_CAUSES),
            "began_by": _words(begun.cause, [_BEGAN_BY.get(cause, "unknown") for cause in COMM_CAUSES]),
            "waited_for": _names(trace, pick(ops.name_id, begun.held_by)),
            "lead_ns": _numbers(lead_ns(ops, begun)),
            "prefetch_depth": _numbers(depth),
            **_site(trace, sites_of_ops(trace, kernels, begun.call)),
        }


_BEGAN_BY: Final = {
    CommCause.LATE_ISSUE: "launch",
    CommCause.HOST_SYNC: "launch",
    CommCause.BLOCKED_BEHIND: "collective",
    CommCause.WAITING_FOR_INPUT: "op",
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
    trace, collectives = done.trace, done.trace.collectives
    named = {
        "process_group": collectives.group,
        "description": collectives.description,
        "group_ranks": collectives.ranks,
        "dtype": collectives.dtype,
        "parts_in": collectives.parts_in,
        "parts_out": collectives.parts_out,
    }
    sizes = _numbers(message_bytes(collectives, trace.names))
    yield _events(trace, collectives) | {name: _names(trace, ids) for name, ids in named.items()} | {"bytes": sizes}


_FROM_COLUMNS: Final[dict[str, Callable[[TraceAnalysis], Iterable[Filled]]]] = {
    "gpu_ops": _gpu_ops,
    "copies": _copies,
    "peer_copies": _peer_copies,
    "exposed_pieces": lambda done: (_exposed(done.trace, each, each.exposed, COPY_CAUSES) for each in done.devices),
    "comm_kernels": _comm_kernels,
    "exposed_comm_pieces": lambda done: (
        _exposed(done.trace, each, each.exposed_comm, COMM_CAUSES) for each in done.devices
    ),
    "idle_pieces": _idle_pieces,
    "collectives": _collectives,
    "runtime_calls": lambda done: [_events(done.trace, done.trace.runtime_calls)],
    "cpu_ops": lambda done: [_events(done.trace, done.trace.cpu_ops)],
    "annotations": lambda done: [_events(done.trace, done.trace.annotations)],
}
