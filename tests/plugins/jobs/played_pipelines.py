"""Ranks of a pipeline made from a simulated schedule, by clocks that may be off, with what truly happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from overlapscope.analysis.collectives import CommKind
from overlapscope.base.intervals import union
from overlapscope.ranks.messages import BATCH, Messages
from overlapscope.ranks.reduced import ReducedRank
from tests.support.ranks_schedules import CommKernel, made_rank

SEND, RECEIVE = (CommKind(name, "pp", "[0, 1, 2, 3]", 4) for name in ("send", "recv"))
MEETS = CommKind("allreduce", "world", "[0, 1, 2, 3]", 4)
Act = tuple[str, int]
"""`F` or `B`, and the number of the microbatch."""


def gpipe(_stage: int, _stages: int, microbatches: int) -> list[Act]:
    return [(way, number) for way in "FB" for number in range(microbatches)]


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[Act]:
    warm_up = min(stages - stage, microbatches)
    acts: list[Act] = [("F", number) for number in range(warm_up)]
    for number in range(microbatches):
        acts.append(("B", number))
        if warm_up + number < microbatches:
            acts.append(("F", warm_up + number))
    return acts


class TrueMessage(Struct):
    """A message as it truly was."""

    source: int
    target: int
    step: int
    number: int
    """Place in its direction, counted over all steps."""
    send: list[int] = field(default_factory=list)
    """Begin and end of the kernel that sends it."""
    receive: list[int] = field(default_factory=list)


class PlayedPipeline(Struct):
    """A pipeline as it was played: messages, compute and steps of each rank, by true times."""

    stages: int
    messages: list[TrueMessage]
    compute: list[list[tuple[int, int]]]
    steps: list[list[tuple[int, int]]]

    def ranks(
        self,
        offsets: Sequence[int],
        windows: Sequence[tuple[int, int]] | None = None,
        *,
        known_sizes: bool = True,
        meets: bool = False,
    ) -> tuple[list[ReducedRank], list[list[TrueMessage]]]:
        """Return the ranks as recorded, and the true message of each row of their `messages`.

        If `meets`, all ranks meet in a collective at the end of each step. No rank waits in it before it goes on.
        """
        ranks: list[ReducedRank] = []
        truth: list[list[TrueMessage]] = []
        size = 64 if known_sizes else -1
        for rank in range(self.stages):
            ahead = offsets[rank]
            begin, end = windows[rank] if windows else (-1_000_000, self.steps[0][-1][1] + 10_000_000)
            kernels: list[tuple[CommKernel, int, TrueMessage | None]] = []
            for message in self.messages:
                for at, outgoing, (start, stop) in (
                    (message.source, 1, message.send),
                    (message.target, 0, message.receive),
                ):
                    if at == rank and start >= begin and stop <= end:
                        kind = SEND if outgoing else RECEIVE
                        kernel = CommKernel(kind, start + ahead, stop + ahead, message.step, bytes=size)
                        kernels.append((kernel, outgoing, message))
            for number, (_, stop) in enumerate(self.steps[rank]) if meets else ():
                last = max(steps[number][1] for steps in self.steps)
                kernels.append((CommKernel(MEETS, stop + ahead, last + 1000 + ahead, number, elements=1), 0, None))
            kernels.sort(key=lambda item: (item[0].start, -item[0].end))
            rows = [row for row, (_, _, message) in enumerate(kernels) if message is not None]
            sides = [(outgoing, message) for _, outgoing, message in kernels if message is not None]
            computed = [
                (max(a, begin) + ahead, min(b, end) + ahead) for a, b in self.compute[rank] if a < end and b > begin
            ]
            busy = union([a for a, _ in computed], [b for _, b in computed])
            whole = [(number, a, b) for number, (a, b) in enumerate(self.steps[rank]) if a >= begin and b <= end]
            steps = [(f"ProfilerStep#{number}", b - a) for number, a, b in whole]
            made = made_rank(
                rank,
                [kernel for kernel, *_ in kernels],
                window=(begin + ahead, end + ahead),
                steps=steps,
                exposed=None if meets else (),
            )
            starts = np.array([a + ahead for _, a, _ in whole], np.int64)
            messages = Messages(
                channels=("pp",),
                whole_steps=tuple(number for number, _, _ in whole),
                kernel=np.array(rows, np.int64),
                begin_ns=made.comm.start_ns[rows],
                outgoing=np.array([outgoing for outgoing, _ in sides], np.int64),
                peer=np.array([each.target if outgoing else each.source for outgoing, each in sides], np.int64),
                bytes=np.full(len(sides), size),
                channel=np.zeros(len(sides), np.int64),
            )
            ranks.append(replace(made, messages=messages, compute=busy, steps=replace(made.steps, start_ns=starts)))
            truth.append([message for _, message in sides])
        return ranks, truth


def batched(rank: ReducedRank) -> ReducedRank:
    """Return the rank with one kernel for all messages of a step that begin at the same time."""
    comm = rank.comm
    times = sorted({*zip(comm.step.tolist(), comm.start_ns.tolist(), strict=True)}, key=lambda time: time[::-1])
    number = np.array([times.index(time) for time in zip(comm.step.tolist(), comm.start_ns.tolist(), strict=True)])
    end = np.zeros(len(times), np.int64)
    np.maximum.at(end, number, comm.end_ns)
    kernels = replace(
        comm.take(np.unique(number, return_index=True)[1]),
        kinds=(CommKind(BATCH, "pp", "[0, 1, 2, 3]", 4),),
        kind=np.zeros(len(times), np.int64),
        end_ns=end,
    )
    return replace(rank, comm=kernels, messages=replace(rank.messages, kernel=number[rank.messages.kernel]))


def play(
    order: Callable[[int, int, int], list[Act]],
    stages: int,
    microbatches: int,
    steps: int,
    took: Callable[[int, Act], int],
    transfer: Callable[[], int],
    *,
    eager: bool = False,
    update: Callable[[int], int] = lambda _: 0,
) -> PlayedPipeline:
    """Play a pipeline.

    A stage starts to receive when it is ready, computes when the message is there, sends, and goes on at once. A
    message is there `transfer` after both sides have begun. A send ends then or, if eager, some time after it began.

    Args:
        order: Schedule.
        stages: Number of stages.
        microbatches: Number of microbatches.
        steps: Number of steps.
        took: Returns how long a stage computes.
        transfer: Returns how long a message takes.
        eager: Whether sends end without the receiver.
        update: Returns how long a stage computes at the start of each step after the first, without any message.
    """
    plans = [
        [(step, act) for step in range(steps) for act in order(stage, stages, microbatches)] for stage in range(stages)
    ]
    sent: dict[tuple[str, int, int, int], TrueMessage] = {}
    played = PlayedPipeline(stages, [], [[] for _ in range(stages)], [[] for _ in range(stages)])
    counts: defaultdict[tuple[int, int], int] = defaultdict(int)
    ready, begun, place = [0] * stages, [0] * stages, [0] * stages
    while any(place[stage] < len(plans[stage]) for stage in range(stages)):
        for stage in range(stages):
            if place[stage] == len(plans[stage]):
                continue
            step, (way, number) = plans[stage][place[stage]]
            toward = 1 if way == "F" else -1
            incoming = sent.get((way, step, number, stage))
            first = stage == (0 if way == "F" else stages - 1)
            if not first and incoming is None:
                continue
            start = ready[stage]
            if incoming is not None:
                there = max(start, incoming.send[0]) + transfer()
                incoming.receive = [start, there]
                incoming.send.append(incoming.send[0] + transfer() if eager else there)
                start = there
            ends = start + took(stage, (way, number))
            played.compute[stage].append((start, ends))
            ready[stage] = ends
            if 0 <= stage + toward < stages:
                pair = (stage, stage + toward)
                message = TrueMessage(*pair, step, counts[pair], [ends])
                counts[pair] += 1
                sent[way, step, number, stage + toward] = message
                played.messages.append(message)
            place[stage] += 1
            if place[stage] == len(plans[stage]) or plans[stage][place[stage]][0] != step:
                played.steps[stage].append((begun[stage], ready[stage]))
                begun[stage] = ready[stage]
                took_ns = update(stage) if place[stage] < len(plans[stage]) else 0
                if took_ns:
                    played.compute[stage].append((ready[stage], ready[stage] + took_ns))
                    ready[stage] += took_ns
    return played
