"""The directory for files that a server needs while it runs: dropped traces, and the file that a browser opens.

It is private and is deleted when the process ends. A killed process leaves its directory unlocked, and the next process
deletes it.
"""

from __future__ import annotations

import functools
import os
import shutil
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "overlapscope-dashboard-"


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    for abandoned in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_mine(abandoned) and _locked(abandoned):
            shutil.rmtree(abandoned, ignore_errors=True)
    while True:
        directory = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
        # Another process that is starting may have deleted it as abandoned.
        if _locked(Path(directory.name)) and os.path.isdir(directory.name):
            return directory


def own_directory() -> Path:
    """Return this process's directory, created on first use. Raises OSError."""
    return Path(_directory().name)


def _is_mine(path: Path) -> bool:
    # On Windows, abandoned directories are deleted with the user's other temporary files.
    if sys.platform == "win32":
        return False
    with suppress(OSError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _locked(directory: Path) -> bool:
    """Lock a directory until the process ends in any way; return False if another process has locked it."""
    if sys.platform == "win32":
        return True
    import fcntl

    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        return True
    return False
