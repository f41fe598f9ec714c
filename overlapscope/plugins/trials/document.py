"""Document of a trial: the answer, a row for each change, the edit, and the changes left out."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from overlapscope.base.words import NOTHING, clean, clean_lines, duration, listed, plural, unit_for
from overlapscope.documents.model import Block, Code, Document, Heading, Items, Section, Span, Text, detail, with_code
from overlapscope.documents.table import Cell, Column, Row, Table, Tone, prose, rows, words
from overlapscope.plugins.trials.result import Predicted, Trial, Tried
from overlapscope.plugins.trials.sameness import SOUND
from overlapscope.plugins.trials.search import MAX_ROUNDS, PRECISE_PCT

_MAX_TEXT_LENGTH: Final = 300
_NOTE: Final = (
    "measured: percent of the step as it is, with the kept changes above (+); adds: of the step without this change."
)
_ROUNDING_TOLERANCE: Final = 1e-6
"""Tolerance for rounding up: the error of a sum."""
_TONES: Final[dict[str, Tone]] = {"faster": "good", "slower": "poor", "different": "poor"}


def document(trial: Trial) -> Document:
    """Return the document, with the answer first."""
    tone: Tone = "good" if trial.best is not None else ""
    answer = Section(
        (Text(headline(trial), tone, strong=True), *(Text(with_code(remark), "muted") for remark in _remarks(trial))),
        kind="verdict",
        tone=tone,
    )
    blocks: list[Block] = [Heading("overlapscope try", 1), answer, _table(trial, _best_of_each_change(trial))]
    blocks += [*_edit(trial), *_left_out(trial), *_recordings(trial)]
    if trial.notes:
        blocks.append(Items(tuple(with_code(clean(note, _MAX_TEXT_LENGTH)) for note in trial.notes)))
    others = [tried for tried in trial.changes if tried not in _best_of_each_change(trial)]
    if others:
        blocks += detail("other values", [_table(trial, others)])
    return Document(f"overlapscope: {clean(trial.program, _MAX_TEXT_LENGTH)}, tried", tuple(blocks))


def verdict_and_document(trial: Trial) -> tuple[str, Callable[[], Document]]:
    """Return the verdict, and a function for the command line's document."""
    return headline(trial), partial(document, trial)


# -- Sentences ------------------------------------------------------------------------------------


def headline(trial: Trial) -> str:
    """Return the recommendation and its gain."""
    unchanged_step = duration(trial.baseline_step_ns)
    if trial.best is not None:
        best = trial.changes[trial.best]
        takes = duration(best.step_ns or 0)
        return f"A step takes {takes} instead of {unchanged_step} ({_measured(best)}) with {changes_of(best)}."
    if not trial.changes:
        return f"A step takes {unchanged_step}, and no change could be tried."
    if all(tried.measured_low_pct is None for tried in trial.changes):
        return f"A step takes {unchanged_step}. There were too few runs to say which changes help."
    faster = [tried for tried in trial.changes if (tried.measured_high_pct or 0) < 0 and not tried.failure]
    unsound = [tried for tried in faster if tried.races or tried.results not in SOUND]
    if unsound:
        named = clean(listed(dict.fromkeys(_name(tried) for tried in unsound)), _MAX_TEXT_LENGTH)
        why = _why_unsound(unsound)
        return f"A step takes {unchanged_step}. It is shorter with {named}, but not recommended, because {why}."
    if faster and all((tried.measured_pct or 0) > -PRECISE_PCT for tried in faster):
        return f"A step takes {unchanged_step}, and none of the changes that were tried saves {PRECISE_PCT:g}% of it."
    return f"A step takes {unchanged_step}, and none of the changes that were tried makes it shorter for sure."


def _why_unsound(unsound: list[Tried]) -> str:
    if all(tried.results == "different" for tried in unsound):
        return "the results are different"
    if all(tried.results in SOUND for tried in unsound):
        return "data races were found"
    if not any(tried.races for tried in unsound):
        return "the results are not known to be the same"
    return "the results are not known to be the same, or there are data races"


