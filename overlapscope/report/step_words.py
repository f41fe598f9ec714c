"""Sentences on the steps of a recording: how much they differ, how they were found, and what lies outside them."""

from __future__ import annotations

from overlapscope.analysis import spread
from overlapscope.analysis.results import Device, TraceResult
from overlapscope.base.words import between, clean, duration, plural, size
from overlapscope.report.losses import WORTH_SAYING
from overlapscope.trace.model import OwnPeriod

_APART = 0.02
"""Share of the median by which the average must differ to be shown."""


def steps_sentence(step_spread: spread.Spread | None, trace: TraceResult, device: Device | None = None) -> str:
    """Return how much steps differ, how they were found, and what lies outside them.

    `All figures are averages of 9 steps, which take 23 to 761 ms (27.5 ms in the median). 3 of them take over 1.5
    times the median, mostly because of idle time (data-loading).`
    """
    sentences = []
    if step_spread is not None:
        even = duration(step_spread.shortest_ns) == duration(step_spread.longest_ns)
        length = (
            f"{duration(step_spread.longest_ns)} each"
            if even
            else between(step_spread.shortest_ns, step_spread.longest_ns)
        )
        # The average is already known, and the median adds something only if it differs.
        two = abs(step_spread.mean_ns - step_spread.median_ns) > _APART * step_spread.median_ns
        middle = f" ({duration(step_spread.median_ns)} in the median)" if two else ""
        averages = f"The {plural(step_spread.count, 'judged step')} of the recording"
        if device is not None:
            averages = f"All figures are averages of {plural(step_spread.count, 'step')}, which"
        sentences.append(f"{averages} take {length}{middle}.")
        # With two steps, neither is typical.
        if step_spread.long and step_spread.count > 2:
            few = "1 of them takes" if step_spread.long == 1 else f"{step_spread.long:,} of them take"
            sentences.append(
                f"{few} over {spread.LONG} times the median, mostly because of {clean(step_spread.cause, 60)} "
                f"({duration(step_spread.cause_ns)} more)."
            )
    if isinstance(trace.step_source, str):
        sentences.append(f"Steps: {clean(trace.step_source)}.")
    if isinstance(trace.period, OwnPeriod):
        sentences.append(trace.period.sentence)
    sentences.append("" if device is None else _outside_sentence(device))
    if device is not None and device.per_step is not None and device.steps:
        last = device.steps[-1]
        if last.span_ns > spread.LONG * device.per_step.span_ns and device.per_step.steps > 1:
            sentences.append(
                f"The last step is not judged; it ends with the recording, after {duration(last.span_ns)}."
            )
    return " ".join(filter(None, sentences))


def _outside_sentence(device: Device) -> str:
    """Return the time and the copies outside the steps.

    Example: `Outside the steps: 3.20 s, 13.6 GB H2D.`
    """
    outside, judged = device.outside, device.judged
    if outside is None or judged is None:
        return ""
    length, copied = outside.before_ns + outside.after_ns, {"h2d": outside.h2d_bytes, "d2h": outside.d2h_bytes}
    recorded = {way: sum(group.judged_bytes for group in device.copies if group.direction == way) for way in copied}
    much = [part is None or part >= max(1, WORTH_SAYING * recorded[way]) for way, part in copied.items()]
    if length < WORTH_SAYING * judged.span_ns and not any(much):
        return ""
    copies = [f"{size(part)} {way.upper()}" for way, part in copied.items() if part]
    copies += [f"{way.upper()} of unknown size" for way, part in copied.items() if part is None]
    return f"Outside the steps: {', '.join([duration(length), *copies])}."
