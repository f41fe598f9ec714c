"""Causes of exposed communication: a planted cause is found, and every instant has the one that brute force finds."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overlapscope as ov
from overlapscope.analysis import analyze_trace
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.event_waits import SURE_HANDOVER_NS
from overlapscope.analysis.exposed import PROMPT_NS, QUEUE_NS
from overlapscope.analysis.exposed_comm import find_compute, lead_ns, prefetch_depths
from overlapscope.analysis.idle import LAUNCH_LATENCY_NS
from overlapscope.base.intervals import union
from overlapscope.catalog.causes import COMM_CAUSES, CommCause
from overlapscope.reading.steps import with_names
from overlapscope.trace.model import Collectives, HostEvents, Kind
from tests.support.comm_programs import CALL_NS, COMM, MAIN, OTHER, PLANTED, HostAct, Played, play
from tests.support.helpers import MS, US, recordings, tried
from tests.support.recordings import analysis_of


def device_of(played: Played) -> DeviceAnalysis:
    (device,) = analyze_trace(played.trace).devices
    return device


@pytest.mark.parametrize("cause", PLANTED)
def test_the_planted_cause_is_found(cause: CommCause) -> None:
    device = device_of(play(PLANTED[cause]))
    by_cause = device.result.exposed_comm_by_cause
    exposed = device.result.buckets.exposed_comm_ns
    assert exposed > 500 * US
    assert by_cause[cause] > 0.9 * exposed
    assert sum(by_cause.values()) == exposed


@pytest.mark.parametrize(
    ("cause", "call", "waited_for"),
    [
        (CommCause.HOST_SYNC, "cudaStreamSynchronize", "first"),
        (CommCause.LATE_COMPUTE, "cudaLaunchKernel", None),
        (CommCause.BLOCKED_BEHIND, "cudaLaunchKernel", "ncclDevKernel_AllGather"),
        (CommCause.WAITING_FOR_INPUT, "cudaLaunchKernel", "upload"),
        (CommCause.NO_COMPUTE, "cudaLaunchKernel", "first"),
    ],
)
def test_evidence_names_the_call_and_the_op_that_was_waited_for(
    cause: CommCause, call: str, waited_for: str | None
) -> None:
    played = play(PLANTED[cause])
    first, *_ = (case for case in device_of(played).result.evidence if case.subject == "exposed-comm")
    assert (first.cause, first.call) == (cause, call)
    if cause != CommCause.HOST_SYNC:
        assert first.waited_for == waited_for


def test_a_late_launch_is_the_place_to_look_at() -> None:
    late = device_of(play(PLANTED[CommCause.LATE_ISSUE]))
    pieces, ops = late.exposed_comm, late.timeline.ops
    assert (pieces.call == ops.launch[pieces.op]).all()


def test_the_lead_is_the_time_from_its_end_to_the_first_compute_that_waits_for_it() -> None:
    program = [
        HostAct("compute", ns=500 * US),
        HostAct("comm", COMM, 100 * US),
        HostAct("record", COMM),
        HostAct("compute", ns=500 * US),
        HostAct("wait", MAIN),
        HostAct("compute", ns=500 * US),
    ]
    played = play(program)
    device = device_of(played)
    kernel, consumer = played.ops[1], played.ops[3]
    assert lead_ns(device.timeline.ops, device.comm).tolist() == [consumer.start - kernel.end]
    assert not len(device.exposed_comm)


def in_one_group(played: Played) -> Played:
    """Return the recording of a program whose collectives are all of one group, each launched in a range of PyTorch's.

    A wait for an event right before a launch is in its range.
    """
    trace = played.trace
    ops = trace.gpu_ops.take(trace.gpu_ops.kind == Kind.COMM)
    calls = trace.runtime_calls
    begins = calls.start_ns[ops.launch]
    begins = np.where(np.isin(begins - CALL_NS, trace.syncs.start_ns), begins - CALL_NS, begins)
    names = (*trace.names, "nccl:all_reduce")
    one, none = np.zeros(len(ops), np.int32), np.full(len(ops), -1, np.int32)
    wide = none.astype(np.int64)
    ranges = HostEvents(names, begins, calls.end_ns[ops.launch], one + len(trace.names), one, calls.thread[ops.launch])
    collectives = Collectives(
        names=names, start_ns=ops.start_ns, end_ns=ops.end_ns, name_id=ops.name_id, place=ops.place, device=ops.device,
        stream=ops.stream, correlation=ops.correlation, group=one, ranks=one, group_size=one + 2, elements_in=wide,
        elements_out=wide, dtype=none, sequence=wide, description=none, parts_in=none, parts_out=none,
    )  # fmt: skip
    renamed = with_names(trace, names)
    return played._replace(trace=msgspec.structs.replace(renamed, annotations=ranges, collectives=collectives))


BEHIND_ANOTHER = [
    HostAct("compute", ns=20 * US, name="first"),
    HostAct("comm", COMM, 3 * MS, name="ncclDevKernel_AllGather"),
    HostAct("record", COMM, event=1),
    HostAct("wait", OTHER, event=1),
    HostAct("comm", OTHER, MS),
]
"""Two collectives, one of which the communicator begins when the other has ended."""


@pytest.mark.parametrize("needed", [True, False])
def test_a_collective_blocks_another_one_of_its_communicator_only_if_compute_waits_for_that(needed: bool) -> None:
    acts = [HostAct("record", OTHER, event=2), HostAct("wait", MAIN, event=2), HostAct("compute", ns=MS)]
    device = device_of(in_one_group(play([*BEHIND_ANOTHER, *(acts if needed else [])])))
    blocked = device.result.exposed_comm_by_cause[CommCause.BLOCKED_BEHIND]
    assert blocked > 2900 * US if needed else blocked < 30 * US


def layers(depth: int, count: int = 5) -> list[HostAct]:
    """Return layers whose weights are gathered `depth` layers ahead of their compute."""

    def gather(layer: int) -> list[HostAct]:
        return [HostAct("comm", COMM, name="ncclDevKernel_AllGather"), HostAct("record", COMM, event=layer)]

    acts = [act for layer in range(depth) for act in gather(layer)]
    for layer in range(count):
        ahead = gather(layer + depth) if layer + depth < count else []
        unpacked = [HostAct("wait", MAIN, event=layer), HostAct("compute", MAIN, 100 * US, name="split_copy")]
        # As FSDP2 does: the next weights are gathered after these have come.
        acts += [*ahead, *unpacked] if depth == 0 else [*unpacked, *ahead]
        acts += [HostAct("compute"), HostAct("compute")]
    return acts


def depths_of(played: Played) -> list[int]:
    device = device_of(played)
    return [*map(int, prefetch_depths(device.timeline.ops, played.trace.runtime_calls, device.comm))]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_prefetch_depth_is_the_number_of_layers_between_launch_and_use(depth: int) -> None:
    played = play(layers(depth))
    assert depths_of(played) == [*range(depth), *[depth] * (5 - depth)]


def test_a_collective_that_no_compute_waits_for_has_no_prefetch_depth() -> None:
    gather = HostAct("comm", COMM, name="ncclDevKernel_AllGather")
    played = play([HostAct("compute"), gather, HostAct("compute")])
    assert depths_of(played) == [-1]


@pytest.mark.parametrize("path", tried(recordings()), ids=lambda path: path.stem)
def test_causes_add_up_in_every_recording(path: Path) -> None:
    for device in analysis_of(path).devices:
        pieces, timeline = device.exposed_comm, device.timeline
        exposed = timeline.exposed_comm
        for found, expected in zip(union(pieces.start_ns, pieces.end_ns), exposed, strict=True):
            assert found.tolist() == expected.tolist()
        assert (pieces.start_ns[1:] >= pieces.end_ns[:-1]).all()
        ops = timeline.ops
        assert (ops.kind[pieces.op] == Kind.COMM).all()
        assert ((ops.start_ns[pieces.op] <= pieces.start_ns) & (pieces.end_ns <= ops.end_ns[pieces.op])).all()
        for part in (device.result, device.result.per_step, *device.result.steps):
            if part is not None:
                assert sum(part.exposed_comm_by_cause.values()) == part.buckets.exposed_comm_ns


def test_the_finding_names_the_collective_its_cause_and_the_fix_for_it() -> None:
    (finding,) = (f for f in ov.analyze(play(PLANTED[CommCause.NO_COMPUTE]).trace).findings if f.rule == "exposed-comm")
    assert finding.title.endswith(": mostly ncclDevKernel_AllReduce_Sum_f32_RING_LL, no-compute")
    assert "Before it began, it waited mostly for first." in finding.detail
    assert "It began 1 time after an op that it waited for." in finding.detail
    assert finding.advice.startswith("Split the work")
    assert finding.where is not None and finding.where.call == "cudaLaunchKernel"


# -- Brute force -----------------------------------------------------------------------------------

LENGTHS = st.sampled_from((5 * US, 30 * US, 80 * US, 200 * US))
ACTS = st.one_of(
    st.builds(HostAct, st.just("compute"), st.sampled_from((MAIN, MAIN, OTHER)), LENGTHS),
    st.builds(HostAct, st.just("comm"), st.sampled_from((COMM, COMM, COMM + 1, MAIN)), LENGTHS),
    st.builds(HostAct, st.just("upload"), st.just(OTHER), LENGTHS),
    st.builds(HostAct, st.just("record"), st.sampled_from((MAIN, COMM, COMM + 1, OTHER)), event=st.integers(0, 2)),
    st.builds(HostAct, st.just("wait"), st.sampled_from((MAIN, COMM, COMM + 1, OTHER)), event=st.integers(0, 2)),
    st.builds(HostAct, st.just("sync"), st.sampled_from((MAIN, COMM))),
    st.builds(HostAct, st.just("busy"), ns=LENGTHS),
)


class CommTruth:
    """Causes by a search over the program's order and, microsecond by microsecond, over time."""

    def __init__(self, played: Played) -> None:
        self.ops, self.direct = played.ops, played.after
        self.before = cache(self._before)
        numbers = range(len(self.ops))
        self.comm = [n for n in numbers if self.ops[n].kind == Kind.COMM]
        computes = [n for n in numbers if self.ops[n].kind == Kind.COMPUTE]
        busy = {
            s: sum(self.ops[n].end - self.ops[n].start for n in computes if self.ops[n].stream == s)
            for s in (MAIN, OTHER)
        }
        self.work_streams = {s for s in busy if busy[s] and 2 * busy[s] >= max(busy.values())}
        self.work = [n for n in computes if self.ops[n].stream in self.work_streams]
        self.computing = {us for n in computes for us in self._during(n)}
        self.begin = min((op.start for op in self.ops), default=0)

    def _before(self, number: int) -> set[int]:
        return self.direct[number].union(*(self.before(each) for each in self.direct[number]))

    def _during(self, number: int) -> range:
        return range(self.ops[number].start // US, self.ops[number].end // US)

    def causes(self) -> dict[int, tuple[int, CommCause]]:
        """Return the collective and the cause of each exposed microsecond."""
        found: dict[int, tuple[int, CommCause]] = {}
        given = {number: self._gain(number) for number in self.comm}
        exposed = sorted({us for n in self.comm for us in self._during(n)} - self.computing)
        for us in exposed:
            running = [n for n in self.comm if us in self._during(n)]
            free = {n: self._free(n, us) for n in running}
            number = min(running, key=lambda n: (free[n] is not None, -self.ops[n].end, n))
            found[us] = number, self._cause(number, us, free[number])
            if free[number] is None and self.ops[number].stream not in self.work_streams and given[number][1] > 0:
                cause, left = given[number]
                found[us] = number, cause
                given[number] = cause, left - 1
        return found

    def _free(self, number: int, us: int) -> int | None:
        """Return the first compute after the exposed stretch's begin that doesn't wait for a collective."""
        able = [first for first in self._following(us) if number not in self.before(first)]
        return min(able, key=lambda n: self.ops[n].start, default=None)

    def _following(self, us: int) -> list[int]:
        """Return the first compute of each stream after the exposed stretch has begun."""
        while us - 1 not in self.computing and any(us - 1 in self._during(n) for n in self.comm):
            us -= 1
        later = {
            s: [n for n in self.work if self.ops[n].stream == s and self.ops[n].start // US >= us]
            for s in (MAIN, OTHER)
        }
        return [min(numbers, key=lambda n: self.ops[n].start) for numbers in later.values() if numbers]

    def _late_until(self, number: int) -> int:
        op = self.ops[number]
        assert op.launch is not None
        return op.start if op.start - op.launch[1] <= PROMPT_NS else op.launch[1]

    def _piece(self, us: int) -> int:
        """Return where the time begins in which the same ops run, and the same compute is launched."""
        cuts = {at // US for n in self.comm for at in (self.ops[n].start, self.ops[n].end)}
        cuts |= {self._late_until(n) // US for n in self._following(us)}
        while us not in cuts and us - 1 not in self.computing:
            us -= 1
        return us

    def _cause(self, number: int, us: int, free: int | None) -> CommCause:
        if free is None:
            if self.ops[number].stream in self.work_streams:
                return CommCause.SAME_STREAM
            beside = any(each in self.computing for each in range(self.ops[number].start // US, us))
            return CommCause.WAITING_OR_TRANSFER if beside else CommCause.NO_COMPUTE
        if us * US < self._late_until(free):
            return CommCause.LATE_COMPUTE
        soon = self.ops[free].start - self._piece(us) * US <= LAUNCH_LATENCY_NS
        return CommCause.LAUNCH_LATENCY if soon else CommCause.UNKNOWN

    def _gain(self, number: int) -> tuple[CommCause, int]:
        """Return what let a collective begin, and the microseconds beside compute that it cost."""
        kernel, op = self.ops[number], number
        while True:
            issued, queued, ready, source = self._released(op)
            if (
                ready > max(issued, queued)
                and source not in self.work
                and self.ops[source].kind != Kind.COMM
                and self.ops[op].start - ready <= SURE_HANDOVER_NS
                and 2 * (self.ops[source].end - self.ops[source].start) <= kernel.end - kernel.start
            ):
                op = source
            else:
                break
        work_ended = max((self.ops[n].end for n in self.before(op) if n in self.work), default=self.begin)
        least = max(self.begin, work_ended)
        when = {CommCause.LATE_ISSUE: issued, CommCause.BLOCKED_BEHIND: queued, CommCause.WAITING_FOR_INPUT: ready}
        cause = max(when, key=lambda each: when[each])
        latest = when.pop(cause)
        tolerance = dict(zip(PLANTED_BY, (PROMPT_NS, QUEUE_NS, SURE_HANDOVER_NS), strict=True))[cause]
        start = self.ops[op].start
        if start - max(latest, least) > tolerance:
            cause, possible = CommCause.UNKNOWN, max(latest, least)
        else:
            possible = max(least, *when.values())
            if possible >= latest:
                return cause, 0
        earlier = (start - possible) // US
        run = range(kernel.start // US, kernel.end // US)
        gain = sum(us - earlier in self.computing for us in run) - sum(us in self.computing for us in run)
        return cause, max(0, gain)

    def _released(self, number: int) -> tuple[int, int, int, int]:
        """Return when its launch, the collective before it and its input let an op begin, and the op of the input."""
        op, never = self.ops[number], -(10**15)
        assert op.launch is not None
        issued, queued, ready, source = min(op.launch[1], op.start), never, never, -1
        for each in self.direct[number]:
            before = self.ops[each]
            if before.stream == op.stream and before.kind == Kind.COMM:
                queued = before.end
            elif before.end > ready:
                ready, source = before.end, each
        return issued, queued, ready, source


PLANTED_BY = (CommCause.LATE_ISSUE, CommCause.BLOCKED_BEHIND, CommCause.WAITING_FOR_INPUT)


@given(st.lists(ACTS, min_size=2, max_size=24))
def test_every_microsecond_has_the_cause_that_brute_force_finds(program: list[HostAct]) -> None:
    played = play(program)
    if not played.ops:
        return
    device = device_of(played)
    pieces, ops = device.exposed_comm, device.timeline.ops
    number_of = {(op.start, op.stream): number for number, op in enumerate(played.ops)}
    found: dict[int, tuple[int, CommCause]] = {}
    for start, end, cause, op in zip(
        *(column.tolist() for column in (pieces.start_ns, pieces.end_ns, pieces.cause, pieces.op)), strict=True
    ):
        assert start % US == end % US == 0
        for us in range(start // US, end // US):
            assert us not in found
            found[us] = number_of[int(ops.start_ns[op]), int(ops.stream[op])], COMM_CAUSES[cause]
    truth = CommTruth(played).causes()
    assert found.keys() == truth.keys()
    for us, (number, cause) in truth.items():
        assert found[us][0] == number
        # Whether the host was blocked is a matter of the host's calls, which the search doesn't follow.
        if found[us][1] != CommCause.HOST_SYNC:
            assert found[us][1] == cause
    assert np.array(list(device.result.exposed_comm_by_cause.values())).sum() == len(found) * US


@given(st.lists(ACTS, min_size=2, max_size=24))
def test_prefetch_depths_are_those_that_a_walk_over_the_launches_finds(program: list[HostAct]) -> None:
    played = play(program)
    if not played.ops:
        return
    device = device_of(played)
    ops, calls, begun = device.timeline.ops, played.trace.runtime_calls, device.comm
    depths = prefetch_depths(ops, calls, begun)
    launched = [int(calls.start_ns[call]) for call in ops.launch]
    consumers = set(begun.consumer.tolist()) - {-1}
    others = [row for rows in find_compute(ops).values() for row in rows.tolist() if row not in consumers]
    for op, consumer, depth in zip(begun.op, begun.consumer, depths.tolist(), strict=True):
        parts = set()
        for row in others:
            if launched[op] < launched[row] < launched[consumer]:
                parts.add(sum(launched[each] <= launched[row] for each in consumers))
        assert depth == (len(parts) if consumer >= 0 else -1)
