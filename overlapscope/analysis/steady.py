"""Trust check `steady-state`: whether the recorded steps are the program's usual ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np

from overlapscope.analysis.periods import Periods, judged_steps, phases_of
from overlapscope.analysis.plain_step import lengths_of, measured
from overlapscope.analysis.trust_results import Check
from overlapscope.base.columns import quantile
from overlapscope.base.intervals import I64, covered, union
from overlapscope.base.median import FEWEST_PLAIN, drifted, middle_half_ns
from overlapscope.base.words import plural
from overlapscope.trace.model import HostEvents, Trace

SHORTER = 0.03
"""Maximum shortfall of recorded steps against plain ones that is ignored. Recording only ever adds work."""
FEW = 0.1
"""Minimum share of the program's time that longer steps than the recorded ones take."""
TREND = 0.1
"""Minimum drift over the whole recording, as a share of the median step."""
FEWEST = 5
"""Minimum number of steps for a trend."""

_MOST_COMPARED = 500
"""Maximum number of steps of which all pairs are compared. If there are more steps, every second, third... is used."""
_SIGNIFICANT = 2.2
"""Standard deviations of Kendall's S, which 3% of recordings without a trend exceed. Among five steps, each must be
longer than the previous one."""
_USUAL_QUEUE = 24
"""Maximum number of ready batches of a DataLoader with 12 workers, at PyTorch's default of two each."""
_NO_WAIT, _WAIT = 0.01, 0.1
"""Shares of a step. Below the first, a loader's `next` returned a ready batch; above the second, it waited."""
_FEWEST_READY, _FEWEST_WAITING = 3, 2

_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def judge_steady(trace: Trace, steps: Periods) -> Check:
    """Compare a device's judged steps with each other and with the plain steps around the recording.

    If there are more than five steps, the last one is left out, because it ends with the last op instead of the next
    step.

    Returns:
        The trust check, with a sentence on any difference.
    """
    if phases_of(trace):
        return Check.ok("steady-state", "The steps of a server differ by their batches, so a trend means nothing.")
    spans = (steps.end_ns - steps.start_ns)[~steps.partial]
    spans = spans[:-1] if len(spans) > FEWEST else spans
    waits = _loader_waits(trace)
    doubts = [
        *_few_of_all(trace, spans),
        *_against_plain(trace, spans, loads=waits is not None),
        *_trend(spans),
        *_before_after(trace),
    ]
    if waits is not None:
        doubts += _drained(trace, waits)
    if doubts:
        return Check.warn("steady-state", " ".join(doubts))
    return Check.ok("steady-state", _fine(trace, spans, loads=waits is not None))


def _fine(trace: Trace, spans: I64, *, loads: bool) -> str:
    compared = len(spans) and _sides(trace)
    if loads and not compared and len(spans) < _USUAL_QUEUE:
        return (
            "The recorded steps have no trend. They are too few to show whether the DataLoader keeps up: its queue may "
            "have held batches for all of them. Time plain steps (--plain-steps), or record more (--active)."
        )
    if compared:
        return "The recorded steps are no shorter than steps without the profiler, and have no trend."
    return "The recorded steps have no trend." if len(spans) >= FEWEST else "Too few steps to see a trend."


def _against_plain(trace: Trace, spans: I64, *, loads: bool) -> Iterator[str]:
    """Yield a sentence if recorded steps are shorter than the plain ones on either side."""
    sides = _sides(trace)
    if not sides or not len(spans):
        return
    plain = min(statistics.median(side) for side in sides)
    recorded = quantile(spans, 0.5)
    if plain - recorded > max(SHORTER * plain, *map(middle_half_ns, sides)):
        reserve = (
            "the DataLoader may have had batches queued"
            if loads
            else "something may have been prepared ahead, or the GPU's clock was higher"
        )
        yield (
            f"A recorded step takes {_ms(recorded)} (median), one without the profiler {_ms(plain)}: {reserve}. "
            "Record more steps (--active), or begin later (--wait)."
        )


