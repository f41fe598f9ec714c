"""Table of the collectives of process groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from overlapscope.analysis.average import rounded_mean
from overlapscope.base.words import NOTHING, bandwidth, bare_share, clean, plural, size, unit_for
from overlapscope.documents.table import Cell, Column, Table, Tone, table_of, words
from overlapscope.ranks.comm_result import CommTime, Communication, GroupCollective
from overlapscope.ranks.group_names import group_name
from overlapscope.ranks.result import RanksReport
from overlapscope.ranks.verdict import NAME_LIMIT


def groups_table(report: RanksReport, *, rows: int) -> Table:
    """Return the table of the collectives of each process group: figures of an average step of an average rank."""
    every = report.communication
    if not every.rows:
        return Table("", ())
    shown = every.rows[:rows]
    steps = every.steps or 1
    unit = unit_for(max(rounded_mean(row.time.busy_ns, row.ranks * steps) for row in shown))

    def time(of: Callable[[CommTime], int]) -> Callable[[GroupCollective], Cell]:
        return lambda row: Cell(unit.number(rounded_mean(of(row.time), row.ranks * steps)))

    def count(row: GroupCollective) -> Cell:
        return Cell(f"{row.count / (row.ranks * steps):,.3g}")

    def moved(row: GroupCollective) -> Cell:
        return Cell(size(None if row.bytes is None else rounded_mean(row.bytes, row.ranks * steps)))

    table = table_of(
        shown,
        (words("collective", flexible=True), lambda row: Cell(clean(row.collective, NAME_LIMIT))),
        (Column("group", number=False, flexible=True), lambda row: Cell(group_name(row))),
        (Column("ranks", spare=1), lambda row: Cell(str(row.group_size or row.ranks))),
        (Column("count", spare=4), count),
        (Column("message", spare=5), moved),
        (Column(f"busy {unit.name}"), time(lambda spent: spent.busy_ns)),
        (Column("exposed"), time(lambda spent: spent.exposed_ns)),
        (Column("waiting"), time(lambda spent: spent.waiting_ns)),
        (Column("transfer", spare=3), time(lambda spent: spent.transfer_ns)),
        *_speeds(every, shown),
        (Column("factor", number=False, spare=2), lambda row: Cell(row.bus_factor or NOTHING)),
        title=f"Communication by process group, {'an average step' if every.steps else 'all time after the lead-in'}",
    )
    judged = f"{bare_share(every.time.busy_ns - every.time.unjudged_ns, every.time.busy_ns)}%"
    over = f"{plural(every.steps, 'step')} and " if every.steps else ""
    note = (
        f"Means over {over}the ranks of the group. Waiting: before the last rank arrived, or the other side of a "
        f"message began, known for {judged} of the communication. Bus bandwidth: message size by time after that, "
        f"times the factor of nccl-tests.{_link_note(every)}"
    )
    others = len(every.rows) - len(shown)
    return replace(table, note=f"{note} {plural(others, 'more row')} in the JSON." if others else note)


def _speeds(
    every: Communication, shown: Sequence[GroupCollective]
) -> Iterator[tuple[Column, Callable[[GroupCollective], Cell]]]:
    """Yield the columns of bus bandwidth and of the best one, if that is known."""
    slow = {(each.collective, each.group, each.group_ranks) for each in every.slow_groups}

    def reached(row: GroupCollective) -> Cell:
        tone: Tone = "poor" if (row.collective, row.group, row.group_ranks) in slow else ""
        return Cell(bandwidth(row.bus_gb_per_s), tone=tone)

    def best(row: GroupCollective) -> float | None:
        return every.dimensions[row.dimension].best_gb_per_s

    yield Column("bus GB/s"), reached
    if any(best(row) is not None for row in shown):
        yield Column("best", spare=6), lambda row: Cell(bandwidth(best(row)))


def _link_note(every: Communication) -> str:
    """Return a note on the best speeds; nothing if no speed is known."""
    if all(row.bus_gb_per_s is None for row in every.rows):
        return ""
    note = " Best: the highest in the dimension, of 3 collectives or more alike."
    if every.nvlink_gb_per_s is not None:
        note += (
            f" NVLink moves {every.nvlink_gb_per_s:g} GB/s each way by the data sheet; whether a group stays within it "
            "is unknown."
        )
    return note
