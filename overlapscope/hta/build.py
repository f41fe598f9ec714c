"""From our Traces to HTA's `TraceAnalysis`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from overlapscope.errors import UsageError
from overlapscope.hta.package import quiet, require
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
    """HTA's `TraceAnalysis` over traces of ours, or over the files, directories and patterns that hold them.

    Its `t` is HTA's `hta.common.trace.Trace`, with a frame for each rank and the symbol table, as HTA would have made
    them of the files; every analysis of HTA's runs on it. A trace that says no rank gets the lowest that is free.
    `include_last_profiler_step` is HTA's: without it HTA leaves out what the last step launched. `nanoseconds` says
    whether times keep them or are rounded to whole microseconds; None does as HTA does, which rounds unless its
    environment variable HTA_DISABLE_NS_ROUNDING is 1.

    Raises MissingPackage without HTA, UnreadableTrace where a file cannot be read, UsageError where two traces say that
    they are of one rank, which HTA cannot hold, or where there is no event to analyse.
    """
    require()
    by_rank = _by_rank(read_traces(traces))
    with quiet():
        from hta.common import trace as hta_trace
        from hta.configs.env_options import disable_ns_rounding
        from hta.trace_analysis import TraceAnalysis

        from overlapscope.hta.frame import frame

        exact = disable_ns_rounding() if nanoseconds is None else nanoseconds
        made = hta_trace.Trace(trace_files={})
        for rank, trace in by_rank.items():
            # HTA reads the file itself where it draws a result into it.
            made.trace_files[rank] = os.path.abspath(trace.source)
            made.traces[rank] = frame(trace, made.symbol_table, nanoseconds=exact)
            if made.traces[rank].empty:
                raise UsageError(f"{trace.source}: holds no event that could be analysed; leave it out.")
            made.meta_data[rank] = _metadata(trace)
        made.align_and_filter_trace(include_last_profiler_step)
        for rank, rows in made.traces.items():
            made.traces[rank] = rows.set_index("index", drop=False).rename_axis(None)
        made.is_parsed = True
        analysis = TraceAnalysis.__new__(TraceAnalysis)
        analysis.t = made
    return analysis


def _by_rank(traces: list[Trace]) -> dict[int, Trace]:
    if not traces:
        raise UsageError("there is no trace to analyse; name at least one.")
    by_rank: dict[int, Trace] = {}
    for trace in traces:
        if trace.rank is None:
            continue
        other = by_rank.setdefault(trace.rank, trace)
        if other is not trace:
            raise UsageError(
                f"{other.source} and {trace.source} are both of rank {trace.rank}, and HTA holds one trace of a rank; "
                "leave one out."
            )
    free = (rank for rank in range(2 * len(traces)) if rank not in by_rank)
    by_rank |= {next(free): trace for trace in traces if trace.rank is None}
    return dict(sorted(by_rank.items()))


def _metadata(trace: Trace) -> dict[str, Any]:
    """What HTA and those who use it look up in a file's head."""
    from hta.common import trace_parser

    told: dict[str, Any] = {
        "baseTimeNanoseconds": trace.base_ns,
        "deviceProperties": [{"id": device, "name": name} for device, name in sorted(trace.device_names.items())],
    }
    if trace.rank is not None:
        told["distributedInfo"] = {"rank": trace.rank, "world_size": trace.world_size}
    infer = getattr(trace_parser, "infer_gpu_type", None)
    if infer is not None:
        # From 0.6 on.
        told["device_type"] = infer(told, dict.fromkeys(trace.names, 0))
    return told
