"""Uploads from pinned memory, and without blocking the host."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal, NoReturn

import torch
from msgspec import Struct
from torch.utils.data import DataLoader

from overlapscope.plugins.trials.changes import Note
from overlapscope.plugins.trials.observed import TensorPath, tensors, with_tensors
from overlapscope.recorder.wrapping import Undo, around, before_making, together

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
        if upload is not None and not _is_in_module(upload.source):
            done = handle(upload)
            if done is not None:
                return done
    return function(tensor, *args, **options)


def _is_in_module(tensor: torch.Tensor) -> bool:
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


def start_pin(value: str, note: Note) -> Undo:
    """Pin the batches of DataLoaders, and other uploads from pageable memory in steps.

    Torch's allocator keeps the buffers, and reuses none while a copy reads it.

    Returns:
        A function that ends this.
    """

    def pin(upload: Upload) -> torch.Tensor | None:
        if not note.stepping or upload.source.is_pinned() or not upload.source.numel():
            return None
        note.count()
        return upload.again(upload.source.to(upload.dtype).pin_memory(), upload.non_blocking)

    def make(loader: DataLoader[Any], arguments: dict[str, Any]) -> None:
        if not arguments.get("pin_memory"):
            arguments["pin_memory"] = True
            note.count()

    pinned_on_host = around(torch.Tensor, "pin_memory", _pin_on_host)
    return together(before_making(DataLoader, make), pinned_on_host, watch(pin))


def _pin_on_host(pin: Callable[..., torch.Tensor], tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """Leave a tensor on a GPU as it is, which would make a pinning loader fail."""
    return pin(tensor, *args, **options) if tensor.device.type == "cpu" else tensor


def start_non_blocking(value: str, note: Note) -> Undo:
    """Return at once from each upload from pinned memory: later work of the same stream waits for it anyway."""

    def upload(upload: Upload) -> torch.Tensor | None:
        if upload.non_blocking or upload.converted or not upload.source.is_pinned():
            return None
        note.count()
        return upload.again(upload.source, True)

    return watch(upload)


# -- A step ahead ------------------------------------------------------------------------------------

_LEARNT_FROM = 2
"""Number of first batches of each loader to learn from."""


def start_ahead(value: str, note: Note) -> Undo:
    """Learn from a loader's first batches which tensors the program uploads, and upload later batches ahead."""
    habits: weakref.WeakKeyDictionary[Any, _Habit] = weakref.WeakKeyDictionary()

    def iterate(make: Callable[..., Iterator[Any]], loader: DataLoader[Any]) -> Iterator[Any]:
        return _Ahead(make(loader), loader, habits.setdefault(loader, _Habit(note)))

    def upload(upload: Upload) -> None:
        for habit in habits.values():
            habit.uploads(upload)

    return together(around(DataLoader, "__iter__", iterate), watch(upload))


class _Habit:
    """The program's use of a loader's batches."""

    def __init__(self, note: Note) -> None:
        self.note = note
        self.learning = _LEARNT_FROM
        """Number of batches left to learn from."""
        self.devices: dict[TensorPath, torch.device] = {}
        """Target device of each uploaded tensor."""
        self._latest: dict[int, tuple[TensorPath, torch.Tensor]] = {}
        """The tensors of the latest batch, by their ids."""

    def learn(self, batch: object) -> None:
        """Learn from a batch that is handed out unchanged."""
        self.learning -= 1
        self._latest = {id(tensor): (path, tensor) for path, tensor in tensors(batch)}

    def learnt(self) -> None:
        """Finish learning."""
        if self._latest and not self.devices:
            self.note.refuse("The program uploads no tensor of its batches as the loader made it.")
        self._latest = {}

    def uploads(self, upload: Upload) -> None:
        """Note an upload by the program."""
        path, tensor = self._latest.get(id(upload.source), ((), None))
        if tensor is upload.source:
            self.devices[path] = upload.device


class _Ahead:
    """An iterator of a loader with batches a step ahead."""

    def __init__(self, batches: Iterator[Any], loader: DataLoader[Any], habit: _Habit) -> None:
        """Wrap an iterator. It keeps the loader, and thereby its habit, alive, since the program may not."""
        self._batches, self._loader, self._habit = batches, loader, habit
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._next: Callable[[], Any] | None = None
        """Function that returns the batch being copied."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __next__(self) -> Any:
        habit = self._habit
        if habit.learning:
            batch = next(self._batches)
            habit.learn(batch)
            return batch
        habit.learnt()
        if not habit.devices:
            return next(self._batches)
        batch = (self._next or self._copy())()
        self._next = self._copy()
        return batch

    def _copy(self) -> Callable[[], Any]:
        """Begin to copy the next batch. Errors are raised when the program asks for it."""
        try:
            batch = next(self._batches)
        except BaseException as raised:
            error = raised

            def fail() -> NoReturn:
                raise error

            return fail
        moved: list[torch.Tensor] = []

        def move(path: TensorPath, tensor: torch.Tensor) -> torch.Tensor:
            device = self._habit.devices.get(path)
            if device is None or tensor.device.type != "cpu":
                return tensor
            pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
            with torch.cuda.stream(self._streams.setdefault(device, torch.cuda.Stream(device))):
                moved.append(pinned.to(device, non_blocking=True))
            return moved[-1]

        batch = with_tensors(batch, move)
        self._habit.note.count()

        def take() -> Any:
            """Return the batch; later work on the current stream waits for its copies."""
            for tensor in moved:
                current = torch.cuda.current_stream(tensor.device)
                current.wait_stream(self._streams[tensor.device])
                tensor.record_stream(current)
            return batch

        return take
