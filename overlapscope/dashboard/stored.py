"""The stored reports that the page History shows: their file is read for each page, so that what is added shows."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from overlapscope.dashboard.scratch import own_directory
from overlapscope.errors import UsageError
from overlapscope.history.drop import is_drop, pull
from overlapscope.history.store import Store, default_path


class Stored(Struct, frozen=True):
    """Where they are."""

    path: Path
    """The history's file. There need be none yet."""
    drop: str | None = None
    """A directory or URL of reports, of which the file has those that were there when it was last read."""

    @contextmanager
    def open(self) -> Iterator[Store]:
        """The history, to be read. Raises UsageError where it cannot be."""
        self.pull()
        with Store.open(self.path, read_only=True) as store:
            yield store

    def pull(self) -> tuple[str, ...]:
        """Add what is new in the drop, and say which of its files were left out."""
        if self.drop is None:
            return ()
        with Store.open(self.path) as store:
            return pull(store, self.drop).bad

    @property
    def state(self) -> str:
        """Another text where the file, or what SQLite writes beside it, has changed; empty where there is no file.

        A browser would round numbers as large as times in nanoseconds.
        """
        found: list[str] = []
        for path in (self.path, Path(f"{os.path.realpath(self.path)}-wal")):
            with suppress(OSError):
                stat = path.stat()
                # A reader, too, makes the second one.
                found += [f"{stat.st_mtime_ns}:{stat.st_size}"] if stat.st_size else []
        return " ".join(found)


def find_stored(named: str | None) -> Stored | None:
    """The history in a file, or of the reports in a directory or at a URL; by default the user's, and None where a user
    has no place for one.

    Raises UsageError where nothing of that kind is at the place that was named; MissingPackage.
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
