"""Ranks on the page Ranks: those of a written report, or of the traces in a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from overlapscope.dashboard.entries import RanksFile
from overlapscope.dashboard.library import Library, Reduced
from overlapscope.dashboard.url import UrlState
from overlapscope.ranks.join import report_on
from overlapscope.ranks.result import RanksReport, Unreadable

TRACES = "traces"
"""Value in URLs for the traces of the folder, instead of a report's id."""


class FolderJob(Struct, frozen=True):
    """Traces of a folder that are shown as ranks."""

    ids: tuple[str, ...]
    others: int
    """Number of traces in the folder whose names suggest another job."""


class Ranks(Struct, frozen=True):
    """A report, and the traces of its rows that can be opened."""

    report: RanksReport
    traces: Mapping[str, str]
    """Ids of traces by the source in their rows."""

    def trace(self, row: int) -> str | None:
        """Return the id of a row's trace; None if the trace is not here."""
        exists = 0 <= row < len(self.report.ranks)
        return self.traces.get(self.report.ranks[row].source) if exists else None


def chosen(library: Library, url: UrlState) -> RanksFile | None:
    """Return the written report of a URL, by default the first; None if the URL names the traces."""
    files = library.ranks_files()
    if url.report == TRACES:
        return None
    return next((file for file in files if file.id == url.report), next(iter(files), None))


def of_file(library: Library, file: RanksFile) -> Ranks:
    """Return a written report, with the traces of its rows that are here."""
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
    """Return the id of the trace at that path, from here or from the report, or else of the only trace of that name."""
    if "://" not in source:
        for path in (Path(source), file.path.parent / source):
            if (id := library.id_of(path)) is not None:
                return id
    alike = by_name.get(Path(source).name, [])
    return alike[0] if len(alike) == 1 else None


def job_of(library: Library, id: str, *, everything: bool) -> FolderJob:
    """Return the folder's traces whose names differ from this name only in their numbers, or all of them."""
    siblings = library.siblings(id)
    if everything:
        return FolderJob(siblings, 0)
    mine = re.sub(r"\d+", "#", id)
    alike = tuple(sibling for sibling in siblings if re.sub(r"\d+", "#", sibling) == mine)
    return FolderJob(alike, len(siblings) - len(alike))


def waiting_for(library: Library, job: FolderJob) -> tuple[str, ...]:
    """Return the ids of a job's traces that are yet to be read, and request them."""
    return tuple(id for id in job.ids if library.reduced(id) is None)


def of_job(library: Library, job: FolderJob) -> Ranks | None:
    """Return the report of a job's traces; None until all of them are read."""
    parts = tuple(part for part in map(library.reduced, job.ids) if part is not None)
    if len(parts) < len(job.ids):
        return None
    # Keep the report: joining a thousand ranks takes a moment, and every callback needs it.
    ranks: Ranks = library.results_of_pages.remember(("ranks", job.ids, parts), lambda: _join(job.ids, parts))
    return ranks


def _join(ids: Sequence[str], parts: Sequence[Reduced]) -> Ranks:
    found = [
        (id, trace)
        for id, part in zip(ids, parts, strict=True)
        for trace in ((part,) if isinstance(part, Unreadable) else part)
    ]
    return Ranks(report_on(trace for _, trace in found), {trace.source: id for id, trace in found})
