"""Tests here start no process and load no torch, so that `make quick` runs them all in a minute."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

STARTS = ("os.fork", "os.posix_spawn", "subprocess.Popen.__init__", "multiprocessing.process.BaseProcess.start")


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("a test that starts a process belongs into tests/process")


@pytest.fixture(autouse=True)
def no_process_and_no_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    had_torch = "torch" in sys.modules
    for start in STARTS:
        monkeypatch.setattr(start, refuse)
    yield
    assert had_torch or "torch" not in sys.modules, "a test that needs torch belongs into tests/torch"
