"""The traces that a server may show: those it was given, and those dropped in. Each is loaded when first wanted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from overlapscope import timeline as lanes
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.dashboard.entries import Entry, RanksFile, dropped, find
from overlapscope.dashboard.place import RECORDED
from overlapscope.dashboard.predictions import Predictions
from overlapscope.errors import OverlapscopeError, UnreadableTrace
from overlapscope.laboratory import store
from overlapscope.laboratory.results import FILE as RESULTS_FILE
from overlapscope.laboratory.results import Results
from overlapscope.prediction.program import find_program
from overlapscope.ranks.reduced import ReducedRank, reduce
from overlapscope.ranks.result import Unreadable
from overlapscope.reading import LIMIT_BYTES, load
from overlapscope.report.model import Report, joined, of_program
from overlapscope.report.page import Page, Section
from overlapscope.timeline import Lanes
from overlapscope.trace.model import Trace

DROPPED = "dropped"
"""The folder of traces that were dropped into the page."""

KEPT_EVENTS = 40_000_000
"""Traces stay in memory, the most recently shown ones, up to so many events together: some 4 GB."""

_FileState = tuple[int, int] | None
"""Time of the last change and size; None where there is no such file."""

T = TypeVar("T")

Reduced = tuple[ReducedRank, ...] | Unreadable
"""What the page Ranks needs of a trace: one for each device, or why there is none."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A loaded trace with everything that is shown of it; or its plain program, which is shown alike."""

    id: str
    path: Path
    analysis: TraceAnalysis
    report: Report
    page: Page
    plain: Opened | None = None
    """Its plain program, where verdict and findings speak of that."""

    @cached_property
    def lanes(self) -> Lanes:
        """Prepared when first drawn: not everybody looks at both programs."""
        return lanes.build(self.analysis)

    def of(self, program: str | None) -> Opened:
        """What is shown: the plain program where there is one, unless the recording is asked for (`Place.of`)."""
        return self if self.plain is None or program == RECORDED else self.plain

    def section(self, device: int | None = None) -> Section:
        """The device asked for; the first one where there is no such device."""
        sections = list(self.page.sections())
        return next((one for one in sections if one.device and one.device.device == device), sections[0])

    @property
    def events(self) -> int:
        """How many events its timeline holds."""
        trace = self.analysis.trace
        tables = (trace.gpu_ops, trace.runtime_calls, trace.cpu_ops, trace.annotations, trace.python_frames)
        return sum(len(table) for table in tables)


@dataclass(frozen=True, slots=True)
class Loading:
    """How far a trace is."""

    stage: str
    part: float | None = None
    """Of the file's bytes that have been read; None where nothing is known."""


