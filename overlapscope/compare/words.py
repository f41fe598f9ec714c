"""A diff in words: signed numbers, intervals, a word that judges each change, and the sentences of the verdict.

Every color has a word beside it with the same meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePath
from typing import Literal

from overlapscope.base import words
from overlapscope.base.words import NOTHING, Unit, between, clean, percent, plural, unit_for
from overlapscope.compare.difference import (
    Basis,
    ComputeChange,
    ComputePart,
    DeviceDiff,
    Diff,
    FigureChange,
    Figures,
    FindingChange,
    PartOfCompute,
    Side,
)
from overlapscope.compare.difference import Unit as FigureUnit
from overlapscope.compare.noise import GPU_SHARE
from overlapscope.documents.table import Cell, Tone
from overlapscope.trace.lost import PARTS_FOR_FIGURES, Part, part_words
from overlapscope.trace.op_names import short_kernel

Good = Literal["less", "more"]
"""Direction in which a figure improves."""

BETTER, WORSE, MORE, LESS, SAME, NOISE, UNTOLD = "better", "worse", "more", "less", "same", "~", "?"
"""Judgements of changes, in the last column of every table."""

TONES: dict[str, Tone] = {BETTER: "good", WORSE: "poor", NOISE: "muted"}
MARKS = f"{NOISE} within noise, {UNTOLD} unknown"

MAX_PCT = 1000
"""Maximum percentage to show for a change; larger ones are shown as more than this."""

GOOD_NEWS = "overlap-achieved"
"""Rule whose findings are good news."""

_MIN_PCT = 0.05
"""Percentages nearer to zero have no digit to show."""
_NAME_LIMIT = 120


# -- Numbers --------------------------------------------------------------------------------------


def unit_of(changes: Iterable[FigureChange]) -> Unit:
    """Return the unit of time that suits the longest of some times."""
    values = [abs(value) for figure in changes for value in (figure.before, figure.after) if value is not None]
    return words.unit_for(round(max(values, default=0)))


def number(kind: FigureUnit, value: float | None, unit: Unit) -> str:
    """Format a figure. Times are in `unit`, which the column's title or the row's name states."""
    if value is None:
        return NOTHING
    if kind == "ns":
        return unit.number(round(value))
    if kind == "pct":
        return words.bare_percent(value)
    if kind == "gb_per_s":
        return words.bandwidth(value)
    if kind == "bytes":
        return words.size(round(value))
    # The mean of counts may be fractional.
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def signed(kind: FigureUnit, value: float | None, unit: Unit) -> str:
    """Format a change with its sign, in points if the figure is a percentage."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    if kind == "ns" and unit.hides(round(value)):
        return _nearer_zero(value, unit.least)
    if kind == "pct" and abs(value) < _MIN_PCT:
        return _nearer_zero(value, "0.1")
    return f"{_sign(value)}{number(kind, abs(value), unit)}"


def relative(figure: FigureChange) -> str:
    """Format a change as a percentage of the figure before; empty for percentages and figures that did not change."""
    pct = figure.change_pct
    if pct is None or figure.unit == "pct" or not figure.change:
        return ""
    if abs(pct) >= MAX_PCT:
        # The figure before was almost zero, so the exact ratio means nothing.
        return f"> +{MAX_PCT:,}"
    return f"{_sign(pct)}{abs(pct):,.1f}" if abs(pct) >= _MIN_PCT else _nearer_zero(pct, "0.1")


def interval(figure: FigureChange, unit: Unit) -> str:
    """Return `-2.1 to -1.9`; empty if unknown."""
    if figure.low is None or figure.high is None:
        return ""
    return words.ends(signed(figure.unit, figure.low, unit), signed(figure.unit, figure.high, unit))


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
    if not figure.exceeds(figure.noise_floor):
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
    return figure.change != 0 and figure.exceeds(figure.noise_floor)


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
    name, other_name = (_short(either, full=False) for either in (side, other))
    shown = clean(name if name != other_name else _short(side, full=True), _NAME_LIMIT)
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


# -- Sentences ---------------------------------------------------------------------------------------

_MAX_REASONS = 2
_KERNEL_LIMIT = 40
"""Maximum length of a kernel's name in a sentence."""
_MAX_FINDINGS = 3


