"""The places of a map of ranks: one for each rank that there should be, whether its trace is here or not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from overlapscope.ranks.result import RankRow, RanksReport
from overlapscope.ranks.verdict import row_name

State = Literal["known", "missing", "unreadable"]
_LEAST_COLUMNS = 8
_LABELS = 16


@dataclass(frozen=True, slots=True)
class Slot:
    """One place."""

    name: str
    label: str
    """Its name on an axis: the rank's number, or the file."""
    state: State
    row: int | None
    """Number of its row in the report; None where it has none."""


def slots(report: RanksReport) -> tuple[Slot, ...]:
    """By rank, then device; traces that do not say their rank last. Of several traces of one rank the one that was
    compared."""
    ranked = {rank: [_absent(rank, "missing")] for rank in report.missing}
    ranked |= {trace.rank: [_absent(trace.rank, "unreadable")] for trace in report.unreadable if trace.rank is not None}
    used = _used(report)
    shown = Counter(report.ranks[number].rank for number in used)
    for rank in shown:
        if rank is not None:
            ranked[rank] = []
    nameless: list[Slot] = []
    for number in used:
        row = report.ranks[number]
        several = row.rank is not None and shown[row.rank] > 1
        label = row_name(row) if row.rank is None else f"{row.rank}:{row.device}" if several else str(row.rank)
        slot = Slot(row_name(row, device=several), label, "known", number)
        (nameless if row.rank is None else ranked[row.rank]).append(slot)
    return (*(slot for rank in sorted(ranked) for slot in ranked[rank]), *nameless)


def _absent(rank: int, state: State) -> Slot:
    return Slot(f"rank {rank}", str(rank), state, None)


def _used(report: RanksReport) -> list[int]:
    """Numbers of the rows that stand for their rank: those that were compared; where none was, of its first trace."""
    compared = {row.rank for row in report.ranks if row.joined}
    first: dict[int | None, str] = {}
    for row in report.ranks:
        first.setdefault(row.rank, row.source)

    def stands(row: RankRow) -> bool:
        return row.rank is None or (row.joined if row.rank in compared else row.source == first[row.rank])

    return [number for number, row in enumerate(report.ranks) if stands(row)]


def ticks_for(count: int) -> list[int]:
    """Which of so many places in one line are labelled: sixteen or fewer, each a multiple of a power of two."""
    every = 1
    while count > _LABELS * every:
        every *= 2
    return list(range(0, count, every))


def slot_at(report: RanksReport, x: int, y: int = 0) -> Slot | None:
    """The place in a line of a map of ranks; all are in the first of a chart that has one line."""
    places = slots(report)
    number = y * columns_for(len(places)) + x
    return places[number] if 0 <= number < len(places) else None


def columns_for(count: int) -> int:
    """How many places stand in a line: a power of two, as ranks in a host are, so that a map is no taller than wide."""
    columns = _LEAST_COLUMNS
    while columns * columns < count:
        columns *= 2
    return columns
