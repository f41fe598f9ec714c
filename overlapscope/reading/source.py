"""Sources: kinds of recordings, how to recognize their files, and how to read them.

The content of a file determines its source, never its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from overlapscope import plugin
from overlapscope.base.registry import load
from overlapscope.errors import UnreadableTrace
from overlapscope.reading import kineto
from overlapscope.reading._progress import Progress
from overlapscope.reading.file_names import file_and_part
from overlapscope.reading.files import LIMIT_BYTES, SourceFile, is_pipe
from overlapscope.trace.model import Trace

if TYPE_CHECKING:
    from overlapscope.reading._crew import Crew


class ReadRequest(Struct, frozen=True):
    """How to read a file."""

    limit_bytes: int = LIMIT_BYTES
    """Maximum unpacked size."""
    progress: Progress = True
    """Progress, as `ReadingBar` takes it."""
    crew: Crew | None = None
    """Threads that may help; None for those that help by default."""


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


def _read_kineto(path: Path, request: ReadRequest) -> Trace:
    return kineto.read(path, limit_bytes=request.limit_bytes, progress=request.progress, crew=request.crew)


KINETO: Final = Source((".json", ".json.gz", ".json.zst"), kineto.recognises, _read_kineto, kineto.parts)


def _source_of_plugin(source: plugin.TraceSource) -> Source:
    """Return a source whose modules are imported when it first reads a file."""
    sign = re.compile(source.sign)

    def read(path: Path, request: ReadRequest) -> Trace:
        trace: Trace = load(source.read)(path, request)
        return trace

    def parts(path: Path) -> int:
        count: int = load(source.parts)(path) if source.parts else 1
        return count

    return Source(source.suffixes, lambda head: sign.match(head) is not None, read, parts)


_OF_PLUGINS: Final = tuple(map(_source_of_plugin, plugin.sources()))
_SOURCES: Final = (*_OF_PLUGINS, KINETO)
"""Sources in the order in which they are tried."""

SUFFIXES: Final = tuple(dict.fromkeys(suffix for source in _SOURCES for suffix in source.suffixes))
"""Endings, in any case, of the files to find in a directory."""


def read(path: str | Path, request: ReadRequest) -> Trace:
    """Return the Trace in a file of any source. An unrecognized file is read as Kineto's, to report its error.

    Raises:
        UnreadableTrace: The file holds no readable trace.
        UsageError: A plugin of another package cannot be loaded.
    """
    source = source_of(Path(path), request.limit_bytes)
    trace = source.read(Path(path), request)
    # The cache cannot detect that another package now reads files differently.
    return trace if source in _SOURCES else replace(trace, unpacked_bytes=0)


def parts(path: Path) -> list[Path]:
    """Return the paths to read for a file: itself, or each of several recordings in it."""
    if is_pipe(path):
        return [path]
    head = _head(path, LIMIT_BYTES)
    source = next((source for source in _SOURCES if source.recognises(head)), None)
    count = source.parts(path) if source is not None and source.parts else 1
    return [path.with_name(f"{path.name}@{number}") for number in range(count)] if count > 1 else [path]


def is_trace_name(name: str) -> bool:
    """Return whether a file in a directory is taken for a trace, by its name; hidden files are not."""
    name = name.lower()
    if name.startswith("."):
        return False
    return name.endswith(SUFFIXES) or any(name.endswith(source.suffixes) for source in _others())


def source_of(path: Path, limit_bytes: int = LIMIT_BYTES) -> Source:
    """Return the source of a file; Kineto's where none recognizes it, or it cannot be read."""
    head = _head(file_and_part(path)[0], limit_bytes)
    ours = next((source for source in _SOURCES if source.recognises(head)), None)
    return ours or next((source for source in _others() if source.recognises(head)), KINETO)


def _head(path: Path, limit_bytes: int) -> bytes:
    try:
        return SourceFile(path, limit_bytes=limit_bytes).head()
    except UnreadableTrace:
        if is_pipe(path):
            # The bytes that came through the pipe are gone.
            raise
        # Reading the file reports the error.
        return b""


@cache
def _others() -> tuple[Source, ...]:
    """Return the sources of other packages.

    They come last, because finding them takes longer than reading a small file.

    Raises:
        UsageError: A package's plugin can't be imported, or is none.
    """
    return tuple(_source_of_plugin(source) for each in plugin.installed_plugins() for source in each.sources)
