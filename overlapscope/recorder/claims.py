"""Locks on trace files, so that processes do not overwrite each other's traces.

A process keeps its files locked until it ends. A file that is locked, or was written since the process's own recording
began, belongs to another process, and the trace is written beside it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overlapscope.base import disk
from overlapscope.base.descriptors import Descriptor

_MOST_LOCKS = 16
"""Maximum number of locks, for a process that records into ever new files: the latest stay locked."""

_locks: dict[Path, Descriptor] = {}
"""File descriptor that holds the lock of each file of ours. The system closes them when the process ends."""


def put(new: Path, path: Path, *, since_ns: int | None = None) -> Path:
    """Move the file `new` to `path` on the same disk, atomically.

    If `path` belongs to another process, the new path has this process's id in its name. A file that was modified at
    `since_ns` or later belongs to another process, unless it is one of ours.

    Returns:
        The file's new path.

    Raises:
        OSError: The file can't be moved.
    """
    disk.flush(new)
    lock = _locked(new)
    try:
        if not _take(new, path, since_ns):
            stem, dot, suffix = path.name.partition(".trace.") if ".trace." in path.name else path.name.partition(".")
            path = path.with_name(f"{stem}.pid{os.getpid()}{dot}{suffix}")
            os.replace(new, path)
    except OSError:
        lock.close()
        raise
    if path in _locks:
        _locks.pop(path).close()
    _locks[path] = lock
    if len(_locks) > _MOST_LOCKS:
        _locks.pop(next(iter(_locks))).close()
    return path


def belongs_to_another(path: Path) -> bool:
    """Return whether the file belongs to a process that still runs."""
    with _open(path) as existing:
        return path not in _locks and existing is not None and not _lock(existing)


def _take(new: Path, path: Path, since_ns: int | None) -> bool:
    """Move the file unless the path belongs to another process, and return whether it was moved."""
    while path not in _locks:
        try:
            # Unlike a rename, this fails if another process was quicker.
            os.link(new, path)
        except OSError:
            pass
        else:
            os.unlink(new)
            return True
        with _open(path) as existing:
            if existing is None:
                # Some disks have no links, and some files may be replaced, but not opened.
                break
            if _open_file_belongs_to_another(existing, since_ns):
                return False
            # Another process may have replaced the file before it was locked here, but not afterwards.
            if os.path.samestat(os.fstat(existing), os.stat(path)):
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


def _open_file_belongs_to_another(existing: int, since_ns: int | None) -> bool:
    """Return whether an open file belongs to another process. If not, it is locked."""
    return not _lock(existing) or (since_ns is not None and os.fstat(existing).st_mtime_ns >= since_ns)


def _locked(path: Path) -> Descriptor:
    """Return a file descriptor that keeps a file of ours locked, even if the file is renamed."""
    descriptor = os.open(path, os.O_RDWR)
    _lock(descriptor)
    return Descriptor(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a file, and return false if another process has locked it. On a disk without locks, no file is locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _forget() -> None:
    """Release the locks in a forked child, which may outlive the process that owns them."""
    while _locks:
        _locks.popitem()[1].close()


os.register_at_fork(after_in_child=_forget)
