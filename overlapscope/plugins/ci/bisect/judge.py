"""Verdicts, by order or by time, and the search for the first bad candidate."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from math import ceil, log2, sqrt
from statistics import fmean, stdev
from typing import Final, Protocol

from msgspec import Struct

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.periods import judged_steps
from overlapscope.base.words import duration, listed, plural
from overlapscope.contracts.compare import Promise
from overlapscope.contracts.judge import judge, promise
from overlapscope.contracts.model import Contract
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.plugins.ci.bisect.result import BisectOutcome, Judge, Verdict
from overlapscope.report.model import build
from overlapscope.trace.model import Trace

_LINE = re.compile(r":\d+")
_PLACE = re.compile(r"(?:, [^,()]+ in [^,()]+| \([^()]*\))$|:\d+| [\d.]+ [kMG]?B")
MIN_CHANGE: Final = 0.03
"""Smallest change of a step time to search for, as a fraction. Recordings of the same program differ by that."""
MIN_STANDARD_ERRORS: Final = 3.0
"""Number of standard errors between a mean and the border, for a verdict."""
MIN_RUNS: Final = 3
MAX_RUNS: Final = 12


# -- By order ----------------------------------------------------------------------------------------


def contract_of(trace: Trace) -> Contract:
    """Return the contract that a recording keeps, also if the program uses no GPU. Raises UsageError."""
    _check_steps(trace)
    return promise(trace)


def judged_by_order(contract: Contract, trace: Trace) -> BisectOutcome:
    """Return the promises that a recording breaks."""
    try:
        _check_steps(trace)
        if (contract.host_ops is None) != bool(len(trace.gpu_ops)):
            uses = "a" if len(trace.gpu_ops) else "no"
            return BisectOutcome(problem=f"it uses {uses} GPU, unlike GOOD.")
        obstacles, promises = judge(contract, trace, analyze_trace(trace).result)
    except OverlapscopeError as error:
        return BisectOutcome(problem=str(error))
    if obstacles:
        return BisectOutcome(problem=obstacles[0].sentence)
    lost, unknown = (tuple(each for each in promises if each.result == kind) for kind in ("lost", "unknown"))
    gone = tuple(_transfer(each) for each in promises if each.part == "amount" and each.value == 0)
    return BisectOutcome(lost=lost, unknown=unknown, gone=gone)


def _transfer(promise: Promise) -> str:
    """Return the copies that a promise is about, as in `overlap of H2D 16.8 MB (train.py:88)`."""
    return promise.name.partition(" of ")[2]


def _check_steps(trace: Trace) -> None:
    if not len(judged_steps(trace)):
        raise UsageError(
            "no steps were recorded; state what a step is, such as with `--run-options '--steps-by forward'`."
        )


def same(promises: Sequence[Promise], others: Collection[Promise], *, moved: bool = False) -> tuple[Promise, ...]:
    """Return the promises that are among others by name, whatever their line; with `moved`, whatever their place."""
    ignored = _PLACE if moved else _LINE

    def key(promise: Promise) -> tuple[str, str]:
        return promise.part, ignored.sub("", promise.name)

    wanted = {key(other) for other in others}
    return tuple(each for each in promises if key(each) in wanted)


ByOrder = Callable[[BisectOutcome], tuple[Verdict, str]]


def by_order(wanted: Sequence[Promise]) -> ByOrder:
    """Return a function that judges outcomes by the losses that are searched for, and gives the reason."""

    def verdict(outcome: BisectOutcome) -> tuple[Verdict, str]:
        if outcome.problem:
            return "skipped", outcome.problem
        if lost := same(outcome.lost, wanted):
            return "bad", f"loses {names(lost)}"
        if unknown := same(outcome.unknown, wanted):
            return "skipped", f"uncertain: {names(unknown)}"
        if gone := listed((_transfer(each) for each in wanted if _transfer(each) in outcome.gone), 2):
            return "skipped", f"it has no {gone}"
        return "good", f"loses {names(outcome.lost)}, which BAD keeps" if outcome.lost else "keeps all"

    return verdict


def names(promises: Sequence[Promise]) -> str:
    """Return promises by name, in a few words."""
    return listed((each.name for each in promises), 2)


# -- By time -----------------------------------------------------------------------------------------


def step_ns_of(trace: Trace) -> int:
    """Return the step time without the profiler. Raises UsageError if it wasn't timed."""
    result = build([analyze_trace(trace)], replayed=False).traces[0]
    plains = [device.plain for device in result.devices]
    plains += [result.host.plain] if result.host is not None else []
    known = [plain.step_ns for plain in plains if plain is not None]
    if not known:
        raise UsageError("its steps were not timed without the profiler; let the program make more steps.")
    return max(known)


