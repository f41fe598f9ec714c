"""Launches by what makes them: optimizers, the backward pass, ranges of the program, modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.host import around, inside_any, outermost_around
from overlapscope.analysis.host_work import backward_threads
from overlapscope.analysis.periods import is_step
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct, rows_by
from overlapscope.base.intervals import I64, Bool, cut
from overlapscope.base.kept import kept
from overlapscope.base.texts import GPU
from overlapscope.base.words import each, listed
from overlapscope.rules._claims import Claims
from overlapscope.rules.rule import name
from overlapscope.trace import op_names
from overlapscope.trace.model import HostEvents, Trace
from overlapscope.trace.op_names import OPTIMIZER_STEP, OPTIMIZER_ZERO_GRAD

_FUSED: Final = frozenset({"Adagrad", "Adam", "AdamW", "SGD"})
"""Optimizers of torch that take `fused=True` on a GPU."""
_HOW: Final = {
    "fused": re.compile(r"_fused_|Fused\w*(Adam|Sgd|Adagrad|Optimizer)"),
    "foreach": re.compile("_foreach_|multi_tensor_apply"),
}
"""Names of ops and kernels of fused optimizers, and of those that update many parameters at once."""
_MODULE: Final = re.compile(r"nn\.Module: (.+?)(_\d+)?")
_LEAST_SHARE = 0.03
"""Minimum share of the launches for an owner to be named."""
_WORTH_SAYING = 0.1
"""Minimum share of the largest owner for any to be named."""
_MOST = 2


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
    row, _, _ = cut(ops.start_ns, ops.end_ns, claims.windows)
    launch = ops.launch[distinct(row)]
    return distinct(launch[launch >= 0])


def outside_graphs(claims: Claims, rows: I64) -> I64:
    """Return the launches that launch no CUDA graph."""
    return rows[~call_kinds.named(claims.trace.runtime_calls, call_kinds.GRAPH_LAUNCH)[rows]]


@kept()
def owners(claims: Claims) -> list[Owner]:
    """Return what makes at least `_LEAST_SHARE` of the launches, each launch once, the most first."""
    rows = launches(claims)
    found, left = list[Owner](), np.ones(len(rows), np.bool_)
    for words, optimizer, zero_grad, candidates in _owners(claims.trace, rows):
        mine = candidates[left[candidates]]
        if len(mine) >= max(1, _LEAST_SHARE * len(rows)):
            how = _how(claims.trace, rows[mine]) if optimizer else ""
            can_be_fused = claims.gpu == GPU and optimizer in _FUSED and how != "fused"
            found.append(Owner(words, rows[mine], optimizer, zero_grad, how, can_be_fused))
        left[mine] = False
    return sorted(found, key=lambda owner: (-len(owner.calls), owner.words))


def who_launches(claims: Claims, rows: I64, by: Sequence[Owner]) -> str:
    """Return who makes launches, such as `612 of 1,480 launches a step come from AdamW.step()`; empty if unknown."""
    if not by or len(by[0].calls) < _WORTH_SAYING * len(rows):
        return ""
    steps, named = max(1, claims.steps), by[:_MOST]
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


def _owners(trace: Trace, rows: I64) -> Iterator[tuple[str, str, bool, I64]]:
    """Yield words, optimizer and launches of what makes launches; of several owners of a launch, the first counts.

    Yields:
        The words, the class of an optimizer's step, whether it is a `zero_grad`, and the places of launches in `rows`.
    """
    calls, ops, notes = trace.runtime_calls, trace.cpu_ops, trace.annotations
    thread, at = calls.thread[rows], calls.start_ns[rows]

    def inside(events: HostEvents, judge: Callable[[str], bool]) -> Bool:
        return inside_any(events.take(events.named(judge)), thread, at)

    for prefix in (OPTIMIZER_STEP, OPTIMIZER_ZERO_GRAD):
        for text in sorted(text for text in {*trace.names} if text.startswith(prefix)):
            method, steps = text.removeprefix(prefix), prefix == OPTIMIZER_STEP
            within = inside(notes, text.__eq__) | inside(ops, text.__eq__)
            yield name(f"{method}()"), method.partition(".")[0] if steps else "", not steps, np.flatnonzero(within)
    yield "DistributedDataParallel's reducer", "", False, np.flatnonzero(inside(ops, op_names.is_reducer))
    backward = among(thread, backward_threads(trace)) & inside(ops, op_names.is_engine)
    yield "the backward pass", "", False, np.flatnonzero(backward)
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
                yield name(f"{module[1]}.forward()" if module else trace.names[id]), "", False, places


def _how(trace: Trace, rows: I64) -> str:
    """Return `fused` or `foreach` if ops or kernels of that kind show that the optimizer is."""
    calls, ops, gpu_ops = trace.runtime_calls, trace.cpu_ops, trace.gpu_ops
    inside = around(ops, calls.thread[rows], calls.start_ns[rows])
    ids = np.concatenate([ops.name_id[inside[inside >= 0]], gpu_ops.name_id[among(gpu_ops.launch, rows)]])
    names = [trace.names[id] for id in distinct(ids.astype(np.int64)).tolist()]
    return next((how for how, pattern in _HOW.items() if any(map(pattern.search, names))), "")
