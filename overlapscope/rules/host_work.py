"""Rules: the launching thread launches, works, loads data, or is held up by Python or the system, and the GPU waits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.host_work import backward_threads, called_collections
from overlapscope.analysis.periods import is_step
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct, rows_by
from overlapscope.base.intervals import I64, Bool, covered, union
from overlapscope.base.kept import kept
from overlapscope.base.words import GPU, duration, each, listed, plural
from overlapscope.catalog.causes import IdleCause
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import (
    at_lines,
    fewer_threads,
    host_time,
    kinds_of_loading,
    other_threads,
    ranges_or_cost,
    sampled_lines,
    sleeps,
    stacks_cost,
)
from overlapscope.rules._program import DATA_PARALLEL, features_of
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.finding import Effort
from overlapscope.rules.rule import Draft, Fixes, Rule, name
from overlapscope.trace import calls as call_kinds
from overlapscope.trace import op_names
from overlapscope.trace.host import around, loading, op_of, outermost_around, without_workers
from overlapscope.trace.host_activity import is_loading, is_not_torch, is_python, is_torch
from overlapscope.trace.model import HostEvents, Kind, Memory, Trace
from overlapscope.trace.op_names import OPTIMIZER_STEP, OPTIMIZER_ZERO_GRAD, op_words
from overlapscope.trace.servers import batch_in


@Rule("python", fixes=(("less-host python",),)).on_claimed
def _python(claims: Claims, pieces: ClaimedPieces) -> Draft:
    features, asleep = features_of(claims.trace), sleeps(claims, is_python)
    plain = [owner.optimizer for owner in owners(claims) if owner.optimizer and not owner.how]
    layers = "" if features.compiled else " Python of the model's own layers disappears with torch.compile(model)."
    fuse = f" {listed(plain)} runs less Python with foreach=True or fused=True." if plain else ""
    does = "sleeps or waits" if asleep else "runs Python"
    draft = Draft(
        title=f"{claims.waits(pieces)} while the host {does} between launches",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} the launching thread was in Python, "
        f"between ops and runtime calls, and the {claims.gpu} had nothing left to do.",
        fixes=() if features.data_parallel else None,
        advice=claims.filled(DATA_PARALLEL)
        if features.data_parallel
        else advice_by_case("python", claims.gpu)["wait"]
        if asleep
        else advice_by_case("python", claims.gpu)["fix"] + layers + fuse,
    )
    return at_lines(claims, is_python, draft, ranges_or_cost(claims, pieces))


@Rule("cpu-ops", fixes=(("less-host cpu-ops",),)).on_claimed
def _cpu_ops(claims: Claims, pieces: ClaimedPieces) -> Draft:
    draft = Draft(
        title=f"{claims.waits(pieces)} while the host runs ops on the CPU",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} the launching thread was inside ops that "
        "launch nothing.",
        advice=fewer_threads(claims) + advice_by_case("cpu-ops", claims.gpu)["fix"],
    )
    return at_lines(claims, is_not_torch, draft, ranges_or_cost(claims, pieces))


# -- data-loading ------------------------------------------------------------------------------------


@Rule("data-loading", effort="option", fixes=(("faster-loader",),)).on_claimed
def _data_loading(claims: Claims, pieces: ClaimedPieces) -> Draft:
    loads = loading(claims.trace)
    alone = without_workers(loads)
    seen, advice = _with_workers(claims, alone) if len(alone) else _with_more_workers(claims, pieces)
    draft = Draft(
        title=f"{claims.waits(pieces)} for the DataLoader",
        detail=f"In {claims.times_a_step(pieces.gaps, 'gap')} the launching thread was inside the "
        f"DataLoader's next(), and the {claims.gpu} had nothing left to do.{seen * bool(len(loads))}",
        afterword=kinds_of_loading(claims),
        advice=f"{advice} Fetch the next batch before the host waits for this step's result.",
    )
    return at_lines(claims, is_loading, draft, ranges_or_cost(claims, pieces))


def _with_workers(claims: Claims, loads: HostEvents) -> tuple[str, str]:
    """Return what shows that the loader has no workers, and the advice to use as many as keep up with the GPU."""
    cpus = claims.trace.host_activity.facts.whole_cpus
    loaded_ns = int(covered(union(loads.start_ns, loads.end_ns), claims.windows.starts, claims.windows.ends).sum())
    busy_ns = claims.judged_ns - claims.buckets.idle_ns
    enough = max(1, -(-loaded_ns // max(1, busy_ns)))
    workers = f"DataLoader(num_workers={enough if cpus is None else min(enough, cpus)})"
    limit = ", or one for each CPU if there are fewer" if cpus is None and enough > 1 else ""
    ops = claims.device.timeline.ops
    pageable = ((ops.kind == Kind.H2D) & (ops.source_kind == Memory.PAGEABLE)).any()
    pin = " and pin_memory=True" if pageable else ""
    return (
        " The loader has no workers, so the launching thread makes the samples itself: that takes "
        f"{claims.time_a_step(loaded_ns)}, and the {claims.gpu} is busy for {claims.time(busy_ns)}.",
        f"Let worker processes make the batches: {workers}{limit}.\nAlso set persistent_workers=True{pin}.",
    )


def _with_more_workers(claims: Claims, pieces: ClaimedPieces) -> tuple[str, str]:
    """Return how many times as many workers keep up with the GPU, and the advice on workers."""
    advice, pace_ns = advice_by_case("data-loading", claims.gpu)["more-workers"], claims.judged_ns - pieces.time_ns
    if pace_ns <= 0:
        return "", advice
    times = -(-10 * claims.judged_ns // pace_ns) / 10
    return f" About {times:.1f} times as many workers would keep up, if each has a CPU.", advice


# -- Launches ----------------------------------------------------------------------------------------

_FUSED: Final = frozenset({"Adagrad", "Adam", "AdamW", "SGD"})
"""Optimizers of torch that take `fused=True` on a GPU."""
_HOW: Final = {
    "fused": re.compile(r"_fused_|Fused\w*(Adam|Sgd|Adagrad|Optimizer)"),
    "foreach": re.compile("_foreach_|multi_tensor_apply"),
}
"""Names of ops and kernels of fused optimizers, and of those that update many parameters at once."""
_MODULE: Final = re.compile(r"nn\.Module: (.+?)(_\d+)?")
_MIN_SHARE = 0.03
"""Minimum share of the launches for an owner to be named."""
_WORTH_SAYING = 0.1
"""Minimum share of the largest owner for any to be named."""
_MAX_NAMED_OWNERS = 2
_SLOW_LAUNCH_NS = 1_000_000
"""Minimum time of an op for each of its launches, which take microseconds, for it to do something else besides."""


class Owner(Struct, frozen=True):
    """Origin of launches in the judged windows."""

    words: str
    calls: I64
    """Rows of its launches in `Trace.runtime_calls`."""
    optimizer: str = ""
    """Class of the optimizer whose step it is."""
    zero_grad: bool = False
    how: str = ""
    """`fused` or `foreach` for an optimizer with such kernels or ops."""
    can_be_fused: bool = False
    """True for an optimizer of torch on a GPU that isn't fused."""


