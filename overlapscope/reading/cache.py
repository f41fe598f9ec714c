"""Keeps what was read of large traces, so that opening them again takes a moment (`docs/how-it-works/cache.md`).

An entry is found by the content of the trace file, never by its name or age, so a copied or touched file is found and a
changed one is not. To know the content of a file without reading it, a note says which content a file had, with the
state that the file system gave it; what changes the file changes that.

Nothing that can go wrong here keeps a trace from being read.
"""

from __future__ import annotations

import logging
import os
import stat
import time
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from overlapscope.base.disk import read_regular
from overlapscope.base.saved import decode
from overlapscope.reading import cache_file, cache_folder, sources
from overlapscope.reading._processes import usable_cores
from overlapscope.reading._progress import Progress, ReadingBar
from overlapscope.reading._scan import LIBRARY
from overlapscope.reading.cache_folder import Folder, remove
from overlapscope.reading.files import file_and_part, rank_in_name, shown_source
from overlapscope.reading.source import ReadRequest
from overlapscope.trace.model import Trace
from overlapscope.version import __version__

LEAST_BYTES = 16 << 20
"""Unpacked size from which on a trace is kept; a smaller one is read as quickly as it would be found."""
SETTLED_NS = 2_000_000_000
"""How long ago a file must have changed for its state to tell its content. File systems count in ticks, some of them
whole seconds, so a change within the tick of the one before leaves no mark."""
_BLOCK_BYTES = 4 << 20
_BESIDES = (
    "base/columns.py",
    "base/disk.py",
    "base/intervals.py",
    "base/kept.py",
    "base/marks.py",
    "base/recurrence.py",
    "base/session.py",
    "base/words.py",
    "base/zstd.py",
    "trace/lost.py",
    "trace/model.py",
    "trace/op_names.py",
)
"""What the modules of this package build on (those of `overlapscope` that have a say in what a Trace holds)."""

_log = logging.getLogger(__name__)


def reader_files() -> list[Path]:
    """The modules that decide what a Trace holds."""
    package = Path(__file__).parent
    return [*sorted(package.rglob("*.py")), *(package.parent / name for name in _BESIDES)]


def _reader_digest() -> str:
    digest = zlib.crc32(__version__.encode())
    for file in (*reader_files(), LIBRARY):
        with suppress(OSError):
            digest = zlib.crc32(file.read_bytes(), digest)
    return f"{digest:08x}"


READER_DIGEST = _reader_digest()
"""Of the reader, as it is imported with this module and not as an update may leave it on the disk later. An entry of
another reader, even between releases, is not taken."""


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """What the file system says of a file. `ctime_ns` cannot be set back, as `mtime_ns` can."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: str | Path) -> FileState | None:
        """None where there is no regular file, such as a pipe, which can be read only once."""
        try:
            status = os.stat(path)
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class _ContentNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which content a file had in a state. Written only where no later content can have the same state."""

    state: FileState
    digest: str


