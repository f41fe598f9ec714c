"""What becomes of torch.profilers that the program starts while it is recorded.

Only one profiler can run in a process. A program that has one keeps it, with its schedule, its handlers and its
files; each of its recordings is saved for us (`OwnProfiler`). A profiler that is switched off, or that
never comes to record, changes nothing. Kineto lets a trace be saved only once, so when the program exports that trace,
it gets a copy of ours. Or, where that was asked for, its profilers record nothing, and the program runs on with them
(`IgnoredProfilers`).
"""

from __future__ import annotations

import functools
import gzip
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from overlapscope.base.words import listed
from overlapscope.recorder import claims, session, trace_file
from overlapscope.recorder.destination import kept_name, window_path
from overlapscope.recorder.session import profiler_running
from overlapscope.recorder.wrapping import around

_HOW = "The program's own torch.profiler was used, with its schedule."
_SEVERAL = "The program's own torch.profiler recorded {} times: {}."
_MARKS = (
    "The program marks its ops for another profiler with {}, and only one can run; --ignore-own-profiler ignores those."
)
_NOTHING = (
    "The program's own torch.profiler recorded nothing; its schedule decides what is recorded. With "
    "--ignore-own-profiler, overlapscope records the program instead."
)
_MOST_RECORDINGS = 8
"""Further recordings of the program's own profiler are not saved for us."""
_EMPTY = '{"traceEvents": []}\n'


