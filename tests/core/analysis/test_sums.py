"""Every sum against a reference that looks at each nanosecond by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.figures import Period
from overlapscope.analysis.results import Device
from overlapscope.base.intervals import union
from overlapscope.catalog.causes import OTHER_CAUSES, OtherCause
from overlapscope.trace.model import Kind, Memory
from tests.support.helpers import Host, Op, Wait, make_trace

COPY = (Kind.H2D, Kind.D2H)
CALLS = ("cudaDeviceSynchronize", "cudaMalloc", "cudaEventRecord", "cudaHostAlloc", "cudaStreamSynchronize")


KIND_OF_NAME = {
    "Memcpy DtoD (Device -> Device)": OtherCause.DEVICE_COPY,
    "Migration HtoD (Managed -> Managed)": OtherCause.PAGE_MIGRATION,
    "Memset (Device)": OtherCause.MEMSET,
    "Memcpy <unknown> (Unknown -> Unknown)": OtherCause.UNKNOWN,
}


@st.composite
def gpu_ops(draw: st.DrawFn) -> list[Op]:
    ops = []
    for number in range(draw(st.integers(1, 14))):
        start = draw(st.integers(0, 60))
        launch = draw(st.none() | st.tuples(st.integers(-20, 60), st.integers(1, 6)))
        ops.append(
            Op(
                draw(st.sampled_from(Kind)),
                start,
                start + draw(st.integers(0, 12)),
                stream=draw(st.sampled_from((0, 7, 13))),
                launch=None if launch is None else (launch[0], sum(launch)),
                thread=draw(st.sampled_from((1, 2))),
                source=draw(st.sampled_from((Memory.PINNED, Memory.PAGEABLE, Memory.UNKNOWN))),
                size=draw(st.integers(-1, 100)),
                name=draw(st.sampled_from(tuple(KIND_OF_NAME))),
                correlation=draw(st.sampled_from((None, 5, 1500 + number))) if launch is None else None,
            )
        )
    if all(op.start == op.end for op in ops):
        ops[0] = ops[0]._replace(end=ops[0].start + 1)
    return ops


def host_events(*names: str) -> st.SearchStrategy[list[Host]]:
    event = st.builds(
        lambda name, start, length, thread: Host(name, start, start + length, thread),
        st.sampled_from(names),
        st.integers(-20, 70),
        st.integers(0, 30),
        st.sampled_from((1, 2)),
    )
    return st.lists(event, max_size=6)


steps = st.lists(st.integers(-20, 60), max_size=4, unique=True).map(
    lambda cuts: [
        Host(f"ProfilerStep#{i}", start, end)
        for i, (start, end) in enumerate(zip(sorted(cuts), sorted(cuts)[1:], strict=False))
    ]
)
waits = st.lists(
    st.tuples(st.integers(-20, 60), st.sampled_from((0, 7, 13)), st.booleans()).map(
        lambda drawn: Wait(drawn[0], drawn[1], recorded=drawn[2])
    ),
    max_size=4,
)


def running(ops: list[Op], *kinds: Kind) -> Callable[[int], bool]:
    return lambda t: any(op.kind in kinds and op.start <= t < op.end for op in ops)


def alone(ops: list[Op], causes: Sequence[OtherCause]) -> Callable[[int], bool]:
    def cause(op: Op) -> OtherCause | None:
        if op.kind == Kind.P2P:
            return OtherCause.PEER_COPY
        return KIND_OF_NAME[op.name] if op.kind == Kind.OTHER else None

    return lambda t: any(cause(op) in causes and op.start <= t < op.end for op in ops)


def check_figures(figures: Device | Period, ops: list[Op], window: range) -> None:
    compute, comm = running(ops, Kind.COMPUTE), running(ops, Kind.COMM)
    copy, other = running(ops, *COPY), running(ops, Kind.OTHER, Kind.P2P)
    h2d, d2h, p2p = running(ops, Kind.H2D), running(ops, Kind.D2H), running(ops, Kind.P2P)

    def count(predicate: Callable[[int], bool]) -> int:
        return sum(predicate(t) for t in window)

    b, e, o = figures.buckets, figures.engines, figures.overlap
    assert b.compute_ns == count(compute)
    assert b.exposed_comm_ns == count(lambda t: comm(t) and not compute(t))
    assert b.exposed_copy_ns == count(lambda t: copy(t) and not compute(t) and not comm(t))
    assert b.exposed_other_ns == count(lambda t: other(t) and not (compute(t) or comm(t) or copy(t)))
    assert b.idle_ns == count(lambda t: not (compute(t) or comm(t) or copy(t) or other(t)))
    assert figures.span_ns == len(window) == sum(getattr(b, f) for f in b.__struct_fields__)

    sm = count(lambda t: compute(t) or comm(t))
    assert (e.sm_ns, e.compute_ns, e.comm_ns) == (sm, count(compute), count(comm))
    assert (e.h2d_ns, e.d2h_ns, e.other_ns) == (count(h2d), count(d2h), count(other))
    assert o.copy_ns == count(copy)
    assert o.hidden_copy_ns == o.copy_ns - b.exposed_copy_ns
    assert o.p2p_ns == count(p2p)
    assert o.exposed_p2p_ns == count(lambda t: p2p(t) and not (compute(t) or comm(t)))
    assert o.h2d_d2h_ns == count(lambda t: h2d(t) and d2h(t))
    assert o.serial_ns == sm + count(h2d) + count(d2h)
    assert o.busy_ns == count(lambda t: compute(t) or comm(t) or copy(t))
    assert o.ideal_ns == max(sm, count(h2d), count(d2h))
    if o.serial_ns == o.ideal_ns:
        assert o.efficiency_pct is None
    else:
        assert o.efficiency_pct == 100 * (o.serial_ns - o.busy_ns) / (o.serial_ns - o.ideal_ns)
    assert (o.hidden_copy_pct is None) == (o.copy_ns == 0)
    assert (o.comm_compute_pct is None) == (e.comm_ns == 0)

    for number, cause in enumerate(OTHER_CAUSES):
        first, earlier = (alone(ops, which) for which in (OTHER_CAUSES[: number + 1], OTHER_CAUSES[:number]))
        busy = running(ops, Kind.COMPUTE, Kind.COMM, *COPY)
        expected = count(lambda t: first(t) and not earlier(t) and not busy(t))  # noqa: B023
        assert figures.exposed_other_by_cause[cause] == expected
    assert sum(figures.exposed_other_by_cause.values()) == b.exposed_other_ns
    assert sum(figures.exposed_comm_by_cause.values()) == b.exposed_comm_ns
    assert sum(figures.exposed_copy_by_cause.values()) == b.exposed_copy_ns
    assert sum(figures.idle_by_cause.values()) == b.idle_ns
    assert min(figures.exposed_copy_by_cause.values()) >= 0
    assert min(figures.idle_by_cause.values()) >= 0


def expected_steps(ops: list[Op], steps: list[Host], main: int, judged: int, end: int) -> list[range]:
    begins = []
    for step in steps:
        mine = [op for op in ops if op.launch and op.stream == main and step.start <= op.launch[0] < step.end]
        if mine:
            begins.append(min(op.start for op in mine))
    begins.sort()
    windows = [range(max(a, judged), b) for a, b in zip(begins, begins[1:] + [end], strict=False)]
    return [w for w in windows if len(w)]


@given(
    gpu_ops(),
    host_events(*CALLS),
    waits,
    host_events("aten::mm", "aten::pin_memory"),
    steps,
    host_events("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "forward"),
    host_events("Activity Buffer Request"),
)
def test_figures_of_window_and_steps(
    ops: list[Op],
    calls: list[Host],
    waits: list[Wait],
    cpu_ops: list[Host],
    steps: list[Host],
    notes: list[Host],
    overheads: list[Host],
) -> None:
    trace = make_trace(
        ops,
        calls=calls,
        waits=waits,
        cpu_ops=cpu_ops,
        annotations=steps + notes,
        overheads=overheads,
    )
    analysis = analyze_trace(trace)
    (device,) = analysis.result.devices
    start, end = min(op.start for op in ops), max(op.end for op in ops)
    check_figures(device, ops, range(start, end))

    judged = start + (device.lead_in_ns or 0)
    expected = expected_steps(ops, steps, device.main_stream, judged, end)
    assert [(s.window.start_ns, s.window.end_ns) for s in device.steps] == [(w.start, w.stop) for w in expected]
    for step, window in zip(device.steps, expected, strict=True):
        check_figures(step, ops, window)
    for part in device.ranges:
        check_figures(part, ops, range(part.window.start_ns, part.window.end_ns))

    # The stalls' cost is the idle time of the causes that blame a call.
    blamed = sum(device.idle_by_cause[c] for c in ("host-sync", "allocation", "host-staging"))
    charged = sum(stall.idle_caused_ns for stall in device.host_stalls)
    pins = any(event.name == "aten::pin_memory" for event in cpu_ops)
    assert charged == blamed or (pins and charged < blamed)
    assert sum(group.time_ns for group in device.copies if group.direction == "h2d") >= device.engines.h2d_ns
    assert all(0 <= group.exposed_ns <= group.time_ns for group in device.copies)

    lead_in = range(start, judged)
    in_lead_in = analysis.result.devices[0].idle_by_cause["lead-in"]
    everything = running(ops, *Kind)
    assert in_lead_in == sum(not everything(t) for t in lead_in)


@given(gpu_ops(), st.integers(-(2**61), 2**61))
@example([Op(Kind.COMM, 0, 20, stream=7), Op(Kind.COMPUTE, 30, 50, stream=13)], -1000)
def test_figures_do_not_depend_on_when_it_happened(ops: list[Op], shift: int) -> None:
    moved = [
        op._replace(
            start=op.start + shift,
            end=op.end + shift,
            launch=None if op.launch is None else (op.launch[0] + shift, op.launch[1] + shift),
        )
        for op in ops
    ]
    before, after = (analyze_trace(make_trace(o)).result.devices[0] for o in (ops, moved))
    assert (before.buckets, before.engines, before.overlap) == (after.buckets, after.engines, after.overlap)
    assert before.exposed_copy_by_cause == after.exposed_copy_by_cause
    assert before.exposed_comm_by_cause == after.exposed_comm_by_cause
    assert before.idle_by_cause == after.idle_by_cause
    assert before.copies == after.copies


def test_what_streams_did_is_found_for_any_number_of_them() -> None:
    ops = [
        Op(Kind.COMPUTE, 10 * number, 10 * number + 1 + number % 3, stream=number // 2, launch=(number, number + 1))
        for number in range(600)
    ]
    [device] = analyze_trace(make_trace(ops)).devices
    assert [use.stream for use in device.result.streams] == list(range(300))
    for use in device.result.streams:
        mine = [op for op in ops if op.stream == use.stream]
        assert (use.ops, use.compute_ns, use.h2d_ns) == (2, sum(op.end - op.start for op in mine), 0)


def test_idle_time_cut_in_the_middle_begins_as_much_later_on_the_host() -> None:
    ops = [Op(Kind.COMPUTE, 0, 10, launch=(0, 1)), Op(Kind.COMPUTE, 90_000, 90_010, launch=(89_000, 89_999))]
    [device] = analyze_trace(make_trace(ops)).devices
    begin, middle, end = device.idle.start_ns[0], 40_000, device.idle.end_ns[0]
    assert begin < middle < end
    [late] = device.idle.inside(union([middle], [end])).host_ns
    assert late - device.idle.host_ns[0] == middle - begin
