"""File descriptors that we keep open in the user's program, which may close any and use their numbers itself."""

from __future__ import annotations

import fcntl
import os
import resource

_HIGHEST = 1024
_ROOM = 64


class Descriptor:
    """A file descriptor with a high number: the program's files have the numbers that they have without us."""

    def __init__(self, descriptor: int) -> None:
        """Take over a descriptor, whose number is free afterwards."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = max(descriptor, (_HIGHEST if soft == resource.RLIM_INFINITY else min(soft, _HIGHEST)) - _ROOM)
        try:
            self._number = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
            os.close(descriptor)
        except OSError:
            # There are too many open files.
            self._number = descriptor
        self._identity = _identity(self._number)

    @property
    def number(self) -> int | None:
        """Number of the descriptor; None once it is closed, by the program too, even if the number is in use again."""
        return self._number if self.is_same_as(self._number) else None

    def is_same_as(self, number: int) -> bool:
        """Return whether this is a descriptor of the same file, pipe or terminal."""
        return self._identity is not None and _identity(number) == self._identity

    def close(self) -> None:
        """Close it, unless the program has done that."""
        if self.number is not None:
            os.close(self._number)
        self._identity = None


def _identity(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino
