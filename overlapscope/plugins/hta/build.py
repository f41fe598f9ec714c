"""HTA's `TraceAnalysis` from our Traces, and the version and the output of the installed HTA.

See `docs/evaluation/hta.md`.

    analysis = overlapscope.hta.trace_analysis("traces/ddp")
    analysis.get_temporal_breakdown(visualize=False)

HTA itself is imported when it is used, not here.

A Trace becomes the frame that HTA makes of a file: one row for each event, in the order of the file. The columns are
those of `hta.common.trace_parser` and `hta.common.trace` in 0.5 and 0.6. Columns that no analysis reads and a Trace
does not hold are missing: `External id`, `Python id`, input shapes, types and strides.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from overlapscope.base.extras import how_to_install, install_line
from overlapscope.errors import MissingPackage, UsageError
from overlapscope.export.chrome_trace import HOST_PID, call_category, op_category
from overlapscope.inputs import Source, read_traces
from overlapscope.trace.model import F64, I64, Bool, Trace, TraceTable

if TYPE_CHECKING:
    import pandas as pd
    from hta.common.trace_symbol_table import TraceSymbolTable
    from hta.trace_analysis import TraceAnalysis


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


def frame(trace: Trace, symbols: TraceSymbolTable, *, nanoseconds: bool) -> pd.DataFrame:
    """Return the rows of a rank; `ts`, `dur` and `end` in microseconds on the file's own clock, see `microseconds`.

    Adds names and categories to `symbols`, which `name` and `cat` index. Rows are numbered from 0; column `index` has
    the place of each event in the file, which `index_correlation` refers to.
    """
    import pandas as pd
    from hta.common.trace_filter import GPUKernelFilter

    rows = pd.concat(_parts(trace, symbols)).sort_values("index", kind="stable", ignore_index=True)
    start_ns, end_ns = (rows.pop(name).to_numpy() for name in ("start_ns", "end_ns"))
    ts, dur, end = microseconds(start_ns, end_ns, nanoseconds=nanoseconds)
    rows.insert(5, "ts", ts)
    rows.insert(6, "dur", dur)
    columns = pd.DataFrame({name: _small(rows[name].to_numpy()) for name in rows.columns}, copy=False)
    _add_collectives(columns, trace)
    # HTA's own selection of rows on the device, which also includes two kinds of synchronization.
    on_gpu = np.zeros(len(rows), np.bool_)
    on_gpu[GPUKernelFilter()(rows[["stream", "correlation", "name"]], symbols).index.to_numpy()] = True
    index, name, stream, correlation = (rows[name].to_numpy() for name in ("index", "name", "stream", "correlation"))
    links = linked(index, correlation, on_gpu)
    # These are the last columns, after those of collectives.
    columns["index_correlation"] = _small(links)
    columns["iteration"] = _small(iterations(ts, stream, index, links, _steps(name, symbols, ts, dur)))
    columns["end"] = end
    return columns


def microseconds(start_ns: I64, end_ns: I64, *, nanoseconds: bool) -> tuple[NDArray[Any], F64, F64]:
    """Return `ts`, `dur` and `end` as HTA has them, on the file's own clock; as doubles if `nanoseconds`.

    Otherwise HTA rounds the start up and the end down to whole microseconds, so an event shorter than a microsecond can
    have a length of -1 (explained in https://github.com/pytorch/pytorch/pull/122425). HTA rounds an end that is the sum
    of two doubles.
    """
    # Nanoseconds since 1970 exceed what a double holds exactly.
    ts = start_ns // 1000 + start_ns % 1000 / 1000
    dur = (end_ns - start_ns) / 1000
    end = ts + dur
    if nanoseconds:
        return ts, dur, end
    rounded = np.ceil(ts)
    end = np.floor(end)
    return rounded.astype(np.int64), end - rounded, end


def _parts(trace: Trace, symbols: TraceSymbolTable) -> Iterator[pd.DataFrame]:
    """Yield the rows of each table."""
    ops, syncs, copies = trace.gpu_ops, trace.syncs, trace.device_annotations
    calls, frames = trace.runtime_calls, trace.python_frames
    rows = partial(_rows, trace, symbols)
    yield rows(
        ops,
        op_category,
        ops.device,
        ops.stream,
        stream=ops.stream,
        correlation=ops.correlation,
        bytes=ops.bytes,
        memory_bw_gbps=np.maximum(ops.stated_gb_per_s, 0.0),
    )
    yield rows(copies, lambda name: "gpu_user_annotation", copies.device, copies.stream)
    yield rows(
        syncs,
        lambda name: "cuda_sync",
        syncs.device,
        np.where(syncs.stream >= 0, syncs.stream, _CONTEXT),
        stream=syncs.stream,
        # HTA joins on this column, and would join all rows with -1.
        correlation=np.maximum(syncs.correlation, 0),
        wait_on_stream=syncs.source_stream,
        wait_on_cuda_event_record_corr_id=syncs.record_correlation,
    )
    yield rows(calls, call_category, HOST_PID, calls.thread, correlation=calls.correlation)
    yield rows(trace.cpu_ops, lambda name: "cpu_op", HOST_PID, trace.cpu_ops.thread)
    yield rows(trace.annotations, lambda name: "user_annotation", HOST_PID, trace.annotations.thread)
    yield rows(frames, lambda name: "python_function", HOST_PID, frames.thread)
    # Kineto gives them no process.
    yield rows(trace.overheads, lambda name: "overhead", -1, trace.overheads.thread)


def _rows(
    trace: Trace,
    symbols: TraceSymbolTable,
    table: TraceTable,
    category: Callable[[str], str],
    pid: Any,
    tid: Any,
    **values: Any,
) -> pd.DataFrame:
    """Return the rows of a table. `category` is that of an event by its name; arguments without values are missing."""
    import pandas as pd

    used, back = np.unique(table.name_id, return_inverse=True)
    names = [trace.names[name_id] for name_id in used.tolist()]
    numbers = []
    for texts in (names, [category(name) for name in names]):
        symbols.add_symbols(texts)
        number = symbols.get_sym_id_map()
        numbers.append(np.array([number[text] for text in texts], np.int64)[back])
    columns = {"index": table.place, "cat": numbers[1], "name": numbers[0], "pid": pid, "tid": tid}
    times = {"start_ns": table.start_ns - trace.base_ns, "end_ns": table.end_ns - trace.base_ns}
    return pd.DataFrame(columns | times | _NONE | values)


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
    if values.dtype.kind != "i" or not len(values):
        return values
    return values.astype(np.min_scalar_type(min(int(values.min()), -1 - int(values.max()))))


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
    last = pd.Series(index, side)
    last = last[~last.index.duplicated(keep="last")]
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


def __dir__() -> list[str]:
    """Return what `overlapscope.hta` has for users."""
    return ["trace_analysis"]


def trace_analysis(
    traces: Source | Iterable[Source],
    *,
    include_last_profiler_step: bool = False,
    nanoseconds: bool | None = None,
) -> TraceAnalysis:
    """Return HTA's `TraceAnalysis` over our traces, or over files, directories and patterns.

    Its `t` is HTA's `hta.common.trace.Trace`, with a frame for each rank and the symbol table, as HTA would have made
    them from the files. Every analysis of HTA runs on it. A trace without a rank gets the lowest free rank.

    Args:
        traces: Traces, or paths and patterns of files.
        include_last_profiler_step: HTA's option. Without it, HTA leaves out the work that the last step launched.
        nanoseconds: Whether times keep nanoseconds, or are rounded to whole microseconds. None follows HTA, which
            rounds unless its environment variable HTA_DISABLE_NS_ROUNDING is 1.

    Raises:
        MissingPackage: HTA is not installed.
        UnreadableTrace: A file cannot be read.
        UsageError: Two traces have the same rank, which HTA cannot hold, or a trace has no events.
    """
    require()
    by_rank = _by_rank(read_traces(traces))
    with quiet():
        from hta.common import trace as hta_trace
        from hta.configs.env_options import disable_ns_rounding
        from hta.trace_analysis import TraceAnalysis

        exact = disable_ns_rounding() if nanoseconds is None else nanoseconds
        hta_trace_set = hta_trace.Trace(trace_files={})
        for rank, trace in by_rank.items():
            # HTA reads the file itself to draw a result into it.
            hta_trace_set.trace_files[rank] = os.path.abspath(trace.source)
            hta_trace_set.traces[rank] = frame(trace, hta_trace_set.symbol_table, nanoseconds=exact)
            if hta_trace_set.traces[rank].empty:
                raise UsageError(f"{trace.source}: has no events to analyse; leave it out.")
            hta_trace_set.meta_data[rank] = _metadata(trace)
        hta_trace_set.align_and_filter_trace(include_last_profiler_step)
        for rank, rows in hta_trace_set.traces.items():
            hta_trace_set.traces[rank] = rows.set_index("index", drop=False).rename_axis(None)
        hta_trace_set.is_parsed = True
        analysis = TraceAnalysis.__new__(TraceAnalysis)
        analysis.t = hta_trace_set
    return analysis


def _by_rank(traces: list[Trace]) -> dict[int, Trace]:
    if not traces:
        raise UsageError("no trace is named; name at least one.")
    by_rank: dict[int, Trace] = {}
    for trace in traces:
        if trace.rank is None:
            continue
        if (other := by_rank.get(trace.rank)) is not None:
            raise UsageError(
                f"{other.source} and {trace.source} are both of rank {trace.rank}, and HTA takes one trace per "
                "rank; leave one out."
            )
        by_rank[trace.rank] = trace
    free = (rank for rank in range(2 * len(traces)) if rank not in by_rank)
    by_rank |= {next(free): trace for trace in traces if trace.rank is None}
    return dict(sorted(by_rank.items()))


def _metadata(trace: Trace) -> dict[str, Any]:
    """Return the metadata that HTA and its users look up."""
    from hta.common import trace_parser

    head: dict[str, Any] = {
        "baseTimeNanoseconds": trace.base_ns,
        "deviceProperties": [{"id": device, "name": name} for device, name in sorted(trace.device_names.items())],
    }
    if trace.rank is not None:
        head["distributedInfo"] = {"rank": trace.rank, "world_size": trace.world_size}
    infer = getattr(trace_parser, "infer_gpu_type", None)
    if infer is not None:
        # HTA 0.6 added the device type.
        head["device_type"] = infer(head, dict.fromkeys(trace.names, 0))
    return head


# -- The installed HTA ---

DISTRIBUTIONS = ("traceinsight", "HolisticTraceAnalysis")
"""HTA's present name, and its name before 0.6. Both install the package `hta`."""


def require() -> tuple[str, str]:
    """Return name and version of HTA.

    Raises:
        MissingPackage: HTA is not installed, or two distributions overwrite one another.
    """
    versions = {name: version for name in DISTRIBUTIONS if (version := _version(name)) is not None}
    if len(versions) > 1:
        raise MissingPackage(
            "traceinsight and HolisticTraceAnalysis are both installed, and each overwrites files of the other: "
            f"pip uninstall traceinsight HolisticTraceAnalysis, then {install_line('hta')}."
        )
    if not versions or find_spec("hta") is None:
        raise MissingPackage(f"this needs HolisticTraceAnalysis. {how_to_install('hta')}")
    return next(iter(versions.items()))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep HTA from logging, warning and printing inside the block. For a single thread at a time."""
    logger, root = logging.getLogger("hta"), logging.getLogger()
    disabled, logger.disabled = logger.disabled, True
    # HTA sometimes logs to the root logger, which would install a handler for good.
    nowhere = logging.NullHandler()
    root.addHandler(nowhere)
    root.addFilter(_is_of_others)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeFilter(_is_of_others)
        root.removeHandler(nowhere)
        logger.disabled = disabled


def _is_of_others(record: logging.LogRecord) -> bool:
    spec = find_spec("hta")
    return spec is None or spec.origin is None or not record.pathname.startswith(str(Path(spec.origin).parent))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
