"""A data race that was found: what it is, where, what is missing, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from overlapscope.base.words import clean, plural

Kind = Literal["read-while-copied", "overwritten-while-copied", "freed-while-copied", "stream-without-wait"]

MEANING: dict[Kind, str] = {
    "read-while-copied": "a host tensor is read while a copy may still be writing it",
    "overwritten-while-copied": "host memory is overwritten while a copy may still be using it",
    "freed-while-copied": "pinned host memory is given back while a copy may still be using it",
    "stream-without-wait": "a tensor is used on two streams, and the second does not wait for the first",
}
"""Every kind of hazard, in one sentence each."""


@dataclass(frozen=True, slots=True)
class Place:
    """One of the two lines of a hazard."""

    file: str
    """As Python knows it; empty where no Python line is known."""
    line: int
    """Counted from 1; 0 where none is known."""
    code: str
    """The line's text; empty where the file cannot be read."""
    does: str
    """What happens there to the tensor, such as `copies into it`."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "a line outside Python"


@dataclass(frozen=True, slots=True)
class Hazard:
    """Two lines of which nothing orders the second behind the first, though both use the same memory."""

    kind: Kind
    first: Place
    """The copy, or the earlier use on the other stream."""
    second: Place
    """The access that comes too early."""
    tensor: str
    """The tensor at its first sighting, such as `float32[100, 3]`."""
    streams: tuple[str, ...]
    """The copy's stream, or those of the first and the second use."""
    missing: str
    """The call that would order the two, and where it belongs."""
    count: int
    """How many times this pair of lines met."""


def stream_name(handle: int) -> str:
    """A stream by the address CUDA knows it by; torch has no names for streams."""
    return f"stream {handle:#x}" if handle else "the default stream"


def missing_synchronization(stream: int, copy: Place, access: Place) -> str:
    """What a host access lacks that must come after a copy."""
    if stream == 0:
        call = "torch.cuda.default_stream().synchronize(), or synchronize() of an event recorded behind the copy,"
    else:
        call = f"synchronize() of the stream of {copy}, or of an event recorded behind the copy,"
    return f"{call} before {access}"


def missing_wait(stream: int, first: Place, second: Place) -> str:
    """What a use on another stream lacks that must come after an earlier use."""
    if stream == 0:
        return f"torch.cuda.current_stream().wait_stream(torch.cuda.default_stream()) before {second}"
    return f"torch.cuda.current_stream().wait_stream(side) before {second}, where side is the stream of {first}"


def describe(hazard: Hazard) -> str:
    """The hazard as a few lines for a terminal; whatever comes from the program is made harmless."""
    times = f", {plural(hazard.count, 'time')}" if hazard.count > 1 else ""
    return "\n".join(
        [
            f"{hazard.kind}{times}: {MEANING[hazard.kind]}",
            *_described(hazard.first),
            *_described(hazard.second),
            f"    tensor: {clean(hazard.tensor)}, on {clean(' and '.join(hazard.streams))}",
            f"    missing: {clean(hazard.missing)}",
        ]
    )


def _described(place: Place) -> list[str]:
    lines = [f"  {clean(str(place))}  {place.does}"]
    if code := place.code.strip():
        lines.append(f"      {clean(code)}")
    return lines
