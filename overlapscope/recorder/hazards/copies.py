"""Copies between host and device that the host does not know to have finished."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from overlapscope.recorder.hazards.lines import Line
from overlapscope.recorder.hazards.memory import Region, overlap

Direction = Literal["h2d", "d2h"]

_PRUNE_FROM = 64


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy on its way, which reads (h2d) or writes (d2h) pinned host memory."""

    direction: Direction
    region: Region
    """An interval: copies to and from host memory with gaps go through a temporary (see `transfers`)."""
    stream: int
    """Handle of its stream, and its number among all launches."""
    seq: int
    line: Line
    tensor: str


class HostCopies:
    """The copies on their way, by the host memory they use."""

    def __init__(self, finished: Callable[[int, int], bool]) -> None:
        """`finished(stream, seq)` says whether the host has synchronised with that launch."""
        self._finished = finished
        self._copies: dict[tuple[int, int, Direction, int], Copy] = {}
        # In order of their addresses, so that an access looks at its neighbours only.
        self._keys: list[tuple[int, int, Direction, int]] = []
        self._longest = 0
        self._prune_at = _PRUNE_FROM

    def __bool__(self) -> bool:
        return bool(self._copies)

    def issue(self, copy: Copy) -> None:
        """A copy sets out. One of the same bytes before it on the same stream will have finished by its end."""
        key = (copy.region.start, copy.region.end, copy.direction, copy.stream)
        if key not in self._copies:
            if len(self._copies) >= self._prune_at:
                self._prune()
            insort(self._keys, key)
            self._longest = max(self._longest, copy.region.run)
        self._copies[key] = copy

    def written_in(self, region: Region) -> list[Copy]:
        """The unfinished copies that write any of these bytes."""
        return [copy for copy in self.using(region) if copy.direction == "d2h"]

    def using(self, region: Region) -> list[Copy]:
        """The unfinished copies that read or write any of these bytes."""
        return [
            copy
            for copy in map(self._copies.__getitem__, self._near(region))
            if overlap(region, copy.region) and not self._finished(copy.stream, copy.seq)
        ]

    def forget(self, region: Region) -> None:
        """The memory is gone: whatever has the same address next is something else."""
        self._drop({key for key in self._near(region) if overlap(region, self._copies[key].region)})

    def _near(self, region: Region) -> Iterator[tuple[int, int, Direction, int]]:
        for index in range(bisect_left(self._keys, (region.start - self._longest,)), len(self._keys)):
            if self._keys[index][0] >= region.end:
                return
            yield self._keys[index]

    def _prune(self) -> None:
        """Drops what has finished; the next time only when there are twice as many, so that it costs little a copy."""
        self._drop({key for key, copy in self._copies.items() if self._finished(copy.stream, copy.seq)})
        self._prune_at = max(_PRUNE_FROM, 2 * len(self._copies))

    def _drop(self, gone: set[tuple[int, int, Direction, int]]) -> None:
        if gone:
            for key in gone:
                del self._copies[key]
            self._keys = [key for key in self._keys if key not in gone]
            self._longest = max((copy.region.run for copy in self._copies.values()), default=0)
