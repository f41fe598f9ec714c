"""Which line of the program a call comes from."""

from __future__ import annotations

import os
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType

from overlapscope.trials.protocol import Site

_INSTALLED = ("site-packages", "dist-packages")
_OURS = str(Path(__file__).parents[1]) + os.sep
_STANDARD = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
_TRANSPARENT = ("torch", "")
"""Libraries that are not named: torch, and Python's own with what is made up while it runs."""


def site(frame: FrameType | None) -> Site:
    """The innermost line of the program's own from `frame` outwards; where there is none, of a library's but torch's.

    Line 0 of no file where there is none either, as on a thread of autograd's.
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
    """Whether a file is one of the program's own."""
    return _package(file) is None


def is_ours(file: str) -> bool:
    """Whether a file is one of overlapscope's."""
    return file.startswith(_OURS)


@cache
def _package(file: str) -> str | None:
    """The installed package that a file is of; None for one of the program's own."""
    if file.startswith((_OURS, "<frozen ", "<eval_with_key>", "<__array_function__")) or "torchinductor_" in file:
        return ""
    parts = Path(file).parts
    for place, part in enumerate(parts[:-1]):
        if part in _INSTALLED:
            return parts[place + 1].removesuffix(".py")
    return "" if file.startswith(_STANDARD) else None
