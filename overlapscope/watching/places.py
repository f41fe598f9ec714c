"""Directories of the sockets of watched processes, which only their user can enter."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_SUFFIX = ".sock"


def candidates() -> list[Path]:
    """Return the directories that may contain sockets of this user, the preferred one first.

    A program that a scheduler starts may lack the variable that a shell has.
    """
    paths = [os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}"]
    runtime = [Path(place, "overlapscope") for place in paths if place and os.path.isdir(place)]
    # TMPDIR is not used, since a scheduler may set it, but not for the user's shell.
    return [*dict.fromkeys(runtime), Path("/tmp", f"overlapscope-{os.getuid()}")]


def make() -> Path:
    """Create a directory for sockets, and return it. Raises OSError if that is impossible."""
    for place in candidates()[:-1]:
        try:
            return _create(place)
        except OSError:
            continue
    return _create(candidates()[-1])


def _create(place: Path) -> Path:
    place.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(place):
        raise PermissionError(f"{place} is not a directory of this user's alone")
    return place


def _is_private(place: Path) -> bool:
    """Return whether it is a directory of this user, and no link, that only this user can enter."""
    try:
        status = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def socket_of(directory: Path, pid: int) -> Path:
    """Return the socket of a process."""
    return directory / f"{pid}{_SUFFIX}"


def sockets() -> Iterator[tuple[int, Path]]:
    """Yield the sockets that exist, each with the id of its process."""
    for place in candidates():
        if _is_private(place):
            for path in sorted(place.glob(f"*{_SUFFIX}")):
                if path.stem.isdecimal():
                    yield int(path.stem), path
