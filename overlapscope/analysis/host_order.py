"""The host's order: the calls that launch work or block, with their predecessors on their thread or on another.

It includes the streams, events and ops that blocking calls wait for, as far as a recording states them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import combinations
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.periods import is_step
from overlapscope.base.columns import I64, Bool, Columns, Integers, locate, mask_of, pick
from overlapscope.base.grouping import among, group_starts, numbered, rows_by
from overlapscope.base.intervals import Intervals, begins_after_all, contains, union
from overlapscope.base.kept import kept
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.host import find_blocking, op_of, rows_of
from overlapscope.trace.model import Kind, Memory, Sync, Syncs, Trace, split_stream_key, stream_keys

# -- Threads that take turns -------------------------------------------------------------------------

_SHIFTS = (np.arange(1, 33) * (np.sqrt(5) - 1) / 2) % 1
"""Shifts, as fractions of the recording. Multiples of the golden ratio spread evenly over any number of steps."""
_MAX_SHARE_BY_CHANCE = 0.1
"""Maximum fraction of shifts that may look like taking turns."""
_OVERLAP_TOLERANCE = 0.01
"""Fraction of the overlap under a shift that counts as none, because of clocks and rounding."""
_MAX_ABSENT_BY_CHANCE = 3
"""Maximum number of overlaps that may be absent by chance."""
_MAX_ALTERNATION_RATIO = 2
"""A shift looks like the recording if threads alternate at most this many times as often, and as late."""
_SAMPLE_SIZE = 2048
_MAX_THREADS = 32
"""Maximum number of threads to compare with each other, at about 0.3 ms a pair."""


class Relation(IntEnum):
    """Relation between two threads."""

    UNKNOWN = 0
    """They do not overlap, but this may be chance."""
    TURNS = 1
    BESIDE = 2


class _Work(Struct, frozen=True):
    """Work of a thread."""

    begins_ns: I64
    """Start of every CPU op and call, ascending."""
    inside: Intervals
    """Ops and calls that contain no other. An outer op may also contain the wait for another thread."""


def relations(trace: Trace, threads: Sequence[int]) -> dict[tuple[int, int], Relation]:
    """Return the relation of each pair of threads, given by their ids.

    If threads take turns, each works while the other waits for it. No recording states this: flows join the ops of a
    forward and a backward pass, not threads. But a waiting thread begins nothing, and continues promptly when the other
    is done. Two threads take turns if neither begins anything during the other's work, and if they alternate more
    rarely and more promptly than with the times of either thread shifted.

    Keys are pairs of positions in the sequence, the lower first. Only the busiest of very many threads are compared.
    Without a relation, a thread waits for no other.
    """
    if len(threads) < 2:
        return {}
    begun = [len(rows_of(trace.cpu_ops, thread)) + len(rows_of(trace.runtime_calls, thread)) for thread in threads]
    busiest = np.argsort(np.negative(begun), kind="stable")[:_MAX_THREADS].tolist()
    works = {number: _work(trace, threads[number]) for number in sorted(busiest)}
    return {(lower, upper): _relation(works[lower], works[upper]) for lower, upper in combinations(works, 2)}


def _work(trace: Trace, thread: int) -> _Work:
    tables = [(table, rows_of(table, thread)) for table in (trace.cpu_ops, trace.runtime_calls)]
    start = np.concatenate([table.start_ns[rows] for table, rows in tables])
    end = np.concatenate([table.end_ns[rows] for table, rows in tables])
    # By start, longest first. Sorting two sorted tables is fast, so ends are only compared if there are ties.
    order = np.argsort(start, kind="stable")
    if ((np.diff(start[order]) == 0) & (np.diff(end[order]) > 0)).any():
        order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    innermost = np.append(start[1:] >= end[:-1], True)
    return _Work(start, union(start[innermost], end[innermost]))


def _relation(work: _Work, peer: _Work) -> Relation:
    seen = int(contains(peer.inside, work.begins_ns).sum() + contains(work.inside, peer.begins_ns).sum())
    if seen > _OVERLAP_TOLERANCE * (len(work.begins_ns) + len(peer.begins_ns)):
        return Relation.BESIDE
    first = min(work.begins_ns[0], peer.begins_ns[0])
    window = int(max(work.begins_ns[-1], peer.begins_ns[-1])) + 1 - first
    shifts = np.rint(_SHIFTS * window).astype(np.int64)
    overlaps = _overlaps(work, peer, shifts, first, window) + _overlaps(peer, work, -shifts, first, window)
    if seen > _OVERLAP_TOLERANCE * np.median(overlaps):
        return Relation.BESIDE
    disjoint_shifts = shifts[overlaps <= max(seen / _OVERLAP_TOLERANCE, _MAX_ABSENT_BY_CHANCE)]
    if len(disjoint_shifts) > _MAX_SHARE_BY_CHANCE * len(shifts):
        changes, delay = _handovers(work.begins_ns, peer.begins_ns)
        shifted = [_handovers(first + (work.begins_ns - first + by) % window, peer.begins_ns) for by in disjoint_shifts]
        alike = [
            many <= _MAX_ALTERNATION_RATIO * changes and each <= _MAX_ALTERNATION_RATIO * delay
            for many, each in shifted
        ]
        if sum(alike) > _MAX_SHARE_BY_CHANCE * len(shifts):
            return Relation.UNKNOWN
    return Relation.TURNS


def _overlaps(work: _Work, peer: _Work, shifts: I64, first: int, window: int) -> I64:
    """Return how often a thread begins something during the other's work, for each circular shift of its times."""
    stride = len(work.begins_ns) // _SAMPLE_SIZE + 1
    at = first + (work.begins_ns[::stride] - first + shifts[:, None]) % window
    overlaps: I64 = stride * contains(peer.inside, at).sum(axis=1)
    return overlaps


