"""Requests to watched processes of this user, for their status, for recordings and to be watched.

Processes that were started without overlapscope can be watched from Python 3.14 on (PEP 768: sys.remote_exec). All
ranks of a job on this host are recorded together, beginning with the same step.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from overlapscope.base import clock
from overlapscope.base.child import ROOT
from overlapscope.base.words import listed
from overlapscope.errors import UsageError
from overlapscope.plugins.watch.protocol import (
    ProcessMessage,
    RecordingBegun,
    RecordingRequest,
    RequestOutcome,
    Status,
    StatusRequest,
    receive,
    send,
    sockets,
)
from overlapscope.recorder.destination import Destination, Rank

_PATIENCE_S: Final = 2.0
"""Time for a process to answer with its status, in seconds."""
_ATTACHED_S: Final = 20.0
"""Time for the process to run Python code on its main thread, in seconds."""
_POLL_S: Final = 0.05
_INSTEAD: Final = (
    "Start it with `overlapscope run --on-demand`, call overlapscope.watch() in it, or set OVERLAPSCOPE_WATCH=1 for it."
)
_CODE: Final = """\
import os, sys
sys.path.append({root!r})
try:
    from overlapscope.plugins.watch.api import watch
    watch()
    error_text = ""
except BaseException as error:
    error_text = f"{{type(error).__name__}}: {{error}}"
finally:
    sys.path.remove({root!r})
with open({answer!r} + ".part", "w") as file:
    file.write(error_text)
os.replace({answer!r} + ".part", {answer!r})
"""
_AHEAD_S: Final = 0.5
"""Time for the ranks to receive a request, in seconds."""
_MIN_STEPS_AHEAD: Final = 5
_MAX_ATTEMPTS: Final = 6
"""Maximum number of attempts, each of which begins twice as far ahead as the last."""
_UNTIL_BEGUN_S: Final = 60.0
_UNTIL_WITHDRAWN_S: Final = 0.3


class SilentProcess(msgspec.Struct, frozen=True, tag="silent"):
    """A watched process that doesn't answer."""

    pid: int
    stopped: bool
    """True if the system states that it is stopped, as by SIGSTOP."""


def statuses() -> list[Status]:
    """Return the status of each watched process of this user that answers, by process id."""
    return [process for process in processes() if isinstance(process, Status)]


def processes() -> list[Status | SilentProcess]:
    """Return all watched processes of this user, by process id. Sockets of dead processes are removed."""
    by_pid: dict[int, Status | SilentProcess] = {}
    for pid, path in sockets():
        try:
            status = _status(path)
        except TimeoutError:
            if is_alive(pid):
                by_pid.setdefault(pid, SilentProcess(pid, _stopped(pid)))
                continue
            status = None
        if status is not None:
            by_pid[pid] = status
        elif not is_alive(pid):
            with suppress(OSError):
                path.unlink()
    return [by_pid[pid] for pid in sorted(by_pid)]


def status_of(pid: int) -> Status:
    """Return the status of a process. Raises UsageError if it is not watched, or doesn't answer."""
    for number, path in sockets():
        try:
            if number == pid and (status := _status(path)) is not None:
                return status
        except TimeoutError:
            raise UsageError(f"process {pid} is watched, but does not answer; {why_silent(pid)}.") from None
    if not is_alive(pid):
        raise UsageError(f"there is no process {pid}; `overlapscope record --list` shows those that can be recorded.")
    raise UsageError(
        f"process {pid} is not watched, or is another user's. Start it with `overlapscope run --on-demand`, call "
        "overlapscope.watch() in it, or set OVERLAPSCOPE_WATCH=1 for it; on Python 3.14, --attach watches it as it is. "
        "`overlapscope record --list` shows what is watched."
    )


class Asking:
    """A request to a process for a recording."""

    def __init__(self, pid: int, request: RecordingRequest, rank: Rank | None = None) -> None:
        """Send the request. `rank` is the process's, if known. Raises UsageError if the process has ended."""
        self._pid = pid
        self._trace, self._asked_at_ns = Destination.for_path(request.path).path(rank), time.time_ns()
        for number, path in sockets():
            if number == pid:
                try:
                    self._socket = _connected(path)
                    send(self._socket, request)
                except OSError:
                    break
                self._lines = self._socket.makefile("rb")
                return
        raise UsageError(f"process {pid} is gone.")

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, on any thread. Before the outcome, this cancels the request."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._socket.close()

    def outcome(self, begun: Callable[[int], object], *, until_begun_s: float) -> RequestOutcome:
        """Wait for the outcome. The recording calls `begun(step)` within `until_begun_s` seconds."""
        self._socket.settimeout(until_begun_s)
        try:
            while (message := receive(self._lines, ProcessMessage)) is not None:
                match message:
                    case RecordingBegun(step):
                        self._socket.settimeout(None)
                        begun(step)
                    case RequestOutcome() as outcome:
                        return outcome
        except TimeoutError:
            return RequestOutcome(
                failure=f"Process {self._pid} made no step for {until_begun_s:.0f} s. --seconds records by time."
            )
        except (OSError, UsageError, msgspec.MsgspecError):
            pass
        with suppress(OSError):
            # If the file exists, it is complete.
            if self._trace.stat().st_mtime_ns >= self._asked_at_ns:
                note = f"Process {self._pid} ended before all was timed that follows the recording."
                return RequestOutcome(path=str(self._trace), notes=(note,))
        return RequestOutcome(failure=f"Process {self._pid} ended before its recording was complete.")


def _connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(_PATIENCE_S)
    try:
        client.connect(str(path))
    except OSError:
        client.close()
        raise
    return client


