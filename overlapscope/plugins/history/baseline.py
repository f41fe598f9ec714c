"""The baseline of `overlapscope check --history`: the report in the middle of a job's current level."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from overlapscope.base.output import tell
from overlapscope.base.words import clean
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.plugins.history.entry import Entry
    from overlapscope.plugins.history.store import Store
    from overlapscope.report.model import Report


def add_options(rare: argparse._ArgumentGroup) -> None:
    """Add `--history` and `--job`."""
    rare.add_argument(
        "--history",
        metavar="FILE",
        nargs="?",
        const="",
        help="take the baseline from the history: the report in the middle of the job's current level",
    )
    rare.add_argument("--job", metavar="NAME", help="job in the history (default: what the trace says)")


def find(args: argparse.Namespace) -> Callable[[Report], Report] | None:
    """Return a function that finds the baseline of a report; None without `--history`. Raises UsageError."""
    if args.history is None:
        if args.job is not None:
            raise UsageError("--job is a job of the history; pass --history, too.")
        return None
    if args.write_baseline:
        raise UsageError("--write-baseline checks nothing; leave out --history.")
    if args.baseline is not None:
        raise UsageError("--baseline and --history both give a baseline; pass one of them.")
    return partial(_current_level, args.history or None, args.job)


def _current_level(history: str | None, job_name: str | None, report: Report) -> Report:
    """Return the report in the middle of the current level of a report's job, and print which report that is."""
    from overlapscope.plugins.history.entry import gpu_of, moment, short
    from overlapscope.plugins.history.store import Store
    from overlapscope.report.model import of_program
    from overlapscope.report.origin import of_report

    job = of_report(report, otherwise_ns=0, job=job_name).job
    with Store.open(history, read_only=True) as store:
        entry = baseline_entry(store, job, plain=of_program(report) is not report, gpu=gpu_of(report))
    commit = f" of commit {clean(short(entry.origin.commit), 40)}" if entry.origin.commit else ""
    tell(f"overlapscope: the baseline is report {entry.id[:8]}{commit}, recorded {moment(entry.origin.at_ns)} UTC.")
    return entry.report


def baseline_entry(store: Store, job: str, *, plain: bool, gpu: str | None) -> Entry:
    """Return the entry that represents the current level of a job: that with the level's median step time.

    Raises:
        UsageError: The job has no comparable entry.
        MissingPackage: ruptures isn't installed.
    """
    from overlapscope.plugins.history.course import job_of
    from overlapscope.plugins.history.levels import grouped, levels
    from overlapscope.plugins.history.store import Query

    all_points = store.points("step_time", Query(job=job_of(store, job), plain=plain))
    points = [point for point in all_points if point.gpu == gpu]
    if not points:
        kind = "the program without the profiler" if plain else "a recording"
        raise UsageError(
            f"{store.path}: has no report of {clean(job, 80)} with steps that is of {kind} on "
            f"{clean(gpu or 'an unknown GPU', 80)}, so it gives no baseline."
        )
    groups = grouped(points)
    level = levels(groups, more_is_better=False).levels[-1]
    ordered = sorted(groups[level.first : level.end], key=lambda group: abs(group.value - level.value))
    entries = (store.entry(group.ids[0]) for group in ordered)
    # The history keeps no steps of large reports.
    whole = (entry for entry in entries if any(device.steps for device in entry.report.devices))
    entry = next(whole, None)
    if entry is None:
        raise UsageError(f"{store.path}: no report of {clean(job, 80)} was kept with its steps; name a --baseline.")
    return entry
