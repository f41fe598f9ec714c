"""Load of experts: sizes of all-to-alls with split sizes on each rank, and the rank that comes late after them.

Tokens travel to their experts and back. On the way there, each rank sends its own tokens, as many as any other, and
receives as many as its experts get. On the way back it is the reverse. So an exchange goes to experts if the most that
one member receives is no less than the most that one sends. Only exchanges of all members of the group are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from overlapscope.base.columns import Columns, mask_of, pick
from overlapscope.base.grouping import group_starts, groups_of, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.plugins.jobs.part import ExpertExchange, ExpertRank
from overlapscope.ranks.collectives import Kernels, Meetings
from overlapscope.ranks.communication import JudgedWindows, judged_windows, time_in
from overlapscope.ranks.comparison import Comparison
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.waits import RankWaits


def find_experts(ranks: Sequence[ReducedRank], comparison: Comparison) -> tuple[ExpertExchange, ...]:
    """Return the exchanges of each process group by the size of their elements, those with the most elements first."""
    kernels, waits = comparison.met.kernels, comparison.waits
    exchanging = np.flatnonzero(kernels.splits == 1)
    if not len(exchanging):
        return ()
    windows = judged_windows(ranks, waits)
    numbers = [rank.rank or 0 for rank in ranks]
    there, last = _to_experts(comparison.met, windows.begins), _last_at_next(kernels, waits)
    alike = groups_of([kernels.group[exchanging], kernels.element_bytes[exchanging]])
    found = [
        _exchange(rows, there.take(mask_of(rows, len(kernels))[there.kernel]), numbers, windows, kernels, last)
        for rows in (exchanging[places] for _, places in rows_by(alike))
    ]
    kept = [exchange for exchange in found if exchange.ranks]
    return tuple(sorted(kept, key=lambda each: -sum(rank.received_elements or 0 for rank in each.ranks)))


class _Received(Columns, frozen=True):
    """Elements that each member receives in each exchange to experts, exchange after exchange."""

    exchange: I64
    elements: I64
    most: I64
    """The most elements that a member receives in the exchange."""
    alone: Bool
    """True if this member alone receives that many."""
    rows: I64
    """-1 where unknown."""
    kernel: I64
    rank: I64
    """Place of the rank."""


def _to_experts(met: Meetings, begins: Bool) -> _Received:
    """Return the exchanges to experts of whole groups that begin in the judged windows of all members."""
    kernels = met.kernels
    known = (kernels.splits == 1) & (np.minimum(kernels.elements, kernels.received) >= 0) & begins
    met = met.take(np.logical_and.reduceat(known[met.row], met.first[:-1]) & (met.members == met.group_size))
    (least, most), (_, received), (_, sent) = map(
        met.extremes, (kernels.element_bytes, kernels.received, kernels.elements)
    )
    met = met.take((least == most) & (received >= sent))
    elements, meeting = kernels.received[met.row], met.meeting
    most = met.extremes(kernels.received)[1][meeting]
    largest = elements == most
    alone = largest & (np.bincount(meeting[largest], minlength=len(met))[meeting] == 1)
    return _Received(meeting, elements, most, alone, kernels.received_rows[met.row], met.row, met.rank)


def _last_at_next(kernels: Kernels, waits: RankWaits) -> tuple[I64, I64]:
    """Return for each kernel which rank comes last to the group's next collective, and how long the others wait for it.

    The rank is given by its place, -1 where it is unknown; the time is that without compute.
    """
    group = kernels.group
    order = np.lexsort((kernels.start_ns, group, kernels.rank))
    following = np.full(len(order), -1)
    same = (kernels.rank[order][1:] == kernels.rank[order][:-1]) & (group[order][1:] == group[order][:-1])
    following[order[:-1][same]] = order[1:][same]
    arrivals, latest, meetings = waits.arrivals, waits.latest, waits.meetings
    meeting_of = np.full(len(kernels), -1)
    meeting_of[meetings.row] = meetings.meeting
    meeting = pick(meeting_of, following)
    last = np.where(latest.together == 1, arrivals.rank[latest.row], -1)
    return pick(last, meeting), pick(latest.exposed_ns, meeting, 0)


def _exchange(
    rows: I64,
    there: _Received,
    numbers: Sequence[int],
    windows: JudgedWindows,
    kernels: Kernels,
    last: tuple[I64, I64],
) -> ExpertExchange:
    kind = kernels.kinds[int(kernels.kind[rows[0]])]
    largest, first = there.take(there.alone), group_starts(there.exchange)
    last_rank, waited_ns = (each[largest.kernel] for each in last)
    comes_last = last_rank == largest.rank
    total, most = int(there.elements.sum()), int(there.most[first].sum())
    size = int(kernels.element_bytes[rows[0]])
    return ExpertExchange(
        group=kind.group,
        description=kind.description,
        group_ranks=kind.ranks,
        group_size=kind.group_size if kind.group_size >= 0 else None,
        element_bytes=size if size >= 0 else None,
        compared=len(first),
        skew=most * kind.group_size / total if total else None,
        followed=int((last_rank >= 0).sum()),
        largest_last=int(comes_last.sum()),
        waited_exposed_ns=int(waited_ns[comes_last].sum()),
        ranks=tuple(_ranks(rows, there, numbers, windows, kernels)),
    )


def _ranks(
    exchanging: I64, there: _Received, numbers: Sequence[int], windows: JudgedWindows, kernels: Kernels
) -> Iterator[ExpertRank]:
    group_size = kernels.kinds[int(kernels.kind[exchanging[0]])].group_size
    total = int(there.elements.sum())
    for place, places in rows_by(kernels.rank[exchanging]):
        rows = exchanging[places]
        inside = windows.inside(rows)
        if not len(inside):
            continue
        counted, received = kernels.take(rows[windows.begins[rows]]), there.take(there.rank == place)
        loaded = int(received.elements.sum()) if len(received) else None
        yield ExpertRank(
            rank=numbers[place],
            count=len(counted),
            sent_elements=_sum(counted.elements),
            received_elements=_sum(counted.received),
            sent_rows=_sum(counted.sent_rows),
            received_rows=_sum(counted.received_rows),
            loaded_elements=loaded,
            loaded_rows=_sum(received.rows) if len(received) else None,
            load=loaded * group_size / total if loaded is not None and total else None,
            time=time_in(windows, inside),
        )


def _sum(values: I64) -> int | None:
    """Return the sum; None if a value is unknown."""
    return None if (values < 0).any() else int(values.sum())
