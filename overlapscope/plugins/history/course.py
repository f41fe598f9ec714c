"""History of a job: the levels of its metrics, and the standing of its newest report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from overlapscope.base.saved import SCHEMA_VERSION
from overlapscope.base.words import clean, did_you_mean, listed
from overlapscope.budgets.verdicts import Unit
from overlapscope.catalog.measures import CAUSES_OF, METRICS, Measure
from overlapscope.errors import UsageError
from overlapscope.plugins.history.levels import By, Levels, Standing, alike, grouped, levels, newest
from overlapscope.plugins.history.store import Point, Query, Store

_WITHOUT_GPU: Final = ("host_step_time", "host_loading_pct")
DEFAULT: Final = ("efficiency_pct", "hidden_copy_pct", "idle_time", "exposed_copy_time", "step_time", *_WITHOUT_GPU)
"""Metrics that are shown and judged by default, where a program has them: of overlap, and of steps on the host."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a job over time."""

    metric: str
    unit: Unit
    plain: bool
    """True for plain programs, False for recordings. A series never mixes the two."""
    gpu: str | None
    by: By
    levels: Levels


class JobCourse(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `overlapscope history --format json` about a job."""

    kind: Literal["history-levels"] = "history-levels"
    schema_version: int = SCHEMA_VERSION
    job: str
    courses: tuple[Course, ...] = ()
    """Courses of the metrics that have values."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of the newest report or commit of a job."""

    metric: str
    unit: Unit
    plain: bool
    gpu: str | None
    standing: Standing | None
    """Standing of the newest value; None if only older reports have a value."""


class HistoryCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `overlapscope history check --format json`."""

    kind: Literal["history-check"] = "history-check"
    schema_version: int = SCHEMA_VERSION
    job: str
    by: By
    outcome: Literal["pass", "fail", "inconclusive"]
    exit_code: Literal[0, 1, 3]
    metrics: tuple[Judged, ...]


def metric_of(name: str) -> Measure:
    """Return the metric of a figure: `idle_time` for `idle_time` and `idle_time/host-sync`. Raises UsageError."""
    base, slash, cause = name.partition("/")
    causes = CAUSES_OF.get(base, ())
    if base not in METRICS:
        raise UsageError(
            f"there is no metric {clean(base, 80)!r}{did_you_mean(base, METRICS)}; metrics: {listed(METRICS)}."
        )
    if slash and cause not in causes:
        names = listed(causes) or "none"
        raise UsageError(f"{base} has no cause {clean(cause, 80)!r}{did_you_mean(cause, causes)}; causes: {names}.")
    return METRICS[base]


def job_of(store: Store, job: str | None) -> str:
    """Return the job asked for, or the job that ran last. Raises UsageError if it doesn't exist."""
    jobs = store.jobs()
    if not jobs:
        raise UsageError(f"{store.path}: the history is empty; `overlapscope history add` adds reports.")
    if job is not None and job not in jobs:
        names = listed((clean(job, 80) for job in jobs), 20)
        raise UsageError(f"{store.path}: has no job {clean(job, 80)!r}{did_you_mean(job, jobs)}; jobs: {names}.")
    return job or jobs[0]


def course(metric: str, points: Sequence[Point], by: By) -> Course | None:
    """Return the levels of a metric over points comparable with the newest; None without points.

    Raises:
        UsageError: The metric doesn't exist.
        MissingPackage: ruptures isn't installed.
    """
    of = metric_of(metric)
    if not (same := alike(points)):
        return None
    return Course(
        metric=metric,
        unit=of.unit,
        plain=same[-1].plain,
        gpu=same[-1].gpu,
        by=by,
        levels=_within_limits(levels(grouped(same, by), more_is_better=bool(of.more_is_better)), of.unit),
    )


def _within_limits(series: Levels, unit: Unit) -> Levels:
    """Cut the intervals of levels at the limits of possible figures: 0, and 100 percent."""
    maximum = 100.0 if unit == "pct" else math.inf
    within = (
        level
        if level.low is None or level.high is None
        else msgspec.structs.replace(level, low=max(0.0, level.low), high=min(maximum, level.high))
        for level in series.levels
    )
    return msgspec.structs.replace(series, levels=tuple(within))


def courses(store: Store, query: Query, metrics: Sequence[str], by: By) -> JobCourse:
    """Return the levels of a job's metrics, by default of the job that ran last. Raises as `course` and `job_of`."""
    query = _with_job(store, query)
    courses = (course(metric, store.points(metric, query), by) for metric in dict.fromkeys(metrics))
    return JobCourse(job=query.job or "", courses=tuple(each for each in courses if each is not None))


def judge(store: Store, query: Query, metrics: Sequence[str], by: By) -> HistoryCheck:
    """Return the standing of a job's newest report, commit or hour in each metric. Raises as `courses`."""
    query = _with_job(store, query)
    kinds = {metric: metric_of(metric) for metric in metrics}
    points_by_metric = {metric: alike(store.points(metric, query)) for metric in kinds}
    comparable = {metric: points for metric, points in points_by_metric.items() if points}
    last = next(iter(store.rows(query, most=1)), None)
    judged = []
    for metric, points in comparable.items():
        standing, of = None, kinds[metric]
        if last is not None and any(point.id == last.id for point in points):
            # A commit that was recorded again is the newest, even if its first report is older than others.
            groups = sorted(grouped(points, by), key=lambda group: last.id in group.ids)
            standing = newest(groups, more_is_better=bool(of.more_is_better), of=len(comparable))
        kind = points[-1]
        judged.append(Judged(metric=metric, unit=of.unit, plain=kind.plain, gpu=kind.gpu, standing=standing))
    outcome, code = _outcome("unknown" if each.standing is None else each.standing.status for each in judged)
    return HistoryCheck(job=query.job or "", by=by, outcome=outcome, exit_code=code, metrics=tuple(judged))


def _with_job(store: Store, query: Query) -> Query:
    """Return a query for a single job, by default the last that ran and matches. Raises as `job_of`."""
    last = None if query.job is not None else next(iter(store.rows(query, most=1)), None)
    return msgspec.structs.replace(query, job=job_of(store, query.job if last is None else last.origin.job))


def _outcome(standings: Iterable[str]) -> tuple[Literal["pass", "fail", "inconclusive"], Literal[0, 1, 3]]:
    statuses = set(standings)
    if "worse" in statuses:
        return "fail", 1
    return ("inconclusive", 3) if "unknown" in statuses or not statuses else ("pass", 0)
