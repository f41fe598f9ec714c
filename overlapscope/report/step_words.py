"""Sentences on the steps of a recording: how much they differ, how they were found, and what lies outside them."""

from __future__ import annotations

from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.figures import PhaseFigures
from overlapscope.analysis.results import Device, TraceResult
from overlapscope.analysis.steps import LONG, Spread
from overlapscope.base.words import NOTHING, between, clean, duration, listed, plural, size
from overlapscope.report.losses import WORTH_SAYING, unjudged_ns
from overlapscope.trace.model import OwnPeriod
from overlapscope.trace.servers import phase_in


def rate(per_s: float | None) -> str:
    """Return a number of tokens a second in words, such as `4.2` or `1,310`."""
    if per_s is None:
        return NOTHING
    return f"{per_s:,.1f}" if per_s < _SLOW else f"{per_s:,.0f}"


_SLOW = 100
"""Rate below which a decimal is shown."""
_APART = 0.02
"""Share of the median by which the average must differ to be shown."""


def phase_words(device: Device, what: str = "steps") -> str:
    """Return the steps that the figures are about in words, such as `decode steps of 32 requests`.

    Empty if no server marked them. `what` is `step` for a single one.
    """
    if not device.served or device.per_step is None or not device.per_step.phase:
        return ""
    figures = next(each for each in device.served.phases if each.phase == device.per_step.phase)
    requests, phase = requests_words(figures), "" if figures.phase == "unclear" else f"{figures.phase} "
    return f"{phase}{what}" + (f" of {requests} request{'' if requests == '1' else 's'}" if requests else "")


def is_last_judged(device: Device) -> bool:
    """Return whether the only judged step of a server is the last one, which ends with the recording."""
    judged = judged_steps(device) if device.served and device.steps else ()
    return judged == (len(device.steps) - 1,)


def requests_words(figures: PhaseFigures) -> str:
    """Return the number of requests in a step, such as `8` or `4 to 32`; empty if unknown."""
    least, most = figures.fewest_requests, figures.most_requests
    if least is None or most is None:
        return ""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def steps_sentence(step_spread: Spread | None, trace: TraceResult, device: Device | None = None) -> str:
    """Return how much steps differ, how they were found, and what lies outside them.

    `All figures are averages of 9 steps, which take 23 to 761 ms (27.5 ms in the median). 3 of them take over 1.5
    times the median, mostly because of idle time (data-loading).`
    """
    sentences = []
    average = None if device is None else device.per_step
    phase = f"{average.phase} " if average is not None and average.phase and average.phase != "unclear" else ""
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
            averages = f"All figures are averages of {plural(step_spread.count, f'{phase}step')}, which"
        sentences.append(f"{averages} take {length}{middle}.")
        # With two steps, neither is typical.
        if step_spread.long and step_spread.count > 2:
            few = "1 of them takes" if step_spread.long == 1 else f"{step_spread.long:,} of them take"
            sentences.append(
                f"{few} over {LONG} times the median, mostly because of {clean(step_spread.cause, 60)} "
                f"({duration(step_spread.cause_ns)} more)."
            )
    if device is not None and is_last_judged(device):
        step = phase_words(device, "step")
        sentences.append(f"The only {step} ends with the recording, so the time until the next step is not known.")
    if isinstance(trace.step_source, str):
        sentences.append(f"Steps: {clean(trace.step_source)}.")
    if isinstance(trace.period, OwnPeriod):
        sentences.append(trace.period.sentence)
    if device is not None and device.served and device.served.tokens_per_s and len(device.served.phases) > 1:
        every, decoded = device.served.tokens_per_s, device.served.decode_tokens_per_s
        of_decode = f", {rate(decoded)} of them by decoding" if decoded and decoded < every else ""
        sentences.append(f"Steps of all phases together compute {rate(every)} tokens a second{of_decode}.")
    if device is not None and device.served and device.served.awaiting_requests_ns:
        waited = duration(device.served.awaiting_requests_ns)
        sentences.append(f"The server waited for requests for {waited}, which belongs to no step.")
    sentences.append("" if device is None else _outside_sentence(device))
    if device is not None and (device.outside is None or isinstance(trace.period, OwnPeriod)):
        sentences.append(_unjudged_sentence(device))
    if device is not None and average is not None and device.steps:
        last = device.steps[-1]
        alike = phase_in(last.name) == (average.phase or None)
        first = device.steps[0]
        if average.first and not first.partial and not average.phase and first.span_ns > LONG * average.span_ns:
            sentences.append(f"The first step took {duration(first.span_ns)}; it is taken for warm-up, and not judged.")
        if alike and last.span_ns > LONG * average.span_ns and average.steps > 1:
            sentences.append(
                f"The last step is not judged; it ends with the recording, after {duration(last.span_ns)}."
            )
    return " ".join(filter(None, sentences))


def _unjudged_sentence(device: Device) -> str:
    """Return what is not judged of a recording that marks no steps, besides the time outside those that were found.

    Example: `Not judged: 8.60 s of the host before the first GPU op.`
    """
    parts = zip(
        unjudged_ns(device),
        (
            "in which the GPU worked off what was launched before the recording",
            "of the host before the first GPU op",
            "of the host after the last GPU op",
        ),
        strict=True,
    )
    said = [f"{duration(ns)} {words}" for ns, words in parts if ns]
    return f"Not judged: {listed(said)}." if said else ""


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
