"""Cache of the Traces of large files, so that opening them again takes a moment (`docs/how-it-works/cache.md`).

A file's state according to the file system identifies its content: device, inode, size and times. A write to the file
changes its state; samples of the content may show a change through a mapping of the file into memory, which need not.

An entry is a file in numpy's own format (`*.npy`). It holds a single record, whose fields are the columns of all
tables, so that opening takes one read and no copy: `numpy.load(file)["gpu_ops.start_ns"]`.

A failure of the cache never keeps a trace from being read.
"""

from __future__ import annotations

import logging
import os
import stat
import time
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from overlapscope.base.columns import dtypes
from overlapscope.base.disk import regular
from overlapscope.plugin import built_in
from overlapscope.reading import cache_folder
from overlapscope.reading._scan import LIBRARY
from overlapscope.reading.cache_folder import PREFIX, Folder, remove
from overlapscope.reading.file_names import file_and_part, rank_in_name, shown_source
from overlapscope.reading.source import ReadRequest, read
from overlapscope.trace.model import Trace, TraceTable
from overlapscope.version import __version__

MIN_BYTES = 16 << 20
"""Traces with a smaller unpacked size are not cached, because reading them is as fast as opening an entry."""
SETTLED_NS = 2_000_000_000
"""Minimum age of a file's last change for its state to identify its content. File systems count in ticks of up to
seconds, so a second change within the same tick leaves no mark."""
_SAMPLE_COUNT = 64
_SAMPLE_BYTES = 1 << 12
_PAGE_BYTES = 1 << 12
_ABOUT, _CHECKSUM = "about", "checksum"
"""Fields of an entry besides the columns."""

_log = logging.getLogger(__name__)


def reader_files() -> list[Path]:
    """Return the modules that affect the content of a Trace."""
    root = Path(__file__).parents[1]
    folders = ["base", "trace", "reading", *(f"plugins/{plugin.name}" for plugin in built_in() if plugin.sources)]
    modules = (path for folder in folders for path in sorted((root / folder).rglob("*.py")))
    return [root / "installed.py", root / "plugin.py", *modules]


def _reader_digest() -> str:
    digest = zlib.crc32(__version__.encode())
    for file in (*reader_files(), LIBRARY):
        with suppress(OSError):
            digest = zlib.crc32(file.read_bytes(), digest)
    return f"{digest:08x}"


READER_DIGEST = _reader_digest()
"""Digest of the reader as imported, not as a later update leaves it on disk. Other readers' entries are ignored."""


class Cache(msgspec.Struct, frozen=True):
    """The cache in a folder. Any number of processes may use it at once."""

    folder: Folder
    limit_bytes: int
    """Maximum size of the cache."""
    least_bytes: int = MIN_BYTES
    settled_ns: int = SETTLED_NS

    def load(self, source: str | Path, request: ReadRequest) -> Trace:
        """Return the Trace that `source.read` gives, from the cache if possible; otherwise add it to the cache.

        Raises:
            UnreadableTrace: As `source.read` does.
        """
        path = Path(source)
        name = self.entry_name(path)
        kept = None if name is None else self._entry(self.folder.path / name)
        if kept is not None and kept.unpacked_bytes <= request.limit_bytes:
            return replace(kept, source=shown_source(source))
        trace = read(source, request)
        is_worth_it = kept is None and trace.unpacked_bytes >= max(self.least_bytes, 1)
        # The file may have changed while it was read.
        if name is not None and is_worth_it and self.entry_name(path) == name:
            self._keep(trace, name)
        return trace

    def entry_name(self, path: Path) -> str | None:
        """Return the name of the entry of a path.

        None unless it leads to a regular file (a pipe can be read only once) whose state identifies its content.
        """
        file, part = file_and_part(path)
        try:
            status = os.stat(file)
            if not stat.S_ISREG(status.st_mode):
                return None
            samples = _sampled(file)
        except OSError:
            return None
        # Unlike the time of the last write, that of the last change of the state cannot be set back.
        times = status.st_mtime_ns, status.st_ctime_ns
        if time.time_ns() - max(times) < self.settled_ns:
            return None
        # A Trace also depends on the part of the file, on the rank in its name, and on the reader.
        chosen = rank_in_name(str(file)), part
        numbers = status.st_dev, status.st_ino, status.st_size, *times, samples, *chosen
        state = "-".join("x" if number is None else f"{number % (1 << 64):x}" for number in numbers)
        return f"{PREFIX}{state}-{READER_DIGEST}.npy"

    def _entry(self, path: Path) -> Trace | None:
        """Return the Trace in an entry; None where there is none, or it can't be read."""
        try:
            kept = read_entry(path)
        except FileNotFoundError:
            return None
        except BrokenEntry as error:
            _log.debug("%s: removed: %s", path, error)
            with suppress(OSError):
                remove(path)
            return None
        except Exception as error:
            # The trace can still be read, so a failure of the cache must not matter.
            _log.debug("%s: not read: %s: %s", path, type(error).__name__, error)
            return None
        with suppress(OSError):
            # It was used just now.
            os.utime(path)
        return kept

    def _keep(self, trace: Trace, name: str) -> None:
        """Add the Trace to the cache, unless it is too large."""
        try:
            record = packed(trace, name)
            if record.nbytes > self.limit_bytes:
                return
            with self.folder.writing(name) as path:
                write_entry(path, record)
            self.folder.sweep(self.limit_bytes)
        except Exception as error:
            # The trace has been read, so a failure of the cache must not matter.
            _log.debug("%s: not kept in the cache: %s: %s", name, type(error).__name__, error)


