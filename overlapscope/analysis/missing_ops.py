"""Time in which the GPU must have worked, although the trace has no op there.

A host thread that waits for the GPU goes on when the work before its call has ended. If it waits for long and no op
runs, the work is not in the trace: it was queued before the recording began, belongs to a graph whose kernels were not
recorded, or to another process. A launch without an op had one, which ran before the ops launched later. The GPU's work
in that time is unknown.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from overlapscope.analysis.event_waits import EXACT
from overlapscope.analysis.pieces import IdleTime
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import mask_of, pick, quantile
from overlapscope.base.grouping import among, rows_by
from overlapscope.base.intervals import I64, Bool, Index, Intervals, clip, complement, contains, cut, subtract, union
from overlapscope.base.kept import kept
from overlapscope.catalog.causes import IDLE_RANK, IdleCause
from overlapscope.trace import calls as call_kinds
from overlapscope.trace import op_names
from overlapscope.trace.host import Blocking, find_blocking
from overlapscope.trace.lost import GPU_OPS, Part
from overlapscope.trace.model import Trace

HELD_NS = 1_000_000
"""Maximum normal wait without ops if the trace shows outstanding work.

In some 300 recordings none was longer than 0.06 ms in a synchronize, 0.2 ms before a small copy.
"""

UNEXPLAINED_NS = 10_000_000
"""Maximum normal wait without ops otherwise, because a busy machine may be late to wake the thread."""

_MIN_ALIKE = 3
_ALMOST_ALL = 0.1
"""Minimum number of waits after the same op to judge them together, and the share of them that may be short. A busy
machine wakes a thread late now and then, but not almost every time."""

_MAX_USUAL_RATIO = 10
_SHORTEST_NS = 200_000
"""Maximum normal wait of almost all of them: as a multiple of the call's quick returns in the recording, and at least.
"""

MAX_CUT_OFF = 0.05
"""Maximum share of the launches that the end of a recording cuts off, and of the recording that counts as its end."""

_LONG_CALL_NS = 100_000
"""Minimum length of another thread's call that can delay a wait through the driver's locks."""

_MAX_AT_ONCE = 32
"""Maximum number of waits at once to look at. More threads hardly wait for a GPU."""
_HOST_BYTES_PER_NS = 1
"""Speed at which a blocking copy may first pin the host's memory, page by page."""

_sets_memory = call_kinds.selects(r"(cuda|hip|cu|aclrt)Memset\w*")
_LAUNCHED: dict[call_kinds.Selector, frozenset[Part]] = {
    call_kinds.selects(r"(cuda|hip|cu|aclrt)Memcpy\w*"): frozenset({"copies", "other"}),
    _sets_memory: frozenset({"fills"}),
    call_kinds.launches_kernel: frozenset({"compute", "comm"}),
    call_kinds.launches_graph: GPU_OPS,
}
"""Parts of the recording that launching calls may have launched; their names don't say more."""
_waits_for_host = call_kinds.selects(
    r"(cuda|hip)(LaunchHostFunc\w*|StreamAddCallback|StreamWaitValue\w*)|cu(LaunchHostFunc\w*|StreamAddCallback"
    r"|StreamWaitValue\w*|StreamBatchMemOp)"
)
"""Calls after which a stream waits for the host or for a word in memory, which no op shows."""


class Unanswered(Struct, frozen=True, eq=False):
    """Launches whose GPU op is not in the trace, as rows of `Trace.runtime_calls`."""

    dropped: Index
    cut_off: Index
    """Launches whose ops would have run after the end of the recording: no later launch of their kind has an op, the op
    of the one before ended at the end, and the program waited for none of them. They are few."""
    empty: Index
    """Memsets that are probably of no bytes."""


@kept()
def recorded_launches(trace: Trace) -> tuple[Index, Bool]:
    """Return the rows of the calls that launch GPU ops, by start, and whether each has an op in the trace.

    Calls while a stream was captured into a graph launch nothing yet, and are left out.
    """
    calls, ops, captured = trace.runtime_calls, trace.gpu_ops, call_kinds.captures(trace)
    launching = np.logical_or.reduce([selects(calls) for selects in _LAUNCHED])
    launches = np.flatnonzero(launching & ~contains(union(captured.start_ns, captured.end_ns), calls.start_ns))
    return launches, mask_of(ops.launch[ops.launch >= 0], len(calls))[launches]


def launched_parts(trace: Trace, launches: Index) -> frozenset[Part]:
    """Return the parts of the recording that some of `recorded_launches` may have launched."""
    calls = trace.runtime_calls.take(launches)
    launched = (parts for selects, parts in _LAUNCHED.items() if selects(calls).any())
    return frozenset().union(*launched)


