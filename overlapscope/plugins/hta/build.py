"""HTA's `TraceAnalysis` from our Traces, and the version and the output of the installed HTA.

See `docs/evaluation/hta.md`.

    analysis = overlapscope.hta.trace_analysis("traces/ddp")
    analysis.get_temporal_breakdown(visualize=False)

HTA itself is imported when it is used, not here.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlapscope.base.extras import how_to_install, install_line
from overlapscope.errors import MissingPackage, UsageError
from overlapscope.inputs import Source, read_traces
from overlapscope.trace.model import Trace

if TYPE_CHECKING:
    from hta.trace_analysis import TraceAnalysis


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

        from overlapscope.plugins.hta.frame import frame

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
