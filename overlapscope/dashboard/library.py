"""The traces that a server may show: those it was given, and those dropped in. Each is loaded when first wanted."""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from overlapscope import lanes
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.strip import measure
from overlapscope.errors import OverlapscopeError, UnreadableTrace
from overlapscope.laboratory import store
from overlapscope.laboratory.results import FILE as RESULTS_FILE
from overlapscope.laboratory.results import Results
from overlapscope.lanes import Lanes
from overlapscope.report import Report, build
from overlapscope.sources import LIMIT_BYTES, SUFFIXES, expand, load, natural
from overlapscope.views.page import Page, Section

DROPPED = "dropped"
"""The folder of traces that were dropped into the page."""
STRIP_SLICES = 400

KEPT_EVENTS = 40_000_000
"""Traces stay in memory, the most recently shown ones, up to so many events together: some 4 GB."""

_FileState = tuple[int, int] | None
"""Time of the last change and size; None where there is no such file."""

_ENDING = re.compile(r"(\.(pt\.)?trace)?\.json(\.gz|\.zst)?$")


@dataclass(frozen=True, slots=True)
class Entry:
    """A trace that may be shown."""

    id: str
    """What URLs call it: its path below what was given, without the ending."""
    folder: str
    """The id's part before the name; empty for a file at the top."""
    path: Path
    name: str | None = None
    """What a file that was dropped in is called; where it lies says nothing to anyone."""


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A loaded trace with everything that is shown of it."""

    id: str
    path: Path
    analysis: TraceAnalysis
    report: Report
    page: Page
    lanes: Lanes

    def section(self, device: int | None = None) -> Section:
        """The device asked for; the first one where there is no such device."""
        sections = list(self.page.sections())
        return next((one for one in sections if one.device and one.device.device == device), sections[0])

    @property
    def events(self) -> int:
        """How many events it holds."""
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

    def __init__(self, sources: Iterable[Path] = (), *, limit_bytes: int = LIMIT_BYTES) -> None:
        """Raises UnreadableTrace where a source is missing or a directory holds no trace."""
        self._limit_bytes = limit_bytes
        self._sources = tuple(sources)
        self._entries = {entry.id: entry for entry in _find(self._sources)}
        self._ids = {entry.path.resolve(): entry.id for entry in self._entries.values()}
        self._opened: dict[str, Opened] = {}
        self._failed: dict[str, tuple[OverlapscopeError, _FileState]] = {}
        self._wanted: list[str] = []
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
            id = _unique(f"{DROPPED}/{_ENDING.sub('', name)}", self._entries)
            self._entries[id] = Entry(id, DROPPED, path, name)
            self._ids.setdefault(path.resolve(), id)
            return id

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
                while not self._wanted:
                    self._change.wait()
                entry = self._entries[self._wanted.pop()]
                self._loading[entry.id] = Loading("reading", 0.0)
            state = _state_of(entry.path)
            opened, error = self._open(entry)
            with self._change:
                del self._loading[entry.id]
                if opened is not None:
                    self._opened[entry.id] = opened
                    self._forget()
                elif error is not None:
                    self._failed[entry.id] = error, state
                self._change.notify_all()

    def _open(self, entry: Entry) -> tuple[Opened | None, OverlapscopeError | None]:
        def at(done: int, total: int) -> None:
            self._tell(entry, Loading("reading", done / total if total else None))

        try:
            trace = load(entry.path, limit_bytes=self._limit_bytes, progress=at)
            self._tell(entry, Loading("analysing"))
            if entry.name is not None:
                trace = replace(trace, source=entry.name)
            return _opened(entry, analyze_trace(trace)), None
        except OverlapscopeError as error:
            if entry.name is not None:
                error = UnreadableTrace(str(error).replace(str(entry.path), entry.name))
            return None, error
        except MemoryError:
            return None, UnreadableTrace(f"{entry.name or entry.path}: there is not enough memory for this trace.")
        except Exception as error:
            # The loader must live on; the page shows what happened, the log says where.
            logging.getLogger(__name__).exception("%s", entry.path)
            what = f"{type(error).__name__}: {error}"
            return None, UnreadableTrace(f"{entry.name or entry.path}: {what}; please report this.")

    def _tell(self, entry: Entry, loading: Loading) -> None:
        with self._change:
            self._loading[entry.id] = loading

    def _forget(self) -> None:
        """Drop the least recently used traces where there are too many events; never the last two, which a page may
        show beside one another."""
        while len(self._opened) > 2 and sum(one.events for one in self._opened.values()) > KEPT_EVENTS:
            del self._opened[next(iter(self._opened))]


def _state_of(path: Path) -> _FileState:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _opened(entry: Entry, analysis: TraceAnalysis) -> Opened:
    report = build([analysis])
    strips = {
        (0, device.result.device): measure(device.timeline, device.result, slices=STRIP_SLICES)
        for device in analysis.devices
        if device.result.span_ns > 0
    }
    page = Page(report, verbose=True, strips=strips)
    return Opened(entry.id, entry.path, analysis, report, page, lanes.build(analysis))


def _find(sources: Sequence[Path]) -> Iterable[Entry]:
    """The traces of files, patterns, and directories with all that is below them, each file once."""
    seen: set[Path] = set()
    taken: set[str] = set()
    for source in sources:
        files = _below(source) if source.is_dir() else expand([source])
        for path in files:
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            shown = path.relative_to(source) if source.is_dir() else Path(path.name)
            if source.is_dir() and len(sources) > 1:
                shown = Path(source.resolve().name) / shown
            # A file name need not be valid text, but a URL must be.
            name = os.fsencode(_ENDING.sub("", shown.as_posix())).decode("utf-8", "backslashreplace")
            id = _unique(name, taken)
            taken.add(id)
            yield Entry(id, name.rpartition("/")[0], path)


def _unique(name: str, taken: Container[str]) -> str:
    """The name, with a number where it is taken."""
    numbered = (f"{name} ({number})" for number in itertools.count(2))
    return name if name not in taken else next(one for one in numbered if one not in taken)


def _below(directory: Path) -> list[Path]:
    files = [
        file
        for file in directory.rglob("*")
        if file.name.endswith(SUFFIXES) and file.name != RESULTS_FILE and file.is_file()
    ]
    if not files:
        # The sentence for a directory without traces.
        expand([directory])
    # Files before the folders beside them.
    return sorted(files, key=lambda file: (len(file.relative_to(directory).parts) > 1, natural(file)))
