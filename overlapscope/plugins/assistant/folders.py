"""Directories that the server may read, and their files. It never opens or reveals anything outside."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from overlapscope.base import disk
from overlapscope.base.words import clean, shorten
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.plugin import TraceSource, plugins, sources
from overlapscope.reading import find_traces, is_trace_name, natural, parts
from overlapscope.reading.file_names import file_and_part, newest_recording, without_copies
from overlapscope.reading.files import kind_of

_MAX_LISTED: Final = 10_000
"""Maximum number of files to list, since a user may give a home directory."""
_HEAD_BYTES: Final = 128
"""Number of bytes at the beginning of a file that tell its kind."""


class Folders(Struct, frozen=True):
    """Directories as absolute paths without links."""

    roots: tuple[Path, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> Folders:
        """Return the directories with these names. Raises UsageError if one is not a directory."""
        roots = [Path(os.path.realpath(name)) for name in names]
        for root, name in zip(roots, names, strict=True):
            if not root.is_dir():
                raise UsageError(f"{name}: is not a directory; name the directories that may be read.")
        return cls(tuple(dict.fromkeys(roots)))

    def path(self, name: str) -> Path:
        """Return the file or directory with a name that is relative to a directory, or absolute and inside.

        The suffix `@2` selects a recording in a file with several.

        Raises:
            UsageError: The path is outside, also through links and even if it doesn't exist; it doesn't exist inside;
                or reading it would start a program or might never end.
        """
        shown = shorten(clean(name), 200)
        inside = False
        for root in self.roots:
            try:
                path, part = file_and_part(root / name)
                real = Path(os.path.realpath(path))
                if not self._has(real):
                    continue
                inside = True
                if real.is_dir() or real.is_file():
                    break
            except (OSError, ValueError):
                raise UsageError(f"{shown}: cannot be a name; `list_traces` lists all files.") from None
        else:
            problem = "there is no such file" if inside else "is not in the directories that may be read"
            raise UsageError(f"{shown}: {problem}; `list_traces` lists all files.")
        if source := _packed(real):
            raise UsageError(f"{shown}: has to be converted to {source.suffixes[0]} first; name the result.")
        return real if part is None else real.with_name(f"{real.name}@{part}")

    def files(self, name: str) -> tuple[Path, ...]:
        """Return the traces with a name: a file, the recordings in it, or the files in a directory.

        Raises:
            UsageError: There are no traces, or `path` would raise it.
        """
        path = self.path(name)
        if not path.is_dir():
            return find_traces([path]).files
        run = Path(os.path.realpath(newest_recording(path, lambda run: self._has(Path(os.path.realpath(run))))[0]))
        inside = [
            Path(os.path.realpath(file)) for file in sorted(run.iterdir(), key=natural) if is_trace_name(file.name)
        ]
        named = [file for file in inside if self._has(file) and file.is_file() and not _packed(file)]
        if not named or not self._has(run):
            raise UsageError(f"{shorten(clean(name), 200)}: holds no trace; `list_traces` lists all files.")
        return find_traces(without_copies(named)).files

    def name(self, path: Path) -> str:
        """Return the shortest name with which `path` finds a file: relative to its directory if that is unique."""
        root = next(root for root in self.roots if path.is_relative_to(root))
        short = str(path.relative_to(root))
        return short if self.path(short) == path else str(path)

    def relative(self, text: str) -> str:
        """Replace absolute paths in a text with relative names."""
        for root in self.roots:
            text = text.replace(f"{root}{os.sep}", "")
        return text

    def listing(self) -> Iterator[tuple[str, str, int]]:
        """Yield readable files with name, kind (`trace`, `report`, `history`...) and size in bytes.

        The number of files is limited. Files are left out if their names contain control characters.
        """
        remaining = _MAX_LISTED
        for root in self.roots:
            for directory, below, names in os.walk(root):
                below[:] = sorted(folder for folder in below if not folder.startswith("."))
                for name in sorted(names)[:remaining]:
                    path = Path(directory, name)
                    if clean(str(path)) == str(path) and path.is_file() and self._has(Path(os.path.realpath(path))):
                        yield from ((self.name(part), kind, path.stat().st_size) for part, kind in _contents(path))
                remaining -= len(names)
                if remaining <= 0:
                    return

    def _has(self, path: Path) -> bool:
        """Return whether a path without links is in one of the directories."""
        return any(path.is_relative_to(root) for root in self.roots)


def _packed(path: Path) -> TraceSource | None:
    """Return the source of a file that only another program can unpack, which would write files."""
    return next((each for each in sources() if each.packed and path.name.lower().endswith(each.packed)), None)


def _contents(path: Path) -> Iterable[tuple[Path, str]]:
    """Return the recordings or documents in a file, with their kind; nothing if it can't be read."""
    if _packed(path):
        return ()
    try:
        with open(path, "rb", opener=disk.regular) as file:
            # Reading a special file may have to wait for data, which gives None.
            head = file.read(_HEAD_BYTES) or b""
        signs = ((kind, sign) for plugin in plugins() for kind, sign in plugin.signs.items())
        written = next((kind for kind, sign in signs if re.match(sign, head)), None) or kind_of(path)
        if written is not None:
            return ((path, written),)
        return [(part, "trace") for part in parts(path)] if is_trace_name(path.name) else ()
    except (OSError, OverlapscopeError):
        return ()