class Library:
    """Thread-safe. One thread loads, the trace asked for last first."""

    def __init__(self, sources: Iterable[Path] = (), *, limit_bytes: int = LIMIT_BYTES, cache: bool = True) -> None:
        """`limit_bytes` and `cache` as of `load`.

        Raises UnreadableTrace where a source is missing or a directory holds no trace."""
        self.predictions = Predictions()
        """Of the traces that are loaded."""
        self._limit_bytes = limit_bytes
        self._cache = cache
        self._sources = tuple(sources)
        entries, self._ranks_files = find(self._sources)
        self._entries = {entry.id: entry for entry in entries}
        self._ids = {entry.path.resolve(): entry.id for entry in self._entries.values()}
        self._opened: dict[str, Opened] = {}
        self._failed: dict[str, tuple[OverlapscopeError, _FileState]] = {}
        self._reduced: dict[str, tuple[Reduced, _FileState]] = {}
        self._wanted: list[str] = []
        self._to_reduce: list[str] = []
        self._loading: dict[str, Loading] = {}
        self._change = threading.Condition()
        threading.Thread(target=self._work, name="overlapscope-loader", daemon=True).start()

    def entries(self) -> tuple[Entry, ...]:
        """All traces, in the order given."""
        with self._change:
            return tuple(self._entries.values())

    def entry(self, id: str | None) -> Entry | None:
        """The trace of that id."""
        with self._change:
            return self._entries.get(id or "")

    def siblings(self, id: str) -> tuple[str, ...]:
        """The traces of the same folder, itself included: the ranks of its job."""
        with self._change:
            mine = self._entries.get(id)
            return tuple(one.id for one in self._entries.values() if mine and one.folder == mine.folder)

    def add(self, path: Path, name: str) -> str:
        """Make a file known that was dropped in, under its own name; its id."""
        with self._change:
            entry = dropped(DROPPED, path, name, self._entries)
            self._entries[entry.id] = entry
            self._ids.setdefault(path.resolve(), entry.id)
            return entry.id

    def opened(self, id: str | None) -> Opened | None:
        """The trace if it is loaded."""
        with self._change:
            found = self._opened.pop(id or "", None)
            if found is not None:
                # Put last: the most recently used.
                self._opened[found.id] = found
            return found

    def request(self, id: str) -> None:
        """Have a trace loaded, before those that were asked for earlier."""
        with self._change:
            if id not in self._entries or id in self._opened or id in self._loading or self.failure(id):
                return
            if id in self._wanted:
                self._wanted.remove(id)
            self._wanted.append(id)
            self._change.notify_all()

    def wait(self, id: str) -> Opened:
        """The trace, once it is loaded. Raises UnreadableTrace where it cannot be."""
        with self._change:
            while (found := self.opened(id)) is None:
                if (failure := self.failure(id)) is not None:
                    # Else its traceback would grow with every time that it is raised.
                    raise failure.with_traceback(None)
                if id not in self._entries:
                    raise UnreadableTrace(f"{id}: there is no such trace here.")
                self.request(id)
                self._change.wait()
            return found

    def failure(self, id: str) -> OverlapscopeError | None:
        """Why a trace could not be loaded; None again once its file has changed."""
        with self._change:
            if id not in self._failed:
                return None
            error, state = self._failed[id]
            if _state_of(self._entries[id].path) == state:
                return error
            del self._failed[id]
            return None

    def loading(self, id: str) -> Loading:
        """How far a trace is that was requested."""
        with self._change:
            return self._loading.get(id, Loading("waiting for another trace"))

    def reduced(self, id: str) -> Reduced | None:
        """What the page Ranks needs of a trace, once it is known; it is asked for until then. Anew where its file has
        changed."""
        with self._change:
            entry = self._entries.get(id)
            if entry is None:
                return Unreadable(source=id, reason="There is no such trace here.")
            found, state = self._reduced.get(id, (None, None))
            if found is not None and state == _state_of(entry.path):
                return found
            if id not in self._to_reduce and id not in self._loading:
                self._to_reduce.append(id)
                self._change.notify_all()
            return None

    def ranks_files(self) -> tuple[RanksFile, ...]:
        """The reports of ranks among what was given."""
        return tuple(self._ranks_files)

    def results(self) -> tuple[tuple[Path, Results], ...]:
        """The laboratory's results in the directories given, and below them."""
        found = []
        for source in self._sources:
            for file in sorted(source.rglob(RESULTS_FILE)) if source.is_dir() else ():
                try:
                    found.append((file.parent, store.read(file.parent)))
                except OverlapscopeError as error:
                    logging.getLogger(__name__).warning("%s", error)
        return tuple(found)

    def id_of(self, path: Path) -> str | None:
        """The id of a file."""
        with self._change:
            return self._ids.get(path.resolve())

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._wanted and not self._to_reduce:
                    self._change.wait()
                # What somebody waits to look at comes before the ranks, which are many.
                reducing = not self._wanted
                entry = self._entries[self._to_reduce.pop(0) if reducing else self._wanted.pop()]
                self._loading[entry.id] = Loading("reading", 0.0)
            state = _state_of(entry.path)
            if reducing:
                reduced = self._reduce(entry)
                with self._change:
                    self._reduced[entry.id] = reduced, state
            else:
                opened, error = self._open(entry)
                with self._change:
                    if opened is not None:
                        self._opened[entry.id] = opened
                        self._forget()
                    elif error is not None:
                        self._failed[entry.id] = error, state
            with self._change:
                del self._loading[entry.id]
                self._change.notify_all()

    def _open(self, entry: Entry) -> tuple[Opened | None, OverlapscopeError | None]:
        read = self._read(entry, lambda trace: _opened(entry, analyze_trace(trace)))
        return (None, read) if isinstance(read, OverlapscopeError) else (read, None)

    def _reduce(self, entry: Entry) -> Reduced:
        with self._change:
            opened = self._opened.get(entry.id)
        read = self._read(entry, reduce, opened.analysis.trace if opened is not None else None)
        shown = entry.name or str(entry.path)
        return Unreadable(source=shown, reason=str(read)) if isinstance(read, OverlapscopeError) else read

    def _read(self, entry: Entry, then: Callable[[Trace], T], trace: Trace | None = None) -> T | OverlapscopeError:
        """What is made of a trace, which is read where it is not given; or why that cannot be had."""

        def at(done: int, total: int) -> None:
            self._tell(entry, Loading("reading", done / total if total else None))

        try:
            if trace is None:
                # Of a dropped file nothing must stay when the server has ended.
                cache = self._cache and entry.name is None
                trace = load(entry.path, limit_bytes=self._limit_bytes, progress=at, cache=cache)
            self._tell(entry, Loading("analysing"))
            return then(trace if entry.name is None else replace(trace, source=entry.name))
        except OverlapscopeError as error:
            return error if entry.name is None else UnreadableTrace(str(error).replace(str(entry.path), entry.name))
        except MemoryError:
            return UnreadableTrace(f"{entry.name or entry.path}: there is not enough memory for this trace.")
        except Exception as error:
            # The loader must live on; the page shows what happened, the log says where.
            logging.getLogger(__name__).exception("%s", entry.path)
            what = f"{type(error).__name__}: {error}"
            return UnreadableTrace(f"{entry.name or entry.path}: {what}; please report this.")

    def _tell(self, entry: Entry, loading: Loading) -> None:
        with self._change:
            self._loading[entry.id] = loading

    def _forget(self) -> None:
        """Drop the least recently used traces where there are too many events; never the last two, which a page may
        show beside one another."""
        while len(self._opened) > 2 and sum(map(_held, self._opened.values())) > KEPT_EVENTS:
            del self._opened[next(iter(self._opened))]


def _held(opened: Opened) -> int:
    """How many events are in memory for a trace."""
    return opened.events + (0 if opened.plain is None else opened.plain.events)


def _state_of(path: Path) -> _FileState:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _opened(entry: Entry, analysis: TraceAnalysis) -> Opened:
    program = find_program(analysis, None, estimate=True)
    report = joined([analysis], [program], scope="window", replayed=True)
    spoken = of_program(report)
    plain = None
    if spoken is not report and program is not None and program.analysis is not None:
        plain = Opened(entry.id, entry.path, program.analysis, spoken, Page(spoken, verbose=True))
    return Opened(entry.id, entry.path, analysis, report, Page(report, verbose=True), plain)
