"""Short recordings at regular intervals, each analyzed in another process."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.base import clock, disk
from overlapscope.base.median import median_ns
from overlapscope.base.output import tell
from overlapscope.base.words import duration, parse_size, parse_span, shorten
from overlapscope.errors import UsageError
from overlapscope.plugins.watch.analyser import GRACE_S, AnalysisTask, analyse_apart
from overlapscope.plugins.watch.protocol import RecordingRequest, RequestOutcome
from overlapscope.plugins.watch.watcher import Watcher
from overlapscope.recorder import cupti
from overlapscope.recorder.destination import rank_of
from overlapscope.recorder.options import Options
from overlapscope.recorder.step_times import StepTimer
from overlapscope.report.origin import Origin

_TIMED_STEPS: Final = 10
"""Number of steps to time without the profiler right before a recording."""
_FIRST_STEPS: Final = 20
_FIRST_NS: Final = 60_000_000_000
"""Before the first recording, the program makes `_FIRST_STEPS` steps and runs for `_FIRST_NS`: until then it compiles,
tunes and fills its caches."""
MAX_SHARE_OF_TIME: Final = 0.01
"""Maximum fraction of the program's time that recordings may take. A longer recording delays the next."""

PATIENCE_S: Final = 10.0
"""Time that the program waits for a function at its end, in seconds."""


class WatchSettings(msgspec.Struct, frozen=True):
    """Settings of continuous recording."""

    every_ns: int
    steps: int
    keep_bytes: int
    history: str
    """Place where keepers add reports (`report.origin.Keeper.place`); empty without a keeper."""
    directory: Path
    """Directory of the recordings."""
    origin: Origin
    """Origin of the program; its `at_ns` is the start."""
    log: tuple[Callable[[SentFigures], object], ...]
    """Functions that figures are sent to."""


def settings(
    every: str, *, steps: int, keep: str, job: str | None, history: str | os.PathLike[str] | None, log: object
) -> WatchSettings:
    """Return the settings for arguments of `overlapscope.watch`. Raises UsageError for arguments that make no sense."""
    from overlapscope.report.origin import keepers, origin

    try:
        every_ns, keep_bytes = parse_span(every), parse_size(keep)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    if not every_ns:
        raise UsageError("every is 0s; it must be more.")
    if steps < 1:
        raise UsageError(f"steps is {steps}; it must be 1 or more.")
    functions = tuple(log) if isinstance(log, list | tuple) else (log,)
    for function in functions:
        if not callable(function):
            raise UsageError(f"log={shorten(repr(function), 60)} is not a function that takes figures.")
    program, place, beside = origin(job), "", disk.user_folder("Application Support", "XDG_DATA_HOME", ".local/share")
    for keeper in keepers():
        place, beside = keeper.place(history)
    if history is not None and not place:
        raise UsageError("history is given, but this installation has no plugin that keeps one.")
    if beside is None:
        raise UsageError("this user has no home folder, and so no place for recordings; set HOME or XDG_DATA_HOME.")
    return WatchSettings(
        every_ns=every_ns,
        steps=steps,
        keep_bytes=keep_bytes,
        history=place,
        directory=directory_of(beside, program.job),
        origin=program,
        log=functions,
    )


class _RunningRecording(msgspec.Struct, frozen=True):
    """A recording under way."""

    directory: Path
    steps: int
    """Number of finished steps at its beginning."""
    before: StepTimer
    """Timer of the steps before it."""
    around: StepTimer
    """Timer of the recording from its beginning to its end, as a single step."""