def _handovers(begins_ns: I64, peer_begins_ns: I64) -> tuple[int, float]:
    """Return how often two threads alternate, and the mean delay of the more prompt thread."""
    at = np.concatenate([begins_ns, peer_begins_ns])
    order = np.argsort(at, kind="stable")
    changes, delay = np.diff((order < len(begins_ns)).astype(np.int8)), np.diff(at[order])
    each = min(float(delay[changes == to].mean()) for to in (-1, 1) if (changes == to).any())
    return int(np.count_nonzero(changes)), each


# -- Calls in their order ----------------------------------------------------------------------------

EARLIEST_NS = -(2**61)
"""Time before all recorded times, for anything that nothing delays or whose time is unknown."""
_NODE = re.compile(r"(autograd::engine::evaluate_function|torch::autograd::).*|\w+Backward\d*", re.DOTALL)
"""Autograd's names for the nodes of its graph; until torch 1.9 they had no prefix."""


def is_autograd_node(op: str) -> bool:
    """Return whether a CPU op is a node of a backward pass, by its name."""
    return _NODE.fullmatch(op) is not None


class Calls(Columns, frozen=True):
    """Calls by measured start."""

    row: I64
    """Row of `Trace.runtime_calls`."""
    thread: I64
    """Number of the thread."""
    before_ns: I64
    """Host work since the previous call on its thread, or since the call that handed over to it."""
    length_ns: I64
    """Length without waiting."""
    handed_by: I64
    """Call of another thread that this call comes after; -1 for none."""
    maybe_by: I64
    """Last call of the main thread, for a call of a thread with no known tie to another; else -1."""
    release_ns: I64
    """Earliest start: the measured start of a thread's first call."""
    since_ns: I64
    """Measured beginning of the work before it; interventions may have shortened `before_ns` since."""
    start_ns: I64
    """Measured start."""
    end_ns: I64

    @property
    def previous(self) -> I64:
        """The previous call on the thread of each call; -1 for none."""
        order = np.argsort(self.thread, kind="stable")
        same = self.thread[order[1:]] == self.thread[order[:-1]]
        before = np.full(len(self), -1, np.int64)
        before[order[1:][same]] = order[:-1][same]
        return before


class HostCalls(NamedTuple):
    """The calls of a trace that launch or block, except those inside another one."""

    calls: Calls
    of_runtime_call: I64
    """Row of `calls` that each row of `Trace.runtime_calls` is or is part of; -1 for none."""
    threads: tuple[int, ...]
    """Operating-system id of each thread number."""


@kept()
def find_calls(trace: Trace) -> HostCalls:
    """Find the calls that launch or block."""
    runtime = trace.runtime_calls
    part_of = _outermost(trace)
    rows = np.flatnonzero(part_of == np.arange(len(runtime)))
    start, end = runtime.start_ns[rows], runtime.end_ns[rows]
    threads, thread = numbered(runtime.thread[rows])
    calls = Calls.filled(
        row=rows,
        thread=thread,
        before_ns=0,
        since_ns=start,
        length_ns=end - start,
        handed_by=-1,
        maybe_by=-1,
        release_ns=EARLIEST_NS,
        start_ns=start,
        end_ns=end,
    )
    place = np.full(len(runtime) + 1, -1, np.int64)
    place[rows] = np.arange(len(rows))
    return HostCalls(_in_order(trace, calls, threads), place[part_of], tuple(threads.tolist()))


