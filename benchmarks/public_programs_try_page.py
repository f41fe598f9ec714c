"""The section of `docs/evaluation/public-programs.md` about `overlapscope try`, and the CSV file of its trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.data_files import csv_text
from benchmarks.public_programs_try import TriedProgram
from benchmarks.trials_page import POINTS
from benchmarks.trials_runs import ROUNDS, edits_of
from overlapscope.base.words import clean, duration

_TEXT = """## Trials

`overlapscope try` ran on {count} of the programs, and gave {answered} of them an answer. What it tried of {by_hand} was
then edited by hand; original and edit took turns in {rounds} processes each, without overlapscope. Gains at most
{points:.0f} points apart: {near}.

{rows}

[Every change](public-programs-try.csv) of every program.

"""
_HEAD = ("program", "step", "edits", "predicted", "by `try`", "by hand")
_COLUMNS = (
    *("program", "exit code", "wall s", "step ns", "edits", "predicted %", "measured %", "low %", "high %"),
    *("recommended", "results", "races", "as it is, ns", "edited by hand, ns", "by hand %", "failure or reason"),
)


def section(tried: Sequence[TriedProgram]) -> str:
    """Return the section; empty without trials."""
    if not tried:
        return ""
    compared = [points for one in tried if (points := points_apart(one)) is not None]
    rows = [_HEAD, ("---",) * len(_HEAD), *map(_row, tried)]
    return _TEXT.format(
        count=len(tried),
        answered=sum(one.trial is not None for one in tried),
        by_hand=len(compared),
        rounds=ROUNDS,
        points=POINTS,
        near=f"{sum(abs(points) <= POINTS for points in compared)} of {len(compared)}",
        rows="\n".join(f"| {' | '.join(row)} |" for row in rows),
    )


def points_apart(tried: TriedProgram) -> float | None:
    """Return percentage points from the gain by hand to the gain by `try`; None without an edit."""
    if tried.by_hand is None or tried.compared is None or tried.compared.measured_pct is None:
        return None
    return tried.compared.measured_pct - tried.by_hand.change.pct


def _row(tried: TriedProgram) -> tuple[str, ...]:
    name = f"`{tried.program}`"
    if tried.trial is None:
        ended = "it took too long" if tried.exit_code is None else clean(" ".join(tried.said[-1:]))
        return name, "", f"**no answer**: {ended}", "", "", ""
    step, shown = duration(tried.trial.baseline_step_ns), tried.compared or tried.best
    if shown is None:
        return name, step, "nothing pays", "", "", ""
    edits = edits_of(shown) if shown is tried.best else f"{edits_of(shown)} (not recommended)"
    predicted = "" if shown.predicted_pct is None else f"{shown.predicted_pct.value:+.1f}%"
    by_hand = "" if tried.by_hand is None else _percent(tried.by_hand.change.pct, *tried.by_hand.change.interval)
    measured = _percent(shown.measured_pct, shown.measured_low_pct, shown.measured_high_pct)
    return name, step, edits, predicted, measured, by_hand


def _percent(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return ""
    return f"{value:+.1f}%" + ("" if low is None or high is None else f" ({low:+.1f} to {high:+.1f})")


def data(tried: Sequence[TriedProgram]) -> str:
    """Return the CSV file with a row for each set of changes, and for each change that was not tried."""
    return csv_text(_COLUMNS, [cells for one in tried for cells in _cells(one)])


def _cells(tried: TriedProgram) -> Iterator[list[str]]:
    head = [tried.program, "" if tried.exit_code is None else str(tried.exit_code), f"{tried.wall_s:.0f}"]
    blank = [""] * (len(_COLUMNS) - len(head) - 2)
    if tried.trial is None:
        yield [*head, "", *blank, " ".join(tried.said[-3:])]
        return
    yield [*head, str(tried.trial.baseline_step_ns), *blank, tried.failure]
    for one in tried.trial.changes:
        hand = tried.by_hand if one is tried.compared else None
        predicted = None if one.predicted_pct is None else one.predicted_pct.value
        percentages = (predicted, one.measured_pct, one.measured_low_pct, one.measured_high_pct)
        yield [
            *(*head, "" if one.step_ns is None else str(one.step_ns), edits_of(one)),
            *("" if value is None else f"{value:.2f}" for value in percentages),
            *("yes" if one is tried.best else "no", one.results, "" if one.races is None else str(one.races)),
            " ".join(map(str, hand.as_is_ns)) if hand else "",
            " ".join(map(str, hand.edited_ns)) if hand else "",
            f"{hand.change.pct:.2f}" if hand else "",
            one.failure,
        ]
    for left_out in tried.trial.left_out:
        yield [*head, "", left_out.change, *blank[1:], left_out.reason]
