"""`overlapscope.record`: records a part of a program into a trace file."""

from __future__ import annotations

import atexit
import contextlib
import enum
import functools
import inspect
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from overlapscope.base.words import clean
from overlapscope.errors import OverlapscopeError, RecordingFailed, UsageError
from overlapscope.recorder import cupti, devices
from overlapscope.recorder.automatic_steps import MARKS, AutomaticSteps
from overlapscope.recorder.destination import (
    Destination,
    Rank,
    rank_by_launcher,
    rank_of,
    remove_former_ranks,
    window_path,
)
from overlapscope.recorder.driver import Driver
from overlapscope.recorder.memory_guard import taken_bytes
from overlapscope.recorder.program_profilers import IgnoredProfilers, OwnProfiler
from overlapscope.recorder.recorder import Recorder
from overlapscope.recorder.schedule import Schedule
from overlapscope.recorder.session import Options, profiler_running
from overlapscope.recorder.step_times import StepTimes
from overlapscope.recorder.torch_import import require_torch

if TYPE_CHECKING:
    from overlapscope.recorder.hazards import Hazard, HazardChecker

_ELSEWHERE = (
    "Steps were marked on a different thread from the one that started the recording, so they do not count; mark "
    "them on that thread."
)

_CHECKED = "Data races were checked until the recording was complete; a larger --active checks longer."

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_MAX_SIZE_BYTES = 1 << 30
DEFAULT_PLAIN_STEPS = 10
_UNTIMED = (
    "No plain steps were timed: with CUDA 12 and older, or TEARDOWN_CUPTI=0, CUPTI stays attached after a "
    "recording and slows the program. Pass the step time without the profiler as --plain-step."
)
_UNGUARDED = (
    "This system does not report how much memory events take, so --max-size has no effect (it needs glibc 2.33)."
)


class _Marks(enum.IntEnum):
    """Who says where a step ends. The last of them that does is believed."""

    NOBODY = 0
    """Something that the program does again and again ends it."""
    PROFILER = 1
    PROGRAM = 2


_SOURCES = {_Marks.PROFILER: "profiler.step()", _Marks.PROGRAM: "overlapscope.step()"}


