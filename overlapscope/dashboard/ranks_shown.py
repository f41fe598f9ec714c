"""The ranks on the page Ranks: those of a written report, or of the traces in a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from overlapscope.dashboard.entries import RanksFile
from overlapscope.dashboard.library import Library, Reduced
from overlapscope.dashboard.url import UrlState
from overlapscope.ranks.join import Joined
from overlapscope.ranks.result import RanksReport, Unreadable

TRACES = "traces"
"""What a URL calls the traces of the folder, instead of a report's id."""


class FolderJob(Struct, frozen=True):
    """The traces that are shown as ranks."""

    ids: tuple[str, ...]
    others: int
    """How many more lie in the same folder, whose names say that they are of another job."""


class Ranks(Struct, frozen=True):
    """A report, and which of its rows can be opened."""

    report: RanksReport
    traces: Mapping[str, str]
    """The id of a trace by the source that its rows name."""

    def trace(self, row: int) -> str | None:
        """The id of a row's trace; None where it is not here."""
        known = 0 <= row < len(self.report.ranks)
        return self.traces.get(self.report.ranks[row].source) if known else None


def chosen(library: Library, url: UrlState) -> RanksFile | None:
    """The written report that a URL names; the first where it names none; None where the traces are meant."""
    files = library.ranks_files()
    if url.report == TRACES:
        return None
    return next((file for file in files if file.id == url.report), next(iter(files), None))


def of_file(library: Library, file: RanksFile) -> Ranks:
    """A written report, with its rows' traces as far as they are here."""
    entries = library.entries()

    def look_up() -> Ranks:
        by_name: dict[str, list[str]] = {}
        for entry in entries:
            by_name.setdefault(entry.path.name, []).append(entry.id)
        sources = {row.source for row in file.report.ranks}
        traces = {source: _trace(library, file, source, by_name) for source in sources}
        return Ranks(file.report, {source: id for source, id in traces.items() if id is not None})

    ranks: Ranks = library.results_of_pages.remember(("ranks", file.id, len(entries)), look_up)
    return ranks


def _trace(library: Library, file: RanksFile, source: str, by_name: Mapping[str, list[str]]) -> str | None:
    """Where the report says it is, from here or from the report; else the only one of that name."""
    if "://" not in source:
        for path in (Path(source), file.path.parent / source):
            if (id := library.id_of(path)) is not None:
                return id
    alike = by_name.get(Path(source).name, [])
    return alike[0] if len(alike) == 1 else None


def job_of(library: Library, id: str, *, everything: bool) -> FolderJob:
    """The traces of the same folder whose names differ from this one's in their numbers alone, or all of them."""
    siblings = library.siblings(id)
    if everything:
        return FolderJob(siblings, 0)
    mine = re.sub(r"\d+", "#", id)
    alike = tuple(sibling for sibling in siblings if re.sub(r"\d+", "#", sibling) == mine)
    return FolderJob(alike, len(siblings) - len(alike))


def waiting_for(library: Library, job: FolderJob) -> tuple[str, ...]:
    """The ids of a job's traces that are yet to be read; they are asked for."""
    return tuple(id for id in job.ids if library.reduced(id) is None)


def of_job(library: Library, job: FolderJob) -> Ranks | None:
    """The report of a job's traces; None as long as one of them is yet to be read."""
    parts = tuple(part for part in map(library.reduced, job.ids) if part is not None)
    if len(parts) < len(job.ids):
        return None
    # Joining a thousand ranks takes a moment, and every callback needs the report.
    ranks: Ranks = library.results_of_pages.remember(("ranks", job.ids, parts), lambda: _join(job.ids, parts))
    return ranks


def _join(ids: Sequence[str], parts: Sequence[Reduced]) -> Ranks:
    joined, traces = Joined(), {}
    for id, part in zip(ids, parts, strict=True):
        for trace in (part,) if isinstance(part, Unreadable) else part:
            joined.add(trace)
            traces[trace.source] = id
    return Ranks(joined.report(), traces)