def _few_of_all(trace: Trace, spans: I64) -> Iterator[str]:
    """Yield a sentence if the program's steps took a tenth of their time longer than steps like the recorded ones."""
    plain = measured(trace.plain_steps, round(float(spans.mean())) if len(spans) else 0)
    if plain is not None and plain.longer_ns > FEW * plain.step_ns:
        yield (
            f"{plain.longer_steps:,} of {plural(plain.steps, 'step')} took much longer than any recorded one: a step "
            f"takes {_ms(plain.step_ns)} with them, {_ms(plain.usual.step_ns)} without. Record more steps (--active)."
        )


def _trend(spans: I64) -> Iterator[str]:
    """Yield a sentence if steps drift significantly.

    The drift is Theil and Sen's slope, the median of the slopes of all pairs, and Mann and Kendall's test judges it.
    Both are robust against single outliers.
    """
    spans = spans[:: -(-len(spans) // _MOST_COMPARED) or 1]
    count = len(spans)
    if count < FEWEST:
        return
    earlier, later = np.triu_indices(count, 1)
    change = spans[later] - spans[earlier]
    s = int(np.sign(change).sum())
    deviation = np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    drift = quantile(change / (later - earlier), 0.5) * (count - 1)
    if (abs(s) - 1) / deviation > _SIGNIFICANT and abs(drift) > TREND * quantile(spans, 0.5):
        yield (
            f"Steps get {'longer' if drift > 0 else 'shorter'} from first to last, by {_ms(abs(drift))} of "
            f"{_ms(quantile(spans, 0.5))}: the program had not settled. Begin later (--wait, --warmup), or record "
            "more steps (--active)."
        )


def _before_after(trace: Trace) -> Iterator[str]:
    """Yield a sentence if plain steps differ before and after the recording."""
    sides = [lengths_of(side) for side in (trace.plain_steps.before, trace.plain_steps.after)]
    if drifted(*sides):
        before, after = map(statistics.fmean, sides)
        yield (
            f"Without the profiler, a step takes {_ms(before)} before the recording and {_ms(after)} after it: the "
            "program, or the machine, changed meanwhile. Begin later (--wait), or record once more."
        )


def _drained(trace: Trace, waits: I64) -> Iterator[str]:
    """Yield a sentence if a loader's batches were ready at first, and were waited for in all later steps."""
    rows = judged_steps(trace)
    spans = trace.annotations.end_ns[rows] - trace.annotations.start_ns[rows]
    ready = int(np.argmax(np.append(waits >= _NO_WAIT * spans, True)))
    waiting = len(rows) - ready
    if ready >= _FEWEST_READY and waiting >= _FEWEST_WAITING and (waits[ready:] > _WAIT * spans[ready:]).all():
        yield (
            f"The DataLoader had batches ready for {ready} steps and was waited for in each of the {waiting} after "
            "them: its queue ran empty while it was recorded. Only the later steps are the program's usual ones: begin "
            "later (--wait), or record more steps (--active)."
        )


def _loader_waits(trace: Trace) -> I64 | None:
    """Return the host's time in each judged step inside `next` of a DataLoader with worker processes.

    None if there is no such loader. A call that spans the mark of a step counts for both sides.
    """
    notes = trace.annotations
    loads: HostEvents = notes.take(notes.named(lambda name: name == _LOADER))
    if not len(loads):
        return None
    rows = judged_steps(trace)
    inside = union(loads.start_ns, loads.end_ns)
    return covered(inside, notes.start_ns[rows], notes.end_ns[rows])


def _sides(trace: Trace) -> list[tuple[int, ...]]:
    """Return the plain steps before and after the recording, if enough were timed; by the device's clock if known."""
    both = (lengths_of(side) for side in (trace.plain_steps.before, trace.plain_steps.after))
    return [side for side in both if len(side) >= FEWEST_PLAIN]


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms"
