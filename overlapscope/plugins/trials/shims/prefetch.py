"""Copies each batch of a DataLoader to the GPU during the computation with the previous batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader

from overlapscope.plugins.trials.shims import Note
from overlapscope.plugins.trials.structures import Path, tensors, with_tensors
from overlapscope.plugins.trials.uploads import Upload, watch
from overlapscope.recorder.wrapping import Undo, around, together

_LEARNT_FROM = 2
"""Number of first batches of each loader to learn from."""


def start(value: str, note: Note) -> Undo:
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
        self.devices: dict[Path, torch.device] = {}
        """Target device of each uploaded tensor."""
        self._latest: dict[int, tuple[Path, torch.Tensor]] = {}
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

        def move(path: Path, tensor: torch.Tensor) -> torch.Tensor:
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
