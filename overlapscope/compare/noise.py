"""Changes between two sides that are more than noise: the noise floor, the bootstrap over steps, and all figures.

The steps of a recording show how much steps differ, but not how much recordings of the same program differ: a host may
be twice as fast on another day, and others use the link. `docs/evaluation/noise.md` has the measurements for the
numbers of the floor.

The bootstrap draws as many steps as there are, with replacement, many times, and measures how a figure varies: B.
Efron, "Bootstrap Methods: Another Look at the Jackknife", The Annals of Statistics 7 (1979), 1-26.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import fsum
from typing import Final
from zlib import crc32

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from overlapscope.analysis.facts import Facts, facts_of, means
from overlapscope.analysis.figures import COPIES_MATTER_FROM, TimeFigures
from overlapscope.base.intervals import I64
from overlapscope.catalog.causes import FOUND, IdleCause
from overlapscope.catalog.measures import BY_CAUSE, MEASURES, PARTS_OF, Amount, Measure, of_group
from overlapscope.compare.difference import FigureChange, Figures, Unit

F64 = NDArray[np.float64]

GPU_SHARE = 0.01
"""Noise from the GPU's clock and the order of its ops, as a fraction of the span."""
LINK_SHARE = 0.1
"""Noise from other users of the link, as a fraction of the time of copies and communication."""
HOST_SHARE = 2.0
"""Noise from the host, as a fraction of the time that depends on it. Some whole recordings had a much slower host."""
SLOW_HOST, SLOW_LOADING = 1.5, 0.75
"""Maximum noise from the host, and from loading data, as a fraction of the shorter span: the host's work in a step
takes at most as long as the step."""
POINTS = 1.0
"""Minimum noise of a percentage, in points."""

_LOADING: Final = f"idle:{IdleCause.DATA_LOADING}"
_HOST: Final = frozenset(
    f"{subject}:{cause}" for subject in ("exposed-copy", "idle") for cause in FOUND[subject] if cause.by_host
) - {_LOADING}
"""Lengths that depend on the speed of the host, except for loading data."""
_LINK: Final = (
    frozenset((*BY_CAUSE["exposed_copy"], *BY_CAUSE["exposed_comm"]))
    | {"h2d", "d2h", "comm", "copy", "h2d_d2h", "exposed_h2d", "exposed_d2h"}
) - _HOST
"""Lengths that depend on the link. All communication does, whatever its cause: the host's time may vary by far more."""


def floor_ns(
    spans_ns: tuple[float, float], *, link_ns: float = 0.0, host_ns: float = 0.0, loading_ns: float = 0.0
) -> float:
    """Return the minimum change of a time that is more than noise, in nanoseconds.

    Args:
        link_ns: Part of the time that depends on the link.
        host_ns: Part of the time that depends on the host, except for loading data.
        loading_ns: Part of the time in which data was loaded.
    """
    shorter = min(spans_ns)
    host = min(HOST_SHARE * host_ns, SLOW_HOST * shorter) + min(HOST_SHARE * loading_ns, SLOW_LOADING * shorter)
    return GPU_SHARE * max(spans_ns) + LINK_SHARE * link_ns + host


def noise_floor(
    measure: Measure,
    lengths: tuple[Mapping[str, float], Mapping[str, float]],
    *,
    whole: float = 0.0,
    base: float = 0.0,
    copies_stay: bool = True,
) -> float:
    """Return the minimum change of a measure that is more than noise, in its unit.

    Times that depend on the link and the host may vary by a share of the smaller side's time.

    Args:
        lengths: Mean lengths of both sides in nanoseconds, by name, with their `span`.
        whole: Mean divisor of a percentage.
        base: Mean of the measure, for a rate or a figure of the host.
        copies_stay: As for `compare`.
    """
    spans_ns = lengths[0]["span"], lengths[1]["span"]
    if measure.unit == "gb_per_s":
        return LINK_SHARE * base
    if measure.needs == "host":
        return 0.0 if measure.unit == "launches" else floor_ns(spans_ns, host_ns=base)
    noisy, _ = (measure.part if measure.noise is None else Amount(measure.noise)).columns()
    by_host = _HOST if copies_stay else _HOST | _LINK
    link, host, loading = (
        min(fsum(side[name] for name in noisy if name in some) for side in lengths)
        for some in (_LINK - by_host, by_host, {_LOADING})
    )
    floor = floor_ns(spans_ns, link_ns=link, host_ns=host, loading_ns=loading)
    if measure.unit == "ns":
        return floor
    return max(POINTS, 100 * floor / whole) if whole > 0 else POINTS