class OwnProfiler:
    """The program's own torch.profiler takes precedence between `start` and `stop`: its traces become ours as well."""

    def __init__(self, give_way: Callable[[str], bool], working: Callable[[], AbstractContextManager[object]]) -> None:
        """`give_way(because)` stops our own recording; it is False where that is complete and stands.

        `working()` surrounds what must not be interrupted.
        """
        self.paths: tuple[Path, ...] = ()
        """Files of the program's traces: of several the first has the name that was asked for, and the others a
        number."""
        self.failure: str | None = None
        """A sentence on why there is none."""
        self._path = Path()
        self._finished = False
        self._give_way = give_way
        self._working = working
        self._process = os.getpid()
        self._asked = self._wanted = False
        self._last: tuple[weakref.ref[Any], int] | None = None
        """The profiler started last, and its thread."""
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        self._ended: Any = None
        """The one that `finish` stopped, which the program may still do."""
        self._quiet: weakref.WeakSet[Any] = weakref.WeakSet()
        """Profilers that mark no steps until they record: those would be marks in our recording."""
        self._saved: list[tuple[weakref.ref[Any], Path]] = []
        """The results that can be saved no more, and the files that they are in."""

    def start(self, path: Path) -> None:
        """Save the traces of the profilers that the program starts to `path` and beside it. Imports torch."""
        self._path = path
        _hook()
        _watching[:] = [watching for watching in _watching if not watching._over] + [self]

    def stop(self) -> None:
        """Watch no more, but for the end and the export of what is being taken."""
        self._asked = True
        self._unquiet()
        if self._over:
            _watching.remove(self)

    @property
    def note(self) -> str | None:
        """A sentence where there are several recordings."""
        return _SEVERAL.format(len(self.paths), listed(path.name for path in self.paths)) if self.paths[1:] else None

    @property
    def _over(self) -> bool:
        """True if nothing that the program may still do concerns this."""
        left = self._ended is not None or any(saved() is not None for saved, _ in self._saved)
        return self._asked and not self._wanted and not left

    def finish(self, *, stop: bool) -> None:
        """Our recording ends. A profiler that runs still is stopped with `stop`, and else taken when it stops."""
        self._finished = True
        if self._last is None or not self._wanted:
            return
        last, thread = self._last
        started = last()
        profile = getattr(started, "profiler", started)
        if profile is None or not profiler_running() or thread != threading.get_ident():
            self._wanted = False
            self.failure = None if self.paths else self.failure or _NOTHING
        elif stop:
            profile.__exit__(None, None, None)
            self._ended = profile

    def _starts(self, started: Any) -> None:
        if os.getpid() != self._process:
            return
        self._last = weakref.ref(started), threading.get_ident()
        self._all.add(started)
        self._ended = None
        if not self._asked and getattr(started, "record_steps", False):
            started.record_steps = False
            self._quiet.add(started)
        if (self._wanted or not self._asked) and getattr(started, "experimental_config", self) is None:
            from torch._C._profiler import _ExperimentalConfig  # the only way to ask for sync events

            started.experimental_config = _ExperimentalConfig(enable_cuda_sync_events=True)

    def _prepares(self, profile: Any) -> None:
        """What records begins, of a profiler that was perhaps started before this watched."""
        if session.starting() or os.getpid() != self._process:
            return
        self._unquiet()
        if not self._asked:
            self._asked = True
            self._wanted = self._give_way(_HOW)
        self._starts(profile)

    def _unquiet(self) -> None:
        for started in self._quiet:
            started.record_steps = True
        self._quiet.clear()

    def _marks(self, marker: Any) -> None:
        if os.getpid() == self._process and not self._asked:
            self._asked = True
            self._give_way(_MARKS.format(type(marker).__name__))

    def _disables(self) -> None:
        """Whatever profiler runs is stopped, as Lightning does before it starts its own."""
        if os.getpid() == self._process and not self._asked and profiler_running():
            self._asked = True
            self._wanted = self._give_way(_HOW)

    def _ends(self, profile: Any) -> None:
        results = getattr(profile, "kineto_results", None)
        if self._wanted and results is not None and self._is_the_programs(profile):
            self._save(profile, results)
            self._wanted = not self._finished and len(self.paths) < _MOST_RECORDINGS

    def _save(self, profile: Any, results: Any) -> None:
        export = type(profile).export_chrome_trace
        path = window_path(self._path, len(self.paths) + 1) if self.paths else self._path
        with self._working():
            try:
                path.parent.mkdir(exist_ok=True)  # a rank's
                if path.exists() and not claims.is_anothers(path):
                    path.replace(kept_name(path))
                path = trace_file.write(functools.partial(export, profile), path).path
            except Exception as failure:
                # Nothing that goes wrong here is the program's concern.
                self.failure = str(failure)
            else:
                self.paths += (path,)
            self._saved = [one for one in self._saved if one[0]() is not None]
            self._saved.append((weakref.ref(results), path))

    def _copy_of(self, profile: Any) -> Path | None:
        """The file that has the results of a profiler, until they are copied."""
        results = profile.kineto_results
        found = next((one for one in self._saved if results is not None and one[0]() is results), None)
        if found is None:
            return None
        self._saved.remove(found)
        return found[1]

    def _copy(self, saved: Path, path: str) -> None:
        """In the place of an export that can be made no more."""
        try:
            unpack(saved, path)
        except OSError as error:
            # Kineto prints that, too, and the program goes on.
            print(f"overlapscope: {path}: cannot be written ({error.strerror or error}).", file=sys.stderr)

    def _is_the_programs(self, profile: Any) -> bool:
        return any(started is profile or getattr(started, "profiler", None) is profile for started in self._all)


class IgnoredProfilers:
    """Those that the program starts between `start` and `stop`, for good. One that runs already goes on.

    Their tables and traces are empty, and their `on_trace_ready` is not called.
    """

    paths: tuple[Path, ...] = ()
    failure = None

    def __init__(self, stepped: Callable[[], None]) -> None:
        """`stepped()` is called when one of them is told that a step ended."""
        self.stepped = stepped
        self.note: str | None = None
        """A sentence where there was one."""

    def start(self, path: Path) -> None:
        """Ignore them from now on. Imports torch."""
        _hook()
        _ignoring.append(self)

    def stop(self) -> None:
        """Ignore no more of them."""
        _ignoring.remove(self)

    def finish(self, *, stop: bool) -> None:
        """There is nothing to finish."""


_watching: list[OwnProfiler] = []
"""One, or more where `overlapscope run` runs a program with recordings of its own."""
_ignoring: list[IgnoredProfilers] = []
_ignored: weakref.WeakSet[Any] = weakref.WeakSet()
"""Profilers of the program that record nothing, and what they wrap."""


