"""Documents of a history: its entries with their main figures, and its predictions."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean

from msgspec.structs import replace

from overlapscope.base.words import clean
from overlapscope.budgets.metrics import METRICS, Metric
from overlapscope.budgets.quantity import show
from overlapscope.documents.model import Block, Document, Heading, Text, with_code
from overlapscope.documents.table import Cell, Column, Tone, table_of, words
from overlapscope.history.predictions import StoredPrediction, beliefs
from overlapscope.history.store import HistoryRow, Query, Store

_FIGURES = {"step_time": "step", "efficiency_pct": "efficiency", "idle_pct": "idle"}
"""Metrics shown for each entry, with the titles of their columns."""
_TONES: dict[str, Tone] = {"pass": "good", "fail": "poor", "inconclusive": "fair"}
_SHORT, _SHORT_ID = 10, 8
"""Number of shown digits of a commit, and of an entry's id."""


def listing(store: Store, query: Query, entries: Sequence[HistoryRow]) -> Document:
    """Return a table of entries, newest first, with means over their devices."""
    query = replace(query, since_ns=entries[0].origin.at_ns) if entries else query
    figures = [
        (Column(title), partial(_figure, METRICS[metric], _means(store, metric, query)))
        for metric, title in _FIGURES.items()
    ]
    branch = (Column("branch", number=False, spare=2), lambda row: Cell(clean(row.origin.branch or "", 30)))
    outcome = (
        Column("check", number=False, spare=3),
        lambda row: Cell(row.outcome or "", tone=_TONES.get(row.outcome or "", "")),
    )
    table = table_of(
        list(reversed(entries)),
        (words("recorded (UTC)", heads=True), lambda row: Cell(moment(row.origin.at_ns), row.origin.at_ns)),
        (words("job"), lambda row: Cell(clean(row.origin.job, 30))),
        (words("commit"), lambda row: Cell(clean(short(row.origin.commit or ""), 40))),
        branch if any(row.origin.branch is not None for row in entries) else None,
        *figures,
        (Column("of", number=False, spare=1), lambda row: Cell("plain" if row.plain else "recording")),
        outcome if any(row.outcome is not None for row in entries) else None,
        (words("id"), lambda row: Cell(row.id[:_SHORT_ID])),
        title="Entries",
    )
    note = (
        "Figures are means over the devices. `plain`: of the program without the profiler, because its step was "
        "measured or given; `recording`: as recorded."
    )
    shown: Block = (
        replace(table, note=note) if entries else Text("No entry matches; `overlapscope history add` adds them.")
    )
    return Document("overlapscope history", (Heading("overlapscope history", 1), shown))


def moment(at_ns: int) -> str:
    """Return `2026-11-23 02:08`, in UTC."""
    at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=at_ns // 1000)
    return at.strftime("%Y-%m-%d %H:%M")


def _means(store: Store, metric: str, query: Query) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for point in store.points(metric, query):
        values.setdefault(point.id, []).append(point.value)
    return {id: fmean(each) for id, each in values.items()}


def _figure(metric: Metric, means: Mapping[str, float], row: HistoryRow) -> Cell:
    value = means.get(row.id)
    return Cell("n/a" if value is None else show(value, metric.unit), value)


def short(commit: str) -> str:
    """Return the first digits of a commit, and its suffix such as `-dirty`."""
    digits, dash, rest = commit.partition("-")
    return f"{digits[:_SHORT]}{dash}{rest}"


# -- Predictions ------------------------------------------------------------------------------------


def predictions(predicted: Sequence[StoredPrediction], *, most: int) -> Document:
    """Return the errors of predictions by device, and the newest predictions."""
    title = "Predictions beside measurements"
    if not predicted:
        none = "The history has no predictions yet; `overlapscope try` adds them to a history that is there."
        return Document(title, (Heading(title, 1), Text(with_code(none))))
    sums = table_of(
        beliefs(predicted),
        (words("GPU", flexible=True), lambda row: Cell(clean(row.device or "unknown", 60))),
        (Column("changes"), lambda row: Cell(f"{row.count:,}", row.count)),
        (Column("median error"), lambda row: Cell(f"{row.error_pct:.1f} points", row.error_pct)),
        (
            Column("inside the interval"),
            lambda row: Cell(f"{row.inside:,} of {row.count:,}", row.inside / row.count),
        ),
        title="By GPU",
    )
    newest = table_of(
        list(reversed(predicted))[:most],
        (words("measured (UTC)"), lambda row: Cell(moment(row.at_ns), row.at_ns)),
        (words("program", flexible=True), lambda row: Cell(clean(row.program, 40))),
        (words("change", flexible=True), lambda row: Cell(clean(row.change, 60))),
        (Column("predicted"), lambda row: _points(row.predicted_pct, row.low_pct, row.high_pct)),
        (Column("measured"), lambda row: _points(row.measured_pct, row.measured_low_pct, row.measured_high_pct)),
        title="Newest",
    )
    note = "Percent of a step of the unchanged program without the profiler, negative where it is faster."
    return Document(title, (Heading(title, 1), sums, replace(newest, note=note)))


def _points(value: float, low: float | None, high: float | None) -> Cell:
    interval = "" if low is None or high is None else f" ({low:+.1f} to {high:+.1f})"
    return Cell(f"{value:+.1f}{interval}", value)
