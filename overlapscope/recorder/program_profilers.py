"""Handling of torch.profilers that the program itself starts while it is recorded.

Only one profiler can run in a process. A program with a profiler keeps it, with its schedule, its handlers and its
files, and each of its recordings is saved as a trace of ours (`OwnProfiler`). A profiler that is disabled or never
records changes nothing. Kineto saves a trace only once, so when the program exports the trace, it receives a copy of
ours.
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
from overlapscope.recorder import destination, session, trace_file
from overlapscope.recorder.destination import kept_name, window_path
from overlapscope.recorder.session import profiler_running
from overlapscope.recorder.wrapping import around, before, is_a_handlers

_HOW = "The program's own torch.profiler was used, with its schedule."
_SEVERAL = "The program's own torch.profiler recorded {} times: {}."
_MARKS = (
    "The program marks its ops for another profiler with {}, and only one can run; without it, the program is recorded."
)
_NOTHING = (
    "The program's own torch.profiler recorded nothing; its schedule decides what is recorded. Without it, the "
    "program is recorded."
)
_MAX_RECORDINGS = 8
"""Maximum number of recordings of the program's own profiler that are saved as traces of ours."""


class OwnProfiler:
    """Lets the program's own torch.profiler take precedence between `start` and `stop`, and saves its traces.

    Our own recording gives way once, when a profiler of the program begins to record. `_decided` is true afterwards.
    Traces are saved while `_saves` is true, that is, if our recording gave way and the program may record more.
    """

    def __init__(self, give_way: Callable[[str], bool], working: Callable[[], AbstractContextManager[object]]) -> None:
        """Prepare to watch.

        Args:
            give_way: Function that stops our own recording for the reason given, and returns false if that recording
                is complete and stays.
            working: Function that returns a context manager around work that must not be interrupted.
        """
        self.paths: tuple[Path, ...] = ()
        """Files of the program's traces. The first has the name that the user chose, and the others have a number."""
        self.failure: str | None = None
        """Sentence on why the traces are missing."""
        self._path = Path()
        self._finished = False
        self._give_way = give_way
        self._working = working
        self._process = os.getpid()
        self._decided = self._saves = False
        self._last: tuple[weakref.ref[Any], int] | None = None
        """The profiler that started last, and its thread."""
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        self._ended: Any = None
        """Profiler that `finish` stopped; the program may still stop it, too."""
        self._muted: weakref.WeakSet[Any] = weakref.WeakSet()
        """Profilers that mark no steps until they record, since these would be marks in our recording."""
        self._saved: list[tuple[weakref.ref[Any], Path]] = []
        """Results that Kineto cannot save again, and the files that contain them."""

    def start(self, path: Path) -> None:
        """Save the traces of the profilers that the program starts to `path` and beside it. Imports torch."""
        self._path = path
        _hook()
        _watching[:] = [watching for watching in _watching if not watching._over] + [self]

    def stop(self) -> None:
        """Stop watching, except for the end and the export of a recording under way."""
        self._decided = True
        self._unmute()
        if self._over:
            _watching.remove(self)

    @property
    def note(self) -> str | None:
        """Sentence on several recordings; None for a single one."""
        return _SEVERAL.format(len(self.paths), listed(path.name for path in self.paths)) if self.paths[1:] else None

    @property
    def _over(self) -> bool:
        """True if nothing that the program may still do concerns this."""
        may_export = self._ended is not None or any(results() is not None for results, _ in self._saved)
        return self._decided and not self._saves and not may_export

    def finish(self, *, stop: bool) -> None:
        """Take note that our recording ends.

        With `stop`, a profiler that still runs is stopped. Otherwise its trace is saved when it stops.
        """
        self._finished = True
        if self._last is None or not self._saves:
            return
        last, thread = self._last
        started = last()
        profile = getattr(started, "profiler", started)
        if profile is None or not profiler_running() or thread != threading.get_ident():
            self._saves = False
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
        if not self._decided and getattr(started, "record_steps", False):
            started.record_steps = False
            self._muted.add(started)
        if (self._saves or not self._decided) and getattr(started, "experimental_config", self) is None:
            from torch._C._profiler import _ExperimentalConfig  # the only way to ask for sync events

            started.experimental_config = _ExperimentalConfig(enable_cuda_sync_events=True)

    def _prepares(self, profile: Any) -> None:
        """Let our recording give way to a profiler that begins to record, which may have started before `start`."""
        if session.starting() or os.getpid() != self._process:
            return
        self._unmute()
        self._decide(_HOW)
        self._starts(profile)

    def _unmute(self) -> None:
        for started in self._muted:
            started.record_steps = True
        self._muted.clear()

    def _marks(self, marker: Any) -> None:
        self._decide(_MARKS.format(type(marker).__name__), saves=False)

    def _disables(self) -> None:
        """Let our recording give way when the program stops whatever profiler runs, as Lightning does at its start."""
        if profiler_running():
            self._decide(_HOW)

    def _decide(self, because: str, *, saves: bool = True) -> None:
        """Let our recording give way, unless it has done so, and save traces after that."""
        if os.getpid() == self._process and not self._decided:
            self._decided = True
            self._saves = self._give_way(because) and saves

    def _ends(self, profile: Any) -> None:
        results = getattr(profile, "kineto_results", None)
        if self._saves and results is not None and self._is_the_programs(profile):
            self._save(profile, results)
            self._saves = not self._finished and len(self.paths) < _MAX_RECORDINGS

    def _save(self, profile: Any, results: Any) -> None:
        export = type(profile).export_chrome_trace
        path = window_path(self._path, len(self.paths) + 1) if self.paths else self._path
        with self._working():
            try:
                path.parent.mkdir(exist_ok=True)  # a rank's
                if path.exists() and not destination.belongs_to_another(path):
                    path.replace(kept_name(path))
                path = trace_file.write(functools.partial(export, profile), path).path
            except Exception as failure:
                if is_a_handlers(failure):
                    raise
                # A failure here must not reach the program.
                self.failure = str(failure)
            else:
                self.paths += (path,)
            self._saved = [saved for saved in self._saved if saved[0]() is not None]
            self._saved.append((weakref.ref(results), path))

    def _copy_of(self, profile: Any) -> Path | None:
        """Return the file that contains the results of a profiler, once."""
        results = profile.kineto_results
        match = next((saved for saved in self._saved if results is not None and saved[0]() is results), None)
        if match is None:
            return None
        self._saved.remove(match)
        return match[1]

    def _copy(self, saved: Path, path: str) -> None:
        """Copy a saved trace in place of an export, which Kineto makes only once."""
        try:
            unpack(saved, path)
        except OSError as error:
            # Kineto only prints such an error, too.
            print(f"overlapscope: {path}: cannot be written ({error.strerror or error}).", file=sys.stderr)

    def _is_the_programs(self, profile: Any) -> bool:
        return any(started is profile or getattr(started, "profiler", None) is profile for started in self._all)


