"""The contract of a recording: its typical step, and the ops that may overlap there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from statistics import median_high
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.collectives import message_bytes
from overlapscope.analysis.event_waits import event_waits
from overlapscope.analysis.host_order import find_polls, is_autograd_node
from overlapscope.analysis.host_use import describe_host, host_timeline
from overlapscope.analysis.order import OrderedBy, stated_order, strictest_order
from overlapscope.analysis.periods import judged_steps
from overlapscope.base.columns import locate, mask_of, pick
from overlapscope.base.grouping import among, distinct, groups_of, rows_by
from overlapscope.base.kept import kept
from overlapscope.base.words import clean, plural
from overlapscope.budgets.words import in_project
from overlapscope.contracts.model import DEFAULT_MARGIN_PCT, Beside, Contract, HostCall, TransferGroup
from overlapscope.contracts.windows import Neighbour, Windows, counted, find_neighbours, find_windows, library_ops
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.host import find_blocking, line_ids_around, line_text, op_of, outermost_around, shown_line
from overlapscope.trace.model import I64, HostEvents, Kind, Memory, Trace
from overlapscope.version import __version__

# -- Places of the program ---------------------------------------------------------------------------

_AUTOGRAD = re.compile(r"(autograd::engine::evaluate_function: )?(torch::autograd::)?")
_RUNS_BACKWARD = re.compile(r".*\b(_engine_run_backward|run_backward)\b.*", re.DOTALL)
"""Frames in which a thread waits for autograd's engine (torch/autograd)."""
_MAX_NAME_LENGTH = 120


class Places:
    """Places of calls as text."""

    def __init__(self, trace: Trace, table: HostEvents, calls: I64) -> None:
        """Look up the places of calls, given as rows of one of the trace's tables."""
        self._trace = trace
        thread, at = table.thread[calls], table.start_ns[calls]
        self._row = dict(zip(calls.tolist(), range(len(calls)), strict=True))
        op = outermost_around(trace.cpu_ops, thread, at)
        self._op = pick(trace.cpu_ops.name_id, op)
        self._line = line_ids_around(trace, thread, at)
        in_backward = np.flatnonzero((self._line < 0) & pick(trace.cpu_ops.named(is_autograd_node), op, False))
        self._line[in_backward] = _backward_line_ids(trace, thread[in_backward], at[in_backward])

    def ids(self, calls: I64) -> tuple[I64, I64]:
        """Return op and line of each call as rows of `Trace.names`; -1 where there is none."""
        rows = np.array([self._row[call] for call in calls.tolist()], np.int64)
        return self._op[rows], self._line[rows]

    def op(self, call: int) -> str:
        """Return the op around a call; empty if there is none."""
        name = int(self._op[self._row[call]])
        return clean(_AUTOGRAD.sub("", self._trace.names[name], count=1), _MAX_NAME_LENGTH) if name >= 0 else ""

    def line(self, call: int) -> str:
        """Return the line of a call as `train.py:88 in step`; empty if there is none."""
        text = line_text(self._trace, int(self._line[self._row[call]])) or ""
        shown = shown_line(text)
        if shown is None:
            return ""
        # A path outside of the project differs between machines.
        path = in_project(shown.file) or shown.file.rpartition("/")[2]
        return clean(f"{path}:{shown.line} in {shown.function}", _MAX_NAME_LENGTH)

    def words(self, call: int) -> str:
        """Return `aten::item, train.py:88 in step` as far as it is known."""
        return ", ".join(filter(None, (self.op(call), self.line(call))))


def _backward_line_ids(trace: Trace, thread: I64, at: I64) -> I64:
    """Return the line that called the backward pass around each instant, as a row of `Trace.names`; -1 if unknown.

    Autograd's engine runs the nodes of a backward pass on a thread without Python frames, while the thread that called
    it waits. If two threads wait so, either may have called it.
    """
    waits, line, callers = _runs_of_backward(trace.python_frames), np.full(len(at), -1, np.int64), np.zeros(len(at))
    for caller in distinct(waits.thread).tolist() if len(at) else []:
        caller_thread = np.full(len(at), caller, np.int64)
        calls = (outermost_around(waits, caller_thread, at) >= 0) & (thread != caller)
        callers += calls
        line[calls] = line_ids_around(trace, caller_thread[calls], at[calls])
    return np.where(callers == 1, line, -1)


@kept()
def _runs_of_backward(frames: HostEvents) -> HostEvents:
    return frames.take(frames.named(_RUNS_BACKWARD.fullmatch))


