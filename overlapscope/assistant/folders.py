"""The directories that may be read, and what is in them. Nothing outside is ever opened, or told to exist."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from overlapscope.base import disk
from overlapscope.base.words import clean, shorten
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.history.database import HEAD_BYTES, is_history
from overlapscope.reading import is_trace_name, jax, look, natural, parts
from overlapscope.reading.files import file_and_part, kind_of

_MOST_LISTED: Final = 10_000
"""Files looked at while they are listed: somebody may give a home directory."""
_EXPORTED: Final = ".nsys-rep"
"""Read by starting `nsys export`, which writes."""


class Folders(Struct, frozen=True):
    """Some directories, as absolute paths without links."""

    roots: tuple[Path, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> Folders:
        """Raises UsageError for what is no directory."""
        roots = [Path(os.path.realpath(name)) for name in names]
        for root, name in zip(roots, names, strict=True):
            if not root.is_dir():
                raise UsageError(f"{name}: is not a directory; name the directories that may be read.")
        return cls(tuple(dict.fromkeys(roots)))

    def path(self, name: str) -> Path:
        """The file or directory that a name stands for: relative to one of the directories, or absolute in one of them;
        of several recordings in a file one, as `@2` behind its name says.

        Raises UsageError where that lies outside, whether or not it exists, also through links; where there is none;
        and for what is read by starting a program, or may never end.
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
                raise UsageError(f"{shown}: cannot be a name; `list_traces` lists what there is.") from None
        else:
            where = "there is no such file" if inside else "is not in the directories that may be read"
            raise UsageError(f"{shown}: {where}; `list_traces` lists what there is.")
        if real.name.lower().endswith(_EXPORTED):
            raise UsageError(f"{shown}: has to be exported first, with `nsys export --type sqlite`; name the result.")
        return real if part is None else real.with_name(f"{real.name}@{part}")

    def files(self, name: str) -> tuple[Path, ...]:
        """The traces that a name stands for: one, those in a file, or those right inside a directory.

        Raises as `path`, and UsageError where there are none.
        """
        path = self.path(name)
        if not path.is_dir():
            return look([path]).files
        run = Path(os.path.realpath(jax.run_in(path, lambda run: self._has(Path(os.path.realpath(run))))[0]))
        inside = [Path(os.path.realpath(one)) for one in sorted(run.iterdir(), key=natural) if is_trace_name(one.name)]
        named = [one for one in inside if self._has(one) and one.is_file() and not one.name.endswith(_EXPORTED)]
        if not named or not self._has(run):
            raise UsageError(f"{shorten(clean(name), 200)}: holds no trace; `list_traces` lists what there is.")
        return look(jax.without_copies(named)).files

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
        the first. Not those whose names nobody could write."""
        left = _MOST_LISTED
        for root in self.roots:
            for directory, below, names in os.walk(root):
                below[:] = sorted(one for one in below if not one.startswith("."))
                for name in sorted(names)[:left]:
                    path = Path(directory, name)
                    if clean(str(path)) == str(path) and path.is_file() and self._has(Path(os.path.realpath(path))):
                        yield from ((self.name(one), kind, path.stat().st_size) for one, kind in _contents(path))
                left -= len(names)
                if left <= 0:
                    return

    def _has(self, path: Path) -> bool:
        """Whether a path without links lies in one of the directories."""
        return any(path.is_relative_to(root) for root in self.roots)


def _contents(path: Path) -> Iterable[tuple[Path, str]]:
    """What can be asked about in a file, with its kind; nothing where it cannot be read."""
    if path.name.lower().endswith(_EXPORTED):
        return ()
    try:
        with open(path, "rb", opener=disk.regular) as file:
            # Reading a special file may have to wait for data, which gives None.
            head = file.read(HEAD_BYTES) or b""
        written = "history" if is_history(head) else kind_of(path)
        if written is not None:
            return ((path, written),)
        return [(part, "trace") for part in parts(path)] if is_trace_name(path.name) else ()
    except (OSError, OverlapscopeError):
        return ()
