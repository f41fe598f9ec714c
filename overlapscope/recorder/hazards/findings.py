"""The hazards found so far: each pair of lines once, with a count."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import replace

from overlapscope.recorder.hazards.copies import Copy
from overlapscope.recorder.hazards.hazard import (
    Hazard,
    Kind,
    Place,
    missing_synchronization,
    missing_wait,
    stream_name,
)
from overlapscope.recorder.hazards.lines import Line
from overlapscope.recorder.hazards.uses import Use

_COPY_DOES = {"d2h": "copies into it", "h2d": "copies from it"}
_ACCESS_DOES: dict[Kind, str] = {
    "read-while-copied": "reads it",
    "overwritten-while-copied": "writes it",
    "freed-while-copied": "gives its memory back",
}


class Findings:
    """Collects hazards in the order in which they are found."""

    def __init__(self, code: Callable[[str, int], str] = linecache.getline) -> None:
        """`code(file, line)` is a line's text."""
        self._code = code
        self._hazards: dict[tuple[Kind, Line, Line], Hazard] = {}
        self._counts: dict[tuple[Kind, Line, Line], int] = {}

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """What has been found so far."""
        return tuple(replace(hazard, count=self._counts[key]) for key, hazard in list(self._hazards.items()))

    def host_access(self, kind: Kind, copy: Copy, line: Line) -> None:
        """The host accesses memory at `line` that `copy` may still be using."""
        if self._is_new(kind, copy.line, line):
            first = self._place(copy.line, _COPY_DOES[copy.direction])
            second = self._place(line, _ACCESS_DOES[kind])
            missing = missing_synchronization(copy.stream, first, second)
            streams = (stream_name(copy.stream),)
            self._hazards[kind, copy.line, line] = Hazard(kind, first, second, copy.tensor, streams, missing, 1)

    def unordered(self, earlier: Use, later: Use, tensor: object) -> None:
        """A launch uses what another stream may still be using."""
        kind: Kind = "stream-without-wait"
        if self._is_new(kind, earlier.line, later.line):
            streams = (stream_name(earlier.stream), stream_name(later.stream))
            first = self._place(earlier.line, f"{_verb(earlier)} it on {streams[0]}")
            second = self._place(later.line, f"{_verb(later)} it on {streams[1]}")
            missing = missing_wait(earlier.stream, first, second)
            self._hazards[kind, earlier.line, later.line] = Hazard(
                kind, first, second, str(tensor), streams, missing, 1
            )

    def _is_new(self, kind: Kind, first: Line, second: Line) -> bool:
        count = self._counts[kind, first, second] = self._counts.get((kind, first, second), 0) + 1
        return count == 1

    def _place(self, line: Line, does: str) -> Place:
        return Place(line.file, line.number, self._code(line.file, line.number).strip(), does)


def _verb(use: Use) -> str:
    return "writes" if use.write else "reads"
