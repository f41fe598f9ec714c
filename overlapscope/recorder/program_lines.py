"""Lines of the program that a call comes from, among the frames of Python, torch and overlapscope."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_OURS = str(Path(__file__).parents[1]) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages")
_GENERATED = ("<frozen ", "<eval_with_key>", "<__array_function__")
"""Beginnings of file names that Python, torch.compile and numpy invent."""
_COMPILED = "torchinductor_"
"""Part of the path of the directory in which torch.compile writes code."""
_DEPRECATED = "typing_extensions.py"
"""File of the wrappers of torch's deprecated functions, such as `all_gather_into_tensor` in torch 2.13."""


class CodeLine(NamedTuple):
    """A line of a Python file."""

    file: str
    number: int
    """Number of the line, counted from 1; 0 if unknown."""
    library: str = ""
    """Installed package of the file, such as `transformers`; empty for the program's files."""


UNKNOWN = CodeLine("", 0)


def lines(frame: FrameType | None) -> Iterator[CodeLine]:
    """Yield the lines of the program and its libraries from `frame` outwards, without those of Python, torch and us."""
    while frame is not None:
        package = _package(frame.f_code.co_filename)
        if package != "":
            yield CodeLine(frame.f_code.co_filename, frame.f_lineno, package or "")
        frame = frame.f_back


def line(frame: FrameType | None, *, waiting: int) -> CodeLine:
    """Return the innermost of these lines.

    A thread of the autograd engine has none. The result is then the present line of the thread `waiting`, which waits
    for the backward pass.
    """
    return next(lines(frame), None) or next(lines(sys._current_frames().get(waiting)), UNKNOWN)


@cache
def _package(file: str) -> str | None:
    """Return the installed package of a file; None for the program's files, empty for those of Python, torch and us."""
    if file == getattr(sys.modules["__main__"], "__file__", None):
        # It may be one of our examples.
        return None
    if file.startswith((_OURS, _torch(), *_GENERATED)) or _COMPILED in file or os.path.basename(file) == _DEPRECATED:
        return ""
    parts = Path(file).parts
    for place, part in enumerate(parts[:-1]):
        if part in _INSTALLED:
            return parts[place + 1].removesuffix(".py")
    return "" if file.startswith(_STANDARD) else None


@cache
def _torch() -> str:
    import torch

    return os.path.dirname(str(torch.__file__)) + os.sep
