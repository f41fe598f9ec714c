"""Recording a whole program that need not know of it, and processes that it starts, as `overlapscope run` does.

Such processes are counted, or recorded as well: each once it has imported torch (`at_import`).
"""

from __future__ import annotations

import glob
import json
import math
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from overlapscope.errors import OverlapscopeError
from overlapscope.recorder import at_import, devices, trace_file
from overlapscope.recorder.destination import Destination, kept_name, rank_of
from overlapscope.recorder.imports import when_torch_is_imported
from overlapscope.recorder.main_thread import Interruption, Wake, held
from overlapscope.recorder.options import Options
from overlapscope.recorder.program_profilers import unpack
from overlapscope.recorder.recorder import SETTLES_S
from overlapscope.recorder.recording import Recording
from overlapscope.recorder.script import stop_program
from overlapscope.recorder.session import Session
from overlapscope.recorder.states import State
from overlapscope.recorder.wrapping import before

_OWN_RECORDING = "The program made a recording of its own with overlapscope.record; this is a copy of it."


_PAUSE_S = 20
"""Time after the last recording of the program's own profiler until the report is due, in seconds."""
_SAMPLES_S = 15
"""Time from the last step timed until the report is due without samples of the host, in seconds."""
_REPEATS_S = 60
"""Time from the decision to record again until the report of the first recording is due, in seconds."""


class ProgramRecording(Recording):
    """A recording that begins once the program has imported torch, and gives way to the program's own recordings.

    If the program trains on another thread than the main one, the recording moves there with the first step.
    """

    _whole_program = True  # The program may not have chosen its GPUs yet, or fork before it uses them.

    def __init__(
        self,
        path: Path,
        options: Options,
        *,
        overwrites: bool,
        stops: bool,
        late: bool = False,
    ) -> None:
        """Prepare a recording.

        Args:
            path: Trace file.
            options: Options of the recording.
            overwrites: Whether to replace a file that exists.
            stops: Whether to end the program when its recording is complete.
            late: Whether to wait for a step or the first use of a GPU even if there is no GPU.
        """
        super().__init__(path, options)
        self._overwrites, self._stops, self._late = overwrites, stops, late
        self.failure: str | None = None
        """Sentence on why the trace is missing; None otherwise."""
        self._in_process = os.getpid()
        self._begin_on_main_thread, self._wake = Interruption(self._try_to_begin), Wake()
        self._own_recording: tuple[Recording, Path] | None = None
        """The program's first own recording, and its file."""
        self._copied = False
        """True if `_own_recording` was copied to `path`."""

    @property
    def in_forked_child(self) -> bool:
        """True if this process is a fork of the program that is recorded."""
        return os.getpid() != self._in_process

    def begin_with_torch(self) -> None:
        """Begin as soon as the program has imported torch, even while its main thread waits."""
        self._wake.start()
        when_torch_is_imported(self._on_torch)

    @property
    def report_after_s(self) -> float | None:
        """Time until a report is due if nothing changes until then, in seconds; None without a trace to report on.

        It is infinite if something may be added to the trace until the program ends.
        """
        recorder = self._recorder
        if self._profilers.paths and self._own_recording is None:
            return _PAUSE_S
        if recorder is None or self._own_recording is not None or self._driver.gave_way:
            return None
        if recorder.bounded_out or (recorder.complete and self.paths):
            return 0
        if recorder.state is State.SAMPLING:
            return _SAMPLES_S
        if recorder.state is State.SETTLING:
            return SETTLES_S
        if recorder.repeating:
            return _REPEATS_S
        return math.inf if recorder.written else None

    @property
    def unwritten(self) -> bool:
        """True if this recording is under way, and nothing is written yet."""
        given_up = self._own_recording is not None or self._driver.gave_way
        return self._recorder is not None and not given_up and self.report_after_s is None

    @property
    def traces(self) -> tuple[Path, ...]:
        """Files to analyze: the last window, or all recordings of the program's own profiler."""
        return self._profilers.paths or (self.path,)

    def begin(self) -> None:
        super().begin()
        self._changed()

    def finish(self, *, died: bool = False) -> bool:
        """End the recording.

        Args:
            died: Whether an exception ended the program. A trace of such a program without a step or use of a GPU is
                not written, since it would be in the way of the next recording.

        Returns:
            Whether there is a trace. In a forked child there never is.
        """
        if self._recorder is None or self.in_forked_child:
            return False

        def why_worthless(session: Session) -> str | None:
            if len(devices.activities(cuda=devices.cuda_is_up())) > 1:
                return None
            return "died of an exception" if died else "ran no op" if session.empty else None

        self._recorder.why_worthless = why_worthless
        try:
            with held():
                if self._own_recording is not None:
                    self._own_recording[0].end()
                self.end()
                self._copy_own_recording()
        except OverlapscopeError as failure:
            self.failure = str(failure)
        recorded = bool(self.paths) and not self._driver.gave_way
        return self.failure is None and (recorded or bool(self._profilers.paths) or self._copied)

    def _on_torch(self) -> None:
        if self.in_forked_child:
            return
        if threading.current_thread() is threading.main_thread():
            self._try_to_begin()
        else:
            self._begin_on_main_thread.request()
            self._wake.wake()

    def _try_to_begin(self) -> None:
        self._wake.stop()
        try:
            self.begin()
        except OverlapscopeError as failure:
            self.failure = str(failure)

    def _step(self) -> None:
        super()._step()
        if self._stops and self._recorder is not None and not self._recorder.wants_steps and not self._driver.gave_way:
            self._stops = False
            stop_program()

    def _changed(self) -> None:
        """Take note that the recording has begun, or that `report_after_s` may have changed."""

    def _make_way(self, other: Recording) -> None:
        if self._driver.give_way(_OWN_RECORDING):
            self._own_recording = other, other.path

    def _copy_own_recording(self) -> None:
        if self._own_recording is None:
            return
        if self._own_recording[1] != self.path:
            self._announce(trace_file.write(partial(unpack, self._own_recording[1]), self._file_to_write()).path)
        self._copied = True

    def _worked(self) -> None:
        super()._worked()
        self._changed()