@kept()
def find_unanswered(trace: Trace) -> Unanswered:
    """Return the launches without a GPU op, by the reason why they have none.

    A trace states the size of a memset only with its op, and cuDNN makes memsets of no bytes. A profiler that drops ops
    loses kernels and other memsets, too, so these must be complete.
    """
    calls, ops, at = trace.runtime_calls, trace.gpu_ops, trace.runtime_calls.start_ns
    launches, answered = recorded_launches(trace)
    begin = min(int(table.start_ns.min(initial=np.iinfo(np.int64).max)) for table in (calls, ops))
    end = max(int(at.max(initial=0)), int(ops.end_ns.max(initial=0)))
    ended = np.zeros(len(calls), np.int64)
    np.maximum.at(ended, ops.launch[ops.launch >= 0], ops.end_ns[ops.launch >= 0])
    late, last_wait = np.zeros(len(launches), np.bool_), int(at[find_blocking(trace).waits].max(initial=0))
    for selects in _LAUNCHED:
        alike = np.flatnonzero(selects(calls)[launches])
        last = int(np.append(-1, np.flatnonzero(answered[alike]))[-1])
        since = alike[last + 1 :]
        if last >= 0 and len(since) and at[launches[since[0]]] > last_wait:
            late[since] = ended[launches[alike[last]]] >= end - MAX_CUT_OFF * (end - begin)
    late &= late.sum() <= MAX_CUT_OFF * len(launches)
    absent = launches[~answered]
    memsets, none = _sets_memory(calls)[launches], launches[:0]
    if memsets[~answered].all() and memsets[answered].any() and not memsets[answered].all():
        return Unanswered(none, none, absent)
    return Unanswered(launches[~answered & ~late], launches[late], none)


def wait_for_other_devices(trace: Trace, timeline: Timeline) -> Bool:
    """Select calls whose sync record or copy is on other devices only."""
    calls, syncs, ops = trace.runtime_calls, trace.syncs, trace.gpu_ops
    elsewhere = np.zeros(len(calls), np.bool_)
    foreign = syncs.correlation[(syncs.device >= 0) & (syncs.device != timeline.device)]
    elsewhere[among(calls.correlation, foreign) & (calls.correlation > 0)] = True
    elsewhere[ops.launch[(ops.launch >= 0) & (ops.device != timeline.device)]] = True
    elsewhere[ops.launch[(ops.launch >= 0) & (ops.device == timeline.device)]] = False
    return elsewhere


@kept()
def find_missing(trace: Trace, timeline: Timeline, blocking: Blocking) -> IdleTime:
    """Return when this device was idle although it had unrecorded work, with the calls that waited or launched.

    Either the host waited for this device, or for an unnamed one, while none of the trace's devices worked; or an op
    that is not in the trace had been launched, and may have run. Nothing is found if no launch was recorded, because
    host and device times can't be compared then.
    """
    calls = trace.runtime_calls
    waits = blocking.waits[~wait_for_other_devices(trace, timeline)[blocking.waits]]
    dropped = find_unanswered(trace).dropped
    if not (timeline.ops.launch >= 0).any():
        waits, dropped = waits[:0], dropped[:0]
    if _waits_for_host(calls).any():
        waits = waits[:0]
    until, allowed = _waiting(trace, waits)
    quiet = _quiet(trace, timeline, waits)
    wait, start, end = cut(calls.start_ns[waits], until, quiet, most=_MAX_AT_ONCE)
    launches, answered = recorded_launches(trace)
    last = np.searchsorted(calls.start_ns[launches], calls.start_ns[waits], side="left") - 1
    # An op that ends a stretch may have been launched already when it began.
    op = np.searchsorted(trace.gpu_ops.start_ns, end, side="left")
    launch = pick(trace.gpu_ops.launch, op)
    queued = (pick(trace.gpu_ops.start_ns, op) == end) & (launch >= 0) & (calls.start_ns[launch] <= start)
    held = queued | ~pick(answered, last, True)[wait]
    limit = np.where(held, HELD_NS, _return_limits(trace, waits, pick(launches, last), wait, end))
    unexplained = end - start > limit + allowed[wait]
    judged = clip(timeline.idle, timeline.judged_from_ns, timeline.end_ns)
    launch, begin, stop = cut(*_running(trace, timeline, blocking, dropped), judged)
    call = np.concatenate([waits[wait[unexplained]], dropped[launch]])
    start, end = np.concatenate([start[unexplained], begin]), np.concatenate([end[unexplained], stop])
    order = np.argsort(start, kind="stable")
    when = union(start, end)
    # Among calls at once, the first one counts.
    call = call[order][np.searchsorted(start[order], when.starts, side="left")]
    return IdleTime.filled(
        start_ns=when.starts,
        end_ns=when.ends,
        cause=IDLE_RANK[IdleCause.MISSING_OPS],
        confidence=EXACT,
        call=call,
        host_ns=when.starts,
        thread=calls.thread[call],
    )


