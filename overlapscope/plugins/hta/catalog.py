"""HTA's analyses by name. Each is a call of `TraceAnalysis`, on all ranks, without its drawings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from overlapscope.base.words import did_you_mean
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis
    from hta.trace_analysis import TraceAnalysis

Titled = Iterator[tuple[str, "pd.DataFrame | None"]]
Run = Callable[["TraceAnalysis", "HtaOptions"], Titled]


class HtaOptions(Struct, frozen=True, kw_only=True):
    """Options of single analyses."""

    operator: str | None = None
    """`sequences`: part of the names of host ops; kernels below these ops are examined."""
    annotation: str = "ProfilerStep"
    """`critical-path`: part of the names of the ranges to choose from."""
    instance: int | None = None
    """`critical-path`: index of the range, from 0. None takes the second range on the host if there are three, because
    the first is seldom complete; else the first."""
    overlay: Path | None = None
    """`sequences` and `critical-path`: directory for copies of the traces with HTA's results drawn into them."""


class HtaAnalysis(Struct, frozen=True):
    """An analysis of HTA."""

    name: str
    summary: str
    method: str
    """Method of `TraceAnalysis`."""
    run: Run
    """Function that yields titles and frames, computed one after another; no frame where the traces lack the data."""


ANALYSES: dict[str, HtaAnalysis] = {}
"""Analyses by name, in the order of the list."""


def _analysis(name: str, summary: str, method: str) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        ANALYSES[name] = HtaAnalysis(name, summary, method, run)
        return run

    return add


