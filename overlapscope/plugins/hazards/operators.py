"""Memory that an operator uses, by its schema, copies between host and device, and communication between processes.

A copy uses host memory after its call has returned only if the memory is pinned and the copy is a single DMA of it.
All other uses of host memory end with the call (CUDA Runtime API, "API synchronization behavior"): the driver stages
pageable memory, and if layouts or types differ, torch copies through a pageable temporary
(`copy_kernel_cuda` in ATen/native/cuda/Copy.cu).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from overlapscope.plugins.hazards.bookkeeping import Touch, interval, strided
from overlapscope.plugins.hazards.sync_events import SyncEvent

_FACTORY = re.compile(r"aten::(new_\w+|\w+_like)")
"""Operators that use only the shape and type of their inputs."""
_EMPTY = re.compile(r"aten::(new_)?empty\w*")
"""Operators that do not write their output."""
_NO_DATA = frozenset(
    (
        *(f"aten::{name}" for name in ("record_stream", "is_pinned", "is_same_size", "_unsafe_view", "_version")),
        *(f"_c10d_functional::{name}" for name in ("wait_tensor", "_wrap_tensor_autograd")),
    )
)
"""Operators that use no data, unlike their schema."""


class UsedArgument(NamedTuple):
    """An argument of an operator whose data it reads or writes."""

    position: int
    name: str
    written: bool

    def value(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return its value in a call; None if the call has none."""
        return args[self.position] if self.position < len(args) else kwargs.get(self.name)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of an operator with tensors whose data it reads or writes."""

    used: tuple[UsedArgument, ...]
    writes_output: bool
    """True if it returns new tensors."""


@cache
def arguments(operator: OpOverload) -> Arguments:
    """Return the arguments whose data an operator uses. Views use none, as the aliases in their schema show."""
    schema = operator._schema
    if schema.name in _NO_DATA or torch.Tag.inplace_view in operator.tags:
        return Arguments((), writes_output=False)
    is_factory = _FACTORY.fullmatch(schema.name) is not None
    used = []
    for position, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        is_view = alias is not None and not alias.is_write
        if "Tensor" in str(argument.type) and not is_view and (alias is not None or not is_factory):
            used.append(UsedArgument(position, argument.name, alias is not None))
    returns_new = any(output.alias_info is None for output in schema.returns)
    return Arguments(tuple(used), writes_output=returns_new and _EMPTY.fullmatch(schema.name) is None)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in an argument or a result, also in nested lists."""
    if isinstance(value, torch.Tensor):
        if _has_memory(type(value)) and value.layout is torch.strided:
            yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


@cache
def _has_memory(kind: type[torch.Tensor]) -> bool:
    """Return false for subclasses that dispatch themselves: the tensors inside them are seen later."""
    return kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


def dispatches_itself(types: tuple[type, ...]) -> bool:
    """Return whether a type that took part in a dispatch is a subclass that dispatches itself."""
    return any(issubclass(kind, torch.Tensor) and not _has_memory(kind) for kind in types)


class Description:
    """A tensor's type and shape, which `str` formats when needed."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __str__(self) -> str:
        tensor = self._tensor
        host = " in pinned host memory" if tensor.device.type == "cpu" else ""
        return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{host}"


def touch(tensor: torch.Tensor) -> Touch | None:
    """Return the memory of a tensor's elements; None if it has none."""
    try:
        start = tensor.data_ptr()
    except RuntimeError:
        # Torch raises if the memory was freed, as for outputs of a CUDA graph that has been replayed since.
        return None
    count, item_bytes = tensor.numel(), tensor.element_size()
    if count == 0 or start == 0:
        return None
    region = (
        interval(start, count * item_bytes)
        if tensor.is_contiguous()
        else strided(start, tensor.shape, tensor.stride(), item_bytes)
    )
    return Touch(start - int(tensor.storage_offset()) * item_bytes, region, Description(tensor))


# -- Transfers ------------------------------------------------------------------------------------