@kept()
def launches(claims: Claims) -> I64:
    """Return the rows of the runtime calls that launch ops in the judged windows, each once."""
    ops = claims.device.timeline.ops
    launch = ops.launch[claims.ran(np.arange(len(ops)))]
    return distinct(launch[launch >= 0])


@kept()
def owners(claims: Claims) -> list[Owner]:
    """Return what makes at least `_MIN_SHARE` of the launches, each launch once, the most first."""
    rows = launches(claims)
    found, left = list[Owner](), np.ones(len(rows), np.bool_)
    for owner in _owners(claims.trace, rows):
        mine = owner.calls[left[owner.calls]]
        if len(mine) >= max(1, _MIN_SHARE * len(rows)):
            how = _how(claims.trace, rows[mine]) if owner.optimizer else ""
            can_be_fused = claims.gpu == GPU and owner.optimizer in _FUSED and how != "fused"
            found.append(replace(owner, calls=rows[mine], how=how, can_be_fused=can_be_fused))
        left[mine] = False
    return sorted(found, key=lambda owner: (-len(owner.calls), owner.words))


def who_launches(claims: Claims, rows: I64, by: Sequence[Owner]) -> str:
    """Return who makes launches, such as `612 of 1,480 launches a step come from AdamW.step()`; empty if unknown."""
    if not by or len(by[0].calls) < _WORTH_SAYING * len(rows):
        return ""
    steps, named = max(1, claims.steps), by[:_MAX_NAMED_OWNERS]
    counts = [each(len(owner.calls), steps) for owner in named]
    counts[0] += f" of {claims.times_a_step(len(rows), 'launch')} come"
    parts = [f"{count} from {owner.words}{_fusion(owner)}" for count, owner in zip(counts, named, strict=True)]
    if len(parts) > 1 and _fusion(named[-2]):
        parts[-2] += ","
    return listed(parts)


