"""Every Python that finds this on its path imports it at its start (`imports.start_environment`)."""

import os
import sys

sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__)]
_this = sys.modules.pop(__name__)
try:
    # The module that this module hid.
    import sitecustomize  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
except ImportError:
    pass
finally:
    sys.modules.setdefault(__name__, _this)

_root, _place = os.environ.get("OVERLAPSCOPE_ROOT", ""), os.environ.get("OVERLAPSCOPE_AT_START", "")


def _wait() -> None:
    imported = tuple(sys.modules)

    def call() -> None:
        from overlapscope.base.registry import load
        from overlapscope.recorder.imports import keep_apart

        if not sys.flags.safe_path:
            keep_apart(sys.path[0], imported)
        load(_place)()

    # As a module of its package, it would import more, and hide modules of the program that have the same names.
    path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "torch_watch.py")
    names = {"__name__": "overlapscope.recorder.torch_watch"}
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), names)
    names["when_torch_is_imported"](lambda: _with_root(call))  # type: ignore[operator]


def _with_root(function) -> None:  # type: ignore[no-untyped-def]
    # If the program has the path itself, its position stays.
    added = _root not in sys.path
    if added:
        sys.path.append(_root)
    try:
        function()
    except Exception:
        # A Python without the packages that we need runs as if this module did not exist.
        pass
    finally:
        if added:
            sys.path.remove(_root)


if _root and _place:
    _with_root(_wait)
