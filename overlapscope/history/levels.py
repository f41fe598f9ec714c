"""Since when is it worse: the points of one metric in order -> levels, and the changes between them.

Where the level may have changed is found by PELT with the cost L2 (R. Killick, P. Fearnhead, I. A. Eckley, "Optimal
Detection of Changepoints With a Linear Computational Cost", JASA 107 (2012), 1590-1598; package `ruptures`), after
points far from the median of their neighbours were replaced by it (F. R. Hampel's filter): an outlier is no level.
How far is told by differences of neighbours, which hardly know of changes in level (S. Chakar, E. Lebarbier,
C. Lévy-Leduc, S. Robin, "A robust approach for estimating change-points in the mean of an AR(1) process", Bernoulli 23
(2017), 1408-1447).

Each place is then tested as in `check`: a change counts where it exceeds the noise floor, and chance would hardly make
it. A level is a median; its error comes of what values differ by within levels, and of how much each follows the one
before it. While the weakest change does not count, it goes. `docs/evaluation/levels.md` has what is found, and how
often what is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from statistics import fmean, median
from typing import Final, Literal

import msgspec
import numpy as np

from overlapscope.base.extras import how_to_install
from overlapscope.compare.noise import CONFIDENCE, F64
from overlapscope.errors import MissingPackage
from overlapscope.history.store import Point

By = Literal["commit", "hour", "report"]
BY: Final[tuple[By, ...]] = ("commit", "hour", "report")

LEAST: Final = 3
"""Points that make a level, at least: their median is the program's though one of them is an outlier."""
FEWEST: Final = 6
"""Of fewer points nothing is said: they are not two levels."""
_FOLLOWING: Final = 0.9
"""At most so much is one point taken to follow the one before."""
_NO_FLOOR: Final = "it is not known how much of it may be noise"

_HOUR_NS: Final = 3_600_000_000_000
_MAD: Final = 0.6745
"""Median distance of normal values from their mean, in standard deviations."""
_MEDIAN: Final = 1.2533
"""Standard error of a median, in that of the mean, of normal values; it is less of values with heavy tails."""
_OUTLIER: Final = 3.0
"""Standard deviations from the neighbours' median beyond which a value is an outlier."""
_PENALTY: Final = 3.0
"""Of a change that PELT makes, in variances, times the logarithm of the number of values. It finds candidates."""
_MOST: Final = 4096
"""Points among which changes are looked for, which takes time by their square; more are first put together."""


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One value of a series: that of a report, or of all reports of a commit or of an hour."""

    ids: tuple[str, ...]
    """Of the reports, oldest first."""
    at_ns: int
    """When the first was recorded."""
    commit: str | None
    """None where nobody knows, or there are several."""
    value: float
    """The median of the reports; each counts with the mean of its devices."""
    error: float
    """Standard error that comes of the steps alone; 0 where it is not known."""
    floor: float | None
    """The least change that is more than noise, as `check` has it; None where nobody knows."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Groups from one change to the next, by number."""

    first: int
    end: int
    """Behind the last."""
    value: float
    """Their median."""
    low: float | None
    """The interval of the level; None where the noise is not known."""
    high: float | None


class LevelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change from one level to the next."""

    first: int
    """Number of the first group of the new level."""
    before: float
    after: float
    low: float
    """The interval of `after - before`, for all changes of the series together."""
    high: float
    worse: bool


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """How much the groups of a series differ though nothing changed."""

    sigma: float
    """Their standard deviation within levels."""
    following: float
    """How much each follows the one before it: their correlation, 0 to 0.9."""
    degrees: int
    """Degrees of freedom that these are known with."""
    quantile: float
    """Standard errors that a change has to exceed."""


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """A series, and its levels: one at least where there are groups."""

    groups: tuple[Group, ...]
    levels: tuple[Level, ...]
    changes: tuple[LevelChange, ...]
    noise: Noise | None
    unknown: str
    """Why nothing can be said of noise and changes, as a part of a sentence; else empty."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The newest group against the level that it should have."""

    newest: Group
    before: Levels
    """What came before it."""
    status: Literal["same", "worse", "better", "unknown"]
    low: float | None = None
    """The interval of the newest minus the level."""
    high: float | None = None
    floor: float | None = None
    """The least change that counts."""
    unknown: str = ""
    """Why it cannot be said, as a part of a sentence."""


# -- groups -----------------------------------------------------------------------------------------


def grouped(points: Iterable[Point], by: By = "report") -> tuple[Group, ...]:
    """Points of one metric as a series, oldest first. Those of the plain program and of recordings, or of several kinds
    of GPU, must not be mixed: see `alike`.

    A commit stands where it was first recorded.
    """
    ordered = sorted(points, key=lambda point: (point.at_ns, point.id))
    reports = [_report(list(same)) for _, same in groupby(ordered, key=lambda point: (point.at_ns, point.id))]
    if by == "report":
        return tuple(reports)
    found: dict[object, list[Group]] = {}
    for one in reports:
        key = one.at_ns // _HOUR_NS if by == "hour" else one.commit
        # What is of no known commit is of none of the others.
        found.setdefault(one.ids if key is None else key, []).append(one)
    return tuple(_joined(group) for group in found.values())


