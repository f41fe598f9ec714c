"""Copies between host and device, and when one uses host memory after its call has returned.

It does where the memory is pinned and the copy is a single DMA of it. Everything else is over with the call as far as
host memory goes (CUDA Runtime API, "API synchronization behavior"): pageable memory is staged by the driver, and where
layouts or types differ torch copies through a pageable temporary (`copy_kernel_cuda` in ATen/native/cuda/Copy.cu).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from overlapscope.recorder.hazards.operators import tensors

_aten = torch.ops.aten
_COPY = frozenset({_aten.copy_.default, _aten._foreach_copy_.default})
_CONVERT = _aten._to_copy.default
_READ_SCALAR = _aten._local_scalar_dense.default


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """One copy between host and device."""

    host: torch.Tensor
    device: torch.Tensor
    to_host: bool
    non_blocking: bool

    @property
    def is_dma(self) -> bool:
        """Whether the device reads or writes the host tensor's memory itself."""
        return _is_direct(self) and self.host.is_pinned()

    @property
    def ends_with_call(self) -> bool:
        """Whether the call returns only once the copy is done, and nothing is launched behind it."""
        return not self.non_blocking and (self.to_host or self.device.is_contiguous() or _is_direct(self))


def made_by(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Transfer]:
    """The transfers of a call that has returned."""
    if operator in _COPY:
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        return list(_pairs(args[0], args[1], non_blocking))
    if operator is _CONVERT:
        return list(_pairs(result, args[0], bool(kwargs.get("non_blocking", False))))
    return []


def reads_scalar(operator: OpOverload) -> bool:
    """Whether the operator hands one number to Python, and so waits for the stream it is on."""
    return operator is _READ_SCALAR


def _pairs(targets: Any, sources: Any, non_blocking: bool) -> Iterator[Transfer]:
    for target, source in zip(tensors(targets), tensors(sources), strict=False):
        if source.is_cuda and target.device.type == "cpu":
            yield Transfer(target, source, True, non_blocking)
        elif target.is_cuda and source.device.type == "cpu":
            yield Transfer(source, target, False, non_blocking)


def _is_direct(transfer: Transfer) -> bool:
    """Whether no temporary in host memory is between the two.

    Types are converted on the device where the copy does not block, and on the host where it does.
    """
    host, device = transfer.host, transfer.device
    same_type = host.dtype == device.dtype
    if host.numel() != device.numel() or not (same_type or transfer.non_blocking):
        return False
    if host.is_contiguous():
        return True
    return same_type and host.stride() == device.stride() and _is_dense(host)


def _is_dense(tensor: torch.Tensor) -> bool:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return extent == tensor.numel()
