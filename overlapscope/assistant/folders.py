"""The directories that may be read, and what is in them. Nothing outside is ever opened, or told to exist."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from overlapscope.base.words import shorten
from overlapscope.errors import UsageError
from overlapscope.history.database import HEAD_BYTES, is_history
from overlapscope.reading import is_trace_name, look, parts
from overlapscope.reading.files import file_and_part, kind_of

_MOST_FILES: Final = 10_000
"""Looked at while files are listed: somebody may give a home directory."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Some directories, as absolute paths without links."""

    roots: tuple[Path, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> Folders:
        """Raises UsageError for what is no directory."""
        roots = [Path(os.path.realpath(name)) for name in names]
        for root, name in zip(roots, names, strict=True):
            if not root.is_dir():
                raise UsageError(f"{name}: is not a directory; name the directories that may be read.")
        return cls(tuple(dict.fromkeys(roots)))

    def path(self, name: str) -> Path:
        """What a name stands for: relative to one of the directories, or absolute in one of them.

        Raises UsageError where that lies outside, whether or not it exists; also through links.
        """
        inside = [path for root in self.roots if self.has(path := _real(root, name))]
        for path in inside:
            if file_and_part(path)[0].exists():
                return path
        if inside:
            raise UsageError(f"{shorten(name, 200)}: there is no such file; `list_traces` lists what there is.")
        raise UsageError(
            f"{shorten(name, 200)}: is not in the directories that may be read; `list_traces` lists what there is."
        )

    def files(self, name: str) -> tuple[Path, ...]:
        """The traces that a name stands for: a file, or those right inside a directory. Raises as `path`, and
        UnreadableTrace where there are none."""
        path = self.path(name)
        return tuple(file for file in look([path]).files if self.has(Path(os.path.realpath(file))))

    def has(self, path: Path) -> bool:
        """Whether a path without links lies in one of the directories."""
        return any(path.is_relative_to(root) for root in self.roots)

    def name(self, path: Path) -> str:
        """The shortest name by which `path` finds it: relative to its directory, if no other has the same."""
        root = next(root for root in self.roots if path.is_relative_to(root))
        short = str(path.relative_to(root))
        return short if self.path(short) == path else str(path)

    def relative(self, text: str) -> str:
        """A text in which absolute paths stand, with them as names."""
        for root in self.roots:
            text = text.replace(f"{root}{os.sep}", "")
        return text

    def listing(self) -> Iterator[tuple[str, str, int]]:
        """Files that can be asked about: their names, kinds (`trace`, `report`, `history`...) and bytes; of very many
        the first."""
        left = _MOST_FILES
        for root in self.roots:
            for directory, below, names in os.walk(root):
                below[:] = sorted(one for one in below if not one.startswith("."))
                for name in sorted(names)[:left]:
                    path = Path(directory, name)
                    if path.is_file() and self.has(Path(os.path.realpath(path))):
                        bytes = path.stat().st_size
                        yield from ((self.name(one), kind, bytes) for one, kind in _contents(path))
                left -= len(names)
                if left <= 0:
                    return


def _contents(path: Path) -> Iterator[tuple[Path, str]]:
    """What can be asked about in a file, with its kind."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return
    if is_history(head):
        yield path, "history"
    elif (written := kind_of(path)) is not None:
        yield path, written
    elif is_trace_name(path.name):
        yield from ((part, "trace") for part in parts(path))


def _real(root: Path, name: str) -> Path:
    try:
        return Path(os.path.realpath(root / name))
    except ValueError:
        raise UsageError("a name with a zero byte stands for no file.") from None
