"""The section of `docs/evaluation/public-programs.md` about `overlapscope try`, and the CSV file of its trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.data_files import csv_text
from benchmarks.public_programs_try import TriedProgram
from benchmarks.trials_page import POINTS
from benchmarks.trials_runs import ROUNDS, edits_of
from overlapscope.base.words import clean

_TEXT = """## Trials

`overlapscope try` ran on {count} of the programs for 2.4 to 3.2 minutes each, instead of the usual five. Sets of
{by_hand} were edited by hand. Original and edit took turns in {rounds} processes each, without overlapscope.

|  | wanted | reached |
| --- | --- | --- |
| programs whose trial ended with a result | all | {answered} of {count} |
| programs with a recommendation |  | {recommended} of {count} |
| gain by `try` within {points:.0f} points of the edit by hand | all | {near} |
| gain by hand in the interval of `try` | all | {inside} |

{rows}

[Every change](public-programs-try.csv). Processes of the same program differ by up to a third, and so do gains of two
or three runs. `nanogpt` had no time left for the run with rounded parameters, so its results couldn't be compared; that
run now comes earlier. `pyg_gcn` gains nothing from graphs, although 66% were predicted:
unexplained.

"""
_HEAD = ("program", "edits", "by `try`", "by hand")
_COLUMNS = (
    *("program", "exit code", "wall s", "step ns", "edits", "predicted %", "measured %", "low %", "high %"),
    *("recommended", "results", "races", "as it is, ns", "edited by hand, ns", "by hand %", "failure or reason"),
)


def section(tried: Sequence[TriedProgram]) -> str:
    """Return the section; empty without trials."""
    if not tried:
        return ""
    compared = [points for program in tried if (points := points_apart(program)) is not None]
    hands = [
        (program.by_hand, match)
        for program in tried
        if program.by_hand is not None and (match := program.compared) is not None
    ]
    inside = sum(
        low <= hand.change.pct <= high
        for hand, match in hands
        if (low := match.measured_low_pct) is not None and (high := match.measured_high_pct) is not None
    )
    rows = [
        _HEAD,
        ("---",) * len(_HEAD),
        *(_row(program) for program in tried if program.by_hand or program.best or not program.trial),
    ]
    return _TEXT.format(
        count=len(tried),
        answered=sum(program.trial is not None for program in tried),
        recommended=sum(program.best is not None for program in tried),
        by_hand=len(compared),
        rounds=ROUNDS,
        points=POINTS,
        near=_reached(sum(abs(points) <= POINTS for points in compared), len(compared)),
        inside=_reached(inside, len(hands)),
        rows="\n".join(f"| {' | '.join(row)} |" for row in rows),
    )


def _reached(count: int, of: int) -> str:
    return f"{count} of {of}" if count == of else f"**{count} of {of}**"


def points_apart(tried: TriedProgram) -> float | None:
    """Return percentage points from the gain by hand to the gain by `try`; None without an edit."""
    if tried.by_hand is None or tried.compared is None or tried.compared.measured_pct is None:
        return None
    return tried.compared.measured_pct - tried.by_hand.change.pct


def _row(tried: TriedProgram) -> tuple[str, ...]:
    name = f"`{tried.program}`"
    if tried.trial is None:
        ended = "it took too long" if tried.exit_code is None else clean(" ".join(tried.said[-1:]))
        return name, f"**no answer**: {ended}", "", ""
    shown = tried.compared or tried.best
    if shown is None:
        return name, "nothing", "", ""
    edits = f"{edits_of(shown)}, recommended" if shown is tried.best else edits_of(shown)
    by_hand = "" if tried.by_hand is None else _percent(tried.by_hand.change.pct, *tried.by_hand.change.interval)
    measured = _percent(shown.measured_pct, shown.measured_low_pct, shown.measured_high_pct)
    return name, edits, measured, by_hand


def _percent(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return ""
    return f"{value:+.1f}%" + ("" if low is None or high is None else f" ({low:+.1f} to {high:+.1f})")


def data(tried: Sequence[TriedProgram]) -> str:
    """Return the CSV file with a row for each set of changes, and for each change that was not tried."""
    return csv_text(_COLUMNS, [cells for program in tried for cells in _cells(program)])


def _cells(tried: TriedProgram) -> Iterator[list[str]]:
    head = [tried.program, "" if tried.exit_code is None else str(tried.exit_code), f"{tried.wall_s:.0f}"]
    blank = [""] * (len(_COLUMNS) - len(head) - 2)
    if tried.trial is None:
        yield [*head, "", *blank, " ".join(tried.said[-3:])]
        return
    yield [*head, str(tried.trial.baseline_step_ns), *blank, tried.failure]
    for change in tried.trial.changes:
        hand = tried.by_hand if change is tried.compared else None
        predicted = None if change.predicted_pct is None else change.predicted_pct.value
        percentages = (predicted, change.measured_pct, change.measured_low_pct, change.measured_high_pct)
        yield [
            *(*head, "" if change.step_ns is None else str(change.step_ns), edits_of(change)),
            *("" if value is None else f"{value:.2f}" for value in percentages),
            *(
                "yes" if change is tried.best else "no",
                change.results,
                "" if change.races is None else str(change.races),
            ),
            " ".join(map(str, hand.as_is_ns)) if hand else "",
            " ".join(map(str, hand.edited_ns)) if hand else "",
            f"{hand.change.pct:.2f}" if hand else "",
            change.failure,
        ]
    for left_out in tried.trial.left_out:
        yield [*head, "", left_out.change, *blank[1:], left_out.reason]
