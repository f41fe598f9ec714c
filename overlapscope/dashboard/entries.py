"""Files that a server may show: traces in the given files, patterns and directories, and reports of ranks."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from overlapscope.errors import OverlapscopeError
from overlapscope.inputs import read_ranks_report
from overlapscope.plugin import plugins
from overlapscope.ranks.result import RanksReport
from overlapscope.reading import expand, is_trace_name, natural, parts
from overlapscope.reading.file_names import shown_source
from overlapscope.reading.files import kind_of

_ENDING = re.compile(r"((\.(pt\.)?trace)?\.json(\.gz|\.zst)?|\.sqlite|\.xplane\.pb)(?=(@\d+)?$)")


class TraceEntry(Struct, frozen=True):
    """A trace that may be shown."""

    id: str
    """Name in URLs: the path below the given source, without the extension."""
    folder: str
    """The id's part before the name; empty for a file at the top."""
    path: Path
    name: str | None = None
    """Name of a dropped file, whose path is meaningless to users."""


class RanksFile(Struct, frozen=True):
    """A report written by `overlapscope ranks --format json`."""

    id: str
    """Name in URLs: the path below the given source."""
    path: Path
    report: RanksReport


def find(sources: Sequence[Path]) -> tuple[list[TraceEntry], list[RanksFile]]:
    """Return the traces and reports of ranks in files, patterns and directories (with subdirectories), each file once.

    Reports of another version are skipped in directories.

    Raises:
        UnreadableTrace: A source is missing, a directory has no trace, or a given report is not of this version.
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
                id = _unique(shown_source(shown.as_posix()), {report.id for report in reports})
                reports += _report(id, path, named=not within)
                continue
            name = name_of(shown.as_posix())
            id = _unique(name, taken)
            taken.add(id)
            entries.append(TraceEntry(id, name.rpartition("/")[0], path))
    return entries, reports


def dropped(folder: str, path: Path, name: str, taken: Container[str]) -> TraceEntry:
    """Return the entry of a dropped file, under its original name."""
    return TraceEntry(_unique(f"{folder}/{_ENDING.sub('', name)}", taken), folder, path, name)


def name_of(path: str) -> str:
    """Return a path without a trace's extension."""
    return shown_source(_ENDING.sub("", path))


def _report(id: str, path: Path, *, named: bool) -> list[RanksFile]:
    try:
        return [RanksFile(id, path, read_ranks_report(path))]
    except OverlapscopeError as error:
        if named:
            raise
        logging.getLogger(__name__).warning("%s", error)
        return []


def _unique(name: str, taken: Container[str]) -> str:
    """Return the name, with a number if it is taken."""
    numbered = (f"{name} ({number})" for number in itertools.count(2))
    return name if name not in taken else next(candidate for candidate in numbered if candidate not in taken)


def _below(directory: Path) -> Iterable[Path]:
    others = {page.files for plugin in plugins() for page in plugin.pages}
    files = [
        file for file in directory.rglob("*") if is_trace_name(file.name) and file.name not in others and file.is_file()
    ]
    if not files:
        # Raises the error for a directory without traces.
        expand([directory])
    # Files come before subdirectories.
    return sorted(files, key=lambda file: (len(file.relative_to(directory).parts) > 1, natural(file)))
