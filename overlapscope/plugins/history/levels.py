"""Levels of a metric over time, and the changes between them.

PELT with the cost L2 finds candidates for changes (R. Killick, P. Fearnhead, I. A. Eckley, "Optimal Detection of
Changepoints With a Linear Computational Cost", JASA 107 (2012), 1590-1598; package `ruptures`). Before that, Hampel's
filter replaces outliers with the median of their neighbors. The standard deviation for the filter comes from
differences between neighbors, which changes of level hardly affect (S. Chakar, E. Lebarbier, C. Lévy-Leduc, S. Robin,
"A robust approach for estimating change-points in the mean of an AR(1) process", Bernoulli 23 (2017), 1408-1447).

Each candidate is then tested as in `check`: a change counts if it exceeds the noise floor and is unlikely to be chance.
A level is a median. Its error follows from the variation within levels and from the correlation between successive
values. The weakest change is dropped until all changes count. `docs/evaluation/levels.md` states how often changes are
found and how often they are false.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from statistics import fmean, median
from typing import Final, Literal

import msgspec
import numpy as np

from overlapscope.base.extras import how_to_install
from overlapscope.base.words import plural
from overlapscope.compare.noise import CONFIDENCE, F64
from overlapscope.errors import MissingPackage
from overlapscope.plugins.history.store import Point

By = Literal["commit", "hour", "report"]
BY: Final[tuple[By, ...]] = ("commit", "hour", "report")

MIN_LEVEL_POINTS: Final = 3
"""Minimum number of points in a level: the median of three is right even if one of them is an outlier."""
MIN_SERIES_POINTS: Final = 6
"""Minimum number of points in a series: enough for two levels."""
_MAX_AUTOCORRELATION: Final = 0.9
"""Maximum correlation between successive points."""

_HOUR_NS: Final = 3_600_000_000_000
_MAD_OF_NORMAL: Final = 0.6745
"""Median distance of normal values from their mean, in standard deviations."""
_MEDIAN_ERROR_RATIO: Final = 1.2533
"""Ratio of the standard errors of median and mean for normal values. It is smaller for values with heavy tails."""
_OUTLIER_SIGMAS: Final = 3.0
"""Standard deviations from the neighbors' median beyond which a value is an outlier."""
_PENALTY: Final = 3.0
"""Penalty of PELT for each change, in variances times the logarithm of the number of values."""
_MAX_PELT_POINTS: Final = 4096
"""Maximum number of points for PELT, which takes quadratic time. Longer series are averaged first."""


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A value of a series: that of a report, or of all reports of a commit or an hour."""

    ids: tuple[str, ...]
    """Ids of the reports, oldest first."""
    at_ns: int
    """Time of the first recording, in nanoseconds since 1970."""
    commit: str | None
    """Commit of the reports; None if unknown or if there are several."""
    value: float
    """Median of the reports' values, each of which is the mean over the devices."""
    error: float
    """Standard error due to variation between steps; 0 if unknown."""
    floor: float
    """Minimum change that is more than noise, as in `check`."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Groups from one change to the next, by number."""

    first: int
    end: int
    """Number after the last group."""
    value: float
    """Median of the groups."""
    low: float | None
    """Lower end of the level's 99% interval; None if the noise is unknown."""
    high: float | None


class LevelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change from one level to the next."""

    first: int
    """Number of the first group of the new level."""
    before: float
    after: float
    low: float
    """Lower end of the interval of `after - before`, at 99% for all changes of the series together."""
    high: float
    worse: bool


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Variation between groups without changes."""

    sigma: float
    """Standard deviation within levels."""
    following: float
    """Correlation between successive groups, 0 to 0.9."""
    degrees: int
    """Degrees of freedom of these estimates."""
    quantile: float
    """Number of standard errors that a change must exceed."""


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """A series and its levels. There is at least one unless the series is empty."""

    groups: tuple[Group, ...]
    levels: tuple[Level, ...]
    changes: tuple[LevelChange, ...]
    noise: Noise | None
    unknown: str
    """Reason why noise and changes are unknown, as a part of a sentence; otherwise empty."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The newest group compared with the last level before it."""

    newest: Group
    before: Levels
    """Levels of the groups before it."""
    status: Literal["same", "worse", "better", "unknown"]
    low: float | None = None
    """Lower end of the interval of the newest value minus the level."""
    high: float | None = None
    floor: float | None = None
    """Minimum change that counts."""
    unknown: str = ""
    """Reason why the status is unknown, as a part of a sentence."""


# -- Groups -----------------------------------------------------------------------------------------


def grouped(points: Iterable[Point], by: By = "report") -> tuple[Group, ...]:
    """Return the points of a metric as a series, oldest first. A commit counts from its first recording.

    Points of plain programs and of recordings, or of different GPUs, must not be mixed: see `alike`.
    """
    ordered = sorted(points, key=lambda point: (point.at_ns, point.id))
    reports = [_report(list(same)) for _, same in groupby(ordered, key=lambda point: (point.at_ns, point.id))]
    if by == "report":
        return tuple(reports)
    by_key: dict[object, list[Group]] = {}
    for report in reports:
        key = report.at_ns // _HOUR_NS if by == "hour" else report.commit
        # Reports of unknown commits may be of different commits.
        by_key.setdefault(report.ids if key is None else key, []).append(report)
    return tuple(_joined(group) for group in by_key.values())