def _running(trace: Trace, timeline: Timeline, blocking: Blocking, dropped: Index) -> tuple[I64, I64]:
    """Return when each op that is not in the trace may have run.

    It ran after its launch and the end of the op that was launched before it, and ended when an op began that was
    launched later, or when a later wait returned. Memsets take next to no time. Ops of threads that launch for other
    devices only are theirs.
    """
    calls, ops = trace.runtime_calls, timeline.ops
    launched = np.flatnonzero(ops.launch >= 0)
    launched = launched[np.argsort(ops.launch[launched], kind="stable")]
    waits = blocking.waits
    until = np.minimum(
        _first_from(ops.launch[launched], ops.start_ns[launched], dropped, timeline.end_ns),
        _first_from(waits, calls.end_ns[waits], dropped, timeline.end_ns),
    )
    here = among(calls.thread[dropped], calls.thread[ops.launch[launched]])
    before = pick(ops.end_ns[launched], np.searchsorted(ops.launch[launched], dropped) - 1, 0)
    return np.maximum(calls.start_ns[dropped], before), np.where(here & ~_sets_memory(calls)[dropped], until, 0)


def _first_from(rows: I64, at: I64, since: Index, otherwise: int) -> I64:
    """Return the first instant of `at` among those whose row, which ascends, is beyond each of `since`."""
    first = np.minimum.accumulate(np.append(at, otherwise)[::-1])[::-1]
    return first[np.searchsorted(rows, since, side="right")]


def _waiting(trace: Trace, waits: I64) -> tuple[I64, I64]:
    """Return when each call has done nothing except wait, and the extra time that it may take beyond the limits.

    A copy moves data from the start of its op, and prepares the host's memory before.
    """
    calls, ops = trace.runtime_calls, trace.gpu_ops
    begins, size = calls.start_ns.copy(), np.zeros(len(calls), np.int64)
    copies = np.flatnonzero((ops.launch >= 0) & (ops.bytes >= 0))
    launch = ops.launch[copies]
    begins[launch], size[launch] = ops.start_ns[copies], ops.bytes[copies]
    synchronises = call_kinds.synchronises(calls)[waits]
    until = np.where(
        synchronises, calls.end_ns[waits], np.clip(begins[waits], calls.start_ns[waits], calls.end_ns[waits])
    )
    return until, np.where(synchronises, 0, size[waits] // _HOST_BYTES_PER_NS)


def _quiet(trace: Trace, timeline: Timeline, waits: I64) -> Intervals:
    """Return the times after the lead-in in which no device worked and nothing else delayed a wait.

    The profiler and other calls may delay waits.
    """
    calls, ops = trace.runtime_calls, trace.gpu_ops
    idle = complement(union(ops.start_ns, ops.end_ns), timeline.judged_from_ns, timeline.end_ns)
    others = calls.end_ns - calls.start_ns >= _LONG_CALL_NS
    others[waits] = False
    idle = subtract(idle, union(calls.start_ns[others], calls.end_ns[others]))
    return subtract(idle, union(trace.overheads.start_ns, trace.overheads.end_ns))


def _return_limits(trace: Trace, waits: I64, launch: I64, wait: I64, end: I64) -> I64:
    """Return the maximum normal length of each stretch without ops of a wait, if its last launch is not outstanding.

    A call that returns late now and then was woken late. If it returns late almost every time after the same op, work
    followed that op which is not in the trace, such as a loop inside a graph. Late is what exceeds the call's quick
    returns by far, or `HELD_NS` if it has none. Waits that XLA marks may do other work after the GPU's. So may waits
    that begin when all ops have ended, unless a graph was launched last.
    """
    calls, ops = trace.runtime_calls, trace.gpu_ops
    returned, limits = calls.end_ns[waits], np.full(len(waits), UNEXPLAINED_NS)
    worked_until = np.maximum.accumulate(ops.end_ns)[np.searchsorted(ops.start_ns, returned, side="left") - 1]
    late = np.maximum(returned - np.maximum(worked_until, calls.start_ns[waits]), 0)
    by_end = np.argsort(ops.end_ns, kind="stable")
    op = by_end[np.searchsorted(ops.end_ns[by_end], returned - late, side="right") - 1]
    of_graph = pick(call_kinds.launches_graph(calls), launch, False)
    sync = (call_kinds.synchronises(calls) & ~calls.named(op_names.XLA_WAIT.fullmatch))[waits]
    sync &= of_graph | (worked_until > calls.start_ns[waits])
    for _, of_call in rows_by(np.where(sync, calls.name_id[waits], -1)):
        limit = min(HELD_NS, max(_SHORTEST_NS, _MAX_USUAL_RATIO * int(quantile(late[of_call], _ALMOST_ALL))))
        for _, after_op in rows_by(ops.name_id[op[of_call]]):
            alike = of_call[after_op]
            if sync[alike[0]] and len(alike) >= _MIN_ALIKE and quantile(late[alike], _ALMOST_ALL) > limit:
                limits[alike] = limit
    return np.where(end == returned[wait], limits[wait], UNEXPLAINED_NS)
