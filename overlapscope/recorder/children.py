"""Processes that a recorded program starts: counting them, or recording them as well.

Each process records its program once that has imported torch (`at_import`).
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from overlapscope.recorder import at_import
from overlapscope.recorder.destination import Destination, kept_name, rank_of
from overlapscope.recorder.options import Options
from overlapscope.recorder.program import ProgramRecording
from overlapscope.recorder.wrapping import before

_FILE = re.compile(r"(rank|pid)\d+\.trace\.json(\.gz)?")
_VARIABLE = "OVERLAPSCOPE_CHILDREN"
_HELPERS = (
    "torch.utils.data.",
    "torch._inductor.",
    "multiprocessing.resource_tracker",
    "overlapscope.recorder.imports",
)
"""Modules whose processes only help the program that starts them."""


_recorded: list[int] = []
"""Process that called `record_all`: this process, or one that it was forked from. Empty if neither did."""


def record_all(path: Path, options: Options) -> None:
    """Record every Python process that this process starts later. `path` is this process's trace file, absolute."""
    _recorded[:] = [os.getpid()]
    os.environ[_VARIABLE] = json.dumps({"path": str(path), **asdict(options)})
    os.environ[at_import.PLACE] = f"{__name__}:watch"


def traces(path: Path) -> Path:
    """Return where such processes write their traces if the user names `path`: a directory or a glob pattern."""
    destination = Destination.asked(path).of_child()
    return destination.pattern_of_ranks() or destination.path(None).parent


def make_room(where: Path, *, force: bool) -> None:
    """Rename the traces that an earlier run left there; with `force`, remove them."""
    if where.is_dir():
        for old in [path for path in where.iterdir() if _FILE.fullmatch(path.name)]:
            if force:
                old.unlink(missing_ok=True)
            else:
                old.replace(kept_name(old))


def written(where: Path, since_ns: int) -> list[Path]:
    """Return the traces there that were written since then."""
    traces_there = map(Path, glob.glob(str(where / "*" if where.is_dir() else where)))
    return [path for path in traces_there if path.stat().st_mtime_ns >= since_ns]


def watch() -> None:
    """Record this process, which `record_all` reached and which has imported torch.

    A process that itself runs a command of overlapscope is not recorded. A fork of the recorded program is, although it
    has the modules of the command, and so is a program that `exec` put in place of the recorded one.
    """
    if os.getpid() in _recorded or ("overlapscope.commands" in sys.modules and not _recorded):
        return
    options = json.loads(os.environ[_VARIABLE])
    recording = ChildRecording(Path(options.pop("path")), Options(**options))
    recording.begin_with_torch()
    # Forked processes of multiprocessing, from a server for example, do not run Python's exit handlers.
    multiprocessing.util.Finalize(None, recording.finish, exitpriority=0)


class ChildRecording(ProgramRecording):
    """A silent recording of a process that the program started.

    It begins with the first step or use of the GPU, so helpers of the program, which do neither, leave no trace.
    """

    def __init__(self, path: Path, options: Options) -> None:
        super().__init__(path, options, lambda _: None, overwrites=True, stops=False, late=True)
        self._destination = self._destination.of_child()

    def prepare(self) -> None:
        """Create no directory, since there may be no trace."""
        self._rank = rank_of(os.environ)


class StartedProcesses:
    """Numbers of Python processes that the program starts with `multiprocessing` and `subprocess`, after `watch`.

    Helpers of torch, such as the workers of a DataLoader, do not count.
    """

    def __init__(self) -> None:
        self.count = 0
        """Number of processes that `record_all` reaches."""
        self.forked = 0
        """Number of processes that it does not reach: forks of this process after it imported torch."""

    def watch(self) -> None:
        """Begin to count processes."""
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
        # Popen reports arguments that are wrong.
        with suppress(Exception):
            command = args.split() if isinstance(args, str) else [os.fsdecode(part) for part in args]
            python = bool(command) and Path(command[0]).name.startswith("python")
            self.count += python and not any(part.startswith(_HELPERS) or "compile_worker" in part for part in command)
