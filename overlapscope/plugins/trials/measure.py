"""Number of steps to time, and the change of the step between two sets of runs, with its interval.

A run's step is the mean over its timed steps, since a person waits for their sum. Two sets of changes are compared by
the ratio of their steps in the same round of runs, so that a temporary slowdown of the machine affects both, and over
the same steps, since each run does the same in its n-th step: an evaluation or a checkpoint makes it long in both.
Steps in which either of them compiles are left out. The interval is at least as wide as the interval from the steps
within the runs. The deviation of runs is estimated from the two sets, from all other sets, and from a prior, since a
few runs may agree by luck.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean, stdev
from typing import Final

import numpy as np
from msgspec import Struct

from overlapscope.base.words import plural
from overlapscope.errors import UsageError
from overlapscope.plugins.trials.protocol import RankOutcome
from overlapscope.plugins.trials.result import Verdict

BLOCKS = 10
"""Number of blocks that a run is cut into, since neighboring steps are alike."""
_ROUNDS_OF_ALL = 2
"""Weight of the deviation of all sets, as a number of further rounds of the two compared sets."""
_CONFIDENCE = 0.95
"""Probability that an interval holds the true value."""
_MAX_HALF_WIDTH = math.log(2)
"""Maximum half width of an interval, as a logarithm: from half to twice the step."""
_PRIOR_MEDIAN = 0.1
"""Median of the prior of `RunNoise.deviation`."""
_PRIOR_SIGMA = 1.5
"""Standard deviation of the logarithm of that prior: 95 % of it is between 0.5 % and 190 %."""
_DEVIATIONS = np.geomspace(1e-4, 50, 120)
"""Values of `RunNoise.deviation` for summing the posterior."""
_QUANTILES = (2.2622, 2.1009, 2.0860)
"""97.5 % quantiles of Student's t for 9, 18 and 20 degrees of freedom: of the blocks of one, two and more rounds."""


class Timing(Struct, frozen=True):
    """Length of a run's steps, of the slowest rank."""

    steps_ns: tuple[float, ...]
    compiled: frozenset[int] = frozenset()
    """Indices of steps in which torch compiled, for once; empty if it did so in most steps, whose length that is."""

    @property
    def step_ns(self) -> float:
        """Mean of the steps in which torch did not compile."""
        return fmean(step_ns for at, step_ns in enumerate(self.steps_ns) if at not in self.compiled)


class StepChange(Struct, frozen=True):
    """Change of a step in percent; negative if the step gets shorter."""

    pct: float
    within: tuple[float, float]
    """95 % interval from the steps alone, as if runs did not differ."""
    over_runs: tuple[float, float] | None
    """95 % interval over runs; None for a single round, or if it is too wide to be useful."""
    p_value: float = 1.0
    """Probability of a difference at least this large if the change does nothing; 1 for a single round."""

    @property
    def interval(self) -> tuple[float, float]:
        """Interval over runs if there is any, else from the steps alone."""
        return self.over_runs or self.within

    @property
    def percentages(self) -> tuple[float, float | None, float | None]:
        """The change, and its interval over runs if there is any."""
        return (self.pct, *(self.over_runs or (None, None)))

    @property
    def verdict(self) -> Verdict:
        """Verdict by the interval over runs."""
        if self.over_runs is None:
            return "unknown"
        low, high = self.over_runs
        return "faster" if high < 0 else "slower" if low > 0 else "no more than noise"


def timing(outcomes: Sequence[RankOutcome]) -> Timing:
    """Return the timing of a run from its ranks; by the device's clock if any."""
    compiled = frozenset(at for outcome in outcomes for at in outcome.compiled)
    steps = max((outcome.device_ns or outcome.host_ns for outcome in outcomes), key=fmean)
    return Timing(tuple(map(float, steps)), compiled if 2 * len(compiled) < len(steps) else frozenset())


class RunNoise(Struct, frozen=True):
    """Differences between runs without a cause."""

    deviation: float
    """Standard deviation of the logarithm of a run's step."""
    freedom: int
    """Degrees of freedom of the estimate."""


