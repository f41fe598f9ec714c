"""Finding out whether torch is installed without importing it, and when the program imports it.

Only the program may import torch: it may first set OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES and other variables that torch
reads at its import.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from overlapscope.errors import MissingPackage
from overlapscope.recorder.wrapping import leave_no_frame

if TYPE_CHECKING:
    from importlib.abc import Loader


def require_torch() -> None:
    """Raise MissingPackage, with the command that installs torch, if torch is not installed."""
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        from overlapscope.base.extras import how_to_install

        raise MissingPackage(f"recording needs PyTorch, which this Python does not have. {how_to_install('record')}")


def when_torch_is_imported(callback: Callable[[], None]) -> None:
    """Call `callback` once, on the thread that imports torch, after the import; or now if torch is imported already."""
    if "torch" in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _Watch(callback))


class _Watch:
    """A finder that finds torch as the finders after it do, with a loader that reports."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        spec = self._find(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._report(spec.loader)
        return spec

    def _find(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        # A watch before this one may have called it in the same way.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def _report(self, loader: Loader) -> None:
        """Wrap the loader's method on the instance, which leaves everything else about the module unchanged."""
        load = loader.exec_module

        def load_and_report(module: ModuleType) -> None:
            # Another watch may stand before this one.
            vars(loader).pop("exec_module", None)
            try:
                load(module)
            except BaseException as error:
                leave_no_frame(error)
                raise
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._callback()

        loader.exec_module = load_and_report  # type: ignore[method-assign]
