"""Imports of the program: whether and when it imports torch, and modules of the same names.

Only the program may import torch: it may first set OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES and other variables that torch
reads at its import.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec
from types import ModuleType
from typing import Any

from overlapscope.errors import MissingPackage


def require_torch() -> None:
    """Raise MissingPackage, with the command that installs torch, if torch is not installed."""
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        from overlapscope.base.extras import how_to_install

        raise MissingPackage(f"recording needs PyTorch, which this Python does not have. {how_to_install('record')}")


# -- Modules of the program that are named like modules of Python's library ----------------------------
# The program gets its own, and overlapscope the library's.


def give_way(folder: str) -> None:
    """Forget modules of the library that `folder` has, too, so that the program imports its own. Ours keep theirs."""
    modules = _modules_in(folder)
    if modules:
        modules -= _imported_at_start()
        _Apart(folder, modules, _take(modules))


def keep_apart(folder: str) -> None:
    """Have each later import of a module of ours find the library's modules instead of those of the program.

    Modules that are loaded from the library already, as those that Python imports at its start, are everyone's.
    """
    modules = {name for name in _modules_in(folder) if name not in sys.modules or _is_from(folder, sys.modules[name])}
    if modules:
        _Apart(folder, modules, {})


def _is_from(folder: str, module: ModuleType) -> bool:
    """Return whether a module's file, or that of a package's `__init__`, is in `folder` itself."""
    of_module = os.path.dirname(getattr(module, "__file__", None) or "")
    return os.path.abspath(folder) in (of_module, os.path.dirname(of_module) if hasattr(module, "__path__") else "")


def _modules_in(folder: str) -> set[str]:
    """Return the names of modules in `folder` that Python would otherwise find in its library."""
    import pkgutil

    if os.path.realpath(folder) == os.path.dirname(os.path.realpath(os.__file__)):
        # The program has put the library first.
        return set()
    names = {module.name for module in pkgutil.iter_modules([folder])} & sys.stdlib_module_names
    return {name for name in names if not (BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name))}


def _imported_at_start() -> set[str]:
    """Return the modules that Python imports before it looks into the program's folder."""
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-c", "import sys; print(*sys.modules)", __name__]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return set(os.fsdecode(done.stdout).split())


def _take(modules: set[str]) -> dict[str, ModuleType]:
    """Take these modules and their submodules out of `sys.modules`."""
    names = [name for name in sys.modules if name.partition(".")[0] in modules]
    return {name: sys.modules.pop(name) for name in names}


class _Finder:
    """A finder that finds some modules as the finders after it do, and has a say in their execution."""

    def __init__(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        # A program may put finders of its own around those that there are.
        if not self._is_meant(fullname) or self not in sys.meta_path:
            return None
        # Another of these may stand before this one.
        finders = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in finders)), None)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            # Wrapping the method on the instance leaves everything else about the module unchanged.
            loader.exec_module = functools.partial(self._execute, loader, loader.exec_module)
        return spec

    def _is_meant(self, name: str) -> bool:
        raise NotImplementedError

    def _execute(self, loader: Any, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        raise NotImplementedError


class _Apart(_Finder):
    """Executes our modules in a context in which `modules` are the library's."""

    def __init__(self, folder: str, modules: set[str], ours: dict[str, ModuleType]) -> None:
        super().__init__()
        self._folder, self._modules, self._ours = folder, modules, ours
        self._apart = False

    def _is_meant(self, name: str) -> bool:
        return not self._apart and name.startswith("overlapscope.")

    def _execute(self, loader: Any, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        program_modules, places = _take(self._modules), sys.path[:]
        sys.modules.update(self._ours)
        sys.path[:] = [place for place in places if place != self._folder]
        self._apart = True
        try:
            execute(module)
        finally:
            self._apart = False
            sys.path[:] = places
            self._ours = _take(self._modules)
            sys.modules.update(program_modules)


# -- The import of torch by the program --------------------------------------------------------------


def when_torch_is_imported(callback: Callable[[], None]) -> None:
    """Call `callback` once, on the thread that imports torch, after the import; or now if torch is imported already."""
    if "torch" in sys.modules:
        callback()
    else:
        _TorchWatch(callback)


class _TorchWatch(_Finder):
    def __init__(self, callback: Callable[[], None]) -> None:
        super().__init__()
        self._callback = callback

    def _is_meant(self, name: str) -> bool:
        return name == "torch"

    def _execute(self, loader: Any, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        try:
            execute(module)
        except BaseException as error:
            # Without this frame.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._callback()
