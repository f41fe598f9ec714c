"""Names of trace files, which may state the recording in a file and its rank, and directories of recordings."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from overlapscope.base import disk
from overlapscope.base.words import plural
from overlapscope.plugin import TraceSource, sources

_PART: Final = re.compile(r"(.+)@(\d{1,6})")
_RANK_IN_NAME: Final = re.compile(r"(?<![a-z])rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)


STDIN = Path("<stdin>")
"""Name that stands for `-` in messages."""


def input_path(source: str | Path) -> Path:
    """Return the path that a user names; `-` is standard input."""
    return STDIN if str(source) == "-" and not isinstance(source, Path) else Path(source)


def is_pipe(path: Path) -> bool:
    """Return whether a path can be read only once; False for a missing file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return path == STDIN
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def shown_source(source: str | Path) -> str:
    """Return a path as a report shows it. A file name need not be valid text, but a report must be."""
    return os.fsencode(source).decode("utf-8", "backslashreplace")


def file_and_part(path: Path) -> tuple[Path, int | None]:
    """Return the file that a path names, and the number of a recording in it for a name that ends in `@2`."""
    part = _PART.fullmatch(path.name)
    # Links are not resolved, because they may lead out of the readable directories.
    if part is None or os.path.lexists(path) or not disk.may_be_file(path.with_name(part[1])):
        return path, None
    return path.with_name(part[1]), int(part[2])


def natural(name: object) -> list[tuple[int, int, str]]:
    """Return a sort key for names that puts rank2 before rank10."""
    parts = re.split(r"(\d+)", str(name))
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]


def rank_in_name(source: str) -> int | None:
    """Return the rank in a file's name; None where there is none."""
    ranks = _RANK_IN_NAME.findall(Path(source).name)
    return int(ranks[-1]) if ranks else None


# -- Directories in which a profiler writes several recordings, or one in several formats ------------


def newest_recording(directory: Path, readable: Callable[[Path], bool] = Path.exists) -> tuple[Path, list[str]]:
    """Return the newest recording below a profiler's directory, and a sentence on older ones.

    Any other directory is returned unchanged. `readable` excludes recordings that must not be opened.
    """
    for source in _sources():
        readable_runs = filter(readable, directory.glob(source.runs))
        runs = sorted(run for run in readable_runs if any(any(run.glob(f"*{suffix}")) for suffix in source.suffixes))
        if runs:
            left_out = f"{plural(len(runs) - 1, 'older recording')} in {Path(source.runs).parent} left out"
            return runs[-1], [f"{directory}: {left_out}; name its directory."] if runs[1:] else []
    return directory, []


def without_copies(files: list[Path]) -> list[Path]:
    """Return the files of a directory without those that lie beside the same recording in more detail."""
    copies = {
        copy.replace("*", file.name.removesuffix(suffix))
        for source in _sources()
        for suffix in source.suffixes
        for file in files
        if file.name.endswith(suffix)
        for copy in source.copies
    }
    return [path for path in files if path.name not in copies]


def _sources() -> Iterable[TraceSource]:
    return (source for source in sources() if source.runs)
