"""Copies from the host to a GPU, in all forms of `.to()`, `.cuda()` and `.copy_()`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
from msgspec import Struct

from overlapscope.recorder.wrapping import Undo, around, together

Method = Literal["to", "cuda", "copy_"]
METHODS: tuple[Method, ...] = ("to", "cuda", "copy_")
_MODULES = torch.nn.Module._apply.__code__.co_filename
_OURS = (__file__, around.__code__.co_filename)


class Upload(Struct, frozen=True):
    """An upload that is about to happen."""

    method: Method
    source: torch.Tensor
    """Tensor on the host."""
    non_blocking: bool
    converted: bool
    """True if torch first copies it on the host, to change its type or layout."""
    device: torch.device
    """Target device, with its number."""
    again: Callable[[torch.Tensor, bool], torch.Tensor]
    """Function that uploads another source, of the copy's type, with the given `non_blocking`."""
    dtype: torch.dtype
    """Type of the copy."""


def watch(handle: Callable[[Upload], torch.Tensor | None]) -> Undo:
    """Call `handle` before each upload of a tensor that does not belong to a module.

    `handle` does the upload, or returns None to leave it as it is.

    Returns:
        A function that ends this.
    """
    return together(*(around(torch.Tensor, method, functools.partial(_called, method, handle)) for method in METHODS))


def _called(
    method: Method,
    handle: Callable[[Upload], torch.Tensor | None],
    function: Callable[..., torch.Tensor],
    tensor: torch.Tensor,
    *args: Any,
    **options: Any,
) -> torch.Tensor:
    # Torch would trace into this in a compiled graph. Tensors that are not on the host are the most common case.
    if (method == "copy_" or tensor.is_cpu) and not torch.compiler.is_compiling():
        upload = _PARSERS[method](function, tensor, *args, **options)
        if upload is not None and not _of_module(upload.source):
            done = handle(upload)
            if done is not None:
                return done
    return function(tensor, *args, **options)


def _of_module(tensor: torch.Tensor) -> bool:
    """Return whether a module is moved, or a parameter."""
    frame = sys._getframe(3)
    while frame.f_code.co_filename in _OURS and frame.f_back is not None:
        frame = frame.f_back
    return isinstance(tensor, torch.nn.Parameter) or frame.f_code.co_filename == _MODULES


def _to(function: Callable[..., torch.Tensor], tensor: torch.Tensor, *args: Any, **options: Any) -> Upload | None:
    # An upload always makes a copy.
    named = {name: value for name, value in options.items() if name not in ("copy", "other")}
    try:
        parsed: tuple[Any, ...] = torch._C._nn._parse_to(*([options["other"]] if "other" in options else args), **named)
    except (TypeError, RuntimeError):
        # Let torch report the error.
        return None
    device, dtype, non_blocking, memory_format = parsed
    if device is None or device.type != "cuda":
        return None
    dtype = dtype or tensor.dtype
    layout = {} if memory_format in (None, torch.preserve_format) else {"memory_format": memory_format}

    def again(source: torch.Tensor, non_blocking: bool) -> torch.Tensor:
        return function(source, device=device, dtype=dtype, non_blocking=non_blocking, **layout)

    converted = dtype != tensor.dtype or bool(layout)
    return Upload("to", tensor, non_blocking, converted, _numbered(device), again, dtype)


def _cuda(
    function: Callable[..., torch.Tensor],
    tensor: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,
    **options: Any,
) -> Upload | None:
    def again(source: torch.Tensor, non_blocking: bool) -> torch.Tensor:
        return function(source, device, non_blocking=non_blocking, **options)

    return Upload("cuda", tensor, non_blocking, bool(options), _numbered(device), again, tensor.dtype)


def _copy(
    function: Callable[..., torch.Tensor], tensor: torch.Tensor, source: Any = None, non_blocking: bool = False
) -> Upload | None:
    if tensor.device.type != "cuda" or not isinstance(source, torch.Tensor) or source.device.type != "cpu":
        return None

    def again(source: torch.Tensor, non_blocking: bool) -> torch.Tensor:
        return function(tensor, source, non_blocking)

    same = source.dtype == tensor.dtype and source.shape == tensor.shape
    converted = not (same and tensor.is_contiguous())
    return Upload("copy_", source, non_blocking, converted, tensor.device, again, tensor.dtype)


def _numbered(device: Any) -> torch.device:
    """Return a device with its number; `cuda` or None is the current GPU."""
    index: int | None = device if isinstance(device, int) else torch.device(device or "cuda").index
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)


_PARSERS: dict[Method, Callable[..., Upload | None]] = {"to": _to, "cuda": _cuda, "copy_": _copy}
