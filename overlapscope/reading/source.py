"""Interface of sources: kinds of recordings, how to recognize their files, and how to read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from overlapscope.reading._crew import Crew
from overlapscope.reading._progress import Progress
from overlapscope.reading.files import LIMIT_BYTES
from overlapscope.trace.model import Trace


class ReadRequest(Struct, frozen=True):
    """How to read a file."""

    limit_bytes: int = LIMIT_BYTES
    """Maximum unpacked size."""
    progress: Progress = True
    """Progress, as `ReadingBar` takes it."""
    crew: Crew = field(default_factory=Crew)
    """Threads that may help."""


class Source(Struct, frozen=True):
    """A kind of recording. Plugins state theirs as `plugin.TraceSource`."""

    suffixes: tuple[str, ...]
    """Lower-case endings of the files to find in a directory. A file named by the user may have any name."""
    recognises: Callable[[bytes], bool]
    """Function that returns whether a file is of this kind, given up to 64 KiB of its unpacked content."""
    read: Callable[[Path, ReadRequest], Trace]
    """Function that returns the Trace in a file.

    It raises UnreadableTrace, with a sentence that begins with the path, if there is none.
    """
    parts: Callable[[Path], int] | None = None
    """Function that returns the number of processes recorded in a file, if there may be several. Each is then read by
    its number, as `FILE@0`, `FILE@1`."""
