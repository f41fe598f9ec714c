"""Steps that all ranks judge, and the window of each rank from the first to the last of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct

from overlapscope.base.intervals import I64
from overlapscope.base.marks import step_number
from overlapscope.ranks.reduced import ComparedRank


class CommonSteps(Struct, frozen=True, eq=False):
    """Steps that all of some ranks judge, with a window for each rank by its own clock."""

    names: tuple[str, ...]
    """Names in the order of the first rank; empty if there are none."""
    begin_ns: I64
    """Start of the first of them; without any, end of the lead-in."""
    end_ns: I64
    """End of the last of them; without them, end of the recording."""


def common_steps(ranks: Sequence[ComparedRank], torn: Collection[int] = ()) -> CommonSteps:
    """Return the steps that all ranks judge; if some are torn by jumps of clocks, the longest run of the others."""
    steps = [rank.judged_steps for rank in ranks]
    names = tuple(name for name in steps[0].names if all(name in each.names for each in steps)) if steps else ()
    if torn:
        names = _longest_run({step_number(name): name for name in names if step_number(name) not in torn})
    begin = [rank.judged_from_ns for rank in ranks]
    end = begin if torn else [rank.end_ns for rank in ranks]
    if names:
        begin = [int(each.start_ns[each.names.index(names[0])]) for each in steps]
        end = [int(each.end_ns[each.names.index(names[-1])]) for each in steps]
    return CommonSteps(names, np.array(begin, np.int64), np.array(end, np.int64))


def _longest_run(names: Mapping[int, str]) -> tuple[str, ...]:
    """Return the names of the longest run of steps whose numbers follow each other."""
    by_run: defaultdict[int, list[str]] = defaultdict(list)
    for place, number in enumerate(sorted(names)):
        by_run[number - place].append(names[number])
    longest: list[str] = max(by_run.values(), key=len, default=[])
    return tuple(longest)
