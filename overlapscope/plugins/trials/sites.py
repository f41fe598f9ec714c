"""Lines of the program that calls come from."""

from __future__ import annotations

import os
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType

from overlapscope.plugins.trials.protocol import Site

_INSTALLED = ("site-packages", "dist-packages")
_OURS = str(Path(__file__).parents[2]) + os.sep
_STANDARD = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
_TRANSPARENT = ("torch", "")
"""Libraries that are not named: torch, and Python's own code, including generated code."""


def site(frame: FrameType | None) -> Site:
    """Return the innermost line of the program from `frame` outwards, or else of a library other than torch.

    Line 0 of an empty path if there is neither, as on an autograd thread.
    """
    library, innermost = "", None
    while frame is not None:
        package = _package(frame.f_code.co_filename)
        if package is None:
            return Site(os.path.abspath(frame.f_code.co_filename), frame.f_lineno, library)
        if innermost is None and package not in _TRANSPARENT:
            library, innermost = package, Site(os.path.abspath(frame.f_code.co_filename), frame.f_lineno, package)
        frame = frame.f_back
    return innermost or Site("", 0)


def is_program(file: str) -> bool:
    """Return whether a file belongs to the program."""
    return _package(file) is None


def is_ours(file: str) -> bool:
    """Return whether a file belongs to overlapscope."""
    return file.startswith(_OURS)


@cache
def _package(file: str) -> str | None:
    """Return the installed package of a file; None for the program's files."""
    if file.startswith((_OURS, "<frozen ", "<eval_with_key>", "<__array_function__")) or "torchinductor_" in file:
        return ""
    parts = Path(file).parts
    for place, part in enumerate(parts[:-1]):
        if part in _INSTALLED:
            return parts[place + 1].removesuffix(".py")
    return "" if file.startswith(_STANDARD) else None