def user_cache() -> Cache | None:
    """Return the cache of this user; None if its limit is 0.

    It is also None if the user has no home folder, or another user could write to the cache.

    Raises:
        UsageError: An environment variable of the cache has an invalid value.
    """
    path, limit = cache_folder.default_folder(), cache_folder.limit_bytes()
    return None if path is None or not limit or cache_folder.planted(path) else Cache(Folder(path), limit)


def _sampled(path: Path) -> int:
    """Return a digest of blocks at even distances in a file, the first and the last among them."""
    digest = 0
    with open(path, "rb", buffering=0) as file:
        last = max(os.fstat(file.fileno()).st_size - _SAMPLE_BYTES, 0)
        for number in range(_SAMPLE_COUNT):
            digest = zlib.crc32(os.pread(file.fileno(), _SAMPLE_BYTES, last * number // (_SAMPLE_COUNT - 1)), digest)
    return digest


# -- Entries in the folder ---


class BrokenEntry(Exception):
    """The file is not an entry, or not as it was written."""


def packed(trace: Trace, name: str) -> NDArray[Any]:
    """Return the record of a trace; `name` is that of its entry.

    Raises:
        ValueError: The trace does not fit, because a number exceeds 64 bits.
        TypeError: Likewise, or a column has another type than its table states.
    """
    tables, about = _layout()
    stated = {field: getattr(trace, field) for field in about.__struct_fields__} | {"source": name}
    columns: dict[str, tuple[np.dtype[Any], NDArray[Any]]] = {
        f"{table}.{column}": (np.dtype(dtype), getattr(getattr(trace, table), column))
        for table, kind in tables.items()
        for column, dtype in dtypes(kind).items()
    }
    columns[_ABOUT] = np.dtype(np.uint8), np.frombuffer(msgspec.json.encode(about(**stated)), np.uint8)
    # In order of decreasing item size, all columns are aligned without padding.
    fields = [(field, dtype, column.shape) for field, (dtype, column) in columns.items()]
    fields.sort(key=lambda field: -field[1].itemsize)
    record = np.empty((), [(_CHECKSUM, np.uint64), *fields])
    for field, (_, column) in columns.items():
        np.copyto(record[field], column, casting="equiv")
    record[_CHECKSUM] = _checksum(record)
    return record


def write_entry(path: Path, record: NDArray[Any]) -> None:
    """Write a record to a file. Raises OSError."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(record))
        # Numpy's own way to write may overlook that the disk is full.
        file.write(_bytes_of(record).data)


def read_entry(path: Path) -> Trace:
    """Return the Trace in an entry, whose `source` is the entry's name. Its columns are views of a single buffer.

    The file isn't mapped into memory: if another machine removed it from a network folder, this process would crash.
    Its content could also change after the check.

    Raises:
        BrokenEntry: The file is not an entry, or not as it was written under this name.
        OSError: The file cannot be read.
    """
    with open(path, "rb", opener=regular) as file:
        try:
            record = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1) or record.shape or record[_CHECKSUM] != _checksum(record):
                raise BrokenEntry("it is not as it was written")
            trace = _trace(record)
        except OSError:
            raise
        except Exception as error:
            # Numpy has no common class of errors for a damaged header, which it reads as Python's.
            raise BrokenEntry(f"{type(error).__name__}: {error}") from error
    if trace.source != path.name:
        raise BrokenEntry(f"it was written as {trace.source}")
    return trace


def _trace(record: NDArray[Any]) -> Trace:
    """Return the Trace in a record.

    Raises:
        ValueError: A column is missing, or of another length or type than the table's.
        msgspec.DecodeError: The other fields are those of another version.
    """
    tables, about = _layout()
    stated = msgspec.json.decode(record[_ABOUT].tobytes(), type=about)
    parts: dict[str, Any] = {field: getattr(stated, field) for field in about.__struct_fields__}
    for name, table in tables.items():
        columns = {column: record[f"{name}.{column}"] for column in dtypes(table)}
        same_length = len({column.shape for column in columns.values()}) == 1
        if not same_length or any(columns[column].dtype != dtype for column, dtype in dtypes(table).items()):
            raise ValueError(f"it has other columns than {name}")
        parts[name] = table(names=parts["names"], **columns)
    return Trace(**parts)


def _checksum(record: NDArray[Any]) -> int:
    """Return a checksum of a record: the CRC-32 of its fields' types and of the sums of the 64-bit words of each page.

    It shows accidental changes as fast as memory can be read. The CRC-32 of all bytes takes ten times as long.
    """
    content = _bytes_of(record)[record.dtype[_CHECKSUM].itemsize :]
    whole = len(content) - len(content) % _PAGE_BYTES
    pages = content[:whole].view(np.uint64).reshape(-1, _PAGE_BYTES // 8).sum(axis=1)
    return zlib.crc32(repr(record.dtype).encode() + pages.tobytes() + content[whole:].tobytes())


def _bytes_of(record: NDArray[Any]) -> NDArray[np.uint8]:
    return record.reshape(1).view(np.uint8)


@cache
def _layout() -> tuple[dict[str, type[TraceTable]], type[msgspec.Struct]]:
    """Return the tables of a Trace, and a struct of its other fields."""
    hints = get_type_hints(Trace)
    tables = {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, TraceTable)}
    rest = [(name, kind) for name, kind in hints.items() if name not in tables]
    return tables, msgspec.defstruct("AboutTrace", rest, frozen=True, forbid_unknown_fields=True)
