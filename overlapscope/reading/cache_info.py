"""What there is to know of this user's cache."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path

import msgspec

from overlapscope.base.words import listed
from overlapscope.reading.cache_folder import FOLDER_VARIABLE, Folder, default_folder, limit_bytes

_PACKAGES = ("pyarrow", "xxhash")
_PROBE_BYTES = 1 << 20


class CacheInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes are bytes on disk."""

    folder: str | None
    entries: int | None
    """Traces kept; None where the folder cannot be read."""
    bytes: int | None
    """Of all files of the cache."""
    limit_bytes: int
    free_bytes: int | None
    """On the disk of the folder; None where there is no telling."""
    packages: dict[str, str | None]
    """What the cache needs, with its version; None where it is not installed."""
    problem: str | None
    """Why nothing is kept, or nothing new; None where all is well."""


def describe() -> CacheInfo:
    """The state of the cache; what writing to it would come to is tried with a small file.

    Raises UsageError where a variable that sets it up makes no sense.
    """
    path = default_folder()
    limit = limit_bytes()
    packages = {name: _version(name) for name in _PACKAGES}
    entries = total = free = problem = None
    if path is not None:
        try:
            held = Folder(path).held()
            entries = sum(file.is_entry for file in held)
            total = sum(file.bytes for file in held)
        except OSError as error:
            problem = f"Nothing is kept: the folder cannot be read ({error.strerror or error})."
        free = _free_bytes(path)
    return CacheInfo(
        folder=None if path is None else os.fsencode(path).decode("utf-8", "backslashreplace"),
        entries=entries,
        bytes=total,
        limit_bytes=limit,
        free_bytes=free,
        packages=packages,
        problem=_missing(packages) or _no_place(path) or problem or _no_room(limit) or _no_writing(path),
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _missing(packages: dict[str, str | None]) -> str | None:
    missing = [name for name, version in packages.items() if version is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    # Without pyarrow, what is there already can still be read.
    nothing = "Nothing new" if missing == ["pyarrow"] else "Nothing"
    return f"{nothing} is kept: {listed(missing)} {verb} not installed; pip install 'overlapscope[cache]'."


def _no_place(path: Path | None) -> str | None:
    return f"Nothing is kept: this user has no home folder; name one in {FOLDER_VARIABLE}." if path is None else None


def _no_room(limit: int) -> str | None:
    return None if limit else "Nothing is kept: the limit is 0."


def _no_writing(path: Path | None) -> str | None:
    if path is None:
        return None
    existing = _existing(path)
    try:
        # Without a name, so nobody sees it and nothing is left of it.
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
    except OSError as error:
        return f"Nothing new is kept: {existing} cannot be written to ({error.strerror or error})."
    return None


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(_existing(path)).free
    except OSError:
        return None


def _existing(path: Path) -> Path:
    """The folder, or the nearest above it that exists, in which it would be made."""
    return next((one for one in (path, *path.parents) if one.exists()), Path("/"))
