"""Data races found so far, each pair of lines once with a count, and their description."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from overlapscope.base.words import clean, listed, plural
from overlapscope.plugins.hazards.lines import CodeLine
from overlapscope.plugins.hazards.memory import Copy, Launch, Use

Kind = Literal["read-while-copied", "overwritten-while-copied", "freed-while-copied", "stream-without-wait"]

MEANING: dict[Kind, str] = {
    "read-while-copied": "a host tensor is read while a copy may still be writing it",
    "overwritten-while-copied": "host memory is overwritten while a copy may still be using it",
    "freed-while-copied": "pinned host memory is freed while a copy may still be using it",
    "stream-without-wait": "a tensor is used on two streams, and the second does not wait for the first",
}
"""A sentence for each kind of hazard."""
_COPY_DOES = {"d2h": "copies into it", "h2d": "copies from it"}
_ACCESS_DOES: dict[Kind, str] = {
    "read-while-copied": "reads it",
    "overwritten-while-copied": "writes it",
    "freed-while-copied": "frees its memory",
}


@dataclass(frozen=True, slots=True)
class HazardPlace:
    """A line of a hazard."""

    file: str
    """File as Python names it; empty without a Python line."""
    line: int
    """Number of the line, counted from 1; 0 if unknown."""
    code: str
    """Text of the line; empty if the file cannot be read."""
    does: str
    """Action of the line on the tensor, such as `copies into it`."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "code outside Python"


@dataclass(frozen=True, slots=True)
class Hazard:
    """Two lines that use the same memory, though nothing orders the second after the first."""

    kind: Kind
    first: HazardPlace
    """Place of the copy, or of the earlier use on the other stream."""
    second: HazardPlace
    """Place of the access that comes too early."""
    tensor: str
    """Description of the tensor when the hazard was first found, such as `float32[100, 3]`."""
    streams: tuple[str, ...]
    """Stream of the copy, or streams of the first and the second use."""
    missing: str
    """Call that would order the two, and its place."""
    count: int = 1
    """Number of times that this pair of lines raced."""


class Findings:
    """Collects hazards in the order in which they are found."""

    def __init__(self, code: Callable[[str, int], str] = linecache.getline) -> None:
        """Prepare to collect hazards. `code(file, line)` returns the text of a line."""
        self._code = code
        self._hazards: dict[tuple[Kind, CodeLine, CodeLine], Hazard] = {}

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """Hazards found so far."""
        return tuple(self._hazards.values())

    def host_access(self, kind: Kind, copy: Copy, line: CodeLine) -> None:
        """Note that the host accesses memory at `line` that `copy` may still be using."""
        stream, copied_at = copy.launch.stream, copy.launch.line
        if not self._is_known(kind, copied_at, line):
            first = self._place(copied_at, _COPY_DOES[copy.direction])
            second = self._place(line, _ACCESS_DOES[kind])
            missing = _missing_synchronization(stream, first, second)
            hazard = Hazard(kind, first, second, copy.tensor, (_stream_name(stream),), missing)
            self._hazards[kind, copied_at, line] = hazard

    def unordered(self, earlier: Use, later: Use, tensor: object) -> None:
        """Note that a launch uses memory that another stream may still be using."""
        kind: Kind = "stream-without-wait"
        if not self._is_known(kind, earlier.launch.line, later.launch.line):
            first, second = (
                self._place(use.launch.line, f"{'writes' if use.write else 'reads'} it on {stream}")
                for use in (earlier, later)
                for stream in [_stream_name(use.launch.stream)]
            )
            streams = _stream_name(earlier.launch.stream), _stream_name(later.launch.stream)
            missing = _missing_wait(earlier.launch, first, second)
            hazard = Hazard(kind, first, second, str(tensor), streams, missing)
            self._hazards[kind, earlier.launch.line, later.launch.line] = hazard

    def _is_known(self, kind: Kind, first: CodeLine, second: CodeLine) -> bool:
        """Return whether this pair of lines has raced before, and count it if so."""
        hazard = self._hazards.get((kind, first, second))
        if hazard is not None:
            self._hazards[kind, first, second] = replace(hazard, count=hazard.count + 1)
        return hazard is not None

    def _place(self, line: CodeLine, does: str) -> HazardPlace:
        return HazardPlace(line.file, line.number, self._code(line.file, line.number).strip(), does)


def _stream_name(handle: int) -> str:
    """Return the name of a stream, by its address in CUDA, since torch has no names for streams."""
    return f"stream {handle:#x}" if handle else "the default stream"


def _missing_synchronization(stream: int, copy: HazardPlace, access: HazardPlace) -> str:
    """Return the call that is missing between a copy and an access of the host."""
    if stream == 0:
        call = "torch.cuda.default_stream().synchronize(), or synchronize() of an event recorded after the copy,"
    else:
        call = f"synchronize() of the stream of {copy}, or of an event recorded after the copy,"
    return f"{call} before {access}"


def _missing_wait(earlier: Launch, first: HazardPlace, second: HazardPlace) -> str:
    """Return the call that is missing between an earlier use and a use on another stream."""
    if earlier.is_collective:
        return f"wait() of the collective of {first} before {second}"
    if earlier.stream == 0:
        return f"torch.cuda.current_stream().wait_stream(torch.cuda.default_stream()) before {second}"
    return f"torch.cuda.current_stream().wait_stream(side) before {second}, where side is the stream of {first}"


def describe(hazard: Hazard) -> str:
    """Return a description of a few lines for a terminal, with the program's texts cleaned of control characters."""
    times = f", {plural(hazard.count, 'time')}" if hazard.count > 1 else ""
    lines = [f"{hazard.kind}{times}: {MEANING[hazard.kind]}"]
    for place in (hazard.first, hazard.second):
        lines.append(f"  {clean(str(place))}  {place.does}")
        if code := place.code.strip():
            lines.append(f"      {clean(code)}")
    lines.append(f"    tensor: {clean(hazard.tensor)}, on {clean(listed(hazard.streams))}")
    lines.append(f"    missing: {clean(hazard.missing)}")
    return "\n".join(lines)
