"""The timeline's lanes against references that look at each nanosecond, and on every bundled recording."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from overlapscope import timeline as lanes
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.event_waits import EXACT
from overlapscope.analysis.measured import figures_of
from overlapscope.analysis.results import Device
from overlapscope.analysis.timeline import lengths
from overlapscope.base.intervals import covered, union
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.timeline import CATEGORIES, Lanes, TimelineLane
from overlapscope.timeline.details import duration
from overlapscope.timeline.lane import Fill, idle_caused, row_of_call, row_of_gpu_op, rows_on
from overlapscope.timeline.view import MAX_OPS, MIN_NAMED_COLUMNS, MIN_OP_COLUMNS
from overlapscope.trace.calls import records_event, waits_event
from overlapscope.trace.model import Kind, Trace
from tests.core.analysis.test_sums import CALLS, check_figures, gpu_ops, host_events, steps, waits
from tests.support.helpers import TRACES, Host, Op, Wait, make_trace, various
from tests.support.recordings import analysis_of, trace_of

RECORDINGS = various()


class DecodedLane(NamedTuple):
    """One lane of a view, read back."""

    fill: dict[str, list[int]]
    start: list[float]
    length: list[float]
    row: list[int]
    name: list[str | None]
    category: list[str]


def read(data: bytes) -> tuple[dict[str, Any], dict[int, DecodedLane]]:
    """Return a view's header and its lanes by id, as a browser reads them."""
    size = int.from_bytes(data[:4], "little")
    assert size % 4 == 0
    header = json.loads(data[4 : 4 + size])
    payload = data[4 + size :]

    def column(at: int, count: int, kind: str) -> tuple[list[Any], int]:
        assert at % 4 == 0
        values: NDArray[Any] = np.frombuffer(payload, kind, count, at)
        return values.tolist(), at + -(-values.nbytes // 4) * 4

    by_lane = {}
    for lane in header["lanes"]:
        fill = {CATEGORIES[item["category"]]: column(item["at"], header["columns"], "u1")[0] for item in lane["fill"]}
        at, count = lane["ops"]["at"], lane["ops"]["count"]
        columns = []
        for kind in ("<f4", "<f4", "<u4", "<i4", "u1"):
            values, at = column(at, count, kind)
            columns.append(values)
        start, length, row, name, category = columns
        by_lane[lane["lane"]] = DecodedLane(
            fill,
            start,
            length,
            row,
            [None if item < 0 else header["names"][item] for item in name],
            [CATEGORIES[item] for item in category],
        )
    return header, by_lane


def built(trace: Trace) -> Lanes:
    return lanes.build(analyze_trace(trace))


def ops_of(lane: TimelineLane) -> list[tuple[int, int, str, str]]:
    """Return the lane's ops: start, end, category and name."""
    return [
        (int(lane.start_ns[row]), int(lane.end_ns[row]), CATEGORIES[lane.category[row]], lane.name(row))
        for row in range(len(lane))
    ]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Small traces with everything in them, at small or absolute times, negative ones too."""
    shift = draw(st.sampled_from((0, -500, 1_795_232_764_074_821_278)))

    def moved(event: Any) -> Any:
        if isinstance(event, Wait):
            return event._replace(at=event.at + shift)
        if isinstance(event, Op) and event.launch is not None:
            event = event._replace(launch=(event.launch[0] + shift, event.launch[1] + shift))
        return event._replace(start=event.start + shift, end=event.end + shift)

    ops = [op._replace(device=draw(st.sampled_from((0, 0, 1)))) for op in draw(gpu_ops())]
    notes = draw(steps) + draw(host_events("forward", "enumerate(DataLoader)#_Iter.__next__"))
    return make_trace(
        map(moved, ops),
        calls=map(moved, draw(host_events(*CALLS))),
        waits=map(moved, draw(waits)),
        cpu_ops=map(moved, draw(host_events("aten::mm", "aten::pin_memory"))),
        annotations=map(moved, notes),
        overheads=map(moved, draw(host_events("Activity Buffer Request"))),
    )


views = st.tuples(st.integers(-40, 120), st.integers(1, 150), st.integers(1, 60))


@given(traces(), views)
def test_every_column_says_exactly_how_full_it_is(trace: Trace, asked: tuple[int, int, int]) -> None:
    start, span, columns = asked
    drawn = built(trace)
    header, drawn_lanes = read(lanes.view(drawn, start, start + span, columns, range(len(drawn.lanes))))
    assert (header["start"], header["end"], header["columns"]) == (start, start + span, columns)
    for lane in drawn.lanes:
        running: dict[str, set[int]] = {}
        for begin, end, category, _ in ops_of(lane):
            running.setdefault(category, set()).update(range(begin, end))
        expected = {}
        for category, instants in running.items():
            shares = []
            for k in range(columns):
                first, last = start + span * k // columns, start + span * (k + 1) // columns
                column = range(first, max(last, first + 1))
                ran = sum(t in instants for t in column)
                shares.append(255 if ran == len(column) else -(-254 * ran // len(column)))
            if any(shares):
                expected[category] = shares
        assert drawn_lanes[lane.id].fill == expected


@given(traces(), views)
def test_every_op_wide_enough_is_drawn_by_itself(trace: Trace, asked: tuple[int, int, int]) -> None:
    start, span, columns = asked
    end = start + span
    drawn = built(trace)
    _, drawn_lanes = read(lanes.view(drawn, start, end, columns, range(len(drawn.lanes))))
    for lane in drawn.lanes:
        view, ops = drawn_lanes[lane.id], ops_of(lane)
        wide = [
            row
            for row, (begin, stop, _, _) in enumerate(ops)
            if (stop - begin) * columns >= MIN_OP_COLUMNS * span and begin < end and stop > start
        ]
        assert view.row == wide
        for place, row in enumerate(wide):
            begin, stop, category, name = ops[row]
            left, right = max(begin - start, -span), min(stop - start, 2 * span)
            assert (view.start[place], view.length[place]) == (left, right - left)
            assert view.category[place] == category
            assert view.name[place] == (name if (stop - begin) * columns >= MIN_NAMED_COLUMNS * span else None)


@given(traces())
def test_the_overlap_lane_divides_the_window_as_the_report_does(trace: Trace) -> None:
    analysis = analyze_trace(trace)
    drawn = lanes.build(analysis)
    overlaps = {lane.device: lane for lane in drawn.lanes if lane.kind == "overlap"}
    for device in analysis.result.devices:
        check_partition(drawn, overlaps[device.device], device, analysis)


def check_partition(drawn: Lanes, lane: TimelineLane, device: Device, analysis: TraceAnalysis) -> None:
    bounds = [device.window.start_ns - drawn.origin_ns, *lane.end_ns.tolist()]
    assert lane.start_ns.tolist() == bounds[:-1]
    assert bounds[-1] == device.window.end_ns - drawn.origin_ns or not len(lane)
    length: Counter[str] = Counter()
    for begin, end, category, _ in ops_of(lane):
        assert begin < end
        length[category] += end - begin
    b, o = device.buckets, device.overlap
    (timeline,) = [device_analysis.timeline for device_analysis in analysis.devices if device_analysis.result is device]
    ops = timeline.ops
    at = np.arange(timeline.start_ns, timeline.end_ns) if device.span_ns < 1_000 else None
    assert length["compute"] + length["hidden-copy"] + length["exposed-comm"] == b.compute_ns + b.exposed_comm_ns
    assert length["hidden-copy"] == o.hidden_copy_ns
    assert length["exposed-other"] == b.exposed_other_ns
    for copy_cause in COPY_CAUSES:
        assert length[f"exposed-copy:{copy_cause}"] == device.exposed_copy_by_cause[copy_cause]
    for idle_cause in IDLE_CAUSES:
        assert length[f"idle:{idle_cause}"] == device.idle_by_cause[idle_cause]
    assert sum(length.values()) == device.span_ns
    if at is not None:
        runs = {kind: np.zeros(len(at), np.bool_) for kind in Kind}
        for kind, begin, end in zip(ops.kind.tolist(), ops.start_ns.tolist(), ops.end_ns.tolist(), strict=True):
            runs[Kind(kind)] |= (at >= begin) & (at < end)
        copies = runs[Kind.H2D] | runs[Kind.D2H]
        assert length["compute"] == int((runs[Kind.COMPUTE] & ~copies).sum())
        assert length["exposed-comm"] == int((runs[Kind.COMM] & ~runs[Kind.COMPUTE] & ~copies).sum())


@given(traces(), st.integers(-40, 120), st.integers(0, 30))
def test_pointing_finds_the_shortest_op_around_the_middle(trace: Trace, start: int, span: int) -> None:
    drawn = built(trace)
    end = max(start + span, start + 1)
    middle = (start + end) // 2
    for lane in drawn.lanes:
        spans = [(begin, max(stop, begin + 1)) for begin, stop, _, _ in ops_of(lane)]
        around = [stop - begin for begin, stop in spans if begin <= middle < stop]
        row = lanes.nearest_op(drawn, lane.id, start, start + span)
        if around:
            assert row is not None
            begin, stop = spans[row]
            assert begin <= middle < stop
            assert stop - begin == min(around)
        elif row is not None:
            assert spans[row][0] < end and spans[row][1] > start
        else:
            # If ops run in order, an op that touches the span is found.
            in_order = all(a[1] <= b[0] for a, b in pairwise(spans))
            assert not in_order or not any(begin < end and stop > start for begin, stop in spans)


@given(traces(), st.sampled_from(("op", "CUDA", "aten::", "idle", "e", "no such name")), st.integers(-40, 120))
def test_search_steps_through_all_matches_in_the_order_of_time(trace: Trace, text: str, after: int) -> None:
    drawn = built(trace)
    expected = sorted(
        (begin, lane.id, row)
        for lane in drawn.lanes
        for row, (begin, _, _, name) in enumerate(ops_of(lane))
        if text.lower() in name.lower()
    )
    following, preceding = (lanes.search(drawn, text, after, direction) for direction in (1, -1))
    assert following["count"] == preceding["count"] == len(expected)
    if not expected:
        assert following == preceding == {"count": 0, "number": 0, "match": None}
        return
    first = next((i for i, match in enumerate(expected) if match[0] > after), 0)
    last = next((i for i in reversed(range(len(expected))) if expected[i][0] < after), len(expected) - 1)
    for function, place in ((following, first), (preceding, last)):
        assert function["number"] == place + 1
        assert (function["match"]["start"], function["match"]["lane"], function["match"]["row"]) == expected[place]
        assert text.lower() in function["match"]["title"].lower()


@given(traces(), st.sampled_from(("op", "CUDA", "idle", "e")), st.data())
def test_search_goes_on_from_any_op_to_every_match(trace: Trace, text: str, data: st.DataObject) -> None:
    drawn = built(trace)
    every = sorted((int(begin), lane.id, row) for lane in drawn.lanes for row, begin in enumerate(lane.start_ns))
    expected = [row for row in every if text.lower() in drawn.lanes[row[1]].name(row[2]).lower()]
    if not every:
        return
    here = data.draw(st.sampled_from(every))
    first = next((i for i, end in enumerate(expected) if end > here), 0)
    last = next((i for i in reversed(range(len(expected))) if expected[i] < here), len(expected) - 1)
    for direction, begin in ((1, first), (-1, last)):
        after = lanes.LaneRow(*here[1:])
        for step in range(len(expected)):
            number = (begin + direction * step) % len(expected)
            matches = lanes.search(drawn, text, after, direction)
            match = matches["match"]
            assert (match["start"], match["lane"], match["row"]) == expected[number]
            assert (matches["number"], matches["count"]) == (number + 1, len(expected))
            after = lanes.LaneRow(match["lane"], match["row"])


@given(gpu_ops(), host_events(*CALLS), steps, st.integers(0, 80), st.integers(0, 80))
def test_figures_of_any_span(ops: list[Op], calls: list[Host], notes: list[Host], a: int, b: int) -> None:
    drawn = built(make_trace(ops, calls=calls, annotations=notes))
    start, end = min(op.start for op in ops), max(op.end for op in ops)
    figures = lanes.span(drawn, 0, min(a, b) - drawn.origin_ns, max(a, b) - drawn.origin_ns)
    low, high = max(min(a, b), start), min(max(a, b), end)
    check_figures(figures, ops, range(low, max(low, high)))


@given(traces())
def test_everything_can_be_asked_of_every_op(trace: Trace) -> None:
    drawn = built(trace)
    for lane in drawn.lanes:
        for row, (begin, end, category, name) in enumerate(ops_of(lane)):
            op = lanes.op(drawn, lane.id, row)
            assert (op["lane"], op["row"], op["start"], op["end"]) == (lane.id, row, begin, end)
            assert (op["category"], op["title"]) == (category, name)
            check_arrows(drawn, op)
            if lane.kind == "stream" and category.startswith(("h2d", "d2h")):
                (analysis,) = [device for device in drawn.analysis.devices if device.result.device == lane.device]
                exposed = {t for s, e in zip(*analysis.timeline.exposed_copy, strict=True) for t in range(s, e)}
                mine = range(begin + drawn.origin_ns, end + drawn.origin_ns)
                assert sum(op.get("causes", {}).values()) == sum(t in exposed for t in mine)
    for kind in lanes.SUBJECTS:
        check_ranking(drawn, kind)


def check_arrows(drawn: Lanes, facts: dict[str, Any]) -> None:
    """Each end of an arrow is at an op.

    A launch's arrow joins a call and an op that it launched; an event wait's joins two ops, or the calls that
    recorded the event and waited for it.
    """
    calls = drawn.analysis.trace.runtime_calls
    for arrow in facts["arrows"]:
        source, target = (drawn.lanes[arrow[end]["lane"]] for end in ("from", "to"))
        begin, end = arrow["from"]["row"], arrow["to"]["row"]
        assert arrow["to"]["at"] == target.start_ns[end]
        assert arrow["confidence"] in ("exact", "rebuilt")
        if arrow["kind"] == "wait" and source.kind == "stream":
            assert target.kind == "stream"
            assert arrow["from"]["at"] == source.end_ns[begin] <= arrow["to"]["at"]
            continue
        assert CATEGORIES[source.category[begin]] in ("blocking-call", "runtime-call")
        assert arrow["from"]["at"] == source.start_ns[begin]
        if arrow["kind"] == "launch":
            assert target.kind == "stream"
            ops = drawn.analysis.trace.gpu_ops
            assert ops.launch[target.source[end]] == source.source[begin]
        else:
            assert CATEGORIES[target.category[end]] == "runtime-call"
            assert records_event(calls)[source.source[begin]]
            assert waits_event(calls)[target.source[end]]
            assert arrow["from"]["at"] <= arrow["to"]["at"]


def check_ranking(drawn: Lanes, kind: lanes.Subject) -> None:
    count = lanes.worst(drawn, kind, 0)["ranked"]
    matches = [lanes.worst(drawn, kind, number)["match"] for number in range(count)]
    assert lanes.worst(drawn, kind, count)["match"] is None
    for match in matches:
        lane = drawn.lanes[match["lane"]]
        begin, end = int(lane.start_ns[match["row"]]), int(lane.end_ns[match["row"]])
        if kind == "stall":
            assert (begin, end) == (match["start"], match["end"])
        else:
            assert begin < match["end"] and end > match["start"]
    if kind == "stall":
        return
    lengths = [match["end"] - match["start"] for match in matches]
    assert lengths == sorted(lengths, reverse=True)
    lost, left_out = 0, 0
    for device in drawn.analysis.result.devices:
        causes = device.exposed_copy_by_cause if kind == "exposed-copy" else device.idle_by_cause
        lost, left_out = lost + sum(causes.values()), left_out + causes["lead-in"]
    assert sum(lengths) == lost - left_out


def test_the_launching_thread_has_a_lane_of_its_innermost_lines_of_the_users_code() -> None:
    frames = (
        Host("train.py(1): main", -50, 900),
        Host("train.py(10): step", 100, 500),
        Host("torch/nn/modules/module.py(1775): _call_impl", 150, 400),
        Host("train.py(20): forward", 200, 300),
        Host("copy.py(128): deepcopy", 400, 450),
        Host("train.py(1): main", 0, 100, thread=2),
    )
    steps = [Host("ProfilerStep#1", 0, 800)]
    drawn = lanes.build(
        analyze_trace(
            make_trace([Op(Kind.COMPUTE, 300, 400, launch=(210, 220))], annotations=steps, python_frames=frames)
        )
    )
    (lane,) = [lane for lane in drawn.lanes if lane.label == "Python lines"]
    assert [(lane.name(row), int(lane.start_ns[row]), int(lane.end_ns[row])) for row in range(len(lane))] == [
        ("train.py(1): main", 0, 100),
        ("train.py(10): step", 100, 200),
        ("train.py(20): forward", 200, 300),
        ("train.py(10): step", 300, 500),
        ("train.py(1): main", 500, 800),
    ]
    details = lanes.op(drawn, lane.id, 2)
    assert (details["category"], details["title"]) == ("python-line", "train.py(20): forward")
    assert ["launched", "op, 100 ns"] in details["facts"]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_recordings_can_be_drawn(path: Path) -> None:
    analysis = analysis_of(path)
    drawn = lanes.build(analysis)
    model = lanes.model(drawn)
    assert json.loads(json.dumps(model)) == model
    assert [lane["id"] for lane in model["lanes"]] == list(range(len(drawn.lanes)))
    trace = analysis.trace
    events = (trace.gpu_ops, trace.runtime_calls, trace.cpu_ops, trace.annotations, trace.overheads)
    of_events = (lane for lane in drawn.lanes if lane.kind in ("stream", "host") and lane.label != "Python lines")
    assert sum(map(len, of_events)) == sum(map(len, events))

    middle = (drawn.start_ns + drawn.end_ns) // 2
    for start, end in ((0, drawn.end_ns), (middle, middle + 20_000), (-1_000, 10), (drawn.end_ns, drawn.end_ns + 1)):
        _, views = read(lanes.view(drawn, start, end, 700, range(len(drawn.lanes))))
        for lane in drawn.lanes:
            assert len(views[lane.id].row) <= MAX_OPS
            check_fill(lane, views[lane.id], start, end)

    for device in analysis.result.devices:
        (overlap,) = [lane for lane in drawn.lanes if lane.kind == "overlap" and lane.device == device.device]
        check_partition(drawn, overlap, device, analysis)
    for facts in some_of_each_lane(drawn):
        check_arrows(drawn, facts)
        assert all(isinstance(text, str) for fact in facts["facts"] for text in fact)


def check_fill(lane: TimelineLane, drawn_lane: DecodedLane, start: int, end: int) -> None:
    """Against the interval algebra, which knows neither grids nor prefix sums."""
    cuts = np.array([start + (end - start) * k // 700 for k in range(701)])
    last = np.maximum(cuts[1:], cuts[:-1] + 1)
    expected = {}
    for category in np.unique(lane.category).tolist():
        mine = lane.category == category
        ran = covered(union(lane.start_ns[mine], lane.end_ns[mine]), cuts[:-1], last)
        if ran.any():
            share = np.where(ran == last - cuts[:-1], 255, -(-254 * ran // (last - cuts[:-1])))
            expected[CATEGORIES[category]] = share.tolist()
    assert drawn_lane.fill == expected


def some_of_each_lane(drawn: Lanes) -> Iterator[dict[str, Any]]:
    for lane in drawn.lanes:
        for row in {0, len(lane) // 2, len(lane) - 1}:
            yield lanes.op(drawn, lane.id, row)


@pytest.mark.parametrize("name", ["gpt2_train", "pipeline_3stream", "ddp/rank0", "known_causes/event_wait"])
def test_a_steps_span_has_the_figures_of_the_step(name: str) -> None:
    trace = trace_of(TRACES / f"{name}.json.gz")
    analysis = analyze_trace(trace)
    drawn = lanes.build(analysis)
    (device,) = analysis.result.devices
    for period in (*device.steps, *device.ranges[:20]):
        window = period.window
        figures = lanes.span(drawn, 0, window.start_ns - drawn.origin_ns, window.end_ns - drawn.origin_ns)
        assert (figures.buckets, figures.engines, figures.overlap) == (period.buckets, period.engines, period.overlap)
        assert figures.exposed_copy_by_cause == period.exposed_copy_by_cause
        assert figures.idle_by_cause == period.idle_by_cause
    step = device.steps[-1]
    (narrowed,) = analyze_trace(trace, step=step.name).result.devices
    figures = lanes.span(drawn, 0, step.window.start_ns - drawn.origin_ns, step.window.end_ns - drawn.origin_ns)
    assert (figures.buckets, figures.overlap) == (narrowed.buckets, narrowed.overlap)
    whole = lanes.span(drawn, 0, -(1 << 50), 1 << 50)
    assert (whole.buckets, whole.overlap, whole.span_ns) == (device.buckets, device.overlap, device.span_ns)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_spans_figures_are_those_of_the_interval_algebra(path: Path) -> None:
    drawn = lanes.build(analysis_of(path))
    random = np.random.default_rng(0)
    for device_analysis in drawn.analysis.devices:
        t, device = device_analysis.timeline, device_analysis.result.device
        bounds = np.sort(random.integers(t.start_ns, t.end_ns, (20, 2)), axis=1)
        bounds[0] = t.start_ns, t.end_ns
        parts = lengths(t, bounds[:, 0], bounds[:, 1])
        for number, (start, end) in enumerate(bounds.tolist()):
            figures = lanes.span(drawn, device, start - drawn.origin_ns, end - drawn.origin_ns)
            expected = figures_of({name: int(values[number]) for name, values in parts.items()})
            assert {"buckets": figures.buckets, "engines": figures.engines, "overlap": figures.overlap} == expected
            assert (figures.window.start_ns, figures.window.end_ns, figures.span_ns) == (start, end, end - start)
            for pieces, names, by_cause in (
                (device_analysis.exposed, COPY_CAUSES, figures.exposed_copy_by_cause),
                (device_analysis.idle, IDLE_CAUSES, figures.idle_by_cause),
            ):
                for cause, name in enumerate(names):
                    mine = pieces.cause == cause
                    inside = covered(union(pieces.start_ns[mine], pieces.end_ns[mine]), [start], [end])
                    assert by_cause[name] == inside[0]


@pytest.mark.parametrize("name", ["known_causes/host_sync", "known_causes/allocation", "ddp/rank0"])
def test_stalls_cost_what_the_report_says(name: str) -> None:
    drawn = built(trace_of(TRACES / f"{name}.json.gz"))
    (device,) = drawn.analysis.result.devices
    costs: Counter[str] = Counter()
    previous = None
    for number in range(lanes.worst(drawn, "stall", 0)["ranked"]):
        match = lanes.worst(drawn, "stall", number)["match"]
        op = lanes.op(drawn, match["lane"], match["row"])
        assert op["category"] == "blocking-call"
        cost = idle_caused(drawn)[drawn.lanes[match["lane"]].source[match["row"]]]
        assert ["idle caused", duration(cost)] in op["facts"]
        assert previous is None or cost <= previous
        costs[op["title"]] += cost
        previous = cost
    expected: Counter[str] = Counter()
    for stall in device.host_stalls:
        expected[stall.call] += stall.idle_caused_ns
    assert +costs == +expected
    assert costs.total() > 0


def test_what_is_known_of_a_copy() -> None:
    drawn = built(trace_of(TRACES / "known_causes" / "item_every_step_stacks.json.gz"))
    match = lanes.worst(drawn, "exposed-copy", 0)["match"]
    op = lanes.op(drawn, match["lane"], match["row"])
    facts = dict(op["facts"])
    assert op["title"] == "Memcpy DtoH (Device -> Pinned)"
    assert facts["bytes"] == "4 B"
    assert facts["bandwidth"].endswith(" GB/s")
    assert facts["memory"] == "device to pinned"
    assert facts["launched by"].startswith("cudaMemcpyAsync on thread ")
    assert facts["CPU op"] == "aten::_local_scalar_dense"
    assert facts["line"] == "known_causes.py:272 in step"
    assert facts["exposed"].endswith("(100%)")
    assert op["causes"] == {"same-stream": op["end"] - op["start"]}
    assert [arrow["kind"] for arrow in op["arrows"]] == ["launch"]


def test_what_an_op_waited_for_is_drawn() -> None:
    drawn = built(trace_of(TRACES / "known_causes" / "event_wait.json.gz"))
    match = lanes.worst(drawn, "exposed-copy", 0)["match"]
    op = lanes.op(drawn, match["lane"], match["row"])
    waits = [arrow for arrow in op["arrows"] if arrow["kind"] == "wait"]
    assert {arrow["to"]["at"] for arrow in waits} >= {op["start"]}
    assert {arrow["from"]["at"] for arrow in waits} >= {op["end"]}
    check_arrows(drawn, op)


@given(traces())
def test_an_edge_knows_its_calls(trace: Trace) -> None:
    analysis = analyze_trace(trace)
    for device in analysis.devices:
        check_calls_of_edges(analysis, device)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_the_edges_of_recordings_know_their_calls(path: Path) -> None:
    analysis = analysis_of(path)
    for device in analysis.devices:
        check_calls_of_edges(analysis, device)


def launched_in_a_collective(trace: Trace, call: int) -> bool:
    """Return whether a runtime call was made inside an op of a collective."""
    ops, calls = trace.cpu_ops, trace.runtime_calls
    inside = (ops.start_ns <= calls.start_ns[call]) & (calls.end_ns[call] <= ops.end_ns)
    return bool((inside & ops.named("record_param_comms".__eq__)).any())


def check_calls_of_edges(analysis: TraceAnalysis, device: DeviceAnalysis) -> None:
    """Check that an edge runs from the last op enqueued on its stream before the record call to the first op enqueued
    on the waiting stream after the wait call."""
    edges, ops, calls = device.edges, analysis.trace.gpu_ops, analysis.trace.runtime_calls
    assert (device.timeline.ops.end_ns[edges.source] == edges.source_end_ns)[edges.source >= 0].all()
    assert (ops.end_ns[edges.source_op] == edges.source_end_ns).all()
    assert ((edges.source >= 0) == (ops.device[edges.source_op] == device.result.device)).all()
    assert waits_event(calls)[edges.wait].all()
    assert records_event(calls)[edges.record[edges.record >= 0]].all()

    def given(op: int) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = (ops.device == ops.device[op]) & (ops.stream == ops.stream[op]) & (ops.launch >= 0)
        return same

    mine = np.flatnonzero(ops.device == device.result.device)
    for number in range(len(edges.held)):
        held, source = int(mine[edges.held[number]]), int(edges.source_op[number])
        # Calls that begin at once were made in the order of their rows.
        wait, record = edges.wait[number], edges.record[number]
        assert ops.launch[held] > wait
        assert not (given(held) & (ops.launch > wait) & (ops.launch < ops.launch[held])).any()
        if record >= 0:
            assert 0 <= ops.launch[source] < record < wait
            assert not (given(source) & (ops.launch < record) & (ops.launch > ops.launch[source])).any()
        if edges.confidence[number] == EXACT:
            (sync,) = np.flatnonzero(analysis.trace.syncs.correlation == calls.correlation[edges.wait[number]])
            named = analysis.trace.syncs.record_correlation[sync]
            if named < 0:  # NCCL's own events are known without it.
                assert launched_in_a_collective(analysis.trace, edges.wait[number])
            else:
                assert calls.correlation[edges.record[number]] == named


@pytest.mark.parametrize(
    ("name", "confidence"),
    [
        ("known_causes/event_wait", "rebuilt"),
        ("known_causes/event_wait_no_sync_events", "rebuilt"),
        ("laboratory/kv_offload/prefetch.trace", "exact"),
        ("mixed_workloads/model_on_two_devices", "rebuilt"),
    ],
)
def test_each_end_of_an_event_wait_shows_all_of_it(name: str, confidence: str) -> None:
    drawn = built(trace_of(TRACES / f"{name}.json.gz"))
    for device in drawn.analysis.devices:
        edges = device.edges
        for number in {0, len(edges.held) // 2, len(edges.held) - 1}:
            source = row_of_gpu_op(drawn, int(edges.source_op[number]))
            held = row_of_gpu_op(drawn, int(rows_on(drawn, device.result.device)[edges.held[number]]))
            record, wait = (row_of_call(drawn, int(calls[number])) for calls in (edges.record, edges.wait))
            streams = [drawn.lanes[place.lane].stream for place in (held, source)]
            for place in (source, held, record, wait):
                op = lanes.op(drawn, *place)
                check_arrows(drawn, op)
                drawn_there = {
                    ((a["from"]["lane"], a["from"]["row"]), (a["to"]["lane"], a["to"]["row"])): a["confidence"]
                    for a in op["arrows"]
                    if a["kind"] == "wait"
                }
                assert drawn_there[source, held] == drawn_there[record, wait] == confidence
            op = lanes.op(drawn, *wait)
            (event,) = [value for name, value in op["facts"] if name == "event"]
            assert re.search(rf"stream {streams[0]}( of device \d)? waits for stream {streams[1]}", event)
            assert confidence in event
            assert len(op["arrows"]) == 2


def test_a_record_call_that_is_not_known_is_not_drawn() -> None:
    drawn = built(trace_of(TRACES / "ddp" / "rank0.json.gz"))
    edges = drawn.analysis.devices[0].edges
    number = int(np.flatnonzero(edges.record < 0)[0])
    op = lanes.op(drawn, *row_of_call(drawn, int(edges.wait[number])))
    assert dict(op["facts"])["event"].endswith("; rebuilt, low confidence; its record call is not known")
    assert [arrow["kind"] for arrow in op["arrows"]] == ["wait"]


def test_an_op_of_a_device_that_is_not_shown_has_no_arrow() -> None:
    drawn = lanes.build(analyze_trace(trace_of(TRACES / "mixed_workloads" / "model_on_two_devices.json.gz"), device=0))
    edges = drawn.analysis.devices[0].edges
    op = lanes.op(drawn, *row_of_gpu_op(drawn, int(rows_on(drawn, 0)[edges.held[0]])))
    assert "of device 1" in dict(op["facts"])["event"]
    assert {drawn.lanes[arrow["from"]["lane"]].kind for arrow in op["arrows"]} == {"host"}


def test_a_wait_that_held_back_nothing_says_so() -> None:
    waits = [Wait(5, 9), Wait(20, 7)]
    ops = [Op(Kind.COMPUTE, 10, 15, stream=7, launch=(0, 1)), Op(Kind.H2D, 12, 15, stream=9, launch=(1, 2))]
    drawn = built(make_trace(ops, waits=waits))
    calls = drawn.analysis.trace.runtime_calls
    for row in np.flatnonzero(waits_event(calls)).tolist():
        op = lanes.op(drawn, *row_of_call(drawn, row))
        assert dict(op["facts"])["event"].endswith("waits, but no op is known to have been held back")
        assert op["arrows"] == []


def test_a_graph_launch_shows_some_of_its_ops() -> None:
    drawn = built(trace_of(TRACES / "known_causes" / "launch_bound_graph.json.gz"))
    match = lanes.search(drawn, "cudaGraphLaunch", -1, 1)["match"]
    op = lanes.op(drawn, match["lane"], match["row"])
    assert len(op["arrows"]) == 50
    assert dict(op["facts"])["launched"].startswith("300 GPU ops")


def test_of_too_many_ops_the_longest_are_drawn() -> None:
    ops = [Op(Kind.COMPUTE, 10 * i, 10 * i + (8 if i % 2 else 4)) for i in range(2 * MAX_OPS + 200)]
    drawn = built(make_trace(ops))
    (stream,) = [lane for lane in drawn.lanes if lane.kind == "stream"]
    _, views = read(lanes.view(drawn, 0, drawn.end_ns, drawn.end_ns, [stream.id]))
    assert len(views[stream.id].row) == MAX_OPS
    assert all(row % 2 for row in views[stream.id].row)


def test_a_lane_with_nothing_in_view_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [Op(Kind.COMPUTE, 100 * number, 100 * number + 90, stream=number) for number in range(400)]
    drawn, measured = built(make_trace(ops)), Counter[str]()
    before = Fill.before

    def counted(fill: Fill, at_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        measured["sets"] += 1
        return before(fill, at_ns)

    monkeypatch.setattr(Fill, "before", counted)
    for of in (1, 10):
        measured.clear()
        lanes.view(drawn, 0, drawn.end_ns // of, 1_000, [lane.id for lane in drawn.lanes if lane.kind == "stream"])
        assert measured["sets"] <= 400 // of + 1


def test_lanes_stand_in_the_order_of_their_use() -> None:
    ops = [
        Op(Kind.H2D, 0, 50, stream=9, launch=(0, 1), thread=5),
        Op(Kind.COMPUTE, 0, 40, stream=7, launch=(2, 3), thread=5),
        Op(Kind.COMM, 0, 10, stream=3, launch=(4, 5), thread=4),
        Op(Kind.COMPUTE, 0, 10, stream=7, device=1),
    ]
    notes = [Host("ProfilerStep#1", 0, 90, 5), Host("outer", 1, 80, 5), Host("inner", 1, 50, 5)]
    drawn = built(make_trace(ops, annotations=notes, calls=[Host("cudaMalloc", 0, 3, 8)]))
    assert [(lane.group, lane.label, lane.depth) for lane in drawn.lanes] == [
        ("device 0", "overlap", 0),
        ("device 0", "steps", 0),
        ("device 0", "ranges", 0),
        ("device 0", "ranges", 1),
        ("device 0", "stream 7 (main)", 0),
        ("device 0", "stream 9", 0),
        ("device 0", "stream 3", 0),
        ("device 1", "overlap", 0),
        ("device 1", "stream 7 (main)", 0),
        ("thread 5 (main)", "", 0),
        ("thread 5 (main)", "", 1),
        ("thread 5 (main)", "", 2),
        ("thread 5 (main)", "", 3),
        ("thread 4", "", 0),
        ("thread 8", "", 0),
    ]


def test_names_are_plain_text_whatever_they_hold() -> None:
    name = "<img src=x onerror=alert(1)>\x1b[31m"
    drawn = built(make_trace([Op(Kind.COMPUTE, 0, 100, launch=(0, 5), name=name)], cpu_ops=[Host(name, 0, 50)]))
    (stream,) = [lane for lane in drawn.lanes if lane.kind == "stream"]
    header, views = read(lanes.view(drawn, 0, 100, 100, [stream.id]))
    shown = "<img src=x onerror=alert(1)>\\x1b[31m"
    assert header["names"] == views[stream.id].name == [shown]
    op = lanes.op(drawn, stream.id, 0)
    assert op["title"] == dict(op["facts"])["CPU op"] == shown
    assert lanes.search(drawn, "ONERROR", -1, 1)["match"]["title"] == shown


@pytest.mark.parametrize(
    "trace",
    [
        make_trace(),
        make_trace(cpu_ops=[Host("aten::mm", -50, -20)], calls=[Host("cudaMalloc", -40, -30)]),
        make_trace([Op(Kind.H2D, 5, 5), Op(Kind.COMPUTE, 5, 5)]),
        make_trace([Op(Kind.COMPUTE, 10**15, 10**15 + 5, launch=(5, 6))], annotations=[Host("ProfilerStep#1", 0, 9)]),
    ],
    ids=["empty", "host only", "ops of no length", "clocks a week apart"],
)
def test_odd_traces_can_be_drawn(trace: Trace) -> None:
    drawn = built(trace)
    assert min((int(lane.start_ns.min()) for lane in drawn.lanes if len(lane)), default=0) == 0
    assert max((int(lane.end_ns.max()) for lane in drawn.lanes if len(lane)), default=0) == drawn.end_ns
    read(lanes.view(drawn, 0, max(drawn.end_ns, 1), 100, range(len(drawn.lanes))))
    for lane in drawn.lanes:
        for row in range(len(lane)):
            lanes.op(drawn, lane.id, row)
    for kind in lanes.SUBJECTS:
        lanes.worst(drawn, kind, 0)
    json.dumps(lanes.model(drawn))


def test_what_does_not_exist_is_an_error() -> None:
    drawn = built(make_trace([Op(Kind.COMPUTE, 0, 5)]))
    for lane, row in ((-1, 0), (99, 0), (0, -1), (0, 99)):
        with pytest.raises(KeyError):
            lanes.op(drawn, lane, row)
    with pytest.raises(KeyError):
        lanes.view(drawn, 0, 5, 10, [99])
    with pytest.raises(KeyError):
        lanes.span(drawn, 3, 0, 5)
    for place in (lanes.LaneRow(99, 0), lanes.LaneRow(0, 99)):
        with pytest.raises(KeyError):
            lanes.search(drawn, "op", place, 1)
    with pytest.raises(ValueError, match="at least"):
        lanes.view(drawn, 5, 5, 10, [0])
