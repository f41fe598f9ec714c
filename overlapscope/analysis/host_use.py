"""The host as a device: activity of the thread of the steps in a program that runs nothing on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.average import average, without_warm_up
from overlapscope.analysis.facts import Facts, periods_of
from overlapscope.analysis.host_lines import phase_samples
from overlapscope.analysis.host_sampled import amounts
from overlapscope.analysis.missing_ops import recorded_launches
from overlapscope.analysis.periods import is_step, judged_steps
from overlapscope.analysis.plain_step import MIN_TIMED_STEPS, lengths_of, measured
from overlapscope.analysis.results import HostUse, OpTime, Plain, PlainStep, ThreadUse, host_parts
from overlapscope.analysis.timeline import lengths
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import EMPTY, I64, Intervals, covered, cut, intersect, subtract, union
from overlapscope.base.kept import kept
from overlapscope.catalog.causes import WORK_CAUSES, CommCause, IdleCause
from overlapscope.catalog.measures import PARTS_OF_SPAN
from overlapscope.trace.host import loading, rows_by_thread, without_workers
from overlapscope.trace.host_activity import HostActivity
from overlapscope.trace.lost import GPU_OPS
from overlapscope.trace.model import HostEvents, Trace
from overlapscope.trace.op_names import is_collective_range, starts_collective
from overlapscope.trace.ran import Ran
from overlapscope.trace.servers import front_end

# -- The step without the profiler -------------------------------------------------------------------


def known_step(trace: Trace, recorded_ns: int) -> PlainStep | None:
    """Return the step without the profiler as timed; with too few timed steps, the mean of those with facts."""
    plain = measured(trace.plain_steps, recorded_ns, trace.host_activity)
    facts = trace.host_activity.facts
    if plain is not None or facts.steps < MIN_TIMED_STEPS:
        return plain
    mean_ns = round(facts.span_ns / facts.steps)
    timed = mean_ns, *lengths_of(trace.plain_steps.before), *lengths_of(trace.plain_steps.after)
    return PlainStep(mean_ns, min(timed), max(timed), "measured")


def with_plain(use: HostUse, step: PlainStep, activity: HostActivity) -> HostUse:
    """Return the host with an average step without the profiler, of the given length, in the recorded proportions.

    Samples and facts of steps without the profiler replace proportions where they show them: how long loading takes,
    and for how long the thread waits where the recording shows ops or Python.

    The recording shows the parts of steps that are like recorded ones. The others add time to the average step, which
    is unrecorded, except for what samples show.
    """
    recorded = use.per_step
    parts = _apportioned(
        _with_sampled(host_parts(recorded), use.loader, activity, step.longer_ns / step.step_ns), step.step_ns
    )
    ops_ns, comm_ns = parts.pop("ops"), parts.pop("communication")
    idle_ns = step.step_ns - ops_ns - comm_ns
    figures = replace(
        recorded,
        buckets=replace(recorded.buckets, compute_ns=ops_ns, exposed_comm_ns=comm_ns, idle_ns=idle_ns),
        exposed_copy_by_cause={},
        exposed_comm_by_cause={CommCause.UNKNOWN: comm_ns},
        idle_by_cause=parts,
    )
    return replace(use, plain=Plain.of(step, recorded, figures))


def _apportioned(parts: Mapping[str, float], whole_ns: int) -> dict[str, int]:
    """Return whole nanoseconds in proportion to the parts, which add up to the whole. Without parts, all is Python."""
    if not any(parts.values()):
        parts = {**dict.fromkeys(parts, 0), IdleCause.PYTHON: 1}
    # Rounding the running sum instead of each part keeps the total exact.
    sums = [*accumulate(parts.values(), initial=0.0)]
    ends = [round(whole_ns * (end / sums[-1])) for end in sums]
    return {name: end - begin for name, (begin, end) in zip(parts, pairwise(ends), strict=True)}


def _with_sampled(parts: dict[str, int], loader: str, activity: HostActivity, unrecorded: float) -> dict[str, float]:
    """Return the parts as shares of the step, with loading as sampled and with the waits that the recording hides.

    Samples are of all steps, so what they show beyond the recording is in the unrecorded share first.
    """
    whole = max(1, sum(parts.values()))
    shares = {name: (1 - unrecorded) * ns / whole for name, ns in parts.items()}
    if unrecorded:
        shares[IdleCause.UNRECORDED] = unrecorded
    if not activity:
        return shares
    samples = phase_samples(activity)
    if total := sum(samples.values()):
        loading = samples["data loading"] / total
        if unrecorded:
            more = min(unrecorded, max(0.0, loading - shares[IdleCause.DATA_LOADING]))
            shares[IdleCause.UNRECORDED] -= more
            shares[IdleCause.DATA_LOADING] += more
        rest = 1 - shares[IdleCause.DATA_LOADING]
        shares = {name: share * (1 - loading) / rest if rest else 0.0 for name, share in shares.items()}
        shares[IdleCause.DATA_LOADING] = loading
        if not rest:
            shares[IdleCause.PYTHON] = 1 - loading
    # A loader on this thread waits for CPUs and files as the thread's other work does. Workers wait on their own.
    beside = shares[IdleCause.DATA_LOADING] if loader == "own-thread" else 0.0
    hidden = (IdleCause.UNRECORDED,) if unrecorded else ()
    shown = {name: shares[name] for name in (*hidden, IdleCause.PYTHON, "ops")}
    facts = activity.facts
    # Ops and Python are where anything may happen to a thread. Python pauses for its garbage collector in both.
    pauses = facts.gc_pause_ns / max(1, facts.span_ns) if facts.gc_pause_ns else 0.0
    waits = [(each.cause, each.share, each.taken_from, each.anywhere) for each in amounts(activity)]
    for cause, share, taken_from, anywhere in (*waits, (IdleCause.GC_PAUSE, pauses, WORK_CAUSES, True)):
        of = (*hidden, IdleCause.PYTHON, *(("ops",) if IdleCause.CPU_OPS in taken_from else ()))
        around = beside + sum(shown[name] for name in (shown if anywhere else of))
        left = share * sum(shown[name] for name in of) / around if around else 0.0
        for name in of:
            taken = min(left, shares[name])
            shares[name], shares[cause], left = shares[name] - taken, shares.get(cause, 0.0) + taken, left - taken
    return shares


# -- Use of the host ---------------------------------------------------------------------------------

MAX_OPS = 20
_MAX_BETWEEN = 0.01
"""Maximum fraction of the time that lies between the marks of steps, for the last step to be whole."""


class HostTimeline(Ran, frozen=True, dict=True):
    """Steps on the host, and when ops and collectives ran in them.

    Ops of the thread of the steps outside loading are compute, except those that only start a collective.
    """

    thread: int
    """Thread that marks the steps."""
    names: tuple[str, ...]
    """Names of the marked steps; empty if none is marked."""
    starts: I64
    ends: I64
    """Ends of the steps; without steps, of the whole recording."""
    last_is_cut: bool
    """Whether the last step ends with its mark, while the others go on for long after theirs."""
    collectives: HostEvents
    """Collectives from the first step to the last."""
    ops: HostEvents
    """Ops of that thread."""
    loads: HostEvents
    """The DataLoader's next on that thread."""

    @property
    def judged(self) -> tuple[int, ...]:
        """Numbers of the steps to average."""
        kept = without_warm_up(range(len(self.starts)), (self.ends - self.starts).tolist())
        return kept[:-1] if self.last_is_cut and len(kept) > 1 else kept

    def facts(self) -> Facts:
        """Return the figures of each step."""
        ns = dict.fromkeys(PARTS_OF_SPAN, np.zeros_like(self.starts)) | lengths(self, self.starts, self.ends)
        waited = union(self.loads.start_ns, self.loads.end_ns)
        loading_ns = covered(subtract(waited, self.comm), self.starts, self.ends)
        ns[f"exposed-comm:{CommCause.UNKNOWN}"] = ns["exposed_comm"]
        return ns | {f"idle:{IdleCause.DATA_LOADING}": loading_ns, f"idle:{IdleCause.PYTHON}": ns["idle"] - loading_ns}


