"""What a source is: a kind of recording, how a file of it is known, and how it becomes a Trace.

Packages add their own by an entry point of the group `overlapscope.sources` that names a Source.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from overlapscope.reading._crew import Crew
from overlapscope.reading._progress import Progress
from overlapscope.reading.files import LIMIT_BYTES
from overlapscope.trace.model import Trace


class ReadRequest(Struct, frozen=True):
    """How a file is to be read."""

    limit_bytes: int = LIMIT_BYTES
    """How large it may be when unpacked."""
    progress: Progress = True
    """What `ReadingBar` takes."""
    crew: Crew = field(default_factory=Crew)
    """The processes that may help."""


class Source(Struct, frozen=True):
    """One kind of recording."""

    recorder: str
    """What its traces have as `Trace.recorder`."""
    suffixes: tuple[str, ...]
    """Lower-case endings of the files looked for in a directory. A file that is named may be called anything."""
    recognises: Callable[[bytes], bool]
    """Whether a file is of this kind, by the first bytes of its unpacked content, up to 64 KiB."""
    read: Callable[[Path, ReadRequest], Trace]
    """The Trace in such a file.

    Raises UnreadableTrace, with a sentence that begins with the path, where there is none to be had.
    """
    parts: Callable[[Path], int] | None = None
    """How many recordings are in such a file, where there may be several: each is read by its number then, `FILE@0`,
    `FILE@1`."""


Request = ReadRequest
"""Earlier name, which sources of other packages may import."""