def of_device(
    basis: Basis, figures: Figures, findings: Sequence[FindingChange], compute: ComputeChange | None = None
) -> str:
    """Return the change of a step in a sentence.

    Example: `Step 21.3% faster (14.2 to 11.2 ms): 9.8 ms of H2D now hidden, pageable-memory gone.`
    """
    span = figures.span
    unit = unit_for(round(span.larger))
    parts = [*_reasons(figures, compute, unit), *_findings(findings)]
    return f"{_span(basis, span, unit)}{': ' if parts else ''}{', '.join(parts)}."


def of_lost(lost: Collection[Part]) -> str:
    """Return the sentence about a device whose figures depend on lost parts of a recording."""
    parts = "parts of a recording" if set(lost) >= PARTS_FOR_FIGURES else f"some {part_words(lost)}"
    return f"Changes cannot be measured, because {parts} are lost."


def of_all(devices: Sequence[DeviceDiff]) -> str:
    """Return the sentence of the device that changed most, with the number of devices and the range of changes."""
    if not devices:
        return (
            "Nothing can be compared, because no GPU has figures in both recordings. `overlapscope try` measures what "
            "changes bring to a program, also without a GPU."
        )
    most = max(devices, key=lambda device: (bool(device.figures.span.beyond_noise), abs(device.figures.span.moved)))
    if len(devices) == 1:
        return most.verdict
    name = f"device {most.device}" if most.rank is None else f"rank {most.rank}"
    changes = [device.figures.span.change_pct for device in devices]
    ascending = sorted(change for change in changes if change is not None)
    spread = f" ({_signed(ascending[0])} to {_signed(ascending[-1])})" if ascending else ""
    return f"{len(devices)} devices{spread}; {name} changed most: {most.verdict}"


def _span(basis: Basis, span: FigureChange, unit: Unit) -> str:
    name = "Step" if basis == "step" else "Recording"
    both = f"{unit.number(round(span.before or 0))} to {unit.text(round(span.after or 0))}"
    if span.moved == 0:
        return f"{name} unchanged ({unit.text(round(span.after or 0))})"
    if span.beyond_noise is False and abs(span.moved) <= GPU_SHARE * span.larger:
        return f"{name} unchanged within noise ({both})"
    faster = ("faster", "slower") if basis == "step" else ("shorter", "longer")
    sure = {True: "", False: ", which may be noise", None: ", noise unknown"}[span.beyond_noise]
    much = percent(abs(span.change_pct)) if span.change_pct is not None else _much(span, unit)
    return f"{name} {much} {faster[span.moved > 0]}{sure} ({both})"


def _reasons(figures: Figures, compute: ComputeChange | None, unit: Unit) -> list[str]:
    """Return the largest changes: of copies by direction, of idle time by cause, and of other buckets.

    If none of them changed, return those of hidden copies and of single causes of idle time.
    """
    changes = {change.name: change for change in (*figures.engines, *figures.overlap, *figures.buckets)}
    reasons = []
    for direction in ("H2D", "D2H"):
        exposed = changes[f"exposed {direction}"]
        reasons.append((exposed, _copies(direction, exposed, changes[f"{direction} busy"], unit)))
    at_once, idle = changes["exposed at once"], changes["idle"]
    now = "now" if at_once.moved > 0 else "no longer"
    reasons += [
        (at_once, f"{_much(at_once, unit)} of H2D and D2H {now} run at once"),
        (idle, f"{_more(idle, unit)} {figures.idle_name}{_cause(idle, figures.idle_by_cause)}"),
        (changes["exposed comm"], f"{_more(changes['exposed comm'], unit)} of communication running alone"),
        (changes["compute"], f"{_more(changes['compute'], unit)} compute{_kernels(compute)}"),
    ]
    alone = [(cause, f"{_more(cause, unit)} idle time from {cause.name}") for cause in figures.idle_by_cause]
    alone.append((changes["hidden copy"], f"{_more(changes['hidden copy'], unit)} copy time hidden"))
    return _largest(reasons, figures.span) or _largest(alone, figures.span)


def _largest(reasons: Sequence[tuple[FigureChange, str]], span: FigureChange) -> list[str]:
    counted = [reason for reason in reasons if reason[0].exceeds(GPU_SHARE * span.larger)]
    return [sentence for _, sentence in sorted(counted, key=lambda reason: -abs(reason[0].moved))[:_MAX_REASONS]]


