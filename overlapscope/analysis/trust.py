"""Whether a trace can be believed, judged before any number. `docs/trust.md` explains each check.

A warning says that some numbers are less exact; a failure says which ones are unknown, and the analysis leaves
those out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.grouping import rows_by
from overlapscope.analysis.missing_ops import launched_parts, recorded_launches
from overlapscope.analysis.periods import Periods, is_step, judged_steps
from overlapscope.analysis.pieces import IdleTime
from overlapscope.analysis.results import Check, Trust
from overlapscope.analysis.steady import judge_steady
from overlapscope.analysis.steps import begins_with_warm_up
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64, covered, total, union
from overlapscope.base.words import plural
from overlapscope.catalog.causes import IDLE_RANK, IdleCause
from overlapscope.trace.lost import EVERYTHING, GPU_OPS, OF_KIND, WORDS, Part
from overlapscope.trace.model import Index, Sync, Table, Trace

CLOCK_TOLERANCE_NS = 50_000
"""CPU and GPU clocks are matched to some 10 us; beyond this a GPU op before its launch is worth a warning."""
CLOCK_LIMIT_NS = 1_000_000
"""Beyond this host and device cannot be compared at all."""
LONG_LEAD_IN = 0.1
MISSING_SHARE = 0.01
MUCH_MISSING = 0.1
"""Of the window; beyond this nobody knows what the program did."""
PROFILER_SHARE = 0.01
DISORDER_SHARE = 0.01
_US_NS = 1_000
_NAMED = 4
"""Calls that are told of by name."""


def judge_file(trace: Trace) -> list[Check]:
    """Checks of the source and of the recording as a whole."""
    return [
        _complete(trace),
        _readable(trace),
        _times(trace),
        _sizes(trace),
        _activity(trace),
        _clock(trace),
        _dropped(trace),
    ]


def judge_device(trace: Trace, timeline: Timeline, steps: Periods, idle: IdleTime) -> list[Check]:
    """Checks of one device."""
    return [
        _launches(timeline),
        _lead_in(trace, timeline),
        _missing_ops(trace, timeline, idle),
        _order(timeline),
        _sync_events(trace),
        *_steps(trace, timeline, steps),
        judge_steady(trace, steps),
        _profiler(trace, timeline),
    ]


def verdict(checks: Iterable[Check]) -> Trust:
    """The checks, the worst of each id over the devices, and what they mean together."""
    severity = {"ok": 0, "warn": 1, "fail": 2}
    worst: dict[str, Check] = {}
    for check in checks:
        if check.id not in worst or severity[check.status] > severity[worst[check.id].status]:
            worst[check.id] = check
    statuses = {check.status for check in worst.values()}
    if worst["gpu-activity"].status == "fail":
        return Trust(verdict="unusable", checks=tuple(worst.values()))
    return Trust(verdict="trusted" if statuses == {"ok"} else "degraded", checks=tuple(worst.values()))


def clocks_agree(checks: Iterable[Check]) -> bool:
    """Whether host and device times can be compared, by the checks of the file."""
    return not any(check.id == "clock-skew" and check.status == "fail" for check in checks)


def _complete(trace: Trace) -> Check:
    if not trace.damage.truncated:
        return Check(id="file-complete", status="ok", detail="The file is complete.")
    return Check(
        id="file-complete",
        status="warn",
        detail=f"The file is cut off: its last {trace.damage.lost_bytes} bytes hold no whole event, and what "
        "would have followed is missing. All whole events were read.",
        lost=_listed(EVERYTHING),
    )


def _listed(parts: Iterable[Part]) -> tuple[Part, ...]:
    """In the order in which they are always told."""
    chosen = set(parts)
    return tuple(part for part in WORDS if part in chosen)


def _counted(counts: Counter[Part]) -> str:
    """`4 of copies between host and device, 2 of runtime calls`."""
    return ", ".join(f"{counts[part]} of {WORDS[part]}" for part in _listed(counts))


def _readable(trace: Trace) -> Check:
    damage = trace.damage
    if not damage.lost_events and not damage.repaired_events:
        return Check(id="events-readable", status="ok", detail="All events could be read.")
    example = f" First: {damage.examples[0]}." if damage.examples else ""
    return Check(
        id="events-readable",
        status="warn",
        detail=f"Damaged events: {damage.repaired_events} were read all the same, {damage.lost_events} could not be."
        f"{example}",
        # Whatever they were.
        lost=_listed(EVERYTHING) if damage.lost_events else (),
    )


def _times(trace: Trace) -> Check:
    left_out = Counter({part: count for part, count in trace.damage.impossible_by.items() if part in WORDS})
    timeless = _timeless(trace)
    if not trace.damage.impossible_times and not timeless:
        return Check(id="durations", status="ok", detail="All times are possible.")
    said = []
    if trace.damage.impossible_times:
        said.append(
            f"{plural(trace.damage.impossible_times, 'event')} with an impossible time (negative, or longer than the "
            f"recording) {'was' if trace.damage.impossible_times == 1 else 'were'} left out: {_counted(left_out)}."
        )
    if timeless:
        count = timeless.total()
        have = "has no duration, or one" if count == 1 else "have no duration, or one"
        said.append(f"{plural(count, 'event')} {have} that is too short to be true: {_counted(timeless)}.")
    return Check(
        id="durations",
        status="warn",
        detail=f"{' '.join(said)} Where they ran, the GPU may look idle.",
        lost=_listed({*left_out, *timeless}),
    )


def _sizes(trace: Trace) -> Check:
    wrong = Counter({part: count for part, count in trace.damage.impossible_sizes.items() if part in WORDS})
    if not wrong:
        return Check(id="copy-sizes", status="ok", detail="All sizes are possible.")
    count = wrong.total()
    return Check(
        id="copy-sizes",
        status="warn",
        detail=f"{plural(count, 'GPU op')} {'has' if count == 1 else 'have'} an impossible size (a copy at over 1 "
        f"TB/s, or more than 64 bits hold): {_counted(wrong)}. Bytes and bandwidths leave that out; the times may be "
        "wrong too.",
        lost=_listed(wrong),
    )


def _timeless(trace: Trace) -> Counter[Part]:
    """Events without a duration, by what they are of.

    Where a file has whole microseconds only, what is shorter has none, so GPU ops are told of where all of a kind have
    none.
    """
    ops = trace.gpu_ops
    length = ops.end_ns - ops.start_ns
    coarse = not any(
        ((table.start_ns - trace.base_ns) % _US_NS).any() or ((table.end_ns - table.start_ns) % _US_NS).any()
        for table in (ops, trace.cpu_ops)
    )
    none = length == 0
    found: Counter[Part] = Counter()
    for kind, part in OF_KIND.items():
        mine = ops.kind == kind
        found[part] += int((mine & none).sum()) if not coarse or none[mine].all() else 0
    hosts: tuple[tuple[Part, Table], ...] = (
        ("calls", trace.runtime_calls),
        ("ops", trace.cpu_ops),
        ("ranges", trace.annotations),
    )
    for part, table in hosts if not coarse else ():
        found[part] += int((table.end_ns == table.start_ns).sum())
    return +found


def _activity(trace: Trace) -> Check:
    if len(trace.gpu_ops) and (trace.gpu_ops.end_ns > trace.gpu_ops.start_ns).any():
        return Check(
            id="gpu-activity",
            status="ok",
            detail=f"{len(trace.gpu_ops)} GPU ops on {len(trace.devices)} device(s).",
        )
    if trace.damage.truncated:
        return Check(
            id="gpu-activity",
            status="fail",
            detail="What is left of the file has no GPU activity. Kineto writes it behind the CPU's, so it was "
            "probably cut off: copy or record the trace again.",
            lost=_listed(EVERYTHING),
        )
    return Check(
        id="gpu-activity",
        status="fail",
        detail="The trace has no GPU activity: it was recorded without a GPU or without "
        "ProfilerActivity.CUDA, so there is nothing to say about overlap.",
        # What was recorded of the host is there.
        lost=_listed({*GPU_OPS, "calls", "syncs", "clocks"}),
    )


def _clock(trace: Trace) -> Check:
    ops = trace.gpu_ops
    rows = np.flatnonzero(ops.launch >= 0)
    early = trace.runtime_calls.start_ns[ops.launch[rows]] - ops.start_ns[rows]
    worst = int(early.max(initial=0))
    if worst <= CLOCK_TOLERANCE_NS:
        return Check(id="clock-skew", status="ok", detail="No GPU op begins before its launch.")
    count = int((early > CLOCK_TOLERANCE_NS).sum())
    seen = f"{count} GPU ops begin before their launch, by up to {worst / 1e3:.1f} us: the clocks disagree."
    if worst <= CLOCK_LIMIT_NS:
        return Check(id="clock-skew", status="warn", detail=f"{seen} Causes found on the host may be off by as much.")
    return Check(
        id="clock-skew",
        status="fail",
        detail=f"{seen} Host and device cannot be compared: causes that need the host are unknown.",
        lost=("clocks",),
    )


def _dropped(trace: Trace) -> Check:
    launches, answered = recorded_launches(trace)
    dropped = launches[~answered]
    if not len(trace.gpu_ops) or not len(dropped):
        return Check(id="dropped-ops", status="ok", detail="Every recorded launch has its GPU op.")
    parts = launched_parts(trace, dropped)
    return Check(
        id="dropped-ops",
        status="warn",
        detail=f"{len(dropped)} of {len(launches)} recorded launches have no GPU op: the profiler dropped them "
        f"or was stopped before they ran ({_calls_named(trace, dropped)}). Where they ran, the GPU looks idle.",
        lost=_listed(parts),
    )


def _calls_named(trace: Trace, rows: Index) -> str:
    """`4 of cudaMemcpyAsync, 1 of cudaLaunchKernel`."""
    counts = Counter(map(trace.runtime_calls.name, rows.tolist()))
    return ", ".join(f"{count} of {name}" for name, count in counts.most_common(_NAMED))


def _launches(timeline: Timeline) -> Check:
    ops = timeline.ops
    orphans = ops.launch < 0
    if orphans.all():
        return Check(
            id="launches",
            status="fail",
            detail="The trace records no launches, so the lead-in, steps and the causes of idle time are "
            "unknown. Record with ProfilerActivity.CPU and ProfilerActivity.CUDA.",
            lost=_listed(EVERYTHING),
        )
    late = int((orphans & (ops.start_ns >= timeline.judged_from_ns)).sum())
    if not late:
        return Check(id="launches", status="ok", detail="Every GPU op behind the lead-in has its launch.")
    return Check(
        id="launches",
        status="warn",
        detail=f"{late} GPU ops have no recorded launch though they were launched during the recording; idle "
        "time before them has no known cause.",
        lost=("calls",),
    )


def _lead_in(trace: Trace, timeline: Timeline) -> Check:
    ends_with_orphan = (timeline.ops.end_ns[timeline.ops.launch < 0] == timeline.lead_in_end_ns).any()
    if trace.warm_up_steps and timeline.lead_in_end_ns is not None and not ends_with_orphan:
        return Check(
            id="lead-in",
            status="ok",
            detail=f"The first {trace.warm_up_steps} step(s) were recorded for the pipeline to fill; causes, steps "
            "and findings leave them out.",
        )
    if timeline.lead_in_end_ns is None or timeline.lead_in_end_ns == timeline.start_ns:
        return Check(id="lead-in", status="ok", detail="The device had caught up when the recording began.")
    length = timeline.lead_in_end_ns - timeline.start_ns
    share = length / (timeline.end_ns - timeline.start_ns)
    detail = (
        f"The first {length / 1e6:.2f} ms ({100 * share:.1f}% of the window) are the device working off what "
        "was queued before the recording; causes, steps and findings leave them out."
    )
    return Check(id="lead-in", status="warn" if share > LONG_LEAD_IN else "ok", detail=detail)


def _missing_ops(trace: Trace, timeline: Timeline, idle: IdleTime) -> Check:
    mine = np.flatnonzero(idle.cause == IDLE_RANK[IdleCause.MISSING_OPS])
    length = idle.end_ns[mine] - idle.start_ns[mine]
    missing, window = int(length.sum()), timeline.end_ns - timeline.start_ns
    if missing <= MISSING_SHARE * window:
        return Check(id="missing-ops", status="ok", detail="The host did not wait for ops that were not recorded.")
    call = trace.runtime_calls.name(int(idle.call[mine[int(np.argmax(length))]]))
    much = missing > MUCH_MISSING * window
    return Check(
        id="missing-ops",
        status="fail" if much else "warn",
        detail=f"For {missing / 1e6:.2f} ms ({100 * missing / window:.1f}% of the window) the host waited for the GPU "
        f"(longest in {call}), and the trace has no op there: its work was probably queued before the recording, "
        "in a graph whose kernels were not recorded, or of another process. That time is shown as missing ops, not as "
        "idle. Synchronize before recording, and record more steps.",
        lost=_listed(EVERYTHING) if much else (),
    )


def _order(timeline: Timeline) -> Check:
    ops = timeline.ops
    disorder = 0
    for _, rows in rows_by(ops.stream):
        reach = np.maximum.accumulate(ops.end_ns[rows])
        beside = np.minimum(reach[:-1], ops.end_ns[rows][1:]) - ops.start_ns[rows][1:]
        launch = ops.launch[rows]
        same_graph = (launch[1:] == launch[:-1]) & (launch[1:] >= 0)
        disorder += int(np.maximum(np.where(same_graph, 0, beside), 0).sum())
    if disorder <= DISORDER_SHARE * (timeline.end_ns - timeline.start_ns):
        return Check(id="stream-order", status="ok", detail="Ops of one stream follow one another.")
    return Check(
        id="stream-order",
        status="warn",
        detail=f"Ops of one stream overlap for {disorder / 1e6:.2f} ms outside graphs, which a stream forbids: "
        "some durations are wrong.",
    )


def _sync_events(trace: Trace) -> Check:
    waits = int(call_kinds.waits_event(trace.runtime_calls).sum())
    recorded = trace.syncs.kind == Sync.STREAM_WAIT_EVENT
    if waits and not len(trace.syncs) and trace.predicted_by is not None:
        return Check(
            id="sync-events",
            status="ok",
            detail=f"{waits} event waits, and no sync events, as predictions have none: which stream waited for which "
            "was rebuilt from the order of calls.",
        )
    if waits and not len(trace.syncs):
        return Check(
            id="sync-events",
            status="warn",
            detail=f"{waits} event waits, but no sync events: which stream waited for which was rebuilt from "
            "the order of calls. Record with enable_cuda_sync_events=True.",
        )
    unstated = int((recorded & (trace.syncs.source_stream < 0)).sum())
    if unstated:
        return Check(
            id="sync-events",
            status="ok",
            detail=f"{unstated} event waits do not say what they wait for (CUDA 13); it was rebuilt.",
        )
    return Check(id="sync-events", status="ok", detail="No event wait had to be rebuilt.")


def _steps(trace: Trace, timeline: Timeline, steps: Periods) -> list[Check]:
    notes = trace.annotations.take(judged_steps(trace))
    if not len(notes):
        return [Check(id="steps", status="ok", detail="No steps recorded: figures are of the whole window.")]
    numbers = sorted(int(notes.name(row).rpartition("#")[2]) for row in range(len(notes)))
    absent = len(notes) - len(steps.row)
    skipped = numbers != list(range(numbers[0], numbers[0] + len(numbers)))
    if absent or skipped:
        what = f"{absent} of {len(notes)} steps launched nothing on the main stream" if absent else "numbers skip"
        gone = numbers[-1] - numbers[0] >= len({*numbers})
        present = Check(
            id="steps", status="warn", detail=f"Steps are missing: {what}.", lost=("ranges",) if gone else ()
        )
    else:
        present = Check(id="steps", status="ok", detail=f"{len(notes)} step(s), none missing.")
    return [present, _warm_up(trace, steps.row, steps.end_ns - steps.start_ns), _ahead(trace, timeline, steps)]


def _warm_up(trace: Trace, rows: I64, spans: I64) -> Check:
    if begins_with_warm_up(spans.tolist()):
        return Check(
            id="warm-up",
            status="warn",
            detail=f"{trace.annotations.name(int(rows[0]))} took {spans[0] / spans[1:].max():.1f} times as "
            "long as the longest of the others: a warm-up step is inside the recording.",
        )
    return Check(id="warm-up", status="ok", detail="The first step is like the others.")


def _ahead(trace: Trace, timeline: Timeline, steps: Periods) -> Check:
    """Side streams working on another step than the main stream, by more than a prefetch of one."""
    ops, notes = timeline.ops, trace.annotations
    rows = np.flatnonzero(is_step(notes))
    rows = rows[np.argsort(notes.start_ns[rows], kind="stable")]
    side = np.flatnonzero((ops.launch >= 0) & (ops.stream != timeline.main_stream))
    launched = trace.runtime_calls.start_ns[ops.launch[side]]
    belongs = np.searchsorted(notes.start_ns[rows], launched, side="right") - 1
    order = np.searchsorted(notes.start_ns[rows], notes.start_ns[steps.row], side="left")
    runs = np.searchsorted(steps.start_ns, ops.start_ns[side], side="right") - 1
    known = (belongs >= 0) & (runs >= 0)
    far = known & (belongs - pick(order, runs, 0) >= 2)
    if not far.any():
        return Check(id="step-skew", status="ok", detail="Streams work on the same step, or one ahead.")
    early = union(ops.start_ns[side[far]], ops.end_ns[side[far]])
    return Check(
        id="step-skew",
        status="warn",
        detail=f"{int(far.sum())} ops of side streams ({total(early) / 1e6:.2f} ms) run two or more steps before "
        "the main stream gets there: their step's figures do not contain them.",
    )


def _profiler(trace: Trace, timeline: Timeline) -> Check:
    spent = union(trace.overheads.start_ns, trace.overheads.end_ns)
    inside = int(covered(spent, [timeline.start_ns], [timeline.end_ns])[0])
    if inside <= PROFILER_SHARE * (timeline.end_ns - timeline.start_ns):
        return Check(id="profiler-overhead", status="ok", detail="The profiler took next to no time.")
    return Check(
        id="profiler-overhead",
        status="warn",
        detail=f"The profiler itself took {inside / 1e6:.2f} ms of the window (buffers flushed, libraries "
        "loaded); idle time in it goes to cause profiler-overhead.",
    )
