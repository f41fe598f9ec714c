"""Cache of the Traces of large files, so that opening them again takes a moment (`docs/how-it-works/cache.md`).

The content of the trace file identifies an entry, never its name or age. So a copied or touched file is found, and a
changed file is not. A note records the content of a file in a state of the file system, so that the cache knows it
without reading the file. A write to the file changes its state; samples of the content may show a change through a
mapping of the file into memory, which need not.

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
from typing import Annotated, Any, get_type_hints

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from overlapscope.base.columns import dtypes
from overlapscope.base.disk import regular
from overlapscope.base.memory import usable_cores
from overlapscope.base.saved import decode
from overlapscope.plugin import built_in
from overlapscope.reading import cache_folder
from overlapscope.reading._progress import Progress, ReadingBar
from overlapscope.reading._scan import LIBRARY
from overlapscope.reading.cache_folder import PREFIX, Folder, remove
from overlapscope.reading.file_names import file_and_part, rank_in_name, shown_source
from overlapscope.reading.source import ReadRequest, read
from overlapscope.trace.model import Trace, TraceTable
from overlapscope.version import __version__

LEAST_BYTES = 16 << 20
"""Traces with a smaller unpacked size are not cached, because reading them is as fast as finding them."""
SETTLED_NS = 2_000_000_000
"""Minimum age of a file's last change for its state to identify its content. File systems count in ticks of up to
seconds, so a second change within the same tick leaves no mark."""
_BLOCK_BYTES = 4 << 20
_LARGEST_NOTE_BYTES = 1 << 12
_SAMPLES = 64
_SAMPLE_BYTES = 1 << 12
_PAGE_BYTES = 1 << 12
_ABOUT, _CHECKSUM = "about", "checksum"
"""Fields of an entry besides the columns."""

_log = logging.getLogger(__name__)


def reader_files() -> list[Path]:
    """Return the modules that affect the content of a Trace."""
    root = Path(__file__).parents[1]
    folders = ["base", "trace", "reading", *(f"plugins/{plugin.name}" for plugin in built_in() if plugin.sources)]
    return [root / "plugin.py", *(path for folder in folders for path in sorted((root / folder).rglob("*.py")))]


def _reader_digest() -> str:
    digest = zlib.crc32(__version__.encode())
    for file in (*reader_files(), LIBRARY):
        with suppress(OSError):
            digest = zlib.crc32(file.read_bytes(), digest)
    return f"{digest:08x}"


READER_DIGEST = _reader_digest()
"""Digest of the reader as imported, not as a later update leaves it on disk. Other readers' entries are ignored."""


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """State of a file according to the file system. Unlike `mtime_ns`, `ctime_ns` cannot be set back."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: str | Path) -> FileState | None:
        """Return the state of a file; None unless it is a regular file (a pipe can be read only once)."""
        try:
            status = os.stat(path)
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class _ContentNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a file in a state. Notes are written only where no later content can have the same state."""

    state: FileState
    samples: int
    """Digest of some blocks of the content (`_sampled`)."""
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class Cache(msgspec.Struct, frozen=True):
    """The cache in a folder. Any number of processes may use it at once."""

    folder: Folder
    limit_bytes: int
    """Maximum size of the cache."""
    least_bytes: int = LEAST_BYTES
    settled_ns: int = SETTLED_NS

    def load(self, source: str | Path, request: ReadRequest) -> Trace:
        """Return the Trace that `source.read` gives, from the cache if possible; otherwise add it to the cache.

        Raises:
            UnreadableTrace: As `source.read` does.
        """
        opening = Opening.of(self, source)
        kept = opening.find(request.progress) if opening is not None else None
        if kept is not None and kept.unpacked_bytes <= request.limit_bytes:
            return replace(kept, source=shown_source(source))
        trace = read(source, request)
        if opening is not None and kept is None and trace.unpacked_bytes >= max(self.least_bytes, 1):
            opening.keep(trace)
        return trace


def user_cache() -> Cache | None:
    """Return the cache of this user; None if its limit is 0.

    It is also None if the user has no home folder, or another user could write to the cache.

    Raises:
        UsageError: An environment variable of the cache has an invalid value.
    """
    path, limit = cache_folder.default_folder(), cache_folder.limit_bytes()
    return None if path is None or not limit or cache_folder.planted(path) else Cache(Folder(path), limit)


