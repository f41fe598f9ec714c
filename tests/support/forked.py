"""Processes that begin with torch loaded: importing it takes longer than most programs of tests, and is done once.

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

PATIENCE_S = 300
"""A program that takes longer hangs."""
FINDS_US = {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
}


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair()
    command = [sys.executable, str(Path(__file__).with_name("forked_server.py")), str(theirs.fileno())]
    process = subprocess.Popen(command, env=os.environ | FINDS_US, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def run(
    arguments: Sequence[str | Path], cwd: Path, *, stdin: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run what would be `python ARGUMENTS`: a script, `-m module` or `-c text`, and what it takes."""
    words = [str(one) for one in arguments]
    program = {
        "arguments": words,
        "cwd": str(cwd),
        "environment": dict(os.environ) | FINDS_US | dict(environment or {}),
    }
    message = json.dumps(program).encode()
    server = _server()
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        streams = [one.fileno() for one in (given, out, err)]
        socket.send_fds(server, [len(message).to_bytes(4, "little")], streams)
        server.sendall(message)
        child = _number(server)
        server.settimeout(PATIENCE_S)
        try:
            status = _number(server)
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            server.settimeout(None)
            _number(server)
            raise subprocess.TimeoutExpired(words, PATIENCE_S) from None
        finally:
            server.settimeout(None)
        out.seek(0)
        err.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess(words, code, out.read().decode(), err.read().decode())


def _number(server: socket.socket) -> int:
    data = b""
    while len(data) < 8:
        data += server.recv(8 - len(data))
    return int.from_bytes(data, "little", signed=True)