def noise(timed: Sequence[Mapping[int, Timing]]) -> RunNoise | None:
    """Return the noise of each set's runs by round: the residuals after fitting each set and each round.

    None if no degrees of freedom remain.
    """
    runs = [
        (row, number, math.log(timing.step_ns)) for row, runs in enumerate(timed) for number, timing in runs.items()
    ]
    columns = {name: at for at, name in enumerate(dict.fromkeys(number for _, number, _ in runs), len(timed))}
    design = np.zeros((len(runs), len(timed) + len(columns)))
    for at, (row, number, _) in enumerate(runs):
        design[at, [row, columns[number]]] = 1
    logs = np.array([log for *_, log in runs])
    fitted, _, rank, _ = np.linalg.lstsq(design, logs, rcond=None)
    freedom = len(runs) - int(rank)
    residuals = logs - design @ fitted
    return RunNoise(math.sqrt(float(residuals @ residuals) / freedom), freedom) if freedom > 0 else None


def change(rounds: Sequence[tuple[Timing, Timing]], noise_of_all: RunNoise | None = None) -> StepChange:
    """Compare the second of each pair with the first, which ran in the same round; at least one round is needed.

    Args:
        noise_of_all: Noise of all sets together.

    Returns:
        The change of the step, with its interval.
    """
    logs, errors = zip(*(_ratio(before, after) for before, after in rounds), strict=True)
    middle = fmean(logs)
    within = _QUANTILES[min(len(rounds), 3) - 1] * math.hypot(*errors) / len(rounds)
    if len(rounds) == 1:
        return StepChange(_pct(middle), _around(middle, within), None)
    freedom, deviation = _run_deviation(logs, noise_of_all)
    half = max(within, half_width(freedom, deviation, 2 / len(rounds)))
    is_useful = half <= max(_MAX_HALF_WIDTH, abs(middle))
    p_value = 1 - _probability_within(abs(middle), _errors(freedom, deviation, 2 / len(rounds)))
    return StepChange(_pct(middle), _around(middle, within), _around(middle, half) if is_useful else None, p_value)


def _ratio(before: Timing, after: Timing) -> tuple[float, float]:
    """Return the logarithm of the ratio of two runs' steps, and its standard error from the steps alone."""
    compiled = before.compiled | after.compiled
    pairs = zip(before.steps_ns, after.steps_ns, strict=False)
    steps = np.array([pair for at, pair in enumerate(pairs) if at not in compiled])
    means = steps.mean(axis=0)
    old, new = (steps / means).T
    blocks = [float(block.mean()) for block in np.array_split(new - old, BLOCKS) if len(block)]
    error = stdev(blocks) / math.sqrt(len(blocks)) if len(blocks) > 1 else 0.0
    return math.log(means[1] / means[0]), error


def spread_ns(timings: Sequence[Timing]) -> tuple[float, float] | None:
    """Return the 95 % interval of a step over runs; None for a single run, or if it is too wide to be useful."""
    if len(timings) < 2:
        return None
    logs = [math.log(timing.step_ns) for timing in timings]
    middle, half = fmean(logs), half_width(len(logs) - 1, stdev(logs), 1 / len(logs))
    return (math.exp(middle - half), math.exp(middle + half)) if half <= _MAX_HALF_WIDTH else None


def _run_deviation(logs: Sequence[float], noise_of_all: RunNoise | None) -> tuple[int, float]:
    """Return degrees of freedom and the deviation of a run's logarithm; `logs` are those of ratios of two runs."""
    freedom = len(logs) - 1
    shared = 0 if noise_of_all is None else max(0, min(_ROUNDS_OF_ALL, noise_of_all.freedom - freedom))
    variance = 0.0 if noise_of_all is None else noise_of_all.deviation**2
    return freedom + shared, math.sqrt((freedom * stdev(logs) ** 2 / 2 + shared * variance) / (freedom + shared))


