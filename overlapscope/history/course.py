"""What a store says of a job: the levels of its metrics, where its newest report stands, which one is a baseline."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal

import msgspec

from overlapscope.base.words import clean, did_you_mean, listed
from overlapscope.budgets.metrics import METRICS, Metric
from overlapscope.budgets.verdicts import Unit
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.errors import UsageError
from overlapscope.history.entry import Entry
from overlapscope.history.levels import By, Levels, Standing, alike, grouped, levels, newest
from overlapscope.history.store import Point, Query, Store

DEFAULT: Final = ("efficiency_pct", "hidden_copy_pct", "idle_time", "exposed_copy_time", "step_time")
"""The metrics of overlap: those that are shown, and judged, unless others are named."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one job over time."""

    metric: str
    unit: Unit
    plain: bool
    """Of the plain program, else of recordings: the two are never in one series."""
    gpu: str | None
    by: By
    levels: Levels


class JobCourse(msgspec.Struct, frozen=True, kw_only=True):
    """What `overlapscope history --format json` says of a job."""

    kind: Literal["history-levels"] = "history-levels"
    schema_version: int = 1
    job: str
    courses: tuple[Course, ...] = ()
    """Of the metrics that have values."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of the newest report, or commit, of a job."""

    metric: str
    unit: Unit
    plain: bool
    gpu: str | None
    standing: Standing | None
    """None where the newest has no value though others have."""


class HistoryCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What `overlapscope history check --format json` says."""

    kind: Literal["history-check"] = "history-check"
    schema_version: int = 1
    job: str
    by: By
    outcome: Literal["pass", "fail", "inconclusive"]
    exit_code: Literal[0, 1, 3]
    metrics: tuple[Judged, ...]


def metric_of(name: str) -> Metric:
    """The metric that a figure is of: `idle_time` of `idle_time/host-sync`, too. Raises UsageError."""
    base, slash, cause = name.partition("/")
    causes: Collection[str] = {"idle_time": IDLE_CAUSES, "exposed_copy_time": COPY_CAUSES}.get(base, ())
    if base not in METRICS:
        raise UsageError(
            f"there is no metric {clean(base, 80)!r}{did_you_mean(base, METRICS)}; metrics: {listed(METRICS)}."
        )
    if slash and cause not in causes:
        known = listed(causes) or "none"
        raise UsageError(f"{base} has no cause {clean(cause, 80)!r}{did_you_mean(cause, causes)}; causes: {known}.")
    return METRICS[base]


def job_of(store: Store, asked: str | None) -> str:
    """The job that is asked for, else the one that ran last. Raises UsageError where there is none."""
    jobs = store.jobs()
    if not jobs:
        raise UsageError(f"{store.path}: the history is empty; `overlapscope history add` adds reports.")
    if asked is not None and asked not in jobs:
        names = listed((clean(job, 80) for job in jobs), 20)
        raise UsageError(f"{store.path}: has no job {clean(asked, 80)!r}{did_you_mean(asked, jobs)}; jobs: {names}.")
    return asked or jobs[0]


def course(metric: str, points: Sequence[Point], by: By) -> Course | None:
    """The levels of a metric, of those points that can be compared with the newest; None without points.

    Raises UsageError where there is no such metric, MissingPackage without ruptures.
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
        levels=_possible(levels(grouped(same, by), more_is_better=of.more_is_better), of.unit),
    )


def _possible(found: Levels, unit: Unit) -> Levels:
    """Intervals of levels without what no figure can be: less than nothing, or more than all."""
    most = 100.0 if unit == "pct" else math.inf
    within = (
        one
        if one.low is None or one.high is None
        else msgspec.structs.replace(one, low=max(0.0, one.low), high=min(most, one.high))
        for one in found.levels
    )
    return msgspec.structs.replace(found, levels=tuple(within))


def courses(store: Store, query: Query, metrics: Sequence[str], by: By) -> JobCourse:
    """The levels of a job's metrics; by default of the job that ran last. Raises as `course`, and `job_of`."""
    query = _of_one_job(store, query)
    found = (course(metric, store.points(metric, query), by) for metric in dict.fromkeys(metrics))
    return JobCourse(job=query.job or "", courses=tuple(one for one in found if one is not None))


def judge(store: Store, query: Query, metrics: Sequence[str], by: By) -> HistoryCheck:
    """Where the newest report of a job stands, or by commit or hour the newest of these, in each metric that the job
    has. Raises as `courses`."""
    query = _of_one_job(store, query)
    kinds = {metric: metric_of(metric) for metric in metrics}
    every = {metric: alike(store.points(metric, query)) for metric in kinds}
    found = {metric: points for metric, points in every.items() if points}
    last = next(iter(store.rows(query, most=1)), None)
    judged = []
    for metric, points in found.items():
        standing, of = None, kinds[metric]
        if last is not None and any(point.id == last.id for point in points):
            # A commit that is recorded again is the newest, too.
            groups = sorted(grouped(points, by), key=lambda group: last.id in group.ids)
            standing = newest(groups, more_is_better=of.more_is_better, of=len(found))
        kind = points[-1]
        judged.append(Judged(metric=metric, unit=of.unit, plain=kind.plain, gpu=kind.gpu, standing=standing))
    outcome, code = _outcome("unknown" if one.standing is None else one.standing.status for one in judged)
    return HistoryCheck(job=query.job or "", by=by, outcome=outcome, exit_code=code, metrics=tuple(judged))


def _of_one_job(store: Store, query: Query) -> Query:
    """By default of the job that ran last, of what else is asked for. Raises as `job_of`."""
    last = None if query.job is not None else next(iter(store.rows(query, most=1)), None)
    return msgspec.structs.replace(query, job=job_of(store, query.job if last is None else last.origin.job))


def _outcome(found: Iterable[str]) -> tuple[Literal["pass", "fail", "inconclusive"], Literal[0, 1, 3]]:
    statuses = set(found)
    if "worse" in statuses:
        return "fail", 1
    return ("inconclusive", 3) if "unknown" in statuses or not statuses else ("pass", 0)


def baseline_entry(store: Store, job: str, *, plain: bool, gpu: str | None) -> Entry:
    """The entry that stands for the current level of a job: the one whose step is the level's middle.

    Raises UsageError where there is none of such a program, MissingPackage without ruptures.
    """
    every = store.points("step_time", Query(job=job_of(store, job), plain=plain))
    points = [point for point in every if point.gpu == gpu]
    if not points:
        kind = "the plain program" if plain else "a recording"
        raise UsageError(
            f"{store.path}: has no report of {clean(job, 80)} with steps that is of {kind} on "
            f"{clean(gpu or 'an unknown GPU', 80)}, so it gives no baseline."
        )
    groups = grouped(points)
    level = levels(groups, more_is_better=False).levels[-1]
    ordered = sorted(groups[level.first : level.end], key=lambda group: abs(group.value - level.value))
    entries = (store.entry(group.ids[0]) for group in ordered)
    # Of a large report, the history keeps no steps.
    whole = (entry for entry in entries if any(device.steps for device in entry.report.devices))
    found = next(whole, None)
    if found is None:
        raise UsageError(f"{store.path}: no report of {clean(job, 80)} was kept with its steps; name a --baseline.")
    return found