def alike(points: Sequence[Point]) -> list[Point]:
    """Those that can be compared with the newest: of the plain program as it is, or of a recording, on the same GPU."""
    if not points:
        return []
    newest = max(points, key=lambda point: (point.at_ns, point.id))
    return [point for point in points if (point.plain, point.gpu) == (newest.plain, newest.gpu)]


def _report(points: list[Point]) -> Group:
    floors = [point.floor for point in points if point.floor is not None]
    return Group(
        ids=(points[0].id,),
        at_ns=points[0].at_ns,
        commit=points[0].commit,
        value=fmean(point.value for point in points),
        error=max((point.spread or 0.0) / max(1, point.samples) ** 0.5 for point in points),
        floor=max(floors) if len(floors) == len(points) else None,
    )


def _joined(groups: list[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    commits = {group.commit for group in groups}
    return Group(
        ids=tuple(id for group in groups for id in group.ids),
        at_ns=groups[0].at_ns,
        commit=commits.pop() if len(commits) == 1 else None,
        value=median(group.value for group in groups),
        error=_MEDIAN * median(group.error for group in groups) / len(groups) ** 0.5,
        floor=_floor(groups),
    )


def _floor(groups: Sequence[Group]) -> float | None:
    """The median; None where one is not known."""
    floors = [group.floor for group in groups if group.floor is not None]
    return median(floors) if len(floors) == len(groups) and floors else None


# -- levels -----------------------------------------------------------------------------------------


def levels(groups: Sequence[Group], *, more_is_better: bool) -> Levels:
    """The levels of a series, oldest first. Raises MissingPackage without ruptures.

    The chance that a series without any change is said to have one is about 1 %.
    """
    found = tuple(groups)
    unknown = _why_unknown(found)
    bounds, noise = ([0, len(found)], None) if unknown else _bounds(found)
    parts = [_level(found, *part, noise) for part in pairwise(bounds) if part[0] < part[1]]
    pairs = pairwise(parts) if noise is not None else ()
    return Levels(
        groups=found,
        levels=tuple(parts),
        changes=tuple(_change(*pair, noise, more_is_better=more_is_better) for pair in pairs if noise is not None),
        noise=noise,
        unknown=unknown,
    )


def _why_unknown(groups: Sequence[Group]) -> str:
    if len(groups) < FEWEST:
        return f"there are too few values to tell a change from noise: {len(groups)}, and {FEWEST} are needed"
    return _NO_FLOOR if _floor(groups) is None else ""


def _bounds(groups: Sequence[Group]) -> tuple[list[int], Noise]:
    """Where levels begin and end, and the noise within them: of the candidates, the weakest goes while it does not
    count."""
    values = np.array([group.value for group in groups], np.float64)
    steps = median(group.error for group in groups)
    rough = max(_scale(values), steps)
    near = _without_outliers(values, rough)
    bounds = [0, *_candidates(near, rough), len(values)]
    while True:
        noise = _noise(near, bounds, steps)
        places = range(1, len(bounds) - 1)
        standing = [_standing(groups, near, bounds[place - 1 : place + 2], noise) for place in places]
        if min(standing, default=2.0) > 1:
            return bounds, noise
        del bounds[1 + standing.index(min(standing))]


def _scale(values: F64) -> float:
    """Standard deviation of values of which each may follow the one before it, from differences of neighbours, of which
    a few may be changes (Chakar et al.)."""
    one, two = (_typical(values[lag:] - values[:-lag]) for lag in (1, 2))
    following = min(max((two / one) ** 2 - 1, 0.0), _FOLLOWING) if one else 0.0
    return float(one / (2 * (1 - following)) ** 0.5)


def _typical(differences: F64) -> float:
    """Their standard deviation by their median, or where most are nothing, by their mean."""
    size = np.abs(differences)
    return float(np.median(size) / _MAD) or float(size.mean() * (np.pi / 2) ** 0.5)


def _without_outliers(values: F64, sigma: float) -> F64:
    """The values, those further from the median of their neighbours than noise replaced by it."""
    # Of so many neighbours that the median is new at once where a level is.
    half = _least(len(values)) - 1
    middle = np.median(np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1), axis=1)
    middle = np.pad(middle, half, mode="edge")
    near: F64 = np.where(np.abs(values - middle) > _OUTLIER * sigma, middle, values)
    return near


def _least(count: int) -> int:
    """Of so many values, as many in a row as make a level: the more there are, the more outliers meet by chance."""
    return max(LEAST, round(float(np.log(count))))


def _candidates(near: F64, sigma: float) -> list[int]:
    """Where the level may change, by PELT."""
    try:
        import ruptures
    except ImportError:
        raise _missing() from None
    size = -(-len(near) // _MOST)
    coarse = near[: len(near) - len(near) % size].reshape(-1, size).mean(axis=1)
    least = max(LEAST, -(-_least(len(near)) // size))
    scaled = coarse[:, None] / (sigma or 1.0)
    penalty = _PENALTY * np.log(len(coarse)) / size
    found = ruptures.KernelCPD(kernel="linear", min_size=least).fit(scaled).predict(pen=penalty)
    return [_sharp(near, int(number) * size, size) for number in found[:-1]]


def _sharp(values: F64, about: int, size: int) -> int:
    """The very place of a change that is known to `size` values: where both sides are most alike within themselves."""
    if size == 1:
        return about
    first, end = max(0, about - LEAST * size), min(len(values), about + LEAST * size)

    def unlike(place: int) -> float:
        return float(values[first:place].var() * (place - first) + values[place:end].var() * (end - place))

    return min(range(max(first + 1, about - size), min(end - 1, about + size) + 1), key=unlike)


def _noise(near: F64, bounds: Sequence[int], steps: float) -> Noise:
    """What values differ by within levels, but not less than their steps tell."""
    parts = [near[first:end] for first, end in pairwise(bounds)]
    apart = np.concatenate([part - np.median(part) for part in parts])
    squares = float(apart @ apart)
    degrees = len(apart) - len(parts)
    following = float(apart[1:] @ apart[:-1]) / squares if squares else 0.0
    return Noise(
        sigma=max((squares / degrees) ** 0.5, steps),
        following=min(max(following, 0.0), _FOLLOWING),
        degrees=degrees,
        # A change may stand between any two values, so the chance of an error is shared among all these.
        quantile=_student(1 - (1 - CONFIDENCE) / (2 * (len(near) - 1)), degrees),
    )


def _student(probability: float, degrees: int) -> float:
    """A quantile of Student's t."""
    try:
        from scipy.special import stdtrit
    except ImportError:
        raise _missing() from None
    return float(stdtrit(degrees, probability))


def _missing() -> MissingPackage:
    return MissingPackage(f"changes in level need ruptures. {how_to_install('history')}")


def _error(noise: Noise, *counts: int) -> float:
    """Standard error of a median of so many values in a row; of two, that of their difference."""
    follow = (1 + noise.following) / (1 - noise.following)
    return float(_MEDIAN * noise.sigma * sum(min(1.0, follow / count) for count in counts) ** 0.5)


def _standing(groups: Sequence[Group], near: F64, bounds: Sequence[int], noise: Noise) -> float:
    """How far two levels side by side are apart, in the least distance that counts; no further than they are without
    outliers."""
    one, other = (groups[first:end] for first, end in pairwise(bounds))
    without, other_without = (float(np.median(near[first:end])) for first, end in pairwise(bounds))
    apart = min(abs(_value(one) - _value(other)), abs(without - other_without))
    return apart / max(noise.quantile * _error(noise, len(one), len(other)), _lower_floor(one, other), 1e-300)


def _lower_floor(one: Sequence[Group], other: Sequence[Group]) -> float:
    """As in `check`: of what link and host decide about, the side that has less tells how much it may vary."""
    return min(_floor(one) or 0.0, _floor(other) or 0.0)


def _value(groups: Sequence[Group]) -> float:
    return median(group.value for group in groups)


def _level(groups: Sequence[Group], first: int, end: int, noise: Noise | None) -> Level:
    value = _value(groups[first:end])
    margin = None
    if noise is not None:
        margin = _student((1 + CONFIDENCE) / 2, noise.degrees) * _error(noise, end - first)
    return Level(
        first=first,
        end=end,
        value=value,
        low=None if margin is None else value - margin,
        high=None if margin is None else value + margin,
    )


def _change(one: Level, other: Level, noise: Noise, *, more_is_better: bool) -> LevelChange:
    difference = other.value - one.value
    margin = noise.quantile * _error(noise, one.end - one.first, other.end - other.first)
    return LevelChange(
        first=other.first,
        before=one.value,
        after=other.value,
        low=difference - margin,
        high=difference + margin,
        worse=(difference < 0) == more_is_better,
    )


# -- the newest -------------------------------------------------------------------------------------


def newest(groups: Sequence[Group], *, more_is_better: bool, of: int = 1) -> Standing:
    """The last group against the last level of those before it; `of`: so many metrics are judged together, among which
    the chance of an error, 1 %, is shared. Raises MissingPackage without ruptures, ValueError without groups."""
    *others, last = groups
    before = levels(others, more_is_better=more_is_better)
    noise, why = before.noise, before.unknown or (_NO_FLOOR if last.floor is None else "")
    if noise is None or why:
        return Standing(newest=last, before=before, status="unknown", unknown=why)
    level = before.levels[-1]
    error = (max(noise.sigma, last.error) ** 2 + _error(noise, level.end - level.first) ** 2) ** 0.5
    margin = _student(1 - (1 - CONFIDENCE) / (2 * of), noise.degrees) * error
    difference, floor = last.value - level.value, _lower_floor(others[level.first :], [last])
    status: Literal["same", "worse", "better"] = "same"
    if abs(difference) > max(floor, margin):
        status = "better" if (difference > 0) == more_is_better else "worse"
    return Standing(
        newest=last, before=before, status=status, low=difference - margin, high=difference + margin, floor=floor
    )
