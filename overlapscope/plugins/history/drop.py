"""File drops, from which a store pulls new entries, and the other ways of reports into and out of a history.

A drop is a directory or bucket where machines put entries. Each entry is a file, `ID.json.zst`, that appears complete
and never changes. Files in a drop are not trusted. Other plugins keep reports here (`report.origin.Keeper`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from overlapscope.base import disk
from overlapscope.base.words import clean, size
from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.plugins.history.entry import MAX_PACKED, SUFFIX, Entry, entry, pack, unpack
from overlapscope.plugins.history.store import Store
from overlapscope.plugins.history.stored import default_path
from overlapscope.ranks.files import error_text, filesystem_of, is_url, shown_url
from overlapscope.report.model import Report
from overlapscope.report.origin import Origin

_NAME: Final = re.compile(rf"([0-9a-f]{{32}}){re.escape(SUFFIX)}")


class Pulled(Struct, frozen=True):
    """Result of pulling from a drop."""

    added: int
    existing: int
    """Number of entries that the store already had."""
    bad: tuple[str, ...]
    """Sentences about files that were left out."""


def put(entry: Entry, where: str | Path) -> None:
    """Write an entry to a directory, which is created if needed, or to a URL. Raises UsageError, MissingPackage."""
    place = _place(where)
    try:
        place.write(f"{entry.id}{SUFFIX}", pack(entry))
    except Exception as error:
        # Each plugin of fsspec has its own errors.
        raise UsageError(f"{place.shown}: nothing can be written there ({error_text(error)}).") from None


def pull(store: Store, where: str | Path) -> Pulled:
    """Add entries that the store doesn't have. Files of entries in the store are not read.

    Returns:
        How many entries were added, how many existed, and sentences on unreadable ones.

    Raises:
        UsageError: The drop can't be listed, or the store can't be written.
        MissingPackage: The package for such a URL isn't installed.
    """
    place = _place(where)
    try:
        names = sorted(place.names())
    except Exception as error:
        raise UsageError(f"{place.shown}: cannot be listed ({error_text(error)}); check the path.") from None
    names_by_id = {match[1]: name for name in names if (match := _NAME.fullmatch(name))}
    new = sorted(names_by_id.keys() - store.ids())
    added, bad = 0, []
    for id in new:
        shown = f"{place.shown}/{names_by_id[id]}"
        try:
            entry = _read(place, names_by_id[id], shown)
        except UnreadableTrace as error:
            bad.append(str(error))
            continue
        if entry.id != id:
            bad.append(f"{shown}: holds the entry {entry.id}, and not that of its name.")
        else:
            added += store.add(entry)
    return Pulled(added, len(names_by_id) - len(new), tuple(bad))


def is_drop(where: str) -> bool:
    """Return whether a path is a URL, or a directory that contains an entry."""
    if is_url(where):
        return True
    try:
        return any(_NAME.fullmatch(name) for name in os.listdir(where))
    except OSError:
        return False


def is_entry(path: str | Path) -> bool:
    """Return whether a file has the name of an entry."""
    return _NAME.fullmatch(Path(path).name) is not None


def read(path: str | Path) -> Entry:
    """Read the entry in a file. Raises UnreadableTrace."""
    return _read(_Directory(Path(path).parent), Path(path).name, os.fspath(path))


def _read(place: _Directory | _Bucket, name: str, shown: str) -> Entry:
    try:
        packed = place.read(name)
    except Exception as error:
        raise UnreadableTrace(f"{clean(shown)}: cannot be read ({error_text(error)}).") from None
    if len(packed) > MAX_PACKED:
        raise UnreadableTrace(f"{clean(shown)}: is larger than {size(MAX_PACKED)}, and no entry of a history is.")
    return unpack(packed, clean(shown))


def _place(where: str | Path) -> _Directory | _Bucket:
    return _Bucket(where) if isinstance(where, str) and is_url(where) else _Directory(Path(where))


class _Directory:
    """A directory. Methods may raise any exception, as those of a bucket, which are the same."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shown = clean(os.fsencode(path).decode(errors="backslashreplace"))

    def names(self) -> list[str]:
        return os.listdir(self._path)

    def read(self, name: str) -> bytes:
        """Return the file's content, at most one byte more than an entry may have."""
        with open(self._path / name, "rb", opener=disk.regular) as file:
            return file.read(MAX_PACKED + 1)

    def write(self, name: str, data: bytes) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        disk.write(self._path / name, [data])


class _Bucket:
    def __init__(self, url: str) -> None:
        self.shown = shown_url(url).rstrip("/")
        self._files: Any
        self._files, path = filesystem_of(url)
        self._path = path.rstrip("/")

    def names(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self._files.ls(self._path, detail=False)]

    def read(self, name: str) -> bytes:
        data: bytes = self._files.cat_file(f"{self._path}/{name}", start=0, end=MAX_PACKED + 1)
        return data

    def write(self, name: str, data: bytes) -> None:
        self._files.makedirs(self._path, exist_ok=True)
        self._files.pipe_file(f"{self._path}/{name}", data)


# -- Reports that other plugins keep -----------------------------------------------------------------


def place(named: str | os.PathLike[str] | None) -> tuple[str, Path]:
    """Return where `add` adds to, and a directory for other files of the same programs. Raises UsageError.

    Args:
        named: File, directory or URL; by default the user's history.
    """
    where = os.fspath(default_path() if named is None else named)
    if not is_url(where):
        where = os.path.abspath(os.path.expanduser(where))
    # A drop is for other machines, so other files are kept beside the default history then.
    beside = default_path() if _is_folder(where) else Path(where)
    return where, beside.parent


def add(report: Report, origin: Origin, where: str) -> None:
    """Add a report to a history, or to a directory or URL that is a file drop. Raises UsageError, MissingPackage."""
    new = entry(report, origin)
    if _is_folder(where):
        put(new, where)
    else:
        with Store.open(where) as store:
            store.add(new)


def _is_folder(where: str) -> bool:
    return is_url(where) or os.path.isdir(where)