class Cache(msgspec.Struct, frozen=True):
    """The cache in a folder. Any number of processes may use it at once."""

    folder: Folder
    limit_bytes: int
    """How large it may become."""
    least_bytes: int = LEAST_BYTES
    settled_ns: int = SETTLED_NS

    def load(self, source: str | Path, request: ReadRequest) -> Trace:
        """What `sources.read` gives, from the cache where it is there, and kept there otherwise.

        Raises UnreadableTrace, as it does.
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
    """The cache of this user; None where there is no place for it.

    Raises UsageError where a variable that sets it up makes no sense.
    """
    path = cache_folder.default_folder()
    return None if path is None else Cache(Folder(path), cache_folder.limit_bytes())


class Opening:
    """One file being opened: what is known of its content, and its entry."""

    def __init__(self, cache: Cache, path: Path, state: FileState) -> None:
        self._cache = cache
        self._folder = cache.folder
        self._path, self._part = file_and_part(path)
        self._state = state
        self._settled = time.time_ns() - max(state.mtime_ns, state.ctime_ns) >= cache.settled_ns
        self._digest: str | None = None
        """Of the content that the file had in `state`, once that is known."""

    @classmethod
    def of(cls, cache: Cache, source: str | Path) -> Opening | None:
        """None where `source` is no regular file."""
        state = FileState.of(file_and_part(Path(source))[0])
        return None if state is None else cls(cache, Path(source), state)

    def find(self, progress: Progress) -> Trace | None:
        """What is kept of the file's content."""
        try:
            self._digest = self._noted()
            kept = self._entry()
            if kept is None and (not self._settled or self._may_be_kept()):
                noted, self._digest = self._digest, self._digest_now(progress)
                kept = self._entry() if self._digest != noted else None
                if kept is not None:
                    self._note()
        except OSError as error:
            _log.debug("%s: not looked for in the cache: %s", self._path, error)
            return None
        return kept

    def keep(self, trace: Trace) -> None:
        """Keep what was read of the file, unless it has changed since `find`, or there is no room."""
        try:
            if cache_file.stored_bytes(trace) > self._cache.limit_bytes:
                return
            if self._digest is None or not self._settled:
                digest = self._digest_now(progress=False)
                # A file that has only just changed may have changed again without a mark in its state.
                if not self._settled and digest != self._digest:
                    return
                self._digest = digest
            if FileState.of(self._path) != self._state:
                return
            with self._folder.writing(self._entry_name(self._digest)) as file:
                cache_file.write(trace, file)
            self._note()
            self._remove_outdated(self._digest)
            self._folder.sweep(self._cache.limit_bytes)
        except Exception as error:
            # The trace has been read; whatever ails the cache must not take it away.
            _log.debug("%s: not kept in the cache: %s: %s", self._path, type(error).__name__, error)

    # -- notes ------------------------------------------------------------------------------------

    @property
    def _note_name(self) -> str:
        return f"{self._state.device:x}-{self._state.inode:x}.note"

    def _noted(self) -> str | None:
        path = self._folder.path / self._note_name
        try:
            note = decode(read_regular(path), _ContentNote)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        if note.state != self._state:
            return None
        _touch(path)
        return note.digest

    def _note(self) -> None:
        if not self._settled or self._digest is None or FileState.of(self._path) != self._state:
            return
        with suppress(OSError), self._folder.writing(self._note_name) as file:
            file.write_bytes(msgspec.json.encode(_ContentNote(self._state, self._digest)))

    # -- entries ----------------------------------------------------------------------------------

    def _entry_name(self, digest: str) -> str:
        chosen = rank_in_name(str(self._path)), self._part
        # What is in a Trace depends on the content, on which of several in it is meant, on the rank in the file's name,
        # and on the reader.
        told = "-".join("x" if number is None else str(number) for number in chosen)
        return f"{self._state.size}-{digest}-{told}-{READER_DIGEST}.columns"

    def _entry(self) -> Trace | None:
        if self._digest is None:
            return None
        path = self._folder.path / self._entry_name(self._digest)
        try:
            kept = cache_file.read(path)
        except FileNotFoundError:
            return None
        except cache_file.BrokenFile as error:
            _log.debug("%s: removed: %s", path, error)
            with suppress(OSError):
                remove(path)
            return None
        except MemoryError:
            return None
        _touch(path)
        return kept

    def _may_be_kept(self) -> bool:
        """Whether there is an entry of a file of this size. Where there is none, the digest need not be known yet."""
        return any(file.path.name.startswith(f"{self._state.size}-") for file in self._folder.entries())

    def _remove_outdated(self, digest: str) -> None:
        """Remove what other versions of the reader have kept of the same file."""
        name = self._entry_name(digest)
        same = name.rpartition("-")[0]
        for file in self._folder.entries():
            if file.path.name != name and file.path.name.rpartition("-")[0] == same:
                remove(file.path)

    def _digest_now(self, progress: Progress) -> str:
        """Of the content as it is now: what the digests of its blocks come to, which are made on all cores."""
        # Imported here because a file whose content a note tells is opened sooner than that takes.
        import hashlib
        from concurrent.futures import ThreadPoolExecutor

        size = self._state.size
        whole = hashlib.sha256()
        with ReadingBar(str(self._path), size, progress) as bar, open(self._path, "rb", buffering=0) as file:

            def digest(place: int) -> bytes:
                return hashlib.sha256(os.pread(file.fileno(), _BLOCK_BYTES, place)).digest()

            with ThreadPoolExecutor(usable_cores()) as pool:
                for number, block in enumerate(pool.map(digest, range(0, size, _BLOCK_BYTES)), 1):
                    whole.update(block)
                    bar.at(min(number * _BLOCK_BYTES, size))
        return whole.hexdigest()[:32]


def _touch(path: Path) -> None:
    """Used just now. Not so where the folder may only be read."""
    with suppress(OSError):
        os.utime(path)
