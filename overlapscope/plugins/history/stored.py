"""File of a history, from which the page History reads for each page, so that new reports appear.

The dashboard asks for it while it starts, so a store is imported only where there is something to read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from overlapscope.base import disk
from overlapscope.base.registry import load
from overlapscope.errors import UsageError

PATH_VARIABLE: Final = "OVERLAPSCOPE_HISTORY"
_FILE: Final = "history.sqlite"


def default_path() -> Path:
    """Return the path of this user's history. Raises UsageError without a home folder."""
    if path := os.environ.get(PATH_VARIABLE):
        return Path(path).expanduser().absolute()
    folder = disk.user_folder("Application Support", "XDG_DATA_HOME", ".local/share")
    if folder is None:
        raise UsageError(f"there is no history, because this user has no home folder; set {PATH_VARIABLE} to a file.")
    return folder / _FILE


class Stored(Struct, frozen=True):
    """A history's file, which need not exist yet."""

    path: Path

    @property
    def state(self) -> str:
        """A text that changes with the file, or with what SQLite writes beside it; empty for a missing file.

        It is text because a browser would round times in nanoseconds.
        """
        states: list[str] = []
        for path in (self.path, Path(f"{os.path.realpath(self.path)}-wal")):
            with suppress(OSError):
                stat = path.stat()
                # Readers create the second file, too, but leave it empty.
                states += [f"{stat.st_mtime_ns}:{stat.st_size}"] if stat.st_size else []
        return " ".join(states)

    @property
    def is_empty(self) -> bool:
        """True if no report is stored; False for an unreadable file."""
        if not self.state:
            return True
        try:
            with _opened(self.path) as store:
                return not store.jobs()
        except UsageError:
            return False


def find(named: str | None) -> Stored | None:
    """Return the history in a file, by default the user's; None if the user can't have one.

    Raises:
        UsageError: The place that was named has no history.
    """
    if named is None:
        with suppress(UsageError):
            return Stored(default_path())
        return None
    with _opened(Path(named)):
        return Stored(Path(named))


def _opened(path: Path) -> Any:
    return load(f"{__package__}.store:Store").open(path, read_only=True)
