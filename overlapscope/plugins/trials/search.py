"""Pure decisions: the changes that fit a program, and from the runs so far, the next run and the findings.

The first round is a greedy search: each change that fits is tried on top of the changes kept before. The same sets are
then run again, each round in the reverse order of the previous round, until the results are clear.

A changed run's results are compared with those of control runs, in which nothing is changed. One of these (`rounded`)
rounds parameters differently, so it shows how far rounding alone moves the results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.words import plural
from overlapscope.plugins.trials.changes import CHANGES, COMPILE_MODES
from overlapscope.plugins.trials.measure import RunNoise, StepChange, Timing, change, noise
from overlapscope.plugins.trials.protocol import Facts, RankResults, Setting
from overlapscope.plugins.trials.result import LeftOut, Sameness
from overlapscope.plugins.trials.sameness import SOUND, WORST_LAST, same_bits, sameness

# -- Changes that fit the program --------------------------------------------------------------------

_ON_GPUS: Final = ("pin", "non-blocking", "prefetch", "graph")


class Candidate(Struct, frozen=True):
    """A change that fits the program."""

    change: str
    values: tuple[str, ...] = ("",)
    """Values to try; the best is kept."""
    rising: bool = False
    """True if values grow: after a value that does not pay, larger values are not tried."""


def candidates(facts: Facts, ranks: int, only: Collection[str]) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the changes to try, in the catalogue's order, and the changes that do not fit.

    Args:
        only: Changes to choose from; empty for all.
    """
    facts = replace(facts, cpus=facts.cpus // ranks)
    fitting: list[Candidate] = []
    unfit: list[LeftOut] = []
    for id in CHANGES:
        if only and id not in only:
            continue
        fit = _fit(id, facts)
        if isinstance(fit, str):
            unfit.append(left_out(id, fit))
        else:
            fitting.append(fit)
    return fitting, unfit


def _fit(change: str, facts: Facts) -> Candidate | str:
    """Return the change with the values to try, or a sentence on why it does not fit."""
    cpus = max(1, facts.cpus)
    match change:
        case _ if change in _ON_GPUS and not facts.cuda:
            return "The program uses no GPU."
        case "workers":
            return _workers(facts)
        case "pin" | "non-blocking" if not facts.uploads:
            return "Its steps copy nothing to the GPU."
        case "pin" if all(upload.pinned for upload in facts.uploads):
            return "All that its steps copy to the GPU is in pinned memory already."
        case "non-blocking" if all(upload.non_blocking for upload in facts.uploads):
            return "All its copies to the GPU have `non_blocking=True` already."
        case "prefetch" if not any(upload.from_loader for upload in facts.uploads):
            return "Its steps copy no batch of a DataLoader to the GPU."
        case "graph" if not facts.modules:
            return "Its steps call no module with parameters."
        case "graph" if all(module.compiled for module in facts.modules):
            return "Its module is compiled already."
        case "graph":
            return Candidate("graph", tuple(COMPILE_MODES))
        case "fused" if not facts.optimizers:
            return "It has no optimizer."
        case "fused" if all(optimizer.fused for optimizer in facts.optimizers):
            return "Its optimizer is fused already."
        case "fused" if not any(optimizer.takes_fused and not optimizer.fused for optimizer in facts.optimizers):
            return "Its optimizer has no fused form for these parameters."
        case "gc" if facts.gc_pct < PRECISE_PCT:
            return f"Python's garbage collector takes {facts.gc_pct:.1f}% of its steps."
        case "threads" if facts.threads <= cpus:
            return f"Torch uses {plural(facts.threads, 'thread')}, for {plural(cpus, 'CPU')}."
        case "threads":
            return Candidate("threads", (str(cpus),))
    return Candidate(change)


def _workers(facts: Facts) -> Candidate | str:
    if not facts.loaders:
        return "Its steps take no batches from a DataLoader."
    loaders = [loader for loader in facts.loaders if not loader.iterable and not loader.on_gpu]
    if not loaders:
        if all(loader.iterable for loader in facts.loaders):
            return "Its dataset is an IterableDataset, of which each worker would load all."
        return "Its DataLoader makes batches on the GPU, which worker processes cannot."
    has, most = max(loader.num_workers for loader in loaders), max(1, facts.cpus)
    counts = sorted({*(count for count in (2, 4, 8, 16) if count <= most), *([most] if 2 < most < 16 else [])})
    more = tuple(str(count) for count in counts if count > has)
    if not more:
        cpus = plural(most, "CPU")
        return f"Its DataLoader has {plural(has, 'worker')}, for {cpus}." if has else "Each process has only one CPU."
    return Candidate("workers", more, rising=True)


def left_out(change: str, reason: str) -> LeftOut:
    """Return the record of a change that is not tried."""
    return LeftOut(change=change, title=CHANGES[change].title, reason=reason)


Settings = tuple[Setting, ...]
AS_IS: Final[Settings] = ()

MAX_ROUNDS: Final = 10
MIN_ROUNDS: Final = 3
PRECISE_PCT: Final = 0.5
"""Maximum half width of an interval that needs no more rounds, and minimum gain that is worth an edit, in percent."""
_MAX_CONTROLS: Final = 4
"""Maximum number of control runs, whose distances show the noise of results."""
_PREREQUISITES: Final = ("pin", "non-blocking")
"""Changes that later changes need: they are kept unless they do harm."""
_ERROR_RATE: Final = 0.05
"""Maximum probability of a recommendation if no change does anything (Bonferroni: over all sets compared)."""
_SINGLE_RUN_NOISE_PCT: Final = 1.0
"""Maximum difference of two single runs, in percent, that is neither a gain to build on nor harm."""


class Planned(Struct, frozen=True):
    """A run to make."""

    settings: Settings
    round: int
    rounded: bool = False
    """True for a control run with parameters rounded differently."""


class Run(Struct, frozen=True, eq=False):
    """A finished run."""

    planned: Planned
    wall_s: float
    timing: Timing | None = None
    """None if it failed."""
    results: tuple[RankResults, ...] = ()
    """Results by rank."""
    failure: str = ""
    left_out: str = ""
    """Sentence on why the last change of the set could not be made after all."""


class Runs(Struct, frozen=True):
    """All runs so far."""

    all: tuple[Run, ...] = ()

    def of(self, settings: Settings) -> tuple[Run, ...]:
        """Return the timed runs with these changes."""
        return tuple(run for run in self.all if run.planned.settings == settings and not run.planned.rounded)

    @property
    def unchanged(self) -> tuple[Run, ...]:
        """Control runs: the first few without a change, and the rounded one."""
        unchanged = [run for run in self.all if run.planned.settings == AS_IS and run.results]
        return tuple(sorted(unchanged, key=lambda run: not run.planned.rounded)[:_MAX_CONTROLS])

    @property
    def rounded(self) -> bool:
        """True if the effect of rounding on the results is known."""
        return any(run.planned.rounded for run in self.all)

    def tried(self) -> tuple[Settings, ...]:
        """Return the sets of changes that were run, in the order of their first runs."""
        return tuple(
            dict.fromkeys(run.planned.settings for run in self.all if run.planned.settings and not run.left_out)
        )

    def failed(self, settings: Settings) -> str:
        """Return how a run with these changes failed; empty if none did."""
        return next((run.failure for run in self.of(settings) if run.failure), "")

    def results(self, settings: Settings) -> Sameness:
        """Compare results; a difference in a single run counts, once the effect of rounding is known."""
        judged = [_judged(run, self.unchanged) for run in self.of(settings) if not run.failure]
        worst: Sameness = max(judged, key=WORST_LAST.index, default="unknown")
        return "unknown" if worst == "different" and not self.rounded else worst

    def change(self, settings: Settings, base: Settings = AS_IS) -> StepChange | None:
        """Return the change of the step over the rounds that have both sets; None without such rounds."""
        before, after = self._by_round(base), self._by_round(settings)
        common = sorted(before.keys() & after.keys())
        return change([(before[number], after[number]) for number in common], self.noise()) if common else None

    def noise(self) -> RunNoise | None:
        """Return the differences between runs without a cause."""
        return noise([by_round for settings in (AS_IS, *self.tried()) if (by_round := self._by_round(settings))])

    def _by_round(self, settings: Settings) -> dict[int, Timing]:
        return {run.planned.round: run.timing for run in self.of(settings) if run.timing is not None}


@lru_cache(maxsize=512)
def _judged(run: Run, unchanged: tuple[Run, ...]) -> Sameness:
    """Return `sameness`, cached because comparing the sketches of a large model takes a while."""
    return sameness(run.results, [other.results for other in unchanged])


def climb(candidates: Sequence[Candidate], runs: Runs) -> tuple[Settings, Planned | None]:
    """Try each candidate on top of the changes kept before, judged by a single run of each.

    Returns:
        The changes that pay, by the runs so far, and the next run of the first round; None once it is over.
    """
    kept = AS_IS
    if not runs.of(AS_IS):
        return kept, Planned(AS_IS, 1)
    for candidate in candidates:
        best: Settings = kept
        for value in candidate.values:
            settings = (*kept, Setting(candidate.change, value))
            tried = runs.of(settings)
            if not tried:
                return best, Planned(settings, 1)
            control = _missing_control(tried[0], runs)
            if control is not None:
                return best, control
            if _pays(runs, settings, best, candidate.change):
                best = settings
            elif candidate.rising:
                break
        kept = best
    return kept, None


def _missing_control(run: Run, runs: Runs) -> Planned | None:
    """Return a control run that is needed before results can be called different, if any."""
    if not run.results or any(same_bits(run.results, other.results) for other in runs.unchanged):
        return None
    if not runs.rounded:
        return Planned(AS_IS, 1, rounded=True)
    return Planned(AS_IS, 0) if all(other.planned.round != 0 for other in runs.of(AS_IS)) else None


def _pays(runs: Runs, settings: Settings, best: Settings, changed: str) -> bool:
    """Return whether later changes build on it."""
    change = runs.change(settings, best)
    if change is None or runs.of(settings)[0].left_out or runs.results(settings) == "different":
        return False
    low, high = change.within
    return (high < 0 and change.pct <= -_SINGLE_RUN_NOISE_PCT) or (
        changed in _PREREQUISITES and low <= _SINGLE_RUN_NOISE_PCT
    )


def rounds(runs: Runs, kept: Settings, left_s: float) -> tuple[Planned, ...]:
    """Return the next round over the sets that need more runs, within the time left; empty to stop."""
    done = max((run.planned.round for run in runs.all), default=0)
    sets = worth_more(runs, kept)
    if done >= MAX_ROUNDS or len(sets) == 1:
        return ()
    if done >= MIN_ROUNDS and all(_is_precise(runs, settings) for settings in sets[1:]):
        return ()
    cost = {settings: runs.of(settings)[-1].wall_s for settings in sets}
    # The first round may have ended before it kept any.
    answer = best(runs) or _promising(runs, sets)
    if sum(cost.values()) > left_s:
        # Keep the sets that the answer depends on.
        sets = [settings for settings in sets if settings in (AS_IS, kept, answer)]
        # A single run of each proves nothing, so a second run may exceed the time limit.
        if len(sets) == 1 or (done > 1 and sum(cost[settings] for settings in sets) > left_s):
            return ()
    number = done + 1
    planned = tuple(Planned(settings, number) for settings in (reversed(sets) if number % 2 == 0 else sets))
    if answer and not runs.rounded and runs.results(answer) == "unknown" and runs.of(answer)[0].results:
        # Without the effect of rounding, its results could not be judged.
        return (Planned(AS_IS, 1, rounded=True), *planned)
    return planned


def _promising(runs: Runs, sets: Sequence[Settings]) -> Settings | None:
    """Return the set that was fastest in the first round; None if its gain may be noise."""
    gains = {settings: change.pct for settings in sets if (change := runs.change(settings)) is not None and settings}
    fastest = min(gains, key=lambda settings: gains[settings], default=None)
    return fastest if fastest is not None and gains[fastest] <= -_SINGLE_RUN_NOISE_PCT else None


def worth_more(runs: Runs, kept: Settings) -> list[Settings]:
    """Return the unchanged program and, for each change, the kept value or else the fastest."""
    rivals: dict[tuple[Settings, str], list[Settings]] = {}
    for settings in runs.tried():
        if not runs.failed(settings) and runs.results(settings) != "different":
            rivals.setdefault((settings[:-1], settings[-1].change), []).append(settings)

    def rank(settings: Settings) -> tuple[bool, float]:
        change = runs.change(settings)
        return settings != kept[: len(settings)], 0.0 if change is None else change.pct

    return [AS_IS, *(min(values, key=rank) for values in rivals.values())]


def _is_precise(runs: Runs, settings: Settings) -> bool:
    change = runs.change(settings)
    if change is None or change.over_runs is None:
        return False
    low, high = change.over_runs
    return (high - low) / 2 <= PRECISE_PCT


def best(runs: Runs, racing: Collection[Settings] = ()) -> Settings | None:
    """Return the recommended set; None if there is none.

    Candidates are certainly and sufficiently faster, and compute the same. Among the fastest and all that can't be
    distinguished from it, the set with the fewest changes is chosen.

    Args:
        racing: Sets with data races, which are excluded.
    """
    compared = {
        settings: change
        for settings in runs.tried()
        if (change := runs.change(settings)) is not None and change.over_runs is not None
    }
    gains: Mapping[Settings, float] = {
        settings: change.pct
        for settings, change in compared.items()
        if runs.results(settings) in SOUND and not runs.failed(settings) and settings not in racing
        if change.pct <= -PRECISE_PCT and change.interval[1] < 0 and len(compared) * change.p_value <= _ERROR_RATE
    }
    if not gains:
        return None
    fastest = min(gains, key=lambda settings: gains[settings])
    changes = {settings: runs.change(settings, fastest) for settings in gains if settings != fastest}
    as_fast = [settings for settings, change in changes.items() if change is not None and change.interval[0] <= 0]
    return min((fastest, *as_fast), key=lambda settings: (len(settings), gains[settings]))
