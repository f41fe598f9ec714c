"""What a server may show: the traces in the files, patterns and directories that it was given, and reports of ranks."""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from overlapscope.errors import OverlapscopeError
from overlapscope.inputs import read_ranks_report
from overlapscope.laboratory.results import FILE as RESULTS_FILE
from overlapscope.ranks.result import RanksReport
from overlapscope.reading import expand, is_trace_name, natural, parts
from overlapscope.reading.files import kind_of

_ENDING = re.compile(r"((\.(pt\.)?trace)?\.json(\.gz|\.zst)?|\.sqlite|\.xplane\.pb)(?=(@\d+)?$)")


class TraceEntry(Struct, frozen=True):
    """A trace that may be shown."""

    id: str
    """What URLs call it: its path below what was given, without the ending."""
    folder: str
    """The id's part before the name; empty for a file at the top."""
    path: Path
    name: str | None = None
    """What a file that was dropped in is called; where it lies says nothing to anyone."""


class RanksFile(Struct, frozen=True):
    """A report that `overlapscope ranks --format json` wrote."""

    id: str
    """What URLs call it: its path below what was given."""
    path: Path
    report: RanksReport


def find(sources: Sequence[Path]) -> tuple[list[TraceEntry], list[RanksFile]]:
    """The traces and reports of ranks of files, patterns, and directories with all that is below them, each file once.

    Raises UnreadableTrace where a source is missing, a directory holds no trace, or a report that is named is not one
    of this version; one that is not named is left out.
    """
    entries: list[TraceEntry] = []
    reports: list[RanksFile] = []
    seen: set[Path] = set()
    taken: set[str] = set()
    for source in sources:
        within = source.is_dir()
        for path in itertools.chain.from_iterable(map(parts, _below(source))) if within else expand([source]):
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            shown = path.relative_to(source) if within else Path(path.name)
            if within and len(sources) > 1:
                shown = Path(source.resolve().name) / shown
            if kind_of(path) == "ranks":
                id = _unique(_text(shown.as_posix()), {report.id for report in reports})
                reports += _report(id, path, named=not within)
                continue
            name = name_of(shown.as_posix())
            id = _unique(name, taken)
            taken.add(id)
            entries.append(TraceEntry(id, name.rpartition("/")[0], path))
    return entries, reports


def dropped(folder: str, path: Path, name: str, taken: Container[str]) -> TraceEntry:
    """A file that was dropped in under a name of its own."""
    return TraceEntry(_unique(f"{folder}/{_ENDING.sub('', name)}", taken), folder, path, name)


def name_of(path: str) -> str:
    """A path without what all traces' names end in."""
    return _text(_ENDING.sub("", path))


def _text(path: str) -> str:
    # A file name need not be valid text, but a URL must be.
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _report(id: str, path: Path, *, named: bool) -> list[RanksFile]:
    try:
        return [RanksFile(id, path, read_ranks_report(path))]
    except OverlapscopeError as error:
        if named:
            raise
        logging.getLogger(__name__).warning("%s", error)
        return []


def _unique(name: str, taken: Container[str]) -> str:
    """The name, with a number where it is taken."""
    numbered = (f"{name} ({number})" for number in itertools.count(2))
    return name if name not in taken else next(candidate for candidate in numbered if candidate not in taken)


def _below(directory: Path) -> Iterable[Path]:
    files = [
        file
        for file in directory.rglob("*")
        if is_trace_name(file.name) and file.name != RESULTS_FILE and file.is_file()
    ]
    if not files:
        # The sentence for a directory without traces.
        expand([directory])
    # Files before the folders beside them.
    return sorted(files, key=lambda file: (len(file.relative_to(directory).parts) > 1, natural(file)))
