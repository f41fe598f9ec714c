"""Reduction of a rank to the data that the comparison needs, made where the file is and small enough to send.

The only single ops it keeps are the communication kernels and the intervals of exposed communication, so that waiting
can be measured once the clocks are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import median_low

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.average import in_frame, judged_steps
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.messages import message_bytes, reaches_all
from overlapscope.analysis.periods import is_step
from overlapscope.analysis.plain_step import PlainStep, measured
from overlapscope.analysis.results import Buckets, Device, Engines, Overlap, Period, PerStep, Trust
from overlapscope.base.columns import Columns, pick
from overlapscope.base.intervals import I64, Bool, Intervals
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.errors import UnreadableTrace
from overlapscope.ranks.result import Unreadable
from overlapscope.report.findings import find_all
from overlapscope.rules.finding import Finding
from overlapscope.trace.model import Collectives, GpuOps, HostEvents, Kind, Trace

__all__ = ["CommKernels", "CommKind", "ReducedRank", "StepFigures", "Unreadable", "reduce"]

LARGEST_RANK = 2**31 - 1
"""Largest valid rank; larger or negative numbers are ignored."""
FINDINGS = 5
"""Maximum number of findings kept."""

_NCCL = re.compile(r"(nccl\w+)\(")
_STEP_NUMBER = re.compile(r"ProfilerStep#(\d{1,18})")


class CommKind(Struct, frozen=True):
    """Metadata of a communication kernel. Kernels of the same kind on a rank are distinguished by their order."""

    collective: str
    """Name of the collective as recorded (`allreduce`). Without metadata, the kernel's name, without the arguments that
    all NCCL kernels have."""
    group: str = ""
    """Name of the process group."""
    ranks: str = ""
    """Ranks of the group as text, shortened by torch if there are many."""
    group_size: int = -1
    """Size of the group; -1 where not recorded."""
    recorded: bool = True
    """True if the kernel has metadata beyond its name."""
    description: str = ""
    """Description of the process group, such as `mesh_dp`."""


class CommKernels(Columns, frozen=True):
    """Communication kernels of one device by start, one row each."""

    kinds: tuple[CommKind, ...]
    """All kinds, each once; not a column."""
    start_ns: I64
    end_ns: I64
    kind: I64
    """Index into `kinds`."""
    step: I64
    """Number of the profiler step whose host part launched it; -1 where the launch or the step was not recorded."""
    elements: I64
    """Number of elements sent by this rank; -1 where not recorded."""
    sequence: I64
    """The process group's own count; -1 where not recorded."""
    received: I64
    """Number of elements received by this rank; -1 where not recorded."""
    bytes: I64
    """Size of the message, of the larger buffer; -1 where unknown."""
    reaches_all: I64
    """1 if an all-to-all has data for and from every member, 0 if not, -1 where unknown."""


class StepFigures(Struct, frozen=True, eq=False):
    """Steps of one device by start."""

    names: tuple[str, ...]
    judged: Bool
    """Mask of the judged steps: neither cut by the lead-in, nor warm-up, nor a device's last of several."""
    start_ns: I64
    """Start by the trace's own clock."""
    span_ns: I64
    buckets_ns: I64
    """Time in each bucket, of shape (steps, 5), in the order of `Buckets`."""
    copy_causes_ns: I64
    """Exposed copy time by cause, of shape (steps, causes), in the order of `COPY_CAUSES`."""
    idle_causes_ns: I64
    """Idle time by cause, of shape (steps, causes), in the order of `IDLE_CAUSES`."""

    def judged_names(self) -> list[str]:
        """Return the names of the judged steps."""
        return [name for name, judged in zip(self.names, self.judged.tolist(), strict=True) if judged]

    def median_ns(self) -> int | None:
        """Return the length of the median judged step; None if there is none."""
        spans: list[int] = self.span_ns[self.judged].tolist()
        return median_low(spans) if spans else None

    def judged_spans(self) -> dict[str, int]:
        """Return the length of each judged step by its name; of the first one where a name occurs twice."""
        steps = zip(self.names, self.span_ns.tolist(), self.judged.tolist(), strict=True)
        spans: dict[str, int] = {}
        for name, span, kept in steps:
            if kept:
                spans.setdefault(name, span)
        return spans


