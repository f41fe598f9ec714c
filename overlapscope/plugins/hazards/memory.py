"""The bytes of a tensor's elements, whether two tensors share any, and the lines of the program that use these.

Because of views, a comparison of addresses is not enough: chunks of a buffer on several streams do not overlap, and a
column of a matrix does overlap with each of its rows.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import FrameType
from typing import Literal, NamedTuple

# -- Lines of the user's program ----------------------------------------------------------------------

_STANDARD = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(
    os.path.join(parent, name, "") for parent in _STANDARD for name in ("site-packages", "dist-packages")
)
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
        within = tuple(os.path.join(directory, "") for directory in libraries)
        self._is_library = cache(partial(_is_library, within))
        self._thread = threading.get_ident()

    def line(self, frame: FrameType | None) -> CodeLine:
        """Return the user's innermost line among the frames from `frame` outwards.

        A thread of the autograd engine has no such line. The result is then the present line of the thread that made
        this object, which waits for the backward pass.
        """
        return self._innermost(frame) or self._innermost(sys._current_frames().get(self._thread)) or UNKNOWN

    def _innermost(self, frame: FrameType | None) -> CodeLine | None:
        while frame is not None and self._is_library(frame.f_code.co_filename):
            frame = frame.f_back
        return None if frame is None else CodeLine(frame.f_code.co_filename, frame.f_lineno)


def _is_library(libraries: tuple[str, ...], file: str) -> bool:
    """Return whether a file is in one of these directories, in the standard library, or invented."""
    if file.startswith((*libraries, *_GENERATED)) or _COMPILED in file or os.path.basename(file) == _DEPRECATED:
        return True
    return file.startswith(_STANDARD) and not file.startswith(_INSTALLED)


Direction = Literal["h2d", "d2h"]


class Region(NamedTuple):
    """Bytes that begin at `start`: a run of `run` bytes, repeated along each of `steps`. Without steps, an interval."""

    start: int
    end: int
    """Address after the last byte."""
    run: int
    steps: tuple[tuple[int, int], ...] = ()
    """Number of repetitions and distance in bytes of each step, the widest first."""


class Touch(NamedTuple):
    """The part of a storage that a launch reads or writes."""

    base: int
    """Address of the storage, which identifies it while it exists."""
    region: Region
    tensor: object
    """Object whose `str` describes the tensor."""


class Launch(NamedTuple):
    """A kernel or copy that was launched."""

    stream: int
    """Handle of its stream."""
    seq: int
    """Number among all launches."""
    line: CodeLine
    is_collective: bool = False
    """True for a collective on a stream of its own, for which `Work.wait` waits."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy under way, which reads (h2d) or writes (d2h) pinned host memory."""

    direction: Direction
    region: Region
    """Host memory, always an interval: copies of memory with gaps go through a temporary (`operators`)."""
    launch: Launch
    tensor: str


@dataclass(frozen=True, slots=True)
class Use:
    """The use of some memory by a launch."""

    write: bool
    launch: Launch


def interval(start: int, size_bytes: int) -> Region:
    """Return the bytes [start, start + size_bytes)."""
    return Region(start, start + size_bytes, size_bytes)


def strided(start: int, sizes: Sequence[int], strides: Sequence[int], item_bytes: int) -> Region:
    """Return the bytes of a tensor's elements, of which it must have some. Strides are in elements."""
    steps = sorted(
        ((size, stride * item_bytes) for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride > 0),
        key=lambda step: (step[1], step[0]),
    )
    run = item_bytes
    gaps: list[tuple[int, int]] = []
    for count, apart in steps:
        if apart <= run:
            run += (count - 1) * apart
        else:
            gaps.append((count, apart))
    end = start + run + sum((count - 1) * apart for count, apart in gaps)
    return Region(start, end, run, tuple(reversed(gaps)))


def overlap(a: Region, b: Region) -> bool:
    """Return whether they certainly share a byte. The answer is exact if either is an interval.

    Two regions with gaps certainly share a byte only if they begin at the same address: columns of a matrix share none.
    """
    if a.end <= b.start or b.end <= a.start:
        return False
    if not b.steps:
        return _meets(a.start, a.end, a.steps, b)
    if not a.steps:
        return _meets(b.start, b.end, b.steps, a)
    return a.start == b.start


def covers(outer: Region, inner: Region) -> bool:
    """Return whether `outer` is an interval that holds all of `inner`."""
    return not outer.steps and outer.start <= inner.start and inner.end <= outer.end


def _meets(start: int, end: int, steps: tuple[tuple[int, int], ...], whole: Region) -> bool:
    """Return whether the bytes from `start`, repeated along `steps` up to `end`, meet an interval."""
    if end <= whole.start or whole.end <= start:
        return False
    if not steps or whole.start <= start < whole.end:
        return True
    (count, apart), inner = steps[0], steps[1:]
    extent = end - start - (count - 1) * apart
    first = max(0, -((start + extent - 1 - whole.start) // apart))
    last = min(count - 1, (whole.end - 1 - start) // apart)
    return any(_meets(start + i * apart, start + i * apart + extent, inner, whole) for i in range(first, last + 1))