_SAME_SIZE = 4
"""Maximum factor between the sizes of two copies that follow each other, by size, within a size class."""
_NEVER = np.iinfo(np.int64).max
_LOADER = re.compile(r"enumerate\(DataLoader\)#(?P<iterator>\w+)\.__next__")


class _Steps(NamedTuple):
    """Judged steps on the host, each up to the next; without steps, the whole recording counts as a step."""

    start_ns: I64
    end_ns: int
    """End of the last step."""

    def at(self, ns: I64) -> I64:
        """Return the number of the step around each instant; -1 if there is none."""
        return np.where(ns < self.end_ns, np.searchsorted(self.start_ns, ns, side="right") - 1, -1)

    def typical(self, numbers: I64) -> int:
        """Return the median count of events in a step, the higher of two middle ones, given each event's step."""
        counts: list[int] = np.bincount(numbers[numbers >= 0], minlength=len(self.start_ns)).tolist()
        return median_high(counts)

    def recurring(self, numbers: I64) -> int:
        """Return `typical`, or else the median count in the steps with events, if a quarter and two or more have any.

        Memory that is kept makes the allocator ask the driver only in every few steps.
        """
        counts = np.bincount(numbers[numbers >= 0], minlength=len(self.start_ns))
        some = counts[counts > 0].tolist()
        often = len(some) >= max(2, len(counts) / 4)
        return self.typical(numbers) or (median_high(some) if often else 0)


def observe(trace: Trace) -> Contract:
    """Return the contract that a recording keeps.

    Numbers are medians over the judged steps, so calls and ops of fewer than half of them are left out, except
    allocations that recur.
    """
    steps, unknown = _find_steps(trace), list(_unknown(trace))
    ops, calls = trace.gpu_ops, trace.runtime_calls
    contract = Contract(
        written_by=f"overlapscope {__version__}",
        margin_pct=DEFAULT_MARGIN_PCT,
        steps=len(steps.start_ns),
        kernels=0,
        launches=0,
        graph_launches=0,
        unrecorded_copies=0,
        loader=_loader(trace, steps),
        unknown=(),
    )
    if not (ops.launch >= 0).any():
        reason = "The recording has no launches." if len(ops) else "The recording has no GPU ops."
        return _of_host(trace, steps, replace(contract, unknown=(reason,)))
    step_of_op = np.where(ops.launch >= 0, steps.at(pick(calls.start_ns, ops.launch, -1)), -1)
    transfers = _Transfers(trace, steps, step_of_op)
    collectives, copies = transfers.collectives(), transfers.copies()
    if any(run.least < run.most for group in (*copies, *collectives) for run in group.beside):
        unknown += _why_unknown(trace)
    launches = call_kinds.launching(trace)
    graphs = launches[call_kinds.launches_graph(calls)[launches]]
    syncs, allocations = _host_calls(trace, steps)
    return replace(
        contract,
        kernels=transfers.kernels,
        launches=steps.typical(steps.at(calls.start_ns[_counted_launches(trace, launches)])),
        graph_launches=steps.typical(steps.at(calls.start_ns[graphs])),
        unrecorded_copies=_unrecorded_copies(trace, steps, step_of_op),
        unknown=tuple(unknown),
        copies=copies,
        collectives=collectives,
        syncs=syncs,
        allocations=allocations,
    )


def _counted_launches(trace: Trace, launches: I64) -> I64:
    """Return the launches that count: for each op of PyTorch's library the first, and all others."""
    op = library_ops(trace, launches)
    first = np.unique(np.where(op >= 0, op, -1 - np.arange(len(op))), return_index=True)[1]
    return launches[np.sort(first)]


def _unrecorded_copies(trace: Trace, steps: _Steps, step_of_op: I64) -> int:
    """Return the number of calls in a typical step that copy without a GPU op, and of copies without a call.

    The first copies of a recording may have been launched before it.
    """
    ops, calls = trace.gpu_ops, trace.runtime_calls
    copies = calls.take(call_kinds.copies_async(calls) | call_kinds.copies_blocking(calls))
    launched = np.flatnonzero(ops.launch >= 0)
    at, thread = calls.start_ns[ops.launch[launched]], calls.thread[ops.launch[launched]]
    recorded = mask_of(distinct(outermost_around(copies, thread, at) + 1), len(copies) + 1)[1:]
    outermost = outermost_around(copies, copies.thread, copies.start_ns) == np.arange(len(copies))
    unrecorded = steps.typical(steps.at(copies.start_ns[outermost & ~recorded]))
    first = ops.start_ns[step_of_op >= 0].min(initial=_NEVER)
    adrift = (ops.is_copy | (ops.kind == Kind.P2P)) & (ops.launch < 0) & (ops.start_ns > first)
    return unrecorded + round(int(adrift.sum()) / len(steps.start_ns))


