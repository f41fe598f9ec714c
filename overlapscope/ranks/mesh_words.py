"""The mesh of a job in words: its dimensions, what each costs, and groups slower than their peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from overlapscope.analysis.average import rounded_mean
from overlapscope.base.words import NOTHING, bandwidth, clean, listed, number_runs, percent, plural, size, unit_for
from overlapscope.documents.table import Cell, Column, Table, table_of, words
from overlapscope.ranks.comm_result import CommDimension, CommTime, Communication, SlowGroup
from overlapscope.ranks.frame import rows_of
from overlapscope.ranks.group_names import group_name
from overlapscope.ranks.result import LEAST_PCT, RanksReport

_NAME_LIMIT: Final = 40
_MOST_SETS: Final = 2
_MOST_SLOW: Final = 2
_WORTH_NAMING: Final = 0.05
"""Minimum share of a dimension in the exposed communication to be named."""


def mesh_sentences(report: RanksReport) -> Iterator[str]:
    """State the mesh if it has several dimensions, what each costs, and which groups are slower than their peers."""
    every = report.communication
    if every.mesh is not None and len(every.mesh.shape) > 1:
        yield _mesh(every, every.mesh.shape)
    yield from _exposed(every)
    costly = [slow for slow in every.slow_groups if _costs(report, every, slow)]
    for slow in costly[:_MOST_SLOW]:
        yield (
            f"Group {group_name(slow)} transfers at {bandwidth(slow.bus_gb_per_s)} GB/s, "
            f"{plural(slow.peers, 'other group')} of {_name(every.dimensions[slow.dimension])} at "
            f"{bandwidth(slow.peers_gb_per_s)} GB/s ({clean(slow.collective, _NAME_LIMIT)} of {size(slow.bytes)}): a "
            "slow link or network card, other traffic, or compute beside it."
        )


def _exposed(every: Communication) -> Iterator[str]:
    """State each dimension's part of the exposed communication if several are known."""
    whole, known = every.time.exposed_ns, [each for each in every.dimensions if each.group_size is not None]
    costly = [each for each in every.dimensions if each.time.exposed_ns > _WORTH_NAMING * whole > 0]
    if len(known) > 1 and costly:
        shares = listed(f"{_name(each)} {percent(100 * each.time.exposed_ns / whole)}" for each in costly)
        together = ", partly at the same time" if sum(each.time.exposed_ns for each in costly) > whole else ""
        yield f"Exposed communication by dimension: {shares}{together}."


def _mesh(every: Communication, shape: tuple[int, ...]) -> str:
    parts = []
    for place, length in enumerate(shape):
        own = [each for each in every.dimensions if each.spans == (place,)]
        names = dict.fromkeys(map(_name, own))
        parts.append(f"{listed(names)} across {_sets(own[0])}" if own else f"{length} without groups of its own")
    return f"Mesh: {_shape(shape)}: {'; '.join(parts)}."


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{length:,}" for length in shape)


def _name(dimension: CommDimension) -> str:
    return clean(dimension.name, _NAME_LIMIT) or "unknown groups"


def _sets(dimension: CommDimension) -> str:
    """Return the ranks of the first groups, such as `{0, 4}, {1, 5}, ...`."""
    sets = [f"{{{', '.join(number_runs(ranks))}}}" for ranks in dimension.group_ranks[:_MOST_SETS]]
    return ", ".join([*sets, *(["..."] if len(dimension.group_ranks) > len(sets) else [])])


def _costs(report: RanksReport, every: Communication, slow: SlowGroup) -> bool:
    """Return whether a slow group loses at least 1% of the ranks' time."""
    spans = [row.span_ns for row in rows_of(report) if row.joined]
    return bool(spans) and 100 * slow.lost_ns >= LEAST_PCT * (every.steps or 1) * max(spans)


def dimensions_table(report: RanksReport, *, rows: int) -> Table:
    """Return the table of dimensions if there are several: figures of an average step of an average rank."""
    every = report.communication
    if len(every.dimensions) < 2:
        return Table("", ())
    shown = every.dimensions[:rows]
    steps = every.steps or 1
    unit = unit_for(max(rounded_mean(each.time.busy_ns, max(each.ranks, 1) * steps) for each in shown))

    def time(of: Callable[[CommTime], int]) -> Callable[[CommDimension], Cell]:
        return lambda each: Cell(unit.number(rounded_mean(of(each.time), max(each.ranks, 1) * steps)))

    def groups(each: CommDimension) -> Cell:
        return Cell(f"{each.groups:,} x {NOTHING if each.group_size is None else f'{each.group_size:,}'}")

    table = table_of(
        shown,
        (words("dimension", flexible=True), lambda each: Cell(_name(each))),
        (Column("groups", number=False), groups),
        (Column("ranks", number=False, flexible=True, spare=1), lambda each: Cell(_sets(each) or NOTHING)),
        (Column(f"busy {unit.name}"), time(lambda spent: spent.busy_ns)),
        (Column("exposed"), time(lambda spent: spent.exposed_ns)),
        (Column("waiting"), time(lambda spent: spent.waiting_ns)),
        (Column("transfer"), time(lambda spent: spent.transfer_ns)),
        (Column("not judged", spare=2), time(lambda spent: spent.unjudged_ns)),
        title=f"Communication by dimension, {'an average step' if every.steps else 'all time after the lead-in'}",
    )
    mesh = every.mesh
    note = ""
    if mesh is not None:
        note = f"Mesh: {_shape(mesh.shape)}." if mesh.shape else f"The mesh is unknown: {clean(mesh.reason, 200)}."
    others = len(every.dimensions) - len(shown)
    return replace(table, note=f"{note} {plural(others, 'more row')} in the JSON.".lstrip() if others else note)
