"""Two sides of a comparison, and whether what changed between them is more than noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from overlapscope.compare.difference import FigureChange, Unit
from overlapscope.compare.noise import F64, FEWEST, draw, interval, weights


class PairSide(Struct, frozen=True, eq=False):
    """The steps of one side, and the draws by which all its figures are resampled."""

    spans_ns: tuple[int, ...]
    weights: F64 | None
    """Of the steps in each draw; None where there are too few for a bootstrap."""


def side(spans_ns: Sequence[int]) -> PairSide:
    """A side whose steps, at least one, have these spans."""
    spans = tuple(spans_ns)
    return PairSide(spans, weights(draw(spans)) if len(spans) >= FEWEST else None)


class PairRow(Struct, frozen=True, eq=False):
    """One figure of every step of both sides, to be compared."""

    name: str
    unit: Unit
    before: F64
    """(steps,), or for a ratio of sums (steps, 2): numerator and denominator."""
    after: F64
    floor: float
    """The least change that is more than noise."""
    points: tuple[int, int] | None = None
    """The figures of the sides where they were rounded so that they add up; else the mean, or the ratio of the sums."""


class Pair(Struct, frozen=True, eq=False):
    """Both sides."""

    before: PairSide
    after: PairSide
    told: bool = True
    """Whether a change can be told for one: not where a part of a recording is lost that figures rest on."""

    @property
    def span_ns(self) -> float:
        """The mean span of the longer side: what noise is a share of."""
        return max(float(np.mean(side.spans_ns)) for side in (self.before, self.after))

    def changes(self, rows: Sequence[PairRow]) -> list[FigureChange]:
        """How each figure changed, and by how much at least and at most."""
        if not rows:
            return []
        tables = [_stack([getattr(row, side) for row in rows]) for side in ("before", "after")]
        points = [_ratio(table.mean(axis=1)) for table in tables]
        ends = self._intervals(*tables) if self.told else None
        changes = []
        for number, row in enumerate(rows):
            first, second = row.points or (_known(points[0][number]), _known(points[1][number]))
            change = None if first is None or second is None else second - first
            low, high = (None, None) if ends is None else (_known(end[number]) for end in ends)
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
        one, other = self.before, self.after
        if one.weights is not None and other.weights is not None:
            return interval(_ratio(one.weights @ before), _ratio(other.weights @ after))
        if min(len(one.spans_ns), len(other.spans_ns)) > 1:
            # Too few steps to resample: as far apart as any two of them are.
            first, second = _ratio(before), _ratio(after)
            return second.min(axis=0) - first.max(axis=0), second.max(axis=0) - first.min(axis=0)
        return None


def _stack(columns: Sequence[F64]) -> F64:
    """(2, steps, figures): numerators and denominators, which are 1 for plain figures."""
    parts = [(column, np.ones_like(column)) if column.ndim == 1 else (column[:, 0], column[:, 1]) for column in columns]
    return np.stack([np.stack(side, axis=1) for side in zip(*parts, strict=True)]).astype(np.float64)


def _ratio(values: F64) -> F64:
    """The first axis holds numerator and denominator."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result: F64 = values[0] / values[1]
    return result


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _beyond(change: float | None, low: float | None, high: float | None, floor: float) -> bool | None:
    if change is None or low is None or high is None:
        return None
    return abs(change) > floor and (low > 0 or high < 0)
