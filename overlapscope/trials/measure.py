"""How long steps are, and by how much runs differ: pure statistics.

A run's step is the mean over its timed steps, since what a person waits for is their sum. Two sets of changes are
compared by the ratio of their steps in the same round of runs, so that what slows the machine for a while slows both;
the interval is Student's over rounds, and never narrower than what the steps within the runs tell. Two sets scatter
little over a few rounds by luck, so what all sets scatter by counts, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import numpy as np
from msgspec import Struct

from overlapscope.trials.protocol import Outcome

BLOCKS = 10
"""Steps that follow each other are alike, so a run is cut into blocks, and its blocks are compared."""
_ROUNDS_OF_ALL = 2
"""What all sets scatter by counts as much as so many further rounds of the two that are compared."""
_WIDEST = math.log(2)
"""Half of an interval, as a logarithm: from half to twice the step."""
_QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)
"""Of Student's t, 97.5 %, by degrees of freedom from 1 on."""


class Timing(Struct, frozen=True):
    """What the steps of a run took."""

    step_ns: float
    """Their mean; of several ranks that of the slowest."""
    error: float
    """Its standard error by the steps alone, as a part of it."""


class Change(Struct, frozen=True):
    """By how much a step is longer, in percent of another; negative where it is shorter."""

    pct: float
    within: tuple[float, float]
    """95 % interval by the steps alone: as if runs did not differ."""
    over_runs: tuple[float, float] | None
    """95 % interval over runs; None of a single round, and where it is so wide that it says nothing."""

    @property
    def interval(self) -> tuple[float, float]:
        """The one over runs, where there is one."""
        return self.over_runs or self.within


def timing(outcomes: Sequence[Outcome]) -> Timing:
    """Of the ranks of a run, each with `BLOCKS` steps at least; by the device's clock where there is one."""
    return max(
        (_timing(outcome.device_ns or outcome.host_ns) for outcome in outcomes), key=lambda timing: timing.step_ns
    )


def _timing(steps_ns: Sequence[int]) -> Timing:
    mean = fmean(steps_ns)
    blocks = [float(block.mean()) for block in np.array_split(np.array(steps_ns, np.float64), BLOCKS)]
    return Timing(mean, stdev(blocks) / math.sqrt(BLOCKS) / mean)


class Noise(Struct, frozen=True):
    """What runs differ by for no reason."""

    deviation: float
    """Standard deviation of the logarithm of a run's step."""
    freedom: int
    """Degrees of freedom that it rests on."""


def noise(timed: Sequence[Mapping[int, Timing]]) -> Noise | None:
    """Of each set's runs by round: what is left of their logarithms once each set and each round has its mean.

    None where nothing is left.
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
    left = logs - design @ fitted
    return Noise(math.sqrt(float(left @ left) / freedom), freedom) if freedom > 0 else None


def change(rounds: Sequence[tuple[Timing, Timing]], every: Noise | None = None) -> Change:
    """Of the second of each pair against the first, which were run in the same round; one round at least.

    `every`: the noise of all sets together.
    """
    logs = [math.log(after.step_ns / before.step_ns) for before, after in rounds]
    middle = fmean(logs)
    error = math.sqrt(sum(before.error**2 + after.error**2 for before, after in rounds)) / len(rounds)
    within = quantile(2 * len(rounds) * (BLOCKS - 1)) * error
    half = math.inf
    if len(rounds) > 1:
        half = max(within, _half_width(logs, every))
    says = half <= max(_WIDEST, abs(middle))
    return Change(_pct(middle), _around(middle, within), _around(middle, half) if says else None)


def spread_ns(timings: Sequence[Timing]) -> tuple[float, float] | None:
    """95 % interval of a step over runs; None of a single one, and where it is so wide that it says nothing."""
    if len(timings) < 2:
        return None
    logs = [math.log(timing.step_ns) for timing in timings]
    middle, half = fmean(logs), _half_width(logs)
    return (math.exp(middle - half), math.exp(middle + half)) if half <= _WIDEST else None


def quantile(freedom: int) -> float:
    """97.5 % of Student's t; of more degrees of freedom than the table has, that of its last."""
    return _QUANTILES[min(freedom, len(_QUANTILES)) - 1]


def _half_width(values: Sequence[float], every: Noise | None = None) -> float:
    """Of the interval around the mean: Student's t, moderated by the noise of all sets where `values` are ratios of two
    (G. K. Smyth, "Linear models and empirical Bayes methods", Statistical Applications in Genetics 3, 2004).
    """
    own = len(values) - 1
    shared = 0 if every is None else max(0, min(_ROUNDS_OF_ALL, every.freedom - own))
    # A ratio has the noise of two runs.
    variance = 0.0 if every is None else 2 * every.deviation**2
    deviation = math.sqrt((own * stdev(values) ** 2 + shared * variance) / (own + shared))
    return quantile(own + shared) * deviation / math.sqrt(len(values))


def _around(middle: float, half: float) -> tuple[float, float]:
    return _pct(middle - half), _pct(middle + half)


def _pct(log: float) -> float:
    return 100 * math.expm1(log)
