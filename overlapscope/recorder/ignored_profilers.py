"""The program's own profilers record nothing, and the program runs on with them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overlapscope.recorder.wrapping import around

_EMPTY = '{"traceEvents": []}\n'


class IgnoredProfilers:
    """Those that the program starts between `start` and `stop`, for good. One that runs already goes on.

    Their tables and traces are empty, and their `on_trace_ready` is not called.
    """

    def __init__(self, stepped: Callable[[], None]) -> None:
        """`stepped()` is called when one of them is told that a step ended."""
        self.stepped = stepped
        self.note: str | None = None
        """A sentence where there was one."""

    def start(self) -> None:
        """Ignore them from now on. Imports torch."""
        _hook()
        _ignoring.append(self)

    def stop(self) -> None:
        """Ignore no more of them."""
        _ignoring.remove(self)


_ignoring: list[IgnoredProfilers] = []
_ignored: weakref.WeakSet[Any] = weakref.WeakSet()
"""Profilers of the program, and what they wrap."""


@functools.cache
def _hook() -> None:
    """Wrap, once and for good, what a program calls of its profilers. Our own sessions call none of it."""
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
    for marker in (profiler.profile, profiler.emit_nvtx, profiler.emit_itt):
        around(marker, "__enter__", _enter)
    around(profiler.profile, "export_chrome_trace", _export)
    # Lightning stops whatever profiler runs before it starts its own.
    around(torch.autograd, "_disable_profiler", lambda disable: None if _ignoring else disable())


def _start(start: Callable[..., Any], started: Any) -> None:
    if not _ignoring:
        _ignored.discard(started)
        start(started)
        return
    from torch.autograd import profiler

    started.profiler = profiler.profile(with_stack=started.with_stack)
    _ignored.add(started)
    _ignore(started.profiler)


def _enter(enter: Callable[..., Any], entered: Any) -> Any:
    if not _ignoring:
        return enter(entered)
    _ignore(entered)
    return entered


def _ignore(profile: Any) -> None:
    from torch.autograd.profiler_util import EventList

    profile.enabled = False
    nothing: Any = EventList([])
    nothing._build_tree()  # or it gives no averages
    # What was an attribute in torch 2.5 is a property of another one now.
    setattr(profile, "_function_events" if hasattr(type(profile), "function_events") else "function_events", nothing)
    _ignored.add(profile)
    for one in _ignoring:
        one.note = "The program's own profiler was ignored: what it shows and exports is empty."


def _step(step: Callable[..., Any], profile: Any) -> None:
    if profile not in _ignored:
        step(profile)
        return
    profile.step_num += 1
    for one in tuple(_ignoring):
        one.stepped()


def _export(export: Callable[..., Any], profile: Any, path: str, *args: Any, **options: Any) -> Any:
    if profile not in _ignored:
        return export(profile, path, *args, **options)
    Path(path).write_text(_EMPTY)
    return None


def _unless_ignored(method: Callable[..., Any], profile: Any, *args: Any, **options: Any) -> Any:
    return None if profile in _ignored else method(profile, *args, **options)
