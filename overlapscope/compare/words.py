"""Figures of a diff as words: signed numbers, intervals, and a word that judges each change.

Every color has a word beside it with the same meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Literal

from overlapscope.base import words
from overlapscope.base.words import NOTHING, Unit, clean, plural
from overlapscope.compare.difference import DeviceDiff, Diff, Doubt, FigureChange, FindingChange, Side
from overlapscope.compare.difference import Unit as Measure
from overlapscope.documents.table import Cell, Tone

Good = Literal["less", "more"]
"""Direction in which a figure improves."""

BETTER, WORSE, MORE, LESS, SAME, NOISE, UNTOLD = "better", "worse", "more", "less", "same", "~", "?"
"""Judgements of changes, in the last column of every table."""

TONES: dict[str, Tone] = {BETTER: "good", WORSE: "poor", NOISE: "muted"}
MARKS = f"{NOISE} within noise, {UNTOLD} unknown"

MOST_PCT = 1000
"""Maximum percentage to show for a change; larger ones are shown as more than this."""

GOOD_NEWS = "overlap-achieved"
"""Rule whose findings are good news."""

_LEAST_PCT = 0.05
"""Percentages nearer to zero have no digit to show."""
_NAME_LIMIT = 120


# -- Numbers --------------------------------------------------------------------------------------


def unit_of(changes: Iterable[FigureChange]) -> Unit:
    """Return the unit of time that suits the longest of some times."""
    values = [abs(value) for figure in changes for value in (figure.before, figure.after) if value is not None]
    return words.unit_for(round(max(values, default=0)))


def number(measure: Measure, value: float | None, unit: Unit) -> str:
    """Format a figure. Times are in `unit`, which the column's title or the row's name states."""
    if value is None:
        return NOTHING
    if measure == "ns":
        return unit.number(round(value))
    if measure == "pct":
        return words.bare_percent(value)
    if measure == "gb_per_s":
        return words.bandwidth(value)
    if measure == "bytes":
        return words.size(round(value))
    # The mean of counts may be fractional.
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def signed(measure: Measure, value: float | None, unit: Unit) -> str:
    """Format a change with its sign, in points if the figure is a percentage."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    if measure == "ns" and unit.hides(round(value)):
        return _nearer_zero(value, unit.least)
    if measure == "pct" and abs(value) < _LEAST_PCT:
        return _nearer_zero(value, "0.1")
    return f"{_sign(value)}{number(measure, abs(value), unit)}"


def relative(figure: FigureChange) -> str:
    """Format a change as a percentage of the figure before; empty for percentages and figures that did not change."""
    pct = figure.change_pct
    if pct is None or figure.unit == "pct" or not figure.change:
        return ""
    if abs(pct) >= MOST_PCT:
        # The figure before was almost zero, so the exact ratio means nothing.
        return f"> +{MOST_PCT:,}"
    return f"{_sign(pct)}{abs(pct):,.1f}" if abs(pct) >= _LEAST_PCT else _nearer_zero(pct, "0.1")


def interval(figure: FigureChange, unit: Unit) -> str:
    """Return `-2.1 to -1.9`; empty if unknown."""
    if figure.low is None or figure.high is None:
        return ""
    return f"{signed(figure.unit, figure.low, unit)} to {signed(figure.unit, figure.high, unit)}"


def pair(figure: FigureChange, unit: Unit) -> str:
    """Return both sides in the same cell: `3`, or `3 → 12`."""
    first, second = number(figure.unit, figure.before, unit), number(figure.unit, figure.after, unit)
    return first if first == second else f"{first} → {second}"


def _sign(value: float) -> str:
    return "+" if value > 0 else "-"


def _nearer_zero(value: float, least: str) -> str:
    """Return `< +0.1` or `> -0.1` for a change that is too small for the shown digits."""
    return f"{'<' if value > 0 else '>'} {_sign(value)}{least}"


# -- Judgements -----------------------------------------------------------------------------------


def mark(figure: FigureChange, good: Good | None) -> str:
    """Return the judgement of a change as a word; empty if neither side has the figure.

    Without a `good` direction, the word is `more` or `less`.
    """
    if figure.change is None:
        return "" if figure.before is figure.after else "new" if figure.before is None else "gone"
    if figure.change == 0:
        return SAME
    if not _may_matter(figure, figure.change):
        return NOISE
    if figure.beyond_noise is None:
        return UNTOLD
    way: Good = "more" if figure.change > 0 else "less"
    if good is None:
        return MORE if way == "more" else LESS
    return BETTER if way == good else WORSE