def alike(points: Sequence[Point]) -> list[Point]:
    """Return the points comparable with the newest: on the same GPU, and both of plain programs or of recordings."""
    if not points:
        return []
    newest = max(points, key=lambda point: (point.at_ns, point.id))
    return [point for point in points if (point.plain, point.gpu) == (newest.plain, newest.gpu)]


def _report(points: list[Point]) -> Group:
    return Group(
        ids=(points[0].id,),
        at_ns=points[0].at_ns,
        commit=points[0].commit,
        value=fmean(point.value for point in points),
        error=max((point.spread or 0.0) / max(1, point.samples) ** 0.5 for point in points),
        floor=max(point.floor for point in points),
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
        error=_MEDIAN_ERROR_RATIO * median(group.error for group in groups) / len(groups) ** 0.5,
        floor=_floor(groups),
    )


def _floor(groups: Sequence[Group]) -> float:
    """Return the median noise floor."""
    return median(group.floor for group in groups)


# -- Levels -----------------------------------------------------------------------------------------


def levels(groups: Sequence[Group], *, more_is_better: bool) -> Levels:
    """Return the levels of a series, oldest first. Raises MissingPackage without ruptures.

    In a series without changes, a false one is found with a probability of about 1 %.
    """
    series = tuple(groups)
    few = f"{plural(len(series), 'value')} cannot show what is noise; {MIN_SERIES_POINTS} are needed"
    unknown = few if len(series) < MIN_SERIES_POINTS else ""
    bounds, noise = ([0, len(series)], None) if unknown else _bounds(series)
    parts = [_level(series, *part, noise) for part in pairwise(bounds) if part[0] < part[1]]
    pairs = pairwise(parts) if noise is not None else ()
    return Levels(
        groups=series,
        levels=tuple(parts),
        changes=tuple(_change(*pair, noise, more_is_better=more_is_better) for pair in pairs if noise is not None),
        noise=noise,
        unknown=unknown,
    )


def _bounds(groups: Sequence[Group]) -> tuple[list[int], Noise]:
    """Return the bounds of levels and the noise within them, after dropping the weakest changes that don't count."""
    values = np.array([group.value for group in groups], np.float64)
    step_error = median(group.error for group in groups)
    rough_sigma = max(_sigma_of_correlated(values), step_error)
    cleaned = _without_outliers(values, rough_sigma)
    bounds = [0, *_candidates(cleaned, rough_sigma), len(values)]
    while True:
        noise = _noise(cleaned, bounds, step_error)
        places = range(1, len(bounds) - 1)
        distances = [_relative_distance(groups, cleaned, bounds[place - 1 : place + 2], noise) for place in places]
        if min(distances, default=2.0) > 1:
            return bounds, noise
        del bounds[1 + distances.index(min(distances))]


def _sigma_of_correlated(values: F64) -> float:
    """Return the standard deviation of correlated values, from differences between neighbors (Chakar et al.).

    A few of the differences may be changes of level.
    """
    by_one, by_two = (_sigma_of_differences(values[lag:] - values[:-lag]) for lag in (1, 2))
    following = min(max((by_two / by_one) ** 2 - 1, 0.0), _MAX_AUTOCORRELATION) if by_one else 0.0
    return float(by_one / (2 * (1 - following)) ** 0.5)


def _sigma_of_differences(differences: F64) -> float:
    """Return the standard deviation of differences, from their median, or from their mean if the median is zero."""
    size = np.abs(differences)
    return float(np.median(size) / _MAD_OF_NORMAL) or float(size.mean() * (np.pi / 2) ** 0.5)


def _without_outliers(values: F64, sigma: float) -> F64:
    """Replace outliers with the median of their neighbors."""
    # With this many neighbors, the median changes at the first value of a new level.
    half = _min_level_length(len(values)) - 1
    middle = np.median(np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1), axis=1)
    middle = np.pad(middle, half, mode="edge")
    cleaned: F64 = np.where(np.abs(values - middle) > _OUTLIER_SIGMAS * sigma, middle, values)
    return cleaned


def _min_level_length(count: int) -> int:
    """Return the minimum length of a level. Long series have more successive outliers by chance."""
    return max(MIN_LEVEL_POINTS, round(float(np.log(count))))


