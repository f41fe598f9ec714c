"""Collectives and messages between processes: the memory that they use, and the stream on which they run.

`ProcessGroupNCCL::collective` (ProcessGroupNCCL.cpp, torch 2.8 to 2.13) runs a synchronous collective on the current
stream. For an asynchronous one, a stream of the communicator waits for an event recorded on the current stream. After
the launch, another event is recorded there, for which `Work.wait` makes the current stream wait. `pointToPoint` and
`collectiveCoalesced` do the same. Between `_start_coalescing` and `_end_coalescing`, the second event is recorded at
the end. Torch reports these events, so the stream that waits during the call is that of the collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from overlapscope.plugins.hazards.operators import Arguments, UsedArgument, tensors, uses_no_data
from overlapscope.plugins.hazards.sync_events import SyncEvent

_C10D, _FUNCTIONAL = "c10d", ("_c10d_functional", "_c10d_functional_autograd")
_ORDINARY = frozenset(f"c10d::{name}" for name in ("barrier", "monitored_barrier_", "check_for_nan"))
"""Operators that run on the current stream, or use no tensor."""
_WRITTEN = {
    "allreduce_": "tensors",
    "allreduce_coalesced_": "tensors",
    "allgather_": "output_tensors",
    "_allgather_base_": "output_tensor",
    "allgather_coalesced_": "output_lists",
    "allgather_into_tensor_coalesced_": "outputs",
    "reduce_scatter_": "output_tensors",
    "_reduce_scatter_base_": "output_tensor",
    "reduce_scatter_tensor_coalesced_": "outputs",
    "gather_": "output_tensors",
    "scatter_": "output_tensors",
    "alltoall_": "output_tensors",
    "alltoall_base_": "output",
    "broadcast_": "tensors",
    "reduce_": "tensors",
    "send": "",
    "recv_": "tensors",
    "recv_any_source_": "tensors",
}
"""Argument that each operator of `c10d` writes, unless `_only_reads`. It reads the others. Schemas don't say so."""
_SCHEMA_TELLS = frozenset(
    (
        *("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "broadcast", "broadcast_"),
        *("all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced"),
        *("reduce_scatter_tensor", "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced"),
        "all_to_all_single",
    )
)
"""Functional operators, which read their inputs and write the tensors that they return or that their schema names."""
_CLONED = frozenset(("all_reduce", "all_reduce_coalesced", "broadcast"))
"""Functional operators that clone their inputs on the current stream, and communicate in the clone."""
_FLATTENED = frozenset(("c10d::allgather_", "c10d::reduce_scatter_"))
"""Operators that copy tensors that aren't contiguous."""


@cache
def is_collective(operator: OpOverload) -> bool:
    """Return whether an operator communicates, so that it may run on another stream than the current one."""
    namespace, name = operator.namespace, operator._schema.name
    return (namespace == _C10D and name not in _ORDINARY) or (namespace in _FUNCTIONAL and not uses_no_data(name))


@cache
def collective_arguments(operator: OpOverload) -> Arguments | None:
    """Return the arguments whose data a collective uses; None if it isn't one of those known here."""
    name, schema = _short_name(operator), operator._schema
    of_tensors = [(at, given) for at, given in enumerate(schema.arguments) if "Tensor" in str(given.type)]
    if operator.namespace == _C10D and name in _WRITTEN:
        used = [UsedArgument(at, argument.name, argument.name == _WRITTEN[name]) for at, argument in of_tensors]
        return Arguments(tuple(used), writes_output=False)
    if operator.namespace in _FUNCTIONAL and name in _SCHEMA_TELLS:
        used = [UsedArgument(at, argument.name, argument.alias_info is not None) for at, argument in of_tensors]
        return Arguments(tuple(used), writes_output=all(output.alias_info is None for output in schema.returns))
    return None


def clones_inputs(operator: OpOverload) -> bool:
    """Return whether a collective's inputs are read on the current stream."""
    return operator.namespace in _FUNCTIONAL and _short_name(operator) in _CLONED


def tensors_used(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[torch.Tensor, bool]]:
    """Yield the tensors that a collective uses, and whether it writes them. Those that it returns come later."""
    known, writes = collective_arguments(operator), not _only_reads(operator, args, kwargs)
    for used in known.used if known is not None else ():
        for tensor in tensors(used.value(args, kwargs)):
            if tensor.is_contiguous() or operator._schema.name not in _FLATTENED:
                yield tensor, used.written and writes


def tensors_returned(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Iterator[torch.Tensor]:
    """Yield the new tensors that a collective writes and returns."""
    known = collective_arguments(operator)
    if known is not None and known.writes_output and not _only_reads(operator, args, kwargs):
        yield from tensors(result)


def _only_reads(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether this process writes no tensor, because of the root's rank; True if that rank is unknown.

    The root of a broadcast only sends, as do all but the root of a reduction. Both send in place.
    """
    name = _short_name(operator)
    if name not in ("broadcast_", "broadcast", "reduce_"):
        return False
    names = [argument.name for argument in operator._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    rank = _own_rank(next((given[key] for key in ("process_group", "group_name", "group") if key in given), None))
    root = given.get("root_rank", given.get("src"))
    return rank is None or (rank != root if name == "reduce_" else rank == root)


def is_asynchronous(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a collective may outlast its call on the current stream."""
    for position, argument in enumerate(operator._schema.arguments):
        if argument.name == "async_op":
            return bool(args[position] if position < len(args) else kwargs.get("async_op", True))
    return True


def stream_of(events: Sequence[SyncEvent], current: int, *, asynchronous: bool) -> int | None:
    """Return the stream on which a collective runs, from the events during its call; None if unknown.

    Another stream than the current one waits for an event that was just recorded on the current stream. Streams of a
    future's callbacks wait for other events. Gloo uses a stream for each tensor, so its streams are unknown.
    """
    recorded = {event.values[0] for event in events if event.name == "event_record" and event.values[1] == current}
    waits = [event.values for event in events if event.name == "event_wait"]
    others = {stream for event, stream in waits if stream != current and event in recorded}
    if len(others) == 1:
        return others.pop()
    return current if not others and (waits or not asynchronous) else None


def launch_index(events: Sequence[SyncEvent], stream: int) -> int:
    """Return the index of the first event after the launch, which is the first recorded on its stream."""
    records = (at for at, event in enumerate(events) if event.name == "event_record" and event.values[1] == stream)
    return next(records, len(events))


def _short_name(operator: OpOverload) -> str:
    name: str = operator._schema.name
    return name.rpartition("::")[2]


def _own_rank(group: Any) -> int | None:
    """Return this process's rank in a group that is given as object or by name."""
    c10d: Any = torch._C._distributed_c10d
    try:
        if isinstance(group, str):
            group = c10d._resolve_process_group(group)
        return int((group if isinstance(group, c10d.ProcessGroup) else c10d.ProcessGroup.unbox(group)).rank())
    except Exception:  # It is whatever the program passes.
        return None