def _uncertain(trial: Trial) -> Iterator[str]:
    """Yield a sentence on the largest gain, if nothing is recommended because that gain may be chance."""
    gains = [
        tried
        for tried in trial.changes
        if tried.results in SOUND and not (tried.races or tried.failure) and (tried.measured_pct or 0) <= -PRECISE_PCT
    ]
    if trial.best is not None or not gains:
        return
    largest = min(gains, key=lambda tried: tried.measured_pct or 0)
    more = "" if largest.runs >= MAX_ROUNDS else "; `--minutes` gives more runs"
    yield (
        f"The largest gain, {_measured(largest)} with {changes_of(largest)} in {plural(largest.runs, 'run')}, may be "
        f"chance: runs differ{more}."
    )


def changes_of(tried: Tried) -> str:
    """Return a set of changes in words: `workers (6), pin and non-blocking`."""
    return clean(listed((*tried.after, _name(tried))), _MAX_TEXT_LENGTH)


def _name(tried: Tried) -> str:
    return f"{tried.change} ({tried.value})" if tried.value else tried.change


def _remarks(trial: Trial) -> Iterator[str]:
    ranks = f", {plural(trial.ranks, 'rank')}" if trial.ranks > 1 else ""
    device = f", {clean(trial.device_name, _MAX_TEXT_LENGTH)}" if trial.device_name else ""
    yield f"{clean(trial.program, _MAX_TEXT_LENGTH)}{device}{ranks}"
    spread = ""
    if trial.baseline_low_ns is not None and trial.baseline_high_ns is not None and trial.baseline_runs > 2:
        of = unit_for(trial.baseline_step_ns)
        spread = f", {of.number(trial.baseline_low_ns)} to {of.text(trial.baseline_high_ns)} a step (95% interval)"
    yield (
        f"Unchanged: {plural(trial.baseline_runs, 'run')}{spread}. In each run, {plural(trial.timed_steps, 'step')} "
        f"without a profiler after {trial.warmup_steps} of warm-up."
    )
    races = 0 if trial.best is None else trial.changes[trial.best].races
    if trial.best is not None and races == 0:
        yield "No data races were found with these changes, in what could be checked."
    elif races is None and trial.device_name is not None:
        yield "Data races were not looked for with these changes; `overlapscope run --check-hazards` does that."
    yield from _uncertain(trial)
    if trial.interrupted:
        yield "Not all planned runs were made, so these are the results so far."
    if not trial.repeatable and any(tried.results in ("within noise", "different") for tried in trial.changes):
        yield "Unchanged runs do not give the same results bit for bit, so results are compared within their noise."


# -- Tables ---------------------------------------------------------------------------------------


def _best_of_each_change(trial: Trial) -> list[Tried]:
    """Return a row for each change: the kept value, or else the best."""
    groups: dict[tuple[tuple[str, ...], str], list[Tried]] = {}
    for tried in trial.changes:
        groups.setdefault((tried.after, tried.change), []).append(tried)
    return [
        min(group, key=lambda tried: (not tried.kept, tried.step_ns is None, tried.step_ns))
        for group in groups.values()
    ]


def _table(trial: Trial, shown: list[Tried]) -> Table:
    of = unit_for(trial.baseline_step_ns)
    first = ("as it is", of.number(trial.baseline_step_ns), "", of.text(trial.baseline_step_ns), "", "", "")
    lines = [_row(tried, of.number(tried.step_ns)) for tried in shown]
    columns = (
        words("change"),
        Column(f"step {of.name}", id="step", spare=1),
        Column("predicted", id="predicted", spare=3),
        Column("measured"),
        Column("adds", id="adds", spare=2),
        words("results"),
        words("races", id="races"),
    )
    table = Table("Changes", columns, (*rows([first]), *lines), _NOTE if lines else "")
    empty = {
        "predicted": all(tried.predicted_pct is None for tried in shown),
        "races": all(tried.races is None for tried in shown),
    }
    return table.without([id for id, is_empty in empty.items() if is_empty])


