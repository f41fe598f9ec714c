"""From files to Traces. `kineto` is the only format so far."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from overlapscope.errors import UnreadableTrace
from overlapscope.sources import kineto
from overlapscope.sources._crew import Crew
from overlapscope.sources._progress import Progress
from overlapscope.sources.files import LIMIT_BYTES
from overlapscope.sources.pipes import is_pipe, named
from overlapscope.trace import Trace

SUFFIXES = (".json", ".json.gz", ".json.zst")
"""Endings of the files looked for in a directory. A file that is named may be called anything."""

__all__ = ["LIMIT_BYTES", "SUFFIXES", "expand", "load", "load_all", "natural"]


def load(
    source: str | Path,
    *,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress = True,
    cache: bool = True,
    meanwhile: Callable[[], object] | None = None,
) -> Trace:
    """The Trace in one file; `-` is standard input.

    `limit_bytes` bounds the unpacked size (a few kilobytes of gzip can hold terabytes). `progress` shows a
    bar on stderr if that is a terminal and reading takes over a second; a function is called instead, with the
    bytes read and how many there are. `cache` keeps what was read of a large file, and takes it from there where the
    same content is read again (`docs/cache.md`); the Trace is the same. `meanwhile` is called once other processes have
    begun to read, if any do, for what this one has to do besides, such as importing what the Trace is for.

    Raises UnreadableTrace with a sentence for the user.
    """
    source = path = named(source)
    if path.is_dir():
        raise UnreadableTrace(f"{source}: is a directory; name a trace file in it, or load all of them with load_all.")
    crew = Crew(meanwhile=meanwhile)
    if cache:
        from overlapscope.sources.cache import of_user

        kept = of_user()
        if kept is not None:
            return kept.load(source, limit_bytes=limit_bytes, progress=progress, crew=crew)
    return kineto.read(source, limit_bytes=limit_bytes, progress=progress, crew=crew)


def load_all(
    sources: str | Path | Iterable[str | Path],
    *,
    limit_bytes: int = LIMIT_BYTES,
    progress: bool = True,
    cache: bool = True,
) -> list[Trace]:
    """One Trace for each file that `expand` finds. Two files of one rank stay two Traces.

    Raises UnreadableTrace for the first source that cannot be read.
    """
    return [load(path, limit_bytes=limit_bytes, progress=progress, cache=cache) for path in expand(sources)]


def expand(sources: str | Path | Iterable[str | Path]) -> list[Path]:
    """The trace files that files, directories and glob patterns stand for, each file once, in the order
    given.

    A directory stands for the traces right inside it, and it and a pattern yield theirs in natural order
    (rank2 before rank10).

    Raises UnreadableTrace where a directory holds no trace, a pattern matches none, or a file is missing.
    """
    if isinstance(sources, str | Path):
        sources = [sources]
    found: dict[Path, Path] = {}
    for source in sources:
        for path in _expand_one(source):
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _expand_one(source: str | Path) -> list[Path]:
    path = named(source)
    try:
        if is_pipe(path):
            return [path]
        if path.is_dir():
            files = [file for file in path.iterdir() if file.name.endswith(SUFFIXES) and file.is_file()]
            if not files:
                raise UnreadableTrace(
                    f"{source}: no trace in this directory; traces end in {', '.join(SUFFIXES)}, or name the file."
                )
            return sorted(files, key=natural)
        if not path.exists():
            if "://" in str(source):
                raise UnreadableTrace(
                    f"{source}: is a URL, which only `overlapscope ranks` reads; fetch the file first."
                )
            if not glob.has_magic(str(source)):
                raise UnreadableTrace(f"{source}: there is no such file; check the path.")
            files = [Path(match) for match in glob.glob(str(source), recursive=True)]
            files = [file for file in files if file.is_file()]
            if not files:
                raise UnreadableTrace(f"{source}: the pattern matches no file; check it.")
            return sorted(files, key=natural)
    except OSError as error:
        raise UnreadableTrace(
            f"{source}: cannot be read ({error.strerror or error}); check the path and its permissions."
        ) from None
    return [path]


def natural(path: Path) -> list[tuple[int, int, str]]:
    """A sort key for paths by which rank2 comes before rank10."""
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