def _outermost(trace: Trace) -> I64:
    """Return for each runtime call that launches or blocks the outermost such call around it; -1 for other calls."""
    runtime = trace.runtime_calls
    relevant = mask_of(call_kinds.launching(trace), len(runtime)) | mask_of(find_blocking(trace).row, len(runtime))
    candidates, outermost = np.flatnonzero(relevant), np.full(len(runtime), -1, np.int64)
    for _, of_thread in rows_by(runtime.thread[candidates]):
        rows = candidates[of_thread]
        begins_anew = begins_after_all(runtime.start_ns[rows], runtime.end_ns[rows])
        outermost[rows] = rows[np.maximum.accumulate(np.where(begins_anew, np.arange(len(rows)), 0))]
    return outermost


def _in_order(trace: Trace, calls: Calls, threads: I64) -> Calls:
    """Return the calls with their predecessors on the thread, or on a thread that handed over."""
    if not len(calls):
        return calls
    calls_of, previous = [of_thread for _, of_thread in rows_by(calls.thread)], calls.previous
    # End of the previous call on the thread, from which it was free for the work before the call.
    free_ns = pick(calls.end_ns, previous, EARLIEST_NS)
    before = np.where(previous < 0, 0, calls.start_ns - free_ns)
    release = np.where(previous < 0, calls.start_ns, EARLIEST_NS)
    handed, maybe = np.full(len(calls), -1, np.int64), np.full(len(calls), -1, np.int64)
    tied, beside_main, main = _ties(trace, calls, threads)
    ops_ns = [trace.cpu_ops.start_ns[trace.cpu_ops.thread == thread] for thread in threads.tolist()]
    for taker, of_thread in enumerate(calls_of):
        giving = _last_ended(calls, of_thread, free_ns, [calls_of[giver] for giver in tied[taker]])
        for call, other in zip(of_thread[giving >= 0].tolist(), giving[giving >= 0].tolist(), strict=True):
            calls_ns, ended_ns = calls.start_ns[calls_of[int(calls.thread[other])]], int(calls.end_ns[other])
            if beside_main[taker] or _silent(ops_ns[taker], calls_ns, int(free_ns[call]), ended_ns):
                handed[call] = other
                before[call] = calls.start_ns[call] - ended_ns
                release[call] = EARLIEST_NS
        if taker != main and (handed[of_thread] < 0).all():
            maybe[of_thread] = _last_ended(calls, of_thread, free_ns, [calls_of[main]])
    return replace(
        calls, before_ns=before, handed_by=handed, maybe_by=maybe, release_ns=release, since_ns=calls.start_ns - before
    )


def _last_ended(calls: Calls, of_thread: I64, ended: I64, others: list[I64]) -> I64:
    """Return for each call the last call of other threads before it; -1 if the thread's own `ended` later."""
    last, until = np.full(len(of_thread), -1, np.int64), ended[of_thread]
    ends = np.append(calls.end_ns, EARLIEST_NS)
    for rows in others:
        latest = pick(rows, np.searchsorted(calls.end_ns[rows], calls.start_ns[of_thread], side="right") - 1)
        last = np.where(ends[latest] > until, latest, last)
        until = np.maximum(until, ends[latest])
    return last


def _silent(ops_ns: I64, calls_ns: I64, since: int, until: int) -> bool:
    """Return whether a thread began no op (`ops_ns`) while another made its calls (`calls_ns`) in a period."""
    begun = int(np.append(calls_ns, until)[np.searchsorted(calls_ns, since)])
    low, high = np.searchsorted(ops_ns, [max(since, begun), until])
    return bool(low == high)


