"""Ranks made from schedules: when each rank comes to each collective, by a clock that may be off."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.collectives import CommKind
from overlapscope.analysis.facts import period
from overlapscope.analysis.results import Trust
from overlapscope.base.intervals import union
from overlapscope.ranks.messages import CommKernels
from overlapscope.ranks.reduced import COLUMN_OF_TIME, RankSteps, ReducedRank

_OF_COMM = ("exposed_comm", "comm", "sm", "busy", "ideal")
"""Lengths that communication alone makes."""


class CommKernel(NamedTuple):
    """One communication kernel."""

    kind: CommKind
    start: int
    end: int
    step: int = -1
    elements: int = -1
    sequence: int = -1
    received: int = -1
    bytes: int = -1
    reaches_all: int = -1
    splits: int = -1
    element_bytes: int = -1
    sent_rows: int = -1
    received_rows: int = -1


def made_rank(
    number: int | None,
    kernels: Sequence[CommKernel] = (),
    *,
    exposed: Sequence[tuple[int, int]] | None = None,
    window: tuple[int, int] | None = None,
    judged_from: int | None = None,
    steps: Sequence[tuple[str, int]] = (),
    source: str | None = None,
    world_size: int | None = None,
    device: int = 0,
) -> ReducedRank:
    """Return a rank that only communicated, by default all of it exposed."""
    kernels = sorted(kernels, key=lambda kernel: (kernel.start, -kernel.end))
    kinds = tuple(dict.fromkeys(kernel.kind for kernel in kernels))
    begin, end = window or (
        min((kernel.start for kernel in kernels), default=0),
        max((kernel.end for kernel in kernels), default=0),
    )
    bare = [(kernel.start, kernel.end) for kernel in kernels] if exposed is None else exposed
    alone = union([start for start, _ in bare], [end for _, end in bare])
    comm_ns = int((alone.ends - alone.starts).sum())

    def column(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(list(values), np.int64)

    spans = column([span for _, span in steps])
    return ReducedRank(
        source=source or f"rank{number}.json",
        rank=number,
        world_size=world_size,
        device=device,
        device_name=None,
        trust=Trust(verdict="trusted", checks=()),
        span_ns=end - begin,
        lead_in_ns=0,
        judged_from_ns=begin if judged_from is None else judged_from,
        end_ns=end,
        step_ns=None,
        window=period(
            "",
            begin,
            end,
            defaultdict(
                int,
                span=end - begin,
                idle=end - begin - comm_ns,
                **dict.fromkeys(("exposed_comm", "comm", "sm", "busy", "ideal"), comm_ns),
            ),
        ),
        judged=None,
        steps=RankSteps(
            names=tuple(name for name, _ in steps),
            judged=np.ones(len(steps), np.bool_),
            start_ns=begin + np.cumsum([0, *spans.tolist()])[: len(steps)],
            span_ns=spans,
        ),
        spent_ns=np.outer(spans, np.arange(len(COLUMN_OF_TIME)) == 0),
        findings=(),
        comm=CommKernels(
            kinds=kinds,
            start_ns=column([kernel.start for kernel in kernels]),
            end_ns=column([kernel.end for kernel in kernels]),
            kind=column([kinds.index(kernel.kind) for kernel in kernels]),
            **{name: column([getattr(kernel, name) for kernel in kernels]) for name in CommKernel._fields[3:]},
        ),
        exposed_comm=alone,
    )


class Met(Struct, frozen=True):
    """One collective as it truly was: by rank its true times."""

    kind: CommKind
    step: int
    elements: int
    sequence: int
    times: dict[int, tuple[int, int]]


class ScheduledJob(Struct, frozen=True):
    """Collectives in the order in which they began, and by how much each rank's clock is ahead."""

    ranks: int
    offsets: tuple[int, ...]
    met: tuple[Met, ...]

    def kernels(self, rank: int) -> list[CommKernel]:
        """As the rank recorded them."""
        ahead = self.offsets[rank]
        return [
            CommKernel(item.kind, begin + ahead, end + ahead, item.step, item.elements, item.sequence)
            for item in self.met
            if rank in item.times
            for begin, end in [item.times[rank]]
        ]

    def reduced(self, *, wide: int = 1000) -> list[ReducedRank]:
        """All ranks, each with some time before and after its kernels."""
        return [
            made_rank(
                rank,
                mine := self.kernels(rank),
                window=(
                    min((row.start for row in mine), default=0) - wide,
                    max((row.end for row in mine), default=0) + wide,
                ),
            )
            for rank in range(self.ranks)
        ]


one_clock = st.just(0)


@st.composite
def jobs(
    draw: st.DrawFn,
    *,
    offsets: st.SearchStrategy[int] = one_clock,
    most_ranks: int = 5,
    unit: int = 1,
    counted: bool = False,
) -> ScheduledJob:
    """Jobs of two ranks or more with a few groups. `unit` stretches all times.

    Every rank works for a while, arrives, and is held until all have arrived; then the transfer takes its time, and its
    end reaches each rank a little earlier or later, by less than half the transfer and as likely one as the other.
    """
    ranks = draw(st.integers(2, most_ranks))
    groups = draw(
        st.lists(
            st.lists(st.integers(0, ranks - 1), min_size=2, max_size=ranks, unique=True).map(sorted).map(tuple),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    names = ("allreduce", "_allgather_base")
    chance = random.Random(draw(st.integers(0, 1 << 30)))
    ready = [0] * ranks
    sequence = [0] * len(groups)
    met = []
    for step in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(1, 4))):
            group = draw(st.integers(0, len(groups) - 1))
            members = groups[group]
            kind = CommKind(
                draw(st.sampled_from(names)), str(group), str(list(members)), group_size=len(members), recorded=True
            )
            arrival = {rank: ready[rank] + unit * draw(st.integers(0, 60)) for rank in members}
            last = max(arrival.values())
            transfer = unit * draw(st.integers(4, 30))
            times = {}
            for rank in members:
                noise = chance.randint(-(transfer // 4), transfer // 4)
                end = max(last + 1, last + transfer + noise)
                times[rank] = (arrival[rank], end)
                # Some are asynchronous: the rank goes on at once.
                ready[rank] = end if draw(st.booleans()) else arrival[rank] + 1
            elements = 1000 * (1 + group)
            met.append(Met(kind, step, elements, sequence[group] if counted else -1, times))
            sequence[group] += 1
    ahead = [draw(offsets) for _ in range(ranks)]
    return ScheduledJob(ranks, (0, *ahead[1:]), tuple(met))


def as_by(rank: ReducedRank, *, source: str) -> ReducedRank:
    """Return the same rank from another file."""
    return replace(rank, source=source)
