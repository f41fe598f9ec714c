"""Load of experts: sizes of all-to-alls with split sizes on each rank, and the rank that comes late after them.

Tokens travel to their experts and back. On the way there, each rank sends its own tokens, as many as any other, and
receives as many as its experts get. On the way back it is the reverse. So an exchange goes to experts if the most that
one member receives is no less than the most that one sends. Only exchanges of all members of the group are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import Columns, mask_of, pick
from overlapscope.base.grouping import group_starts, groups_of, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.plugins.jobs.part import ExpertExchange, ExpertRank
from overlapscope.ranks.collectives import Kernels, Meetings
from overlapscope.ranks.communication import JudgedWindows, judged_windows, time_in
from overlapscope.ranks.comparison import Comparison
from overlapscope.ranks.messages import Exchanges
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.waits import RankWaits, sum_by


def find_experts(ranks: Sequence[ReducedRank], comparison: Comparison) -> tuple[ExpertExchange, ...]:
    """Return the exchanges of each process group by the size of their elements, those with the most elements first."""
    sizes = _gathered(ranks)
    if not len(sizes):
        return ()
    kernels, waits = comparison.met.kernels, comparison.waits
    windows = judged_windows(ranks, waits)
    numbers = [rank.rank or 0 for rank in ranks]
    there = _to_experts(comparison.met, sizes, windows.begins)
    last = _last_at_next(kernels, waits)
    group = kernels.group[sizes.kernel]
    found = [
        _exchange(sizes.take(rows), there.take(mask_of(rows, len(sizes))[there.row]), numbers, windows, kernels, last)
        for _, rows in rows_by(groups_of([group, sizes.element_bytes]))
    ]
    kept = [exchange for exchange in found if exchange.ranks]
    return tuple(sorted(kept, key=lambda each: -sum(rank.received_elements or 0 for rank in each.ranks)))


def _gathered(ranks: Sequence[ReducedRank]) -> Exchanges:
    """Return the exchanges of all ranks, with their rows among the kernels of all ranks."""
    before = np.cumsum([0, *(len(rank.comm) for rank in ranks)]).tolist()
    each = [(rank.exchanges, first) for rank, first in zip(ranks, before, strict=False)]
    return Exchanges.joined([replace(exchanges, kernel=exchanges.kernel + first) for exchanges, first in each])


class _Received(Columns, frozen=True):
    """Elements that each member receives in each exchange to experts, exchange after exchange."""

    exchange: I64
    row: I64
    """Row of `Exchanges` of all ranks."""
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


def _to_experts(met: Meetings, sizes: Exchanges, begins: Bool) -> _Received:
    """Return the exchanges to experts of whole groups that begin in the judged windows of all members."""
    kernels = met.kernels
    row_of = np.full(len(kernels), -1)
    row_of[sizes.kernel] = np.arange(len(sizes))
    group_size = kernels.by_kind(lambda kind: kind.group_size)
    if len(met):
        row = row_of[met.row]
        known = (np.minimum(pick(sizes.sent, row), pick(sizes.received, row)) >= 0) & begins[met.row]
        met = met.take(np.logical_and.reduceat(known, met.first[:-1]) & (np.diff(met.first) == group_size[met.kind]))
    if len(met):
        row, first = row_of[met.row], met.first[:-1]
        least, most = (side.reduceat(sizes.element_bytes[row], first) for side in (np.minimum, np.maximum))
        received, sent = (np.maximum.reduceat(column[row], first) for column in (sizes.received, sizes.sent))
        met = met.take((least == most) & (received >= sent))
    row, meeting = row_of[met.row], met.meeting
    elements = sizes.received[row]
    most = np.maximum.reduceat(elements, met.first[:-1])[meeting] if len(met) else elements
    largest = elements == most
    alone = largest & (np.bincount(meeting[largest], minlength=len(met))[meeting] == 1)
    return _Received(meeting, row, elements, most, alone, sizes.received_rows[row], met.row, met.rank)


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
    waited = sum_by(arrivals.meeting, arrivals.exposed_ns, len(meetings))
    return pick(last, meeting), pick(waited, meeting, 0)


def _exchange(
    sizes: Exchanges,
    there: _Received,
    numbers: Sequence[int],
    windows: JudgedWindows,
    kernels: Kernels,
    last: tuple[I64, I64],
) -> ExpertExchange:
    kind = kernels.kinds[int(kernels.kind[sizes.kernel[0]])]
    largest, first = there.take(there.alone), group_starts(there.exchange)
    last_rank, waited_ns = (each[largest.kernel] for each in last)
    comes_last = last_rank == largest.rank
    total, most = int(there.elements.sum()), int(there.most[first].sum())
    size = int(sizes.element_bytes[0])
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
        ranks=tuple(_ranks(sizes, there, numbers, windows, kernels)),
    )


def _ranks(
    sizes: Exchanges, there: _Received, numbers: Sequence[int], windows: JudgedWindows, kernels: Kernels
) -> Iterator[ExpertRank]:
    group_size = kernels.kinds[int(kernels.kind[sizes.kernel[0]])].group_size
    total = int(there.elements.sum())
    for place, rows in rows_by(kernels.rank[sizes.kernel]):
        exchanges = sizes.take(rows)
        begins = windows.begins[exchanges.kernel]
        inside = exchanges.kernel[begins | (windows.end_ns[exchanges.kernel] > windows.start_ns[exchanges.kernel])]
        if not len(inside):
            continue
        counted, received = exchanges.take(begins), there.take(there.rank == place)
        loaded = int(received.elements.sum()) if len(received) else None
        yield ExpertRank(
            rank=numbers[place],
            count=len(counted),
            sent_elements=_sum(counted.sent),
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