def _ties(trace: Trace, calls: Calls, threads: I64) -> tuple[list[list[int]], Bool, int]:
    """Find which threads may continue after a call of which others.

    Threads that take turns are tied. Autograd runs backward passes on threads of its own while the calling thread
    waits. These threads are tied to the main thread and to each other, unless they are seen to work side by side. The
    main thread is tied to every thread that it may have waited for.

    XLA's threads, which run no Python, work beside the main thread. They copy for it, and it waits for their copies.

    Returns:
        For each thread, the threads it is tied to, ascending; a mask of autograd's threads; the main thread.
    """
    beside_main = among(threads, trace.cpu_ops.thread[trace.cpu_ops.named(is_autograd_node)])
    is_jax = trace.framework == "jax"
    if is_jax:
        beside_main = ~among(threads, trace.python_frames.thread)
    main = _main_thread(trace, calls, threads, beside_main)
    beside_main[main] = False
    autograds = beside_main.copy()
    autograds[main] = True
    tied: list[list[int]] = [[] for _ in range(len(threads))]
    has_ops = bool((trace.cpu_ops.thread == threads[main]).any())
    for (first, second), relation in relations(trace, threads.tolist()).items():
        may_depend = relation == Relation.UNKNOWN or (is_jax and bool(beside_main[first] or beside_main[second]))
        both = may_depend and bool(autograds[first] and autograds[second])
        for taker, giver in ((first, second), (second, first)):
            if relation == Relation.TURNS or both or (may_depend and taker == main and has_ops):
                tied[taker].append(giver)
    return tied, beside_main, main


def _main_thread(trace: Trace, calls: Calls, threads: I64, beside_main: Bool) -> int:
    """Return the thread of the steps; without steps, the thread with the most calls, preferably not autograd's."""
    steps = trace.annotations.thread[is_step(trace.annotations)]
    stepping = np.flatnonzero(among(threads, steps))
    if len(stepping):
        return int(stepping[0])
    return int(np.lexsort((-np.bincount(calls.thread), beside_main))[0])


# -- Streams, events and ops that blocking calls wait for --------------------------------------------


