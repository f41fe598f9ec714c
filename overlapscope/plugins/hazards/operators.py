"""Memory that an operator reads and writes, according to its schema, and copies between host and device.

A copy uses host memory after its call has returned only if the memory is pinned and the copy is a single DMA of it.
All other uses of host memory end with the call (CUDA Runtime API, "API synchronization behavior"): the driver stages
pageable memory, and if layouts or types differ, torch copies through a pageable temporary
(`copy_kernel_cuda` in ATen/native/cuda/Copy.cu).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from overlapscope.plugins.hazards.memory import Touch, interval, strided

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
    if uses_no_data(schema.name) or torch.Tag.inplace_view in operator.tags:
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


def uses_no_data(name: str) -> bool:
    """Return whether an operator uses no data, unlike its schema."""
    return name in _NO_DATA


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
_READ_SCALAR = _aten._local_scalar_dense.default


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


def reads_scalar(operator: OpOverload) -> bool:
    """Return whether the operator returns a number to Python, and so waits for its stream."""
    return operator is _READ_SCALAR


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