def _candidates(cleaned: F64, sigma: float) -> list[int]:
    """Return the places where PELT finds changes of level."""
    try:
        import ruptures
    except ImportError:
        raise _missing() from None
    size = -(-len(cleaned) // _MAX_PELT_POINTS)
    coarse = cleaned[: len(cleaned) - len(cleaned) % size].reshape(-1, size).mean(axis=1)
    least = max(MIN_LEVEL_POINTS, -(-_min_level_length(len(cleaned)) // size))
    scaled = coarse[:, None] / (sigma or 1.0)
    penalty = _PENALTY * np.log(len(coarse)) / size
    ends = ruptures.KernelCPD(kernel="linear", min_size=least).fit(scaled).predict(pen=penalty)
    return [_exact_place(cleaned, int(number) * size, size) for number in ends[:-1]]


def _exact_place(values: F64, about: int, size: int) -> int:
    """Return the exact place of a change within `size` values of `about`: the split with the least variance."""
    if size == 1:
        return about
    first, end = max(0, about - MIN_LEVEL_POINTS * size), min(len(values), about + MIN_LEVEL_POINTS * size)

    def variation(place: int) -> float:
        return float(values[first:place].var() * (place - first) + values[place:end].var() * (end - place))

    return min(range(max(first + 1, about - size), min(end - 1, about + size) + 1), key=variation)


def _noise(cleaned: F64, bounds: Sequence[int], step_error: float) -> Noise:
    """Return the noise within levels, at least that of the steps."""
    parts = [cleaned[first:end] for first, end in pairwise(bounds)]
    residuals = np.concatenate([part - np.median(part) for part in parts])
    squares = float(residuals @ residuals)
    degrees = len(residuals) - len(parts)
    following = float(residuals[1:] @ residuals[:-1]) / squares if squares else 0.0
    return Noise(
        sigma=max((squares / degrees) ** 0.5, step_error),
        following=min(max(following, 0.0), _MAX_AUTOCORRELATION),
        degrees=degrees,
        # A change is possible between any two values, so the probability of an error is divided among these places.
        quantile=_student(1 - (1 - CONFIDENCE) / (2 * (len(cleaned) - 1)), degrees),
    )


def _student(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t distribution."""
    try:
        from scipy.special import stdtrit
    except ImportError:
        raise _missing() from None
    return float(stdtrit(degrees, probability))


def _missing() -> MissingPackage:
    return MissingPackage(f"changes in level need ruptures. {how_to_install('history')}")


def _error(noise: Noise, *counts: int) -> float:
    """Return the standard error of a median of successive values, or of the difference between two medians."""
    follow = (1 + noise.following) / (1 - noise.following)
    return float(_MEDIAN_ERROR_RATIO * noise.sigma * sum(min(1.0, follow / count) for count in counts) ** 0.5)


def _relative_distance(groups: Sequence[Group], cleaned: F64, bounds: Sequence[int], noise: Noise) -> float:
    """Return the distance between two neighboring levels, in units of the minimum that counts.

    The distance is the smaller of those with and without outliers.
    """
    before, after = (groups[first:end] for first, end in pairwise(bounds))
    without, other_without = (float(np.median(cleaned[first:end])) for first, end in pairwise(bounds))
    distance = min(abs(_value(before) - _value(after)), abs(without - other_without))
    return distance / max(
        noise.quantile * _error(noise, len(before), len(after)), _smaller_floor(before, after), 1e-300
    )


def _smaller_floor(before: Sequence[Group], after: Sequence[Group]) -> float:
    """Return the smaller noise floor. As in `check`, the side with less time on the link and the host decides."""
    return min(_floor(before), _floor(after))


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


def _change(before: Level, after: Level, noise: Noise, *, more_is_better: bool) -> LevelChange:
    difference = after.value - before.value
    margin = noise.quantile * _error(noise, before.end - before.first, after.end - after.first)
    return LevelChange(
        first=after.first,
        before=before.value,
        after=after.value,
        low=difference - margin,
        high=difference + margin,
        worse=(difference < 0) == more_is_better,
    )


# -- Newest group -----------------------------------------------------------------------------------


def newest(groups: Sequence[Group], *, more_is_better: bool, of: int = 1) -> Standing:
    """Compare the last group with the last level of those before it.

    Args:
        groups: The series.
        more_is_better: Whether larger values are better.
        of: Number of metrics judged together, which share the probability of an error, 1 %.

    Returns:
        The newest group beside the level before it.

    Raises:
        MissingPackage: ruptures isn't installed.
        ValueError: There are no groups.
    """
    *others, last = groups
    before = levels(others, more_is_better=more_is_better)
    noise = before.noise
    if noise is None:
        return Standing(newest=last, before=before, status="unknown", unknown=before.unknown)
    level = before.levels[-1]
    error = (max(noise.sigma, last.error) ** 2 + _error(noise, level.end - level.first) ** 2) ** 0.5
    margin = _student(1 - (1 - CONFIDENCE) / (2 * of), noise.degrees) * error
    difference, floor = last.value - level.value, _smaller_floor(others[level.first :], [last])
    status: Literal["same", "worse", "better"] = "same"
    if abs(difference) > max(floor, margin):
        status = "better" if (difference > 0) == more_is_better else "worse"
    return Standing(
        newest=last, before=before, status=status, low=difference - margin, high=difference + margin, floor=floor
    )