@kept()
def host_timeline(trace: Trace) -> HostTimeline | None:
    """Return the steps on the thread that marks them, without the recorder's warm-up.

    Without steps, it is the whole recording of the thread with the most ops. The result is None if the host recorded
    neither.
    """
    notes, between_ns = trace.annotations.take(judged_steps(trace)), 0
    if len(notes):
        thread = int(notes.thread[0])
        notes = notes.take(notes.thread == thread)
        # A step reaches to the next one: its batch may be loaded outside the marks.
        starts, ends = notes.start_ns, np.append(notes.start_ns[1:], notes.end_ns.max())
        between_ns = int((ends - notes.end_ns).sum())
    elif len(trace.cpu_ops) and not is_step(trace.annotations).any():
        threads, counts = np.unique(trace.cpu_ops.thread, return_counts=True)
        thread = int(threads[np.argmax(counts)])
        starts, ends = trace.cpu_ops.start_ns.min(keepdims=True), trace.cpu_ops.end_ns.max(keepdims=True)
    else:
        return None
    ops, loads = (table.take(table.thread == thread) for table in (trace.cpu_ops, loading(trace)))
    waited = union(loads.start_ns, loads.end_ns)
    works = ops.take(~ops.named(lambda name: starts_collective(name) or name == "record_param_comms"))
    compute = subtract(union(works.start_ns, works.end_ns), waited)
    # A loop that calls `profiler.step()` after its work opens a step after the last iteration, which holds nothing.
    worked_ns, loaded_ns = covered(compute, starts, ends), covered(waited, starts, ends)
    if len(notes) > 1 and not worked_ns[-1] + loaded_ns[-1] and worked_ns.any():
        notes, starts, ends, between_ns = notes.take(np.arange(len(notes) - 1)), starts[:-1], ends[:-1], 0
    begin, end = int(starts.min()), int(ends.max())
    collectives = trace.annotations.take(trace.annotations.named(is_collective_range))
    collectives = collectives.take((collectives.start_ns >= begin) & (collectives.end_ns <= end))
    comm = union(collectives.start_ns, collectives.end_ns)
    names = tuple(notes.name(row) for row in range(len(notes)))
    nothing = (EMPTY, EMPTY, EMPTY, EMPTY)
    cut = between_ns > _MAX_BETWEEN * (end - begin)
    return HostTimeline(compute, comm, *nothing, begin, end, thread, names, starts, ends, cut, collectives, ops, loads)


