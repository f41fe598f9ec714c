"""Schedulers and workers of Dask as others would start them: processes of their own, with nothing of this one's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from msgspec import Struct

PATIENCE_S = 60.0

_WITHOUT_OVERLAPSCOPE = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "overlapscope":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
from distributed.cli.dask_worker import main
main()
"""


class Scheduler(Struct, frozen=True):
    """A running scheduler."""

    address: str
    process: subprocess.Popen[bytes]
    folder: Path

    @contextmanager
    def worker(self, *options: str, overlapscope: bool = True) -> Iterator[None]:
        """Yield a worker of one thread, that has this package or has not."""
        program = ["-m", "distributed.cli.dask_worker"] if overlapscope else ["-c", _WITHOUT_OVERLAPSCOPE]
        with _started([*program, self.address, "--nthreads", "1", "--no-dashboard", *options], self.folder):
            yield


@contextmanager
def scheduler(folder: Path, *, allowed_failures: int = 3) -> Iterator[Scheduler]:
    """Yield a scheduler that listens on a free port, and has no worker. It and its workers run in `folder`."""
    file = folder / "scheduler.json"
    command = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    tolerance = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(allowed_failures)}
    with _started([*command, "--dashboard-address", ":0", "--scheduler-file", str(file)], folder, tolerance) as process:
        wait_until(lambda: file.exists() and file.read_text().rstrip().endswith("}"), "the scheduler listens")
        yield Scheduler(json.loads(file.read_text())["address"], process, folder)


def wait_until(happened: Callable[[], object], what: str) -> None:
    """Wait for a condition. Raises AssertionError if it takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, f"not in {PATIENCE_S} s: {what}"
        time.sleep(0.02)


@contextmanager
def _started(
    arguments: list[str], folder: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process, killed afterwards with all that it started."""
    with (
        open(folder / "log", "ab") as log,
        subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, env=os.environ | (environment or {}), stdout=log, stderr=log
        ) as process,
    ):
        try:
            yield process
        finally:
            with suppress(psutil.NoSuchProcess):
                first = psutil.Process(process.pid)
                for item in [first, *first.children(recursive=True)]:
                    with suppress(psutil.NoSuchProcess):
                        item.kill()
