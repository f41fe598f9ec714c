"""Samples of stacks by a thread of the program, where no other process may read it.

The thread needs the GIL for each sample. So it finds other threads mostly where they let go of the GIL: lines that call
long-running functions of C, which do, have too many samples at the expense of those that do not.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from types import CodeType, FrameType
from typing import Any, TypeAlias

from overlapscope.base import clock
from overlapscope.recorder.main_thread import threads_without_signals
from overlapscope.recorder.sampling.gil import gil_addresses

INTERVAL_NS = 10_000_000
_SWITCH_S = 0.0005
"""Time after which Python asks a thread for the GIL: with the usual 5 ms, the thread would come late each time."""
_GOLDEN = 0.6180339887
"""Multiples of it vary the intervals evenly, so that they do not keep step with the program."""

_Counts: TypeAlias = Counter[tuple[int, tuple[tuple[CodeType, int], ...]]]
"""Number of samples by thread, and code and instruction of each frame from the innermost."""


class InsideSampler:
    """Samples from `start` to `stop`, which are called on a thread that is sampled, too."""

    def __init__(self) -> None:
        # After a fork, Python still has the number of the parent's thread.
        self._caller = threading.get_ident(), threading.get_native_id()
        self._every: _Counts = Counter()
        self._running: _Counts = Counter()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="overlapscope", daemon=True)
        self._usual_s = sys.getswitchinterval()

    def start(self) -> None:
        """Begin."""
        sys.setswitchinterval(min(self._usual_s, _SWITCH_S))
        with threads_without_signals():
            self._thread.start()

    def stop(self) -> None:
        """End."""
        if not self._ending.is_set():
            self._ending.set()
            self._thread.join()
            sys.setswitchinterval(self._usual_s)

    def samples(self) -> tuple[list[list[Any]], list[list[Any]]]:
        """Return all samples, and those of running threads, as `stacks.host_stacks` takes them."""
        return _named(self._every), _named(self._running)

    def _sample(self) -> None:
        number, calls = 0, _SystemCalls()
        while not self._ending.wait(INTERVAL_NS / clock.NS_PER_S * (0.5 + number * _GOLDEN % 1)):
            number += 1
            threads = {thread.ident: thread.native_id for thread in threading.enumerate()} | dict([self._caller])
            for ident, frame in sys._current_frames().items():
                native = threads.get(ident)
                if native is not None and ident != threading.get_ident():
                    stack = native, tuple(_places(frame))
                    self._every[stack] += 1
                    if calls.runs(native):
                        self._running[stack] += 1
        calls.close()


class _SystemCalls:
    """Tells which threads run by their system calls (`/proc/self/task/*/syscall`)."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        self._gil = gil_addresses()
        # Unlike `os.pread`, it keeps the GIL, so that the threads stay where they are.
        self._read = ctypes.PyDLL(None).pread
        self._text = ctypes.create_string_buffer(256)

    def runs(self, thread: int) -> bool:
        """Return whether a thread runs, or would if this one did not have the GIL."""
        if thread not in self._files:
            with suppress(OSError):
                self._files[thread] = os.open(f"/proc/self/task/{thread}/syscall", os.O_RDONLY | os.O_CLOEXEC)
        size = self._read(self._files.get(thread, -1), self._text, len(self._text), 0)
        call = self._text.raw[: max(0, size)].split()
        return call[:1] == [b"running"] or (len(call) > 1 and int(call[1], 16) in self._gil)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            os.close(file)


def _places(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    """Yield code and instruction of each frame from the innermost. Lines would take longer."""
    while frame is not None:
        yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def _named(counts: _Counts) -> list[list[Any]]:
    """Return counts by lines, from the outermost frame."""
    named: Counter[tuple[int, tuple[tuple[str, int, str], ...]]] = Counter()
    for (thread, places), count in counts.items():
        frames = ((code.co_filename, _line(code, at), code.co_qualname) for code, at in reversed(places))
        named[thread, tuple(frames)] += count
    return [[thread, frames, count] for (thread, frames), count in named.items()]


def _line(code: CodeType, at: int) -> int:
    """Return the line of an instruction."""
    lines = takewhile(lambda line: line[0] <= at, code.co_lines())
    return next((line for _, end, line in lines if at < end and line is not None), code.co_firstlineno)