def _fusion(owner: Owner) -> str:
    if not owner.can_be_fused:
        return ""
    return ", which uses foreach and isn't fused" if owner.how else ", which isn't fused"


def _owners(trace: Trace, rows: I64) -> Iterator[Owner]:
    """Yield what makes launches, with their places in `rows`; of several owners of a launch, the first counts."""
    calls, ops, notes = trace.runtime_calls, trace.cpu_ops, trace.annotations
    thread, at = calls.thread[rows], calls.start_ns[rows]

    def inside(events: HostEvents, judge: Callable[[str], bool]) -> Bool:
        return outermost_around(events.take(events.named(judge)), thread, at) >= 0

    for prefix in (OPTIMIZER_STEP, OPTIMIZER_ZERO_GRAD):
        for text in sorted(text for text in {*trace.names} if text.startswith(prefix)):
            method, steps = text.removeprefix(prefix), prefix == OPTIMIZER_STEP
            within = inside(notes, text.__eq__) | inside(ops, text.__eq__)
            optimizer = method.partition(".")[0] if steps else ""
            yield Owner(name(f"{method}()"), np.flatnonzero(within), optimizer, zero_grad=not steps)
    yield Owner("DistributedDataParallel's reducer", np.flatnonzero(inside(ops, op_names.is_reducer)))
    backward = among(thread, backward_threads(trace)) & inside(ops, op_names.is_engine)
    yield Owner("the backward pass", np.flatnonzero(backward))
    frames = trace.python_frames
    modules = frames.take(frames.named(lambda frame: _MODULE.fullmatch(frame) is not None))
    for table in (notes.take(~is_step(notes)), modules):
        events = table
        outer = pick(events.name_id, outermost_around(events, thread, at))
        while len(outer) and outer[0] >= 0 and (outer == outer[0]).all():
            # A range around every launch tells nothing.
            events = events.take(events.name_id != outer[0])
            outer = pick(events.name_id, outermost_around(events, thread, at))
        for id, places in rows_by(outer):
            if id >= 0:
                module = _MODULE.fullmatch(trace.names[id])
                yield Owner(name(f"{module[1]}.forward()" if module else trace.names[id]), places)


def _how(trace: Trace, rows: I64) -> str:
    """Return `fused` or `foreach` if ops or kernels of that kind show that the optimizer is."""
    ops, gpu_ops, inside = trace.cpu_ops, trace.gpu_ops, op_of(trace, rows)
    ids = np.concatenate([ops.name_id[inside[inside >= 0]], gpu_ops.name_id[among(gpu_ops.launch, rows)]])
    names = [trace.names[id] for id in distinct(ids.astype(np.int64)).tolist()]
    return next((how for how, pattern in _HOW.items() if any(map(pattern.search, names))), "")


# -- dispatch ----------------------------------------------------------------------------------------


@Rule("dispatch", effort="line", fixes=(("graph",), ("fused",))).on_claimed
def _dispatch(claims: Claims, pieces: ClaimedPieces) -> Draft:
    ops = claims.device.timeline.ops
    kernels = claims.ran(np.flatnonzero(ops.kind == Kind.COMPUTE))
    lengths = ops.end_ns[kernels] - ops.start_ns[kernels]
    typical = f"; their median duration is {duration(int(np.median(lengths)))}" if len(lengths) else ""
    launch_rows = launches(claims)
    of_graphs = call_kinds.launches_graph(claims.trace.runtime_calls)[launch_rows]
    by, outside = owners(claims), launch_rows[~of_graphs]
    who = who_launches(claims, launch_rows, by)
    remark, more = f": {who}" if who else "", ""
    if len(outside) < len(launch_rows):
        count = each(len(outside), max(1, claims.steps))
        remark = (
            f", {count} of {claims.times_a_step(len(launch_rows), 'launch')}{claims.filled(' outside the {graph}s')}"
        )
        more = f" {who[0].upper()}{who[1:]}." if who else ""
        more += _without_graphs(claims, launch_rows, launch_rows[of_graphs])
    case, fixes = _case(claims, pieces, by, launch_rows, launch_rows[of_graphs])
    subject = fusible = listed(owner.optimizer for owner in by if owner.can_be_fused)
    if (slow := _slow_op(claims, pieces, launch_rows)) is not None:
        subject, times, time_ns = slow
        case, fixes = "slow-op", ()
        remark = f": {claims.time(time_ns)} in {claims.times_a_step(times, 'call')} of {subject}"
    advice = claims.filled(DATA_PARALLEL) if case == "data-parallel" else advice_by_case("dispatch", claims.gpu)[case]
    if case in ("fuse", "slow-op"):
        advice = advice.format(subject)
    elif case == "compile" and fusible:
        advice += f" Pass fused=True to {fusible}."
    draft = Draft(
        title=f"{claims.waits(pieces)} while the host launches",
        remark=remark,
        afterword=more,
        fixes=fixes,
        for_all=case in ("inside-graphs", "outside-graphs"),
        nameless="between nodes of the backward pass" if len(backward_threads(claims.trace)) else "between launches",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} the launching thread was inside launch "
        f"calls and the ops that make them. {claims.times(len(kernels), 'compute kernel')} ran{typical}."
        f"{stacks_cost(claims)}",
        advice=advice,
    )
    return at_lines(claims, is_torch, draft)


