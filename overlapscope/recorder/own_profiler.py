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

from overlapscope.recorder import trace_file
from overlapscope.recorder.session import profiler_running

_HOW = "The program's own torch.profiler was used, with its schedule."
_MARKS = "The program marks its ops for another profiler with {}, and only one can run."


class OwnProfiler:
    """Watches for profilers that the program starts, from `watch` on and for good."""

    def __init__(self, give_way: Callable[[str], bool], working: Callable[[], AbstractContextManager[object]]) -> None:
        """`give_way(because)` stops our own recording; it is False where that is complete and stands.

        `working()` surrounds what must not be interrupted.
        """
        self.taken = False
        """Whether the program's trace is at `path`."""
        self.failure: str | None = None
        """A sentence on why it is not."""
        self._path = Path()
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
        """Wrap the methods that start a profiler, stop it and export what it recorded, to have a trace at `path`.

        Imports torch.
        """
        self._path = path
        from torch.autograd import profiler
        from torch.profiler import profile
        from torch.profiler.profiler import _KinetoProfile  # documented, and exported by `torch.profiler`

        # Our own sessions call neither of these three.
        _before(profile, "start", self._starts)
        _before(_KinetoProfile, "start", self._starts)
        _before(profiler.profile, "__enter__", self._starts)
        _before(profiler.emit_nvtx, "__enter__", self._marks)
        _before(profiler.emit_itt, "__enter__", self._marks)
        _around(profiler.profile, "__exit__", self._ends)
        _around(profiler.profile, "export_chrome_trace", self._exports)

    def finish(self) -> None:
        """Stop a profiler that the program left running, so that there is a trace of it."""
        if self._last is None or not self._wanted:
            return
        last, thread = self._last
        started = last()
        profile = getattr(started, "profiler", started)
        if profile is not None and profiler_running() and thread == threading.get_ident():
            profile.__exit__(None, None, None)
            self._ended = profile
        else:
            self.failure = "The program's own torch.profiler, whose schedule counts here, recorded nothing."

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

    def _marks(self, marker: Any) -> None:
        if os.getpid() == self._process and not self._asked:
            self._asked = True
            self._give_way(_MARKS.format(type(marker).__name__))

    def _ends(self, end: Callable[..., Any], profile: Any, *args: Any) -> Any:
        if profile is self._ended:
            return False
        ended = end(profile, *args)
        results = getattr(profile, "kineto_results", None)
        if self._wanted and results is not None and self._is_the_programs(profile):
            self._wanted = False
            self._save(profile, results)
        return ended

    def _save(self, profile: Any, results: Any) -> None:
        export = type(profile).export_chrome_trace
        with self._working():
            try:
                trace_file.write(functools.partial(export, profile), self._path)
            except Exception as failure:
                # Nothing that goes wrong here is the program's concern.
                self.failure = str(failure)
            else:
                self.taken = True
            self._saved = weakref.ref(results)

    def _exports(self, export: Callable[..., Any], profile: Any, path: str, *args: Any, **options: Any) -> Any:
        saved = None if self._saved is None else self._saved()
        # The export in Python, of torch 2.12 and later, works as often as one likes.
        if saved is None or profile.kineto_results is not saved or options.get("use_python_export"):
            return export(profile, path, *args, **options)
        self._saved = None
        try:
            unpack(self._path, path)
        except OSError as error:
            # Kineto prints that, too, and the program goes on.
            print(f"overlapscope: {path}: cannot be written ({error.strerror or error}).", file=sys.stderr)
        return None

    def _is_the_programs(self, profile: Any) -> bool:
        return any(started is profile or getattr(started, "profiler", None) is profile for started in self._all)


def _before(owner: type, name: str, call: Callable[[Any], None]) -> None:
    """Have `call(self)` called before a method."""

    def called(method: Callable[..., Any], self: Any, *args: Any, **options: Any) -> Any:
        call(self)
        return method(self, *args, **options)

    _around(owner, name, called)


def _around(owner: type, name: str, call: Callable[..., Any]) -> None:
    """Replace a method by `call(method, self, ...)`."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        return call(method, self, *args, **options)

    setattr(owner, name, wrapped)


def unpack(source: Path, target: str) -> None:
    """Copy a trace to a file that is not packed. Raises OSError."""
    packed = source.name.endswith(".gz")
    with gzip.open(source) if packed else source.open("rb") as reading, open(target, "wb") as writing:
        shutil.copyfileobj(reading, writing)
