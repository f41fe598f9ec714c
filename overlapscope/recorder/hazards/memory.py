"""Which bytes a tensor's elements lie in, whether two tensors share any, and who uses them.

Views make the question more than a comparison of addresses: chunks of one buffer on several streams must not be taken
for one another, and a column of a matrix does meet each of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from overlapscope.recorder.hazards.lines import Line

Direction = Literal["h2d", "d2h"]


class Region(NamedTuple):
    """Bytes from `start` on: a run of `run` bytes, repeated along each of `steps`; without steps it is one interval."""

    start: int
    end: int
    """Behind the last byte."""
    run: int
    steps: tuple[tuple[int, int], ...] = ()
    """How many times, and how many bytes apart; the widest step first."""


class Touch(NamedTuple):
    """The part of a storage that a launch reads or writes."""

    base: int
    """The storage's address, which names it for as long as it lives."""
    region: Region
    tensor: object
    """Its `str` describes the tensor, should it be needed."""


class Launch(NamedTuple):
    """A kernel or copy that was launched."""

    stream: int
    """The handle of its stream."""
    seq: int
    """Its number among all launches."""
    line: Line


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy on its way, which reads (h2d) or writes (d2h) pinned host memory."""

    direction: Direction
    region: Region
    """An interval: copies to and from host memory with gaps go through a temporary (see `operators`)."""
    launch: Launch
    tensor: str


@dataclass(frozen=True, slots=True)
class Use:
    """One launch's use of some memory."""

    write: bool
    launch: Launch


def interval(start: int, size_bytes: int) -> Region:
    """The bytes [start, start + size_bytes)."""
    return Region(start, start + size_bytes, size_bytes)


def strided(start: int, sizes: Sequence[int], strides: Sequence[int], item_bytes: int) -> Region:
    """The bytes of a tensor's elements, of which it must have some; strides are counted in elements."""
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
    """Return whether they certainly share a byte. Exact where one of them is an interval.

    Of two with gaps only those that begin at the same address are known to; columns of one matrix do not.
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
