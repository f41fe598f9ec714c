"""Imports of the program: whether it can import torch, and modules of the same names.

Only the program may import torch: it may first set OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES and other variables that torch
reads at its import.
"""

from __future__ import annotations

import importlib.util
import os
import sys
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
    loaded = {name: getattr(sys.modules.get(name), "__file__", None) for name in _modules_in(folder)}
    modules = {name for name, file in loaded.items() if name not in sys.modules or (file or "").startswith(folder)}
    if modules:
        _Apart(folder, modules, {})


def _modules_in(folder: str) -> set[str]:
    """Return the names of modules in `folder` that Python would otherwise find in its library."""
    import pkgutil

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


class _Apart:
    """A finder that executes our modules in a context in which `modules` are the library's."""

    def __init__(self, folder: str, modules: set[str], ours: dict[str, ModuleType]) -> None:
        self._folder, self._modules, self._ours = folder, modules, ours
        self._apart = False
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if self._apart or not fullname.startswith("overlapscope."):
            return None
        finders = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in finders)), None)
        if spec is not None and spec.loader is not None:
            self._execute_apart(spec.loader)
        return spec

    def _execute_apart(self, loader: object) -> None:
        execute = loader.exec_module  # type: ignore[attr-defined]

        def execute_apart(module: ModuleType) -> None:
            theirs, places = _take(self._modules), sys.path[:]
            sys.modules.update(self._ours)
            sys.path[:] = [place for place in places if place != self._folder]
            self._apart = True
            try:
                execute(module)
            finally:
                self._apart = False
                sys.path[:] = places
                self._ours = _take(self._modules)
                sys.modules.update(theirs)

        loader.exec_module = execute_apart  # type: ignore[attr-defined]