class Opening:
    """One file being opened: the digest of its content, and its entry in the cache."""

    def __init__(self, cache: Cache, path: Path, state: FileState) -> None:
        self._cache = cache
        self._folder = cache.folder
        self._path, self._part = file_and_part(path)
        self._state = state
        self._settled = time.time_ns() - max(state.mtime_ns, state.ctime_ns) >= cache.settled_ns
        self._digest: str | None = None
        """Digest of the file's content in `state`; None until computed."""
        self._samples: int | None = None
        """Samples of the content that has this digest."""

    @classmethod
    def of(cls, cache: Cache, source: str | Path) -> Opening | None:
        """Start opening a file; return None unless `source` is a regular file."""
        state = FileState.of(file_and_part(Path(source))[0])
        return None if state is None else cls(cache, Path(source), state)

    def find(self, progress: Progress) -> Trace | None:
        """Return the Trace in the cache; None where there is none."""
        try:
            self._digest = self._noted()
            kept = self._entry()
            if kept is None and (not self._settled or self._may_be_kept()):
                noted, self._digest = self._digest, self._digest_now(progress)
                kept = self._entry() if self._digest != noted else None
                if kept is not None:
                    self._note()
        except Exception as error:
            # The trace can still be read, so a failure of the cache must not matter.
            _log.debug("%s: not looked for in the cache: %s: %s", self._path, type(error).__name__, error)
            return None
        return kept

    def keep(self, trace: Trace) -> None:
        """Add the Trace to the cache, unless the file has changed since `find`, or the Trace is too large."""
        try:
            if self._digest is None or not self._settled:
                digest = self._digest_now(progress=False)
                # A file that changed just now may change again without a mark in its state.
                if not self._settled and digest != self._digest:
                    return
                self._digest = digest
            if not self._unchanged():
                return
            name = self._entry_name(self._digest)
            record = packed(trace, name)
            if record.nbytes > self._cache.limit_bytes:
                return
            with self._folder.writing(name) as path:
                write_entry(path, record)
            self._note()
            self._folder.sweep(self._cache.limit_bytes)
        except Exception as error:
            # The trace has been read, so a failure of the cache must not matter.
            _log.debug("%s: not kept in the cache: %s: %s", self._path, type(error).__name__, error)

    # -- Notes ---

    @property
    def _note_name(self) -> str:
        return f"{PREFIX}{self._state.device:x}-{self._state.inode:x}.note"

    def _noted(self) -> str | None:
        path = self._folder.path / self._note_name
        try:
            with open(path, "rb", opener=regular) as file:
                note = decode(file.read(_LARGEST_NOTE_BYTES), _ContentNote)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        self._samples = _sampled(self._path)
        if note.state != self._state or note.samples != self._samples:
            return None
        _touch(path)
        return note.digest

    def _note(self) -> None:
        if not self._settled or self._digest is None or self._samples is None or not self._unchanged():
            return
        with suppress(OSError), self._folder.writing(self._note_name) as file:
            file.write_bytes(msgspec.json.encode(_ContentNote(self._state, self._samples, self._digest)))

    # -- Entries ---

    def _entry_name(self, digest: str) -> str:
        chosen = rank_in_name(str(self._path)), self._part
        # A Trace depends on the content, on the part of the file, on the rank in its name, and on the reader.
        suffix = "-".join("x" if number is None else str(number) for number in chosen)
        return f"{PREFIX}{self._state.size}-{digest}-{suffix}-{READER_DIGEST}.npy"

    def _entry(self) -> Trace | None:
        if self._digest is None:
            return None
        path = self._folder.path / self._entry_name(self._digest)
        try:
            kept = read_entry(path)
        except FileNotFoundError:
            return None
        except BrokenEntry as error:
            _log.debug("%s: removed: %s", path, error)
            with suppress(OSError):
                remove(path)
            return None
        _touch(path)
        return kept

    def _may_be_kept(self) -> bool:
        """Return whether there is an entry for a file of this size. If not, the digest is not needed yet."""
        return any(file.path.name.startswith(f"{PREFIX}{self._state.size}-") for file in self._folder.entries())

    def _unchanged(self) -> bool:
        """Return whether the file is still as its digest says, as far as its state and samples show."""
        return FileState.of(self._path) == self._state and _sampled(self._path) == self._samples

    def _digest_now(self, progress: Progress) -> str:
        """Return the digest of the present content: the digest of its blocks' digests, computed on all cores."""
        # Imported here because a file with a note is opened before this import would be over.
        import hashlib
        from concurrent.futures import ThreadPoolExecutor

        self._samples = _sampled(self._path)
        size = self._state.size
        combined = hashlib.sha256()
        with ReadingBar(str(self._path), size, progress) as bar, open(self._path, "rb", buffering=0) as file:

            def digest(place: int) -> bytes:
                return hashlib.sha256(os.pread(file.fileno(), _BLOCK_BYTES, place)).digest()

            with ThreadPoolExecutor(usable_cores()) as pool:
                for number, block in enumerate(pool.map(digest, range(0, size, _BLOCK_BYTES)), 1):
                    combined.update(block)
                    bar.at(min(number * _BLOCK_BYTES, size))
        return combined.hexdigest()[:32]


def _sampled(path: Path) -> int:
    """Return a digest of blocks at even distances in a file, the first and the last among them."""
    digest = 0
    with open(path, "rb", buffering=0) as file:
        last = max(os.fstat(file.fileno()).st_size - _SAMPLE_BYTES, 0)
        for number in range(_SAMPLES):
            digest = zlib.crc32(os.pread(file.fileno(), _SAMPLE_BYTES, last * number // (_SAMPLES - 1)), digest)
    return digest


def _touch(path: Path) -> None:
    """Mark a file as used just now, where the folder is writable."""
    with suppress(OSError):
        os.utime(path)


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
