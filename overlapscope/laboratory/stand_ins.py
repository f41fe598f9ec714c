"""Modules in the place of packages that are not installed, for files of which only what they declare is wanted."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextmanager
def stand_ins(packages: Sequence[str]) -> Iterator[None]:
    """While it lasts, what is imported of these packages is there, and does nothing."""
    finder = _Finder(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _StandIn)]:
            del sys.modules[name]


class _StandIn(ModuleType):
    """Anything can be looked up in it, which can be called, derived from, and used in the type of something."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> _StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **options: Any) -> _StandIn:
        return self

    __getitem__ = __or__ = __ror__ = __call__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self._packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""
