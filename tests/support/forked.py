"""Processes that begin with torch or Dash loaded: importing it takes longer than most programs do, and is done once.

Each is a process of its own, forked by `forked_server.py`, that finds the world and ends as under `python`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

PATIENCE_S = 240
"""A program that takes longer hangs."""
FINDS_US = {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
}


@cache
def _server(loaded: str) -> socket.socket:
    ours, theirs = socket.socketpair()
    command = [sys.executable, str(Path(__file__).with_name("forked_server.py")), str(theirs.fileno()), loaded]
    process = subprocess.Popen(command, env=os.environ | FINDS_US, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class ForkedProgram:
    """A running program, with the needed part of `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        cwd: Path,
        *,
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
        loaded: str = "torch",
        stderr: int | None = None,
        unloads: bool = True,
    ) -> None:
        """Start the equivalent of `python ARGUMENTS`: a script, `-m module` or `-c text`, with its arguments.
        `loaded` is
        "torch" or "dash". Its stderr is written to the file descriptor, where one is given. Without `unloads`, it ends
        once its threads and functions for its end have: unloading Python and torch takes longer than most programs."""
        self.arguments = [str(argument) for argument in arguments]
        self.returncode: int | None = None
        self._server = _server(loaded)
        self._printed: tuple[str, str] | None = None
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        variables = {**os.environ, **FINDS_US, **(environment or {})}
        program = {"arguments": self.arguments, "cwd": str(cwd), "environment": variables, "unloads": unloads}
        with tempfile.TemporaryFile() as given:
            given.write(stdin.encode())
            given.seek(0)
            streams = [given.fileno(), self._out.fileno(), self._err.fileno() if stderr is None else stderr]
            self.pid = _ask(self._server, program, streams)

    def poll(self) -> int | None:
        return self._ended(os.WNOHANG)

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """Its exit code. Raises TimeoutExpired, and ends it, where it takes longer."""
        server = self._server
        server.settimeout(timeout)
        try:
            self._ended(0)
        except BaseException as error:
            # The server answers nobody else until this program has ended.
            os.kill(self.pid, signal.SIGKILL)
            server.settimeout(None)
            self.returncode = os.waitstatus_to_exitcode(_number(server))
            if isinstance(error, TimeoutError):
                raise subprocess.TimeoutExpired(self.arguments, timeout) from None
            raise
        finally:
            server.settimeout(None)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = PATIENCE_S) -> tuple[str, str]:
        """All that it printed, once it has ended. Raises as `wait`."""
        self.wait(timeout)
        if self._printed is None:
            with self._out, self._err:
                self._out.seek(0)
                self._err.seek(0)
                self._printed = self._out.read().decode(), self._err.read().decode()
        return self._printed

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, options: int) -> int | None:
        if self.returncode is None and (status := _ask(self._server, {"wait": self.pid, "options": options})) >= 0:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def run(
    arguments: Sequence[str | Path],
    cwd: Path,
    *,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    unloads: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run what would be `python ARGUMENTS` to its end."""
    program = ForkedProgram(arguments, cwd, stdin=stdin, environment=environment, unloads=unloads)
    out, err = program.communicate()
    return subprocess.CompletedProcess(program.arguments, program.wait(), out, err)


def _ask(server: socket.socket, what: Mapping[str, object], streams: Sequence[int] = ()) -> int:
    """Return the server's answer: the process that it started; the exit status of a process, or -1 while it runs."""
    message = json.dumps(what).encode()
    socket.send_fds(server, [len(message).to_bytes(4, "little")], streams)
    server.sendall(message)
    return _number(server)


def _number(server: socket.socket) -> int:
    data = b""
    while len(data) < 8:
        data += server.recv(8 - len(data))
    return int.from_bytes(data, "little", signed=True)
