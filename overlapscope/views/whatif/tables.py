"""The tables of a prediction as text cells, for any view to lay out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from overlapscope.base.words import Unit, bare_percent, clean, unit_for
from overlapscope.prediction.result import Constant, Estimate, Percentage, WhatIf
from overlapscope.views.old_tables import Column, Table, text
from overlapscope.views.whatif.words import interval, unit

BETWEEN: Final = "between"
SHARE: Final = "% saved"
SAVED: Final = "saved in all"
DROPPABLE: Final = (BETWEEN, SHARE, SAVED)
"""Titles of the columns that can be left out where there is not enough room, the first of them first."""

_TEXT_LIMIT = 1000
_WRAPPED: Final = Column("", number=False, flexible=True, prose=True)
"""Of names that are sentences, or of which every word counts."""
_ORIGINS: Final = {
    "calibration": "calibration of this GPU",
    "trace": "this recording",
    "table": "table of an H200",
}


def all_tables(result: WhatIf) -> Iterator[Table]:
    """The figures: what the step is made of, overlap, and the ladder of gains."""
    for table in (ladder(result), buckets(result), overlap(result)):
        if table.rows:
            yield table


def buckets(result: WhatIf) -> Table:
    """The partition of the step, measured and predicted."""
    of = unit(result)
    rows = [
        (_bucket(name), of.number(one.measured), *_estimate(one.predicted, of))
        for name, one in result.buckets.items()
        if one.measured or one.predicted.high
    ]
    if rows and result.predicted_step_ns is not None:
        rows.append(("in all", of.number(result.baseline_step_ns), *_estimate(result.predicted_step_ns, of)))
    columns = (text(""), Column(f"measured {of.name}"), Column("predicted"), Column(BETWEEN))
    title = "Where a step's time goes" if result.steps else "Where the time goes"
    return Table(title, columns, tuple(rows), total=True)


def overlap(result: WhatIf) -> Table:
    """The percentages that say how well copies hide."""
    known = (("hidden copies", result.hidden_copy_pct), ("overlap efficiency", result.efficiency_pct))
    rows = [(name, *_percentages(one)) for name, one in known if one is not None]
    columns = (_WRAPPED, Column("measured %"), Column("predicted"), Column(BETWEEN))
    return Table("Overlap", columns, tuple(rows))


def ladder(result: WhatIf) -> Table:
    """The best set of so many interventions, for each number of them."""
    of = unit(result)
    if not result.ladder:
        return Table("", (), ())
    rows = [("as it is", of.number(result.unchanged_step_ns), "", "", "")]
    for rung in result.ladder:
        if not rung.interventions:
            continue
        step = rung.predicted_step_ns
        share = bare_percent(100 * rung.gain_ns / result.unchanged_step_ns if result.unchanged_step_ns else None)
        rows.append(
            (
                f"+ {clean(rung.added, _TEXT_LIMIT)}",
                *_estimate(step, of),
                of.number(rung.gain_ns),
                share,
            )
        )
    columns = (
        _WRAPPED,
        *map(Column, (f"{'step' if result.steps else 'window'} {of.name}", BETWEEN, SAVED, SHARE)),
    )
    return Table("Ladder of gains", columns, tuple(rows))


def assumptions(result: WhatIf) -> Table:
    """What the prediction rests on, the costliest first, and last what the trace itself shows."""
    of = unit(result)
    rows = [
        (
            clean(one.text, _TEXT_LIMIT),
            clean(one.intervention, _TEXT_LIMIT),
            "the trace shows it" if one.shown else _more(one.cost_ns, of),
        )
        for one in sorted(result.assumptions, key=lambda one: (one.shown, -(one.cost_ns or 0)))
    ]
    left_out = any(one.cost_ns is None and not one.shown for one in result.assumptions)
    note = "What is not in the interval decides whether the change can be made at all." if left_out else ""
    columns = (_WRAPPED, text("for"), Column("if not", number=False, flexible=True, prose=True))
    return Table("What is assumed", columns, tuple(rows), note)


def _more(cost_ns: int | None, of: Unit) -> str:
    if not cost_ns:
        return "not in the interval" if cost_ns is None else "as long"
    return f"{of.text(abs(cost_ns))} {'more' if cost_ns > 0 else 'less'}"


def constants(result: WhatIf) -> Table:
    """The hardware's figures, and where each is from."""
    rows = tuple((clean(one.name, _TEXT_LIMIT), _figure(one), _ORIGINS[one.origin]) for one in result.constants)
    origin = Column("known from", number=False, flexible=True, prose=True)
    return Table("What is known of the hardware", (_WRAPPED, Column(""), origin), rows)


def _figure(one: Constant) -> str:
    if one.unit == "ns":
        return unit_for(round(one.value)).text(round(one.value))
    figure = f"{one.value:,.0f}" if abs(one.value) >= 100 else f"{one.value:.3g}"
    return f"{figure} {clean(one.unit, _TEXT_LIMIT)}".rstrip()


def _estimate(one: Estimate, of: Unit) -> tuple[str, str]:
    return of.number(one.value), interval(one, of)


def _percentages(one: Percentage) -> tuple[str, str, str]:
    low, high = bare_percent(one.low), bare_percent(one.high)
    return bare_percent(one.measured), bare_percent(one.predicted), "" if low == high else f"{low} to {high}"


def _bucket(name: str) -> str:
    return clean(name.removesuffix("_ns").replace("_", " "))
