"""The sources there are: which one a file is of is told by its content, never by its name."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.reading import jax, kineto
from overlapscope.reading.files import SourceFile
from overlapscope.reading.source import Request, Source
from overlapscope.trace.model import Trace

GROUP: Final = "overlapscope.sources"
"""Entry points of other packages' sources."""
HEAD_BYTES: Final = 1 << 16

_OWN: Final = (jax.SOURCE, kineto.SOURCE)
"""Asked in this order."""

SUFFIXES: Final = tuple(suffix for source in _OWN for suffix in source.suffixes)
"""Endings, in any case, of the files looked for in a directory."""


def read(path: str | Path, request: Request) -> Trace:
    """The Trace in a file of any source; one that none of them knows is read as Kineto's, which says what is wrong.

    Raises UnreadableTrace, and UsageError where a package's source cannot be loaded.
    """
    head = _head(Path(path), request.limit_bytes)
    for source in _OWN:
        if source.recognises(head):
            return source.read(Path(path), request)
    for source in _others():
        if source.recognises(head):
            # The cache cannot know when another package reads differently than before.
            return replace(source.read(Path(path), request), unpacked_bytes=0)
    return kineto.SOURCE.read(Path(path), request)


def is_trace_name(name: str) -> bool:
    """Whether a file in a directory is taken for a trace, by its name: hidden ones are not."""
    name = name.lower()
    if name.startswith("."):
        return False
    return name.endswith(SUFFIXES) or any(name.endswith(source.suffixes) for source in _others())


def _head(path: Path, limit_bytes: int) -> bytes:
    try:
        return next(iter(SourceFile(path, limit_bytes=limit_bytes)), b"")[:HEAD_BYTES]
    except UnreadableTrace:
        # Whoever reads the file says so.
        return b""


@cache
def _others() -> tuple[Source, ...]:
    """The sources of other packages. Asked last: looking for them takes longer than reading a small trace."""
    from importlib.metadata import entry_points

    sources = []
    for entry in entry_points(group=GROUP):
        try:
            source = entry.load()
        except Exception as error:
            raise UsageError(
                f"the source {entry.name} ({entry.value}) cannot be loaded ({type(error).__name__}: {error}); update "
                "or uninstall its package."
            ) from error
        if not isinstance(source, Source):
            raise UsageError(
                f"the source {entry.name} ({entry.value}) is no overlapscope.reading.source.Source; update or "
                "uninstall its package."
            )
        sources.append(source)
    return tuple(sources)
