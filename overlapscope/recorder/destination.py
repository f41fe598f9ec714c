"""Destinations of traces: file names, a file for each process of a distributed program, and locks on them."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Self

from overlapscope.base import disk
from overlapscope.base.output import Descriptor
from overlapscope.errors import UsageError

SUFFIXES = (".json.gz", ".json")
"""Endings of file names that a trace can be written to."""

_RANKS = ".traces"
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_NAMES = ("rank", "pid", "time", "host")
_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Variables with the rank and the number of ranks, as launchers set them: torchrun and Accelerate, Open MPI, MPICH and
Intel MPI, and srun. A batch script that starts no step with srun has the last pair, too."""
_FILE_OF_RANK = re.compile(r"rank(\d+)\.trace\.json(\.gz)?")


@dataclass(frozen=True, slots=True)
class Rank:
    """Place of a process among those of its job."""

    number: int
    world_size: int


def rank_of(environ: Mapping[str, str]) -> Rank | None:
    """Return this process's rank; None if it seems to be the only process.

    The first of these with several processes counts: torch.distributed, which a trainer initializes when it begins to
    train; and the variables of launchers, in the order of `_RANK_VARIABLES`.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank = Rank(distributed.get_rank(), distributed.get_world_size())
        if 0 <= rank.number < rank.world_size > 1:
            return rank
    return rank_by_launcher(environ)


def rank_by_launcher(environ: Mapping[str, str]) -> Rank | None:
    """Return the rank that environment variables of launchers state."""
    for number, world_size in _RANK_VARIABLES:
        values = environ.get(number, ""), environ.get(world_size, "")
        if all(text.isdecimal() for text in values) and int(values[0]) < int(values[1]) > 1:
            return Rank(int(values[0]), int(values[1]))
    return None


@dataclass(frozen=True, slots=True)
class Destination:
    """The trace file that the user named, perhaps with placeholders in braces.

    It stays the same if the program changes its working directory.
    """

    directory: Path
    """Absolute path of the directory that must exist; directories below it are created."""
    pattern: str
    """The rest of the path."""
    time: str
    user_directory: Path | None
    """Working directory of the user; None if they named an absolute path."""
    child: bool = False
    """True for a process that the program started, one of possibly several without ranks."""

    @classmethod
    def for_path(cls, path: str | os.PathLike[str]) -> Self:
        """Return the destination for a path.

        Raises:
            UsageError: The path has an unknown placeholder, or no trace can be written there.
        """
        path = Path(path)
        if not path.name.endswith(SUFFIXES):
            better = f"{path.name.partition('.')[0] or 'x'}.trace.json.gz"
            raise UsageError(f"{path}: a trace must be .json or .json.gz; name it {better}.")
        for name in _PLACEHOLDER.findall(str(path)):
            if name not in _NAMES:
                names = ", ".join(f"{{{placeholder}}}" for placeholder in _NAMES)
                raise UsageError(f"{path}: {{{name}}} is not a placeholder; a file name can contain {names}.")
        directory = next(parent for parent in path.parents if not _PLACEHOLDER.search(str(parent)))
        pattern, now = str(path.relative_to(directory)), time.strftime("%Y%m%d-%H%M%S")
        return cls(directory.absolute(), pattern, now, None if path.is_absolute() else Path.cwd())

    @property
    def as_asked(self) -> Path:
        """Absolute path as the user named it, with its placeholders."""
        return self.directory / self.pattern

    def shown(self, path: Path) -> Path:
        """Return an absolute path as the user would write it."""
        near = self.user_directory is not None and path.is_relative_to(self.user_directory)
        return path.relative_to(self.user_directory or "") if near else path

    def of_child(self) -> Self:
        """Return the destination of a process that the program started."""
        return replace(self, child=True)

    def path(self, rank: Rank | None) -> Path:
        """Return the file of this process, absolute.

        Each rank has a file. Without `{rank}` or `{pid}` in the name, it is in a directory that loads as one job.
        `runs/x.trace.json.gz` becomes `runs/x.traces/rank3.trace.json.gz` for rank 3, and
        `runs/x.traces/pid1234.trace.json.gz` for a child without one.
        """
        path = self._filled_in("0" if rank is None else str(rank.number), str(os.getpid()))
        if self._tells_processes_apart or (rank is None and not self.child):
            return path
        suffix = _suffix(path)
        who = f"pid{os.getpid()}" if rank is None else f"rank{rank.number}"
        stem = path.name.removesuffix(suffix).removesuffix(".trace")
        return path.with_name(f"{stem}{_RANKS}") / f"{who}.trace{suffix}"

    def make_directories(self, path: Path) -> None:
        """Create the missing directories between `directory` and a file."""
        if self.directory.is_dir():
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)

    def pattern_of_ranks(self) -> Path | None:
        """Return a glob pattern of the files of all ranks; None if they have a directory."""
        return self._filled_in("*", "*") if self._tells_processes_apart else None

    @property
    def _tells_processes_apart(self) -> bool:
        return not {"rank", "pid"}.isdisjoint(_PLACEHOLDER.findall(self.pattern))

    def _filled_in(self, rank: str, pid: str) -> Path:
        values = {"rank": rank, "pid": pid, "time": self.time, "host": socket.gethostname()}
        return self.directory / _PLACEHOLDER.sub(lambda name: values[name[1]], self.pattern)

    def prepare(self, path: Path) -> None:
        """Check that a file can be written there. Raises UsageError if it cannot."""
        shown = self.shown(path)
        if not self.directory.is_dir():
            raise UsageError(f"{shown}: the directory {self.shown(self.directory)} does not exist; create it first.")
        self.make_directories(path)
        if path.is_dir():
            raise UsageError(f"{shown}: is a directory; name a file in it.")
        if disk.is_planted(path):
            raise UsageError(f"{shown}: another user has put something there; choose another file.")
        if path.exists() and not os.access(path, os.W_OK):
            raise UsageError(f"{shown}: is not writable; choose another file.")
        if not os.access(path.parent, os.W_OK):
            raise UsageError(f"{shown}: the directory {shown.parent} is not writable; choose another.")


def window_path(path: Path, number: int) -> Path:
    """Return the file of a numbered window: `x-2.trace.json.gz`, or `x-2.traces/rank3.trace.json.gz` for a rank."""
    if path.parent.suffix == _RANKS:
        return path.parent.with_name(f"{path.parent.stem}-{number}{_RANKS}") / path.name
    suffix = _suffix(path)
    stem = path.name.removesuffix(suffix)
    trace = ".trace" if stem.endswith(".trace") else ""
    return path.with_name(f"{stem.removesuffix('.trace')}-{number}{trace}{suffix}")


def kept_name(path: Path, *, force: bool = False) -> Path:
    """Return an unused name for an earlier trace, such as `x.trace.json.gz.1`, which no directory or pattern includes.

    With `force`, for a trace that will be replaced, `.old` is the first choice.
    """
    endings = chain(["old"] if force else [], count(1))
    names = (path.with_name(f"{path.name}.{ending}") for ending in endings)
    return next(name for name in names if not os.path.lexists(name))


def remove_former_ranks(path: Path, rank: Rank) -> None:
    """Remove the files of an earlier run with more ranks beside `path`, rank 0's. No rank of this run writes them."""
    if rank.number == 0 and path.parent.suffix == _RANKS:
        for other in path.parent.iterdir():
            of_rank = _FILE_OF_RANK.fullmatch(other.name)
            if of_rank and int(of_rank[1]) >= rank.world_size and not belongs_to_another(other):
                with suppress(OSError):
                    other.unlink()


