"""Stored reports of the page History. Their file is read for each page, so that new reports appear."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from overlapscope.dashboard.upload import own_directory
from overlapscope.errors import UsageError
from overlapscope.plugins.history.drop import is_drop, pull
from overlapscope.plugins.history.store import Store, default_path


class Stored(Struct, frozen=True):
    """Location of stored reports."""

    path: Path
    """The history's file, which need not exist yet."""
    drop: str | None = None
    """A directory or URL of reports; the file has those that were there at the last read."""

    @contextmanager
    def open(self) -> Iterator[Store]:
        """Open the history for reading. Raises UsageError if it is unreadable."""
        self.pull()
        with Store.open(self.path, read_only=True) as store:
            yield store

    def pull(self) -> tuple[str, ...]:
        """Add new reports from the drop; return a sentence for each file that was skipped."""
        if self.drop is None:
            return ()
        with Store.open(self.path) as store:
            return pull(store, self.drop).bad

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
        """True if no report is stored; False for a drop, which may have new ones, and for an unreadable file."""
        if self.drop is not None:
            return False
        if not self.state:
            return True
        try:
            with Store.open(self.path, read_only=True) as store:
                return not store.jobs()
        except UsageError:
            return False


def find(named: str | None) -> Stored | None:
    """Return the history in a file, or of the reports in a directory or at a URL.

    The default is the user's history; None if the user can't have one.

    Raises:
        UsageError: The place that was named has no history.
        MissingPackage: A package for that kind of place is missing.
    """
    if named is None:
        with suppress(UsageError):
            return Stored(default_path())
        return None
    if is_drop(named) or Path(named).is_dir():
        stored = Stored(own_directory() / "history.sqlite", drop=named)
        for sentence in stored.pull():
            logging.getLogger(__name__).warning("%s", sentence)
        return stored
    with Store.open(named, read_only=True):
        return Stored(Path(named))
