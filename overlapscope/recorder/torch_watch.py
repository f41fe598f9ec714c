"""Noticing the import of torch by the program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType


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
        # A watch before this one may have called it in the same way.
        finders = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in finders)), None)
        if spec is not None and spec.loader is not None:
            self._report(spec.loader)
        return spec

    def _report(self, loader: Loader) -> None:
        """Wrap the loader's method on the instance, which leaves everything else about the module unchanged."""
        load = loader.exec_module

        def load_and_report(module: ModuleType) -> None:
            # Another watch may stand before this one.
            vars(loader).pop("exec_module", None)
            try:
                load(module)
            except BaseException as error:
                # Without this frame.
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._callback()

        loader.exec_module = load_and_report  # type: ignore[method-assign]
