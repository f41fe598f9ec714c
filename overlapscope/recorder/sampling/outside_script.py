"""Program that samples another process: its Python stacks with py-spy, and the state of one thread.

Arguments: process, thread, first address and end address of the GIL, maximum seconds until it ends, and the path of
py-spy, which may be empty. stdin is a socket from the process. A byte on it allows the program to begin, the next one
begins the sampling, the third one ends it. At the end of the file, or without its parent, the program ends at once.
stdout is a file. It gets `+` or `-` once sampling may begin, `+` with py-spy, and after the third byte a JSON object.

It is started with `-I -S` and imports nothing of overlapscope, so that it starts in 20 ms.
"""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

_STACKS_PER_S = 100
_RUNNING_PER_S = 50
"""Samples per second of the running threads only, which divides `_STACKS_PER_S`."""
_STATES_PER_S = 100
_START_LIMIT_S = 3.0
"""Maximum time from the start of py-spy to its first sample."""
_END_LIMIT_S = 2.0
"""Maximum time for which py-spy may write its samples."""
_FILE_CALLS = {
    "x86_64": (0, 1, 3, 17, 18, 19, 20, 40, 74, 75, 77, 78, 217, 277, 285, 295, 296, 306, 326, 327, 328),
    "generic": (63, 64, 57, 67, 68, 65, 66, 71, 82, 83, 46, 61, 84, 47, 69, 70, 267, 285, 286, 287),
}
"""Numbers of read, write, close, pread64, pwrite64, readv, writev, sendfile, fsync, fdatasync, ftruncate, getdents (on
x86_64 only), getdents64, sync_file_range, fallocate, preadv, pwritev, syncfs, copy_file_range, preadv2 and pwritev2.
Their first argument is a file descriptor. "generic" is Linux's table for arm64 and all later systems."""
_PATH_CALLS = {
    "x86_64": (2, 4, 6, 76, 82, 83, 87, 162, 257, 262, 263, 264, 316, 332),
    "generic": (56, 79, 45, 34, 35, 81, 38, 276, 291),
}
"""Numbers of open, stat, lstat, truncate, rename, mkdir, unlink, sync, openat, newfstatat, unlinkat, renameat,
renameat2 and statx, or those of them that exist. Their arguments name files only by an address in memory."""
_FUTEX = {"x86_64": 202, "generic": 98}


class States:
    """Numbers of samples of a thread in each state, and of those in calls on files by file."""

    def __init__(self, process: int, thread: int, gil: range) -> None:
        """Open the files to be read. Raises OSError where that is not permitted."""
        self.running = self.gil_wait = self.file_io = self.other_wait = 0
        self.files: dict[str, int] = {}
        self._process, self._gil = process, gil
        self._file = os.open(f"/proc/{process}/task/{thread}/syscall", os.O_RDONLY | os.O_CLOEXEC)
        table = "x86_64" if os.uname().machine == "x86_64" else "generic"
        self._futex, self._by_descriptor, self._by_path = _FUTEX[table], _FILE_CALLS[table], _PATH_CALLS[table]
        self._read()

    def take(self) -> None:
        """Take a sample."""
        call = self._read()
        if call[:1] == ["running"]:
            self.running += 1
            return
        number = int(call[0]) if call else -1
        argument = int(call[1], 16) if len(call) > 1 else 0
        if number == self._futex and argument in self._gil:
            self.gil_wait += 1
        elif (file := self._file_of(number, argument)) is not None:
            self.file_io += 1
            if file:
                self.files[file] = self.files.get(file, 0) + 1
        else:
            self.other_wait += 1

    def _read(self) -> list[str]:
        return os.pread(self._file, 256, 0).decode().split()

    def _file_of(self, number: int, argument: int) -> str | None:
        """Return the file that a call works on, empty if unknown; None for other calls, and for pipes and sockets."""
        if number not in self._by_descriptor:
            return "" if number in self._by_path else None
        path = f"/proc/{self._process}/fd/{argument}"
        with suppress(OSError):
            mode = os.stat(path).st_mode
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode):
                return os.readlink(path)
        return None


