"""Places in the program at which the ops of graphs were captured.

A replayed op has no op of the host around it; the call that captured it has. Ops and calls are joined by the order of
capture: the order of the graph's nodes if the recording states them, otherwise the order in time, as far as the graph
is a chain. A chain lasts until the capture records its first event, and begins again after its last wait for an event.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.periods import is_step
from overlapscope.analysis.results import GraphUse
from overlapscope.base.columns import I64, Bool, Columns, locate, mask_of, pick
from overlapscope.base.grouping import among, distinct, rows_by
from overlapscope.base.kept import kept
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.host import around, line_ids_around, modules_called, op_ids_around
from overlapscope.trace.model import GpuOps, Kind, Trace


class Origins(Columns, frozen=True):
    """Places at which the ops of replayed graphs were captured; -1 where unknown, as rows of `Trace.names`."""

    row: I64
    """Row of `Trace.gpu_ops`, ascending."""
    op: I64
    """Innermost CPU op."""
    module: I64
    """Innermost module of PyTorch, such as `nn.Module: Linear_3`, which is numbered within the capture's recording."""
    line: I64
    """Python frame."""
    is_known: Bool
    """True if all captures that fit agree on all of them."""


_MAX_ALIKE: Final = 500
"""Maximum number of different captures of as many ops; with more, all are unknown, since each would be looked at."""


class _Capture(Struct, frozen=True):
    """A recorded capture of a graph."""

    recording: Trace
    kernels: Bool
    """True for each captured op, in order, that is a kernel rather than a copy or a memset."""
    places: I64
    """Op, module and line of the calls that captured them, one row each."""
    branched: slice
    """Calls that may be in branches of the graph."""
    ended_ns: int


@kept()
def _captured(recording: Trace) -> tuple[_Capture, ...]:
    """Return the captures in a recording, in order.

    A capture whose end was not recorded may lack calls, and one during another may have calls of that one. Both are
    left out.
    """
    calls, ops = recording.runtime_calls, recording.gpu_ops
    when = call_kinds.capturing(recording)
    if not len(when):
        return ()
    begun_during = when.start_ns[1:] < np.maximum.accumulate(when.end_ns)[:-1]
    whole = among(when.end_ns, calls.end_ns[call_kinds.ends_capture(calls)])
    whole[1:] &= ~begun_during
    whole[:-1] &= when.start_ns[1:] >= when.end_ns[:-1]
    when = when.take(whole)
    kernel = call_kinds.launches_kernel(calls)
    memory = call_kinds.copies_async(calls) | call_kinds.copies_blocking(calls) | call_kinds.sets_memory(calls)
    # Other threads may launch work meanwhile, which runs.
    ran = mask_of(ops.launch[ops.launch >= 0], len(calls))
    launching, forking, joining = (
        np.flatnonzero(those)
        for those in ((kernel | memory) & ~ran, call_kinds.records_event(calls), call_kinds.waits_event(calls))
    )
    called, thread, modules = calls.start_ns[launching], calls.thread[launching], modules_called(recording)
    module = pick(modules.name_id, around(modules, thread, called))
    places = np.stack([op_ids_around(recording, thread, called), module, line_ids_around(recording, thread, called)])
    found = []
    for begin, end in zip(when.start_ns, when.end_ns, strict=True):
        inside = slice(*np.searchsorted(called, (begin, end)).tolist())
        rows = launching[inside]
        forks, waits = (
            those[slice(*np.searchsorted(calls.start_ns[those], (begin, end)).tolist())] for those in (forking, joining)
        )
        branched = slice(0, 0)
        if len(waits):
            # A branch begins with the event that it waits for, and anywhere if that was not recorded.
            begins = forks[0] if len(forks) and forks[0] < waits[0] else 0
            branched = slice(*np.searchsorted(rows, (begins, waits[-1])).tolist())
        found.append(_Capture(recording, kernel[rows], places[:, inside], branched, int(end)))
    return tuple(found)


class _Launch(Struct, frozen=True):
    """A launch of a graph."""

    call: int
    """Row of `Trace.runtime_calls`."""
    ops: I64
    """Rows of `Trace.gpu_ops`, in the order of nodes if the ops state them, else in time."""
    kernels: Bool
    """As in `_Capture`, in this order."""
    by_node: bool