def _row(tried: Tried, step: str) -> Row:
    name = clean(f"{'+ ' if tried.after else ''}{_name(tried)}{'' if tried.kept else ' (not kept)'}", _MAX_TEXT_LENGTH)
    predicted = _predicted(tried.predicted_pct)
    if tried.failure:
        return Row(
            (Cell(name), Cell(NOTHING), Cell(predicted), Cell(""), Cell(""), Cell("failed", tone="poor"), Cell(""))
        )
    added = _percent(tried.added_pct, tried.added_low_pct, tried.added_high_pct)
    return Row(
        (
            Cell(name),
            Cell(step, tried.step_ns),
            Cell(predicted),
            Cell(_measured(tried), tried.measured_pct),
            Cell(added, tried.added_pct, _TONES.get(tried.verdict, "")),
            Cell(tried.results, tone=_TONES.get(tried.results, "")),
            _races(tried.races),
        )
    )


def _races(count: int | None) -> Cell:
    """Return the number of races; empty if not checked, since only the best set is."""
    return Cell("") if count is None else Cell(f"{count:,}", tone="poor") if count else Cell("none")


def _predicted(predicted: Predicted | None) -> str:
    """Return a prediction such as `-12% (-15 to -8)`."""
    if predicted is None:
        return ""
    ends = predicted.value, predicted.low, predicted.high
    value, low, high = (f"{round(part):+d}" if round(part) else "0" for part in ends)
    return f"{value}%" if low == high else f"{value}% ({low} to {high})"


def _measured(tried: Tried) -> str:
    return _percent(tried.measured_pct, tried.measured_low_pct, tried.measured_high_pct)


def _percent(value: float | None, low: float | None, high: float | None) -> str:
    """Return a value such as `-10.9% ± 0.4`, with half the width of the interval, rounded up."""
    if value is None:
        return NOTHING
    half = "" if low is None or high is None else f" ± {math.ceil(5 * (high - low) - _ROUNDING_TOLERANCE) / 10:.1f}"
    return f"{round(value, 1) or 0:+.1f}%{half}"


# -- Edits and remarks ----------------------------------------------------------------------------


def _edit(trial: Trial) -> Iterator[Block]:
    if trial.best is None:
        return
    edit = trial.changes[trial.best].edit
    if edit.diff:
        yield Heading("The edit", 2)
        yield Code(clean_lines(edit.diff.expandtabs()).rstrip(), language="diff")
    for remark in edit.remarks:
        yield Text(with_code(clean(remark, _MAX_TEXT_LENGTH)), "muted")
    if edit.advice:
        yield Heading("What to edit by hand" if edit.diff else "What to edit", 2)
        yield Items(tuple(with_code(clean_lines(advice)) for advice in edit.advice))
    if edit.code:
        yield Code(clean_lines(edit.code).rstrip())


def _left_out(trial: Trial) -> Iterator[Block]:
    failed = [(tried, tried.failure) for tried in trial.changes if tried.failure]
    lines = [(clean(_name(tried), _MAX_TEXT_LENGTH), clean(failure, _MAX_TEXT_LENGTH)) for tried, failure in failed]
    reasons: dict[str, list[str]] = {}
    for omitted in trial.left_out:
        reasons.setdefault(omitted.reason, []).append(omitted.change)
    lines += [
        (clean(listed(changes), _MAX_TEXT_LENGTH), clean(reason, _MAX_TEXT_LENGTH))
        for reason, changes in reasons.items()
    ]
    if lines:
        yield Table("Not tried, or failed", (words("change"), prose("why")), rows(lines))


def _recordings(trial: Trial) -> Iterator[Block]:
    kept = [path for path in (trial.recordings.before, trial.recordings.after) if path is not None]
    if kept:
        both = ["--compare"] if len(kept) > 1 else []
        command = clean(shlex.join(["overlapscope", "dashboard", *both, *kept]))
        yield Text(
            (
                "Compare the recordings before and after: " if len(kept) > 1 else "See the recording: ",
                Span(command, code=True),
            )
        )
