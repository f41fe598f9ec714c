"""`overlapscope.record`: recording a part of a program into a trace file."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from overlapscope.base.registry import load
from overlapscope.base.words import clean
from overlapscope.errors import OverlapscopeError, RecordingFailed, UsageError
from overlapscope.plugin import Observer, observers
from overlapscope.recorder import cupti, devices
from overlapscope.recorder.automatic_steps import MARKS, step_listeners
from overlapscope.recorder.destination import Destination, Rank, rank_by_launcher, rank_of, remove_former_ranks
from overlapscope.recorder.driver import Driver
from overlapscope.recorder.imports import require_torch
from overlapscope.recorder.memory_guard import taken_bytes
from overlapscope.recorder.options import DEFAULT_MAX_SIZE_BYTES, Options, with_keywords
from overlapscope.recorder.program_profilers import OwnProfiler
from overlapscope.recorder.recorder import WindowRecorder
from overlapscope.recorder.session import profiler_running
from overlapscope.recorder.states import State
from overlapscope.recorder.step_times import StepTimings

_ELSEWHERE = (
    "Steps were marked on a different thread from the one that started the recording, so they do not count; mark "
    "them on that thread."
)

Function = TypeVar("Function", bound=Callable[..., Any])

_UNTIMED = (
    "No plain steps were timed: with CUDA 12 and older, or TEARDOWN_CUPTI=0, CUPTI stays attached after a "
    "recording and slows the program. Pass the step time without the profiler as --plain-step."
)
_UNGUARDED = (
    "This system does not report how much memory events take, so --max-size has no effect (it needs glibc 2.33)."
)


class Recording(contextlib.ContextDecorator):
    """Records what runs inside it with torch.profiler, and writes the trace.

        with overlapscope.record("x.trace.json.gz") as rec:
            for batch in loader:
                train(batch)
                rec.step()

    As a decorator, it records each call of the function anew, and `overlapscope.step()` marks the steps there. The
    keyword arguments of `record` are the fields of `overlapscope.recorder.options.Options`.

    A program without steps is recorded as a whole. Otherwise the first `wait` steps are skipped, the next `warmup` are
    recorded but not judged, and after `active` more the trace is written and the program goes on without the
    profiler. The devices are idle when the warm-up begins, so the trace has no lead-in, and the pipeline fills before
    the first judged step. Before all that, a rehearsal records the program's first steps; it is the result for a
    program that makes too few steps (`options`).

    A torch.profiler that the program starts meanwhile takes precedence, and its trace is the recording
    (`program_profilers`).
    """

    _overwrites = True
    """True to replace a file that exists."""
    _finds_steps = True
    """True if calls that the program repeats may end steps."""
    _whole_program = False
    """True if the recording ends with the program, which need not know of it.

    Such a recording starts only when CUDA is initialized or a step ends, if there is a GPU
    (`devices.cuda_may_come_up`): a program that does neither is not recorded. A profiler of the program that still runs
    at the end is stopped.
    """
    _late = False
    """True to wait for a step or the first use of a GPU even if there is no GPU; only of a whole program."""
    _stops = False
    """True to end the program when the recording is complete; only of a whole program."""

    def __init__(self, path: str | os.PathLike[str], options: Options) -> None:
        """Prepare a recording. Raises UsageError for a file name that no trace can have."""
        self.options = options
        self._destination = Destination.for_path(path)
        self._rank: Rank | None = None
        # With no last step, the user asked for the whole program.
        self._bounded = self._whole_program and options.at_once and options.active is not None
        self._driver = Driver(
            options,
            bounded=self._bounded,
            by=options.steps_by if self._finds_steps else MARKS,
            whole_program=self._whole_program,
            step=self._step,
            worked=self._worked,
        )
        self._profilers = OwnProfiler(self._driver.give_way, self._driver.working)
        self._ended = False
        self.observers: dict[str, Observer] = {}
        """Observers of the program, by the names of their plugins."""
        self._remarks: tuple[str, ...] = ()
        """Sentences on what this system cannot do."""
        self._announced = 0
        """Number of files that the user knows of."""

    @property
    def _recorder(self) -> WindowRecorder | None:
        return self._driver.recorder

    @property
    def path(self) -> Path:
        """Absolute path of this rank's trace file."""
        return self.paths[-1] if self.paths else self._destination.path(self._rank or rank_of(os.environ))

    @property
    def job(self) -> Path:
        """Trace files of all ranks: a directory or a glob pattern."""
        return self._destination.pattern_of_ranks() or self.path.parent

    @property
    def may_be_elsewhere(self) -> bool:
        """True if processes that the program starts may do its work.

        They may if it marks no steps, or if it has ranks that no launcher started.
        """
        stepped = self._recorder is not None and self._recorder.marked
        return not stepped or (self._rank is not None and rank_by_launcher(os.environ) is None)

    @property
    def rank(self) -> int | None:
        """This process's rank; None if it is the only one."""
        return None if self._rank is None else self._rank.number

    @property
    def paths(self) -> tuple[Path, ...]:
        """The file, once it is written."""
        return () if self._recorder is None else self._recorder.paths

    @property
    def finished(self) -> bool:
        """True if nothing is recorded any more.

        Steps may still be timed, which `end` adds to the trace.
        """
        return self._recorder is not None and not self._recorder.running

    @property
    def step_times(self) -> StepTimings | None:
        """Lengths of steps with and without the profiler; None before the recording has begun."""
        return None if self._recorder is None else self._recorder.step_times

    @property
    def all_steps(self) -> str | None:
        """A sentence on all steps of the program without the profiler; None if they were not clocked."""
        return None if self._recorder is None else self._recorder.all_steps

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user about this recording."""
        if self._recorder is None:
            return ()
        notes = (
            *self._recorder.notes,
            *(self._driver.trigger.notes if self._driver.trigger else ()),
            _ELSEWHERE if self._driver.elsewhere and not self._recorder.marked else None,
            *self._remarks,
            self._driver.gave_way,
            self._profilers.note,
            self._driver.automatic.note,
            *(note for observer in self.observers.values() for note in observer.notes),
        )
        return tuple(filter(None, notes))

    def prepare(self) -> None:
        """Check that the file can be written, as `begin` does. Raises UsageError if it cannot."""
        self._rank = rank_of(os.environ)
        self._destination.prepare(self.path)

    def begin(self) -> None:
        """Start recording.

        Raises:
            UsageError: Something else records already, the file cannot be written, or this recording was made before.
            MissingPackage: torch is not installed.
            RecordingFailed: The profiler does not start.
        """
        require_torch()
        self._check_free()
        self.prepare()
        options = self.options
        if options.plain_steps and cupti.stays_attached():
            options = replace(options, plain_steps=0)
            self._remarks += (_UNTIMED,)
        if options.max_size_bytes != DEFAULT_MAX_SIZE_BYTES and taken_bytes() is None:
            self._remarks += (_UNGUARDED,)
        recorder = WindowRecorder(
            self._file_to_write,
            options,
            since_ns=time.time_ns() if self._overwrites else 0,
            bounded=self._bounded,
            on_too_much=self._driver.interrupt,
            step_source=lambda: self.step_source,
            steps_are_settled=lambda: self._driver.automatic.settled,
            records_again=self._bounded and not self._stops,
        )
        with self._driver.working(), contextlib.ExitStack() as undo:
            for name in options.observers:
                self.observers[name] = observer = load(observers()[name].place)()
                observer.start()
                undo.callback(observer.stop)
            late = self._whole_program and (self._late or devices.cuda_may_come_up())
            self._driver.begin(recorder, put_off=late)
            undo.callback(recorder.handle, "discard")
            self._profilers.start(self._destination.path(self._rank))
            undo.callback(self._profilers.stop)
            self._driver.automatic.start()
            undo.pop_all()
            _under_way.append(self)
            # A program that dies without calling `end` still leaves its trace.
            atexit.register(self._at_exit)

    def step(self) -> None:
        """Mark the end of a step.

        This does nothing on threads other than the recording's, while a CUDA graph is captured, and once nothing is
        recorded or timed any more.
        """
        for listener in step_listeners:
            listener()
        self._driver.mark(by_program=True)

    @property
    def step_source(self) -> str | None:
        """Description of what ends steps; None before the first."""
        return self._driver.source

    def _step(self) -> None:
        recorder = self._driver.ready
        if recorder is not None and recorder.state is State.CLOCKING:
            recorder.handle("step")
        elif recorder is not None:
            with self._driver.working():
                if not recorder.marked:
                    # By now, a program that starts its ranks itself has assigned them.
                    self._rank = self._rank or rank_of(os.environ)
                recorder.handle("step")
                self._driver.advance(recorder)
                done = not self.options.by_clock and recorder.complete and recorder.failure is None
                if done and not self._driver.gave_way:
                    # They slow every operator. Here, no operator is under way.
                    self._stop_observers(early=True)

    def end(self) -> None:
        """Stop recording, write the trace unless that is done, and add the steps that were timed since.

        In a forked child this does nothing.

        Raises:
            UsageError: Another thread began the recording.
            RecordingFailed: The trace could not be written.
        """
        recorder = self._recorder
        if recorder is None or self._ended or not self._driver.in_this_process:
            return
        if not self._driver.move_back():
            raise UsageError("a recording must be ended on the thread that began it; call end() there.")
        with self._driver.working():
            self._profilers.finish(stop=self._whole_program)
            recorder.handle("end")
            self._leave()
            counts = {name: observer.count for name, observer in self.observers.items()}
            recorder.add_found({name: count for name, count in counts.items() if count is not None})
        # `overlapscope run` shows those of a whole program.
        if self._prints_messages and not self._whole_program:
            for note in self.notes:
                self._tell(note)
        if self._profilers.failure is not None:
            self._driver.gave_way = None
            raise RecordingFailed(self._profilers.failure)
        if recorder.failure is not None:
            raise recorder.failure

    def _worked(self) -> None:
        """Announce new traces at once, since the program may never reach its end."""
        recorder = self._recorder
        if recorder is None:
            return
        if recorder.state is State.RECORDING:
            self._driver.automatic.keep()
        elif not recorder.wants_steps and not self._stops:
            # Nothing is recorded or timed any more. A program is stopped at the end of a step.
            self._driver.automatic.stop()
        written = (*recorder.paths, *self._profilers.paths)
        for path in written[self._announced :]:
            self._announce(path)
        self._announced = max(self._announced, len(written))

    def _announce(self, path: Path) -> None:
        shown = self.shown(path)
        if self._prints_messages:
            self._tell(f"wrote {shown}, analyze with `overlapscope analyze {shlex.quote(str(shown))}`")

    def shown(self, path: Path) -> Path:
        """Return an absolute path as the user would write it."""
        return self._destination.shown(path)

    @property
    def _prints_messages(self) -> bool:
        """True for the first rank, which prints the messages of all."""
        return not self.rank

    def _tell(self, sentence: str) -> None:
        """Print a sentence on stderr."""
        # The program may have replaced or closed it.
        with contextlib.suppress(Exception):
            print(f"overlapscope: {clean(sentence)}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.end()
        except OverlapscopeError as failure:
            if error is None:
                raise
            # The program's own exception goes on.
            error.add_note(f"overlapscope: {failure}")

    def __call__(self, function: Function) -> Function:
        kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
        if any(is_kind(function) for is_kind in kinds):
            raise UsageError(f"{function.__qualname__} returns before it has run; use `with` inside it instead.")
        return super().__call__(function)

    def _recreate_cm(self) -> Self:
        """Return the recording of a call."""
        return type(self)(self._destination.as_asked, self.options)

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
        if self._recorder is not None:
            raise UsageError("this recording has ended already; make another one with overlapscope.record(...).")
        if (other := current()) is not None:
            other._make_way(self)
        if profiler_running():
            raise UsageError("another torch profiler is running, and only one can run at a time; remove one of them.")

    def _make_way(self, other: Recording) -> None:
        """Let `other` begin while this recording is under way. Raises UsageError if it may not."""
        raise UsageError(
            f"{self.shown(self.path)} is being recorded; end that recording first, there can be one at a time."
        )

    def _leave(self) -> None:
        self._ended = True
        self._stop_observers()
        self._profilers.stop()
        self._driver.automatic.stop()
        _under_way.remove(self)
        atexit.unregister(self._at_exit)

    def _stop_observers(self, *, early: bool = False) -> None:
        for observer in self.observers.values():
            observer.stop(early=early)

    def __reduce__(self) -> tuple[type[Recording], tuple[Path, Options]]:
        """Another process receives a recording with the same options that has not begun."""
        return Recording, (self._destination.as_asked, self.options)


record = with_keywords(Recording, Options)

_under_way: list[Recording] = []
"""Recordings that have begun and not ended: at most one."""


def current() -> Recording | None:
    """Return the recording of this process that is under way, if any."""
    return _under_way[0] if _under_way else None


def step() -> None:
    """Mark the end of a step of the recording under way."""
    if _under_way:
        _under_way[0].step()
    else:
        for listener in step_listeners:
            listener()


class SilentRecording(Recording):
    """A recording that prints nothing and counts only steps that are marked."""

    _finds_steps = False

    def _tell(self, sentence: str) -> None:
        pass
