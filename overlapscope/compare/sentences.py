"""Summary of a diff in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from overlapscope.base.words import Unit, percent, plural, unit_for
from overlapscope.compare.difference import Basis, DeviceDiff, FigureChange, Figures, FindingChange
from overlapscope.compare.noise import GPU_SHARE
from overlapscope.trace.lost import FIGURES, Part, part_words

_MOST_REASONS = 2
_MOST_FINDINGS = 3
_NAMED = {"exposed comm": "of communication running alone", "compute": "compute"}
"""Buckets in a sentence."""


def of_device(basis: Basis, figures: Figures, findings: Sequence[FindingChange]) -> str:
    """Return the change of a step in a sentence.

    Example: `Step 21.3% faster (14.2 to 11.2 ms): 9.8 ms of H2D now hidden, pageable-memory gone.`
    """
    span = figures.span
    unit = unit_for(round(max(span.before or 0, span.after or 0)))
    parts = [*_reasons(figures, unit), *_findings(findings)]
    return f"{_span(basis, span, unit)}{': ' if parts else ''}{', '.join(parts)}."


def of_lost(lost: Collection[Part]) -> str:
    """Return the sentence about a device whose figures depend on lost parts of a recording."""
    parts = "parts of a recording" if set(lost) >= FIGURES else f"some {part_words(lost)}"
    return f"Changes cannot be measured, because {parts} are lost."


def of_all(devices: Sequence[DeviceDiff]) -> str:
    """Return the sentence of the device that changed most, with the number of devices and the range of changes."""
    if not devices:
        return "Nothing can be compared."
    most = max(
        devices, key=lambda device: (bool(device.figures.span.beyond_noise), abs(device.figures.span.change or 0))
    )
    if len(devices) == 1:
        return most.verdict
    name = f"device {most.device}" if most.rank is None else f"rank {most.rank}"
    changes = [device.figures.span.change_pct for device in devices]
    ascending = sorted(change for change in changes if change is not None)
    spread = f" ({_signed(ascending[0])} to {_signed(ascending[-1])})" if ascending else ""
    return f"{len(devices)} devices{spread}; {name} changed most: {most.verdict}"


def _span(basis: Basis, span: FigureChange, unit: Unit) -> str:
    name = "Step" if basis == "step" else "Recording"
    change, share = span.change or 0, span.change_pct
    both = f"{unit.number(round(span.before or 0))} to {unit.text(round(span.after or 0))}"
    if change == 0:
        return f"{name} unchanged ({unit.text(round(span.after or 0))})"
    if span.beyond_noise is False and abs(change) <= GPU_SHARE * max(span.before or 0, span.after or 0):
        return f"{name} unchanged within noise ({both})"
    faster = ("faster", "slower") if basis == "step" else ("shorter", "longer")
    sure = {True: "", False: ", which may be noise", None: ", noise unknown"}[span.beyond_noise]
    much = percent(abs(share)) if share is not None else unit.text(round(abs(change)))
    return f"{name} {much} {faster[change > 0]}{sure} ({both})"


def _reasons(figures: Figures, unit: Unit) -> list[str]:
    """Return the largest changes: of copies by direction, of idle time by cause, and of other buckets.

    If none of them changed, return those of hidden copies and of single causes of idle time.
    """
    overlap = {change.name: change for change in figures.overlap}
    engines = {change.name: change for change in figures.engines}
    buckets = {change.name: change for change in figures.buckets}
    reasons = []
    for direction in ("H2D", "D2H"):
        exposed = overlap[f"exposed {direction}"]
        reasons.append((exposed, _copies(direction, exposed, engines[direction], unit)))
    at_once = overlap["exposed at once"]
    now = "now" if (at_once.change or 0) > 0 else "no longer"
    reasons.append((at_once, f"{unit.text(round(abs(at_once.change or 0)))} of H2D and D2H {now} run at once"))
    idle = buckets["idle"]
    reasons.append((idle, f"{_more(idle, unit)} idle{_cause(idle, figures.idle_by_cause)}"))
    reasons += [(buckets[name], f"{_more(buckets[name], unit)} {what}") for name, what in _NAMED.items()]
    hidden = overlap["hidden copy"]
    alone = [(cause, f"{_more(cause, unit)} idle time from {cause.name}") for cause in figures.idle_by_cause]
    alone.append((hidden, f"{_more(hidden, unit)} copy time hidden"))
    return _largest(reasons, figures.span) or _largest(alone, figures.span)


def _largest(reasons: Sequence[tuple[FigureChange, str]], span: FigureChange) -> list[str]:
    counted = sorted((loss for loss in reasons if _counts(loss[0], span)), key=lambda loss: -abs(loss[0].change or 0))
    return [sentence for _, sentence in counted[:_MOST_REASONS]]


def _copies(direction: str, exposed: FigureChange, copied: FigureChange, unit: Unit) -> str:
    amount, change = round(abs(exposed.change or 0)), exposed.change or 0
    # Copies are exposed for less time if more of them is hidden, or if there are fewer or faster copies.
    hidden = (copied.change or 0) - change
    if change < 0:
        how = f"of {direction} now hidden" if 2 * hidden >= amount else f"less of {direction} running alone"
    else:
        how = f"of {direction} no longer hidden" if -2 * hidden >= amount else f"more of {direction} running alone"
    return f"{unit.text(amount)} {how}"


def _more(change: FigureChange, unit: Unit) -> str:
    return f"{unit.text(round(abs(change.change or 0)))} {'more' if (change.change or 0) > 0 else 'less'}"


def _cause(whole: FigureChange, causes: Sequence[FigureChange]) -> str:
    """Return the cause of more than half of a change, in parentheses; empty if there is none."""
    sign = 1 if (whole.change or 0) > 0 else -1
    sure = [cause for cause in causes if cause.beyond_noise is not False]
    most = max(sure, key=lambda cause: sign * (cause.change or 0), default=None)
    return f" ({most.name})" if most and 2 * sign * (most.change or 0) > abs(whole.change or 0) else ""


def _counts(change: FigureChange, span: FigureChange) -> bool:
    """Return whether a change is more than noise, or if that is unknown, more than a minimum share of the span."""
    if change.beyond_noise is not None:
        return change.beyond_noise
    return abs(change.change or 0) > GPU_SHARE * max(span.before or 0, span.after or 0)


def _findings(findings: Sequence[FindingChange]) -> list[str]:
    sentences = [
        f"{finding.rule} {finding.standing}"
        for finding in findings
        if finding.standing in ("new", "gone") and finding.cost.beyond_noise
    ]
    more = len(sentences) - _MOST_FINDINGS
    return sentences[:_MOST_FINDINGS] + ([f"{plural(more, 'more finding')} new or gone"] if more > 0 else [])


def _signed(share: float) -> str:
    return f"{'+' if share > 0 else '-' if share < 0 else ''}{percent(abs(share))}"
