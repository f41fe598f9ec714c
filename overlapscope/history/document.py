"""What of a history is shown: its entries, with the figures that are asked for most."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from statistics import fmean

from msgspec.structs import replace

from overlapscope.base.words import clean
from overlapscope.budgets.metrics import METRICS
from overlapscope.budgets.quantity import show
from overlapscope.documents.model import Block, Document, Heading, Text, with_code
from overlapscope.documents.table import Cell, Column, Table, Tone, rows, words
from overlapscope.history.predictions import Prediction, beliefs
from overlapscope.history.store import Query, Row, Store

_FIGURES = {"step_time": "step", "efficiency_pct": "efficiency", "idle_pct": "idle"}
"""What each entry shows, and how its column is called."""
_TONES: dict[str, Tone] = {"pass": "good", "fail": "poor", "inconclusive": "fair"}
_SHORT, _SHORT_ID = 10, 8
"""Digits of a commit, and of an entry's id."""


def listing(store: Store, query: Query, found: Sequence[Row]) -> Document:
    """The entries in a table, newest first, with the means over their devices."""
    query = replace(query, since_ns=found[0].origin.at_ns) if found else query
    values = {metric: _means(store, metric, query) for metric in _FIGURES}
    lines = [_line(row, {metric: values[metric].get(row.id) for metric in _FIGURES}) for row in reversed(found)]
    columns = (
        words("recorded (UTC)", heads=True),
        words("job"),
        words("commit"),
        Column("branch", number=False, id="branch", spare=2),
        *(Column(title) for title in _FIGURES.values()),
        Column("of", number=False, spare=1),
        Column("check", number=False, id="check", spare=3),
        words("id"),
    )
    note = (
        "Each figure is the mean over the devices, of the plain program where its step is known, else of the recording."
    )
    table = Table("Entries", columns, rows(lines), note=note)
    blocks: list[Block] = [Heading("overlapscope history", 1)]
    empty = {
        "branch": all(row.origin.branch is None for row in found),
        "check": all(row.outcome is None for row in found),
    }
    table = table.without([id for id, nowhere in empty.items() if nowhere])
    blocks += [table if lines else Text("The history has no such entry.")]
    return Document("overlapscope history", tuple(blocks))


def moment(at_ns: int) -> str:
    """`2026-11-23 02:08`, in UTC."""
    at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=at_ns // 1000)
    return at.strftime("%Y-%m-%d %H:%M")


def _means(store: Store, metric: str, query: Query) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for point in store.points(metric, query):
        values.setdefault(point.id, []).append(point.value)
    return {id: fmean(each) for id, each in values.items()}


def _line(row: Row, values: dict[str, float | None]) -> list[str | Cell]:
    origin = row.origin
    return [
        Cell(moment(origin.at_ns), origin.at_ns),
        clean(origin.job, 30),
        clean(short(origin.commit or ""), 40),
        clean(origin.branch or "", 30),
        *(
            Cell("n/a" if value is None else show(value, METRICS[metric].unit), value)
            for metric, value in values.items()
        ),
        "plain" if row.plain else "recording",
        Cell(row.outcome or "", tone=_TONES.get(row.outcome or "", "")),
        row.id[:_SHORT_ID],
    ]


def short(commit: str) -> str:
    """The first digits of a commit, and whether it is dirty."""
    digits, dash, rest = commit.partition("-")
    return f"{digits[:_SHORT]}{dash}{rest}"


# -- predictions ------------------------------------------------------------------------------------


def predictions(found: Sequence[Prediction], *, most: int) -> Document:
    """How far predictions were from measurements on each device, and the newest of them."""
    title = "Predictions beside measurements"
    if not found:
        none = "The history has no predictions yet; `overlapscope try` adds them to a history that is there."
        return Document(title, (Heading(title, 1), Text(with_code(none))))
    sums: list[list[str | Cell]] = [
        [
            clean(one.device or "unknown", 60),
            Cell(f"{one.count:,}", one.count),
            Cell(f"{one.error_pct:.1f} points", one.error_pct),
            Cell(f"{one.inside:,} of {one.count:,}", one.inside / one.count),
        ]
        for one in beliefs(found)
    ]
    newest: list[list[str | Cell]] = [
        [
            Cell(moment(one.at_ns), one.at_ns),
            clean(one.program, 40),
            clean(one.change, 60),
            _points(one.predicted_pct, one.low_pct, one.high_pct),
            _points(one.measured_pct, one.measured_low_pct, one.measured_high_pct),
        ]
        for one in list(reversed(found))[:most]
    ]
    columns = (words("GPU", flexible=True), Column("changes"), Column("median error"), Column("inside the interval"))
    lines = (words("measured (UTC)"), words("program", flexible=True), words("change", flexible=True))
    note = "Percent of the plain step of the program as it is, negative where it is faster."
    return Document(
        title,
        (
            Heading(title, 1),
            Table("By GPU", columns, rows(sums)),
            Table("Newest", (*lines, Column("predicted"), Column("measured")), rows(newest), note=note),
        ),
    )


def _points(value: float, low: float | None, high: float | None) -> Cell:
    interval = "" if low is None or high is None else f" ({low:+.1f} to {high:+.1f})"
    return Cell(f"{value:+.1f}{interval}", value)