def _find_steps(trace: Trace) -> _Steps:
    rows, notes = judged_steps(trace), trace.annotations
    if len(rows):
        return _Steps(notes.start_ns[rows], int(notes.end_ns[rows].max()))
    tables = [table for table in (trace.runtime_calls, trace.cpu_ops) if len(table)]
    starts, ends = (table.start_ns[0] for table in tables), (table.end_ns.max() for table in tables)
    return _Steps(np.array([min(starts, default=0)]), int(max(ends, default=0)) + 1)


def _unknown(trace: Trace) -> Iterator[str]:
    if not len(judged_steps(trace)):
        yield "The recording has no steps, so all numbers are of the whole recording."
    if trace.damage.truncated or trace.damage.lost_events:
        yield "The recording is damaged, so calls and ops may be missing."


def _why_unknown(trace: Trace) -> Iterator[str]:
    """Yield the reasons why some windows are uncertain."""
    waits = event_waits(trace)
    unstated = int((~waits.stated).sum())
    if len(waits) and not len(trace.syncs):
        yield "Event waits name no stream: record with sync events, as `overlapscope run` does."
    elif unstated:
        yield (
            f"Of {plural(len(waits), 'event wait')}, {unstated:,} can't be tied to the event's record: with CUDA 13, "
            "those inside of PyTorch, and all that overlapscope didn't record."
            f"{' Record with `overlapscope run`.' if unstated == len(waits) else ''}"
        )
    elif len(find_polls(trace)):
        yield "The recording doesn't state for what the host polls."
    else:
        yield "A window is longer than the recording, or depends on streams, threads or graphs that it doesn't state."


def _loader(trace: Trace, steps: _Steps) -> str:
    """Return the iterator of the DataLoader that most steps use; empty if fewer than half use one."""
    notes = trace.annotations
    rows = np.flatnonzero(notes.named(_LOADER.fullmatch))
    rows = rows[steps.at(notes.start_ns[rows]) >= 0]
    counts = Counter(notes.name(row) for row in rows.tolist())
    if not counts or 2 * len(rows) < len(steps.start_ns):
        return ""
    match = _LOADER.fullmatch(counts.most_common(1)[0][0])
    return match["iterator"] if match else ""


# -- Calls of the host --------------------------------------------------------------------------------


def _of_host(trace: Trace, steps: _Steps, contract: Contract) -> Contract:
    """Return the contract with what the thread of the steps does, if the program uses no GPU."""
    timeline, ops = host_timeline(trace), trace.cpu_ops
    if describe_host(trace) is None or timeline is None:
        return contract
    rows = np.flatnonzero(ops.thread == timeline.thread)
    outermost = rows[outermost_around(ops, ops.thread[rows], ops.start_ns[rows]) == rows]
    reads = rows[ops.named("aten::_local_scalar_dense".__eq__)[rows]]
    return replace(
        contract,
        host_ops=steps.typical(steps.at(ops.start_ns[outermost])),
        syncs=tuple(_calls(trace, steps, ops, reads, steps.typical)),
    )


def _host_calls(trace: Trace, steps: _Steps) -> tuple[tuple[HostCall, ...], tuple[HostCall, ...]]:
    """Return the calls that wait for the device, and those that allocate memory of the driver."""
    blocking, calls = find_blocking(trace), trace.runtime_calls
    allocates = call_kinds.allocates(calls)[blocking.row]
    waits = blocking.row[~allocates & ~blocking.staging]
    # A copy and the synchronize after it are the same wait, if they belong to one op.
    op = op_of(trace, waits)
    synchronises = call_kinds.synchronises(calls)[waits]
    waits = waits[synchronises | (op < 0) | ~among(op, op[synchronises])]
    waits = np.sort(np.concatenate([waits, find_polls(trace)]))
    allocations = _calls(trace, steps, calls, blocking.row[allocates], steps.recurring)
    # These page-lock memory, and copy into it, even if PyTorch has such memory at hand.
    pins = np.flatnonzero(trace.cpu_ops.named("aten::pin_memory".__eq__))
    pinning = _calls(trace, steps, trace.cpu_ops, pins, steps.typical)
    return tuple(_calls(trace, steps, calls, waits, steps.typical)), (*allocations, *pinning)


