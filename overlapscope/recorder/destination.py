"""Where a trace is to be written: file names, and a file for each process of a distributed program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from overlapscope.errors import UsageError

SUFFIXES = (".json.gz", ".json")
"""What a trace can be written as, by the ending of its file name."""

_RANKS = ".traces"


def rank_path(path: Path, environ: Mapping[str, str]) -> Path:
    """`path`, or with several ranks a file of this rank's own, in a directory that loads as one job.

    `runs/x.trace.json.gz` becomes `runs/x.traces/rank3.trace.json.gz` where RANK is 3 and WORLD_SIZE over 1, as
    torchrun sets them.
    """
    rank, world_size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and world_size.isdecimal() and int(world_size) > 1):
        return path
    suffix = next(suffix for suffix in SUFFIXES if path.name.endswith(suffix))
    stem = path.name.removesuffix(suffix).removesuffix(".trace")
    return path.with_name(f"{stem}{_RANKS}") / f"rank{int(rank)}.trace{suffix}"


def window_path(path: Path, number: int) -> Path:
    """The file of one of several windows: `x-2.trace.json.gz`, or of a rank `x-2.traces/rank3.trace.json.gz`."""
    if path.parent.suffix == _RANKS:
        return path.parent.with_name(f"{path.parent.stem}-{number}{_RANKS}") / path.name
    suffix = next(suffix for suffix in SUFFIXES if path.name.endswith(suffix))
    stem = path.name.removesuffix(suffix)
    trace = ".trace" if stem.endswith(".trace") else ""
    return path.with_name(f"{stem.removesuffix('.trace')}-{number}{trace}{suffix}")


def suggested_name(path: Path) -> str:
    """A file name that a trace can be written to, for one that it cannot."""
    return f"{path.name.partition('.')[0] or 'x'}.trace.json.gz"


def prepare(path: Path) -> None:
    """See to it that a file can be written there; a directory of ranks is made. Raises UsageError where not."""
    directory = path.parent
    if directory.suffix == _RANKS:
        with suppress(OSError):
            directory.mkdir(exist_ok=True)
    if not directory.is_dir():
        missing = directory.parent if directory.suffix == _RANKS else directory
        raise UsageError(f"{path}: there is no directory {missing}; create it first.")
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; name a file in it.")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path}: may not be written to; choose another file.")
    if not os.access(directory, os.W_OK):
        raise UsageError(f"{path}: the directory {directory} may not be written to; choose another.")
