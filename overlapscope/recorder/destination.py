"""Where a trace is to be written: file names, and a file for each process of a distributed program."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Self

from overlapscope.errors import UsageError
from overlapscope.recorder import claims

SUFFIXES = (".json.gz", ".json")
"""What a trace can be written as, by the ending of its file name."""

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
"""As torchrun and Accelerate set them, Open MPI, MPICH and Intel MPI, and srun. A batch script that starts no step with
srun has the last pair, too."""
_FILE_OF_RANK = re.compile(r"rank(\d+)\.trace\.json(\.gz)?")


@dataclass(frozen=True, slots=True)
class Rank:
    """The place of a process among those of its job."""

    number: int
    world_size: int


def rank_of(environ: Mapping[str, str]) -> Rank | None:
    """This process's place among several; None where none is known to be there.

    By the first of these that tells of more than one process: torch.distributed once it is initialised, as it is when
    a trainer begins to train; the variables of launchers, in the order of `_RANK_VARIABLES`.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank = Rank(distributed.get_rank(), distributed.get_world_size())
        if 0 <= rank.number < rank.world_size > 1:
            return rank
    return rank_by_launcher(environ)


def rank_by_launcher(environ: Mapping[str, str]) -> Rank | None:
    """The place that environment variables tell of."""
    for number, world_size in _RANK_VARIABLES:
        told = environ.get(number, ""), environ.get(world_size, "")
        if all(text.isdecimal() for text in told) and int(told[0]) < int(told[1]) > 1:
            return Rank(int(told[0]), int(told[1]))
    return None


@dataclass(frozen=True, slots=True)
class Destination:
    """The file that a trace was asked to be written to, with or without names in braces, whatever directory the program
    goes to.
    """

    directory: Path
    """What of it must be there, absolute. The rest is made."""
    pattern: str
    """The rest of the path."""
    time: str
    person_at: Path | None
    """Where the person is who asked; None where they wrote an absolute path."""
    child: bool = False
    """True if it is of a process that the program started, of which there may be several, with or without a rank."""

    @classmethod
    def asked(cls, path: str | os.PathLike[str]) -> Self:
        """Raises UsageError for names that stand for nothing, and for files that traces cannot be written as."""
        path = Path(path)
        if not path.name.endswith(SUFFIXES):
            raise UsageError(f"{path}: a trace must be .json or .json.gz; name it {_suggested_name(path)}.")
        for name in _PLACEHOLDER.findall(str(path)):
            if name not in _NAMES:
                known = ", ".join(f"{{{placeholder}}}" for placeholder in _NAMES)
                raise UsageError(f"{path}: {{{name}}} is not a placeholder; a file name can contain {known}.")
        directory = next(parent for parent in path.parents if not _PLACEHOLDER.search(str(parent)))
        pattern, now = str(path.relative_to(directory)), time.strftime("%Y%m%d-%H%M%S")
        return cls(directory.absolute(), pattern, now, None if path.is_absolute() else Path.cwd())

    @property
    def as_asked(self) -> Path:
        """What was asked for, absolute, with its names in braces."""
        return self.directory / self.pattern

    def shown(self, path: Path) -> Path:
        """An absolute path as the person would write it."""
        near = self.person_at is not None and path.is_relative_to(self.person_at)
        return path.relative_to(self.person_at or "") if near else path

    def of_child(self) -> Self:
        """That of a process that the program started."""
        return replace(self, child=True)

    def path(self, rank: Rank | None) -> Path:
        """The file of this process, absolute.

        Each rank has its own: where no `{rank}` and no `{pid}` sees to that, in a directory that loads as one job.
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
        """Those that were not asked to be there, for a file of its."""
        if self.directory.is_dir():
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)

    def pattern_of_ranks(self) -> Path | None:
        """A glob pattern of the files of all ranks; None where they have a directory."""
        return self._filled_in("*", "*") if self._tells_processes_apart else None

    @property
    def _tells_processes_apart(self) -> bool:
        return not {"rank", "pid"}.isdisjoint(_PLACEHOLDER.findall(self.pattern))

    def _filled_in(self, rank: str, pid: str) -> Path:
        values = {"rank": rank, "pid": pid, "time": self.time, "host": socket.gethostname()}
        return self.directory / _PLACEHOLDER.sub(lambda name: values[name[1]], self.pattern)

    def prepare(self, path: Path) -> None:
        """See to it that a file of its can be written there. Raises UsageError where not."""
        shown = self.shown(path)
        if not self.directory.is_dir():
            raise UsageError(f"{shown}: the directory {self.shown(self.directory)} does not exist; create it first.")
        self.make_directories(path)
        if path.is_dir():
            raise UsageError(f"{shown}: is a directory; name a file in it.")
        if path.exists() and not os.access(path, os.W_OK):
            raise UsageError(f"{shown}: is not writable; choose another file.")
        if not os.access(path.parent, os.W_OK):
            raise UsageError(f"{shown}: the directory {shown.parent} is not writable; choose another.")


def window_path(path: Path, number: int) -> Path:
    """The file of one of several windows: `x-2.trace.json.gz`, or of a rank `x-2.traces/rank3.trace.json.gz`."""
    if path.parent.suffix == _RANKS:
        return path.parent.with_name(f"{path.parent.stem}-{number}{_RANKS}") / path.name
    suffix = _suffix(path)
    stem = path.name.removesuffix(suffix)
    trace = ".trace" if stem.endswith(".trace") else ""
    return path.with_name(f"{stem.removesuffix('.trace')}-{number}{trace}{suffix}")


def kept_name(path: Path, *, force: bool = False) -> Path:
    """Return a free name for an earlier trace, which no directory or pattern includes: `x.trace.json.gz.1`.

    With `force`, for one that is to be replaced, `.old` comes before these.
    """
    endings = chain(["old"] if force else [], count(1))
    names = (path.with_name(f"{path.name}.{ending}") for ending in endings)
    return next(name for name in names if not os.path.lexists(name))


def remove_former_ranks(path: Path, rank: Rank) -> None:
    """Remove the files of an earlier run with more ranks beside `path`, rank 0's. No rank of this run writes them."""
    if rank.number == 0 and path.parent.suffix == _RANKS:
        for other in path.parent.iterdir():
            of_rank = _FILE_OF_RANK.fullmatch(other.name)
            if of_rank and int(of_rank[1]) >= rank.world_size and not claims.is_anothers(other):
                with suppress(OSError):
                    other.unlink()


def _suffix(path: Path) -> str:
    return next(suffix for suffix in SUFFIXES if path.name.endswith(suffix))


def _suggested_name(path: Path) -> str:
    """A file name that a trace can be written to, for one that it cannot."""
    return f"{path.name.partition('.')[0] or 'x'}.trace.json.gz"