# -- Bootstrap --------------------------------------------------------------------------------------

FEWEST = 4
"""Minimum number of steps for a bootstrap. Four steps have only 35 different draws, so that the interval is about their
range; the recorder's five judged steps leave four."""

DRAWS = 2000
CONFIDENCE = 0.99
"""Higher than 0.95, because many figures are compared at once and percentile bootstraps of few steps are narrow."""

_MOST_NUMBERS = 1 << 22
"""Maximum number of drawn step numbers. Recordings with many steps need fewer draws."""


def draw(spans_ns: Sequence[int]) -> I64:
    """Return step numbers drawn with replacement, of shape (draws, steps).

    The draws depend only on the steps' spans. All figures of a side are therefore drawn alike, so figures that add up
    in each step add up in each draw, and a side compared with itself differs by exactly zero.
    """
    steps = len(spans_ns)
    generator = np.random.default_rng(crc32(np.array(spans_ns, np.int64).tobytes()))
    draws = max(200, min(DRAWS, _MOST_NUMBERS // max(1, steps)))
    return generator.integers(0, steps, (draws, steps))


def weights(drawn: I64) -> F64:
    """Return each step's share of each draw: (draws, steps) @ (steps, figures) gives the means of the figures."""
    draws, steps = drawn.shape
    counts = np.zeros((draws, steps), np.float64)
    np.add.at(counts, (np.arange(draws)[:, None], drawn), 1.0)
    result: F64 = counts / steps
    return result


def interval(before: F64, after: F64) -> tuple[F64, F64]:
    """Return the low and high ends of `after - before` for each figure. The first axis of both has the draws."""
    draws = min(len(before), len(after))
    tail = (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):  # ratios of nothing stay NaN
        change = after[:draws] - before[:draws]
        # Both ends use the same quantile, so that exchanging the sides gives exactly the negative interval.
        low: F64 = np.quantile(change, tail, axis=0)
        high: F64 = -np.quantile(-change, tail, axis=0)
    return low, high


# -- Two sides ---------------------------------------------------------------------------------------


class PairRow(Struct, frozen=True, eq=False):
    """A figure of every step of both sides, to be compared."""

    name: str
    unit: Unit
    before: F64
    """Values of shape (steps,), or for a ratio of sums (steps, 2) with numerators and denominators."""
    after: F64
    floor: float
    """Minimum change that is more than noise."""
    points: tuple[int, int] | None = None
    """Figures of the sides, rounded so that they add up; None for the mean, or the ratio of the sums."""


class Pair:
    """Both sides of a comparison, by the spans of their steps."""

    def __init__(self, before_ns: Sequence[int], after_ns: Sequence[int], *, reliable: bool = True) -> None:
        """Draw from both. `reliable`: whether the recordings are complete enough to tell changes from noise."""
        self.steps = len(before_ns), len(after_ns)
        self.spans_ns = float(np.mean(before_ns)), float(np.mean(after_ns))
        """Mean spans of both sides. Noise is a share of them."""
        self.reliable = reliable
        self._weights: tuple[F64, F64] | None = None
        """Weights of the steps in each draw; None if there are too few steps for a bootstrap."""
        if reliable and min(self.steps) >= FEWEST:
            self._weights = weights(draw(before_ns)), weights(draw(after_ns))

    def changes(self, rows: Sequence[PairRow]) -> list[FigureChange]:
        """Return the change of each figure with its interval."""
        if not rows:
            return []
        tables = [_stack([getattr(row, side) for row in rows]) for side in ("before", "after")]
        points = [_ratio(table.mean(axis=1)) for table in tables]
        ends = self._intervals(*tables) if self.reliable else None
        changes = []
        for number, row in enumerate(rows):
            first, second = row.points or (_finite(points[0][number]), _finite(points[1][number]))
            change = None if first is None or second is None else second - first
            low, high = (None, None) if ends is None else (_finite(end[number]) for end in ends)
            beyond = None
            if change is None or low is None or high is None:
                low = high = None
            else:
                beyond = abs(change) > row.floor and (low > 0 or high < 0)
            figures = first, second, change, row.floor, low, high, beyond
            changes.append(FigureChange(row.name, row.unit, *figures))
        return changes

    def _intervals(self, before: F64, after: F64) -> tuple[F64, F64] | None:
        if self._weights is not None:
            return interval(_ratio(self._weights[0] @ before), _ratio(self._weights[1] @ after))
        if min(self.steps) > 1:
            # There are too few steps to resample, so the interval has the extreme differences of any two steps.
            first, second = _ratio(before), _ratio(after)
            return second.min(axis=0) - first.max(axis=0), second.max(axis=0) - first.min(axis=0)
        return None


def _stack(columns: Sequence[F64]) -> F64:
    """Return numerators and denominators, of shape (2, steps, figures). Denominators of plain figures are 1."""
    parts = [(column, np.ones_like(column)) if column.ndim == 1 else (column[:, 0], column[:, 1]) for column in columns]
    return np.stack([np.stack(side, axis=1) for side in zip(*parts, strict=True)]).astype(np.float64)


def _ratio(values: F64) -> F64:
    """Return the ratios of values whose first axis has numerators and denominators."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result: F64 = values[0] / values[1]
    return result


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


# -- Figures of steps, as means that add up --------------------------------------------------------

_FIGURES: Final[Mapping[str, Sequence[Measure]]] = {
    "span": (replace(MEASURES["span_ns"], label="span"),),
    "buckets": of_group("buckets"),
    # Time that is exposed may change its cause, but not its noise.
    **{
        f"{bucket}_by_cause": [each if bucket == "idle" else replace(each, noise=(bucket,)) for each in parts.values()]
        for bucket, parts in PARTS_OF.items()
    },
    "engines": of_group("engines"),
    "overlap": of_group("overlap"),
}
"""Figures by the field of `Figures` that has them."""


def compare(
    before: Sequence[TimeFigures], after: Sequence[TimeFigures], pair: Pair, *, copies_stay: bool = True
) -> Figures:
    """Return all figures of two sides, with a period for each step of the pair, and whether each has changed.

    `copies_stay`: whether every period contains the same copies. Steps do. Which copies run during a range depends on
    the host, so their times are as noisy as the host's.
    """
    sides = facts_of(before), facts_of(after)
    mean = means(sides[0]), means(sides[1])
    # The mean of the spans is rounded, so that it is the sum of its parts.
    lengths = {**mean[0], "span": pair.spans_ns[0]}, {**mean[1], "span": pair.spans_ns[1]}
    rows = [
        _compared(each, sides, mean, partial(noise_floor, each, lengths, copies_stay=copies_stay))
        for some in _FIGURES.values()
        for each in some
    ]
    changes = iter(pair.changes(rows))
    fields = {name: tuple(next(changes) for _ in some) for name, some in _FIGURES.items()}
    [span] = fields.pop("span")
    return Figures(span=span, **fields)


def _compared(
    figure: Measure,
    sides: tuple[Facts, Facts],
    mean: tuple[Mapping[str, int], Mapping[str, int]],
    floor: Callable[..., float],
) -> PairRow:
    """Return a figure for every period of both sides. `floor` is `noise_floor` of the figure."""
    parts = [figure.part.of(side).astype(np.float64) for side in sides]
    if figure.whole is None:
        points = figure.part.of(mean[0]), figure.part.of(mean[1])
        return PairRow(figure.label, "ns", parts[0], parts[1], floor(), points)
    ratios = [
        np.stack([100 * part, figure.whole.of(side).astype(np.float64)], axis=1)
        # Percentages of copies mean something only if copies take enough time.
        * (not figure.of_copies or bool(side["copy"].sum() >= COPIES_MATTER_FROM * side["span"].sum()))
        for part, side in zip(parts, sides, strict=True)
    ]
    whole = min(float(ratio[:, 1].mean()) for ratio in ratios)
    return PairRow(figure.label, "pct", ratios[0], ratios[1], floor(whole=whole))