def _launched(trace: Trace) -> list[_Launch]:
    """Return the launches of graphs that ran something, in order, without those that the recording's end cut off."""
    ops = trace.gpu_ops
    inside = np.flatnonzero(pick(call_kinds.launches_graph(trace.runtime_calls), ops.launch, False))
    launches = []
    for call, which in rows_by(ops.launch[inside]):
        rows = inside[which]
        node = ops.graph_node[rows]
        by_node = len(distinct(node[node >= 0])) == len(rows)
        if by_node:
            rows = rows[np.argsort(node)]
        is_kernel = (ops.kind[rows] == Kind.COMPUTE) | (ops.kind[rows] == Kind.COMM)
        launches.append(_Launch(call, rows, is_kernel, by_node))
    return [launch for launch in launches if not _is_cut_off(trace, launch, launches)]


def _is_cut_off(trace: Trace, launch: _Launch, launches: list[_Launch]) -> bool:
    """Return whether a launch has the recording's last op, and ops as another launch has first."""
    names = trace.gpu_ops.name_id
    return launch.ops.max() == len(names) - 1 and any(
        len(other.ops) > len(launch.ops) and np.array_equal(names[other.ops[: len(launch.ops)]], names[launch.ops])
        for other in launches
    )


@kept()
def origins(trace: Trace) -> Origins:
    """Return the origins of all ops of launched graphs.

    A graph is joined with a capture of as many kernels, copies and memsets in the same order. If several fit, they are
    taken in order if a step launches as many graphs as were captured. Else only what all agree on is known, as among
    the calls in branches of a graph.
    """
    captures = [capture for recording in (trace, *trace.captures) for capture in _captured(recording)]
    launches = _launched(trace) if captures else []
    in_turn, different = _in_turn(trace, launches, captures), _different(trace, captures)
    first_ns: dict[tuple[bytes, ...], int] = {}
    fitting: dict[tuple[bytes, ...], list[_Capture]] = {}
    agreed: dict[tuple[object, ...], Origins] = {}
    parts = []
    for number, launch in enumerate(launches):
        # A graph that ran before a capture in the same recording is another one.
        since_ns = first_ns.setdefault(_identity(trace, launch), int(trace.runtime_calls.start_ns[launch.call]))
        candidates = different[len(launch.ops)] if len(different[len(launch.ops)]) <= _MAX_ALIKE else ()
        shape = _shape(trace, launch)
        if shape not in fitting:
            fitting[shape] = [capture for capture in candidates if _fits(trace, launch, capture)]
        several = in_turn.get(number) or [
            capture for capture in fitting[shape] if capture.recording is not trace or capture.ended_ns <= since_ns
        ]
        if several:
            # Captures fit that ended by some time, so their number tells which.
            key = (number,) if number in in_turn else (shape, len(several))
            if key not in agreed:
                agreed[key] = _agreed(launch, several)
            parts.append(replace(agreed[key], row=launch.ops))
    found = Origins.joined(parts)
    return found.take(np.argsort(found.row))


def _different(trace: Trace, captures: list[_Capture]) -> dict[int, list[_Capture]]:
    """Return captures by their number of ops, of several that nothing tells apart the first."""
    first: dict[tuple[object, ...], _Capture] = {}
    for capture in captures:
        columns = (column.tobytes() for column in (capture.kernels, capture.places))
        branched = capture.branched.start, capture.branched.stop
        first.setdefault((capture.recording is trace, *branched, *columns), capture)
    by_length = defaultdict[int, list[_Capture]](list)
    for capture in first.values():
        by_length[len(capture.kernels)].append(capture)
    return by_length


def _shape(trace: Trace, launch: _Launch) -> tuple[bytes, ...]:
    """Return all that `_fits` looks at."""
    ops = trace.gpu_ops
    after = np.diff(ops.start_ns[launch.ops]) > 0
    flags = np.array([launch.by_node, len(distinct(ops.stream[launch.ops])) == 1])
    return tuple(column.tobytes() for column in (flags, launch.kernels, ops.name_id[launch.ops], after))


def _branched(launch: _Launch, capture: _Capture) -> slice:
    """Return the ops and calls whose order is unknown."""
    return slice(0, 0) if launch.by_node else capture.branched


