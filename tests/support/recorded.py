"""Traces that tests record with PyTorch for CPUs: work to record, and the contents of the files."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import overlapscope as ov
from overlapscope.recorder.recording import current
from overlapscope.recorder.session import profiler_running
from tests.support import forked

MB = 1_000_000


def work(name: str = "work") -> None:
    """Multiply two matrices within a range of that name."""
    import torch

    with torch.profiler.record_function(name):
        torch.ones(8, 8) @ torch.ones(8, 8)


def python(code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own; `path` is `x.trace.json.gz` in its directory."""
    head = "import os, sys, threading, torch\nimport overlapscope as ov\npath = 'x.trace.json.gz'\n"
    return forked.run(["-c", head + code], cwd, environment=environment)


@contextmanager
def nothing_left_running() -> Iterator[None]:
    """Fail what leaves a recording or a profiler under way."""
    yield
    outer = current()
    if outer is not None:
        outer.end()
    assert outer is None
    assert not profiler_running()


def content(path: Path) -> dict[str, Any]:
    """Return the JSON of a trace."""
    data = path.read_bytes()
    trace: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return trace


def names(path: Path, category: str = "user_annotation") -> list[str]:
    """Return the names of a category's events, in the order of their beginnings."""
    events = [event for event in content(path)["traceEvents"] if event.get("cat") == category]
    return [event["name"] for event in sorted(events, key=lambda event: float(event["ts"]))]


def steps(path: Path) -> list[int]:
    """Return the numbers of the recorded steps."""
    return [int(name.removeprefix("ProfilerStep#")) for name in names(path) if name.startswith("ProfilerStep#")]


def ranges(path: Path) -> list[str]:
    """Return the names of the recorded ranges, without steps."""
    return [name for name in names(path) if not name.startswith("ProfilerStep#")]


def ops_and_ranges(path: Path) -> set[str]:
    """Return the names of the recorded ops and ranges."""
    return {*names(path, "cpu_op"), *names(path)}


def timed(path: Path) -> tuple[int, int]:
    """Return how many steps were timed before the recording and after it, while nothing was recorded."""
    plain = ov.load(path).plain_steps
    return len(plain.before.host_ns), len(plain.after.host_ns)


def warm_up_steps(path: Path) -> int:
    """Return how many steps are marked as not to be judged, and check the rest of the metadata."""
    import torch

    count = ov.load(path).warm_up_steps
    expected = {"version": ov.__version__, "torch": torch.__version__, "warm_up_steps": count}
    assert content(path)["overlapscope"].items() >= expected.items()
    return count
