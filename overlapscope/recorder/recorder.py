"""Drives the profiler through the windows of a schedule.

What a user sees is `recording.Recording`, which also sees to it that only the thread of the process that began
calls in here, and nothing twice at once.
"""

from __future__ import annotations

import enum
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlapscope.errors import RecordingFailed
from overlapscope.recorder import trace_file
from overlapscope.recorder.memory_guard import MemoryGuard
from overlapscope.recorder.open_ranges import open_ranges
from overlapscope.recorder.plain_steps import StepTimer
from overlapscope.recorder.schedule import Schedule, Window
from overlapscope.recorder.session import Metadata, Options, Session, profiler_running
from overlapscope.recorder.step_times import StepTimes
from overlapscope.recorder.trace_file import Written

if TYPE_CHECKING:
    from overlapscope.trace import TimedSteps

_STEP = "ProfilerStep#"
"""How torch.profiler names a step, and what every reader looks for."""


class _Stage(enum.Enum):
    """Where a recorder is in its schedule. They follow in this order, though some may be left out."""

    PUT_OFF = "put off"
    REHEARSAL = "rehearsal"
    BETWEEN = "between"
    """Nothing is recorded: the program settles, and steps are timed."""
    RECORDING = "recording"
    BEHIND = "behind"
    """The trace is written, and steps are timed."""
    DONE = "done"


@dataclass(slots=True)
class _Take:
    """One run of the profiler, the rehearsal or the recording."""

    window: Window
    session: Session | None
    """None once it is written, or where it could not be stopped."""
    judged_ns: list[int] = field(default_factory=list)
    """The lengths of its judged steps, by the host's clock."""
    notes: list[str] = field(default_factory=list)


