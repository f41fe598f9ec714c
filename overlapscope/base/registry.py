"""Imports on demand, lists of things that have a module each, and results that are drawn when they are shown."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, TypeVar

T = TypeVar("T")


def load(place: str) -> Any:
    """Return the object at `package.module:name`, or the module at `package.module`."""
    module, _, name = place.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported


class Registry(Mapping[str, T]):
    """Things of a kind by id, in order. A thing's module is imported at its first lookup, and never for its id."""

    def __init__(self, places: Mapping[str, str]) -> None:
        """`places` has the place of each, as for `load`."""
        self._places, self._loaded = places, dict[str, T]()

    def __getitem__(self, id: str) -> T:
        if id not in self._loaded:
            self._loaded[id] = load(self._places[id])
        return self._loaded[id]

    def module(self, id: str) -> str:
        """Return the name of the module that defines a thing."""
        return self._places[id].partition(":")[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


# -- Display of results in Python and in notebooks, instead of all their numbers ---------------------

_DRAWN_BY: Final = "overlapscope.render.notebook"
"""Module whose `sentence` and `screen` draw results. It is loaded when a result is shown."""


class Shown:
    """A result that Python shows by its verdict, and a notebook by the beginning of the command line's output."""

    __slots__ = ()

    shown_by: ClassVar[str] = ""
    """`package.module:name` of a function that returns verdict and document, if the drawing module has none."""

    def __repr__(self) -> str:
        text: str = load(f"{_DRAWN_BY}:sentence")(self)
        return text

    def _repr_html_(self) -> str:
        text: str = load(f"{_DRAWN_BY}:screen")(self)
        return text
