"""Traces that a server may show, both given and dropped. Each is loaded on demand."""

from __future__ import annotations

import itertools
import logging
import math
import re
import threading
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.words import clean, duration
from overlapscope.dashboard.background import Background, Kept, TaskProgress, Tell, attempt, raised
from overlapscope.dashboard.opened import Opened, Predictions, events_of, open_trace
from overlapscope.errors import OverlapscopeError, UnreadableTrace
from overlapscope.inputs import read_ranks_report
from overlapscope.plugin import plugins
from overlapscope.ranks.result import RanksReport, Unreadable
from overlapscope.reading import LIMIT_BYTES, expand, is_trace_name, load, natural, parts
from overlapscope.reading.file_names import file_and_part, shown_source
from overlapscope.reading.files import kind_of
from overlapscope.reading.samples import SAMPLES
from overlapscope.report.page import DeviceReport
from overlapscope.report.verdict import Verdict, judge

if TYPE_CHECKING:
    from overlapscope.ranks.reduced import ReducedRank

# -- Files that a server may show: traces, and reports of ranks ------------------------------------

_ENDING = re.compile(r"((\.(pt\.)?trace)?\.json(\.gz|\.zst)?|\.sqlite|\.xplane\.pb)(?=(@\d+)?$)")


class TraceEntry(Struct, frozen=True):
    """A trace that may be shown."""

    id: str
    """Name in URLs: the path below the given source, without the extension."""
    path: Path
    name: str | None = None
    """Name of a dropped file, whose path is meaningless to users."""

    @property
    def folder(self) -> str:
        """The id's part before the name; empty for a file at the top."""
        return self.id.rpartition("/")[0]


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
            id = _unique(shown_source(_ENDING.sub("", shown.as_posix())), taken)
            taken.add(id)
            entries.append(TraceEntry(id, path))
    return entries, reports


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


DROPPED = "dropped"
"""Folder of the traces that were dropped onto the page."""

KEPT_EVENTS = 40_000_000
"""Maximum number of events of the traces in memory, some 4 GB. The most recently shown traces stay."""

_PAGE_RESULTS = 32

_FileState = tuple[int, int] | None
"""Modification time and size; None for a missing file."""

Reduced: TypeAlias = "tuple[ReducedRank, ...] | Unreadable"
"""A trace as the page Ranks needs it: a rank for each device, or the reason why there is none."""


class TraceSummary(Struct, frozen=True):
    """A trace in a list."""

    verdict: Verdict
    step: str
    """Length of a step, such as `about 16.7 ms`; empty without steps."""


_TaskResult: TypeAlias = "Opened | Reduced | TraceSummary | OverlapscopeError"


class _TraceTask(Struct, frozen=True):
    """A background task for a trace. A changed file makes a new task."""

    entry: TraceEntry
    file: _FileState
    makes: Literal["opened", "reduced", "summary"] = "opened"


