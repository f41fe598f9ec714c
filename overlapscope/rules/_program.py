"""Features that a program uses, so that no advice names them again, and the owners of its launches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.host import around, outermost_around
from overlapscope.analysis.host_work import backward_threads
from overlapscope.analysis.periods import is_step, phases_of
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.base.kept import kept
from overlapscope.base.words import GPU, each, listed
from overlapscope.rules._claims import Claims
from overlapscope.rules.rule import name
from overlapscope.trace import op_names
from overlapscope.trace.model import HostEvents, Kind, Trace
from overlapscope.trace.op_names import OPTIMIZER_STEP, OPTIMIZER_ZERO_GRAD

_COMPILED: Final = re.compile(
    r"Torch-Compiled Region|CompiledFxGraph|TorchDynamo Cache Lookup|CompiledFunction(Backward)?$"
    r"|triton_(poi|per|red|tem|for|mm)_"
)
_DATA_PARALLEL: Final = re.compile(r"DataParallel\.forward$|.*torch/nn/parallel/data_parallel\.py\(")
_REPLICATION: Final = frozenset({"Broadcast", "Gather", "ReduceAddCoalesced", "Scatter"})
"""Autograd functions with which DataParallel hands tensors to its devices and collects them. Programs may use the names
for other things, but hardly two of them."""
_DDP: Final = re.compile(r"DistributedDataParallel\.forward")
_FSDP: Final = re.compile(r"FSDP::|FullyShardedDataParallel\.forward")

DATA_PARALLEL: Final = (
    "Use DistributedDataParallel instead of DataParallel: one process for each {gpu}.\n"
    "In every step DataParallel copies the model to all {gpu}s, and its threads take turns at Python's lock. Start the "
    "program with torchrun, and give each process its part of the data (DistributedSampler)."
)
"""Advice for programs with DataParallel."""

SAVE_LESS: Final = (
    "Save less on the host: only large tensors, or copy them on a stream of their own.\n"
    "Use saved_tensors_hooks that return weights and small tensors unchanged. To hide the other copies, store them on "
    "a side stream, and load each back before its node of the backward pass needs it. torch.utils.checkpoint "
    "recomputes tensors instead, and copies nothing."
)
"""Advice for copies of tensors that autograd saves on the host."""


class Features(Struct, frozen=True):
    """Features of a program, according to the names in its recording."""

    compiled: bool
    """True if it runs code of `torch.compile`."""
    data_parallel: bool
    """True if it uses `torch.nn.DataParallel`."""
    ddp: bool
    """True if it uses DistributedDataParallel, or may use it because no op of the host was recorded."""
    fsdp: bool
    """Like `ddp`, for FullyShardedDataParallel."""


@kept()
def features_of(trace: Trace) -> Features:
    """Return the features that a program uses."""

    def uses(pattern: re.Pattern[str]) -> bool:
        return any(pattern.match(name) for name in trace.names)

    unknown = not len(trace.cpu_ops) and not phases_of(trace)
    return Features(
        compiled=any(_COMPILED.search(name) for name in trace.names),
        data_parallel=uses(_DATA_PARALLEL) or len(_REPLICATION.intersection(trace.names)) > 1,
        ddp=unknown or uses(_DDP) or any(map(op_names.is_reducer, trace.names)),
        fsdp=unknown or uses(_FSDP),
    )


def are_saved_tensors(claims: Claims, copies: I64) -> bool:
    """Return whether most of the copies move tensors that autograd saves on the host (`save_on_cpu`).

    The hooks for it run inside the op that saves a tensor, and inside the node of the backward pass that needs it.
    """
    ops, calls, cpu_ops = claims.device.timeline.ops, claims.trace.runtime_calls, claims.trace.cpu_ops
    rows = np.flatnonzero(ops.is_copy & (ops.launch >= 0))
    launch = ops.launch[rows]
    copying = around(cpu_ops, calls.thread[launch], calls.start_ns[launch])
    outer = outermost_around(cpu_ops, calls.thread[launch], calls.start_ns[launch])
    nested = pick(cpu_ops.named("aten::copy_".__eq__), copying, False)
    node = nested & pick(cpu_ops.named(lambda name: op_names.is_engine(name) and "Copy" not in name), outer, False)
    computes = nested & pick(cpu_ops.named(lambda name: op_names.works(name) and "cop" not in name), outer, False)
    upload = ops.kind[rows] == Kind.H2D
    stored, loaded = rows[~upload & computes], rows[upload & node]
    # Either alone may be something else.
    both = len(stored) and len(loaded)
    return bool(both) and 2 * int(among(copies, np.append(stored, loaded)).sum()) > len(copies)


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
_MAX_NAMED_OPTIMIZERS = 2


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
        unclaimed = owner.calls[left[owner.calls]]
        if len(unclaimed) >= max(1, _MIN_SHARE * len(rows)):
            how = _how(claims.trace, rows[unclaimed]) if owner.optimizer else ""
            can_be_fused = claims.gpu == GPU and owner.optimizer in _FUSED and how != "fused"
            found.append(replace(owner, calls=rows[unclaimed], how=how, can_be_fused=can_be_fused))
        left[unclaimed] = False
    return sorted(found, key=lambda owner: (-len(owner.calls), owner.words))


def who_launches(claims: Claims, rows: I64, by: Sequence[Owner]) -> str:
    """Return who makes launches, such as `612 of 1,480 launches a step come from AdamW.step()`; empty if unknown."""
    if not by or len(by[0].calls) < _WORTH_SAYING * len(rows):
        return ""
    steps, named = max(1, claims.steps), by[:_MAX_NAMED_OPTIMIZERS]
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
    calls, ops, gpu_ops = trace.runtime_calls, trace.cpu_ops, trace.gpu_ops
    inside = around(ops, calls.thread[rows], calls.start_ns[rows])
    ids = np.concatenate([ops.name_id[inside[inside >= 0]], gpu_ops.name_id[among(gpu_ops.launch, rows)]])
    names = [trace.names[id] for id in distinct(ids.astype(np.int64)).tolist()]
    return next((how for how, pattern in _HOW.items() if any(map(pattern.search, names))), "")
