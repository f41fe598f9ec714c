"""Watched programs that don't answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from overlapscope.commands import main
from overlapscope.plugins.watch import ask, protocol

LISTENING = """
import socket, sys, time
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("listens", flush=True)
time.sleep(600)
"""


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield a process that listens where watched programs do, and never answers."""
    # The path of a socket must be short.
    with TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setattr(ask, "_PATIENCE_S", 0.2)
        path = Path(folder, "socket")
        process = subprocess.Popen([sys.executable, "-c", LISTENING, path], stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None and process.stdout.readline() == b"listens\n"
            path.rename(protocol.socket_of(protocol.make_directory(), process.pid))
            yield process.pid
        finally:
            process.kill()
            process.communicate()


def refused(pid: int, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["record", str(pid)]) == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't tell the state of a process")
def test_a_stopped_program_is_said_to_be_stopped(silent: int, capsys: pytest.CaptureFixture[str]) -> None:
    os.kill(silent, signal.SIGSTOP)
    os.waitpid(silent, os.WUNTRACED)
    expected = (
        f"process {silent} is watched, but does not answer; it is stopped, and `kill -CONT {silent}` continues it."
    )
    assert refused(silent, capsys) == f"overlapscope: error: {expected}"
    assert main(["record", "--list"]) == 0
    assert f"{silent}  (stopped)\n" in capsys.readouterr().out
    assert main(["record", "--list", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"type": "silent", "pid": silent, "stopped": True}]
    assert ask.statuses() == []
    os.kill(silent, signal.SIGCONT)


def test_a_program_that_does_not_answer_is_said_to_be_watched(silent: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "is watched, but does not answer; it may be stopped, or in a call that holds Python's lock; try again"
        in refused(silent, capsys)
    )
    assert main(["record", "--list"]) == 0
    assert f"{silent}  (does not answer)\n" in capsys.readouterr().out


def test_a_socket_without_a_program_is_no_watched_program(silent: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = protocol.socket_of(protocol.make_directory(), os.getpid())
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    assert f"process {os.getpid()} is not watched" in refused(os.getpid(), capsys)