_watching: list[OwnProfiler] = []
"""Watches under way: several if `overlapscope run` runs a program with recordings of its own."""


@functools.cache
def _hook() -> None:
    """Wrap the methods of profilers that programs call, once. Our own sessions call only `_prepare_trace` of these."""
    import torch.autograd
    from torch.autograd import profiler
    from torch.profiler import profile
    from torch.profiler.profiler import _KinetoProfile  # documented, and exported by `torch.profiler`

    for owner in (profile, _KinetoProfile):
        before(owner, "start", functools.partial(_tell, OwnProfiler._starts))
    before(profiler.profile, "__enter__", functools.partial(_tell, OwnProfiler._starts))
    before(profiler.profile, "_prepare_trace", functools.partial(_tell, OwnProfiler._prepares))
    around(profiler.profile, "__exit__", _exit)
    around(profiler.profile, "export_chrome_trace", _export)
    for marker in (profiler.emit_nvtx, profiler.emit_itt):
        before(marker, "__enter__", functools.partial(_tell, OwnProfiler._marks))
    # Lightning stops whatever profiler runs before it starts its own.
    around(torch.autograd, "_disable_profiler", _disable)


def _exit(leave: Callable[..., Any], profile: Any, *args: Any) -> Any:
    if any(watching._ended is profile for watching in _watching):
        return False
    ended = leave(profile, *args)
    _tell(OwnProfiler._ends, profile)
    return ended


def _tell(event: Callable[[OwnProfiler, Any], None], profile: Any) -> None:
    for watching in tuple(_watching) if getattr(profile, "enabled", True) else ():
        event(watching, profile)


def _export(export: Callable[..., Any], profile: Any, path: str, *args: Any, **options: Any) -> Any:
    # The export in Python, of torch 2.12 and later, can be repeated.
    if not options.get("use_python_export"):
        for watching in _watching:
            if (saved := watching._copy_of(profile)) is not None:
                return watching._copy(saved, path)
    return export(profile, path, *args, **options)


def _disable(disable: Callable[[], Any]) -> Any:
    for watching in tuple(_watching):
        watching._disables()
    return disable() if profiler_running() else None


def unpack(source: Path, target: str) -> None:
    """Copy a trace to a file that is not compressed. Raises OSError."""
    packed = source.name.endswith(".gz")
    with gzip.open(source) if packed else source.open("rb") as reading, open(target, "wb") as writing:
        shutil.copyfileobj(reading, writing)
