"""Two sides of a comparison, and changes between them that are more than noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from overlapscope.compare.difference import FigureChange, Unit
from overlapscope.compare.noise import F64, FEWEST, draw, interval, weights


class PairSide(Struct, frozen=True, eq=False):
    """Steps of a side, and the draws that resample all its figures."""

    spans_ns: tuple[int, ...]
    weights: F64 | None
    """Weights of the steps in each draw; None if there are too few steps for a bootstrap."""


def side(spans_ns: Sequence[int]) -> PairSide:
    """Return a side from the spans of its steps."""
    spans = tuple(spans_ns)
    return PairSide(spans, weights(draw(spans)) if len(spans) >= FEWEST else None)


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


class Pair(Struct, frozen=True, eq=False):
    """Both sides of a comparison."""

    before: PairSide
    after: PairSide
    reliable: bool = True
    """True if the recordings are complete enough to set changes apart from noise."""

    @property
    def spans_ns(self) -> tuple[float, float]:
        """Mean spans of both sides, in nanoseconds. Noise is a share of them."""
        return float(np.mean(self.before.spans_ns)), float(np.mean(self.after.spans_ns))

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
            if change is None or low is None or high is None:
                low = high = None
            changes.append(
                FigureChange(
                    name=row.name,
                    unit=row.unit,
                    before=first,
                    after=second,
                    change=change,
                    noise_floor=row.floor,
                    low=low,
                    high=high,
                    beyond_noise=_beyond(change, low, high, row.floor),
                )
            )
        return changes

    def _intervals(self, before: F64, after: F64) -> tuple[F64, F64] | None:
        side_before, side_after = self.before, self.after
        if side_before.weights is not None and side_after.weights is not None:
            return interval(_ratio(side_before.weights @ before), _ratio(side_after.weights @ after))
        if min(len(side_before.spans_ns), len(side_after.spans_ns)) > 1:
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


def _beyond(change: float | None, low: float | None, high: float | None, floor: float) -> bool | None:
    if change is None or low is None or high is None:
        return None
    return abs(change) > floor and (low > 0 or high < 0)