_aten = torch.ops.aten
_COPY = frozenset({_aten.copy_.default, _aten._foreach_copy_.default})
_CONVERT = _aten._to_copy.default
READ_SCALAR = _aten._local_scalar_dense.default
"""Operator that returns a number to Python, and so waits for its stream."""


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """A copy between host and device."""

    host: torch.Tensor
    device: torch.Tensor
    to_host: bool
    non_blocking: bool

    @property
    def is_dma(self) -> bool:
        """True if the device reads or writes the host tensor's memory itself."""
        return _is_direct(self) and self.host.is_pinned()

    @property
    def ends_with_call(self) -> bool:
        """True if the call returns only once the copy is done, and launches nothing after it."""
        return not self.non_blocking and (self.to_host or self.device.is_contiguous() or _is_direct(self))


def made_by(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Transfer]:
    """Return the transfers of a call that has returned."""
    if operator in _COPY:
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        return list(_pairs(args[0], args[1], non_blocking))
    if operator is _CONVERT:
        return list(_pairs(result, args[0], bool(kwargs.get("non_blocking", False))))
    return []


def _pairs(targets: Any, sources: Any, non_blocking: bool) -> Iterator[Transfer]:
    for target, source in zip(tensors(targets), tensors(sources), strict=False):
        if source.is_cuda and target.device.type == "cpu":
            yield Transfer(target, source, True, non_blocking)
        elif target.is_cuda and source.device.type == "cpu":
            yield Transfer(source, target, False, non_blocking)


def _is_direct(transfer: Transfer) -> bool:
    """Return whether no temporary in host memory is between the two.

    Types are converted on the device if the copy does not block, and on the host if it does.
    """
    host, device = transfer.host, transfer.device
    same_type = host.dtype == device.dtype
    if host.numel() != device.numel() or not (same_type or transfer.non_blocking):
        return False
    if host.is_contiguous():
        return True
    extent = 1 + sum((size - 1) * stride for size, stride in zip(host.shape, host.stride(), strict=True))
    return same_type and host.stride() == device.stride() and extent == host.numel()


# -- Collectives and messages between processes --------------------------------------------------------
# `ProcessGroupNCCL::collective` (ProcessGroupNCCL.cpp, torch 2.8 to 2.13) runs a synchronous collective on the current
# stream. For an asynchronous one, a stream of the communicator waits for an event recorded on the current stream. After
# the launch, another event is recorded there, for which `Work.wait` makes the current stream wait. `pointToPoint` and
# `collectiveCoalesced` do the same. Between `_start_coalescing` and `_end_coalescing`, the second event is recorded at
# the end. Torch reports these events, so the stream that waits during the call is that of the collective.

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
    return (namespace == _C10D and name not in _ORDINARY) or (namespace in _FUNCTIONAL and name not in _NO_DATA)


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


def _known_arguments(operator: OpOverload) -> Arguments | None:
    return collective_arguments(operator) if is_collective(operator) else arguments(operator)


def clones_inputs(operator: OpOverload) -> bool:
    """Return whether a collective's inputs are read on the current stream."""
    return operator.namespace in _FUNCTIONAL and _short_name(operator) in _CLONED


def tensors_used(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[torch.Tensor, bool]]:
    """Yield the tensors that an operator uses, and whether it writes them. Those that it returns come later."""
    known, writes = _known_arguments(operator), not _only_reads(operator, args, kwargs)
    for used in known.used if known is not None else ():
        for tensor in tensors(used.value(args, kwargs)):
            if tensor.is_contiguous() or operator._schema.name not in _FLATTENED:
                yield tensor, used.written and writes


def tensors_returned(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Iterator[torch.Tensor]:
    """Yield the new tensors that an operator writes and returns."""
    known = _known_arguments(operator)
    if known is not None and known.writes_output and not _only_reads(operator, args, kwargs):
        yield from tensors(result)


def _only_reads(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether this process writes no tensor, because of the root's rank; True if that rank is unknown.

    The root of a broadcast only sends, as do all but the root of a reduction. Both send in place.
    """
    name = _short_name(operator)
    if not is_collective(operator) or name not in ("broadcast_", "broadcast", "reduce_"):
        return False
    names = [argument.name for argument in operator._schema.arguments]
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    rank = _own_rank(
        next((arguments[key] for key in ("process_group", "group_name", "group") if key in arguments), None)
    )
    root = arguments.get("root_rank", arguments.get("src"))
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