_STAGED_BYTES = 64 << 10
"""Size up to which an upload from pageable memory returns once it is staged (CUDA Runtime API)."""
frees_memory = call_kinds.selects(
    r"(cuda|hip)(Free|FreeHost|HostFree|HostUnregister)|(cu|hip)Mem(Free|FreeHost|HostUnregister)"
)
"""Calls that free memory, and so wait until the device has finished (CUDA Runtime API, "implicit synchronization")."""
_queries = call_kinds.selects(r"(cuda|hip|cu)(Event|Stream)Query")
waits_for_device = call_kinds.selects(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize|hipCtxSynchronize")
"""Calls that wait for all streams of a device."""


class Block(Struct, frozen=True):
    """Work that has ended when a blocking call returns."""

    streams: tuple[int, ...] = ()
    """Streams (`stream_keys`) whose launched work it waits for."""
    own_ops: bool = False
    """True if it waits for the ops that it launches itself."""
    record: int = -1
    """Call that recorded the event that it waits for, on the only stream in `streams`; -1 if it is not for an event."""


@kept()
def find_polls(trace: Trace) -> I64:
    """Return the last call of each run of queries with which the host may wait for an event or a stream.

    A run is equal calls without another call between them on a thread that launches. However soon the event is reached,
    it has a query. Queries in CPU ops don't count, since PyTorch's allocators make them.
    """
    calls = trace.runtime_calls
    queries = np.flatnonzero(_queries(calls))
    queries = queries[op_of(trace, queries) < 0]
    queries = queries[among(calls.thread[queries], calls.thread[call_kinds.launching(trace)])]
    if not len(queries):
        return queries
    by_thread = np.argsort(calls.thread, kind="stable")
    key = np.where(mask_of(queries, len(calls)), calls.name_id, -1)[by_thread]
    starts = group_starts(calls.thread[by_thread], key)
    last = np.append(starts[1:], len(key)) - 1
    return np.sort(by_thread[last[key[starts] >= 0]])


def find_blocks(trace: Trace, streams: tuple[int, ...], *, strictest: bool) -> dict[int, Block]:
    """Return what each blocking call waits for, by row of `Trace.runtime_calls`; calls inside another count as it.

    Args:
        trace: The recording.
        streams: All its streams, as `stream_keys`.
        strictest: Whether a call waits for everything that the recording does not exclude, instead of what it states.
    """
    host, runtime, blocking = find_calls(trace), trace.runtime_calls, find_blocking(trace).row
    outer = pick(host.calls.row, host.of_runtime_call[blocking])
    synchronises, frees = call_kinds.synchronises(runtime)[blocking], frees_memory(runtime)[blocking]
    whole = waits_for_device(runtime)[blocking] | frees
    stream, device, events = stated_streams(trace, blocking), _stated_devices(trace, blocking), _stated_events(trace)
    devices = {key: split_stream_key(key)[0] for key in streams}
    one_device = len(set(devices.values())) == 1 and not _sync_elsewhere(trace, blocking[device < 0])
    unambiguous = len(streams) == 1 and not len(trace.syncs) and one_device
    blocks: dict[int, Block] = {}
    for number, (row, call) in enumerate(zip(blocking.tolist(), outer.tolist(), strict=True)):
        if whole[number] and (one_device or device[number] >= 0):
            blocks[call] = Block(tuple(key for key in streams if device[number] in (-1, devices[key])))
        elif synchronises[number] and stream[number] >= 0:
            blocks[call] = Block((int(stream[number]),))
        elif row in events:
            blocks[call] = events[row]
        elif (whole[number] or synchronises[number]) and (strictest or unambiguous):
            blocks[call] = Block(streams)
    for call in _staging_calls(trace, strictest=strictest):
        blocks.setdefault(call, Block(own_ops=True))
    return blocks


def _sync_elsewhere(trace: Trace, rows: I64) -> bool:
    """Return whether one of some synchronizes is of a device without ops in the recording.

    An op that was launched before it then begins only after it has returned.
    """
    ops, calls = trace.gpu_ops, trace.runtime_calls
    rows = rows[waits_for_device(calls)[rows]]
    launched = np.flatnonzero(ops.launch >= 0)
    launched = launched[np.argsort(calls.end_ns[ops.launch[launched]], kind="stable")]
    last = np.searchsorted(calls.end_ns[ops.launch[launched]], calls.start_ns[rows]) - 1
    last_begun = np.maximum.accumulate(ops.start_ns[launched])
    return bool((pick(last_begun, last, -1) > calls.end_ns[rows]).any())


def _staging_calls(trace: Trace, *, strictest: bool) -> Iterable[int]:
    """Return the calls that return only when their own copy has ended."""
    ops, host = trace.gpu_ops, find_calls(trace)
    copies = np.flatnonzero(ops.is_copy & (ops.launch >= 0))
    memory, upload = ops.host_memory[copies], ops.kind[copies] == Kind.H2D
    blocks = (memory == Memory.PAGEABLE) & (~upload | (ops.bytes[copies] > _STAGED_BYTES))
    blocks |= call_kinds.copies_blocking(trace.runtime_calls)[ops.launch[copies]] & (memory != Memory.UNKNOWN)
    if strictest:
        blocks |= memory == Memory.UNKNOWN
    calls: list[int] = pick(host.calls.row, pick(host.of_runtime_call, ops.launch[copies[blocks]])).tolist()
    return calls


@kept()
def awaited_streams(trace: Trace) -> I64:
    """Return the streams (`stream_keys`) that the host waits for by themselves or by an event, -1 among them."""
    of_events = [stream for block in _stated_events(trace).values() for stream in block.streams]
    return np.append(stated_streams(trace, find_blocking(trace).row), np.array(of_events, np.int64))


def stated_streams(trace: Trace, rows: I64) -> I64:
    """Return the stream (`stream_keys`) that each runtime call synchronizes, if a record states it; else -1."""
    stated = _stated(trace, Sync.STREAM, trace.syncs.stream, trace.syncs.device)
    record = locate(stated.correlation, trace.runtime_calls.correlation[rows])
    return pick(stream_keys(stated.device, stated.stream), record)


def _stated_devices(trace: Trace, rows: I64) -> I64:
    """Return the device that each runtime call synchronizes, if a record states it; else -1."""
    stated = _stated(trace, Sync.CONTEXT, trace.syncs.device)
    return pick(stated.device, locate(stated.correlation, trace.runtime_calls.correlation[rows]))


def _stated(trace: Trace, kind: Sync, *known: Integers) -> Syncs:
    """Return the records of a kind that state their call, and for which none of some columns is -1."""
    syncs = trace.syncs
    return syncs.take((syncs.kind == kind) & (syncs.correlation > 0) & (np.minimum.reduce(known) >= 0))


@kept()
def _stated_events(trace: Trace) -> dict[int, Block]:
    """Return what each event synchronize waits for, by its row, where a record states the event's stream and call."""
    syncs, correlation = trace.syncs, trace.runtime_calls.correlation
    stated = _stated(trace, Sync.EVENT, syncs.source_stream, syncs.source_device)
    stated = stated.take(stated.record_correlation > 0)
    if not len(stated):
        return {}
    calls, records = locate(correlation, stated.correlation), locate(correlation, stated.record_correlation)
    streams = stream_keys(stated.source_device, stated.source_stream)
    columns = zip(calls.tolist(), streams.tolist(), records.tolist(), strict=True)
    return {call: Block((stream,), record=record) for call, stream, record in columns if call >= 0 and record >= 0}