class Recording:
    """Records what runs inside it with torch.profiler, and writes the trace when that ends.

        with overlapscope.record("x.trace.json.gz") as rec:
            for batch in loader:
                train(batch)
                rec.step()

    As a decorator it records each call of the function anew; `overlapscope.step()` marks the steps there. A program
    without steps is recorded as a whole. Otherwise the first `wait` steps are left out, the next `warmup` are
    recorded and marked as not to be judged, and after `active` more (None: all that follow) the trace is written at
    once and the program goes on unprofiled. When the warm-up opens the devices have caught up, so that the trace
    has no lead-in, and the pipeline fills before the first judged step.

    So many `plain_steps` are timed right before that recording and right behind it, while nothing is recorded
    (0: none). Before all that the program's first steps are recorded in a rehearsal, which is what there is of a
    program that makes too few (`schedule`). With `check_hazards`, which slows every step, none are timed.

    Instead of by steps a window of `duration_s` seconds (None: until the end) can open `delay_s` after the start; or
    with a range of the program named `capture_range`, until that is left (`"cudaProfilerApi"`: between the two calls
    of the CUDA runtime). With `slow_step` steps are recorded all the time and thrown away, until one takes over so many
    times the median. There are `repeat` windows, with a file for each.

    `stacks`, `shapes` and `memory` record the Python stack, the shapes of inputs and every allocation too; `light`
    leaves out PyTorch's ops, and slows the program less.
    `max_size_bytes` bounds the memory that events may take while they are recorded (see `memory_guard`); past it
    the recording ends early. `check_hazards` looks for data races as well, until the active steps are over, else until
    `end`. `stacks` are not recorded in a rehearsal that waits for steps (`Recorder`).

    A torch.profiler that the program starts meanwhile takes precedence, and its trace is the recording
    (`program_profilers`); with `ignore_own_profiler` it records nothing.
    """

    _overwrites = True
    """Whether a file that is there already is replaced."""
    _finds_steps = True
    """Whether steps may end where nobody marks them."""
    _whole_program = False
    """Whether the program ends with the recording, and need know nothing of it. Then it starts only when CUDA is
    initialised or a step ends, where there is a GPU (`devices.cuda_may_come_up`): a program that does neither is not
    recorded. And a profiler of the program's that runs at the end is stopped."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        wait: int = 0,
        warmup: int = 1,
        active: int | None = None,
        plain_steps: int = DEFAULT_PLAIN_STEPS,
        delay_s: float | None = None,
        duration_s: float | None = None,
        capture_range: str | None = None,
        slow_step: float | None = None,
        repeat: int = 1,
        stacks: bool = False,
        shapes: bool = False,
        memory: bool = False,
        light: bool = False,
        max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES,
        check_hazards: bool = False,
        ignore_own_profiler: bool = False,
        steps_by: str | None = None,
    ) -> None:
        """`steps_by` says what a step is: `marks`, `optimizer`, `backward`, `forward`, `loader`, `graph`, or the name
        of a call or range; by default marks, or else the first of these that repeats.

        Raises UsageError for numbers, file names and options that make no sense.
        """
        self._destination = Destination.asked(path)
        self._rank: Rank | None = None
        self._marked_by: _Marks | None = None
        """Who marks the ends of steps."""
        self._automatic = AutomaticSteps(
            lambda: self._mark(_Marks.NOBODY),
            self._steps_changed,
            by=steps_by if self._finds_steps else MARKS,
            at_once=self._whole_program,
        )
        self._steps_by = steps_by
        self._stepped = self._stepped_elsewhere = False
        """Whether ends of steps were marked by the thread that began, and by others."""
        if max_size_bytes <= 0:
            raise UsageError(f"max_size_bytes is {max_size_bytes}; it must be more than 0.")
        # Steps around a slow one say nothing of it.
        plain = 0 if check_hazards or slow_step is not None else plain_steps
        self._schedule = Schedule(wait, warmup, active, plain, delay_s, duration_s, capture_range, slow_step, repeat)
        # With no last step, the whole program was asked for.
        self._bounded = self._whole_program and self._schedule.at_once and active is not None
        self._driver = Driver(self._schedule, bounded=self._bounded, worked=self._worked)
        self._options = Options(stacks=stacks, shapes=shapes, memory=memory, light=light)
        self._max_size_bytes = max_size_bytes
        self._check_hazards = check_hazards
        self._ignore_own_profiler = ignore_own_profiler
        self._profilers = self._for_profilers(ignore=ignore_own_profiler)
        self._ended = False
        self._checker: HazardChecker | None = None
        self._remarks: tuple[str, ...] = ()
        """What this system cannot do."""
        self._told = 0
        """Of so many files was said that they are there."""

    def _for_profilers(self, *, ignore: bool) -> OwnProfiler | IgnoredProfilers:
        """Return what sees to the program's own profilers."""
        if ignore:
            return IgnoredProfilers(self._profiler_stepped)
        return OwnProfiler(self._driver.give_way, self._driver.working)

    @property
    def _recorder(self) -> Recorder | None:
        return self._driver.recorder

    @property
    def path(self) -> Path:
        """The trace file, absolute, this rank's own where there are several, as far as that is known by now; of several
        windows the last that was written.
        """
        return self.paths[-1] if self.paths else self._destination.path(self._rank or rank_of(os.environ))

    @property
    def job(self) -> Path:
        """The trace files of all ranks: a directory or a glob pattern."""
        pattern = self._destination.pattern_of_ranks()
        if pattern is None:
            return self.path.parent
        return window_path(pattern, len(self.paths)) if self._schedule.repeat > 1 else pattern

    @property
    def may_be_elsewhere(self) -> bool:
        """Whether processes which the program starts may do its work: it marks no steps, or has ranks of which no
        launcher told.
        """
        return not self._stepped or (self._rank is not None and rank_by_launcher(os.environ) is None)

    @property
    def rank(self) -> int | None:
        """This process's rank, where there are several."""
        return None if self._rank is None else self._rank.number

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that were written so far: of several windows one each, numbered from 1."""
        return () if self._recorder is None else self._recorder.paths

    @property
    def finished(self) -> bool:
        """Nothing is recorded any more: it was ended, or the active steps are over, or memory ran short.

        Steps may still be timed, which `end` adds to the trace.
        """
        return self._recorder is not None and not self._recorder.running

    @property
    def step_times(self) -> StepTimes | None:
        """How long steps took, recorded and not; None before it has begun."""
        return None if self._recorder is None else self._recorder.step_times

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences worth telling the person about this recording."""
        checked = () if self._checker is None else self._checker.notes
        elsewhere = _ELSEWHERE if self._stepped_elsewhere and not self._stepped else None
        notes = (
            *self._driver.late,
            elsewhere,
            *self._remarks,
            self._driver.gave_way,
            self._profilers.note,
            self._automatic.note,
            *checked,
        )
        return () if self._recorder is None else (*self._recorder.notes, *filter(None, notes))

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """The data races found so far, with `check_hazards`."""
        return () if self._checker is None else self._checker.hazards

    def prepare(self) -> None:
        """See to it, as `begin` does, that the file can be written. Raises UsageError where not."""
        self._rank = rank_of(os.environ)
        self._destination.prepare(self.path)

    def begin(self) -> None:
        """Start recording.

        Raises UsageError where something else records already, the file cannot be written or this recording was
        made before, MissingPackage without torch, RecordingFailed where the profiler does not start.
        """
        require_torch()
        self._check_free()
        self.prepare()
        schedule = self._schedule
        if schedule.plain_steps and cupti.stays_attached():
            schedule = replace(schedule, plain_steps=0)
            self._remarks += (_UNTIMED,)
        if self._max_size_bytes != DEFAULT_MAX_SIZE_BYTES and taken_bytes() is None:
            self._remarks += (_UNGUARDED,)
        recorder = Recorder(
            self._file_to_write,
            schedule,
            self._options,
            since_ns=time.time_ns() if self._overwrites else 0,
            bounded=self._bounded,
            max_size_bytes=self._max_size_bytes,
            on_too_much=self._driver.interrupt,
            step_source=lambda: self.step_source,
            steps_are_settled=lambda: self._automatic.settled,
        )
        with self._driver.working(), contextlib.ExitStack() as undo:
            if self._check_hazards:
                from overlapscope.recorder.hazards import HazardChecker

                self._checker = HazardChecker()
                self._checker.start()
                undo.callback(self._checker.stop)
            self._driver.begin(recorder, put_off=self._begins_late())
            undo.pop_all()
            self._profilers.start(self._destination.path(self._rank))
            self._automatic.start()
            _under_way.append(self)
            # A program that dies without `end` still leaves its trace.
            atexit.register(self._at_exit)

    def step(self) -> None:
        """Mark the end of a step. Ignored on another thread than the one that began, while a CUDA graph is
        captured, and once nothing is recorded or timed any more.
        """
        _tell_of_step()
        self._mark(_Marks.PROGRAM)

    @property
    def step_source(self) -> str | None:
        """What ends steps, in words."""
        marks = self._marked_by
        return None if marks is None else _SOURCES.get(marks, self._automatic.label)

    def _mark(self, marks: _Marks) -> None:
        chosen = self._steps_by not in (None, MARKS)
        if (self._marked_by or 0) > marks or (chosen and marks > _Marks.NOBODY):
            return
        may_move = marks is _Marks.NOBODY or self._whole_program
        if not self._driver.on_this_thread and not (may_move and self._driver.move_here()):
            self._stepped_elsewhere = True
            return
        before, self._marked_by = self._marked_by, marks
        if before != marks and marks > _Marks.NOBODY:
            self._automatic.stop()
            if before is not None:
                # The end of this very step.
                return
        self._step()

    def _steps_changed(self) -> None:
        if self._recorder is not None:
            self._recorder.steps_changed()
            if not self._driver.on_this_thread:
                self._driver.move_here(again=True)

    def _step(self) -> None:
        recorder = self._driver.ready
        if recorder is not None:
            with self._driver.working():
                if not self._stepped:
                    # By now the processes of a program that starts them itself have been told their ranks.
                    self._rank, self._stepped = self._rank or rank_of(os.environ), True
                self._driver.step(recorder)
                done = self._schedule.by_steps and recorder.complete and recorder.failure is None
                if self._checker is not None and done and not self._driver.gave_way:
                    # It slows every operator. Elsewhere than here, it may be in the middle of one.
                    self._checker.stop()
                    self._remarks += (_CHECKED,)

    def end(self) -> None:
        """Stop recording and write the trace, unless that is done, and add the steps that were timed since.

        In a forked child it does nothing.

        Raises UsageError on another thread than the one that began, RecordingFailed where the trace could not be
        written.
        """
        recorder = self._recorder
        if recorder is None or self._ended or not self._driver.in_this_process:
            return
        if not self._driver.move_back():
            raise UsageError("a recording must be ended on the thread that began it; call end() there.")
        with self._driver.working():
            self._profilers.finish(stop=self._whole_program)
            recorder.finish()
            self._leave()
        self._tell_ending()
        if self._profilers.failure is not None:
            self._driver.gave_way = None
            raise RecordingFailed(self._profilers.failure)
        if recorder.failure is not None:
            raise recorder.failure

    def _tell_ending(self) -> None:
        if self._speaks:
            for note in self.notes:
                self._tell(note)

    def _worked(self) -> None:
        """Say at once that there is a trace: the program may never come to its end."""
        recorder = self._recorder
        if recorder is None:
            return
        if not recorder.wants_steps:
            self._need_no_steps()
        elif recorder.counts:
            self._automatic.keep()
        written = (*recorder.paths, *self._profilers.paths)
        for path in written[self._told :]:
            self._tell_file(path)
        self._told = len(written)

    def _need_no_steps(self) -> None:
        """Nothing is recorded or timed any more."""
        self._automatic.stop()

    def _tell_file(self, path: Path) -> None:
        shown = self.shown(path)
        if self._speaks:
            self._tell(f"wrote {shown}, analyze with `overlapscope analyze {shlex.quote(str(shown))}`")

    def shown(self, path: Path) -> Path:
        """An absolute path as the person would write it."""
        return self._destination.shown(path)

    @property
    def _speaks(self) -> bool:
        """Of several ranks the first speaks for all."""
        return not self.rank

    def _tell(self, sentence: str) -> None:
        """To the person, not to the program: on stderr."""
        # The program may have put something else in its place, or closed it.
        with contextlib.suppress(Exception):
            print(f"overlapscope: {clean(sentence)}", file=sys.stderr, flush=True)

    def end_after(self, error: BaseException) -> None:
        """`end`, where the program is failing: its own exception matters more, and is told of a failure here."""
        try:
            self.end()
        except OverlapscopeError as failure:
            error.add_note(f"overlapscope: {failure}")

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.end()
        else:
            self.end_after(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
        if any(is_kind(function) for is_kind in kinds):
            raise UsageError(f"{function.__qualname__} returns before it has run; use `with` inside it instead.")

        @functools.wraps(function)
        def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._another():
                return function(*args, **kwargs)

        return recorded

    def _profiler_stepped(self) -> None:
        """The program told its own profiler, which is ignored, that a step ended."""
        self._mark(_Marks.PROFILER)

    def _begins_late(self) -> bool:
        """Whether to wait for the first use of the GPU or the end of the first step."""
        return self._whole_program and devices.cuda_may_come_up()

    def _file_to_write(self) -> Path:
        self._rank = self._rank or rank_of(os.environ)
        path = self._destination.path(self._rank)
        self._destination.make_directories(path)
        if self._rank is not None and self._overwrites:
            remove_former_ranks(path, self._rank)
        return path

    def _at_exit(self) -> None:
        try:
            self.end()
        except OverlapscopeError as failure:
            self._tell(str(failure))

    def _check_free(self) -> None:
        if self._driver.has_begun:
            raise UsageError("this recording has ended already; make another one with overlapscope.record(...).")
        if (other := current()) is not None:
            other._make_way(self)
        if profiler_running():
            raise UsageError("another torch profiler is running, and only one can run at a time; remove one of them.")

    def _make_way(self, other: Recording) -> None:
        """`other` is to begin while this one is under way. Raises UsageError."""
        raise UsageError(
            f"{self.shown(self.path)} is being recorded; end that recording first, there can be one at a time."
        )

    def _leave(self) -> None:
        self._ended = True
        if self._checker is not None:
            self._checker.stop()
        self._profilers.stop()
        self._automatic.stop()
        _under_way.remove(self)
        atexit.unregister(self._at_exit)

    def _another(self) -> Recording:
        """The same, not yet begun."""
        return Recording(self._destination.as_asked, **self._asked)

    def __reduce__(self) -> tuple[Callable[..., Recording], tuple[Path]]:
        """What reaches another process is the same, not yet begun."""
        return functools.partial(Recording, **self._asked), (self._destination.as_asked,)

    @property
    def _asked(self) -> dict[str, Any]:
        return {
            **asdict(self._schedule),
            **asdict(self._options),
            "max_size_bytes": self._max_size_bytes,
            "check_hazards": self._check_hazards,
            "ignore_own_profiler": self._ignore_own_profiler,
            "steps_by": self._steps_by,
        }


_under_way: list[Recording] = []
"""At most one: it has begun and not ended."""


step_listeners: list[Callable[[], None]] = []
"""Called at the end of each step that the program marks, whether it is recorded or not."""


def current() -> Recording | None:
    """The recording of this process that is under way."""
    return _under_way[0] if _under_way else None


def step() -> None:
    """Mark the end of a step of the recording under way."""
    if _under_way:
        _under_way[0].step()
    else:
        _tell_of_step()


def _tell_of_step() -> None:
    for listener in step_listeners:
        listener()


class SilentRecording(Recording):
    """One that somebody else tells of."""

    _finds_steps = False

    def _tell(self, sentence: str) -> None:
        pass