class ReducedRank(Struct, frozen=True, eq=False):
    """One device of one rank. Times are by the clock of its own trace."""

    source: str
    rank: int | None
    world_size: int | None
    device: int
    device_name: str | None
    trust: Trust
    span_ns: int
    lead_in_ns: int | None
    judged_from_ns: int
    """End of the lead-in."""
    end_ns: int
    """End of the window."""
    buckets: Buckets
    engines: Engines
    overlap: Overlap
    exposed_copy_by_cause: dict[str, int]
    idle_by_cause: dict[str, int]
    judged: PerStep | None
    """As `RankRow.judged`."""
    steps: StepFigures
    findings: tuple[Finding, ...]
    """Up to `FINDINGS` findings, costliest first."""
    comm: CommKernels
    exposed_comm: Intervals
    """Intervals in which communication ran and nothing computed."""
    plain_step: PlainStep | None = None
    """Length of a step without the profiler, if the recorder timed steps."""
    on_host: bool = False
    """True if it was recorded without a GPU, so that host ranges take the place of kernels."""
    predicted: bool = False
    """True if `overlapscope whatif` predicted the trace instead of recording it."""


def reduce(trace: Trace) -> tuple[ReducedRank, ...]:
    """Reduce a trace to one rank for each of its devices; nearly every job has one device per rank.

    Raises:
        UnreadableTrace: If nothing ran on a GPU, so that there is nothing to compare.
    """
    analysis = analyze_trace(with_possible_rank(trace))
    trust = analysis.result.trust
    if trust.verdict == "unusable":
        failures = [check.detail for check in trust.checks if check.status == "fail"]
        raise UnreadableTrace(trace.source, " ".join(failures))
    findings = find_all([analysis], replayed=False)
    return tuple(_reduced(analysis, device, findings) for device in analysis.devices)


def with_possible_rank(trace: Trace) -> Trace:
    """Return the trace without a rank that can't be one."""
    possible = trace.rank is None or 0 <= trace.rank <= LARGEST_RANK
    return trace if possible else replace(trace, rank=None)


def _reduced(analysis: TraceAnalysis, device: DeviceAnalysis, findings: tuple[Finding, ...]) -> ReducedRank:
    trace, result, timeline = analysis.trace, device.result, device.timeline
    judged = _judged(result)
    step_ns = judged.span_ns if judged is not None and judged.steps else None
    return ReducedRank(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        device=result.device,
        device_name=result.name,
        trust=analysis.result.trust,
        span_ns=result.span_ns,
        lead_in_ns=result.lead_in_ns,
        judged_from_ns=timeline.judged_from_ns,
        end_ns=timeline.end_ns,
        buckets=result.buckets,
        engines=result.engines,
        overlap=result.overlap,
        exposed_copy_by_cause=result.exposed_copy_by_cause,
        idle_by_cause=result.idle_by_cause,
        judged=judged,
        steps=_steps(result),
        findings=_costliest([finding for finding in findings if finding.device == result.device]),
        comm=_comm_kernels(trace, timeline.ops),
        exposed_comm=timeline.exposed_comm,
        plain_step=measured(trace.plain_steps, step_ns) if step_ns is not None else None,
        predicted=trace.predicted_by is not None,
    )


def _costliest(findings: list[Finding]) -> tuple[Finding, ...]:
    # Nothing was replayed, so no saving is certain, and the time that a finding explains decides.
    return tuple(sorted(findings, key=lambda finding: (finding.severity == "info", -finding.cost_ns))[:FINDINGS])


def _judged(device: Device) -> PerStep | None:
    """Return the figures that people read, as for a single recording."""
    if device.per_step is not None or device.judged is None:
        return device.per_step
    frame = in_frame(device)
    return PerStep(
        steps=0,
        first=0,
        span_ns=frame.span_ns,
        buckets=frame.buckets,
        engines=frame.engines,
        overlap=frame.overlap,
        exposed_copy_by_cause=frame.exposed_copy_by_cause,
        idle_by_cause=frame.idle_by_cause,
    )


