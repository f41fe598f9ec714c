"""Finding and reading of trace files.

`source` chooses the reader for a file's format. Here, steps and communication are then added to the Trace.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from msgspec import Struct

from overlapscope.base import disk
from overlapscope.base.memory import release_free_memory
from overlapscope.errors import UnreadableTrace
from overlapscope.reading._progress import Progress
from overlapscope.reading.communication import with_communication
from overlapscope.reading.file_names import (
    file_and_part,
    input_path,
    is_pipe,
    natural,
    newest_recording,
    without_copies,
)
from overlapscope.reading.files import LIMIT_BYTES
from overlapscope.reading.patterns import name_patterns
from overlapscope.reading.source import SUFFIXES, ReadRequest, is_trace_name, parts, read
from overlapscope.trace.model import Trace
from overlapscope.trace.servers import StepBatch, is_front_end_file, marks_in, merged_files

_BEGINS_LIKE_A_TRACE = re.compile(rb"\x1f\x8b|\x28\xb5\x2f\xfd|\s*[\[{]")
_HEAD_BYTES = 64
_MAX_NAMED = 8
"""Maximum left-out files to name."""

__all__ = [
    "LIMIT_BYTES",
    "SUFFIXES",
    "FoundFiles",
    "expand",
    "find_traces",
    "is_trace_name",
    "load",
    "load_all",
    "natural",
    "parts",
]


_MIN_CACHED_BYTES = 1 << 20
"""Files with a smaller size are not looked for in the cache, because reading them is as fast, even packed."""
_LARGE_BYTES = 16 << 20
"""Unpacked size from which reading leaves so much freed memory that it is worth the time to return it."""


def load(
    source: str | Path,
    *,
    limit_bytes: int | None = None,
    progress: Progress = True,
    cache: bool = True,
    steps_by: str | None = None,
    periodic: bool = True,
    captures: str | Path | Iterable[str | Path] = (),
) -> Trace:
    """Return the Trace in one file; `-` is standard input.

    Args:
        source: Path of the file.
        limit_bytes: Maximum unpacked size, by default LIMIT_BYTES. A few kilobytes of gzip can hold terabytes.
        progress: Whether to show a bar on stderr if stderr is a terminal and reading takes over a second; or a function
            to call instead with the bytes read so far and in total.
        cache: Whether to keep the columns of a large file, and to take them from the cache when the same file is read
            again (`docs/how-it-works/cache.md`). The Trace is the same.
        steps_by: Name of the ranges to use as steps, in which `*` and `?` stand for any characters.
        periodic: Whether a recording without marked steps gets steps from its own period (`Trace.period`).
        captures: Recordings of the captures of the CUDA graphs that the program launches, as for `expand`.

    Raises:
        UnreadableTrace: The file cannot be read; the message is a sentence for the user.
        NotInTrace: No range has the name in `steps_by`.
        ConfigError: A list of names in the configuration is wrong.
    """
    path = input_path(source)
    if path.is_dir():
        raise UnreadableTrace(path, "is a directory; name a trace file in it, or load all of them with load_all.")
    request = ReadRequest(LIMIT_BYTES if limit_bytes is None else limit_bytes, progress)
    trace = _read_or_cached(path, request, cache)
    if trace.unpacked_bytes >= _LARGE_BYTES:
        release_free_memory()
    patterns = name_patterns()
    trace = with_communication(trace, patterns.communication)
    if captures:
        from overlapscope.reading.captures import read_each, with_captures

        trace = with_captures(trace, read_each(expand(captures), lambda path: _read_or_cached(path, request, cache)))
    marks = {} if steps_by is not None else marks_in(trace, patterns.server_steps)
    if steps_by is None and not marks and trace.has_steps:
        # Most recordings mark their steps.
        return trace
    return _with_steps(trace, steps_by, marks, periodic)


def _with_steps(trace: Trace, steps_by: str | None, marks: dict[str, StepBatch], periodic: bool) -> Trace:
    """Return the trace with steps from ranges or from what repeats, as for `load`; `marks` are those of a server."""
    from overlapscope.reading.steps import named_steps, range_steps, server_steps

    if steps_by is not None:
        return named_steps(trace, steps_by)
    if marks:
        trace = server_steps(trace, marks)
    if trace.recorder == "nsys":
        trace = range_steps(trace)
    if not periodic or trace.has_steps:
        return trace
    from overlapscope.reading.own_period import periodic_steps

    return periodic_steps(trace)


def _read_or_cached(path: Path, request: ReadRequest, cache: bool) -> Trace:
    if cache and _size(path) >= _MIN_CACHED_BYTES:
        from overlapscope.reading.cache import user_cache

        kept = user_cache()
        if kept is not None:
            return kept.load(path, request)
    return read(path, request)


def _size(path: Path) -> int:
    try:
        return file_and_part(path)[0].stat().st_size
    except OSError:
        # Reading the file reports the error.
        return 0


def load_all(sources: str | Path | Iterable[str | Path]) -> list[Trace]:
    """Return one Trace for each file that `expand` finds; two files of one rank stay two Traces.

    Raises:
        UnreadableTrace: A source cannot be read.
    """
    return [load(path) for path in expand(sources)]


def expand(sources: str | Path | Iterable[str | Path]) -> list[Path]:
    """Return the files of `find_traces`."""
    return list(find_traces(sources).files)


class FoundFiles(Struct, frozen=True):
    """Trace files that some paths stand for."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]
    """A sentence for each file that was left out though the user may have meant it."""


