"""Rules: the GPU waits while the launching thread waits for it, or is held up by Python or by the system."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host import around, outermost_around
from overlapscope.analysis.host_sampled import beside_others
from overlapscope.analysis.host_work import called_collections
from overlapscope.base.columns import pick
from overlapscope.base.words import listed, plural
from overlapscope.catalog.causes import IdleCause
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import (
    at_lines,
    fewer_threads,
    host_time,
    is_not_torch,
    other_threads,
    ranges_or_cost,
    sampled_lines,
)
from overlapscope.rules._program import DATA_PARALLEL, features_of
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.finding import Effort, Where
from overlapscope.rules.rule import Draft, Rule, lost, name
from overlapscope.trace.op_names import op_words

# -- host-sync ---------------------------------------------------------------------------------------

_SYNCHRONIZES = {
    "cudaDeviceSynchronize": "torch.{cuda}.synchronize()",
    "cudaStreamSynchronize": "torch.{cuda}.Stream.synchronize()",
}
_OUTER = {
    "aten::copy_": "copy_()",
    "aten::index": "tensor[mask]",
    "aten::index_put_": "tensor[mask] = value",
    "aten::to": ".cpu() or .to()",
}
"""Source code for the outermost op around a wait."""
_SHAPED = frozenset({"aten::nonzero", "aten::masked_select", "aten::unique", "aten::_unique2", "aten::index"})


def _advice(claims: Claims, where: Where | None) -> str:
    """Return what to change at the costliest place."""
    cases = advice_by_case("host-sync", claims.gpu)
    op, call = (where.op or "", where.call or "") if where is not None else ("", "")
    if op_words(op) in (".item()", "if tensor:"):
        return cases["item"]
    if op in _SHAPED:
        return cases["shape"].format(op=op.removeprefix("aten::"))
    if op in ("aten::copy_", "aten::_to_copy", "aten::to"):
        return cases["download"]
    # Without ops in the recording, any of them may have made the call.
    written = "" if op or not len(claims.trace.cpu_ops) else claims.filled(_SYNCHRONIZES.get(call, ""))
    return cases["synchronize"].format(call=written) if written else cases["other"]


def _outermost(claims: Claims, pieces: ClaimedPieces, where: Where | None) -> str:
    """Return source code for the outermost op around the longest wait of a place; empty if unknown."""
    ops = claims.trace.cpu_ops
    inner = around(ops, pieces.thread, pieces.at_ns)
    here = pick(ops.named(lambda op: where is not None and op == where.op), inner, False)
    if not here.any():
        return ""
    longest = np.argmax(np.where(here, pieces.length_ns, -1)).reshape(1)
    (outer,) = outermost_around(ops, pieces.thread[longest], pieces.at_ns[longest]).tolist()
    return _OUTER.get(ops.name(outer), "")


@Rule("host-sync", effort="line", fixes=(("no-sync {call}",),)).on_claimed
def _host_sync(claims: Claims, pieces: ClaimedPieces) -> Draft:
    places = claims.places(pieces)
    where = places[0].where if places else None
    text = "" if where is None else where.op or where.call or ""
    if claims.trace.framework == "pytorch":
        text = _outermost(claims, pieces, where) or op_words(text)
    place = f" in {name(text)}" if text else ""
    return Draft(
        title=f"The host waits for the {claims.gpu}{place}, which costs {claims.time_a_step(pieces.time_ns)}",
        detail="The host waited in a blocking call and launched the next work only after the call returned. "
        f"Because of that, {lost(claims, pieces)}.",
        advice=_advice(claims, where),
    )


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
    others = beside_others(activity)
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
