"""Programs of several ranks with collectives, simulated event by event, and their recordings' summaries.

Each rank has a thread, a stream of compute and a stream of collectives. Before each of its collectives, the thread
works and launches a kernel, works again, and launches the collective, which needs the kernel. Then the next kernel may
need the collective, or the thread may wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from hypothesis import strategies as st
from msgspec import Struct

from overlapscope.analysis.collectives import CommKind
from overlapscope.analysis.host_order import EARLIEST_NS, Calls
from overlapscope.plugins.jobs.joint.condense import ItemWork
from overlapscope.plugins.jobs.joint.join import BY_EVENT, RankNetwork, RankSummary
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import DeviceItems, Network, OrderReason, Orders, Waits
from overlapscope.prediction.hardware import Stance
from tests.support.ranks_schedules import CommKernel, made_rank


class Turn(Struct, frozen=True):
    """What a rank does for one of its collectives, in nanoseconds."""

    collective: int
    """-1 for none."""
    host_ns: int
    kernel_ns: int
    before_launch_ns: int
    then: Literal["nothing", "kernel", "thread"]
    """What waits for the collective next."""


class RanksProgram(Struct, frozen=True):
    """Members of each collective, its transfer, and the turns of each rank."""

    members: tuple[tuple[int, ...], ...]
    transfer_ns: tuple[int, ...]
    turns: tuple[tuple[Turn, ...], ...]
    bytes: tuple[int, ...] = ()
    roots: tuple[int | None, ...] = ()
    """Root of each collective that is a broadcast; empty if none is."""

    def root(self, collective: int) -> int | None:
        return self.roots[collective] if self.roots else None


class Times(Struct):
    """Times of one rank, one for each of its turns."""

    called_kernel: list[int]
    called: list[int]
    kernel_start: list[int]
    kernel_end: list[int]
    arrived: list[int]
    ended: list[int]


def simulated(program: RanksProgram, *, prompt: bool = False) -> list[Times]:
    """Simulate a program: whichever rank can go on does, until all are done.

    With `prompt`, collectives need not wait for their launch.
    """
    ranks = range(len(program.turns))
    times = [Times([], [], [], [], [], []) for _ in ranks]
    over: dict[tuple[int, int], int] = {}
    thread, need = [0 for _ in ranks], [EARLIEST_NS for _ in ranks]
    there: list[dict[int, int]] = [{} for _ in program.members]
    while any(len(its.ended) < len(turns) for its, turns in zip(times, program.turns, strict=True)):
        for rank in ranks:
            its, turns = times[rank], program.turns[rank]
            if len(its.ended) < len(its.arrived) and turns[len(its.ended)].collective < 0:
                its.ended.append(its.ended[-1] if its.ended else 0)
            # The end of a collective lets this rank's later parts go on.
            while len(its.ended) < len(its.arrived) and (turns[len(its.ended)].collective, rank) in over:
                its.ended.append(over[turns[len(its.ended)].collective, rank])
            number = len(its.arrived)
            if number == len(turns) or len(its.ended) < number:
                continue
            if number:
                before = turns[number - 1]
                if before.then == "thread":
                    thread[rank] = max(thread[rank], its.ended[-1])
                need[rank] = its.ended[-1] if before.then == "kernel" else EARLIEST_NS
            turn = turns[number]
            thread[rank] += turn.host_ns
            its.called_kernel.append(thread[rank])
            its.kernel_start.append(max(thread[rank], its.kernel_end[-1] if its.kernel_end else 0, need[rank]))
            its.kernel_end.append(its.kernel_start[-1] + turn.kernel_ns)
            thread[rank] += turn.before_launch_ns
            its.called.append(thread[rank])
            launched = EARLIEST_NS if prompt else thread[rank]
            its.arrived.append(max(launched, its.kernel_end[-1], its.ended[-1] if its.ended else 0))
            if turn.collective < 0:
                continue
            there[turn.collective][rank] = its.arrived[-1]
            over |= _ends(program, turn.collective, there[turn.collective])
    return times


def _ends(program: RanksProgram, collective: int, arrived: dict[int, int]) -> dict[tuple[int, int], int]:
    """Return when a collective ends on the ranks that need not wait any longer, given who has arrived."""
    root, transfer_ns = program.root(collective), program.transfer_ns[collective]
    if root is None:
        complete = len(arrived) == len(program.members[collective])
        return {(collective, rank): max(arrived.values()) + transfer_ns for rank in arrived if complete}
    # The root's data is buffered, so it waits for nobody.
    return {(collective, rank): max(at, arrived[root]) + transfer_ns for rank, at in arrived.items() if root in arrived}


def summaries(program: RanksProgram, recorded: Sequence[Times]) -> list[RankSummary]:
    """Return what would be made of the recordings of a program."""
    return [_summary(program, rank, its) for rank, its in enumerate(recorded)]


def _summary(program: RanksProgram, rank: int, its: Times) -> RankSummary:
    turns = program.turns[rank]
    kernels = []
    for number, turn in enumerate(turns):
        members = program.members[turn.collective]
        name = "allreduce" if program.root(turn.collective) is None else "broadcast"
        kind = CommKind(name, str(members), str(list(members)), len(members))
        sequence = sum(program.members[earlier] == members for earlier in range(turn.collective))
        size = program.bytes[turn.collective] if program.bytes else -1
        step = 0 if program.bytes else number
        kernels.append(CommKernel(kind, its.arrived[number], its.ended[number], step, 8, sequence, bytes=size))
    window = (0, max(its.ended) + 1)
    # Recordings in one file have one clock.
    source = f"job.json@{rank}"
    reduced = made_rank(rank, kernels, window=window, world_size=len(program.turns), source=source)
    parts = _parts(turns, its)
    return RankSummary(
        reduced=reduced,
        recorded=parts,
        by_stance=dict.fromkeys(Stance, parts),
        lengths_ns=np.diff(its.kernel_start),
    )


def _parts(turns: Sequence[Turn], its: Times) -> RankNetwork:
    count = len(turns)
    calls, waits, place = list[tuple[int, int]](), list[tuple[int, int]](), list[int]()
    ended = 0
    for number, turn in enumerate(turns):
        place.append(len(calls))
        calls += [(turn.host_ns, its.called_kernel[number]), (turn.before_launch_ns, its.called[number])]
        ended = its.called[number]
        if turn.then == "thread":
            waits.append((len(calls), 2 * number + 1))
            calls.append((0, ended))
    kernels = np.arange(count)
    finish = count + 2 * np.arange(count) + 1
    launch = np.array(place)
    # The recording does not show the work before a thread's first call.
    before = np.array([0, *(work for work, _ in calls[1:])])
    start = np.array([at for _, at in calls])
    first = np.full(len(calls), EARLIEST_NS)
    first[0] = start[0]
    number_of_items = 3 * count
    lane = np.append(np.zeros(count, np.int64), np.ones(2 * count, np.int64))
    call = np.full(number_of_items, -1)
    call[kernels], call[finish - 1] = launch, launch + 1
    length = np.zeros(number_of_items, np.int64)
    length[kernels] = [turn.kernel_ns for turn in turns]
    length[finish] = np.array(its.ended) - np.array(its.arrived)
    begin = np.zeros(number_of_items, np.int64)
    begin[kernels], begin[finish - 1], begin[finish] = its.kernel_start, its.arrived, its.arrived
    items = DeviceItems.of(lane=lane, duration_ns=length, call=call, start_ns=begin, end_ns=begin + length)
    needed = np.array([number for number, turn in enumerate(turns[:-1]) if turn.then == "kernel"], np.int64)
    orders = Orders.joined(
        [
            Orders.of(kernels, finish - 1, 0, OrderReason.EVENT),
            Orders.of(finish[needed], kernels[needed + 1], 0, OrderReason.EVENT),
        ]
    )
    waiting = np.array(waits, np.int64).reshape(-1, 2)
    table = Calls.filled(
        row=-1,
        thread=0,
        before_ns=before,
        length_ns=0,
        handed_by=-1,
        maybe_by=-1,
        release_ns=first,
        since_ns=0,
        start_ns=start,
        end_ns=start,
    )
    pairs = Waits.of(waiting[:, 0], count + waiting[:, 1], 0)
    segment_of_call = np.searchsorted(launch + 1, np.arange(len(calls)))
    work = np.zeros(number_of_items, np.int64)
    work[kernels] = length[kernels]
    return RankNetwork(
        network=Network(items, table, orders, pairs, Constants()),
        finish=finish,
        segment_of_item=np.append(kernels, np.repeat(kernels, 2)),
        segment_of_call=segment_of_call,
        closed_by=kernels,
        work=ItemWork.filled(
            work_ns=work,
            launched_work_ns=0,
            compute_ns=work,
            launched_compute_ns=0,
            launched_host_ns=0,
            recorded_start_ns=items.start_ns,
            recorded_end_ns=items.end_ns,
        ),
        ready=np.full(count, BY_EVENT),
        ahead_call=np.full(count, -1),
        ahead_item=np.full(count, -1),
        filled_ns=np.full(count, -1),
        before_launch_ns=np.zeros(count, np.int64),
        after_launch_ns=np.zeros(count, np.int64),
        marks=kernels,
    )


@st.composite
def programs(draw: st.DrawFn, *, alike: bool = False, broadcasts: bool = False) -> RanksProgram:
    """Programs of two to four ranks.

    With `alike`, all ranks are members of every collective; with `broadcasts`, some collectives are broadcasts.
    """
    ranks = draw(st.integers(2, 4))
    everyone = tuple(range(ranks))
    some = st.lists(st.sampled_from(everyone), min_size=2, unique=True).map(sorted).map(tuple)
    members = draw(st.lists(st.just(everyone) if alike else some, min_size=2, max_size=6))
    members = [everyone, *members, everyone]
    transfers = draw(st.lists(st.integers(10, 400), min_size=len(members), max_size=len(members)))
    length = st.integers(10, 500)
    turns = [
        tuple(
            Turn(
                number,
                draw(length),
                draw(length),
                draw(st.integers(0, 300)),
                draw(st.sampled_from(("nothing", "kernel", "thread"))),
            )
            for number, its in enumerate(members)
            if rank in its
        )
        for rank in everyone
    ]
    roots = [None, *(draw(st.sampled_from((None, *its))) if broadcasts else None for its in members[1:-1]), None]
    return RanksProgram(tuple(members), tuple(transfers), tuple(turns), roots=tuple(roots))