class Recorder:
    """Records from `start` on, until the schedule, the memory guard or `finish` ends it.

    Of rehearsal and recording one is what counts: the recording, as soon as it has a step and at least as many judged
    ones. Until then the rehearsal is kept, in memory or, where that runs short, in the file.

    Between the two lies a gap, in which the ranges can close that must not be left under another session than they
    were entered under (`open_ranges`): the program's around its step, torch's around an optimizer's. Where a range
    stays open around several steps there is no such gap, and the rehearsal goes on as the recording, its steps to
    wait for unjudged.

    A failure after the start is kept in `failure`, as a program does not stop because its recording failed.
    """

    def __init__(
        self,
        path: Path,
        schedule: Schedule,
        options: Options,
        *,
        max_size_bytes: int,
        on_too_much: Callable[[], None],
    ) -> None:
        """`on_too_much` is called on a thread of the memory guard's; `make_room` should follow on the right one."""
        self._path = path
        self._schedule = schedule
        self._options = options
        self._max_size_bytes = max_size_bytes
        self._on_too_much = on_too_much
        self._stage = _Stage.DONE
        self._rehearsal: _Take | None = None
        """None once the recording counts."""
        self._recording: _Take | None = None
        self._guard: MemoryGuard | None = None
        """The running session's."""
        self._ranges: list[weakref.ref[Any]] = []
        """Ranges that were open when they were last looked for."""
        self._timer = StepTimer(schedule.plain_steps)
        """Of steps before the recording, and then of those behind it."""
        self._before: TimedSteps | None = None
        self._written: tuple[Written, Metadata] | None = None
        self._steps = 0
        """Finished steps."""
        self._annotation: Any = None
        """The open `record_function` of the present step."""
        self._mark_ns = 0
        """When the last step ended."""
        self._failures: list[str] = []

    @property
    def running(self) -> bool:
        """Whether anything is being recorded, or will be."""
        return self._stage not in (_Stage.BEHIND, _Stage.DONE)

    @property
    def put_off(self) -> bool:
        """Nothing was started yet; `start_now` or a step does."""
        return self._stage is _Stage.PUT_OFF

    @property
    def wants_steps(self) -> bool:
        """Whether ends of steps matter still."""
        return self._stage is not _Stage.DONE

    @property
    def complete(self) -> bool:
        """Whether nothing is left for `finish` to do."""
        return self._stage is _Stage.DONE and not self._timer.timed

    @property
    def step_times(self) -> StepTimes:
        """How long a step took while nothing was recorded, and while the one that counts was."""
        from overlapscope.trace import PlainSteps

        plain = PlainSteps() if self._written is None else self._written[1].plain_steps
        take = self._counting
        recorded_ns = () if take is None else tuple(take.judged_ns)
        return StepTimes(plain.before.host_ns, plain.after.host_ns, recorded_ns, self._schedule.plain_steps)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that were written."""
        return () if self._written is None else (self._written[0].path,)

    @property
    def notes(self) -> list[str]:
        """Sentences on what is, or will be, in the file."""
        take = self._counting
        return [*(() if take is None else take.notes), *self._failures]

    @property
    def failure(self) -> RecordingFailed | None:
        """Why there is no trace, where that is so."""
        return RecordingFailed(self._failures[0]) if self._failures else None

    def start(self, *, put_off: bool = False) -> None:
        """Record from here on; `put_off` does so only from `start_now` or the first step on.

        Raises RecordingFailed where the profiler does not start.
        """
        if put_off:
            self._stage = _Stage.PUT_OFF
        else:
            self._start_first()
            self._open_annotation()

    def start_now(self) -> None:
        """Start what was put off."""
        if self.put_off:
            self._or_fail(self._start_first)
            self._open_annotation()

    def step(self) -> None:
        """Mark the end of a step, and do what is due then."""
        self._close_annotation()
        now = time.perf_counter_ns()
        self._steps += 1
        match self._stage:
            case _Stage.PUT_OFF:
                self._or_fail(self._start_first)
            case _Stage.REHEARSAL:
                self._step_of(self._rehearsal, now)
                self._step_in_rehearsal()
            case _Stage.BETWEEN:
                self._timer.step(self._steps)
                if self._recording_is_due():
                    self._or_fail(self._open_recording)
            case _Stage.RECORDING:
                self._step_of(self._recording, now)
                self._step_in_recording()
            case _Stage.BEHIND:
                if profiler_running():
                    # The program's own, which may leave it slower.
                    self._stage = _Stage.DONE
                else:
                    self._timer.step(self._steps)
                    if self._timer.full:
                        self._stage = _Stage.DONE
            case _Stage.DONE:
                pass
        self._mark_ns = time.perf_counter_ns()
        self._open_annotation()

    def finish(self) -> None:
        """Stop, write what is not written, and add to the trace what was timed behind it."""
        if self.put_off:
            self._fail("The program used no GPU and marked no step: there is no trace.")
        elif self.running:
            self._end()
        self._stage = _Stage.DONE
        self._amend()

    def discard(self) -> None:
        """Stop and write nothing."""
        with suppress(Exception):
            self._stop()
        self.abandon()

    def abandon(self) -> None:
        """Forget about the profiler, which another thread's is about to take the place of.

        To stop it then crashes the process (torch 2.13).
        """
        if self._guard is not None:
            self._guard.stop()
        self._rehearsal = self._recording = None
        self._timer.restart()
        self._stage = _Stage.DONE

    def make_room(self) -> None:
        """End what is being recorded where its events take too much memory."""
        take = self._running
        exceeded_bytes = None if take is None or self._guard is None else self._guard.exceeded_bytes
        if take is None or exceeded_bytes is None:
            return
        where = f", in step {self._steps}" if self._steps else ""
        least = " With stacks an eighth of that is the limit." if self._options.stacks else ""
        take.notes.append(
            f"Recording ended early{where}: its events had taken up to {exceeded_bytes / 1e9:.2f} GB of memory "
            f"(--max-size).{least}"
        )
        if self._stage is _Stage.REHEARSAL:
            with self._timer.pausing(self._steps):
                self._ranges = open_ranges()
                self._stop()
                self._write(take)
            self._stage = _Stage.BETWEEN
        else:
            self._end_recording()

    # -- from stage to stage --------------------------------------------------------------------------

    def _start_first(self) -> None:
        rehearsal = self._schedule.rehearsal
        if rehearsal is None:
            self._recording = self._start_session(self._schedule.whole, _Stage.RECORDING)
        elif rehearsal.over(self._steps):
            self._stage = _Stage.BETWEEN
        else:
            self._rehearsal = self._start_session(rehearsal, _Stage.REHEARSAL)

    def _step_in_rehearsal(self) -> None:
        take = self._rehearsal
        assert take is not None
        if not take.window.over(self._steps):
            if take.window.over(self._steps + 1):
                self._ranges = open_ranges()
            self.make_room()
        elif self._ranges_close_with_the_step():
            with self._timer.pausing(self._steps):
                self._stop()
            self._stage = _Stage.BETWEEN
        else:
            self._rehearsal, self._recording = None, take
            whole = self._schedule.whole.begun(take.window.first)
            del take.judged_ns[: whole.judged - take.window.judged]
            take.window = whole
            if self._schedule.plain_steps:
                take.notes.append(
                    "A record_function stays open around several steps, so none could be timed before the recording."
                )
            self._stage = _Stage.RECORDING
            self._step_in_recording()

    def _recording_is_due(self) -> bool:
        return (
            self._steps >= self._schedule.wait
            and self._timer.full
            and all(one() is None for one in self._ranges)
            and not profiler_running()
        )

    def _open_recording(self) -> None:
        # The session waits for the devices as well, but only when the profiler looks on.
        self._before = self._timer.read(wait=True)
        self._recording = self._start_session(self._schedule.recording(self._steps), _Stage.RECORDING)

    def _step_in_recording(self) -> None:
        take = self._recording
        assert take is not None
        if self._counting is take:
            self._rehearsal = None
        if take.window.over(self._steps):
            self._end_recording()
        else:
            self.make_room()

    def _end_recording(self) -> None:
        with self._timer.pausing(self._steps):
            self._end()
        times_more = self._schedule.plain_steps and self._counting is self._recording and self._written is not None
        self._stage = _Stage.BEHIND if times_more else _Stage.DONE

    @property
    def _counting(self) -> _Take | None:
        """What is written if nothing more comes."""
        rehearsal, recording = self._rehearsal, self._recording
        if recording is None or rehearsal is None:
            return recording or rehearsal
        more = self._steps > recording.window.first and len(recording.judged_ns) >= len(rehearsal.judged_ns)
        return recording if more else rehearsal

    def _end(self) -> None:
        """Stop, and write what counts, unless that is in the file."""
        self._stop()
        take = self._counting
        if take is None:
            self._fail("The program ended before anything was to be recorded: there is no trace.")
            return
        if take is self._rehearsal or not take.judged_ns:
            short = self._schedule.why_short(self._steps, len(take.judged_ns))
            if short is not None:
                take.notes.append(short)
        if take is self._recording:
            # What was timed lies before it, and is in its metadata.
            self._timer.restart()
        self._write(take)
        for dropped in (self._rehearsal, self._recording):
            if dropped is not None:
                dropped.session = None

    # -- steps ----------------------------------------------------------------------------------------

    def _step_of(self, take: _Take | None, now: int) -> None:
        if take is not None and self._steps > take.window.judged:
            take.judged_ns.append(now - self._mark_ns)

    def _ranges_close_with_the_step(self) -> bool:
        """Whether none that is open was so a step ago; after one step, whether none is open."""
        before = {one() for one in self._ranges}
        self._ranges = open_ranges()
        return all(self._steps > 1 and one() not in before for one in self._ranges)

    # -- the session ----------------------------------------------------------------------------------

    @property
    def _running(self) -> _Take | None:
        """What is being recorded."""
        if self._stage is _Stage.REHEARSAL:
            return self._rehearsal
        return self._recording if self._stage is _Stage.RECORDING else None

    def _start_session(self, window: Window, stage: _Stage) -> _Take:
        try:
            session = Session(self._options)
        except Exception as error:
            raise RecordingFailed(f"torch.profiler does not start: {_first_line(error)}") from error
        self._guard = MemoryGuard(self._max_size_bytes, self._on_too_much, stacks=self._options.stacks)
        self._stage = stage
        self._mark_ns = time.perf_counter_ns()
        return _Take(window.begun(self._steps), session)

    def _or_fail(self, start: Callable[[], None]) -> None:
        """`start`, in the middle of the program. Where that fails, what there is already is written."""
        try:
            start()
        except RecordingFailed as failure:
            self._stage = _Stage.DONE
            if self._rehearsal is None:
                self._fail(str(failure))
            else:
                self._rehearsal.notes.append(f"{failure}; its first steps were recorded instead.")
                self._write(self._rehearsal)

    def _stop(self) -> None:
        """Stop the session, if one runs. A step under way stays open in its trace."""
        take = self._running
        if take is None or take.session is None or self._guard is None:
            return
        from overlapscope.trace import PlainSteps, TimedSteps

        self._guard.stop()
        unfinished = None if self._annotation is None else f"{_STEP}{self._steps}"
        before = self._before if take is self._recording and self._before is not None else TimedSteps()
        metadata = Metadata(take.window.warm_up_steps(self._steps), PlainSteps(before=before))
        try:
            take.session.stop(metadata, unfinished=unfinished)
        except Exception as error:
            take.session = None
            self._fail(f"the profiler cannot be stopped, and there is no trace: {_first_line(error)}")
        finally:
            self._close_annotation()

    def _write(self, take: _Take) -> None:
        session, take.session = take.session, None
        if session is None:
            return
        try:
            self._written = session.write(self._path), session.metadata
        except RecordingFailed as failure:
            self._fail(str(failure))

    def _amend(self) -> None:
        """Add to the trace the steps that were timed since."""
        timed = self._timer.timed
        if self._written is None or not timed:
            return
        written, metadata = self._written
        amended = replace(metadata, plain_steps=replace(metadata.plain_steps, after=self._timer.read()))
        self._timer.restart()
        try:
            written = trace_file.amend(written, metadata.json().encode(), amended.json().encode())
        except RecordingFailed as failure:
            take = self._counting
            assert take is not None
            take.notes.append(f"{failure} It lacks the steps that were timed after the recording.")
        else:
            self._written = written, amended

    def _fail(self, sentence: str) -> None:
        self._failures.append(sentence)

    # -- the step's annotation ------------------------------------------------------------------------

    def _open_annotation(self) -> None:
        if self._running is None or self._annotation is not None:
            return
        from torch.profiler import record_function

        self._annotation = record_function(f"{_STEP}{self._steps}")
        self._annotation.__enter__()

    def _close_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