class Continuous:
    """Records at ends of steps on their thread, and does everything else on another thread.

    Only the first of several ranks records. A recording delays its rank, and all ranks that wait for it; recordings of
    the others would cost as much again and show nearly the same. Failures never reach the program: a message reports
    each kind once.
    """

    def __init__(self, watcher: Watcher, settings: WatchSettings) -> None:
        self._watcher, self._settings = watcher, settings
        self._outlets = [Outlet(function) for function in settings.log]
        self._process = os.getpid()
        self._reported: set[str] = set()
        """Kinds of failures that were reported."""
        self._busy = False
        self._attached = False
        """True if a recording has left CUPTI attached."""
        self._analysis_thread: threading.Thread | None = None
        self._schedule = RecordingSchedule(settings.every_ns, clock.now_ns())
        # A recording that is under way when the program ends is written, and needs room.
        atexit.register(make_room, settings.directory, settings.keep_bytes)
        self.start()

    def start(self) -> None:
        """Begin, or continue after `stop`."""
        self._timer = StepTimer(_TIMED_STEPS)
        self._watcher.after_step.append(self._after_step)

    def stop(self) -> None:
        """Begin no further recordings."""
        if self._after_step in self._watcher.after_step:
            self._watcher.after_step.remove(self._after_step)

    def finish(self) -> None:
        """Stop, and wait a while for the analysis of the last recording."""
        self.stop()
        if self._analysis_thread is not None:
            self._analysis_thread.join(GRACE_S)

    def _after_step(self) -> None:
        if self._busy or not self._schedule.due(clock.now_ns(), self._watcher.steps) or os.getpid() != self._process:
            return
        rank = rank_of(os.environ)
        if rank is not None and rank.number:
            self.stop()
            return
        self._timer.step(self._watcher.steps)
        if self._timer.full:
            self._start_recording()

    def _start_recording(self) -> None:
        self._schedule.begin(clock.now_ns())
        before, self._timer = self._timer, StepTimer(_TIMED_STEPS)
        try:
            directory = begin_recording(self._settings.directory)
        except OSError as error:
            self._report_once("directory", f"no recording is made: {error}.")
            return
        running = _RunningRecording(directory, self._watcher.steps, before, StepTimer(1))
        running.around.step(running.steps)
        self._busy = True
        # The steps before it are timed already.
        options = Options(active=self._settings.steps, light=True, plain_steps=0)
        request = RecordingRequest(path=str(directory / TRACE), options=options)
        self._watcher.ask(request, lambda outcome: self._recorded(outcome, running))

    def _recorded(self, outcome: RequestOutcome, running: _RunningRecording) -> None:
        """Have a recording analysed. Called on the thread of the steps, as a rule."""
        if outcome.path is None:
            # Nobody asked for this recording, so nobody misses it when the program ends first.
            if not outcome.ended:
                self._report_once("recording", f"no recording was made: {outcome.failure}")
            shutil.rmtree(running.directory, ignore_errors=True)
            self._busy = False
            return
        steps = self._watcher.steps
        running.around.step(steps)
        usual_ns = _median_ns(running.before)
        # After a recording that leaves CUPTI attached, no step runs at its usual speed.
        plain_ns = None if self._attached else usual_ns or None
        self._attached = cupti.stays_attached()
        task = AnalysisTask(
            trace=outcome.path,
            plain_step_ns=plain_ns,
            report=str(running.directory / REPORT),
            history=self._settings.history,
            origin=replace(self._settings.origin, at_ns=time.time_ns()),
        )
        # Not a daemon thread: at its end, the program waits for it, as long as `analyse_apart` and `Outlet` allow.
        self._analysis_thread = threading.Thread(
            target=self._follow, args=(running, task, steps, usual_ns), name="overlapscope"
        )
        try:
            self._analysis_thread.start()
        except RuntimeError as error:
            self._report_once("watching", f"a recording was not analyzed: {error}.")
            self._busy = False

    def _follow(self, running: _RunningRecording, task: AnalysisTask, steps: int, usual_ns: int) -> None:
        try:
            done = analyse_apart(task)
            tidy(running.directory)
            for failure in done.failures:
                self._report_once("analysis", failure)
            if done.scalars:
                report = Path(task.report) if done.report else None
                figures = SentFigures(task.origin.job, steps, task.origin.at_ns, done.scalars, report)
                for outlet in self._outlets:
                    self._report_once(outlet.name, outlet.send(figures))
            make_room(self._settings.directory, self._settings.keep_bytes)
            self._delay_next(_median_ns(running.around) - (steps - running.steps) * usual_ns)
        except Exception as error:
            self._report_once("watching", f"a recording was lost ({type(error).__name__}: {error}).")
        finally:
            self._busy = False

    def _delay_next(self, cost_ns: int) -> None:
        """Delay the next recording by the cost of this one."""
        cost_ns = max(0, cost_ns)
        apart_ns = self._schedule.delay_by_cost(cost_ns)
        if apart_ns > self._settings.every_ns:
            self._report_once(
                "later",
                f"a recording takes {duration(cost_ns)} of the program's time; the next one comes after "
                f"{duration(apart_ns)}, so that they take less than {MAX_SHARE_OF_TIME:.0%} of it.",
            )

    def _report_once(self, kind: str, sentence: str | None) -> None:
        if sentence and kind not in self._reported:
            self._reported.add(kind)
            tell(f"overlapscope: {sentence}")


def _median_ns(timer: StepTimer) -> int:
    """Return the median by the device's clock, if present, since the host may run far ahead; 0 if nothing was timed."""
    steps = timer.read()
    lengths_ns = steps.device_ns or steps.host_ns
    return median_ns(lengths_ns) if lengths_ns else 0