def _calls(
    trace: Trace, steps: _Steps, table: HostEvents, rows: I64, count_of: Callable[[I64], int]
) -> Iterator[HostCall]:
    """Yield the calls of each place, with the count that `count_of` returns for the numbers of their steps."""
    rows = rows[steps.at(table.start_ns[rows]) >= 0]
    places = Places(trace, table, rows)
    op, line = places.ids(rows)
    number = steps.at(table.start_ns[rows])
    places_of = [members for _, members in rows_by(groups_of((op, line, table.name_id[rows])))] if len(rows) else []
    for members in sorted(places_of, key=lambda members: int(members[0])):
        count = count_of(number[members])
        if count:
            row = int(rows[members[0]])
            call = clean(table.name(row), 80)
            yield HostCall(call=call, op=places.op(row), line=places.line(row), count=count)


# -- Copies and collectives ---------------------------------------------------------------------------


class _Transfers:
    """Groups of copies and collectives of a trace."""

    def __init__(self, trace: Trace, steps: _Steps, step_of_op: I64) -> None:
        self._trace, self._steps, self._step_of_op = trace, steps, step_of_op
        items, streams = stated_order(trace).items, stated_order(trace).streams
        kernels, step_of_item = counted(trace), step_of_op[items.op]
        of_lane = (np.flatnonzero((items.lane == lane) & (step_of_item >= 0)) for lane in range(len(streams)))
        counts = (steps.typical(np.repeat(step_of_item[rows], kernels[rows])) for rows in of_lane)
        self._of_step = dict(zip(streams, counts, strict=True))
        self.kernels = sum(self._of_step.values())
        """Number of kernels in a typical step."""

    def copies(self) -> tuple[TransferGroup, ...]:
        """Return the groups of copies between host and device, and between devices."""
        ops = self._trace.gpu_ops
        rows = np.flatnonzero((ops.is_copy | (ops.kind == Kind.P2P)) & (self._step_of_op >= 0))
        kinds = [Kind(kind).name for kind in ops.kind[rows].tolist()]
        memory = np.where(ops.is_copy[rows], ops.host_memory[rows], -1)
        return tuple(self._groups(rows, kinds, memory, ops.bytes[rows]))

    def collectives(self) -> tuple[TransferGroup, ...]:
        """Return the groups of collectives; kernels that state none go by no name."""
        trace = self._trace
        ops, stated = trace.gpu_ops, trace.collectives
        rows = np.flatnonzero((ops.kind == Kind.COMM) & (self._step_of_op >= 0))
        at = locate(stated.correlation, ops.correlation[rows]) if len(stated) else np.full(len(rows), -1)
        sizes = pick(message_bytes(stated, trace.names), at, -1) if len(stated) else np.full(len(rows), -1)
        kinds = []
        for row in at.tolist():
            name = stated.name(row) if row >= 0 else "collective"
            group = int(stated.description[row]) if row >= 0 else -1
            kinds.append(clean(f"{name} ({trace.names[group]})" if group >= 0 else name, 80))
        return tuple(self._groups(rows, kinds, np.full(len(rows), -1), sizes))

    def _groups(self, rows: I64, kinds: Sequence[str], memory: I64, sizes: I64) -> Iterator[TransferGroup]:
        """Yield a transfer for each group of ops of the same kind, memory, place and size class, in order."""
        if not len(rows):
            return
        trace, step = self._trace, self._step_of_op[rows]
        launch = trace.gpu_ops.launch[rows]
        places = Places(trace, trace.runtime_calls, distinct(launch))
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        kind = np.array([numbers[each] for each in kinds])
        group = _size_classes(groups_of((kind, memory, *places.ids(launch))), sizes)
        windows = find_windows(trace, rows, self._of_step)
        groups = sorted((members for _, members in rows_by(group)), key=lambda members: int(members[0]))
        typical = [(members, count) for members in groups if (count := self._steps.typical(step[members]))]
        beside = [_beside(members, step, count, windows) for members, count in typical]
        words = _neighbour_words(trace, rows[np.array([example for _, example in beside], np.int64)])
        for (members, count), (runs, _), (begins, ends) in zip(typical, beside, words, strict=True):
            row = int(members[0])
            call = int(launch[row])
            middle = members[np.argsort(sizes[members], kind="stable")[len(members) // 2]]
            yield TransferGroup(
                kind=kinds[row],
                memory=Memory(int(memory[row])).name.lower() if memory[row] >= 0 else "",
                op=places.op(call),
                line=places.line(call),
                count=count,
                bytes=max(0, int(sizes[middle])),
                beside=runs,
                begins=begins,
                ends=ends,
            )


def _size_classes(place: I64, sizes: I64) -> I64:
    """Return the number of each op's class: ops of a place whose sizes, in order, grow by small factors."""
    order = np.lexsort((sizes, place))
    ordered = np.maximum(sizes[order], 1)
    begins = (ordered[1:] > _SAME_SIZE * ordered[:-1]) | (place[order][1:] != place[order][:-1])
    group = np.empty(len(order), np.int64)
    group[order] = np.append(0, np.cumsum(begins))
    return group


def _beside(members: I64, step: I64, count: int, windows: Windows) -> tuple[tuple[Beside, ...], int]:
    """Return the windows of a group's members in a typical step, and the row of a member with the smallest.

    Steps count that have as many members as a typical one. If the recording cuts off a window in some of them, these
    are left out as long as there are others.
    """
    _, of_step, counts = np.unique(step[members], return_inverse=True, return_counts=True)
    usual = counts == count
    whole = usual.copy()
    np.logical_and.at(whole, of_step, windows.closed[members])
    chosen = members[(whole if whole.any() else usual)[of_step]]
    # The median of the members with the smallest window in each step, then of those with the second, and so on.
    typical = []
    for width in (windows.least, windows.most):
        by_step = chosen[np.lexsort((width[chosen], step[chosen]))].reshape(-1, count)
        middle = np.argsort(width[by_step], axis=0, kind="stable")[(len(by_step) - 1) // 2]
        typical.append(by_step[middle, np.arange(count)])
    least, most = typical
    pairs = zip(windows.least[least].tolist(), windows.most[most].tolist(), strict=True)
    return tuple(Beside(len([*alike]), *pair) for pair, alike in groupby(pairs)), int(least[0])


def _neighbour_words(trace: Trace, ops: I64) -> Iterator[tuple[str, str]]:
    """Yield what each op comes after and what comes after it, each with what orders them."""
    neighbours, launch = find_neighbours(ops, strictest_order(trace)), trace.gpu_ops.launch
    sides = [side for each in neighbours for side in each]
    calls = [int(launch[kernel]) for kernel, _ in sides if kernel >= 0]
    calls += [call for _, cause in sides if cause is not None for call in (cause.call, cause.record)]
    known = distinct(np.array(calls, np.int64))
    places = Places(trace, trace.runtime_calls, known[known >= 0])
    for op, (begins, ends) in zip(ops.tolist(), neighbours, strict=True):
        # The stream of whatever comes first.
        stream = int(trace.gpu_ops.stream[begins[0]])
        yield (
            _words(trace, places, "after", begins, stream),
            _words(trace, places, "before", ends, int(trace.gpu_ops.stream[op])),
        )


def _words(trace: Trace, places: Places, side: str, neighbour: Neighbour, stream: int) -> str:
    kernel, cause = neighbour
    if kernel < 0 or cause is None:
        return ""
    launch = int(trace.gpu_ops.launch[kernel])
    name = (places.words(launch) if launch >= 0 else "") or clean(trace.gpu_ops.name(kernel), 60)
    return f"{side} {name}{'' if cause.stated else ' at worst'}: {_order_words(trace, places, cause, stream)}"


def _order_words(trace: Trace, places: Places, cause: OrderedBy, stream: int) -> str:
    """Return what orders two ops in words. `stream` is that of the first."""
    if cause.on_host:
        if cause.call < 0:
            return "the host waits"
        where = places.words(cause.call)
        return f"the host waits in {trace.runtime_calls.name(cause.call)}{f' ({where})' if where else ''}"
    if cause.call < 0:
        return f"same stream {stream}"
    if not cause.stated:
        where = places.words(cause.call)
        return f"wait for an unknown event{f' ({where})' if where else ''}"
    at = places.line(cause.record if cause.record >= 0 else cause.call).rpartition(" in ")[0]
    kind = "event recorded" if cause.record >= 0 else "wait"
    return f"event wait for stream {stream}{f' ({kind} at {at})' if at else ''}"
