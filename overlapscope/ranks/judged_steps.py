"""Steps that a rank judges: they are what delays and waits are measured in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from overlapscope.base.columns import Columns
from overlapscope.base.intervals import I64


class RankSteps(Columns, frozen=True):
    """Judged steps of a rank by start, one row each, without steps that share a name."""

    names: tuple[str, ...]
    """Name of each step; not a column."""
    start_ns: I64
    """Start by the trace's own clock."""
    end_ns: I64


NO_STEPS = RankSteps.empty(names=())


def without_namesakes(names: Sequence[str], start_ns: I64, end_ns: I64) -> RankSteps:
    """Return the judged steps of a rank, given all of them."""
    times = Counter(names)
    once = [row for row, name in enumerate(names) if times[name] == 1]
    return RankSteps(tuple(names[row] for row in once), start_ns[once], end_ns[once])
