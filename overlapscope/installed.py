"""Installed plugins, found without importing anything."""

import os
import sys

GROUP = "overlapscope.plugins"
"""Package of the built-in plugins, and group of entry points for those of other packages."""
_FOLDER = os.path.join(os.path.dirname(__file__), "plugins")


def built_in_names() -> list[str]:
    """Return the names of the plugins of this package, in order."""
    return sorted(name for name in os.listdir(_FOLDER) if os.path.isfile(os.path.join(_FOLDER, name, "__init__.py")))


def others_registered() -> bool:
    """Return whether another package that is installed may register a plugin.

    Most often there is none, and importing and asking importlib.metadata takes 0.1 s.
    """
    return any(map(_registers, sys.path))


def _registers(folder: str) -> bool:
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:
        return False
    for name in names:
        if name.endswith("-info"):
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if f"[{GROUP}]".encode() in file.read():
                        return True
            except OSError:
                pass
    return False
