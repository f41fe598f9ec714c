"""Samplers of stacks: a process that runs `outside_script.py`, or a thread of the program that no process may read.

The thread needs the GIL for each sample. So it finds other threads mostly where they let go of the GIL: lines that call
long-running functions of C, which do, have too many samples at the expense of those that do not.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

from overlapscope.base import clock
from overlapscope.base.child import Child
from overlapscope.recorder.main_thread import threads_without_signals

# -- Address of Python's global interpreter lock, by which a wait for it is recognized -------------------

_RTLD_DL_SYMENT = 1


class _Symbol(ctypes.Structure):
    """`Elf64_Sym`."""

    _fields_ = (
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_ubyte),
        ("other", ctypes.c_ubyte),
        ("section", ctypes.c_uint16),
        ("value", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    )


class _Found(ctypes.Structure):
    """`Dl_info`."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def gil_addresses() -> range:
    """Return the addresses of Python's runtime state, which contains the main interpreter's lock; empty if unknown."""
    with suppress(AttributeError, ValueError, OSError):
        address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
        found, symbol = _Found(), ctypes.POINTER(_Symbol)()
        dladdr1 = ctypes.CDLL(None).dladdr1
        if dladdr1(ctypes.c_void_p(address), ctypes.byref(found), ctypes.byref(symbol), _RTLD_DL_SYMENT):
            # ValueError if it is a null pointer.
            return range(address, address + symbol.contents.size)
    return range(0)


# -- A thread ----------------------------------------------------------------------------------------

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


# -- A process ---------------------------------------------------------------------------------------

_SCRIPT = Path(__file__).with_name("outside_script.py")
_LIMIT_S = 30
"""Maximum time after which the process ends by itself."""
_PR_SET_PTRACER = 0x59616D61


class OutsideSampler:
    """A process that samples this one, and the state of one of its threads."""

    def __init__(self, thread: int) -> None:
        """Start it for the thread of this number. Raises OSError or AttributeError where the system cannot."""
        self._result = os.memfd_create("overlapscope")
        # Unlike a pipe, a socket never raises SIGPIPE, which the program may have set to end it.
        self._socket, other = socket.socketpair()
        gil = gil_addresses()
        numbers = os.getpid(), thread, gil.start, gil.stop, _LIMIT_S
        try:
            self._child = Child(
                [sys.executable, "-I", "-S", str(_SCRIPT), *map(str, numbers), _py_spy()],
                stdin=other,
                stdout=self._result,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self._close()
            raise
        finally:
            other.close()
        # Yama lets only ancestors read a process, and another process that it names, with the children of that process.
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(self._child.pid), 0, 0, 0)
        self._send()

    @property
    def ready(self) -> bool:
        """True once `begin` may be called."""
        return os.fstat(self._result).st_size > 0

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._child.poll() is not None

    @property
    def has_stacks(self) -> bool:
        """True if py-spy samples. Valid once it is ready."""
        return os.pread(self._result, 1, 0) == b"+"

    def begin(self) -> None:
        """Begin to sample."""
        self._send()

    def end(self) -> None:
        """Stop sampling."""
        self._send()

    def result(self, within_s: float) -> dict[str, Any] | None:
        """Return its samples, after `end`; None if it does not end within this time, or has failed."""
        if self._child.ends_within(within_s):
            with suppress(OSError, ValueError):
                content = json.loads(os.pread(self._result, os.fstat(self._result).st_size, 1))
                return content if isinstance(content, dict) else None
        return None

    def stop(self) -> None:
        """End the process."""
        self._child.end()
        self._close()

    def _close(self) -> None:
        self._socket.close()
        os.close(self._result)

    def _send(self) -> None:
        with suppress(OSError):
            self._socket.send(b".", getattr(socket, "MSG_NOSIGNAL", 0))


def _py_spy() -> str:
    """Return the path of py-spy where its package has it, or else the shell's; empty without one."""
    with suppress(importlib.metadata.PackageNotFoundError, OSError):
        package = importlib.metadata.distribution("py-spy")
        stated = [file for file in package.files or () if file.name == "py-spy"]
        # `pip install --target` puts it elsewhere than it states.
        for file in (*stated, Path("bin", "py-spy")):
            if (path := Path(str(package.locate_file(file)))).is_file():
                return str(path.resolve())
    return shutil.which("py-spy") or ""
