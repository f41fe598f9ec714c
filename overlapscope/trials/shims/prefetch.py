"""Each batch of a DataLoader is copied to the GPU while the program computes with the one before."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils.data import DataLoader

from overlapscope.recorder.wrapping import around
from overlapscope.trials.shims import Note, Undo
from overlapscope.trials.structures import Path, tensors, with_tensors
from overlapscope.trials.uploads import Upload, watch

_LEARNT_FROM = 2
"""Batches, the first ones of each loader."""


def start(value: str, note: Note) -> Undo:
    """Learn from a loader's first batches which of their tensors the program uploads, and to which GPU; then do that
    with each batch before the program asks for it.
    """
    habits: weakref.WeakKeyDictionary[Any, _Habit] = weakref.WeakKeyDictionary()

    def iterate(make: Callable[..., Iterator[Any]], loader: DataLoader[Any]) -> Iterator[Any]:
        return _Ahead(make(loader), habits.setdefault(loader, _Habit(note)))

    def upload(upload: Upload) -> None:
        for habit in habits.values():
            habit.uploads(upload)

    undo = ExitStack()
    undo.callback(around(DataLoader, "__iter__", iterate))
    undo.callback(watch(upload))
    return undo.close


class _Habit:
    """What the program does with the batches of a loader."""

    def __init__(self, note: Note) -> None:
        self.note = note
        self.learning = _LEARNT_FROM
        """Batches that are to be learnt from yet."""
        self.devices: dict[Path, torch.device] = {}
        """Where it uploads their tensors to."""
        self._latest: dict[int, tuple[Path, torch.Tensor]] = {}
        """The tensors of the latest batch, by their ids."""

    def learn(self, batch: object) -> None:
        """This one is handed out as it is."""
        self.learning -= 1
        self._latest = {id(tensor): (path, tensor) for path, tensor in tensors(batch)}

    def learnt(self) -> None:
        """The next one need not be."""
        if self._latest and not self.devices:
            self.note.refuse("The program uploads no tensor of its batches as the loader made it.")
        self._latest = {}

    def uploads(self, upload: Upload) -> None:
        """The program uploads something."""
        path, tensor = self._latest.get(id(upload.source), ((), None))
        if tensor is upload.source:
            self.devices[path] = upload.device


class _Ahead:
    """An iterator of a loader's, whose batches are a step ahead."""

    def __init__(self, batches: Iterator[Any], habit: _Habit) -> None:
        self._batches, self._habit = batches, habit
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._next: _Copied | None = None

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
        copied = self._next or self._copy()
        batch = copied.take(self._streams)
        self._next = self._copy()
        return batch

    def _copy(self) -> _Copied:
        """Begin to copy the next batch. What goes wrong is told when the program asks for it."""
        try:
            batch = next(self._batches)
        except BaseException as error:
            return _Copied(None, [], error)
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
        self._habit.note.made()
        return _Copied(batch, moved, None)


class _Copied:
    """A batch whose copies have begun, or why there is none."""

    def __init__(self, batch: Any, moved: list[torch.Tensor], error: BaseException | None) -> None:
        self._batch, self._moved, self._error = batch, moved, error

    def take(self, streams: dict[torch.device, torch.cuda.Stream]) -> Any:
        """The batch, whose copies what follows on the current stream waits for."""
        if self._error is not None:
            raise self._error
        for tensor in self._moved:
            current = torch.cuda.current_stream(tensor.device)
            current.wait_stream(streams[tensor.device])
            tensor.record_stream(current)
        return self._batch
