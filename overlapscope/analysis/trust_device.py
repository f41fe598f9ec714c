"""Checks of one device: whether its launches, ops, waits and steps are complete, possible and usual."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlapscope.analysis.average import begins_with_warm_up
from overlapscope.analysis.missing_ops import find_unanswered
from overlapscope.analysis.periods import Periods, is_step, judged_steps, phases_of
from overlapscope.analysis.pieces import IdleTime
from overlapscope.analysis.plain_step import lengths_of, measured
from overlapscope.analysis.results import Check
from overlapscope.analysis.timeline import Timeline
from overlapscope.analysis.trust import Judgement, as_checks, fail, ok, warn
from overlapscope.base.columns import pick, quantile
from overlapscope.base.grouping import among, rows_by
from overlapscope.base.intervals import I64, covered, total, union
from overlapscope.base.marks import STEP, step_number
from overlapscope.base.median import MIN_PLAIN, drifted, mean, median, middle_half_ns
from overlapscope.base.words import clean, percent, plural
from overlapscope.catalog.causes import IDLE_RANK, IdleCause
from overlapscope.plugin import recorder_by_id
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.lost import EVERYTHING, GPU_OPS
from overlapscope.trace.model import HostEvents, OwnPeriod, Sync, Trace
from overlapscope.trace.op_names import is_migration
from overlapscope.trace.servers import phase_in

# -- Steady state ------------------------------------------------------------------------------------

MAX_SHORTFALL = 0.03
"""Maximum shortfall of recorded steps against plain ones that is ignored. Recording only ever adds work."""
MIN_SHARE_OF_LONGER_STEPS = 0.1
"""Minimum share of the program's time that longer steps than the recorded ones take."""
MIN_DRIFT = 0.1
"""Minimum drift over the whole recording, as a share of the median step."""
MIN_STEPS_FOR_DRIFT = 5
"""Minimum number of steps for a trend."""

_MAX_COMPARED = 500
"""Maximum number of steps of which all pairs are compared. If there are more steps, every second, third... is used."""
_SIGNIFICANT = 2.2
"""Standard deviations of Kendall's S, which 3% of recordings without a trend exceed. Among five steps, each must be
longer than the previous one."""
_USUAL_QUEUE = 24
"""Maximum number of ready batches of a DataLoader with 12 workers, at PyTorch's default of two each."""
_NO_WAIT, _WAIT = 0.01, 0.1
"""Shares of a step. Below the first, a loader's `next` returned a ready batch; above the second, it waited."""
_MIN_READY_STEPS, _MIN_WAITING_STEPS = 3, 2

_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def judge_steady(trace: Trace, steps: Periods) -> Judgement:
    """Compare a device's judged steps with each other and with the plain steps around the recording.

    If there are more than five steps, the last one is left out, because it ends with the last op instead of the next
    step.

    Returns:
        The trust check, with a sentence on any difference.
    """
    if phases_of(trace):
        return ok("The steps of a server differ by their batches, so a trend means nothing.")
    spans = (steps.end_ns - steps.start_ns)[~steps.partial]
    spans = spans[:-1] if len(spans) > MIN_STEPS_FOR_DRIFT else spans
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
        return warn(" ".join(doubts))
    return ok(_fine(trace, spans, loads=waits is not None))


def _fine(trace: Trace, spans: I64, *, loads: bool) -> str:
    compared = len(spans) and _sides(trace)
    if loads and not compared and len(spans) < _USUAL_QUEUE:
        return (
            "The recorded steps have no trend. They are too few to show whether the DataLoader keeps up: its queue may "
            "have held batches for all of them. Time plain steps (--plain-steps), or record more (--active)."
        )
    if compared:
        return "The recorded steps are no shorter than steps without the profiler, and have no trend."
    return "The recorded steps have no trend." if len(spans) >= MIN_STEPS_FOR_DRIFT else "Too few steps to see a trend."


def _against_plain(trace: Trace, spans: I64, *, loads: bool) -> Iterator[str]:
    """Yield a sentence if recorded steps are shorter than the plain ones on either side."""
    sides = _sides(trace)
    if not sides or not len(spans):
        return
    plain = min(median(side) for side in sides)
    recorded = quantile(spans, 0.5)
    if plain - recorded > max(MAX_SHORTFALL * plain, *map(middle_half_ns, sides)):
        reserve = (
            "the DataLoader may have had batches queued"
            if loads
            else f"something may have been prepared ahead, or the {trace.gpu}'s clock was higher"
        )
        yield (
            f"A recorded step takes {_ms(recorded)} (median), one without the profiler {_ms(plain)}: {reserve}. "
            "Record more steps (--active), or begin later (--wait)."
        )