def describe_host(trace: Trace) -> HostUse | None:
    """Return the host's time in each step, and in an average one.

    The result is None if the host recorded nothing, if something ran on a GPU, even if only lost events show it, or for
    the front end of a server.
    """
    if len(trace.gpu_ops) or GPU_OPS & {*trace.damage.impossible_by} or len(recorded_launches(trace)[0]):
        return None
    if front_end(trace) is not None:
        return None
    timeline = host_timeline(trace)
    if timeline is None:
        return None
    facts, names = timeline.facts(), timeline.names or ("window",)
    judged = [*timeline.judged]
    per_step = average(facts, judged, names)
    assert per_step is not None
    windows = union(timeline.starts[judged], timeline.ends[judged])
    use = HostUse(
        by_steps=bool(timeline.names),
        steps=periods_of(facts, names, timeline.starts, timeline.ends, np.zeros(len(names), np.bool_)),
        per_step=per_step,
        loader=_loader(timeline.loads),
        ops=_by_name(timeline.ops, intersect(timeline.compute, windows)),
        threads=_threads(trace, windows, timeline.thread),
    )
    step = known_step(trace, per_step.span_ns) if timeline.names else None
    return use if step is None else with_plain(use, step, trace.host_activity)


def _loader(loads: HostEvents) -> Literal["none", "own-thread", "workers"]:
    """Return what makes most of the DataLoader's batches, judged by the names that PyTorch gives its iterators."""
    if not len(loads):
        return "none"
    return "own-thread" if len(without_workers(loads)) else "workers"


def _by_name(ops: HostEvents, worked: Intervals) -> tuple[OpTime, ...]:
    """Return the outermost ops by name, the longest first. Nested ops don't count, so that all names add up."""
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, ops.end_ns))[:-1]
    starts = np.maximum(ops.start_ns, reach)
    outer = np.flatnonzero(ops.end_ns > starts)
    row, begin, end = cut(starts[outer], ops.end_ns[outer], worked)
    name = ops.name_id[outer[row]].astype(np.int64)
    sums: I64 = np.zeros(len(ops.names), np.int64)
    np.add.at(sums, name, end - begin)
    counts = np.bincount(ops.name_id[outer[distinct(row)]], minlength=len(ops.names))
    longest = np.argsort(-sums, kind="stable")[:MAX_OPS]
    return tuple(
        OpTime(op=ops.names[op], count=int(counts[op]), time_ns=int(sums[op])) for op in longest.tolist() if sums[op]
    )


def _threads(trace: Trace, windows: Intervals, main: int) -> tuple[ThreadUse, ...]:
    """Return the time that each thread spent in ops: the thread of the steps first, then the busiest."""
    threads = []
    for thread, of_thread in rows_by_thread(trace.cpu_ops).items():
        busy = intersect(union(trace.cpu_ops.start_ns[of_thread], trace.cpu_ops.end_ns[of_thread]), windows)
        busy_ns = int((busy.ends - busy.starts).sum())
        name = trace.thread_names.get(thread, "")
        threads.append(ThreadUse(thread=thread, name=name, steps=thread == main, busy_ns=busy_ns))
    return tuple(sorted(threads, key=lambda use: (not use.steps, -use.busy_ns, use.thread)))
