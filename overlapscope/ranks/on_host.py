"""Reduction of a rank that was recorded without a GPU, whose collectives are ranges on the host.

PyTorch puts a range such as `gloo:all_reduce` around the work of a collective on the host, on a thread of the backend.
It takes the place of a kernel: it begins when the rank arrives, and ends when the data has. Ops take the place of
compute, except those that only start a collective.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.average import average, without_warm_up
from overlapscope.analysis.periods import is_step
from overlapscope.analysis.results import Period, PerStep, Trust, Window
from overlapscope.analysis.timeline import Ran, lengths, measured, when_ran
from overlapscope.base.columns import mask_of, pick
from overlapscope.base.intervals import I64, subtract
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES, IdleCause
from overlapscope.ranks.reduced import (
    CommKernels,
    CommKind,
    ReducedRank,
    StepFigures,
    reduce,
    step_numbers,
    with_possible_rank,
)
from overlapscope.trace.model import HostEvents, Kind, Trace

HOST = -1
"""Device of a rank without a GPU."""
_COLLECTIVE = re.compile(r"(?:gloo|mpi|ucc|xccl):\w+")
_STARTS_COLLECTIVE = re.compile(r"c10d::\w+|record_param_comms")


def reduce_any(trace: Trace) -> tuple[ReducedRank, ...]:
    """Reduce a trace to one rank for each of its devices, or to one of the host if it has collectives but no device.

    Raises:
        UnreadableTrace: If there is nothing to compare.
    """
    host = None if trace.devices else _reduce_host(with_possible_rank(trace))
    return (host,) if host is not None else reduce(trace)


def _reduce_host(trace: Trace) -> ReducedRank | None:
    """Return the rank's collectives on the host; None if the trace has none or no step."""
    notes = trace.annotations
    steps = notes.take(is_step(notes))
    collectives = notes.take(notes.named(lambda name: _COLLECTIVE.fullmatch(name) is not None))
    if not len(steps) or not len(collectives):
        return None
    begin, end = int(steps.start_ns.min()), int(steps.end_ns.max())
    collectives = collectives.take((collectives.start_ns >= begin) & (collectives.end_ns <= end))
    ops = trace.cpu_ops.take(~trace.cpu_ops.named(lambda name: _STARTS_COLLECTIVE.fullmatch(name) is not None))
    kinds = np.repeat(np.array([Kind.COMM, Kind.COMPUTE], np.int8), [len(collectives), len(ops)])
    starts = np.concatenate((collectives.start_ns, ops.start_ns))
    ends = np.concatenate((collectives.end_ns, ops.end_ns))
    ran = replace(when_ran(kinds, starts, ends), start_ns=begin, end_ns=end)
    window = {name: int(ns[0]) for name, ns in lengths(ran, np.array([begin]), np.array([end])).items()}
    buckets, engines, overlap = measured(window)
    periods = _periods(steps, ran)
    # The host's part of the last step has an end of its own, unlike a device's, so it is judged, too.
    judged = without_warm_up(range(len(periods)), [period.span_ns for period in periods])
    return ReducedRank(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        device=HOST,
        device_name=None,
        trust=Trust(verdict="trusted", checks=()),
        span_ns=end - begin,
        lead_in_ns=0,
        judged_from_ns=begin,
        end_ns=end,
        buckets=buckets,
        engines=engines,
        overlap=overlap,
        exposed_copy_by_cause={},
        idle_by_cause={},
        judged=_average([periods[number] for number in judged]),
        steps=_steps(periods, judged),
        findings=(),
        comm=_comm(trace, collectives),
        exposed_comm=subtract(ran.comm, ran.compute),
        on_host=True,
    )


def _periods(steps: HostEvents, ran: Ran) -> list[Period]:
    ns = lengths(ran, steps.start_ns, steps.end_ns)
    periods = []
    for row, (start, end) in enumerate(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)):
        buckets, engines, overlap = measured({name: int(each[row]) for name, each in ns.items()})
        periods.append(
            Period(
                name=steps.name(row),
                window=Window(start_ns=start, end_ns=end),
                span_ns=end - start,
                buckets=buckets,
                engines=engines,
                overlap=overlap,
                exposed_copy_by_cause={},
                idle_by_cause={IdleCause.UNKNOWN: buckets.idle_ns},
                partial=False,
            )
        )
    return periods


def _average(judged: list[Period]) -> PerStep | None:
    """Return the average step, whose idle time has no causes because no GPU idled."""
    step = average(judged, range(len(judged)))
    return None if step is None else replace(step, exposed_copy_by_cause={}, idle_by_cause={})


def _steps(steps: list[Period], judged: Sequence[int]) -> StepFigures:
    return StepFigures(
        names=tuple(step.name for step in steps),
        judged=mask_of(np.array(judged, np.int64), len(steps)),
        start_ns=np.array([step.window.start_ns for step in steps], np.int64),
        span_ns=np.array([step.span_ns for step in steps], np.int64),
        buckets_ns=np.array([list(step.buckets.named().values()) for step in steps], np.int64),
        copy_causes_ns=np.zeros((len(steps), len(COPY_CAUSES)), np.int64),
        idle_causes_ns=np.zeros((len(steps), len(IDLE_CAUSES)), np.int64),
    )


def _comm(trace: Trace, collectives: HostEvents) -> CommKernels:
    distinct, which = np.unique(collectives.name_id, return_inverse=True)
    unknown: I64 = np.full(len(collectives), -1)
    return CommKernels(
        kinds=tuple(CommKind(trace.names[name], recorded=False) for name in distinct.tolist()),
        start_ns=collectives.start_ns,
        end_ns=collectives.end_ns,
        kind=pick(np.arange(len(distinct)), which.ravel()),
        step=step_numbers(trace.annotations, collectives.start_ns),
        elements=unknown,
        sequence=unknown,
        received=unknown,
        bytes=unknown,
        reaches_all=unknown,
    )