def _suffix(path: Path) -> str:
    return next(suffix for suffix in SUFFIXES if path.name.endswith(suffix))


# -- Locks, so that processes do not overwrite each other's traces -------------------------------------
# A process keeps its files locked until it ends. A file that is locked, or was written since the process's own
# recording began, belongs to another process, and the trace is written beside it.

_MAX_LOCKS = 16
"""Maximum number of locks, for a process that records into ever new files: the latest stay locked."""

_locks: dict[Path, Descriptor] = {}
"""File descriptor that holds the lock of each file of ours. The system closes them when the process ends."""


def put(new: Path, path: Path, *, since_ns: int | None = None) -> Path:
    """Move the file `new` to `path` on the same disk, atomically.

    If `path` belongs to another process, the new path has this process's id in its name. A file that was modified at
    `since_ns` or later belongs to another process, unless it is one of ours.

    Returns:
        The file's new path.

    Raises:
        OSError: The file can't be moved.
    """
    disk.flush(new)
    lock = _locked(new)
    try:
        if not _take(new, path, since_ns):
            stem, dot, suffix = path.name.partition(".trace.") if ".trace." in path.name else path.name.partition(".")
            path = path.with_name(f"{stem}.pid{os.getpid()}{dot}{suffix}")
            os.replace(new, path)
    except OSError:
        lock.close()
        raise
    if path in _locks:
        _locks.pop(path).close()
    _locks[path] = lock
    if len(_locks) > _MAX_LOCKS:
        _locks.pop(next(iter(_locks))).close()
    return path


def belongs_to_another(path: Path) -> bool:
    """Return whether the file belongs to a process that still runs."""
    with _open(path) as existing:
        return path not in _locks and existing is not None and not _lock(existing)


def _take(new: Path, path: Path, since_ns: int | None) -> bool:
    """Move the file unless the path belongs to another process, and return whether it was moved."""
    while path not in _locks:
        try:
            # Unlike a rename, this fails if another process was quicker.
            os.link(new, path)
        except OSError:
            pass
        else:
            os.unlink(new)
            return True
        with _open(path) as existing:
            if existing is None:
                # Some disks have no links, and some files may be replaced, but not opened.
                break
            if not _lock(existing) or (since_ns is not None and os.fstat(existing).st_mtime_ns >= since_ns):
                return False
            # Another process may have replaced the file before it was locked here, but not afterwards.
            if os.path.samestat(os.fstat(existing), os.stat(path)):
                os.replace(new, path)
                return True
    os.replace(new, path)
    return True


@contextmanager
def _open(path: Path) -> Iterator[int | None]:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(path: Path) -> Descriptor:
    """Return a file descriptor that keeps a file of ours locked, even if the file is renamed."""
    descriptor = os.open(path, os.O_RDWR)
    _lock(descriptor)
    return Descriptor(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a file, and return false if another process has locked it. On a disk without locks, no file is locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _forget() -> None:
    """Release the locks in a forked child, which may outlive the process that owns them."""
    while _locks:
        _locks.popitem()[1].close()


os.register_at_fork(after_in_child=_forget)