def _few_of_all(trace: Trace, spans: I64) -> Iterator[str]:
    """Yield a sentence if the program's steps took a tenth of their time longer than steps like the recorded ones."""
    plain = measured(trace.plain_steps, round(float(spans.mean())) if len(spans) else 0)
    if plain is not None and plain.longer_ns > MIN_SHARE_OF_LONGER_STEPS * plain.step_ns:
        yield (
            f"{plain.longer_steps:,} of {plural(plain.clocked_steps, 'step')} took much longer than any recorded one: "
            f"a step takes {_ms(plain.step_ns)} with them, {_ms(plain.usual.step_ns)} without. Record more steps "
            "(--active)."
        )


def _trend(spans: I64) -> Iterator[str]:
    """Yield a sentence if steps drift significantly.

    The drift is Theil and Sen's slope, the median of the slopes of all pairs, and Mann and Kendall's test judges it.
    Both are robust against single outliers.
    """
    spans = spans[:: -(-len(spans) // _MAX_COMPARED) or 1]
    count = len(spans)
    if count < MIN_STEPS_FOR_DRIFT:
        return
    earlier, later = np.triu_indices(count, 1)
    change = spans[later] - spans[earlier]
    s = int(np.sign(change).sum())
    deviation = np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    drift = quantile(change / (later - earlier), 0.5) * (count - 1)
    if (abs(s) - 1) / deviation > _SIGNIFICANT and abs(drift) > MIN_DRIFT * quantile(spans, 0.5):
        yield (
            f"Steps get {'longer' if drift > 0 else 'shorter'} from first to last, by {_ms(abs(drift))} of "
            f"{_ms(quantile(spans, 0.5))}: the program had not settled. Begin later (--wait, --warmup), or record "
            "more steps (--active)."
        )


def _before_after(trace: Trace) -> Iterator[str]:
    """Yield a sentence if plain steps differ before and after the recording."""
    sides = [lengths_of(side) for side in (trace.plain_steps.before, trace.plain_steps.after)]
    if drifted(*sides):
        before, after = map(mean, sides)
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
    if ready >= _MIN_READY_STEPS and waiting >= _MIN_WAITING_STEPS and (waits[ready:] > _WAIT * spans[ready:]).all():
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
    return [side for side in both if len(side) >= MIN_PLAIN]


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms"


# -- One device --------------------------------------------------------------------------------------

LONG_LEAD_IN = 0.1
MUCH_LEAD_IN = 0.5
"""Share of the window above which the lead-in leaves too little to judge, unless several whole steps are left."""
MIN_STEPS = 2
MISSING_SHARE = 0.01
MUCH_MISSING = 0.1
"""Share of missing ops in the window above which the program's activity is unknown."""
PROFILER_SHARE = 0.01
DISORDER_SHARE = 0.01
REGULAR_PCT = 90
"""Regularity below which a period is only a rough step."""


def judge_device(trace: Trace, timeline: Timeline, steps: Periods, idle: IdleTime) -> tuple[Check, ...]:
    """Check one device."""
    return as_checks(
        {
            "launches": _launches(trace, timeline),
            "lead-in": _lead_in(trace, timeline, steps),
            "missing-ops": _missing_ops(trace, timeline, idle),
            "stream-order": _order(timeline),
            "sync-events": _sync_events(trace),
            **_steps(trace, timeline, steps),
            "steady-state": judge_steady(trace, steps),
            "profiler-overhead": _profiler(trace, timeline),
        }
    )


def _launches(trace: Trace, timeline: Timeline) -> Judgement:
    ops = timeline.ops
    orphans = (ops.launch < 0) & ~ops.named(is_migration)
    if (ops.launch < 0).all():
        return fail(
            "The trace records no launches, so the lead-in, steps and the causes of idle time are "
            f"unknown. {recorder_by_id(trace.recorder).launches}",
            EVERYTHING,
        )
    late = int((orphans & (ops.start_ns >= timeline.judged_from_ns)).sum())
    if not late:
        return ok(f"Every {trace.gpu} op after the lead-in has its launch.")
    return warn(
        f"{plural(late, f'{trace.gpu} op')} {'has' if late == 1 else 'have'} no recorded launch, though "
        f"{'it was' if late == 1 else 'they were'} launched during the recording: the cause of idle time before "
        f"{'it' if late == 1 else 'them'} is unknown.",
        ("calls",),
    )


def _lead_in(trace: Trace, timeline: Timeline, steps: Periods) -> Judgement:
    ends_with_orphan = (timeline.ops.end_ns[timeline.ops.launch < 0] == timeline.lead_in_end_ns).any()
    if trace.warm_up_steps and timeline.lead_in_end_ns is not None and not ends_with_orphan:
        return ok(
            f"{plural(trace.warm_up_steps, 'step')} at the beginning only filled the pipeline; causes, steps and "
            "findings leave them out."
        )
    if timeline.lead_in_end_ns is None or timeline.lead_in_end_ns == timeline.start_ns:
        return ok("The device had caught up when the recording began.")
    length = timeline.lead_in_end_ns - timeline.start_ns
    share = length / (timeline.end_ns - timeline.start_ns)
    whole_steps = int((~steps.partial).sum())
    if share > MUCH_LEAD_IN and whole_steps < MIN_STEPS:
        detail = (
            f"Only the last {percent(100 * (1 - share))} of the window, with {plural(whole_steps, 'whole step')}, can "
            "be judged: before, the device worked off what was queued before the recording. That is too little."
        )
        return fail(detail, EVERYTHING)
    detail = (
        f"For the first {length / 1e6:.2f} ms ({100 * share:.1f}% of the window) the device worked off what "
        "was queued before the recording; causes, steps and findings leave them out."
    )
    return warn(detail) if share > LONG_LEAD_IN else ok(detail)


def _missing_ops(trace: Trace, timeline: Timeline, idle: IdleTime) -> Judgement:
    # The check of dropped ops names those whose launch was recorded.
    waited = ~among(idle.call, find_unanswered(trace).dropped)
    pieces = idle.take(waited & (idle.cause == IDLE_RANK[IdleCause.MISSING_OPS]))
    missing, window = int(pieces.length_ns.sum()), timeline.end_ns - timeline.start_ns
    if missing <= MISSING_SHARE * window:
        return ok("The host did not wait for ops that were not recorded.")
    call = trace.runtime_calls.name(int(pieces.call[np.argmax(pieces.length_ns)]))
    detail = (
        f"For {missing / 1e6:.2f} ms ({100 * missing / window:.1f}% of the window) the host waited for the {trace.gpu} "
        f"(longest in {call}), and the trace has no op there: its work was probably queued before the "
        "recording, in a graph that was not recorded whole, such as a loop in it, or of another process. That time is "
        "shown as missing ops, not as idle."
    )
    if missing > MUCH_MISSING * window:
        return fail(detail, GPU_OPS)
    return warn(detail, ())


def _order(timeline: Timeline) -> Judgement:
    ops = timeline.ops.take(~timeline.ops.named(is_migration))
    disorder = 0
    for _, rows in rows_by(ops.stream):
        reach = np.maximum.accumulate(ops.end_ns[rows])
        beside = np.minimum(reach[:-1], ops.end_ns[rows][1:]) - ops.start_ns[rows][1:]
        launch = ops.launch[rows]
        same_graph = (launch[1:] == launch[:-1]) & (launch[1:] >= 0)
        disorder += int(np.maximum(np.where(same_graph, 0, beside), 0).sum())
    if disorder <= DISORDER_SHARE * (timeline.end_ns - timeline.start_ns):
        return ok("Ops of one stream follow one another.")
    return warn(
        f"Ops of one stream overlap for {disorder / 1e6:.2f} ms outside graphs, which cannot happen: "
        "some durations are wrong."
    )


def _sync_events(trace: Trace) -> Judgement:
    waits = int(call_kinds.waits_event(trace.runtime_calls).sum())
    recorded = trace.syncs.kind == Sync.STREAM_WAIT_EVENT
    if waits and not len(trace.syncs) and trace.predicted_by is not None:
        return ok(
            f"{plural(waits, 'event wait')}, and no sync events, as predictions have none: which stream waited for "
            "which was rebuilt from the order of calls."
        )
    if waits and not len(trace.syncs):
        return warn(
            f"{plural(waits, 'event wait')}, but no sync events: which stream waited for which was rebuilt from "
            f"the order of calls. {recorder_by_id(trace.recorder).sync_events}"
        )
    unstated = int((recorded & (trace.syncs.source_stream < 0)).sum())
    if unstated:
        silent = "does not say what it waits" if unstated == 1 else "do not say what they wait"
        why = " (CUDA 13)" if trace.recorder == "kineto" else ""
        more = "" if trace.recorder == "kineto" else f" {recorder_by_id(trace.recorder).sync_events}"
        return ok(f"{plural(unstated, 'event wait')} {silent} for{why}, so it was rebuilt.{more}")
    return ok("No event wait had to be rebuilt.")


def _steps(trace: Trace, timeline: Timeline, steps: Periods) -> dict[str, Judgement]:
    if not len(judged_steps(trace)):
        repeats = "" if trace.period is None else f" {trace.period.sentence(trace.gpu)}"
        return {"steps": ok(f"No steps were recorded: figures are of all time after the lead-in.{repeats}")}
    return {
        "steps": _marked(trace, steps) if trace.period is None else _period(trace.period, trace.gpu),
        "warm-up": _warm_up(trace, steps.row, steps.end_ns - steps.start_ns),
        "step-skew": _ahead(trace, timeline, steps),
    }


def _marked(trace: Trace, steps: Periods) -> Judgement:
    judged = judged_steps(trace)
    notes = trace.annotations.take(judged)
    numbers = sorted(step_number(notes.name(row)) for row in range(len(notes)))
    gone = trace.annotations.take(judged[~among(judged, steps.row)])
    # A server without requests need not launch anything.
    absent = int(gone.named(lambda name: phase_in(name) != "empty").sum())
    skipped = numbers != list(range(numbers[0], numbers[0] + len(numbers)))
    if absent or skipped:
        what = f"{absent} of {len(notes)} steps launched nothing on the main stream" if absent else "step numbers skip"
        lost = numbers[-1] - numbers[0] >= len({*numbers})
        return warn(f"Steps are missing: {what}.", ("ranges",) if lost else ())
    named = f", the ranges named {clean(trace.steps_by)}" if trace.steps_by else ""
    what = "step" if notes.name(0).startswith(STEP) else "repeat"
    return ok(f"{plural(len(notes), what)}, none missing{named}.")


def _period(period: OwnPeriod, gpu: str) -> Judgement:
    if period.regular_pct >= REGULAR_PCT:
        return ok(f"Nothing marks steps. {period.sentence(gpu)}")
    return warn(
        f"Nothing marks steps. {period.sentence(gpu)} Steps differ, so figures of a step are rough. Mark steps to be "
        "sure."
    )


def _warm_up(trace: Trace, rows: I64, spans: I64) -> Judgement:
    if phases_of(trace):
        return ok("The steps of a server differ by their batches, so none is a warm-up step.")
    if begins_with_warm_up(spans.tolist()):
        return warn(
            f"{trace.annotations.name(int(rows[0]))} took {spans[0] / spans[1:].max():.1f} times as "
            "long as the longest of the others: a warm-up step is inside the recording."
        )
    return ok("The first step is like the others.")


def _ahead(trace: Trace, timeline: Timeline, steps: Periods) -> Judgement:
    """Check whether side streams work two or more steps ahead of the main stream, which is more than a prefetch."""
    ops, notes = timeline.ops, trace.annotations
    rows = np.flatnonzero(is_step(notes))
    rows = rows[np.argsort(notes.start_ns[rows], kind="stable")]
    side = np.flatnonzero((ops.launch >= 0) & (ops.stream != timeline.main_stream))
    launched = trace.runtime_calls.start_ns[ops.launch[side]]
    belongs = np.searchsorted(notes.start_ns[rows], launched, side="right") - 1
    order = np.searchsorted(notes.start_ns[rows], notes.start_ns[steps.row], side="left")
    runs = np.searchsorted(steps.start_ns, ops.start_ns[side], side="right") - 1
    placed = (belongs >= 0) & (runs >= 0)
    far = placed & (belongs - pick(order, runs, 0) >= 2)
    if not far.any():
        return ok("No stream runs more than one step ahead.")
    early = union(ops.start_ns[side[far]], ops.end_ns[side[far]])
    return warn(
        f"{int(far.sum())} ops of side streams ({total(early) / 1e6:.2f} ms) run two or more steps ahead of "
        "the main stream: the figures of their step do not include them."
    )


def _profiler(trace: Trace, timeline: Timeline) -> Judgement:
    spent = union(trace.overheads.start_ns, trace.overheads.end_ns)
    begin_ns = timeline.judged_from_ns
    inside = int(covered(spent, [begin_ns], [timeline.end_ns])[0])
    if inside <= PROFILER_SHARE * (timeline.end_ns - begin_ns):
        return ok("The profiler took next to no time.")
    return warn(
        f"The profiler itself took {inside / 1e6:.2f} ms of the judged time (buffers flushed, libraries "
        "loaded); idle time in it has cause profiler-overhead."
    )
