"""Cache of the Traces of large files, so that opening them again takes a moment (`docs/how-it-works/cache.md`).

The content of the trace file identifies an entry, never its name or age. So a copied or touched file is found, and a
changed file is not. A note records the content of a file in a state of the file system, so that the cache knows it
without reading the file. A write to the file changes its state; samples of the content may show a change through a
mapping of the file into memory, which need not.

A failure of the cache never keeps a trace from being read.
"""

from __future__ import annotations

import logging
import os
import stat
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from overlapscope.base.disk import regular
from overlapscope.base.saved import decode
from overlapscope.plugin import built_in
from overlapscope.reading import cache_file, cache_folder, sources
from overlapscope.reading._cores import usable_cores
from overlapscope.reading._progress import Progress, ReadingBar
from overlapscope.reading._scan import LIBRARY
from overlapscope.reading.cache_folder import Folder, remove
from overlapscope.reading.file_names import file_and_part, rank_in_name, shown_source
from overlapscope.reading.source import ReadRequest
from overlapscope.trace.model import Trace
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
_BESIDES = (
    "base/columns.py",
    "base/config_file.py",
    "base/disk.py",
    "base/grouping.py",
    "base/intervals.py",
    "base/kept.py",
    "base/marks.py",
    "base/memory.py",
    "base/recurrence.py",
    "base/words.py",
    "base/zstd.py",
    "plugin.py",
    "trace/comm_names.py",
    "trace/host_activity.py",
    "trace/host_ops.py",
    "trace/lead_in.py",
    "trace/lost.py",
    "trace/model.py",
    "trace/op_names.py",
    "trace/servers.py",
)
"""Modules besides those of the reader and of sources that affect the content of a Trace."""

_log = logging.getLogger(__name__)


def reader_files() -> list[Path]:
    """Return the modules that affect the content of a Trace."""
    root = Path(__file__).parents[1]
    folders = ["reading", *(f"plugins/{plugin.name}" for plugin in built_in() if plugin.sources)]
    modules = (path for folder in folders for path in sorted((root / folder).rglob("*.py")))
    return [*modules, *(root / name for name in _BESIDES)]


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
        """Return the Trace that `sources.read` gives, from the cache if possible; otherwise add it to the cache.

        Raises:
            UnreadableTrace: As `sources.read` does.
        """
        opening = Opening.of(self, source)
        kept = opening.find(request.progress) if opening is not None else None
        if kept is not None and kept.unpacked_bytes <= request.limit_bytes:
            return replace(kept, source=shown_source(source))
        trace = sources.read(source, request)
        if opening is not None and kept is None and trace.unpacked_bytes >= max(self.least_bytes, 1):
            opening.keep(trace)
        return trace


def of_user() -> Cache | None:
    """Return the cache of this user; None if the user has no home folder, or another user could write to the cache.

    Raises:
        UsageError: An environment variable of the cache has an invalid value.
    """
    path = cache_folder.default_folder()
    return None if path is None or cache_folder.planted(path) else Cache(Folder(path), cache_folder.limit_bytes())


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
            if cache_file.stored_bytes(trace) > self._cache.limit_bytes:
                return
            if self._digest is None or not self._settled:
                digest = self._digest_now(progress=False)
                # A file that changed just now may change again without a mark in its state.
                if not self._settled and digest != self._digest:
                    return
                self._digest = digest
            if not self._unchanged():
                return
            with self._folder.writing(self._entry_name(self._digest)) as file:
                cache_file.write(trace, file, self._entry_name(self._digest))
            self._note()
            self._remove_outdated(self._digest)
            self._folder.sweep(self._cache.limit_bytes)
        except Exception as error:
            # The trace has been read, so a failure of the cache must not matter.
            _log.debug("%s: not kept in the cache: %s: %s", self._path, type(error).__name__, error)

    # -- Notes ---

    @property
    def _note_name(self) -> str:
        return f"{self._state.device:x}-{self._state.inode:x}.note"

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
        return f"{self._state.size}-{digest}-{suffix}-{READER_DIGEST}.columns"

    def _entry(self) -> Trace | None:
        if self._digest is None:
            return None
        path = self._folder.path / self._entry_name(self._digest)
        try:
            kept = cache_file.read(path, path.name)
        except FileNotFoundError:
            return None
        except cache_file.BrokenFile as error:
            _log.debug("%s: removed: %s", path, error)
            with suppress(OSError):
                remove(path)
            return None
        _touch(path)
        return kept

    def _may_be_kept(self) -> bool:
        """Return whether there is an entry for a file of this size. If not, the digest is not needed yet."""
        return any(file.path.name.startswith(f"{self._state.size}-") for file in self._folder.entries())

    def _remove_outdated(self, digest: str) -> None:
        """Remove entries that other versions of the reader made for the same file."""
        name = self._entry_name(digest)
        same = name.rpartition("-")[0]
        for file in self._folder.entries():
            if file.path.name != name and file.path.name.rpartition("-")[0] == same:
                remove(file.path)

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