def _status(path: Path) -> Status | None:
    """Return the status of the process with this socket; None without one. Raises TimeoutError if it doesn't answer."""
    try:
        with _connected(path) as client, client.makefile("rb") as lines:
            send(client, StatusRequest())
            answer = receive(lines, ProcessMessage)
    except TimeoutError:
        raise
    except (OSError, UsageError, msgspec.MsgspecError):
        return None
    return answer if isinstance(answer, Status) else None


def why_silent(pid: int) -> str:
    """Return why a process may not answer, as far as the system knows."""
    if _stopped(pid):
        return f"it is stopped, and `kill -CONT {pid}` continues it"
    return "it may be stopped, or in a call that holds Python's lock; try again"


def _stopped(pid: int) -> bool:
    """Return whether the system states that a process is stopped. Other systems than Linux don't."""
    with suppress(OSError, IndexError):
        # The name of the program, in parentheses, may hold anything.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    return False


def is_alive(pid: int) -> bool:
    """Return whether such a process of any user exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


# -- Processes that were started without overlapscope -----------------------------------------------


def attach(pid: int) -> Status:
    """Begin to watch a process. Raises UsageError if that is impossible."""
    if any(status.pid == pid for status in statuses()):
        return status_of(pid)
    if not is_alive(pid):
        raise UsageError(f"there is no process {pid}.")
    remote_exec = getattr(sys, "remote_exec", None)
    if remote_exec is None:
        version = ".".join(map(str, sys.version_info[:2]))
        raise UsageError(f"attaching to a process needs Python 3.14 or newer, and this is {version}. {_INSTEAD}")
    with TemporaryDirectory(prefix="overlapscope-") as directory:
        script, answer = Path(directory, "attach.py"), Path(directory, "answer")
        script.write_text(_CODE.format(root=str(ROOT), answer=str(answer)))
        try:
            remote_exec(pid, str(script))
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"process {pid} cannot be attached to: {error}. It must run the same version of Python, be of the same "
                f"user, and not forbid it (PYTHON_DISABLE_REMOTE_DEBUG, ptrace). {_INSTEAD}"
            ) from None
        until = time.monotonic() + _ATTACHED_S
        while not answer.exists():
            if time.monotonic() > until:
                raise UsageError(f"process {pid} ran no Python code within {_ATTACHED_S:.0f} s; {why_silent(pid)}.")
            time.sleep(_POLL_S)
        error_text = answer.read_text()
    if error_text:
        raise UsageError(f"process {pid} cannot import overlapscope ({error_text}). {_INSTEAD}")
    return status_of(pid)


# -- All ranks of a job -----------------------------------------------------------------------------


def ranks_of(status: Status) -> list[Status]:
    """Return all processes of its job on this host, including itself."""
    if status.job is None:
        return [status]
    return [other for other in statuses() if other.job == status.job]


def record(
    processes: Sequence[Status], request: RecordingRequest, begun: Callable[[Status, int], object]
) -> list[RequestOutcome]:
    """Record processes, and call `begun(process, step)` when the recording of each begins.

    All recordings begin with the same step, if the processes count alike. If a process passes that step too early, all
    are asked again.

    Returns:
        The outcome for each process, in the same order.

    Raises:
        UsageError: A process has ended.
    """
    if len(processes) == 1 or request.options.by_clock:
        return _ask(processes, request, begun)
    for attempt in range(_MAX_ATTEMPTS):
        answering = {status.pid: status for status in statuses()}
        # A busy process may not answer in time, but it exists.
        latest = [answering.get(old.pid, old) for old in processes if old.pid in answering or is_alive(old.pid)]
        if len(latest) < len(processes):
            gone = sorted({old.pid for old in processes} - {status.pid for status in latest})
            raise UsageError(f"{'process' if len(gone) == 1 else 'processes'} {listed(gone)} ended or cannot be asked.")
        ahead = _ahead(latest) * 2**attempt
        at_step = max(status.steps for status in latest) + ahead
        slowest_ns = max((status.plain_step_ns or 0 for status in latest), default=0)
        wait_s = _UNTIL_BEGUN_S + 2 * ahead * slowest_ns / clock.NS_PER_S
        outcomes = _ask(processes, msgspec.structs.replace(request, at_step=at_step), begun, wait_s)
        if not any(outcome.too_late or outcome.busy for outcome in outcomes):
            break
        # Until the processes know of the cancelled requests.
        time.sleep(_UNTIL_WITHDRAWN_S)
    return outcomes


def _place(status: Status) -> Rank | None:
    return None if status.rank is None or status.world_size is None else Rank(status.rank, status.world_size)


def _ahead(processes: Sequence[Status]) -> int:
    """Return the number of steps that a job makes while its ranks receive a request."""
    fastest_ns = min((status.plain_step_ns for status in processes if status.plain_step_ns), default=None)
    return _MIN_STEPS_AHEAD + (0 if fastest_ns is None else round(_AHEAD_S * clock.NS_PER_S / fastest_ns))


def _ask(
    processes: Sequence[Status],
    request: RecordingRequest,
    begun: Callable[[Status, int], object],
    wait_s: float = _UNTIL_BEGUN_S,
) -> list[RequestOutcome]:
    # An interruption closes the sockets first, since the threads wait for these.
    with ThreadPoolExecutor(len(processes)) as pool, ExitStack() as connections:
        asking = [connections.enter_context(Asking(status.pid, request, _place(status))) for status in processes]

        def wait(number: int) -> RequestOutcome:
            outcome = asking[number].outcome(partial(begun, processes[number]), until_begun_s=wait_s)
            if outcome.too_late:
                # Cancel the requests to the others.
                for other in asking:
                    other.close()
            return outcome

        return list(pool.map(wait, range(len(processes))))
