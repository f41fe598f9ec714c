"""Sources: kinds of recordings, how to recognize their files, and how to read them.

The content of a file determines its source, never its name.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from overlapscope import plugin
from overlapscope.base.registry import load
from overlapscope.errors import UnreadableTrace
from overlapscope.plugin import TraceSource
from overlapscope.reading._progress import Progress
from overlapscope.reading.file_names import file_and_part, is_pipe
from overlapscope.reading.files import LIMIT_BYTES, SourceFile
from overlapscope.trace.model import Trace


class ReadRequest(Struct, frozen=True):
    """How to read a file."""

    limit_bytes: int = LIMIT_BYTES
    """Maximum unpacked size."""
    progress: Progress = True
    """Progress, as `ReadingBar` takes it."""


KINETO: Final = TraceSource(
    plugin.KINETO,
    suffixes=(".json", ".json.gz", ".json.zst"),
    sign=rb'(?s).*"(?:ph|traceEvents|schemaVersion)"',
    read="overlapscope.reading.kineto:read_requested",
    parts="overlapscope.reading.kineto:parts",
)
_SOURCES: Final = (*plugin.sources(), KINETO)
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
    trace: Trace = load(source.read)(Path(path), request)
    # The cache cannot detect that another package now reads files differently.
    return trace if source in _SOURCES else replace(trace, unpacked_bytes=0)


def parts(path: Path) -> list[Path]:
    """Return the paths to read for a file: itself, or each of several recordings in it."""
    if is_pipe(path):
        return [path]
    source = _with_sign(_SOURCES, _head(path, LIMIT_BYTES))
    count = load(source.parts)(path) if source is not None and source.parts else 1
    return [path.with_name(f"{path.name}@{number}") for number in range(count)] if count > 1 else [path]


def is_trace_name(name: str) -> bool:
    """Return whether a file in a directory is taken for a trace, by its name; hidden files are not."""
    name = name.lower()
    if name.startswith("."):
        return False
    return name.endswith(SUFFIXES) or any(name.endswith(source.suffixes) for source in _others())


def source_of(path: Path, limit_bytes: int = LIMIT_BYTES) -> TraceSource:
    """Return the source of a file; Kineto's where none recognizes it, or it cannot be read."""
    head = _head(file_and_part(path)[0], limit_bytes)
    return _with_sign(_SOURCES, head) or _with_sign(_others(), head) or KINETO


def _with_sign(sources: tuple[TraceSource, ...], head: bytes) -> TraceSource | None:
    return next((source for source in sources if re.match(source.sign, head)), None)


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
def _others() -> tuple[TraceSource, ...]:
    """Return the sources of other packages.

    They come last, because finding them takes longer than reading a small file.

    Raises:
        UsageError: A package's plugin can't be imported, or is none.
    """
    return tuple(source for each in plugin.installed_plugins() for source in each.sources)
