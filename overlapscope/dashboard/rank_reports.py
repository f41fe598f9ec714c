"""Which report of ranks the page Ranks shows: one that was written before, or that of the traces of a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from overlapscope.base.kept import kept
from overlapscope.dashboard.entries import RanksFile
from overlapscope.dashboard.library import Library, Reduced
from overlapscope.dashboard.place import Place
from overlapscope.ranks.join import Joined
from overlapscope.ranks.result import RanksReport, Unreadable

TRACES = "traces"
"""What a URL calls the traces of the folder, instead of a report's id."""

_KEPT = 8
"""Reports that are kept: joining a thousand ranks takes a moment, and every callback needs the report."""


@dataclass(frozen=True, slots=True)
class Job:
    """The traces that are shown as ranks."""

    ids: tuple[str, ...]
    others: int
    """How many more lie in the same folder, whose names say that they are of another job."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """A report, and which of its rows can be opened."""

    report: RanksReport
    traces: Mapping[str, str]
    """The id of a trace by the source that its rows name."""

    def trace(self, row: int) -> str | None:
        """The id of a row's trace; None where it is not here."""
        known = 0 <= row < len(self.report.ranks)
        return self.traces.get(self.report.ranks[row].source) if known else None


def chosen(library: Library, place: Place) -> RanksFile | None:
    """The written report that a URL names; the first where it names none; None where the traces are meant."""
    files = library.ranks_files()
    if place.report == TRACES:
        return None
    return next((one for one in files if one.id == place.report), next(iter(files), None))


def of_file(library: Library, file: RanksFile) -> Ranks:
    """A written report, with its rows' traces as far as they are here."""
    return _of_file(library, file.id, len(library.entries()))


@kept(most=_KEPT)
def _of_file(library: Library, file_id: str, known: int) -> Ranks:
    """`known`: how many traces there are to look for its rows' among."""
    file = next(file for file in library.ranks_files() if file.id == file_id)
    by_name: dict[str, list[str]] = {}
    for entry in library.entries():
        by_name.setdefault(entry.path.name, []).append(entry.id)
    sources = {row.source for row in file.report.ranks}
    found = {source: _trace(library, file, source, by_name) for source in sources}
    return Ranks(file.report, {source: id for source, id in found.items() if id is not None})


def _trace(library: Library, file: RanksFile, source: str, by_name: Mapping[str, list[str]]) -> str | None:
    """Where the report says it is, from here or from the report; else the only one of that name."""
    if "://" not in source:
        for path in (Path(source), file.path.parent / source):
            if (id := library.id_of(path)) is not None:
                return id
    alike = by_name.get(Path(source).name, [])
    return alike[0] if len(alike) == 1 else None


def job_of(library: Library, id: str, *, everything: bool) -> Job:
    """The traces of the same folder whose names differ from this one's in their numbers alone, or all of them."""
    siblings = library.siblings(id)
    if everything:
        return Job(siblings, 0)
    mine = re.sub(r"\d+", "#", id)
    alike = tuple(one for one in siblings if re.sub(r"\d+", "#", one) == mine)
    return Job(alike, len(siblings) - len(alike))


def waiting_for(library: Library, job: Job) -> tuple[str, ...]:
    """The ids of a job's traces that are yet to be read; they are asked for."""
    return tuple(id for id in job.ids if library.reduced(id) is None)


def of_job(library: Library, job: Job) -> Ranks | None:
    """The report of a job's traces; None as long as one of them is yet to be read."""
    known = {id: library.reduced(id) for id in job.ids}
    parts = {id: part for id, part in known.items() if part is not None}
    return _join(library, tuple(parts.items())) if len(parts) == len(known) else None


@kept(most=_KEPT)
def _join(library: Library, parts: tuple[tuple[str, Reduced], ...]) -> Ranks:
    """What is known of each trace, by its id, as one report."""
    joined = Joined()
    traces = {}
    for id, part in parts:
        for one in (part,) if isinstance(part, Unreadable) else part:
            joined.add(one)
            traces[one.source] = id
    return Ranks(joined.report(), traces)