class RecordingSchedule:
    """Decides when the next recording is due.

    It does not wait: callers pass the time, in nanoseconds of `base.clock`.
    """

    def __init__(self, every_ns: int, now_ns: int) -> None:
        self._every_ns = every_ns
        self.due_ns = now_ns + min(every_ns, _FIRST_NS)
        self.begun_ns = now_ns
        """Time at which the latest recording began."""

    def due(self, now_ns: int, steps: int) -> bool:
        """Return whether a recording is due in a program that has made `steps` steps."""
        return now_ns >= self.due_ns and steps >= _FIRST_STEPS

    def begin(self, now_ns: int) -> None:
        """Note that a recording begins."""
        self.begun_ns, self.due_ns = now_ns, now_ns + self._every_ns

    def delay_by_cost(self, cost_ns: int) -> int:
        """Note how much time of the program the latest recording took. Returns the time from its start to the next."""
        apart_ns = max(self._every_ns, round(cost_ns / MAX_SHARE_OF_TIME))
        self.due_ns = self.begun_ns + apart_ns
        return apart_ns


# -- Recordings on the disk: a directory for each, with its trace and its report -----------------------

TRACE, REPORT = "recording.trace.json.gz", "report.html"
_NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-\d+")
_NO_NAME = re.compile(r"[^\w.-]+")


def directory_of(folder: Path, job: str) -> Path:
    """Return the directory of a job's recordings in a folder of the user's data."""
    return folder / "watched" / (_NO_NAME.sub("-", job).strip(".-")[:100] or "job")


def begin_recording(directory: Path) -> Path:
    """Create a directory for a recording that only this user can read. Raises OSError."""
    for folder in (directory, directory.parent):
        disk.refuse_planted(folder)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    now_ms = time.time_ns() // 1_000_000
    second = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_ms // 1000))
    recording = directory / f"{second}.{now_ms % 1000:03}Z-{os.getpid()}"
    recording.mkdir(mode=0o700)
    return recording


def tidy(recording: Path) -> None:
    """Delete partial files of a process that was killed."""
    for path in recording.glob("*.part"):
        with suppress(OSError):
            path.unlink()


def make_room(directory: Path, limit_bytes: int) -> None:
    """Delete what does not fit into so many bytes. The newest stay, and of each the report before the trace.

    Only what `begin_recording` made is looked at. What cannot be deleted stays.
    """
    free_bytes = limit_bytes
    named = (path for path in directory.glob("*") if _NAME.fullmatch(path.name))
    for recording in sorted(named, key=lambda path: path.name, reverse=True):
        if recording.is_symlink() or not recording.is_dir():
            continue
        for path in sorted(recording.glob("*"), key=lambda path: (path.name != REPORT, path.name)):
            with suppress(OSError):
                size = path.lstat().st_size
                if size > free_bytes:
                    path.unlink()
                else:
                    free_bytes -= size
        # Only where it is empty.
        with suppress(OSError):
            recording.rmdir()


# -- Functions of the program that figures of recordings are sent to ---


class SentFigures(msgspec.Struct, frozen=True):
    """Figures of a recording."""

    program: str
    step: int
    """Number of steps that the program had made."""
    at_ns: int
    """Time of the recording, in nanoseconds since 1970 (UTC)."""
    scalars: Mapping[str, float]
    """Figures (`analyser.scalars`), such as `efficiency_pct` and `idle_ms`."""
    report: Path | None
    """Report as an HTML file."""


class Outlet:
    """A function that takes figures, and does not delay the program if it takes too long or raises."""

    def __init__(self, function: Callable[[SentFigures], object]) -> None:
        self.name: str = getattr(function, "__qualname__", type(function).__name__)
        self._function = function
        self._thread: threading.Thread | None = None
        self._failure: str | None = None

    def send(self, figures: SentFigures) -> str | None:
        """Send, and wait for at most `PATIENCE_S`. Returns a sentence if this fails or takes longer."""
        if self._thread is None or not self._thread.is_alive():
            self._failure = None
            self._thread = threading.Thread(target=self._run, args=(figures,), name="overlapscope", daemon=True)
            self._thread.start()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            return f"{self.name} did not take the figures within {PATIENCE_S:.0f} s; the program does not wait for it."
        return self._failure

    def _run(self, figures: SentFigures) -> None:
        try:
            self._function(figures)
        except Exception as error:
            self._failure = f"figures did not reach {self.name} ({type(error).__name__}: {error})."
