"""One way to import something only when it is asked for, and to list things that have a module each."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def load(place: str) -> Any:
    """What `package.module:name` stands for; the module itself where no name is given."""
    module, _, name = place.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported


class Registry(Mapping[str, T]):
    """Things of one kind by id, in order: each is defined in a module of its own, under a name common to all.

    `host-sync` is in the module `host_sync`, unless `elsewhere` says in which. A module is imported when its thing is
    first looked up; ids cost nothing.
    """

    def __init__(self, package: str, name: str, ids: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> None:
        modules = {id: id.replace("-", "_") for id in ids} | dict(elsewhere or {})
        self._places = {id: f"{package}.{module}:{name}" for id, module in modules.items()}
        self._loaded: dict[str, T] = {}

    def __getitem__(self, asked: str) -> T:
        if asked not in self._loaded:
            self._loaded[asked] = load(self._places[asked])
        return self._loaded[asked]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
