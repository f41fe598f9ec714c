"""Names of trace files, which may state the recording in a file and its rank."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from overlapscope.base import disk

_PART: Final = re.compile(r"(.+)@(\d{1,6})")
_RANK_IN_NAME: Final = re.compile(r"(?<![a-z])rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)


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