@lru_cache(maxsize=1024)
def half_width(freedom: int, deviation: float, variance_share: float) -> float:
    """Return half the width of the 95 % interval around a mean.

    With few runs, a prior makes up for the few degrees of freedom, as in a random-effects meta-analysis (C. Röver,
    "Bayesian random-effects meta-analysis using the bayesmeta R package", Journal of Statistical Software 93, 2020).
    Without a prior, two pairs of runs decide nothing: Student's interval is 13 times as wide as their standard error,
    and a permutation test of 2 and 2 runs has no p-value below 1/3.

    Args:
        freedom: Degrees of freedom of the deviation.
        deviation: Standard deviation of the logarithm of a run's step.
        variance_share: Variance of the mean, as a fraction of that of a run.
    """
    errors = _errors(freedom, deviation, variance_share)
    low, high = 0.0, 5 * max(error for _, error in errors)
    while high - low > 1e-3 * high:
        half = (low + high) / 2
        low, high = (half, high) if _probability_within(half, errors) < _CONFIDENCE else (low, half)
    return high


@lru_cache(maxsize=1024)
def _errors(freedom: int, deviation: float, variance_share: float) -> list[tuple[float, float]]:
    """Return possible standard errors of a mean (arguments as in `half_width`), each after its probability."""
    logs = np.log(_DEVIATIONS)
    weights = -(((logs - math.log(_PRIOR_MEDIAN)) / _PRIOR_SIGMA) ** 2) / 2
    weights -= freedom * (logs + (deviation / _DEVIATIONS) ** 2 / 2)
    weights = np.exp(weights - weights.max())
    return [*zip((weights / weights.sum()).tolist(), (_DEVIATIONS * math.sqrt(variance_share)).tolist(), strict=True)]


def _probability_within(half: float, errors: list[tuple[float, float]]) -> float:
    """Return the probability of an error of at most this size."""
    return sum(weight * math.erf(half / (error * math.sqrt(2))) for weight, error in errors)


def _around(middle: float, half: float) -> tuple[float, float]:
    return _pct(middle - half), _pct(middle + half)


def _pct(log: float) -> float:
    return 100 * math.expm1(log)


# -- Number of steps -----------------------------------------------------------------------------------

_WARMUP_STEPS: Final = 20
_MIN_WARMUP_STEPS: Final = 5
_BATCHES_AHEAD: Final = 2
"""Number of batches that a DataLoader worker makes ahead. They pile up during a slow first step, as when compiling, and
the next steps don't wait for batches."""
_LAST_STEPS: Final = 1
"""Number of steps after the timed steps, for the results."""
_TIMED_NS: Final = 3_000_000_000
MIN_STEPS: Final = 20
"""Minimum number of timed steps, if the program makes as many."""
MAX_STEPS: Final = 300


class StepPlan(Struct, frozen=True):
    """Numbers of steps of a run, which ends after them."""

    warmup_steps: int
    timed_steps: int


SURVEY: Final = StepPlan(_MIN_WARMUP_STEPS, MIN_STEPS)


def plan(step_ns: float, user_steps: int | None, workers: int = 0) -> StepPlan:
    """Plan the steps of a run.

    Args:
        step_ns: Approximate length of a step.
        user_steps: Number of steps to time, if the user chose it.
        workers: Maximum number of loader workers to try.

    Returns:
        The numbers of steps.
    """
    warmup = max(_WARMUP_STEPS, _MIN_WARMUP_STEPS + _BATCHES_AHEAD * workers)
    return StepPlan(warmup, user_steps or min(MAX_STEPS, max(MIN_STEPS, round(_TIMED_NS / step_ns))))


def shortened(wanted: StepPlan, steps_made: int) -> StepPlan:
    """Shorten a plan for a program that makes fewer steps. Raises UsageError if they are too few."""
    least = _MIN_WARMUP_STEPS + BLOCKS + _LAST_STEPS
    if steps_made < least:
        raise UsageError(
            f"the program made {plural(steps_made, 'step')}, and at least {least} are needed: {_MIN_WARMUP_STEPS} to "
            f"warm up, {BLOCKS} to time and {_LAST_STEPS} to compare results. Let it make more steps."
        )
    warmup = min(wanted.warmup_steps, max(_MIN_WARMUP_STEPS, steps_made // 3))
    return StepPlan(warmup, min(wanted.timed_steps, steps_made - warmup - _LAST_STEPS))
