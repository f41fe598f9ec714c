"""Process groups, their collectives and the dimensions of the mesh, in words and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from overlapscope.analysis.facts import rounded_mean
from overlapscope.base.words import (
    NOTHING,
    Unit,
    bandwidth,
    bare_share,
    clean,
    listed,
    number_runs,
    percent,
    plural,
    size,
    unit_for,
)
from overlapscope.documents.table import Cell, Column, Table, table_of, words
from overlapscope.ranks.comm_result import CommDimension, CommTime, Communication, GroupCollective
from overlapscope.ranks.result import MIN_PCT, LateIn, Meeting, RanksReport, rows_of

NAME_LIMIT: Final = 120
_MAX_CHARACTERS: Final = 24
_MAX_DIGITS: Final = 9
"""Longer texts are not taken for numbers."""


def group_ranks(recorded: str) -> str:
    """Return the ranks with runs of them as one, such as `[0 to 7]`; an empty text if it would be long."""
    numbers = recorded.removeprefix("[").removesuffix("]").split(", ")
    plain = all(number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS for number in numbers)
    ranks = f"[{', '.join(number_runs(map(int, numbers)))}]" if plain else clean(recorded)
    return ranks if len(ranks) <= _MAX_CHARACTERS else ""


def group_name(group: str, description: str, ranks: str) -> str:
    """Return a process group's name, its description and, if they are few, its ranks."""
    return " ".join(filter(None, (clean(group, 40), clean(description, 40), group_ranks(ranks)))) or NOTHING


def collective(report: RanksReport, met: LateIn | Meeting) -> str:
    """Return a collective's name, and its group if the job has several: `allreduce of [0, 8]`.

    If few ranks are in no other group, they say enough of it.
    """
    groups = {(row.group, row.group_ranks) for row in (*report.communication.rows, met)}
    ranks = group_ranks(met.group_ranks)
    alone = len({group for group, ranks_of in groups if ranks_of == met.group_ranks}) == 1
    named = " ".join(filter(None, (clean(met.group, 40), ranks)))
    name = ranks if ranks and alone else f"group {named}" if named else "an unknown group"
    return f"{clean(met.collective, 80)}{f' of {name}' if len(groups) > 1 else ''}"


def meeting_name(report: RanksReport, meeting: Meeting) -> str:
    """Return a meeting's name, such as `allreduce of group dp, no. 12`, counted from 0 as in the JSON."""
    return f"{collective(report, meeting)}, no. {meeting.index}"


# -- Collectives of process groups -------------------------------------------------------------------


def _basis(communication: Communication) -> str:
    return "an average step" if communication.steps else "all time after the lead-in"


def _shares(communication: Communication, row: GroupCollective | CommDimension) -> int:
    """Return the number of ranks and steps that a figure of a row is the sum of."""
    return max(row.ranks, 1) * (communication.steps or 1)


def _times(
    communication: Communication, shown: Sequence[GroupCollective | CommDimension]
) -> tuple[Unit, Callable[[Callable[[CommTime], int]], Callable[[GroupCollective | CommDimension], Cell]]]:
    """Return a unit for the times of some rows, and a function of columns of them: of an average step and rank."""
    unit = unit_for(max(rounded_mean(row.time.busy_ns, _shares(communication, row)) for row in shown))
    return unit, lambda of: lambda row: Cell(unit.number(rounded_mean(of(row.time), _shares(communication, row))))


def groups_table(report: RanksReport, *, rows: int) -> Table:
    """Return the table of the collectives of each process group: figures of an average step of an average rank."""
    communication = report.communication
    if not communication.rows:
        return Table("", ())
    shown = communication.rows[:rows]
    unit, time = _times(communication, shown)
    slow = {(each.collective, each.group, each.group_ranks) for each in communication.slow_groups}

    def bus(row: GroupCollective) -> Cell:
        is_slow = (row.collective, row.group, row.group_ranks) in slow
        return Cell(bandwidth(row.bus_gb_per_s), tone="poor" if is_slow else "")

    def moved(row: GroupCollective) -> Cell:
        return Cell(size(None if row.bytes is None else rounded_mean(row.bytes, _shares(communication, row))))

    table = table_of(
        shown,
        (words("collective", flexible=True), lambda row: Cell(clean(row.collective, NAME_LIMIT))),
        (
            Column("group", number=False, flexible=True),
            lambda row: Cell(group_name(row.group, row.description, row.group_ranks)),
        ),
        (Column("ranks", spare=1), lambda row: Cell(str(row.group_size or row.ranks))),
        (Column("count", spare=4), lambda row: Cell(f"{row.count / _shares(communication, row):,.3g}")),
        (Column("message", spare=5), moved),
        (Column(f"busy {unit.name}"), time(lambda spent: spent.busy_ns)),
        (Column("exposed"), time(lambda spent: spent.exposed_ns)),
        (Column("waiting"), time(lambda spent: spent.waiting_ns)),
        (Column("transfer", spare=3), time(lambda spent: spent.transfer_ns)),
        (Column("bus GB/s"), bus),
        title=f"Communication by process group, {_basis(communication)}",
    )
    judged = f"{bare_share(communication.time.busy_ns - communication.time.unjudged_ns, communication.time.busy_ns)}%"
    over = f"{plural(communication.steps, 'step')} and " if communication.steps else ""
    note = (
        f"Means over {over}the ranks of the group. Waiting: before the last rank arrived, or the other side of a "
        f"message began, known for {judged} of the communication. Bus bandwidth: message size by time after that, "
        "times the factor of nccl-tests."
    )
    others = len(communication.rows) - len(shown)
    return replace(table, note=f"{note} {plural(others, 'more row')} in the JSON." if others else note)