class Library:
    """A thread-safe collection of traces. The latest request is loaded first."""

    def __init__(
        self,
        sources: Iterable[Path] = (),
        *,
        limit_bytes: int = LIMIT_BYTES,
        cache: bool = True,
        data: Mapping[str, Any] = MappingProxyType({}),
        shows_source: bool = False,
    ) -> None:
        """Find the traces; `limit_bytes` and `cache` are those of `load`, `data` is that of pages, by name.

        Raises:
            UnreadableTrace: A source is missing, or a directory has no trace.
        """
        self.data = data
        """Data of pages that are not about a trace, by page (`PluginPage.data`); None where there is none."""
        self.shows_source = shows_source
        """Whether pages may show lines of files that a trace names (`source.py`)."""
        self.predictions = Predictions()
        """Predictions for the loaded traces."""
        self._limit_bytes = limit_bytes
        self._cache = cache
        self._sources = tuple(sources)
        entries, self._ranks_files = find(self._sources)
        self._entries = {entry.id: entry for entry in entries}
        self._ids = {entry.path.resolve(): entry.id for entry in self._entries.values()}
        self._lock = threading.Lock()
        self._opened_by: dict[str, _TraceTask] = {}
        self._kept: Kept[_TraceTask, _TaskResult] = Kept(KEPT_EVENTS)
        self._background = Background("loader", self._read, self._kept, _weight)
        named = {page.files for plugin in plugins() for page in plugin.pages if page.files}
        self.files_of_plugins = frozenset(name for name in named if any(self.files(name)))
        """Names of files for pages of plugins, of which there were any at the start."""
        self.results_of_pages: Kept[Hashable, Any] = Kept(_PAGE_RESULTS)
        """Results that pages need again, under keys of their own."""

    def entries(self) -> tuple[TraceEntry, ...]:
        """Return all traces, in the order given."""
        with self._lock:
            return tuple(self._entries.values())

    def entry(self, id: str | None) -> TraceEntry | None:
        """Return the trace with that id."""
        with self._lock:
            return self._entries.get(id or "")

    def siblings(self, id: str) -> tuple[str, ...]:
        """Return the traces of the same folder, including this trace: the ranks of its job."""
        with self._lock:
            mine = self._entries.get(id)
            return tuple(entry.id for entry in self._entries.values() if mine and entry.folder == mine.folder)

    def add(self, path: Path, name: str) -> str:
        """Add a file that was dropped under a name; return its id."""
        with self._lock:
            id = _unique(f"{DROPPED}/{_ENDING.sub('', name)}", self._entries)
            self._entries[id] = TraceEntry(id, path, name)
            self._ids.setdefault(path.resolve(), id)
            return id

    def has_samples(self) -> bool:
        """Return whether any sample trace is open."""
        return any(entry.path.resolve().is_relative_to(SAMPLES.resolve()) for entry in self.entries())

    def add_samples(self) -> str:
        """Add the sample traces that come with overlapscope; return the id of the first."""
        entries, _ = find([SAMPLES])
        with self._lock:
            for entry in entries:
                if entry.path.resolve() not in self._ids:
                    id = _unique(f"samples/{entry.id}", self._entries)
                    self._entries[id] = TraceEntry(id, entry.path)
                    self._ids[entry.path.resolve()] = id
            return self._ids[entries[0].path.resolve()]

    def _job(self, entry: TraceEntry) -> _TraceTask:
        """Return the task that opens a trace. An open trace stays as it is, even if its file changes."""
        job = self._opened_by.get(entry.id)
        if job is None or not isinstance(self._kept.get(job), Opened):
            job = self._opened_by[entry.id] = _TraceTask(entry, _state_of(entry.path))
        return job

    def _result(self, id: str | None) -> _TaskResult | None:
        entry = self.entry(id)
        return None if entry is None else self._kept.get(self._job(entry))

    def opened(self, id: str | None) -> Opened | None:
        """Return the trace if it is loaded."""
        result = self._result(id)
        return result if isinstance(result, Opened) else None

    def failure(self, id: str) -> OverlapscopeError | None:
        """Return the reason why a trace could not be loaded; None again once its file has changed."""
        result = self._result(id)
        return result if isinstance(result, OverlapscopeError) else None

    def request(self, id: str) -> None:
        """Request a trace, before all earlier requests."""
        entry = self.entry(id)
        if entry is not None:
            self._background.request(self._job(entry))

    def get(self, id: str, wait_s: float = 0.0) -> Opened | None:
        """Return the trace; None if it isn't loaded after `wait_s`. Raises OverlapscopeError if it can't be loaded."""
        entry = self.entry(id)
        if entry is None:
            raise UnreadableTrace(f"{clean(id, 100)}: there is no such trace here.")
        result = raised(self._background.get(self._job(entry), wait_s))
        return result if isinstance(result, Opened) else None

    def wait(self, id: str) -> Opened:
        """Return the trace once it is loaded. Raises OverlapscopeError if it can't be loaded."""
        opened = self.get(id, math.inf)
        if opened is None:
            raise RuntimeError(f"the trace {id} was neither opened nor refused")
        return opened

    def loading(self, id: str) -> TaskProgress:
        """Return the progress of a requested trace."""
        waiting, at_work = TaskProgress("waiting for another trace"), self._background.at_work
        return waiting if at_work is None or at_work[0].entry.id != id else at_work[1]

    def reduced(self, id: str) -> Reduced | None:
        """Return a trace as the page Ranks needs it; None until it is known, with a request for it.

        A changed file is read again.
        """
        entry = self.entry(id)
        if entry is None:
            return Unreadable(source=id, reason="There is no such trace here.")
        result = self._beside(entry, "reduced")
        return result if isinstance(result, tuple | Unreadable) else None

    def summary(self, id: str) -> TraceSummary | OverlapscopeError | None:
        """Return the verdict on a trace's first device or the reason why there is none.

        Return None, and request the verdict, until it is known. Nothing else of the trace is kept.
        """
        entry = self.entry(id)
        result = None if entry is None else self._beside(entry, "summary")
        return result if isinstance(result, TraceSummary | OverlapscopeError) else None

    def _beside(self, entry: TraceEntry, makes: Literal["reduced", "summary"]) -> _TaskResult | None:
        job = _TraceTask(entry, _state_of(entry.path), makes)
        result = self._kept.get(job)
        if result is None:
            # Traces that a user waits for come first.
            self._background.request(job, urgent=False)
        return result

    def ranks_files(self) -> tuple[RanksFile, ...]:
        """Return the reports of ranks."""
        return tuple(self._ranks_files)

    def files(self, name: str) -> Iterator[Path]:
        """Yield the files with a name in the given directories and their subdirectories."""
        for source in self._sources:
            yield from sorted(source.rglob(name)) if source.is_dir() else ()

    def id_of(self, path: Path) -> str | None:
        """Return the id of a file."""
        with self._lock:
            return self._ids.get(path.resolve())

    def _read(self, job: _TraceTask, tell: Tell) -> _TaskResult:
        """Return the result of a task, or the error that prevents it. Reads the trace unless it is open."""
        entry, opened = job.entry, self.opened(job.entry.id)

        def make() -> Opened | Reduced | TraceSummary:
            if opened is not None:
                trace = opened.analysis.trace
            else:
                # Dropped files are not cached, because they must be gone when the server ends.
                cache = self._cache and entry.name is None
                trace = load(entry.path, limit_bytes=self._limit_bytes, progress=reading, cache=cache)
                trace = trace if entry.name is None else replace(trace, source=entry.name)
            tell(TaskProgress("analyzing"))
            if job.makes == "reduced":
                # The first page doesn't need it.
                from overlapscope.ranks.on_host import reduce_any

                return reduce_any(trace)
            opened_now = open_trace(entry.id, entry.path, trace) if opened is None else opened
            return opened_now if job.makes == "opened" else _summary(opened_now.of(None).section())

        def reading(done: int, total: int) -> None:
            tell(TaskProgress("reading", done / total if total else None))

        reading(0, 1)
        shown = entry.name or str(entry.path)
        result = attempt(shown, make)
        if isinstance(result, OverlapscopeError) and entry.name is not None:
            result = UnreadableTrace(entry.name, result.reason.replace(str(entry.path), entry.name))
        if isinstance(result, OverlapscopeError) and job.makes == "reduced":
            return Unreadable(source=shown, reason=result.reason)
        return result


def _summary(section: DeviceReport) -> TraceSummary:
    is_known = bool(section.steps) and (section.usable or section.device is None)
    return TraceSummary(judge(section), duration(section.span_ns) if is_known else "")


def _weight(result: _TaskResult) -> int:
    """Return the number of events in memory."""
    programs = (result, result.plain) if isinstance(result, Opened) else ()
    return sum(events_of(program.analysis.trace) for program in programs if program is not None)


def _state_of(path: Path) -> _FileState:
    try:
        stat = file_and_part(path)[0].stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