def _slow_op(claims: Claims, pieces: ClaimedPieces, launch_rows: I64) -> tuple[str, int, int] | None:
    """Return the op in which most of the time passes if its launches take far too long: its name, calls and time.

    Some libraries plan anew for each new shape.
    """
    ops, inside = claims.trace.cpu_ops, op_of(claims.trace, launch_rows)
    rows, count = np.unique(inside[inside >= 0], return_counts=True)
    rows = rows[ops.end_ns[rows] - ops.start_ns[rows] >= _SLOW_LAUNCH_NS * count]
    host = union(pieces.at_ns, pieces.at_ns + pieces.length_ns)
    time_ns = covered(host, ops.start_ns[rows], ops.end_ns[rows])
    for id, alike in rows_by(ops.name_id[rows]):
        if 2 * int(time_ns[alike].sum()) > pieces.time_ns:
            return name(op_words(claims.trace.names[id])), len(alike), int(time_ns[alike].sum())
    return None


def _without_graphs(claims: Claims, launch_rows: I64, of_graphs: I64) -> str:
    """Return which of the judged steps of a server launch no CUDA graph, as a sentence; empty if all or none do."""
    notes, per_step = claims.trace.annotations, claims.device.result.per_step
    marks = notes.take(is_step(notes))
    batches = {number: batch for number in range(len(marks)) if (batch := batch_in(marks.name(number)))}

    def requests(rows: I64) -> dict[int, int | None]:
        """Return the steps of the judged phase that make some launches, and their numbers of requests."""
        step = np.searchsorted(marks.start_ns, claims.trace.runtime_calls.start_ns[rows], side="right") - 1
        found = {number: batches[number] for number in distinct(step).tolist() if number in batches}
        return {n: batch.requests for n, batch in found.items() if per_step and batch.phase == per_step.phase}

    all_requests, graphs = requests(launch_rows), requests(of_graphs)
    without = {each for number, each in all_requests.items() if number not in graphs}
    if not graphs or not without:
        return ""
    alike = None in without or without & {*graphs.values()}
    which = "" if alike else f": those of {listed(map(str, sorted(filter(None, without))))} requests"
    return claims.filled(f" {len(all_requests) - len(graphs)} of {len(all_requests)} steps launch no {{graph}}{which}.")


def _case(
    claims: Claims, pieces: ClaimedPieces, by: Sequence[Owner], launch_rows: I64, graphs: I64
) -> tuple[str, Fixes | None]:
    """Return the case of advice that the program doesn't follow yet, and its fixes; None for the rule's."""
    features, ops = features_of(claims.trace), claims.device.timeline.ops
    fusible = [owner for owner in by if owner.can_be_fused]
    ends = claims.device.timeline.idle.ends[pieces.gap]

    def are_most(calls: Iterable[I64]) -> bool:
        """Return whether these are most of the launches, or most of the idle time ends with ops that they launch."""
        rows = np.concatenate([launch_rows[:0], *calls])
        awaited = among(ends, ops.start_ns[among(ops.launch, rows)])
        return 2 * len(rows) > len(launch_rows) or 2 * int(pieces.length_ns[awaited].sum()) > pieces.time_ns

    if claims.gpu != GPU:
        # The catalog has the advice, and no replay is of fewer kernels.
        return "compile", ()
    if features.data_parallel:
        return "data-parallel", ()
    if are_most(owner.calls for owner in fusible):
        return "fuse", (("fused",),)
    if are_most(owner.calls for owner in by if owner.zero_grad):
        return "zero-grad", ()
    if are_most([graphs]):
        return "inside-graphs", ()
    if len(graphs):
        return "outside-graphs", (("graph",),)
    return "compiled" if features.compiled else "compile", None if fusible and not features.compiled else (("graph",),)