# -- Processes that the program starts ---------------------------------------------------------------


_FILE = re.compile(r"(rank|pid)\d+\.trace\.json(\.gz)?")
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
    os.environ[at_import.CALL] = f"{__name__}:watch {json.dumps({'path': str(path), **asdict(options)})}"


def child_traces(path: Path) -> Path:
    """Return where such processes write their traces if the user names `path`: a directory or a glob pattern."""
    destination = Destination.for_path(path).of_child()
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


def watch(text: str) -> None:
    """Record this process, which `record_all` reached and which has imported torch, for options in JSON.

    A process that itself runs a command of overlapscope is not recorded. A fork of the recorded program is, although it
    has the modules of the command, and so is a program that `exec` put in place of the recorded one.
    """
    if os.getpid() in _recorded or ("overlapscope.commands" in sys.modules and not _recorded):
        return
    options = json.loads(text)
    recording = ChildRecording(Path(options.pop("path")), Options(**options))
    recording.begin_with_torch()
    # Forked processes of multiprocessing, from a server for example, do not run Python's exit handlers.
    multiprocessing.util.Finalize(None, recording.finish, exitpriority=0)


class ChildRecording(ProgramRecording):
    """A silent recording of a process that the program started.

    It begins with the first step or use of the GPU, so helpers of the program, which do neither, leave no trace.
    """

    def __init__(self, path: Path, options: Options) -> None:
        super().__init__(path, options, overwrites=True, stops=False, late=True)
        self._destination = self._destination.of_child()

    def _tell(self, sentence: str) -> None:
        pass

    def prepare(self) -> None:
        """Create no directory, since there may be no trace."""
        self._rank = rank_of(os.environ)


class StartedProcesses:
    """Numbers of Python processes that the program starts or forks after `watch`.

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
        if hasattr(os, "fork"):
            before(os, "fork", self._on_fork)
        before(subprocess.Popen, "__init__", self._on_command)

    def _on_process(self, process: Any, *args: Any, **options: Any) -> None:
        target = getattr(process, "_target", None)
        helps = str(getattr(target, "__module__", "")).startswith(_HELPERS)
        method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
        if method != "fork" or "torch" not in sys.modules:
            self.count += not helps
        elif helps:
            # Starting it forks.
            self.forked -= 1

    def _on_fork(self) -> None:
        self.forked += "torch" in sys.modules

    def _on_command(self, popen: object, args: Any = (), *more: Any, **options: Any) -> None:
        # Popen reports arguments that are wrong.
        with suppress(Exception):
            command = args.split() if isinstance(args, str) else [os.fsdecode(part) for part in args]
            python = bool(command) and Path(command[0]).name.startswith("python")
            self.count += python and not any(part.startswith(_HELPERS) or "compile_worker" in part for part in command)