class Border(Struct, frozen=True):
    """Step times of GOOD and BAD, and the border between them."""

    good_ns: tuple[int, ...]
    bad_ns: tuple[int, ...]

    def sides(self) -> Iterator[tuple[int, ...]]:
        yield self.good_ns
        yield self.bad_ns

    @property
    def middle_ns(self) -> float:
        return fmean(map(fmean, self.sides()))

    @property
    def noise_ns(self) -> float:
        """Standard deviation of a run."""
        return sqrt(fmean(stdev(side) ** 2 for side in self.sides()))

    @property
    def differs(self) -> bool:
        """True if BAD's steps are longer by more than the noise of the means."""
        good, bad = map(fmean, self.sides())
        error = self.noise_ns * sqrt(sum(1 / len(side) for side in self.sides()))
        return bad - good > max(MIN_CHANGE * good, MIN_STANDARD_ERRORS * error)

    @property
    def words(self) -> str:
        """Both step times."""
        good, bad = (f"{duration(fmean(side))} ({plural(len(side), 'run')})" for side in self.sides())
        return f"a step takes {bad}, GOOD's {good}"

    def verdict(self, outcome: BisectOutcome) -> tuple[Verdict, str] | None:
        """Return whether steps are as long as BAD's; None if more runs have to tell."""
        if outcome.problem:
            return "skipped", outcome.problem
        mean, runs = fmean(outcome.steps_ns), len(outcome.steps_ns)
        words = f"a step takes {duration(mean)} ({plural(runs, 'run')})"
        if abs(mean - self.middle_ns) > MIN_STANDARD_ERRORS * self.noise_ns / sqrt(runs):
            return ("bad" if mean > self.middle_ns else "good"), words
        return ("skipped", f"{words}, between both") if runs >= MAX_RUNS else None


# -- The search -------------------------------------------------------------------------------------

Tell = Callable[[str, Verdict, str], None]
"""Function that shows the verdict on a candidate, with its reason."""


class Candidates(Protocol):
    """Candidates in their order."""

    def first_bad(self, good: str, bad: str, judge: Judge) -> list[str]:
        """Return the first bad candidate, or all that may be it since they are skipped."""

    def before(self, candidate: str, good: str) -> Sequence[str]:
        """Return the predecessors of a candidate that come after GOOD."""

    def outcome_of(self, candidate: str, left: int, /) -> BisectOutcome:
        """Return the outcome of a candidate, of which `left` may be the first bad one."""

    def repeats(self, candidate: str, verdict: ByOrder, /) -> bool:
        """Return whether another recording gets the same verdict; if not, its outcome is a problem afterwards."""


class TraceSeries(Struct, frozen=True):
    """Candidates one after the other."""

    ids: Sequence[str]
    outcome_of: Callable[[str, int], BisectOutcome]
    repeats: Callable[[str, ByOrder], bool] = lambda candidate, verdict: True

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
    tell: Tell,
) -> Found:
    """Return the first candidate that loses something of what BAD lost.

    A loss that was at another place before, such as in a function that was renamed since, is followed there. The
    verdicts on the first one and on those before it must repeat; if one doesn't, that candidate is skipped.

    Args:
        candidates: The candidates.
        ends: GOOD and BAD.
        wanted: Losses to search for.
        tell: Shows each verdict and its reason.
    """
    good, bad = ends
    verdict = by_order(wanted)

    def judge(candidate: str, left: int) -> Verdict:
        mark, reason = verdict(candidates.outcome_of(candidate, left))
        tell(candidate, mark, reason)
        return mark

    while True:
        found = candidates.first_bad(good, bad, judge)
        if len(found) > 1:
            return Found(found, wanted)
        first, sides = found[0], candidates.before(found[0], good)
        if not all(candidates.repeats(each, verdict) for each in (first, *sides)):
            continue
        here = candidates.outcome_of(first, 1).lost
        lost = same(here, wanted)
        for side in sides:
            moved = same(candidates.outcome_of(side, 1).lost, lost, moved=True)
            if moved and not same(moved, here):
                bad, wanted, verdict = side, moved, by_order(moved)
                break
        else:
            return Found(found, lost)


def steps_left(candidates: int) -> int:
    """Return how many of them have to be judged, if none is skipped."""
    return ceil(log2(candidates)) if candidates > 1 else 0
