"""Streams, events and ops that the host's blocking calls wait for, as far as a recording states them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.host import around, find_blocking
from overlapscope.analysis.host_order import find_calls
from overlapscope.base.columns import Integers, locate, mask_of, pick
from overlapscope.base.grouping import among, group_starts
from overlapscope.base.kept import kept
from overlapscope.trace.model import (
    I64,
    Kind,
    Memory,
    Sync,
    Syncs,
    Trace,
    split_stream_key,
    stream_keys,
)

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
    queries = queries[around(trace.cpu_ops, calls.thread[queries], calls.start_ns[queries]) < 0]
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