# -- Dimensions of the mesh --------------------------------------------------------------------------

_NAME_LIMIT: Final = 40
_MAX_SETS: Final = 2
_MAX_SLOW: Final = 2
_WORTH_NAMING: Final = 0.05
"""Minimum share of a dimension in the exposed communication to be named."""


def mesh_sentences(report: RanksReport) -> Iterator[str]:
    """State the mesh if it has several dimensions, what each costs, and which groups are slower than their peers."""
    communication = report.communication
    if communication.mesh is not None and len(shape := communication.mesh.shape) > 1:
        parts = []
        for place, length in enumerate(shape):
            along = [each for each in communication.dimensions if each.spans == (place,)]
            wider = [each for each in communication.dimensions if place in each.spans and len(each.spans) < len(shape)]
            names = listed(dict.fromkeys(map(_name, along or wider)))
            others = f"{length} within {names}" if wider else f"{length} without groups of its own"
            parts.append(f"{names} across {_sets(along[0])}" if along else others)
        yield f"Mesh: {_shape(shape)}: {'; '.join(parts)}."
    whole, known = (
        communication.time.exposed_ns,
        [each for each in communication.dimensions if each.group_size is not None],
    )
    costly = [each for each in communication.dimensions if each.time.exposed_ns > _WORTH_NAMING * whole > 0]
    if len(known) > 1 and costly:
        shares = listed(f"{_name(each)} {percent(100 * each.time.exposed_ns / whole)}" for each in costly)
        together = ", partly at the same time" if sum(each.time.exposed_ns for each in costly) > whole else ""
        yield f"Exposed communication by dimension: {shares}{together}."
    # A slow group loses at least 1% of the ranks' time.
    longest = max((row.span_ns for row in rows_of(report) if row.joined), default=None)
    least = None if longest is None else MIN_PCT * (communication.steps or 1) * longest
    slow_groups = [slow for slow in communication.slow_groups if least is not None and 100 * slow.lost_ns >= least]
    for slow in slow_groups[:_MAX_SLOW]:
        name = group_name(slow.group, slow.description, slow.group_ranks)
        yield (
            f"Group {name} transfers at {bandwidth(slow.bus_gb_per_s)} GB/s, "
            f"{plural(slow.peers, 'other group')} of {_name(communication.dimensions[slow.dimension])} at "
            f"{bandwidth(slow.peers_gb_per_s)} GB/s ({clean(slow.collective, _NAME_LIMIT)} of {size(slow.bytes)}): a "
            "slow link or network card, other traffic, or compute beside it."
        )


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{length:,}" for length in shape)


def _name(dimension: CommDimension) -> str:
    return clean(dimension.name, _NAME_LIMIT) or "unknown groups"


def _sets(dimension: CommDimension) -> str:
    """Return the ranks of the first groups, such as `{0, 4}, {1, 5}, ...`."""
    sets = [f"{{{', '.join(number_runs(ranks))}}}" for ranks in dimension.group_ranks[:_MAX_SETS]]
    return ", ".join([*sets, *(["..."] if len(dimension.group_ranks) > len(sets) else [])])


def dimensions_table(report: RanksReport, *, rows: int) -> Table:
    """Return the table of dimensions if there are several: figures of an average step of an average rank."""
    communication = report.communication
    if len(communication.dimensions) < 2:
        return Table("", ())
    shown = communication.dimensions[:rows]
    unit, time = _times(communication, shown)

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
        title=f"Communication by dimension, {_basis(communication)}",
    )
    mesh = communication.mesh
    note = ""
    if mesh is not None:
        note = f"Mesh: {_shape(mesh.shape)}." if mesh.shape else f"The mesh is unknown: {clean(mesh.reason, 200)}."
    others = len(communication.dimensions) - len(shown)
    return replace(table, note=f"{note} {plural(others, 'more row')} in the JSON.".lstrip() if others else note)
