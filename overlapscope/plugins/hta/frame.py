"""A Trace as the frame that HTA makes of a file: one row for each event, in the order of the file.

The columns are those of `hta.common.trace_parser` and `hta.common.trace` in 0.5 and 0.6. Columns that no analysis reads
and a Trace does not hold are missing: `External id`, `Python id`, input shapes, types and strides
(`docs/evaluation/hta.md`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from overlapscope.export.chrome_trace import HOST_PID, call_category, op_category
from overlapscope.trace.model import F64, I64, Bool, Trace, TraceTable

if TYPE_CHECKING:
    import pandas as pd
    from hta.common.trace_symbol_table import TraceSymbolTable

_CONTEXT = 1
"""Kineto puts a synchronization without a stream in the row of its context, of which a process has only this."""
_STEP = re.compile(r"(?:ProfilerStep\s*#\s*|repeat (?=\d+ of \d+$))(\d+)")

_NONE = {
    "stream": -1,
    "correlation": -1,
    "bytes": -1,
    "memory_bw_gbps": 0.0,
    "wait_on_stream": -1,
    "wait_on_cuda_event_record_corr_id": -1,
}
"""HTA's values for missing arguments."""


class _Part(Struct, frozen=True):
    """Rows of a table. Unnamed values are missing."""

    table: TraceTable
    category: Callable[[str], str]
    """Function that returns the category of an event by its name."""
    pid: Any
    tid: Any
    values: dict[str, Any] = field(default_factory=dict)


def frame(trace: Trace, symbols: TraceSymbolTable, *, nanoseconds: bool) -> pd.DataFrame:
    """Return the rows of a rank; `ts`, `dur` and `end` in microseconds on the file's own clock, see `microseconds`.

    Adds names and categories to `symbols`, which `name` and `cat` index. Rows are numbered from 0; column `index` has
    the place of each event in the file, which `index_correlation` refers to.
    """
    import pandas as pd
    from hta.common.trace_filter import GPUKernelFilter

    parts = [part for part in _parts(trace) if len(part.table)]
    place = _column(parts, lambda part: part.table.place, np.int64)
    order = np.argsort(place, kind="stable")
    start_ns = _column(parts, lambda part: part.table.start_ns, np.int64)[order] - trace.base_ns
    end_ns = _column(parts, lambda part: part.table.end_ns, np.int64)[order] - trace.base_ns
    names, categories = _symbols(trace, parts, symbols)
    ts, dur, end = microseconds(start_ns, end_ns, nanoseconds=nanoseconds)
    columns: dict[str, Any] = {
        "index": place[order],
        "cat": categories[order],
        "name": names[order],
        "pid": _column(parts, lambda part: part.pid, np.int64)[order],
        "tid": _column(parts, lambda part: part.tid, np.int64)[order],
        "ts": ts,
        "dur": dur,
    }
    for name, default in _NONE.items():
        columns[name] = _argument(parts, name, default)[order]
    rows = pd.DataFrame({name: _small(values) for name, values in columns.items()}, copy=False)
    _add_collectives(rows, trace)

    # HTA's own selection of rows on the device, which also includes two kinds of synchronization.
    on_gpu = np.zeros(len(rows), np.bool_)
    named = rows[["stream", "correlation", "name"]]
    on_gpu[GPUKernelFilter()(named, symbols).index.to_numpy()] = True
    links = linked(columns["index"], columns["correlation"], on_gpu)
    rows["index_correlation"] = _small(links)
    rows["iteration"] = _small(
        iterations(ts, columns["stream"], columns["index"], links, _steps(names[order], symbols, ts, dur))
    )
    rows["end"] = end
    return rows


def microseconds(start_ns: I64, end_ns: I64, *, nanoseconds: bool) -> tuple[NDArray[Any], F64, F64]:
    """Return `ts`, `dur` and `end` as HTA has them, on the file's own clock; as doubles if `nanoseconds`.

    Otherwise HTA rounds the start up and the end down to whole microseconds, so an event shorter than a microsecond can
    have a length of -1 (explained in https://github.com/pytorch/pytorch/pull/122425). HTA rounds an end that is the sum
    of two doubles.
    """
    ts = start_ns / 1000
    dur = (end_ns - start_ns) / 1000
    end = ts + dur
    if nanoseconds:
        return ts, dur, end
    rounded = np.ceil(ts)
    end = np.floor(end)
    return rounded.astype(np.int64), end - rounded, end


def _parts(trace: Trace) -> tuple[_Part, ...]:
    ops, syncs, copies = trace.gpu_ops, trace.syncs, trace.device_annotations
    on_stream = syncs.stream >= 0
    return (
        _Part(
            ops,
            op_category,
            ops.device,
            ops.stream,
            {
                "stream": ops.stream,
                "correlation": ops.correlation,
                "bytes": ops.bytes,
                "memory_bw_gbps": np.maximum(ops.stated_gb_per_s, 0.0),
            },
        ),
        _Part(copies, lambda name: "gpu_user_annotation", copies.device, copies.stream),
        _Part(
            syncs,
            lambda name: "cuda_sync",
            syncs.device,
            np.where(on_stream, syncs.stream, _CONTEXT),
            {
                "stream": syncs.stream,
                # HTA joins on this column, and would join all rows with -1.
                "correlation": np.maximum(syncs.correlation, 0),
                "wait_on_stream": syncs.source_stream,
                "wait_on_cuda_event_record_corr_id": syncs.record_correlation,
            },
        ),
        _Part(
            trace.runtime_calls,
            call_category,
            HOST_PID,
            trace.runtime_calls.thread,
            {"correlation": trace.runtime_calls.correlation},
        ),
        _Part(trace.cpu_ops, lambda name: "cpu_op", HOST_PID, trace.cpu_ops.thread),
        _Part(trace.annotations, lambda name: "user_annotation", HOST_PID, trace.annotations.thread),
        _Part(trace.python_frames, lambda name: "python_function", HOST_PID, trace.python_frames.thread),
        # Kineto gives them no process.
        _Part(trace.overheads, lambda name: "overhead", -1, trace.overheads.thread),
    )