@_analysis("temporal", "idle, compute and other time of each rank", "get_temporal_breakdown")
def _temporal(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    yield "Temporal breakdown", analysis.get_temporal_breakdown(visualize=False)


@_analysis("idle", "idle time of each stream: host wait, kernel wait, other", "get_idle_time_breakdown")
def _idle(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    idle, gaps = analysis.get_idle_time_breakdown(
        ranks=analysis.t.get_ranks(), visualize=False, show_idle_interval_stats=True
    )
    yield "Idle time by stream and category", idle
    yield "Lengths of the gaps", gaps


@_analysis("overlap", "communication under compute, per rank", "get_comm_comp_overlap")
def _overlap(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    yield "Communication under compute", analysis.get_comm_comp_overlap(visualize=False)


@_analysis("kernels", "time by kernel type, and the longest kernels", "get_gpu_kernel_breakdown")
def _kernels(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    yield "Kernel types", types
    yield "Kernels", kernels


@_analysis("annotations", "time in each range", "get_gpu_user_annotation_breakdown")
def _annotations(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    for title, on_device in (("Ranges on the device", True), ("Ranges on the host", False)):
        yield title, analysis.get_gpu_user_annotation_breakdown(use_gpu_annotation=on_device, visualize=False)


@_analysis("annotated-kernels", "each kernel with the range it ran in", "get_gpu_kernels_with_user_annotations")
def _annotated_kernels(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    columns = ["s_name", "s_user_annotation", "ts", "dur", "stream", "iteration"]
    for rank in analysis.t.get_ranks():
        kernels = analysis.get_gpu_kernels_with_user_annotations(rank)
        yield f"Kernels with their range, rank {rank}", None if kernels is None else kernels[columns]


@_analysis("launches", "length and delay of each launch, and of its kernel", "get_cuda_kernel_launch_stats")
def _launches(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    stats = analysis.get_cuda_kernel_launch_stats(ranks=analysis.t.get_ranks(), visualize=False)
    for rank, launches in stats.items():
        yield f"Launches, rank {rank}", launches


@_analysis("aten", "kernels and delays of each ATen op (slow on long traces)", "get_aten_op_kernels_and_delay")
def _aten(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    analyser = _undrawn()
    # One rank at a time, because HTA adds the figures of earlier ranks to those of later ranks.
    for rank in analysis.t.get_ranks():
        yield f"ATen ops, rank {rank}", analyser.get_aten_op_kernels_and_delay(analysis.t, [rank])[rank]


def _undrawn() -> type[CudaKernelAnalysis]:
    from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis

    class Undrawn(CudaKernelAnalysis):  # type: ignore[misc]
        """HTA's kernel analysis without the browser that it opens, and without drawing into copies of the traces."""

        @classmethod
        def visualize_aten_op_kernels_and_overhead(cls, rank: int, df: pd.DataFrame) -> None: ...

        @classmethod
        def _overlay_frequent_patterns_with_trace(cls, *args: Any) -> dict[str, Any]:
            return {}

    return Undrawn


@_analysis("queue", "queued launches of each stream, summarized", "get_queue_length_summary")
def _queue(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    yield "Queue length", analysis.get_queue_length_summary(ranks=analysis.t.get_ranks())


@_analysis("queue-series", "queued launches of each stream, over time", "get_queue_length_time_series")
def _queue_series(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    for rank, series in analysis.get_queue_length_time_series(ranks=analysis.t.get_ranks()).items():
        yield f"Queue length over time, rank {rank}", series


@_analysis("queue-full", "time blocked by a full queue", "get_time_spent_blocked_on_full_queue")
def _queue_full(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    series = analysis.get_queue_length_time_series(ranks=analysis.t.get_ranks())
    yield "Time blocked by a full queue", analysis.get_time_spent_blocked_on_full_queue(series)


@_analysis("memory", "bandwidth of copies and memsets, summarized", "get_memory_bw_summary")
def _memory(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    yield "Memory bandwidth", analysis.get_memory_bw_summary(ranks=analysis.t.get_ranks())


@_analysis("memory-series", "bandwidth of copies and memsets, over time", "get_memory_bw_time_series")
def _memory_series(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    for rank, series in analysis.get_memory_bw_time_series(ranks=analysis.t.get_ranks()).items():
        yield f"Memory bandwidth over time, rank {rank}", series


@_analysis("sequences", "kernel sequences that recur under host ops (--operator)", "get_frequent_cuda_kernel_sequences")
def _sequences(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    import tempfile

    from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis

    if not options.operator:
        raise UsageError("sequences looks for kernels under host ops: name them with --operator, as in aten::linear.")

    analyser = CudaKernelAnalysis if options.overlay else _undrawn()
    with tempfile.TemporaryDirectory() as aside:
        for rank in analysis.t.get_ranks():
            sequences = analyser.get_frequent_cuda_kernel_sequences(
                analysis.t, options.operator, str(options.overlay or aside), rank=rank, visualize=False
            )
            yield f"Kernel sequences under {options.operator}, rank {rank}", sequences


@_analysis("critical-path", "critical path of a step or range (--annotation)", "critical_path_analysis")
def _critical_path(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    import pandas as pd

    for rank in analysis.t.get_ranks():
        name, instance = _range(analysis, rank, options)
        graph, ok = analysis.critical_path_analysis(rank, options.annotation, instance)
        edges = graph.get_critical_path_breakdown() if ok else None
        if edges is None:
            yield f"Critical path through {name}, rank {rank}", None
            continue
        by_bound = edges.groupby("bound_by", as_index=False)["duration"].sum()
        by_bound["share (%)"] = 100 * by_bound["duration"] / by_bound["duration"].sum()
        yield (
            f"Critical path through {name}, rank {rank}",
            by_bound.sort_values("duration", ascending=False, kind="stable"),
        )
        parts = pd.DataFrame(edges[["s_name", "duration", "type", "stream", "bound_by"]])
        yield f"Its parts, rank {rank}", parts.sort_values("duration", ascending=False, kind="stable")
        if options.overlay:
            analysis.overlay_critical_path_analysis(rank, graph, str(options.overlay))


def _range(analysis: TraceAnalysis, rank: int, options: HtaOptions) -> tuple[str, int]:
    """Return the name of the range to analyze, and its index among HTA's rows with such names.

    Raises:
        UsageError: There is no such range.
    """
    symbols = analysis.t.symbol_table
    rows = analysis.t.get_trace(rank)
    rows = rows[rows["name"].isin([n for name, n in symbols.get_sym_id_map().items() if options.annotation in name])]
    # HTA also counts the copies of a range that the profiler made on the device.
    host = (rows["cat"] == symbols.get_sym_id_map().get("user_annotation", -1)).to_numpy().nonzero()[0]
    chosen = options.instance
    if chosen is None:
        chosen = int(host[1 if len(host) > 2 else 0]) if len(host) else 0
    if chosen >= len(rows):
        raise UsageError(
            f"rank {rank} has {len(rows)} ranges with {options.annotation!r} in their names, but none with the "
            f"number {chosen}, counted from 0; choose with --annotation and --instance."
        )
    return symbols.get_sym_table()[int(rows["name"].iloc[chosen])], chosen


@_analysis(
    "counters", "counters that CUPTI recorded, per kernel (read by HTA itself)", "get_cupti_counter_data_with_operators"
)
def _counters(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    # The counters are arguments of any name, which a Trace does not hold, so HTA reads the files itself here.
    analysis_of_files = type(analysis)(trace_files=analysis.t.trace_files)
    ranks = analysis_of_files.t.get_ranks()
    by_rank = analysis_of_files.get_cupti_counter_data_with_operators(ranks=ranks)
    if not by_rank:
        yield "Counters", None
    for number, counters in enumerate(by_rank):
        yield f"Counters, {number + 1} of {len(by_rank)}", counters


@_analysis("stragglers", "ranks that come late to collectives", "get_potential_stragglers")
def _stragglers(analysis: TraceAnalysis, options: HtaOptions) -> Titled:
    import pandas as pd

    if len(analysis.t.get_ranks()) < 2:
        raise UsageError("stragglers compares the ranks of a job: name the traces of two ranks or more.")
    if not any(name.startswith("ncclKernel") for name in analysis.t.symbol_table.get_sym_table()):
        raise UsageError(
            "HTA looks for stragglers in kernels named ncclKernel..., as in older NCCL versions, and these traces "
            "have none; `overlapscope ranks` finds the rank that delays the others."
        )
    yield "Potential stragglers", pd.DataFrame({"rank": analysis.get_potential_stragglers()})


def check_name(name: str) -> None:
    """Check that an analysis exists.

    Raises:
        UsageError: It does not.
    """
    if name not in ANALYSES:
        raise UsageError(
            f"HTA has no analysis {name!r}{did_you_mean(name, ANALYSES)}; `overlapscope hta --list` lists them."
        )
