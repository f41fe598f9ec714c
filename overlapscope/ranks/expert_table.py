"""Table of the load of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec.structs import replace

from overlapscope.analysis.average import rounded_mean
from overlapscope.base.words import NOTHING, plural, size, unit_for
from overlapscope.documents.table import Cell, Column, Table, table_of, words
from overlapscope.ranks.comm_result import CommTime, ExpertExchange, ExpertRank
from overlapscope.ranks.frame import rows_of
from overlapscope.ranks.group_names import group_name
from overlapscope.ranks.result import RanksReport

_LEAST_SHARE = 0.01
"""Minimum share of the elements of all exchanges to be shown: counts of tokens are exchanged before tokens."""

_Row: TypeAlias = tuple[ExpertExchange, ExpertRank]


def load_of_experts(report: RanksReport, *, rows: int) -> Table:
    """Return the table of ranks by the load of their experts, the highest first: figures of an average step."""
    exchanges = _shown(report)
    steps = report.communication.steps or 1
    every: list[_Row] = [(exchange, rank) for exchange in exchanges for rank in exchange.ranks]
    every.sort(key=lambda row: (-(row[1].load or 0), -(row[1].received_elements or 0), row[1].rank))
    computed = {row.rank: row.buckets.compute_ns for row in rows_of(report) if row.joined}
    unit = unit_for(max((rank.time.busy_ns // steps for _, rank in every), default=0))
    longest = unit_for(max((computed.get(rank.rank) or 0 for _, rank in every), default=0))
    counted = any(rank.loaded_rows is not None for _, rank in every)

    def moved(of: Callable[[ExpertRank], int | None]) -> Callable[[_Row], Cell]:
        return lambda row: Cell(size(_bytes(row, of(row[1]), steps)))

    def time(of: Callable[[CommTime], int | None]) -> Callable[[_Row], Cell]:
        return lambda row: Cell(unit.number(None if (ns := of(row[1].time)) is None else rounded_mean(ns, steps)))

    def judged(of: Callable[[CommTime], int]) -> Callable[[_Row], Cell]:
        return time(lambda spent: of(spent) if spent.unjudged_ns < spent.busy_ns else None)

    table = table_of(
        every[:rows],
        (words("rank"), lambda row: Cell(str(row[1].rank))),
        (Column("group", number=False, flexible=True), lambda row: Cell(group_name(row[0]))),
        (Column("load"), lambda row: Cell(NOTHING if row[1].load is None else f"{row[1].load:.2f}")),
        (Column("rows", spare=1), lambda row: Cell(_rows(row[1].loaded_rows, steps))) if counted else None,
        (Column("sends", spare=2), moved(lambda rank: rank.sent_elements)),
        (Column("receives"), moved(lambda rank: rank.received_elements)),
        (Column(f"busy {unit.name}"), time(lambda spent: spent.busy_ns)),
        (Column("waiting"), judged(lambda spent: spent.waiting_ns)),
        (Column("transfer", spare=3), judged(lambda spent: spent.transfer_ns)),
        (Column(f"compute {longest.name}"), lambda row: Cell(longest.number(computed.get(row[1].rank)))),
        title=f"Load of experts, {_frame(report)}",
    )
    return replace(table, note=_note(exchanges, len(every) - rows, counted=counted))


def _shown(report: RanksReport) -> list[ExpertExchange]:
    total = sum(map(_elements, report.experts))
    return [exchange for exchange in report.experts if _elements(exchange) >= max(1, _LEAST_SHARE * total)]


def _elements(exchange: ExpertExchange) -> int:
    return sum(rank.received_elements or 0 for rank in exchange.ranks)


def _frame(report: RanksReport) -> str:
    return "an average step" if report.communication.steps else "all time after the lead-in"


def _bytes(row: _Row, elements: int | None, steps: int) -> int | None:
    element_bytes = row[0].element_bytes
    return None if elements is None or element_bytes is None else rounded_mean(elements * element_bytes, steps)


def _rows(count: int | None, steps: int) -> str:
    return NOTHING if count is None else f"{rounded_mean(count, steps):,}"


def _note(exchanges: list[ExpertExchange], left_out: int, *, counted: bool) -> str:
    known = [exchange for exchange in exchanges if exchange.skew is not None]
    if known:
        note = "Load: elements that the rank receives for its experts, as a multiple of the mean rank's."
        note += f" In a single exchange, the most is {max(each.skew or 0 for each in known):.2f} times the mean."
        followed, last = sum(each.followed for each in known), sum(each.largest_last for each in known)
        if followed:
            note += (
                f" After {last:,} of {plural(followed, 'exchange')} the rank that received most comes last to the next."
            )
        if not counted:
            note += " Rows are unknown, because PyTorch shortened the lists of split sizes."
    else:
        note = "Load is unknown: no exchange could be compared between all ranks of its group."
    return f"{note} {plural(left_out, 'more row')} in the JSON." if left_out > 0 else note
