"""The program's own torch.profiler takes precedence: it records, and its trace becomes ours as well.

Only one profiler can run in a process. A program that has one keeps it, with its schedule, its handlers and its
files; what it records first is saved for us when it stops. Kineto lets a trace be saved only once, so when the
program exports that trace, it gets a copy of ours.
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

from overlapscope.recorder import session, trace_file
from overlapscope.recorder.session import profiler_running
from overlapscope.recorder.wrapping import around

_HOW = "The program's own torch.profiler was used, with its schedule."
_MARKS = "The program marks its ops for another profiler with {}, and only one can run."


class OwnProfiler:
    """Watches for profilers that the program starts, between `watch` and `unwatch`."""

    def __init__(self, give_way: Callable[[str], bool], working: Callable[[], AbstractContextManager[object]]) -> None:
        """`give_way(because)` stops our own recording; it is False where that is complete and stands.

        `working()` surrounds what must not be interrupted.
        """
        self.taken = False
        """Whether the program's trace is at `path`."""
        self.failure: str | None = None
        """A sentence on why it is not."""
        self.path = Path()
        self._give_way = give_way
        self._working = working
        self._process = os.getpid()
        self._asked = self._wanted = False
        self._last: tuple[weakref.ref[Any], int] | None = None
        """The profiler started last, and its thread."""
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        self._ended: Any = None
        """The one that `finish` stopped, which the program may still do."""
        self._saved: weakref.ref[Any] | None = None
        """The results that are at `path` and can be saved no more."""

    def watch(self, path: Path) -> None:
        """Have the trace of the first profiler that the program starts at `path`. Imports torch."""
        self.path = path
        _hook()
        _watching[:] = [one for one in _watching if not one._over] + [self]

    def unwatch(self) -> None:
        """Watch no more, but for the end and the export of what is being taken."""
        self._asked = True
        if self._over:
            _watching.remove(self)

    @property
    def _over(self) -> bool:
        """Whether nothing that the program may still do concerns this."""
        left = self._ended is not None or (self._saved is not None and self._saved() is not None)
        return self._asked and not self._wanted and not left

    def finish(self, *, stop: bool) -> None:
        """Our recording ends. A profiler that runs still is stopped with `stop`, and else taken when it stops."""
        if self._last is None or not self._wanted:
            return
        last, thread = self._last
        started = last()
        profile = getattr(started, "profiler", started)
        if profile is None or not profiler_running() or thread != threading.get_ident():
            self._wanted = False
            self.failure = "The program's own torch.profiler, whose schedule counts here, recorded nothing."
        elif stop:
            profile.__exit__(None, None, None)
            self._ended = profile

    def _starts(self, started: Any) -> None:
        if os.getpid() != self._process:
            return
        self._last = weakref.ref(started), threading.get_ident()
        self._all.add(started)
        self._ended = None
        if not self._asked:
            self._asked = True
            self._wanted = self._give_way(_HOW)
        if self._wanted and getattr(started, "experimental_config", self) is None:
            from torch._C._profiler import _ExperimentalConfig  # the only way to ask for sync events

            started.experimental_config = _ExperimentalConfig(enable_cuda_sync_events=True)

    def _prepares(self, profile: Any) -> None:
        """What records begins, of a profiler that was perhaps started before this watched."""
        if not session.starting():
            self._starts(profile)

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
            self._wanted = False
            self._save(profile, results)

    def _save(self, profile: Any, results: Any) -> None:
        export = type(profile).export_chrome_trace
        with self._working():
            try:
                trace_file.write(functools.partial(export, profile), self.path)
            except Exception as failure:
                # Nothing that goes wrong here is the program's concern.
                self.failure = str(failure)
            else:
                self.taken = True
            self._saved = weakref.ref(results)

    def _has_saved(self, profile: Any) -> bool:
        return (
            self._saved is not None and profile.kineto_results is not None and self._saved() is profile.kineto_results
        )

    def _copy(self, path: str) -> None:
        """In the place of an export that can be made no more."""
        self._saved = None
        try:
            unpack(self.path, path)
        except OSError as error:
            # Kineto prints that, too, and the program goes on.
            print(f"overlapscope: {path}: cannot be written ({error.strerror or error}).", file=sys.stderr)

    def _is_the_programs(self, profile: Any) -> bool:
        return any(started is profile or getattr(started, "profiler", None) is profile for started in self._all)


_watching: list[OwnProfiler] = []
"""One, or more where `overlapscope run` runs a program with recordings of its own."""


@functools.cache
def _hook() -> None:
    """Wrap, once and for good, the methods that start a profiler, stop it and export what it recorded."""
    import torch.autograd
    from torch.autograd import profiler
    from torch.profiler import profile
    from torch.profiler.profiler import _KinetoProfile  # documented, and exported by `torch.profiler`

    # Our own sessions call none of these but `_prepare_trace`.
    _before(profile, "start", OwnProfiler._starts)
    _before(_KinetoProfile, "start", OwnProfiler._starts)
    _before(profiler.profile, "__enter__", OwnProfiler._starts)
    _before(profiler.profile, "_prepare_trace", OwnProfiler._prepares)
    _before(profiler.emit_nvtx, "__enter__", OwnProfiler._marks)
    _before(profiler.emit_itt, "__enter__", OwnProfiler._marks)
    around(profiler.profile, "__exit__", _end)
    around(profiler.profile, "export_chrome_trace", _export)
    around(torch.autograd, "_disable_profiler", _disable)


def _end(end: Callable[..., Any], profile: Any, *args: Any) -> Any:
    if any(one._ended is profile for one in _watching):
        return False
    ended = end(profile, *args)
    for one in tuple(_watching):
        one._ends(profile)
    return ended


def _export(export: Callable[..., Any], profile: Any, path: str, *args: Any, **options: Any) -> Any:
    # The export in Python, of torch 2.12 and later, works as often as one likes.
    if not options.get("use_python_export"):
        for one in _watching:
            if one._has_saved(profile):
                return one._copy(path)
    return export(profile, path, *args, **options)


def _disable(disable: Callable[[], Any]) -> Any:
    for one in tuple(_watching):
        one._disables()
    return disable() if profiler_running() else None


def _before(owner: type, name: str, call: Callable[[OwnProfiler, Any], None]) -> None:
    """Have `call(one, self)` called before a method, for each one that watches."""

    def called(method: Callable[..., Any], self: Any, *args: Any, **options: Any) -> Any:
        for one in tuple(_watching):
            call(one, self)
        return method(self, *args, **options)

    around(owner, name, called)


def unpack(source: Path, target: str) -> None:
    """Copy a trace to a file that is not packed. Raises OSError."""
    packed = source.name.endswith(".gz")
    with gzip.open(source) if packed else source.open("rb") as reading, open(target, "wb") as writing:
        shutil.copyfileobj(reading, writing)