def marked(figure: FigureChange, good: Good | None, standing: str = "") -> Cell:
    """Return the judgement, or `standing` if it is not empty, as a cell."""
    word = standing or mark(figure, good)
    return Cell(word, tone=TONES.get(word, ""))


def worth_showing(figure: FigureChange) -> bool:
    """Return whether a figure changed by more than noise."""
    if figure.change is None:
        return (figure.before is None) != (figure.after is None)
    return figure.change != 0 and _may_matter(figure, figure.change)


def _may_matter(figure: FigureChange, change: float) -> bool:
    """Return whether a change is more than noise, or if that is unknown, more than the noise floor."""
    return abs(change) > figure.noise_floor if figure.beyond_noise is None else figure.beyond_noise


def finding_standing(change: FindingChange) -> str:
    """Return what happened to a finding, with a note if that is not as good or bad as it seems."""
    finding = change.after or change.before
    if change.standing in ("new", "gone"):
        if change.rule == GOOD_NEWS:
            return "new (good)" if change.standing == "new" else "gone (bad)"
        if finding is not None and not finding.cost_ns:
            return f"{change.standing} (info)"
        if change.cost.beyond_noise is False:
            # Its cost hardly exceeds what rules ignore.
            return f"{change.standing} {NOISE}"
    return change.standing


def standing(diff: Diff) -> tuple[str, Tone]:
    """Return a word for the result on all devices, and its tone."""
    if not diff.devices:
        return "not comparable", ""
    each = {mark(device.figures.span, "less") for device in diff.devices}
    if UNTOLD in each or any(doubt.id == "lost" for doubt in diff.doubts):
        return "unclear", ""
    if {BETTER, WORSE} <= each:
        return "mixed", ""
    if WORSE in each:
        return "slower", "poor"
    if BETTER in each:
        return "faster", "good"
    return "within noise" if NOISE in each else "unchanged", ""


# -- Sides ----------------------------------------------------------------------------------------


def doubt_words(doubt: Doubt) -> tuple[str, str]:
    """Return what differs, and what can still be compared."""
    return clean(doubt.detail, 1000), f"Still comparable: {clean(doubt.holds, 1000)}"


def device_title(diff: Diff, device: DeviceDiff) -> str:
    """Return `rank 0` or `rank 0, device 1`: as much as sets the devices apart."""
    ranked = [f"rank {device.rank}"] if device.rank is not None else []
    alone = ranked and sum(1 for another in diff.devices if another.rank == device.rank) == 1
    return ", ".join(ranked if alone else [*ranked, f"device {device.device}"])


def basis(device: DeviceDiff) -> str:
    """Return a sentence about the compared steps or windows."""
    if device.basis == "window":
        return "Figures are of all that was recorded; without steps, noise is unknown."
    left_out = device.left_out_before, device.left_out_after
    without = f" ({left_out[0]:,} and {left_out[1]:,} left out: warm-up, cut off, or last)" if any(left_out) else ""
    return f"Mean of {plural(device.steps_before, 'step')} before and {device.steps_after:,} after{without}."


def side_name(side: Side, other: Side) -> str:
    """Return the name of the file or directory, or its path if both sides have the same name."""
    name, theirs = (_short(either, full=False) for either in (side, other))
    shown = clean(name if name != theirs else _short(side, full=True), _NAME_LIMIT)
    if side.predicted_by is None:
        return shown
    return f"{shown}, predicted ({clean(', '.join(side.predicted_by) or 'nothing changed', _NAME_LIMIT)})"


def _short(side: Side, *, full: bool) -> str:
    paths = [PurePath(source) for source in side.sources]
    if not paths:
        return "nothing"
    if len(paths) == 1:
        return str(paths[0]) if full else paths[0].name
    folder = paths[0].parent
    if any(path.parent != folder for path in paths):
        return f"{paths[0] if full else paths[0].name} and {len(paths) - 1} more"
    return f"{folder if full or not folder.name else folder.name}, {plural(len(paths), 'trace')}"


def trust(side: Side) -> str:
    """Return the worst trust verdict of a side, with the checks that led to it."""
    for verdict in ("unusable", "degraded"):
        concerned = [trace for trace in side.trust if trace.verdict == verdict]
        if concerned:
            failed = (clean(check.id, 40) for trace in concerned for check in trace.checks if check.status != "ok")
            return f"{verdict} ({', '.join(dict.fromkeys(failed))})"
    return "trusted"