# -- Pauses of the launching thread ------------------------------------------------------------------

_Draft = Callable[[Claims, ClaimedPieces], Draft]


def _pause(cause: IdleCause, *, effort: Effort, fix: str) -> Callable[[_Draft], Rule]:
    """Decorate the draft of a cause's finding. It also states the whole time that the launching thread loses to it."""

    def rule_of(draft: _Draft) -> Rule:
        def completed(claims: Claims, pieces: ClaimedPieces) -> Draft:
            begun = draft(claims, pieces)
            return replace(begun, afterword=f"{host_time(claims, pieces, cause)}{begun.afterword}")

        return Rule(cause, effort=effort, fixes=((fix,),)).on_claimed(completed)

    return rule_of


@_pause(IdleCause.GC_PAUSE, effort="line", fix="no-gc")
def _gc_pause(claims: Claims, pieces: ClaimedPieces) -> Draft:
    called = around(called_collections(claims.trace), pieces.thread, pieces.at_ns) >= 0
    by_program = 2 * int(pieces.length_ns[called].sum()) > pieces.time_ns
    return Draft(
        title=f"{claims.waits(pieces)} for Python's garbage collector",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} a collection held the launching thread."
        f"{' The program calls gc.collect().' * by_program}",
        afterword=sampled_lines(claims),
        case="called" if by_program else "fix",
    )


@_pause(IdleCause.GIL_WAIT, effort="restructuring", fix="less-host gil-wait")
def _gil_wait(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        title=f"{claims.waits(pieces)} while another thread holds Python's lock",
        detail="Samples of the program without the profiler show the launching thread waiting for the global "
        "interpreter lock.",
        afterword=f"{other_threads(claims)}{sampled_lines(claims)}",
        advice=claims.filled(DATA_PARALLEL) if features_of(claims.trace).data_parallel else "",
    )


@_pause(IdleCause.FILE_IO, effort="line", fix="less-host file-io")
def _file_io(claims: Claims, pieces: ClaimedPieces) -> Draft:
    files = claims.trace.host_activity.files
    named = sorted(files, key=lambda file: (-files[file], file))
    most = f", most on {listed(map(name, named), 3)}" if named else ""
    draft = Draft(
        title=f"{claims.waits(pieces)} while the host reads or writes files",
        detail=f"Samples of the program without the profiler show the launching thread in calls on files{most}.",
    )
    return at_lines(claims, is_not_torch, draft, ranges_or_cost(claims, pieces))


@_pause(IdleCause.PREEMPTED, effort="option", fix="less-host preempted")
def _preempted(claims: Claims, pieces: ClaimedPieces) -> Draft:
    activity = claims.trace.host_activity
    cpus, threads = activity.facts.usable_cpus, activity.facts.torch_threads
    beside = "" if threads is None else f", and torch uses {plural(threads, 'thread')}"
    has = "" if cpus is None else f". It may use {plural(cpus, 'CPU')}{beside}"
    others = activity.facts.beside_others
    by = " Meanwhile, other processes ran more than the program's other threads did." if others else ""
    advice = advice_by_case("preempted", claims.gpu)["fix"]
    return Draft(
        title=f"{claims.waits(pieces)} while the launching thread has no CPU",
        detail=f"The system kept the launching thread waiting for a CPU{has}.{by}",
        advice=advice if others else fewer_threads(claims) + advice,
    )


@_pause(IdleCause.CPU_THROTTLED, effort="option", fix="less-host cpu-throttled")
def _cpu_throttled(claims: Claims, pieces: ClaimedPieces) -> Draft:
    quota = claims.trace.host_activity.facts.quota_cpus
    used_up = "" if quota is None else f", because it had used up its quota of {quota:g} CPUs"
    return Draft(
        title=f"{claims.waits(pieces)} while the CPU quota is used up",
        detail=f"The control group stopped the program{used_up}.",
    )
