"""Tests here start no process and load no torch, so that `make unit` is quick."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

STARTS = ("os.fork", "os.posix_spawn", "subprocess.Popen.__init__", "multiprocessing.process.BaseProcess.start")


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("a test that starts a process belongs into tests/process")


@pytest.fixture(scope="session", autouse=True)
def garbage_is_looked_for_seldom() -> Iterator[None]:
    """Collect garbage seldom: tests make many small objects and few cycles, and Hypothesis runs a callback at each
    collection."""
    usual = gc.get_threshold()
    gc.set_threshold(100_000, 20, 20)
    yield
    gc.set_threshold(*usual)


@pytest.fixture(scope="package", autouse=True)
def no_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for start in STARTS:
            patch.setattr(start, refuse)
        yield


@pytest.fixture(autouse=True)
def no_torch() -> Iterator[None]:
    had_torch = "torch" in sys.modules
    yield
    assert had_torch or "torch" not in sys.modules, "a test that needs torch belongs into tests/torch"
