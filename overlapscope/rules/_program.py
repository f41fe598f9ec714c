"""What a program uses, so that no advice names them again."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from overlapscope.analysis.periods import phases_of
from overlapscope.base.columns import I64, pick
from overlapscope.base.grouping import among
from overlapscope.base.kept import kept
from overlapscope.rules._claims import Claims
from overlapscope.trace import op_names
from overlapscope.trace.host import op_of, outermost_around
from overlapscope.trace.model import Kind, Trace

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
    copying = op_of(claims.trace, launch)
    outer = outermost_around(cpu_ops, calls.thread[launch], calls.start_ns[launch])
    nested = pick(cpu_ops.named("aten::copy_".__eq__), copying, False)
    node = nested & pick(cpu_ops.named(lambda name: op_names.is_engine(name) and "Copy" not in name), outer, False)
    computes = nested & pick(cpu_ops.named(lambda name: op_names.works(name) and "cop" not in name), outer, False)
    upload = ops.kind[rows] == Kind.H2D
    stored, loaded = rows[~upload & computes], rows[upload & node]
    # Either alone may be something else.
    both = len(stored) and len(loaded)
    return bool(both) and 2 * int(among(copies, np.append(stored, loaded)).sum()) > len(copies)