def find_traces(sources: str | Path | Iterable[str | Path]) -> FoundFiles:
    """Return the trace files that files, directories and glob patterns stand for, each file once, in the order given.

    A directory stands for the traces directly inside it, by their names (`is_trace_name`). The files of a directory or
    a pattern come in natural order (rank2 before rank10).

    Raises:
        UnreadableTrace: A directory has no trace, a pattern matches no file, or a file is missing.
    """
    if isinstance(sources, str | Path):
        sources = [sources]
    first_path_of: dict[Path, Path] = {}
    notes: list[str] = []
    for source in sources:
        files, left_out = _traces_at(source)
        notes += left_out
        for path in chain.from_iterable(map(parts, files)):
            # `Path.resolve` fails on circular links, which the reader reports better.
            first = first_path_of.setdefault(Path(os.path.realpath(path)), path)
            if first != path and path != Path(source):
                notes.append(f"{path}: is skipped: it is the same file as {first}.")
    return FoundFiles(tuple(first_path_of.values()), tuple(notes))


def _traces_at(source: str | Path) -> tuple[list[Path], list[str]]:
    """Return the files, and sentences on files that are left out."""
    if not str(source):
        raise UnreadableTrace("an empty name stands for no file; name a trace, or . for this directory.")
    path = input_path(source)
    try:
        if is_pipe(path):
            return [path], []
        if path.is_dir():
            path, older = newest_recording(path)
            inside = sorted(path.iterdir(), key=natural)
            files = [entry for entry in inside if is_trace_name(entry.name) and _may_be_read(entry)]
            left_out = older + _left_out(_others(inside, files))
            files, others = _only_workers(without_copies(files))
            left_out += others
            if not files:
                wrong = f"no trace in this directory; traces end in {', '.join(SUFFIXES)}, or name the file."
                raise UnreadableTrace(" ".join((f"{source}: {wrong}", *left_out)))
            return files, left_out
        if file_and_part(path)[1] is not None:
            return [path], []
        if not path.exists():
            if "://" in str(source):
                raise UnreadableTrace(
                    source, "is a URL, which only `overlapscope ranks` reads; download the file first."
                )
            if not glob.has_magic(str(source)):
                raise UnreadableTrace(source, "the file does not exist; check the path.")
            matches = sorted(_matches(str(source)), key=natural)
            files = [entry for entry in matches if _may_be_read(entry)]
            if not files:
                raise UnreadableTrace(source, "the pattern matches no file; check it.")
            # A pattern with `**` matches the files below directories itself.
            return files, [] if "**" in str(source) else _left_out(_others(matches, files))
    except OSError as error:
        raise UnreadableTrace(
            source, f"cannot be read ({error.strerror or error}); check the path and its permissions."
        ) from None
    return [path], []


def _only_workers(files: list[Path]) -> tuple[list[Path], list[str]]:
    """Return the files of a server's workers if there are any, and a sentence on each of the others."""
    merged = merged_files([file.name for file in files])
    workers = [file for file in files if not is_front_end_file(file.name) and file.name not in merged]
    if not workers:
        return files, []
    why = {True: "it has what the files of its ranks have", False: "it is of a server's front end, without a GPU"}
    others = [file for file in files if file not in workers]
    return workers, [f"{file}: is skipped: {why[file.name in merged]}." for file in others]


def _matches(pattern: str) -> Iterator[Path]:
    """Yield the paths that match a pattern. `**` follows no links, because a link may lead to a folder above itself."""
    if "**" not in pattern:
        yield from map(Path, glob.glob(pattern))
        return
    anchor, spelled = Path(pattern).anchor, Path(pattern).parts
    for path in Path(anchor or ".").glob(pattern.removeprefix(anchor)):
        # As in a shell, `*` does not match hidden names.
        if not any(part.startswith(".") for part in path.parts if part not in spelled):
            yield path


def _others(paths: Iterable[Path], without: Iterable[Path]) -> list[Path]:
    """Return the paths that are not in the second list. Both may be very long."""
    left_out = set(without)
    return [path for path in paths if path not in left_out]


def _may_be_read(path: Path) -> bool:
    """Return whether a path is a file or a broken link; reading the link reports that its target is missing."""
    return path.is_file() or (path.is_symlink() and not path.exists())


def _left_out(paths: Iterable[Path]) -> list[str]:
    """Return a sentence for each file that the user may have meant, up to a maximum number."""
    sentences = [f"{path}: is skipped: {why}." for path in paths if (why := _why_left_out(path)) is not None]
    more = len(sentences) - _MAX_NAMED
    return [*sentences[:_MAX_NAMED], f"{more} more are skipped."] if more > 1 else sentences


def _why_left_out(path: Path) -> str | None:
    """Return why a file is left out; None for a file that does not look like a trace."""
    if path.is_dir():
        traces = 0
        with suppress(OSError):
            traces = sum(is_trace_name(entry.name) for entry in path.iterdir())
        return f"it is a directory with files named like traces ({traces:,}); name it too" if traces else None
    if path.name.lower().endswith(SUFFIXES):
        return "it is hidden" if path.name.startswith(".") else "it is not a regular file"
    with suppress(OSError):
        if path.is_file() and _BEGINS_LIKE_A_TRACE.match(_head(path)):
            return f"its name does not end in {', '.join(SUFFIXES)}; name it to read it"
    return None


def _head(path: Path) -> bytes:
    with open(path, "rb", opener=disk.regular) as file:
        # Reading a special file may have to wait for data, which gives None.
        return file.read(_HEAD_BYTES) or b""
