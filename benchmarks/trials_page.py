"""The text of `docs/evaluation/try.md`, and the CSV files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data_files import csv_text
from benchmarks.trials_runs import ROUNDS, TrialMeasurements, TrialScript, programs
from overlapscope.base.words import listed
from overlapscope.plugins.trials.result import Tried

TEXT = Path(__file__).with_name("trials_page.md")
"""The page around the tables."""
POINTS = 3.0
"""Largest distance of the gain by `try` from that of the edit by hand."""
TIMES = 4.0
"""As long as the plain runs in it may the whole take."""


def page(measured: Sequence[TrialMeasurements]) -> str:
    """Return the whole page, on programs that could be tried."""
    text = TEXT.read_text(encoding="utf-8")
    machine = measured[0].machine
    for name, part in {
        "programs": str(len(measured)),
        "rounds": str(ROUNDS),
        "machine": f"{machine.gpu or 'a CPU'}, torch {machine.torch}, Python {machine.python}",
        "goals": _table(("", "wanted", "reached"), _goals(measured)),
        "summary": _table(_SUMMARY, map(_summary, measured)),
    }.items():
        text = text.replace(f"{{{name}}}", part)
    return re.sub(r"\n{3,}", "\n\n", text)


# -- the goals -------------------------------------------------------------------------------------


def _goals(measured: Sequence[TrialMeasurements]) -> Iterator[tuple[str, ...]]:
    programs_by_name = programs()
    apart = [abs(points) <= POINTS for run in measured if (points := points_apart(run)) is not None]
    yield f"gain by `try` within {POINTS:.0f} points of the edit by hand", "all", _share(apart)
    pays = [
        set(programs_by_name[run.program].pays) <= changes_of(run.best)
        for run in measured
        if programs_by_name[run.program].pays
    ]
    yield "what should pay is recommended", "all", _share(pays)
    nothing = [run.best is None for run in measured if not programs_by_name[run.program].pays]
    yield "nothing is recommended where nothing should pay", "all", _share(nothing)
    refused = [is_refused(run, breaks) for run in measured if (breaks := programs_by_name[run.program].breaks)]
    yield "a change that breaks the program or its results is refused", "all", _share(refused)
    times = [run.trial.wall_s <= TIMES * run.trial.plain_runs_s for run in measured if run.trial]
    yield f"the whole takes at most {TIMES:.0f} times as long as its plain runs", "all", _share(times)


def points_apart(measured: TrialMeasurements) -> float | None:
    """Return percentage points from the gain by hand to the gain by `try`; None without an edit."""
    if measured.best is None or measured.best.measured_pct is None or measured.by_hand is None:
        return None
    return measured.best.measured_pct - measured.by_hand.change.pct


def changes_of(tried: Tried | None) -> set[str]:
    """Return the changes of a set without their values."""
    return set() if tried is None else {tried.change, *(text.partition(" ")[0] for text in tried.after)}


def is_refused(measured: TrialMeasurements, change: str) -> bool:
    """Return whether the change broke something in each trial, and so is not recommended."""
    rows = [tried for tried in measured.trial.changes if tried.change == change] if measured.trial else []
    broken = [tried.failure or tried.results == "different" or tried.races for tried in rows]
    return bool(rows) and all(broken) and change not in changes_of(measured.best)


def _share(met: Sequence[bool]) -> str:
    agreement = f"{sum(met)} of {len(met)}"
    return agreement if all(met) else f"**{agreement}**"


# -- tables ----------------------------------------------------------------------------------------

_SUMMARY = ("program", "recommended", "predicted", "by `try`", "by hand", "apart")


def _summary(measured: TrialMeasurements) -> tuple[str, ...]:
    trial, best, by_hand = measured.trial, measured.best, measured.by_hand
    if trial is None:
        return measured.program, *("",) * (len(_SUMMARY) - 1)
    if best is None:
        return measured.program, "nothing", "", "", "", ""
    predicted_pct = best.predicted_pct
    apart = points_apart(measured)
    far = "" if apart is None else f"{abs(apart):.1f}"
    return (
        measured.program,
        listed((*best.after, f"{best.change} ({best.value})" if best.value else best.change)),
        "" if predicted_pct is None else _interval(predicted_pct.value, (predicted_pct.low, predicted_pct.high)),
        _interval(best.measured_pct, _bounds(best.measured_low_pct, best.measured_high_pct)),
        measured.failure if by_hand is None else _interval(by_hand.change.pct, by_hand.change.over_runs),
        f"**{far}**" if apart is not None and abs(apart) > POINTS else far,
    )


def _bounds(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def _interval(value: float | None, bounds: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    return f"{value:+.1f}%" + (f" ({bounds[0]:+.1f} to {bounds[1]:+.1f})" if bounds else "")


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]] | map[tuple[str, ...]]) -> str:
    table_rows = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in table_rows)


# -- Data ------------------------------------------------------------------------------------------

CHANGE = (
    *("program", "about", "options", "change", "value", "on top of", "step ns", "predicted %", "measured %", "low %"),
    *("high %", "added %", "kept", "runs", "results", "races", "failure, or why it was not tried"),
)
BY_HAND = ("program", "edits", "round", "as it is, ns", "edited, ns")


def data(measured: Sequence[TrialMeasurements]) -> dict[str, str]:
    """Return the text of each CSV file by the end of its name."""
    by_hand = [
        (run.program, run.by_hand.edits, str(number), str(before), str(after))
        for run in measured
        if run.by_hand is not None
        for number, (before, after) in enumerate(zip(run.by_hand.as_is_ns, run.by_hand.edited_ns, strict=True))
    ]
    changes = [cells for run in measured for cells in _changes(run)]
    return {"": csv_text(CHANGE, changes), "-by-hand": csv_text(BY_HAND, by_hand)}


def _changes(measured: TrialMeasurements) -> Iterator[list[str]]:
    program, trial = programs()[measured.program], measured.trial
    head = [measured.program, f"{program.about} {_expected(program)}", " ".join(program.options)]
    if trial is None:
        yield [*head, *("" for _ in CHANGE[len(head) : -1]), measured.failure]
        return
    unchanged = ["as it is", "", "", str(trial.baseline_step_ns)]
    yield [*head, *unchanged, *("" for _ in CHANGE[len(head) + len(unchanged) :])]
    for change in trial.changes:
        predicted = None if change.predicted_pct is None else change.predicted_pct.value
        percentages = (
            predicted,
            change.measured_pct,
            change.measured_low_pct,
            change.measured_high_pct,
            change.added_pct,
        )
        yield [
            *head,
            *(
                change.change,
                change.value,
                ", ".join(change.after),
                "" if change.step_ns is None else str(change.step_ns),
            ),
            *("" if pct is None else f"{pct:.2f}" for pct in percentages),
            *("yes" if change.kept else "no", str(change.runs), change.results),
            "" if change.races is None else str(change.races),
            change.failure,
        ]
    for left_out in trial.left_out:
        cells = [*head, left_out.change]
        yield [*cells, *("" for _ in CHANGE[len(cells) : -1]), left_out.reason]


def _expected(program: TrialScript) -> str:
    pays = f"Expected to pay: {listed(program.pays)}." if program.pays else "Nothing should pay."
    return f"{pays} Expected to be refused: {program.breaks}." if program.breaks else pays
