"""Lines of the user's program that are running."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Iterable
from types import FrameType
from typing import NamedTuple

_INSTALLED = ("site-packages", "dist-packages")
"""Directories inside the standard library's with packages that do not belong to it."""
_GENERATED = ("<frozen ", "<eval_with_key>")
"""Beginnings of file names that Python and torch.compile invent."""
_DEPRECATED = "typing_extensions.py"
"""File of the wrappers of torch's deprecated functions, such as `all_gather_into_tensor` in torch 2.13."""
_COMPILED = "torchinductor_"
"""Part of the path of the directory in which torch.compile writes code."""


class CodeLine(NamedTuple):
    """A line of a Python file."""

    file: str
    number: int
    """Number of the line, counted from 1; 0 if unknown."""


UNKNOWN = CodeLine("", 0)


class UserCode:
    """Distinguishes the user's frames from those of the standard library and of given directories."""

    def __init__(self, libraries: Iterable[str]) -> None:
        standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        self._libraries = tuple(os.path.join(directory, "") for directory in libraries)
        self._standard = tuple(os.path.join(directory, "") for directory in standard if directory)
        self._installed = tuple(os.path.join(parent, name, "") for parent in self._standard for name in _INSTALLED)
        self._library_files: dict[str, bool] = {}
        """Whether a file belongs to a library, for the files seen so far."""
        self._thread = threading.get_ident()

    def line(self, frame: FrameType | None) -> CodeLine:
        """Return the user's innermost line among the frames from `frame` outwards.

        A thread of the autograd engine has no such line. The result is then the present line of the thread that made
        this object, which waits for the backward pass.
        """
        return self._innermost(frame) or self._innermost(sys._current_frames().get(self._thread)) or UNKNOWN

    def _innermost(self, frame: FrameType | None) -> CodeLine | None:
        while frame is not None:
            file = frame.f_code.co_filename
            library = self._library_files.get(file)
            if library is None:
                library = self._library_files[file] = self._is_library(file)
            if not library:
                return CodeLine(file, frame.f_lineno)
            frame = frame.f_back
        return None

    def _is_library(self, file: str) -> bool:
        if (
            file.startswith((*self._libraries, *_GENERATED))
            or _COMPILED in file
            or os.path.basename(file) == _DEPRECATED
        ):
            return True
        return file.startswith(self._standard) and not file.startswith(self._installed)
