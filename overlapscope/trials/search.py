"""Which run comes next, and what runs have shown: pure decisions from the runs so far.

The first round climbs a ladder: each change that fits is tried on top of those that were kept. The same sets are then
run again and again, each round in the reverse order of the one before, until they are told apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from overlapscope.trials.measure import RunNoise, StepChange, Timing, change, noise
from overlapscope.trials.protocol import RankResults, Setting
from overlapscope.trials.result import Sameness
from overlapscope.trials.sameness import SOUND, same_bits, sameness

Settings = tuple[Setting, ...]
AS_IS: Final[Settings] = ()

MOST_ROUNDS: Final = 10
FEWEST_ROUNDS: Final = 3
SHARP_PCT: Final = 0.5
"""Half the width of an interval that needs no more rounds, and the least gain that is worth an edit."""
_WITNESSES: Final = 4
"""Unchanged runs: their distances tell how far apart results are for no reason."""
_GROUND: Final = ("pin", "non-blocking")
"""Changes that later ones need: they are kept where they do no harm."""
_LUCK: Final = 0.05
"""Maximum probability of a recommendation if no change does anything (Bonferroni: over all sets compared)."""
_LUCK_PCT: Final = 1.0
"""What one run of each may differ by for no reason: less is no gain to build upon, and no harm."""


class Candidate(Struct, frozen=True):
    """A change that fits the program."""

    change: str
    values: tuple[str, ...] = ("",)
    """To be tried, of which the best goes on."""
    rising: bool = False
    """Values grow: where one does not pay, larger ones are not tried."""


class Planned(Struct, frozen=True):
    """A run to make."""

    settings: Settings
    round: int
    rounded: bool = False


class Run(Struct, frozen=True, eq=False):
    """A run that was made."""

    planned: Planned
    wall_s: float
    timing: Timing | None = None
    """None where it failed."""
    results: tuple[RankResults, ...] = ()
    """By rank."""
    failure: str = ""
    left_out: str = ""
    """Why the last change of the set could not be made after all, a sentence."""


class Runs(Struct, frozen=True):
    """All runs so far."""

    all: tuple[Run, ...] = ()

    def of(self, settings: Settings) -> tuple[Run, ...]:
        """The timed runs with these changes."""
        return tuple(run for run in self.all if run.planned.settings == settings and not run.planned.rounded)

    @property
    def unchanged(self) -> tuple[Run, ...]:
        """Those without a change whose results others are held against: the first few, and the rounded one."""
        known = [run for run in self.all if run.planned.settings == AS_IS and run.results]
        return tuple(sorted(known, key=lambda run: not run.planned.rounded)[:_WITNESSES])

    @property
    def rounded(self) -> bool:
        """Whether it is known what rounding alone does to the results."""
        return any(run.planned.rounded for run in self.all)

    def tried(self) -> tuple[Settings, ...]:
        """The sets of changes that were run, in the order in which they were first."""
        return tuple(
            dict.fromkeys(run.planned.settings for run in self.all if run.planned.settings and not run.left_out)
        )

    def failed(self, settings: Settings) -> str:
        """How a run with them failed; empty where none did."""
        return next((run.failure for run in self.of(settings) if run.failure), "")

    def results(self, settings: Settings) -> Sameness:
        """What became of the results; a difference in one run is a difference, once it is known what rounding does."""
        judged = [_judged(run, self.unchanged) for run in self.of(settings) if not run.failure]
        order: tuple[Sameness, ...] = ("different", "unknown", "within noise", "same")
        worst = min(judged, key=order.index, default=order[1])
        return "unknown" if worst == "different" and not self.rounded else worst

    def change(self, settings: Settings, base: Settings = AS_IS) -> StepChange | None:
        """By how much the step changes, over the rounds in which both were run; None where there is none."""
        before, after = self._by_round(base), self._by_round(settings)
        common = sorted(before.keys() & after.keys())
        return change([(before[number], after[number]) for number in common], self.noise()) if common else None

    def noise(self) -> RunNoise | None:
        """What runs differ by for no reason."""
        return noise([by_round for settings in (AS_IS, *self.tried()) if (by_round := self._by_round(settings))])

    def _by_round(self, settings: Settings) -> dict[int, Timing]:
        return {run.planned.round: run.timing for run in self.of(settings) if run.timing is not None}


@lru_cache(maxsize=512)
def _judged(run: Run, unchanged: tuple[Run, ...]) -> Sameness:
    """Sketches of large models take a while to compare."""
    return sameness(run.results, [other.results for other in unchanged])


class Ladder(Struct, frozen=True):
    """How far the first round has come."""

    kept: Settings
    """Changes that pay, by the runs so far."""
    next: Planned | None
    """None at the top."""


def climb(candidates: Sequence[Candidate], runs: Runs) -> Ladder:
    """Each candidate on top of those kept before it, judged by one run of each."""
    kept = AS_IS
    if not runs.of(AS_IS):
        return Ladder(kept, Planned(AS_IS, 1))
    for candidate in candidates:
        best: Settings = kept
        for value in candidate.values:
            settings = (*kept, Setting(candidate.change, value))
            tried = runs.of(settings)
            if not tried:
                return Ladder(best, Planned(settings, 1))
            witness = _witness(tried[0], runs)
            if witness is not None:
                return Ladder(best, witness)
            if _pays(runs, settings, best, candidate.change):
                best = settings
            elif candidate.rising:
                break
        kept = best
    return Ladder(kept, None)


def _witness(run: Run, runs: Runs) -> Planned | None:
    """The unchanged run that is lacking before results can be called different: another one, and a rounded one."""
    if not run.results or any(same_bits(run.results, other.results) for other in runs.unchanged):
        return None
    if not runs.rounded:
        return Planned(AS_IS, 1, rounded=True)
    return Planned(AS_IS, 0) if all(other.planned.round != 0 for other in runs.of(AS_IS)) else None


def _pays(runs: Runs, settings: Settings, best: Settings, changed: str) -> bool:
    """Whether later changes build on it."""
    found = runs.change(settings, best)
    if found is None or runs.of(settings)[0].left_out or runs.results(settings) == "different":
        return False
    low, high = found.within
    return (high < 0 and found.pct <= -_LUCK_PCT) or (changed in _GROUND and low <= _LUCK_PCT)


def rounds(runs: Runs, kept: Settings, left_s: float) -> tuple[Planned, ...]:
    """The next round over the sets that are worth more runs, as far as time is left; empty where no more is needed."""
    done = max((run.planned.round for run in runs.all), default=0)
    sets = worth_more(runs, kept)
    if done >= MOST_ROUNDS or len(sets) == 1:
        return ()
    if done >= FEWEST_ROUNDS and all(_is_sharp(runs, settings) for settings in sets[1:]):
        return ()
    cost = {settings: runs.of(settings)[-1].wall_s for settings in sets}
    if sum(cost.values()) > left_s:
        # What the answer rests on.
        answer = best(runs)
        sets = [settings for settings in sets if settings in (AS_IS, kept, answer)]
        # A single run of each says nothing that can be believed, so a second one may take longer than was asked for.
        if len(sets) == 1 or (done > 1 and sum(cost[settings] for settings in sets) > left_s):
            return ()
    number = done + 1
    return tuple(Planned(settings, number) for settings in (reversed(sets) if number % 2 == 0 else sets))


def worth_more(runs: Runs, kept: Settings) -> list[Settings]:
    """The program as it is, and of each change the value that was kept, or else was the fastest."""
    rivals: dict[tuple[Settings, str], list[Settings]] = {}
    for settings in runs.tried():
        if _goes_on(runs, settings):
            rivals.setdefault((settings[:-1], settings[-1].change), []).append(settings)

    def rank(settings: Settings) -> tuple[bool, float]:
        found = runs.change(settings)
        return settings != kept[: len(settings)], 0.0 if found is None else found.pct

    return [AS_IS, *(min(values, key=rank) for values in rivals.values())]


def _goes_on(runs: Runs, settings: Settings) -> bool:
    return not runs.failed(settings) and runs.results(settings) != "different"


def _is_sharp(runs: Runs, settings: Settings) -> bool:
    found = runs.change(settings)
    if found is None or found.over_runs is None:
        return False
    low, high = found.over_runs
    return (high - low) / 2 <= SHARP_PCT


def best(runs: Runs, racing: Collection[Settings] = ()) -> Settings | None:
    """The set to take: of those that are faster for sure, by enough, and compute the same, the fastest; of those that
    cannot be told from it, the one with the fewest changes. None where none is.

    Sets that are `racing` have data races.
    """
    compared = {
        settings: found
        for settings in runs.tried()
        if (found := runs.change(settings)) is not None and found.over_runs is not None
    }
    gains: Mapping[Settings, float] = {
        settings: found.pct
        for settings, found in compared.items()
        if runs.results(settings) in SOUND and not runs.failed(settings) and settings not in racing
        if found.pct <= -SHARP_PCT and found.interval[1] < 0 and len(compared) * found.luck <= _LUCK
    }
    if not gains:
        return None
    fastest = min(gains, key=lambda settings: gains[settings])
    return min((one for one in gains if _is_as_fast(runs, one, fastest)), key=lambda one: (len(one), gains[one]))


def _is_as_fast(runs: Runs, settings: Settings, fastest: Settings) -> bool:
    if settings == fastest:
        return True
    found = runs.change(settings, fastest)
    return found is not None and found.interval[0] <= 0