def _steps(device: Device) -> StepFigures:
    steps, judged = device.steps, set(judged_steps(device))
    return StepFigures(
        names=tuple(step.name for step in steps),
        judged=np.array([number in judged for number in range(len(steps))], np.bool_),
        start_ns=np.array([step.window.start_ns for step in steps], np.int64),
        span_ns=np.array([step.span_ns for step in steps], np.int64),
        buckets_ns=_table([list(step.buckets.named().values()) for step in steps], 5),
        copy_causes_ns=_table([_causes(step, COPY_CAUSES) for step in steps], len(COPY_CAUSES)),
        idle_causes_ns=_table([_causes(step, IDLE_CAUSES) for step in steps], len(IDLE_CAUSES)),
    )


def _causes(step: Period, causes: tuple[str, ...]) -> list[int]:
    by_cause = step.exposed_copy_by_cause if causes is COPY_CAUSES else step.idle_by_cause
    return [by_cause.get(str(cause), 0) for cause in causes]


def _table(rows: list[list[int]], columns: int) -> I64:
    return np.array(rows, np.int64).reshape(len(rows), columns)


def _comm_kernels(trace: Trace, ops: GpuOps) -> CommKernels:
    ops = ops.take(ops.kind == Kind.COMM)
    recorded = trace.collectives
    row = _described(recorded, ops)
    texts = (recorded.name_id, recorded.group, recorded.description, recorded.ranks, recorded.group_size)
    columns = [pick(column, row) for column in texts]
    # A kernel without metadata is identified by its name.
    columns.append(np.where(row < 0, ops.name_id, -1))
    distinct, which = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    kinds: dict[CommKind, int] = {}
    number = [kinds.setdefault(_kind(trace.names, *ids), len(kinds)) for ids in distinct.tolist()]
    return CommKernels(
        kinds=tuple(kinds),
        start_ns=ops.start_ns,
        end_ns=ops.end_ns,
        kind=np.array(number, np.int64)[which.ravel()],
        step=_launched_in(trace, ops),
        elements=pick(recorded.elements_in, row),
        sequence=pick(recorded.sequence, row),
        received=pick(recorded.elements_out, row),
        bytes=pick(message_bytes(recorded, trace.names), row),
        reaches_all=pick(reaches_all(recorded, trace.names), row),
    )


def _kind(names: Sequence[str], collective: int, *group: int) -> CommKind:
    *texts, group_size, kernel = group
    if kernel >= 0:
        nccl = _NCCL.match(names[kernel])
        return CommKind(nccl[1] if nccl else names[kernel], recorded=False)
    name, description, ranks = (names[text] if text >= 0 else "" for text in texts)
    return CommKind(names[collective], name, ranks, group_size, description=description)


def _described(recorded: Collectives, ops: GpuOps) -> I64:
    """Return for each communication kernel its row in `Trace.collectives`, or -1."""
    rows = {key: row for row, key in enumerate(_keys(recorded))}
    return np.array([rows.get(key, -1) for key in _keys(ops)], np.int64)


def _keys(table: Collectives | GpuOps) -> Iterator[tuple[int, ...]]:
    columns = (table.correlation, table.device, table.stream, table.start_ns, table.end_ns)
    return zip(*(column.tolist() for column in columns), strict=True)


def _launched_in(trace: Trace, ops: GpuOps) -> I64:
    """Return the number of the profiler step during which the host launched each op, or -1.

    The op's place on the device would not do: an op launched for a step may run before the step's first compute on one
    rank and after it on another.
    """
    at = pick(trace.runtime_calls.start_ns, np.where(ops.launch >= 0, ops.launch, -1), 0)
    return np.where(ops.launch >= 0, step_numbers(trace.annotations, at), -1)


def step_numbers(notes: HostEvents, at: I64) -> I64:
    """Return the number of the profiler step at each moment on the host, or -1. `notes` has the steps."""
    rows = np.flatnonzero(is_step(notes))
    matches = [_STEP_NUMBER.fullmatch(notes.name(row)) for row in rows.tolist()]
    numbers = np.array([int(step.group(1)) if step else -1 for step in matches], np.int64)
    step = np.searchsorted(notes.start_ns[rows], at, side="right") - 1
    inside = (step >= 0) & (at < pick(notes.end_ns[rows], step, 0))
    return np.where(inside, pick(numbers, step), -1)