def _fits(trace: Trace, launch: _Launch, capture: _Capture) -> bool:
    """Return whether a launch may be of a captured graph."""
    if len(launch.ops) != len(capture.kernels):
        return False
    branched = _branched(launch, capture)
    in_order = np.ones(len(launch.ops), np.bool_)
    in_order[branched] = False
    if not (
        np.array_equal(launch.kernels[in_order], capture.kernels[in_order])
        and launch.kernels[branched].sum() == capture.kernels[branched].sum()
    ):
        return False
    # Ops of compiled code have the names of their kernels.
    op, kernel = capture.places[0], trace.gpu_ops.name_id[launch.ops]
    if (pick(_names_of_ops(trace), op, False) & in_order & (op != kernel)).any():
        return False
    if launch.by_node:
        return True
    # Ops of a chain begin one after the other. If they are on several streams, a library may have branched unseen.
    start, stream = trace.gpu_ops.start_ns[launch.ops], trace.gpu_ops.stream[launch.ops]
    apart = (start[1:] > start[:-1]) | ~(in_order[1:] | in_order[:-1])
    return bool(apart.all()) and (branched.stop > branched.start or len(distinct(stream)) == 1)


def _agreed(launch: _Launch, captures: list[_Capture]) -> Origins:
    """Return the origins of a launch's ops: what all captures that fit agree on."""
    places = captures[0].places
    agree = np.ones(places.shape, np.bool_)
    for capture in captures:
        agree &= capture.places == places
        alike = capture.places[:, _branched(launch, capture)]
        agree[:, _branched(launch, capture)] &= (alike == alike[:, :1]).all(axis=1, keepdims=True)
    op, module, line = np.where(agree, places, -1)
    return Origins(launch.ops, op, module, line, np.logical_and.reduce(agree))


def _identity(trace: Trace, launch: _Launch) -> tuple[bytes, ...]:
    """Return properties that all launches of a graph share."""
    ops = trace.gpu_ops
    return tuple(column[launch.ops].tobytes() for column in (ops.name_id, ops.blocks, ops.graph_node))


def _in_turn(trace: Trace, launches: list[_Launch], captures: list[_Capture]) -> dict[int, list[_Capture]]:
    """Return the captures of launches in steps that launch as many graphs as a recording, or all together, captured."""
    steps = trace.annotations.start_ns[is_step(trace.annotations)]
    called = trace.runtime_calls.start_ns[[launch.call for launch in launches]]
    separate_captures = [capture for capture in captures if capture.recording is not trace]
    together = [
        [capture for capture in separate_captures if capture.recording is recording] for recording in trace.captures
    ]
    together.append(sorted(separate_captures, key=lambda capture: capture.ended_ns))
    turns = defaultdict[int, list[_Capture]](list)
    for _, numbers in rows_by(np.searchsorted(steps, called, side="right")):
        # Nodes tell a graph from others.
        by_node = [_identity(trace, launches[number]) for number in numbers.tolist() if launches[number].by_node]
        for captured in together:
            pairs = list(zip(numbers.tolist(), captured, strict=False))
            if (
                1 < len(pairs) == len(numbers) == len(captured)
                and all(_fits(trace, launches[number], capture) for number, capture in pairs)
                and len({*by_node}) == len(by_node)
            ):
                for number, capture in pairs:
                    turns[number].append(capture)
    return turns


@kept()
def _names_of_ops(trace: Trace) -> Bool:
    """Select the names that GPU ops have."""
    return mask_of(trace.gpu_ops.name_id, len(trace.names))


def origins_of(trace: Trace, ops: GpuOps) -> Origins:
    """Return the origins of some ops of a trace, with -1 for those that no graph launched."""
    known = origins(trace)
    place = pick(trace.gpu_ops.place, known.row)
    row = locate(place, ops.place)
    return Origins.filled(
        row=pick(known.row, row),
        op=pick(known.op, row),
        module=pick(known.module, row),
        line=pick(known.line, row),
        is_known=pick(known.is_known, row, False),
    )


def graph_use(trace: Trace, ops: GpuOps) -> GraphUse | None:
    """Return how many of some ops graphs launched, and how many of these have a known origin; None without graphs."""
    inside = ops.take(pick(call_kinds.launches_graph(trace.runtime_calls), ops.launch, False))
    if not len(inside):
        return None
    known, length = origins_of(trace, inside).is_known, inside.end_ns - inside.start_ns
    return GraphUse(
        count=len(inside),
        time_ns=int(length.sum()),
        known_count=int(known.sum()),
        known_time_ns=int(length[known].sum()),
        captured=any(map(_captured, (trace, *trace.captures))),
    )