class Spy:
    """A process of py-spy, which samples at once."""

    def __init__(self, path: str, process: int, seconds: int, per_s: int, *options: str) -> None:
        """Start it for a number of samples per second."""
        self._result = os.memfd_create("samples", 0)
        command = [path, "record", "--pid", str(process), "--nonblocking", "--threads", "--full-filenames"]
        command += ["--rate", str(per_s), "--duration", str(seconds), "--format", "speedscope"]
        self._child = subprocess.Popen(
            [*command, "--output", f"/proc/self/fd/{self._result}", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[self._result],
        )
        assert self._child.stdout is not None
        self._output = self._child.stdout.fileno()
        self._began_s = 0.0
        self.text = b""
        """Its messages."""

    def await_start(self, until_s: float) -> bool:
        """Wait until it samples. Returns false if it ends or takes too long."""
        while b"Sampling process" not in self.text:
            if not select.select([self._output], [], [], max(0.0, until_s - time.monotonic()))[0]:
                return False
            some = os.read(self._output, 1 << 16)
            if not some:
                return False
            self.text += some
        self._began_s = time.monotonic()
        return True

    def stop(self) -> None:
        """Let it end."""
        self._child.send_signal(signal.SIGINT)

    def samples(self, begin_s: float, end_s: float) -> tuple[list[dict[str, Any]], dict[str, list[list[int]]]]:
        """Return the frames, and each thread's samples since `begin_s` as indices of them, after `stop`."""
        self._child.communicate(timeout=_END_LIMIT_S)
        size = os.fstat(self._result).st_size
        content = json.loads(os.pread(self._result, size, 0))
        # Samples have no times, but their intervals are alike.
        early = max(0.0, begin_s - self._began_s) / max(1e-9, end_s - self._began_s)
        threads = {one["name"]: one["samples"] for one in content["profiles"]}
        return content["shared"]["frames"], {
            name: samples[round(len(samples) * early) :] for name, samples in threads.items()
        }

    def kill(self) -> None:
        """End it."""
        self._child.kill()
        self._child.wait()


def _thread_of(name: str) -> int:
    """Return the number in py-spy's name of a thread, `Thread 123 "MainThread"`; -1 without one."""
    word = name.split('"', maxsplit=1)[0].removeprefix("Thread").strip()
    return int(word) if word.isdecimal() else -1


def _counted(spy: Spy, begin_s: float, end_s: float) -> list[list[Any]]:
    """Return the stacks that a py-spy saw: thread, frames as file, line and function, and number of samples."""
    frames, threads = spy.samples(begin_s, end_s)
    counts: dict[tuple[int, tuple[int, ...]], int] = {}
    for name, samples in threads.items():
        thread = _thread_of(name)
        for sample in samples:
            key = thread, tuple(sample)
            counts[key] = counts.get(key, 0) + 1
    shown = [[frame.get("file") or "", frame.get("line") or 0, frame.get("name") or ""] for frame in frames]
    return [
        [thread, [shown[index] for index in stack if not _is_name(frames[index])], count]
        for (thread, stack), count in counts.items()
    ]


def _is_name(frame: dict[str, Any]) -> bool:
    """Return whether a frame is only the name of a thread, such as `thread (123): MainThread`."""
    return not frame.get("file") and str(frame.get("name")).startswith(("thread (", "process "))


class Lost(Exception):
    """The process that is to be sampled is gone, or wants no samples any more."""


def _await_byte(until_s: float, parent: int, pause_s: float, tick: Any = None) -> bool:
    """Wait for the next byte of stdin, and call `tick` meanwhile.

    Returns:
        False if there is none until `until_s`.

    Raises:
        Lost: stdin has ended, or the parent.
    """
    phase = 1
    while time.monotonic() < until_s:
        # Intervals vary, so that they do not keep step with the program.
        phase = phase * 1103515245 + 12345 & 0x7FFFFFFF
        if select.select([0], [], [], pause_s * (0.5 + phase / 0x80000000))[0]:
            if not os.read(0, 1):
                raise Lost
            return True
        if os.getppid() != parent:
            raise Lost
        if tick is not None:
            tick()
    return False


def _spies(path: str, process: int, seconds: int) -> tuple[list[Spy], str]:
    """Start py-spy for all samples, and for those of running threads; with them, return why there are none."""
    if not path:
        return [], ""
    spies: list[Spy] = []
    try:
        spies = [Spy(path, process, seconds, _STACKS_PER_S, "--idle"), Spy(path, process, seconds, _RUNNING_PER_S)]
        until_s = time.monotonic() + _START_LIMIT_S
        if all(spy.await_start(until_s) for spy in spies):
            return spies, ""
        problem = spies[0].text.decode(errors="replace").strip() or "py-spy did not begin"
    except OSError as error:
        problem = str(error)
    for spy in spies:
        spy.kill()
    return [], problem


def _version(path: str) -> str:
    words = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout
    return words.decode(errors="replace").split()[-1] if words.strip() else ""


def main() -> None:
    """Sample a process."""
    process, thread, gil_begin, gil_end, seconds = map(int, sys.argv[1:6])
    until_s = time.monotonic() + seconds
    # A program that is bound to some CPUs keeps them for itself.
    with suppress(OSError, AttributeError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    spies: list[Spy] = []
    try:
        if not _await_byte(until_s, process, 0.1):
            return
        spies, problem = _spies(sys.argv[6], process, seconds)
        version = _version(sys.argv[6]) if spies else ""
        states: States | None = None
        with suppress(OSError):
            states = States(process, thread, range(gil_begin, gil_end))
        os.write(1, b"+" if spies else b"-")
        if not _await_byte(until_s, process, 0.1):
            return
        begin_s = time.monotonic()
        with suppress(OSError):
            if not _await_byte(until_s, process, 1 / _STATES_PER_S, None if states is None else states.take):
                return
        end_s = time.monotonic()
        for spy in spies:
            spy.stop()
        result: dict[str, Any] = {"problem": problem, "stacks_per_s": _STACKS_PER_S, "version": version}
        if states is not None:
            result["states"] = [states.running, states.gil_wait, states.file_io, states.other_wait]
            result["files"] = states.files
        try:
            result["all"], result["running"] = [_counted(spy, begin_s, end_s) for spy in spies] or [[], []]
            for stack in result["running"]:
                stack[2] *= _STACKS_PER_S // _RUNNING_PER_S
        except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            result["problem"] = f"py-spy: {error}"
        os.write(1, json.dumps(result).encode())
    except Lost:
        pass
    finally:
        for spy in spies:
            spy.kill()


if __name__ == "__main__":
    main()
