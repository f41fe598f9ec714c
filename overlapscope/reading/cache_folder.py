"""The cache's folder: its place, its content, its maximum size, and whether it works.

The folder needs no locks. A file appears under its name complete or not at all, and its name identifies its content. So
it does not matter which process wrote it, or whether one process removes it while another reads it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from overlapscope.base import disk
from overlapscope.base.words import parse_size
from overlapscope.errors import UsageError

FOLDER_VARIABLE = "OVERLAPSCOPE_CACHE_DIR"
LIMIT_VARIABLE = "OVERLAPSCOPE_CACHE_SIZE"
LIMIT_BYTES = 5 << 30

PREFIX = "overlapscope-"
_OURS = re.compile(rf"{PREFIX}[0-9a-fx-]+\.(?:npy|part)")
_PROBE_BYTES = 1 << 20
_TAG = "CACHEDIR.TAG"
_TAG_TEXT = """Signature: 8a477f597d28d172789f06886806bc55
# This file says that the folder is a cache, of overlapscope, and need not be backed up (https://bford.info/cachedir).
"""


def default_folder() -> Path | None:
    """Return the folder of this user's cache; None if the user has no home folder either."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Path(folder).expanduser().absolute()
    return disk.user_folder("Caches", "XDG_CACHE_HOME", ".cache")


def planted(folder: Path) -> Path | None:
    """Return the folder, or the one of those that it is in, that another user put where everybody may write."""
    return next(filter(disk.is_planted, (folder, *folder.parents)), None)


def limit_bytes() -> int:
    """Return the maximum size of the cache.

    Raises:
        UsageError: The environment variable is not a size.
    """
    limit = os.environ.get(LIMIT_VARIABLE)
    if not limit:
        return LIMIT_BYTES
    try:
        return parse_size(limit)
    except ValueError as error:
        raise UsageError(f"{LIMIT_VARIABLE}: {error}; 0 turns the cache off.") from None


class Held(msgspec.Struct, frozen=True):
    """A file of the cache."""

    path: Path
    bytes: int
    used_ns: int
    """Time of last use."""

    @property
    def is_entry(self) -> bool:
        """True if the file holds a trace, and is not unfinished."""
        return self.path.suffix == ".npy"


class Folder(msgspec.Struct, frozen=True):
    """A folder for the cache. It may hold other files too, which stay untouched."""

    path: Path

    def held(self) -> list[Held]:
        """Return the cache's files; none if the folder does not exist.

        Raises:
            OSError: The folder cannot be read.
        """
        held = []
        try:
            with os.scandir(self.path) as files:
                for file in files:
                    if _OURS.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                        with suppress(FileNotFoundError):
                            stat = file.stat(follow_symlinks=False)
                            held.append(Held(Path(file.path), stat.st_size, stat.st_mtime_ns))
        except FileNotFoundError:
            return []
        return held

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield an empty file to write, which gets the name at the end unless an exception is raised.

        Raises:
            OSError: The file cannot be written.
        """
        self._make()
        temporary = f"{PREFIX}{os.urandom(8).hex()}.part"
        # No flush to the disk is needed: after a power failure, a damaged file has a wrong digest.
        with disk.put_in_place(self.path / name, temporary, mode=0o600) as file:
            yield file

    def sweep(self, limit_bytes: int) -> None:
        """Remove the least recently used files above the limit.

        Raises:
            OSError: A file cannot be removed.
        """
        files = self.held()
        over = sum(file.bytes for file in files) - limit_bytes
        for file in sorted(files, key=lambda file: file.used_ns):
            if over <= 0:
                return
            remove(file.path)
            over -= file.bytes

    def clear(self) -> list[Held]:
        """Remove all files of the cache.

        Returns:
            The removed files.

        Raises:
            OSError: A file cannot be removed.
        """
        files = self.held()
        for file in files:
            remove(file.path)
        return files

    def _make(self) -> None:
        if self.path.is_dir():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
            (self.path / _TAG).write_text(_TAG_TEXT)


def remove(path: Path) -> None:
    """Remove a file, unless another process has done so.

    Raises:
        OSError: The file cannot be removed.
    """
    with suppress(FileNotFoundError):
        path.unlink()


# -- Description ---


class CacheInfo(msgspec.Struct, frozen=True, kw_only=True):
    """State of the cache. Sizes are bytes on disk."""

    folder: str | None
    entries: int | None
    """Number of cached traces; None where the folder cannot be read."""
    bytes: int | None
    """Size of all files of the cache."""
    limit_bytes: int
    free_bytes: int | None
    """Free space on the disk of the folder; None where unknown."""
    problem: str | None
    """Reason why nothing new is stored; None where all is well."""


def describe() -> CacheInfo:
    """Return the state of the cache; tests whether it is writable with a small file.

    Raises:
        UsageError: An environment variable of the cache has an invalid value.
    """
    path = default_folder()
    limit = limit_bytes()
    entries = total = free = problem = None
    if path is None:
        problem = f"Nothing new is stored, because this user has no home folder; set {FOLDER_VARIABLE} to a folder."
    else:
        foreign = planted(path)
        existing = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
        try:
            held = Folder(path).held()
            entries = sum(file.is_entry for file in held)
            total = sum(file.bytes for file in held)
        except OSError as error:
            problem = f"Nothing new is stored, because the folder cannot be read ({error.strerror or error})."
        if foreign is not None:
            problem = f"Nothing is stored or read, because {foreign} is another user's."
        if problem is None:
            problem = _no_writing(existing) if limit else "Nothing new is stored, because the limit is 0."
        with suppress(OSError):
            free = shutil.disk_usage(existing).free
    return CacheInfo(
        folder=None if path is None else os.fsencode(path).decode("utf-8", "backslashreplace"),
        entries=entries,
        bytes=total,
        limit_bytes=limit,
        free_bytes=free,
        problem=problem,
    )


def _no_writing(folder: Path) -> str | None:
    try:
        # The file has no name, so it is invisible and leaves nothing behind.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
    except OSError as error:
        return f"Nothing new is stored, because {folder} is not writable ({error.strerror or error})."
    return None
