"""Levels of a series: what changed is found where it changed, what did not change is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.compare.noise import F64
from overlapscope.errors import UsageError
from overlapscope.plugins.history.course import metric_of
from overlapscope.plugins.history.levels import MIN_SERIES_POINTS, Group, alike, grouped, levels, newest
from overlapscope.plugins.history.store import Point

HOUR = 3_600_000_000_000


def series(values: Sequence[float] | F64, *, floor: float = 1e-9, error: float = 0.0) -> list[Group]:
    return [
        Group(ids=(f"{at}",), at_ns=at, commit=f"c{at}", value=float(value), error=error, floor=floor)
        for at, value in enumerate(values)
    ]


def point(at_ns: int, value: float, *, commit: str | None = None, device: int = 0, plain: bool = True) -> Point:
    return Point(f"{at_ns:05}", at_ns, commit, "H200", None, device, value, 1.0, 4, 0.5, plain)


def following(random: np.random.Generator, count: int, share: float) -> F64:
    """Noise of which each value follows the one before it."""
    values = random.normal(size=count + 50)
    for number in range(1, len(values)):
        values[number] += share * values[number - 1]
    return np.asarray(values[50:], np.float64)


Noise = Callable[[np.random.Generator, int], F64]
NOISES: dict[str, tuple[Noise, float]] = {
    "normal": (lambda random, count: random.normal(size=count), 0.01),
    "heavy tails": (lambda random, count: random.standard_t(3, count), 0.02),
    "outliers": (lambda random, count: random.normal(size=count) + 50 * (random.random(count) < 1 / 32), 0.03),
    "following": (lambda random, count: following(random, count, 0.5), 0.06),
}
"""Kinds of noise, and the maximum frequency of false changes."""


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("count", [8, 20, 60])
def test_noise_alone_is_hardly_ever_reported_as_a_change(name: str, count: int) -> None:
    noise, most = NOISES[name]
    random = np.random.default_rng(count)
    alarms = [bool(levels(series(noise(random, count)), more_is_better=True).changes) for _ in range(150)]
    assert fmean(alarms) <= most


@pytest.mark.parametrize("name", ["normal", "heavy tails", "following"])
def test_a_newest_value_like_the_others_is_hardly_ever_called_worse(name: str) -> None:
    noise, _ = NOISES[name]
    random = np.random.default_rng(3)
    alarms = [newest(series(noise(random, 20)), more_is_better=False, of=5).status != "same" for _ in range(150)]
    assert fmean(alarms) <= 0.02


@pytest.mark.parametrize("name", ["normal", "heavy tails", "outliers"])
@pytest.mark.parametrize("place", [3, 7, 10, 17])
def test_a_change_of_ten_times_the_noise_is_found_where_it_is(name: str, place: int) -> None:
    noise, _ = NOISES[name]
    random = np.random.default_rng(place)
    hits = 0
    for _ in range(40):
        values = noise(random, 20)
        values[place:] += 10
        changes = levels(series(values), more_is_better=False).changes
        # With an outlier beside it, the change may be found one value earlier or later.
        hits += len(changes) == 1 and abs(changes[0].first - place) <= (name != "normal") and changes[0].worse
    assert hits >= (40 if name == "normal" else 34)


def test_the_interval_of_a_change_has_the_true_one_in_it() -> None:
    random, inside = np.random.default_rng(1), []
    for _ in range(100):
        values = random.normal(size=30)
        values[12:] += 8
        [change] = levels(series(values), more_is_better=True).changes
        inside.append(change.low <= 8 <= change.high and not change.worse)
    assert all(inside)


def test_several_changes_are_found_worse_and_better() -> None:
    values = np.random.default_rng(2).normal(size=60)
    values[20:40] += 12
    result = levels(series(values), more_is_better=False)
    assert [(change.first, change.worse) for change in result.changes] == [(20, True), (40, False)]
    assert [(level.first, level.end) for level in result.levels] == [(0, 20), (20, 40), (40, 60)]


def test_a_change_below_the_noise_floor_is_none() -> None:
    values = [10.0] * 10 + [14.0] * 10
    assert len(levels(series(values, floor=3.9), more_is_better=False).changes) == 1
    assert levels(series(values, floor=4.1), more_is_better=False).changes == ()
    assert newest(series([10.0] * 10 + [14.0], floor=3.9), more_is_better=False).status == "worse"
    assert newest(series([10.0] * 10 + [14.0], floor=4.1), more_is_better=False).status == "same"


def test_noise_is_never_less_than_that_of_the_steps() -> None:
    values = [10.0] * 10 + [14.0] * 10
    assert levels(series(values, error=10.0), more_is_better=False).changes == ()


def test_of_few_values_nothing_is_reported() -> None:
    few = levels(series([1.0, 1.0, 1.0, 9.0, 9.0]), more_is_better=False)
    assert (few.changes, few.noise) == ((), None) and "cannot show what is noise" in few.unknown
    assert [(level.value, level.low) for level in few.levels] == [(1.0, None)]
    assert levels([], more_is_better=True).levels == ()
    assert newest(series([1.0] * MIN_SERIES_POINTS), more_is_better=False).status == "unknown"


def test_two_outliers_side_by_side_are_no_level() -> None:
    values = np.random.default_rng(4).normal(size=30)
    for place in (0, 14, 28):
        again = values.copy()
        again[place : place + 2] += 100
        assert levels(series(again), more_is_better=False).changes == ()


def test_a_year_of_one_every_ten_minutes_is_sharp() -> None:
    values = np.random.default_rng(5).normal(size=52_560)
    values[20_000:] += 12
    [change] = levels(series(values), more_is_better=False).changes
    assert change.first == 20_000


VALUES = st.lists(st.integers(-1000, 1000).map(float), max_size=40)


@given(VALUES, st.sampled_from([0.0, 0.5, 20.0]))
def test_levels_cover_the_values_and_are_their_medians(values: list[float], floor: float) -> None:
    result = levels(series(values, floor=floor), more_is_better=True)
    assert [at for level in result.levels for at in range(level.first, level.end)] == list(range(len(values)))
    assert all(level.value == median(values[level.first : level.end]) for level in result.levels)
    assert [change.first for change in result.changes] == [level.first for level in result.levels[1:]]
    for change in result.changes:
        assert abs(change.after - change.before) > floor and (change.low > 0 or change.high < 0)
        assert change.low <= change.after - change.before <= change.high
        assert change.worse == (change.after < change.before)


@given(VALUES)
def test_what_is_upside_down_has_the_same_levels(values: list[float]) -> None:
    risen, other = (levels(series([sign * value for value in values]), more_is_better=True) for sign in (1, -1))
    assert [change.first for change in risen.changes] == [change.first for change in other.changes]
    assert [change.worse for change in risen.changes] == [not change.worse for change in other.changes]


def test_reports_are_put_together_by_commit_and_hour() -> None:
    points = [
        point(HOUR, 10.0, commit="a"),
        point(HOUR, 20.0, commit="a", device=1),
        point(HOUR + 1, 30.0, commit="b"),
        point(2 * HOUR, 40.0, commit="a"),
        point(3 * HOUR, 50.0),
        point(3 * HOUR + 1, 60.0),
    ]
    assert [group.value for group in grouped(points)] == [15.0, 30.0, 40.0, 50.0, 60.0]
    assert [(group.commit, group.value) for group in grouped(points, "commit")] == [
        ("a", 27.5),
        ("b", 30.0),
        (None, 50.0),
        (None, 60.0),
    ]
    assert [(group.commit, group.value) for group in grouped(points, "hour")] == [
        (None, 22.5),
        ("a", 40.0),
        (None, 55.0),
    ]


def test_points_of_the_plain_program_and_of_recordings_are_never_in_one_series() -> None:
    plain, recorded = point(1, 1.0), point(2, 2.0, plain=False)
    assert alike([plain, recorded]) == [recorded]
    assert alike([plain]) == [plain] and alike([]) == []


def test_what_is_not_a_metric_is_named() -> None:
    assert metric_of("idle_time/host-sync").metric == "idle_time"
    for name in ("step_tme", "idle_time/host-snc", "step_time/host-sync"):
        with pytest.raises(UsageError, match=r"did you mean|causes: none"):
            metric_of(name)