def _copies(direction: str, exposed: FigureChange, copied: FigureChange, unit: Unit) -> str:
    amount = round(abs(exposed.moved))
    # Copies are exposed for less time if more of them is hidden, or if there are fewer or faster copies.
    hidden = copied.moved - exposed.moved
    if exposed.moved < 0:
        how = f"of {direction} now hidden" if 2 * hidden >= amount else f"less of {direction} running alone"
    else:
        how = f"of {direction} no longer hidden" if -2 * hidden >= amount else f"more of {direction} running alone"
    return f"{unit.text(amount)} {how}"


def _much(change: FigureChange, unit: Unit) -> str:
    return unit.text(round(abs(change.moved)))


def _more(change: FigureChange, unit: Unit) -> str:
    return f"{_much(change, unit)} {'more' if change.moved > 0 else 'less'}"


def _cause(whole: FigureChange, causes: Sequence[FigureChange]) -> str:
    """Return the cause of more than half of a change, in parentheses; empty if there is none."""
    sign = 1 if whole.moved > 0 else -1
    sure = [cause for cause in causes if cause.beyond_noise is not False]
    most = max(sure, key=lambda cause: sign * cause.moved, default=None)
    return f" ({most.name})" if most and 2 * sign * most.moved > abs(whole.moved) else ""


_PARTS: dict[PartOfCompute, tuple[str, str]] = {
    "new": ("new kernels", "new kernels"),
    "gone": ("kernels gone", "kernels gone"),
    "replaced": ("other kernels for the same ops", "other kernels for the same ops"),
    "calls": ("fewer calls", "more calls"),
    "length": ("shorter calls", "longer calls"),
    "side-by-side": ("more kernels side by side", "fewer kernels side by side"),
}
"""Words on kernels if a part of compute takes less time, and if it takes more."""


def compute_part(part: ComputePart) -> str:
    """Return what became of kernels, such as `longer calls`."""
    return _PARTS[part.part][part.change_ns > 0]


def _kernels(compute: ComputeChange | None) -> str:
    """Return the part of more than half of the change of compute, in parentheses, with the kernel of most of it."""
    if compute is None or not compute.parts:
        return ""
    most = max(compute.parts, key=lambda part: part.change_ns if compute.change_ns > 0 else -part.change_ns)
    if 2 * abs(most.change_ns) <= abs(compute.change_ns):
        return ""
    kernel, ns = next(iter(most.kernels.items()), ("", 0))
    of = " of " if most.part in ("calls", "length") else ", mostly "
    named = f"{of}{clean(short_kernel(kernel), _KERNEL_LIMIT)}" if 2 * abs(ns) > abs(most.change_ns) else ""
    return f" ({compute_part(most)}{named})"


def compute_notes(compute: ComputeChange, unit: Unit) -> str:
    """Return sentences on contention and on a common ratio of all kernels; empty without either."""
    notes = []
    for each in compute.slowed:
        least, most = sorted((abs(each.low_ns), abs(each.high_ns)))
        more = "more" if each.low_ns > 0 else "less"
        notes.append(f"Kernels beside {each.beside} are slowed by {between(least, most)} {more} than before.")
    if compute.pace is not None:
        ratio, low, high = (100 * (value - 1) for value in (compute.pace.ratio, compute.pace.low, compute.pace.high))
        notes.append(
            f"Calls of nearly all kernels changed alike, by {ratio:+.1f}% ({low:+.1f} to {high:+.1f}%), as at another "
            "clock of the GPU, which recordings don't state."
        )
    return " ".join(notes)


def _findings(findings: Sequence[FindingChange]) -> list[str]:
    sentences = [
        f"{finding.rule} {finding.standing}"
        for finding in findings
        if finding.standing in ("new", "gone") and finding.cost.beyond_noise
    ]
    more = len(sentences) - _MAX_FINDINGS
    return sentences[:_MAX_FINDINGS] + ([f"{plural(more, 'more finding')} new or gone"] if more > 0 else [])


def _signed(share: float) -> str:
    return f"{'+' if share > 0 else '-' if share < 0 else ''}{percent(abs(share))}"