def _argument(parts: list[_Part], name: str, none: float) -> NDArray[Any]:
    """Return the values of all parts with this name."""
    return _column(parts, lambda part: part.values.get(name, none), type(none))


def _column(parts: list[_Part], values: Callable[[_Part], Any], dtype: Any) -> NDArray[Any]:
    """Return the values of all parts, part after part; a single value fills all rows of its part."""
    column = np.empty(sum(len(part.table) for part in parts), dtype)
    at = 0
    for part in parts:
        column[at : at + len(part.table)] = values(part)
        at += len(part.table)
    return column


def _symbols(trace: Trace, parts: list[_Part], symbols: TraceSymbolTable) -> tuple[I64, I64]:
    """Return the symbol numbers of the names and the categories of all parts' rows."""
    names, categories = [], []
    number = symbols.get_sym_id_map()
    for part in parts:
        used, back = np.unique(part.table.name_id, return_inverse=True)
        texts = [trace.names[name_id] for name_id in used.tolist()]
        kinds = [part.category(text) for text in texts]
        symbols.add_symbols(texts)
        symbols.add_symbols(kinds)
        names.append(np.array([number[text] for text in texts], np.int64)[back])
        categories.append(np.array([number[kind] for kind in kinds], np.int64)[back])
    nothing = np.empty(0, np.int64)
    return np.concatenate([nothing, *names]), np.concatenate([nothing, *categories])


def _steps(names: I64, symbols: TraceSymbolTable, ts: NDArray[Any], dur: F64) -> StepRows:
    """Return the rows that HTA takes for steps, of any category, including the copies on the device."""
    numbers = {
        number: int(match[1]) for name, number in symbols.get_sym_id_map().items() if (match := _STEP.match(name))
    }
    rows = np.flatnonzero(np.isin(names, list(numbers)))
    step = np.array([numbers[name] for name in names[rows].tolist()], np.int64)
    return StepRows(ts[rows], ts[rows] + dur[rows], step)


def _add_collectives(frame: pd.DataFrame, trace: Trace) -> None:
    """Add the collectives that kernels state, if HTA is configured to read them, as it is since 0.6.

    HTA's analyses ignore them; they are for users of the frame.
    """
    from hta.configs.parser_config import ParserConfig

    collectives = trace.collectives
    # If the trace is a selection, some kernels may be missing.
    collectives = collectives.take(np.isin(collectives.place, frame["index"].to_numpy()))
    rows = np.searchsorted(frame["index"].to_numpy(), collectives.place)
    texts = np.array([*trace.names, ""], dtype=object)
    values_of: dict[str, tuple[Any, Any]] = {
        "collective_name": ("", texts[collectives.name_id]),
        "msg_dtype": ("", texts[collectives.dtype]),
        "in_msg_nelems": (0, np.maximum(collectives.elements_in, 0)),
        "out_msg_nelems": (0, np.maximum(collectives.elements_out, 0)),
        "group_size": (0, np.maximum(collectives.group_size, 0)),
    }
    for name in [arg.name for arg in ParserConfig.get_default_cfg().get_args() if arg.name in values_of]:
        none, values = values_of[name]
        column = np.full(len(frame), none, dtype=values.dtype)
        column[rows] = values
        frame[name] = _small(column)


def _small(values: NDArray[Any]) -> NDArray[Any]:
    """Return values as the smallest integers that hold them, as HTA does; doubles stay doubles."""
    import pandas as pd

    return pd.to_numeric(values, downcast="integer") if values.dtype.kind == "i" else values


# -- Columns that HTA adds ---
# The launch of each kernel, and the step of each row, as computed row by row by `transform_correlation_to_index`
# and `add_iteration` of `hta.common.trace`.


class StepRows(Struct, frozen=True):
    """Rows that are steps, in the order of the frame; steps may overlap."""

    start_us: NDArray[Any]
    end_us: NDArray[Any]
    number: I64


def linked(index: I64, correlation: I64, on_gpu: Bool) -> I64:
    """Return for each row the `index` of the last row on the other side with the same correlation.

    It is 0 where there is none, and -1 where the row has no correlation. `index` must ascend.
    """
    import pandas as pd

    side = 2 * correlation + on_gpu
    last = pd.Series(index, side).groupby(level=0).last()
    links: I64 = np.where(correlation == -1, -1, last.reindex(side ^ 1, fill_value=0))
    return links


def iterations(ts_us: NDArray[Any], stream: I64, index: I64, links: I64, steps: StepRows) -> I64 | F64:
    """Return the step of each row: for a host row the step that it begins in, for a device row its launch's step.

    It is -1 for none. If steps overlap, the last counts. HTA gives rows of stream 0 no step at all: they are NaN.
    """
    on_host = np.flatnonzero(stream < 0)
    step = np.full(len(ts_us), -1, np.int64)
    order = on_host[np.argsort(ts_us[on_host], kind="stable")]
    ordered = ts_us[order]
    bounds = np.searchsorted(ordered, steps.start_us), np.searchsorted(ordered, steps.end_us)
    for first, last, number in zip(*bounds, steps.number, strict=True):
        step[order[first:last]] = number
    of_stream = np.flatnonzero(stream > 0)
    launched = of_stream[links[of_stream] > 0]
    step[launched] = step[np.searchsorted(index, links[launched])]
    if (stream == 0).any():
        return np.where(stream == 0, np.nan, step.astype(np.float64))
    return step
