"""Names of process groups and collectives for readers."""

from __future__ import annotations

from typing import Final, Protocol

from overlapscope.base.words import NOTHING, clean, number_runs
from overlapscope.ranks.result import LateIn, Meeting, RanksReport

_MOST_CHARACTERS: Final = 24
_MOST_DIGITS: Final = 9
"""Longer texts are not taken for numbers."""


def group_ranks(recorded: str) -> str:
    """Return the ranks with runs of them as one, such as `[0 to 7]`; an empty text if it would be long."""
    numbers = recorded.removeprefix("[").removesuffix("]").split(", ")
    plain = all(number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS for number in numbers)
    ranks = f"[{', '.join(number_runs(map(int, numbers)))}]" if plain else clean(recorded)
    return ranks if len(ranks) <= _MOST_CHARACTERS else ""


class NamedGroup(Protocol):
    """A process group as recorded."""

    @property
    def group(self) -> str:
        """Its name."""

    @property
    def description(self) -> str:
        """Its description."""

    @property
    def group_ranks(self) -> str:
        """Its ranks."""


def group_name(row: NamedGroup) -> str:
    """Return a process group's name, its description and, if they are few, its ranks."""
    name = " ".join(filter(None, (clean(row.group, 40), clean(row.description, 40))))
    return " ".join(filter(None, (name, group_ranks(row.group_ranks)))) or NOTHING


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