@functools.cache
def _hook() -> None:
    """Wrap, once and for good, what a program calls of its profilers. Our own sessions call none of it but
    `_prepare_trace`.
    """
    import torch.autograd
    from torch.autograd import profiler
    from torch.profiler import profile
    from torch.profiler.profiler import _KinetoProfile  # documented, and exported by `torch.profiler`

    for owner in (profile, _KinetoProfile):
        around(owner, "start", _start)
        around(owner, "stop", _unless_ignored)
    for name in ("toggle_collection_dynamic", "export_memory_timeline"):
        if hasattr(_KinetoProfile, name):
            around(_KinetoProfile, name, _unless_ignored)
    around(profile, "step", _step)
    around(profiler.profile, "__enter__", _enter)
    around(profiler.profile, "_prepare_trace", _prepare)
    around(profiler.profile, "__exit__", _exit)
    around(profiler.profile, "export_chrome_trace", _export)
    for marker in (profiler.emit_nvtx, profiler.emit_itt):
        around(marker, "__enter__", _mark)
    # Lightning stops whatever profiler runs before it starts its own.
    around(torch.autograd, "_disable_profiler", _disable)


def _start(start: Callable[..., Any], started: Any) -> None:
    if not _ignoring:
        _ignored.discard(started)
        _tell(OwnProfiler._starts, started)
        start(started)
        return
    from torch.autograd import profiler

    started.profiler = profiler.profile(with_stack=started.with_stack)
    _ignored.add(started)
    _ignore(started.profiler)


def _enter(enter: Callable[..., Any], entered: Any) -> Any:
    if _ignoring:
        _ignore(entered)
        return entered
    if entered.enabled:
        _tell(OwnProfiler._starts, entered)
    return enter(entered)


def _mark(enter: Callable[..., Any], marker: Any) -> Any:
    if _ignoring:
        _ignore(marker)
        return marker
    if marker.enabled:
        _tell(OwnProfiler._marks, marker)
    return enter(marker)


def _prepare(prepare: Callable[..., Any], profile: Any) -> Any:
    _tell(OwnProfiler._prepares, profile)
    return prepare(profile)


def _exit(leave: Callable[..., Any], profile: Any, *args: Any) -> Any:
    if any(watching._ended is profile for watching in _watching):
        return False
    ended = leave(profile, *args)
    _tell(OwnProfiler._ends, profile)
    return ended


def _tell(event: Callable[[OwnProfiler, Any], None], profile: Any) -> None:
    for watching in tuple(_watching):
        event(watching, profile)


def _ignore(profile: Any) -> None:
    from torch.autograd.profiler_util import EventList

    profile.enabled = False
    nothing: Any = EventList([])
    nothing._build_tree()  # or it gives no averages
    # What was an attribute in torch 2.5 is a property of another one now.
    setattr(profile, "_function_events" if hasattr(type(profile), "function_events") else "function_events", nothing)
    _ignored.add(profile)
    for ignoring in _ignoring:
        ignoring.note = "The program's own profiler was ignored: its tables and exports are empty."


def _step(step: Callable[..., Any], profile: Any) -> None:
    if profile not in _ignored:
        step(profile)
        return
    profile.step_num += 1
    for ignoring in tuple(_ignoring):
        ignoring.stepped()


def _unless_ignored(method: Callable[..., Any], profile: Any, *args: Any, **options: Any) -> Any:
    return None if profile in _ignored else method(profile, *args, **options)


def _export(export: Callable[..., Any], profile: Any, path: str, *args: Any, **options: Any) -> Any:
    if profile in _ignored:
        Path(path).write_text(_EMPTY)
        return None
    # The export in Python, of torch 2.12 and later, works as often as one likes.
    if not options.get("use_python_export"):
        for watching in _watching:
            if (saved := watching._copy_of(profile)) is not None:
                return watching._copy(saved, path)
    return export(profile, path, *args, **options)


def _disable(disable: Callable[[], Any]) -> Any:
    for watching in () if _ignoring else tuple(_watching):
        watching._disables()
    return disable() if profiler_running() and not _ignoring else None


def unpack(source: Path, target: str) -> None:
    """Copy a trace to a file that is not packed. Raises OSError."""
    packed = source.name.endswith(".gz")
    with gzip.open(source) if packed else source.open("rb") as reading, open(target, "wb") as writing:
        shutil.copyfileobj(reading, writing)
