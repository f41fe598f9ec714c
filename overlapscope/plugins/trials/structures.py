"""Tensors in nested lists, tuples, mappings and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

Path = tuple[object, ...]
"""Path of a tensor in a structure: its keys, from the outside in."""


def tensors(value: object, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield each tensor with its path."""
    if isinstance(value, torch.Tensor):
        yield path, value
    else:
        for key, part in _parts(value):
            yield from tensors(part, (*path, key))


def with_tensors(value: Any, change: Callable[[Path, torch.Tensor], torch.Tensor], path: Path = ()) -> Any:
    """Return the structure with changed tensors; other objects are passed on unchanged."""
    if isinstance(value, torch.Tensor):
        return change(path, value)
    changed = {key: with_tensors(part, change, (*path, key)) for key, part in _parts(value)}
    if all(changed[key] is part for key, part in _parts(value)):
        return value
    if isinstance(value, list | tuple):
        return type(value)(*changed.values()) if hasattr(value, "_fields") else type(value)(changed.values())
    again = copy.copy(value)
    for key, part in changed.items():
        if isinstance(again, MutableMapping):
            again[key] = part
        else:
            object.__setattr__(again, str(key), part)
    return again


def _parts(value: object) -> Iterator[tuple[object, Any]]:
    if isinstance(value, list | tuple):
        yield from enumerate(value)
    elif isinstance(value, Mapping):
        yield from value.items()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)
