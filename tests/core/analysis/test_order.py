"""The order of GPU ops equals brute force over every path of a program, and no time changes it.

Contracts, edges of causes and the graph of a replay follow the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise, product
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.event_waits import EXACT
from overlapscope.analysis.holds import Reading, find_edges, find_holds
from overlapscope.analysis.order import HappensBefore, stated_order, strictest_order
from overlapscope.analysis.timeline import build as build_timeline
from overlapscope.base.grouping import rows_by
from overlapscope.contracts.windows import find_windows
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import OrderReason
from overlapscope.prediction.graph_builder import build
from overlapscope.trace.model import I64, Kind, Memory, Sync, Syncs, Trace
from tests.support.helpers import TRACES, Host, Op, Wait, make_trace, recordings, tried
from tests.support.recordings import trace_of

STREAMS = (7, 13, 17)
CLOCK_NS = 2000
"""Error of times on the device."""


class Act(NamedTuple):
    """What the host does: it launches, records or waits for an event on a stream, or waits itself."""

    what: str
    stream: int = 7
    event: int = 0


ON_DEVICE = ("kernel", "kernel", "upload", "record", "record", "wait", "wait")
ON_HOST = ("download", "stream sync", "device sync", "event sync")
EVENTS = st.integers(0, 1)
ACTS = st.builds(Act, st.sampled_from(ON_DEVICE + ON_HOST), st.sampled_from(STREAMS), EVENTS)
ACTS_ON_DEVICE = st.builds(Act, st.sampled_from(ON_DEVICE), st.sampled_from(STREAMS), EVENTS)
PROGRAMS = st.lists(ACTS, min_size=1, max_size=24)
many = settings(max_examples=60)
"""Waits that another stream passes on are rare in random programs, and each program takes a few milliseconds."""


def launches(act: Act) -> bool:
    return act.what in ("kernel", "upload", "download")


def recorded_before(program: list[Act], at: int) -> int | None:
    """Return the latest record of the event that an act waits for; None if it was never recorded."""
    event = program[at].event
    places = [place for place in range(at) if program[place][0] == "record" and program[place].event == event]
    return places[-1] if places else None


def trace_of_program(program: list[Act], start_ns: list[int]) -> Trace:
    """Return a recording of a program on one thread; ops begin at the given times, whatever the order demands."""
    ops, calls, waits, syncs = [], [], [], list[tuple[int, ...]]()
    for place, act in enumerate(program):
        at = 100 * place
        if launches(act):
            kind = {"kernel": Kind.COMPUTE, "upload": Kind.H2D, "download": Kind.D2H}[act.what]
            sides = (Memory.PINNED, Memory.DEVICE) if kind != Kind.D2H else (Memory.DEVICE, Memory.PAGEABLE)
            call = "cudaLaunchKernel" if kind == Kind.COMPUTE else "cudaMemcpyAsync"
            begin = start_ns[place]
            ops.append(Op(kind, begin, begin + 1, act.stream, (at, at + 9), call, 1, *sides, size=1 << 20))
        elif act.what == "record":
            calls.append(Host("cudaEventRecord", at, at + 9))
        elif act.what == "wait":
            source = recorded_before(program, place)
            if source is None:
                calls.append(Host("cudaFuncGetAttributes", at, at + 9))
            else:
                waits.append(
                    Wait(at, act.stream, source_stream=program[source].stream, record_correlation=1000 + source)
                )
        elif act.what == "event sync":
            source = recorded_before(program, place)
            calls.append(Host("cudaFuncGetAttributes" if source is None else "cudaEventSynchronize", at, at + 9))
            if source is not None:
                syncs.append((at, Sync.EVENT, -1, 1000 + place, program[source].stream, 1000 + source))
        else:
            name = "cudaStreamSynchronize" if act.what == "stream sync" else "cudaDeviceSynchronize"
            calls.append(Host(name, at, at + 9))
            if act.what == "stream sync":
                syncs.append((at, Sync.STREAM, act.stream, 1000 + place, -1, -1))
            else:
                syncs.append((at, Sync.CONTEXT, -1, 1000 + place, -1, -1))
    trace = make_trace(ops, calls=calls, waits=waits)
    begin_ns, sync_kind, stream, correlation, source_stream, record = np.array(syncs, np.int64).reshape(-1, 6).T
    none = np.full(len(syncs), -1, np.int32)
    stated = replace(
        Syncs.empty(names=trace.names),
        start_ns=begin_ns,
        end_ns=begin_ns + 9,
        name_id=none,
        place=none,
        kind=sync_kind.astype(np.int8),
        device=none + 1,
        stream=stream.astype(np.int32),
        correlation=correlation,
        event=none.astype(np.int64),
        source_stream=source_stream.astype(np.int32),
        source_device=np.where(source_stream >= 0, 0, -1).astype(np.int32),
        record_correlation=record,
    )
    return replace(trace, syncs=Syncs.joined([trace.syncs, stated]))


def brute_force(
    program: list[Act],
    silent: Mapping[int, str] = MappingProxyType({}),
    meant: Mapping[int, tuple[int, int | None]] = MappingProxyType({}),
) -> set[tuple[int, int]]:
    """Return all pairs of acts whose ops are in order, by searching every path from an op's end to another's begin.

    A wait in `silent` is for everything launched before: on its stream if the record lacks the event, on all streams if
    the record lacks the stream, too. A wait in `meant` is one of that stream for the event of that record, if any.
    """
    after: dict[str, set[str]] = {}

    def edge(first: str, then: str) -> None:
        after.setdefault(first, set()).add(then)

    last: dict[int, list[str]] = {stream: [] for stream in STREAMS}
    for place, act in enumerate(program):
        host, before = f"host {place}", f"host {place - 1}"
        edge(before, host)
        if launches(act):
            for thing in (*last[act.stream], before):
                edge(thing, f"begin {place}")
            edge(f"begin {place}", f"end {place}")
            last[act.stream] = [f"end {place}"]
            if act.what == "download":
                edge(f"end {place}", host)
        elif act.what == "record":
            for thing in (*last[act.stream], before):
                edge(thing, f"event {place}")
        elif act.what == "wait" and place in silent:
            everything = [thing for stream in STREAMS for thing in last[stream]]
            for stream in STREAMS if silent[place] == "stream" else (act.stream,):
                last[stream] = [*last[stream], *everything]
        elif act.what == "wait":
            stream, source = meant.get(place, (act.stream, recorded_before(program, place)))
            last[stream] = [*last[stream], *([f"event {source}"] if source is not None else [])]
        elif act.what == "event sync":
            source = recorded_before(program, place)
            if source is not None:
                edge(f"event {source}", host)
        else:
            for stream in STREAMS if act.what == "device sync" else (act.stream,):
                for thing in last[stream]:
                    edge(thing, host)

    ops = [place for place, act in enumerate(program) if launches(act)]
    return {(first, then) for first in ops for then in ops if f"begin {then}" in reached(after, f"end {first}")}


def reached(after: Mapping[str, set[str]], start: str) -> set[str]:
    """Return everything that comes after a thing."""
    seen, open_ends = set[str](), [start]
    while open_ends:
        new = after.get(open_ends.pop(), set()) - seen
        seen |= new
        open_ends += new
    return seen


def pairs_in_order(order: HappensBefore, trace: Trace) -> set[tuple[int, int]]:
    """Return the pairs of ops that an order puts one after the other, by `before` and by `after` alike."""
    items = order.items
    act = {row: int(trace.runtime_calls.start_ns[items.call[row]]) // 100 for row in range(len(items))}
    where = {row: (int(items.lane[row]), int(items.place[row])) for row in act}
    by_before, by_after = set(), set()
    for first, (lane, place) in where.items():
        for then, (other, at) in where.items():
            if order.before(other, np.array([at]), lane)[0] > place:
                by_before.add((act[first], act[then]))
            if order.after(lane, np.array([place]), other)[0] <= at:
                by_after.add((act[first], act[then]))
            assert (order.cause(where[first], where[then]) is not None) == ((act[first], act[then]) in by_before)
    assert by_before == by_after
    return by_before


@many
@given(PROGRAMS, st.randoms(use_true_random=False))
def test_the_order_is_that_of_every_path_whatever_time_ops_take(program: list[Act], random: object) -> None:
    times = [10**6 + 10 * place for place in range(len(program))]
    random.shuffle(times)  # type: ignore[attr-defined]
    trace = trace_of_program(program, times)
    if not len(trace.gpu_ops):
        return
    expected = brute_force(program)
    assert pairs_in_order(stated_order(trace), trace) == expected
    assert pairs_in_order(strictest_order(trace), trace) == expected


@many
@given(PROGRAMS)
def test_a_stream_without_its_device_is_no_known_stream(program: list[Act]) -> None:
    trace = trace_of_program(program, [10**6 + 10 * place for place in range(len(program))])
    if not len(trace.gpu_ops):
        return
    none = np.full(len(trace.syncs), -1, np.int32)
    no_device = replace(trace, syncs=replace(trace.syncs, device=none, source_device=none))
    no_stream = replace(no_device, syncs=replace(no_device.syncs, stream=none, source_stream=none))
    for order in (stated_order, strictest_order):
        assert pairs_in_order(order(no_device), trace) == pairs_in_order(order(no_stream), trace)
    assert pairs_in_order(stated_order(no_device), trace) <= brute_force(program)


@many
@given(PROGRAMS, st.data())
def test_the_strictest_order_takes_a_silent_wait_as_one_for_everything(program: list[Act], data: st.DataObject) -> None:
    trace = trace_of_program(program, [10**6 + 10 * place for place in range(len(program))])
    if not len(trace.gpu_ops):
        return
    silent = {at: what for at in waits_in(program) if (what := data.draw(st.sampled_from(("", "event", "stream"))))}
    order = strictest_order(silenced(trace, silent))
    assert pairs_in_order(order, trace) == brute_force(program, silent)


def waits_in(program: list[Act]) -> list[int]:
    return [at for at, act in enumerate(program) if act.what == "wait" and recorded_before(program, at) is not None]


def silenced(trace: Trace, silent: Mapping[int, str]) -> Trace:
    """Return a recording that states neither the event of some waits nor, of some of these, the stream."""
    syncs = trace.syncs
    act = np.where(syncs.kind == Sync.STREAM_WAIT_EVENT, syncs.start_ns // 100, -1)
    no_event, no_stream = np.isin(act, [*silent]), np.isin(act, [at for at in silent if silent[at] == "stream"])
    kept = replace(
        syncs,
        stream=np.where(no_stream, -1, syncs.stream),
        source_stream=np.where(no_event, -1, syncs.source_stream),
        record_correlation=np.where(no_event, -1, syncs.record_correlation),
    )
    return replace(trace, syncs=kept)


def window_of(program: list[Act], copy: int, order: set[tuple[int, int]], most: int) -> tuple[int, int]:
    """Return how many kernels before and after a copy are ordered neither way, of each stream at most `most`."""
    sides = [0, 0]
    for stream in {*STREAMS} - {program[copy].stream}:
        kernels = [at for at, act in enumerate(program) if act.what == "kernel" and act.stream == stream]
        sides[0] += min(most, sum(at < copy and (at, copy) not in order for at in kernels))
        sides[1] += min(most, sum(at > copy and (copy, at) not in order for at in kernels))
    return sides[0], sides[1]


@many
@given(st.lists(ACTS, max_size=14), st.integers(1, 3), st.data())
def test_the_certain_window_lies_in_the_true_one_whatever_unknown_waits_are_for(
    program: list[Act], most: int, data: st.DataObject
) -> None:
    around = [Act("kernel", stream) for stream in (7, 13)] * 3  # So that the recording's ends cut few windows.
    program = [*around, *program, Act("upload", 17), *program, *around]
    trace = trace_of_program(program, [10**6 + 10 * place for place in range(len(program))])
    waits = waits_in(program)
    silent = {at: data.draw(st.sampled_from(("event", "stream"))) for at in waits if data.draw(st.booleans())}
    silent = dict([*silent.items()][:2])
    blind, ops = silenced(trace, silent), trace.gpu_ops
    copies = np.flatnonzero(ops.is_copy)
    windows = find_windows(blind, copies, {(0, stream): most for stream in STREAMS})
    acts = (trace.runtime_calls.start_ns[ops.launch[copies]] // 100).tolist()
    possible = [
        [
            (stream, record)
            for stream in (STREAMS if silent[at] == "stream" else (program[at].stream,))
            for record in (None, *(place for place in range(at) if program[place].what == "record"))
        ]
        for at in silent
    ]
    for choice in product(*possible):
        order = brute_force(program, meant=dict(zip(silent, choice, strict=True)))
        for row, copy in enumerate(acts):
            before, after = window_of(program, copy, order, most)
            assert windows.least[row] <= before + after <= windows.most[row]
            if not silent and windows.closed[row]:
                assert before + after == windows.least[row] == windows.most[row]


@pytest.mark.parametrize("waits", [2, 40])
def test_silent_waits_hold_nothing_twice(waits: int) -> None:
    def held(waits: int) -> list[list[int]]:
        launches = [Act("kernel", stream) for stream in range(1, 21)]
        program = [*launches, Act("record", 1), *[Act("wait", 1)] * waits, *launches]
        trace = trace_of_program(program, [10**6 + 10 * place for place in range(len(program))])
        none = np.full(len(trace.syncs), -1)
        silent = replace(trace.syncs, stream=none, source_stream=none, record_correlation=none)
        streams = find_holds(replace(trace, syncs=silent), Reading.STRICTEST).streams
        return [streams.first.tolist(), streams.then.tolist()]

    assert len(held(1)[0]) == 20 * 19 and held(waits) == held(1)


def pairs_in_replay(trace: Trace) -> set[tuple[int, int]]:
    """Return the pairs of ops that the graph of a replay puts one after the other, whatever time each takes."""
    graph = build(trace, Constants())
    items, calls, after = graph.items, graph.calls, defaultdict[str, set[str]](set)
    for row in range(len(items)):
        after[f"begin {row}"].add(f"end {row}")
        after[f"{'return' if items.after_call[row] else 'call'} {items.call[row]}"].add(f"begin {row}")
    for row in range(len(calls)):
        after[f"call {row}"].add(f"return {row}")
    for ends, begins, rows in (("end", "begin", rows_by(items.lane)), ("return", "call", graph.by_thread())):
        for _, chain in rows:
            for first, then in pairwise(chain.tolist()):
                after[f"{ends} {first}"].add(f"{begins} {then}")
    for first, then in zip(graph.orders.first.tolist(), graph.orders.then.tolist(), strict=True):
        after[f"end {first}"].add(f"begin {then}")
    for call, item in zip(graph.waits.call.tolist(), graph.waits.item.tolist(), strict=True):
        after[f"end {item}"].add(f"return {call}")
    act = (calls.start_ns[items.call] // 100).tolist()
    return {
        (act[first], act[then])
        for first in range(len(items))
        for then in range(len(items))
        if f"begin {then}" in reached(after, f"end {first}")
    }


@many
@given(PROGRAMS)
def test_a_replay_keeps_the_order_of_every_path_and_no_other(program: list[Act]) -> None:
    trace = trace_of_program(program, [100 * place + 2 for place in range(len(program))])
    if len(trace.gpu_ops):
        assert pairs_in_replay(trace) == brute_force(program)


@many
@given(st.lists(ACTS_ON_DEVICE, max_size=24))
def test_edges_and_streams_make_up_the_order_if_the_host_never_waits(program: list[Act]) -> None:
    trace = trace_of_program(program, [100 * place + 2 for place in range(len(program))])
    if not len(trace.gpu_ops):
        return
    edges, after = find_edges(trace, build_timeline(trace, 0)), defaultdict[str, set[str]](set)
    act = (trace.runtime_calls.start_ns[trace.gpu_ops.launch] // 100).tolist()
    for first, then in zip(edges.source.tolist(), edges.held.tolist(), strict=True):
        after[str(act[first])].add(str(act[then]))
    for stream in STREAMS:
        chain = [place for place, act in enumerate(program) if launches(act) and act.stream == stream]
        for first, then in pairwise(chain):
            after[str(first)].add(str(then))
    assert {(first, int(then)) for first in act for then in reached(after, str(first))} == brute_force(program)


@pytest.mark.parametrize("path", [*tried(recordings()), TRACES / "recorder/overlapscope.trace.json.gz"], ids=str)
def test_the_replay_waits_for_nothing_stated_that_is_not_in_this_order(path: Path) -> None:
    trace = trace_of(path)
    if not (trace.gpu_ops.launch >= 0).any():
        return
    graph, order = build(trace, Constants()), stated_order(trace)
    op_of_item = dict(zip(graph.item_of_op.tolist(), range(len(trace.gpu_ops)), strict=True))
    events = graph.orders.take((graph.orders.why == OrderReason.EVENT) & (graph.orders.confidence == EXACT))
    for first, then in zip(events.first.tolist(), events.then.tolist(), strict=True):
        rows = [int(order.item_of_op[op_of_item[item]]) for item in (first, then)]
        places = [(int(order.items.lane[row]), int(order.items.place[row])) for row in rows]
        assert order.cause(*places) is not None


def ends_and_begins(order: HappensBefore, trace: Trace) -> tuple[I64, I64]:
    """Return when each item began, and when it had ended with all before it on its lane."""
    ops, rows = trace.gpu_ops, len(order.items)
    begins_ns, ends_ns = np.full(rows, 2**62), np.zeros(rows, np.int64)
    np.minimum.at(begins_ns, order.item_of_op, ops.start_ns)
    np.maximum.at(ends_ns, order.item_of_op, ops.end_ns)
    for lane in range(len(order.streams)):
        of_lane = order.rows[lane]
        ends_ns[of_lane] = np.maximum.accumulate(ends_ns[of_lane])
    return begins_ns, ends_ns


@pytest.mark.parametrize("recording", tried(recordings()), ids=lambda path: path.name)
def test_the_order_of_a_recording_agrees_with_its_times(recording: Path) -> None:
    trace = trace_of(recording)
    order = stated_order(trace)
    begins_ns, ends_ns = ends_and_begins(order, trace)
    for lane in range(len(order.streams)):
        assert (np.diff(begins_ns[order.rows[lane]]) >= 0).all()
    for row, (lane, place) in enumerate(zip(order.items.lane.tolist(), order.items.place.tolist(), strict=True)):
        for other in range(len(order.streams)):
            ended = int(order.before(lane, np.array([place]), other)[0])
            if ended and other != lane:
                assert begins_ns[row] > ends_ns[order.rows[other][ended - 1]] - CLOCK_NS


def test_a_recording_without_ops_has_an_order_without_lanes() -> None:
    trace = make_trace(calls=[Host("cudaStreamSynchronize", 0, 10)])
    for order in (stated_order(trace), strictest_order(trace)):
        assert order.keys == () and order.host_clocks.shape == (len(order.blocks), 0)
