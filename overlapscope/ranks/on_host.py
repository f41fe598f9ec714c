"""Reduction of a rank that was recorded without a GPU, whose collectives are ranges on the host.

PyTorch puts a range such as `gloo:all_reduce` around the work of a collective on the host, on a thread of the backend.
It takes the place of a kernel: it begins when the rank arrives, and ends when the data has. Ops take the place of
compute, except those that only start a collective.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.average import average, without_warm_up
from overlapscope.analysis.figures import Period, PerStep
from overlapscope.analysis.host_use import host_timeline
from overlapscope.analysis.periods import is_step
from overlapscope.analysis.timeline import lengths, measured
from overlapscope.analysis.trust import judge_host
from overlapscope.base.columns import mask_of, pick
from overlapscope.base.intervals import EMPTY, I64, subtract
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.errors import UnreadableTrace
from overlapscope.ranks.host_causes import host_causes
from overlapscope.ranks.kernels import step_numbers
from overlapscope.ranks.messages import on_host as messages_on_host
from overlapscope.ranks.reduced import (
    CommKernels,
    CommKind,
    ReducedRank,
    StepFigures,
    lost_events,
    reduce,
    with_possible_rank,
)
from overlapscope.reading.own_period import without_period
from overlapscope.reading.shapes import ITEM_BYTES, read_inputs
from overlapscope.trace.host_ops import is_collective_range
from overlapscope.trace.model import HostEvents, Trace

HOST = -1
"""Device of a rank without a GPU."""


def reduce_any(trace: Trace) -> tuple[ReducedRank, ...]:
    """Reduce a trace to one rank for each of its devices, or to one of the host if it has collectives but no device.

    Periods of two ranks may differ in length and number, so they are no steps to compare.

    Returns:
        The reduced ranks.

    Raises:
        UnreadableTrace: If there is nothing to compare.
    """
    trace = without_period(trace)
    host = reduce_host(trace)
    return (host,) if host is not None else reduce(trace)


def reduce_host(trace: Trace) -> ReducedRank | None:
    """Reduce a rank without a GPU.

    Returns:
        The reduced rank; None if it has a GPU or no collectives on the host.

    Raises:
        UnreadableTrace: If it has collectives, but no steps that other ranks have, too.
    """
    if trace.devices:
        return None
    trace = with_possible_rank(trace)
    timeline = host_timeline(trace)
    _check_marked(trace)
    if timeline is None or not timeline.names or not len(timeline.collectives):
        return None
    ran, collectives = timeline.ran, timeline.collectives
    begin, end = ran.start_ns, ran.end_ns
    window = {name: int(ns[0]) for name, ns in lengths(ran, np.array([begin]), np.array([end])).items()}
    buckets, engines, overlap = measured(window)
    periods = timeline.periods()
    # The host's part of the last step has an end of its own, unlike a device's, so it is judged, too.
    judged = without_warm_up(range(len(periods)), [period.span_ns for period in periods])
    figures = _steps(periods, judged)
    average_step = _average([periods[number] for number in judged])
    comm = _comm(trace, collectives)
    messages, exposed = messages_on_host(trace, comm, collectives), subtract(ran.comm, ran.compute)
    return ReducedRank(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        device=HOST,
        device_name=None,
        trust=judge_host(trace),
        span_ns=end - begin,
        lead_in_ns=0,
        judged_from_ns=begin,
        end_ns=end,
        step_ns=average_step.span_ns if average_step is not None else None,
        judged_steps=figures.judged_windows(),
        buckets=buckets,
        engines=engines,
        overlap=overlap,
        exposed_copy_by_cause={},
        idle_by_cause={},
        judged=average_step,
        steps=figures,
        findings=(),
        comm=comm,
        exposed_comm=exposed,
        comm_causes=host_causes(trace, exposed, ran.compute),
        messages=messages,
        compute=ran.compute if len(messages) else EMPTY,
        on_host=True,
        lossy=lost_events(trace),
    )


def _check_marked(trace: Trace) -> None:
    """Raise UnreadableTrace for collectives without marked steps, as periods of ranks may differ."""
    marked = trace.period is None and is_step(trace.annotations).any()
    if not marked and trace.annotations.named(is_collective_range).any():
        raise UnreadableTrace(
            trace.source,
            "was recorded without a GPU, and has collectives but no steps; call profiler.step() after each iteration, "
            "so that the steps of all ranks can be compared.",
        )


def _average(judged: Sequence[Period]) -> PerStep | None:
    """Return the average step without causes, because no GPU idled."""
    step = average(judged, range(len(judged)))
    if step is None:
        return None
    return replace(step, exposed_copy_by_cause={}, exposed_comm_by_cause={}, idle_by_cause={})


def _steps(steps: Sequence[Period], judged: Sequence[int]) -> StepFigures:
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
        bytes=_message_bytes(trace, collectives),
        reaches_all=unknown,
    )


def _message_bytes(trace: Trace, ranges: HostEvents) -> I64:
    """Return the size of the first tensor of each collective, if shapes were recorded; else -1."""
    inputs = read_inputs(trace, ranges)
    if inputs is None:
        return np.full(len(ranges), -1)
    sizes = [
        each.first * ITEM_BYTES[each.first_type] if each.first >= 0 and each.first_type in ITEM_BYTES else -1
        for each in inputs.signatures
    ]
    return pick(np.array(sizes, np.int64), inputs.number)
