"""Sees to it that no two processes overwrite each other's traces.

A process keeps its files locked for as long as it lives. What it finds locked, or written since its own recording
began, is another's, and it writes beside that.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from overlapscope.base import disk

_MOST_LOCKS = 16
"""A process that records again and again into ever new files keeps the latest locked."""

_locks: dict[Path, int] = {}
"""The file descriptor that holds the lock of each file of ours. The system lets go of them when the process ends."""


def put(new: Path, path: Path, *, since_ns: int | None = None) -> Path:
    """Move the file `new` to `path` on the same disk, in one go, and return where it is then.

    Where a file of another process stands there it is moved beside that, with this process's id in its name. A file
    that was modified at `since_ns` or later is another's in any case, unless it is one of ours. Raises OSError.
    """
    disk.flush(new)
    lock = _locked(new)
    try:
        if not _take(new, path, since_ns):
            stem, dot, suffix = path.name.partition(".trace.") if ".trace." in path.name else path.name.partition(".")
            path = path.with_name(f"{stem}.pid{os.getpid()}{dot}{suffix}")
            os.replace(new, path)
    except OSError:
        os.close(lock)
        raise
    _close(_locks.pop(path, None))
    _locks[path] = lock
    if len(_locks) > _MOST_LOCKS:
        _close(_locks.pop(next(iter(_locks))))
    return path


def is_anothers(path: Path, *, since_ns: int | None = None) -> bool:
    """Return whether a process that still runs has written the file, or whoever since then."""
    with _open(path) as standing:
        return path not in _locks and standing is not None and _anothers(standing, since_ns)


def _take(new: Path, path: Path, since_ns: int | None) -> bool:
    """Return whether it could be moved there."""
    while path not in _locks:
        try:
            # Unlike a rename it fails where another process was quicker.
            os.link(new, path)
        except OSError:
            pass
        else:
            os.unlink(new)
            return True
        with _open(path) as standing:
            if standing is None:
                # There are disks without links, and files that may be replaced, but not opened.
                break
            if _anothers(standing, since_ns):
                return False
            # While it is locked here, no other process takes its place; one may have before.
            if os.path.samestat(os.fstat(standing), os.stat(path)):
                os.replace(new, path)
                return True
    os.replace(new, path)
    return True


@contextmanager
def _open(path: Path) -> Iterator[int | None]:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _anothers(standing: int, since_ns: int | None) -> bool:
    """Of an open file that is not ours. It is locked from here on where not."""
    return not _lock(standing) or (since_ns is not None and os.fstat(standing).st_mtime_ns >= since_ns)


def _locked(path: Path) -> int:
    """A file descriptor that keeps a file of ours locked, whatever it is renamed to."""
    descriptor = os.open(path, os.O_RDWR)
    _lock(descriptor)
    return descriptor


def _lock(descriptor: int) -> bool:
    """False where another has it locked. A disk that knows no locks has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        with suppress(OSError):
            os.close(descriptor)


def _forget() -> None:
    """A forked child may outlive the process whose locks these are."""
    while _locks:
        _close(_locks.popitem()[1])


os.register_at_fork(after_in_child=_forget)
