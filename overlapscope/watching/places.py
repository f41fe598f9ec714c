"""Where the sockets of watched processes lie: in a directory that nobody but their user can enter."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_SUFFIX = ".sock"


def candidates() -> list[Path]:
    """The directories in which sockets of this user's may lie, the best one first.

    A program that a scheduler starts may lack the variable that a shell has.
    """
    found = [os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}"]
    runtime = [Path(place, "overlapscope") for place in found if place and os.path.isdir(place)]
    # Where a scheduler sets TMPDIR, a shell looks elsewhere.
    return [*dict.fromkeys(runtime), Path("/tmp", f"overlapscope-{os.getuid()}")]


def make() -> Path:
    """A directory for sockets. Raises OSError where there can be none."""
    for place in candidates()[:-1]:
        try:
            return _made(place)
        except OSError:
            continue
    return _made(candidates()[-1])


def _made(place: Path) -> Path:
    place.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(place):
        raise PermissionError(f"{place} is not a directory of this user's alone")
    return place


def _is_private(place: Path) -> bool:
    """Return whether it is a directory, not a link to one, that its user alone can enter, and that is this user's."""
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def socket_of(directory: Path, pid: int) -> Path:
    """The socket of a process."""
    return directory / f"{pid}{_SUFFIX}"


def sockets() -> Iterator[tuple[int, Path]]:
    """Those that there are, each with its process's id."""
    for place in candidates():
        if _is_private(place):
            for path in sorted(place.glob(f"*{_SUFFIX}")):
                if path.stem.isdecimal():
                    yield int(path.stem), path
