"""The processes that a recorded program starts: counted, or recorded as well.

Each of them waits until the program there imports torch, and then records it (`at_start`).
"""

from __future__ import annotations

import glob
import json
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from overlapscope.recorder import at_start
from overlapscope.recorder.destination import Destination, kept_name, rank_of
from overlapscope.recorder.program import ProgramRecording
from overlapscope.recorder.wrapping import before

_FILE = re.compile(r"(rank|pid)\d+\.trace\.json(\.gz)?")
_VARIABLE = "OVERLAPSCOPE_CHILDREN"
_HELPERS = ("torch.utils.data.", "torch._inductor.", "multiprocessing.resource_tracker")
"""Modules whose processes only help the program that starts them."""


def record_all(path: Path, options: dict[str, Any]) -> None:
    """Have every Python process recorded that this one starts from now on: `path`, absolute, and `options` are those of
    its own `ProgramRecording`.
    """
    os.environ[_VARIABLE] = json.dumps({"path": str(path), **options})
    os.environ.update(at_start.environment(f"{__name__}:watch"))


def traces(path: Path) -> Path:
    """Where the traces of such processes are, where `path` is asked for: a directory or a glob pattern."""
    destination = Destination.asked(path).of_child()
    return destination.pattern_of_ranks() or destination.path(None).parent


def make_room(where: Path, *, force: bool) -> None:
    """Give what an earlier run has left there other names; with `force`, remove it."""
    if where.is_dir():
        for old in [path for path in where.iterdir() if _FILE.fullmatch(path.name)]:
            if force:
                old.unlink(missing_ok=True)
            else:
                old.replace(kept_name(old))


def written(where: Path, since_ns: int) -> list[Path]:
    """The traces there that were written since then."""
    traces_there = map(Path, glob.glob(str(where / "*" if where.is_dir() else where)))
    return [path for path in traces_there if path.stat().st_mtime_ns >= since_ns]


def watch() -> None:
    """In such a process, when it has imported torch: record it, unless it is ours."""
    if "overlapscope" in sys.orig_argv:
        return
    options = json.loads(os.environ[_VARIABLE])
    recording = ChildRecording(Path(options.pop("path")), **options)
    recording.begin_with_torch()
    # Processes of multiprocessing that were forked, from a server for example, run no exit handlers of Python's.
    multiprocessing.util.Finalize(None, recording.finish, exitpriority=0)


class ChildRecording(ProgramRecording):
    """Of a process that the program started. It is silent, and begins with the first step or use of the GPU: helpers of
    the program, which do neither, leave no trace.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, lambda _: None, overwrites=True, stops=False, late=True, **options)
        self._destination = self._destination.of_child()

    def prepare(self) -> None:
        """Leaves no directory behind where there will be no trace."""
        self._rank = rank_of(os.environ)


class Started:
    """Counts the processes that the program starts with `multiprocessing` and `subprocess`, from `watch` on: Pythons,
    but for helpers of torch's such as the workers of a DataLoader.
    """

    def __init__(self) -> None:
        self.count = 0
        """Without those that `record_all` does not reach."""
        self.forked = 0
        """Those: they go on where this process is, with torch imported."""

    def watch(self) -> None:
        """For good."""
        before(multiprocessing.process.BaseProcess, "start", self._on_process)
        before(subprocess.Popen, "__init__", self._on_command)

    def _on_process(self, process: Any, *args: Any, **options: Any) -> None:
        target = getattr(process, "_target", None)
        if not str(getattr(target, "__module__", "")).startswith(_HELPERS):
            method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
            forked = method == "fork" and "torch" in sys.modules
            self.forked += forked
            self.count += not forked

    def _on_command(self, popen: object, args: Any = (), *more: Any, **options: Any) -> None:
        # It may be wrong, which is for Popen to say.
        with suppress(Exception):
            command = args.split() if isinstance(args, str) else [os.fsdecode(part) for part in args]
            python = bool(command) and Path(command[0]).name.startswith("python")
            self.count += python and not any(part.startswith(_HELPERS) or "compile_worker" in part for part in command)
