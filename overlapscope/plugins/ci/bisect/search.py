"""The search for the first bad candidate of a series or of a repository's commits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from overlapscope.contracts.compare import Promise
from overlapscope.plugins.ci.bisect.judge import ByOrder, by_order, same
from overlapscope.plugins.ci.bisect.result import BisectOutcome, Judge, Verdict

Tell = Callable[[str, Verdict, str], None]
"""Function that shows the verdict on a candidate, with its reason."""


class Candidates(Protocol):
    """Candidates in their order."""

    def first_bad(self, good: str, bad: str, judge: Judge) -> list[str]:
        """Return the first bad candidate, or all that may be it since they are skipped."""

    def before(self, candidate: str, good: str) -> Sequence[str]:
        """Return the predecessors of a candidate that come after GOOD."""


class TraceSeries(Struct, frozen=True):
    """Candidates one after the other."""

    ids: Sequence[str]

    def first_bad(self, good: str, bad: str, judge: Judge) -> list[str]:
        begin, end = self.ids.index(good), self.ids.index(bad)
        skipped: set[int] = set()
        while left := [number for number in range(begin + 1, end) if number not in skipped]:
            middle = left[len(left) // 2]
            match judge(self.ids[middle], len(left) + 1):
                case "good":
                    begin = middle
                case "bad":
                    end = middle
                case _:
                    skipped.add(middle)
        return list(self.ids[begin + 1 : end + 1])

    def before(self, candidate: str, good: str) -> Sequence[str]:
        number = self.ids.index(candidate)
        return self.ids[max(self.ids.index(good) + 1, number - 1) : number]


class Found(Struct, frozen=True):
    """The end of a search."""

    candidates: Sequence[str]
    """The first bad candidate, or all that may be it."""
    lost: tuple[Promise, ...]
    """Losses of the first bad one that were searched for; all of these if it is unknown."""


def first_that_loses(
    candidates: Candidates,
    ends: tuple[str, str],
    wanted: tuple[Promise, ...],
    outcome_of: Callable[[str, int], BisectOutcome],
    repeats: Callable[[str, ByOrder], bool],
    tell: Tell,
) -> Found:
    """Return the first candidate that loses something of what BAD lost.

    A loss that was at another place before, such as in a function that was renamed since, is followed there. The
    verdicts on the first one and on those before it must repeat; if one doesn't, that candidate is skipped.

    Args:
        candidates: The candidates.
        ends: GOOD and BAD.
        wanted: Losses to search for.
        outcome_of: Returns the outcome of a candidate, after recording it if necessary. It also gets the number of
            candidates that may be the first bad one.
        repeats: Returns whether another recording of a candidate gets the same verdict. If not, its outcome is a
            problem afterwards.
        tell: Shows each verdict and its reason.
    """
    good, bad = ends
    verdict = by_order(wanted)

    def judge(candidate: str, left: int) -> Verdict:
        mark, reason = verdict(outcome_of(candidate, left))
        tell(candidate, mark, reason)
        return mark

    while True:
        found = candidates.first_bad(good, bad, judge)
        if len(found) > 1:
            return Found(found, wanted)
        first, sides = found[0], candidates.before(found[0], good)
        if not all(repeats(each, verdict) for each in (first, *sides)):
            continue
        here = outcome_of(first, 1).lost
        lost = same(here, wanted)
        for side in sides:
            moved = same(outcome_of(side, 1).lost, lost, moved=True)
            if moved and not same(moved, here):
                bad, wanted, verdict = side, moved, by_order(moved)
                break
        else:
            return Found(found, lost)


def steps_left(candidates: int) -> int:
    """Return how many of them have to be judged, if none is skipped."""
    return math.ceil(math.log2(candidates)) if candidates > 1 else 0
