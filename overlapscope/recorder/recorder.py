"""Drives the profiler through the windows of a schedule.

What a user sees is `recording.Recording`, which also sees to it that only the thread of the process that began
calls in here, and nothing twice at once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.errors import RecordingFailed
from overlapscope.recorder.open_ranges import OpenRanges
from overlapscope.recorder.options import Options
from overlapscope.recorder.schedule import Window
from overlapscope.recorder.session import Session, profiler_running
from overlapscope.recorder.step_times import SlowSteps, StepTimer, StepTimes
from overlapscope.recorder.takes import Take
from overlapscope.recorder.trace_file import TraceFiles

if TYPE_CHECKING:
    from overlapscope.trace.model import TimedSteps

_UNMARKED_BYTES = 220_000_000
"""Memory of two million events, of which each takes at least 110 bytes (`memory_guard`)."""
_UNMARKED = (
    "The program marked no step, so {:.1f} s of it were recorded, {}. overlapscope.step() at the end of an iteration "
    "marks steps; --whole records the whole program."
)
_UNMARKED_WINDOWS = 2
"""One from the start on, and one after start-up."""
_LEAST_UNMARKED_S = 1
"""The second recording takes the place of the first only if it lasted that long, in seconds."""
_NO_STACKS = (
    "The trace has no stacks, because they are not recorded while the recorder waits for steps; --wait 0 records "
    "them from the start."
)


class Stage(enum.Enum):
    """Where a recorder is in its schedule. They follow in this order, though some may be left out."""

    PUT_OFF = "put off"
    REHEARSAL = "rehearsal"
    UNMARKED = "unmarked"
    """No step was marked while the program was recorded. What was recorded is in the file; a step begins anew."""
    BETWEEN = "between"
    """Nothing is recorded: the program settles, steps are timed, and a window will open."""
    RECORDING = "recording"
    BEHIND = "behind"
    """The trace is written, and steps are timed."""
    DONE = "done"


class Recorder:
    """Records from `start` on, until the schedule, the memory guard or `finish` ends it.

    Of rehearsal and recording one is what counts: the recording, as soon as it has a step and at least as many judged
    ones. Until then the rehearsal is kept, in memory or, where that runs short, in the file.

    Between the two lies a gap, in which the ranges can close that must not be left under another session than they
    were entered under (`open_ranges`): the program's around its step, torch's around an optimizer's. Where a range
    stays open around several steps there is no such gap, and the rehearsal goes on as the recording, its steps to
    wait for unjudged.

    While a rehearsal waits for steps, however long the first one takes to come, no stacks are recorded: a Python call
    takes 1.6 KB when the profiler stops.

    A program that is `bounded` and marks no step is recorded only between `open` and `close`, the first time from its
    start on, until it marks one.

    Windows that do not open by steps, but by `open` and `close`, have no rehearsal. There can be several windows, each
    with a file of its own, and such as are thrown away because none of their steps was slow.

    A failure after the start is kept in `failure`, as a program does not stop because its recording failed.
    """

    def __init__(
        self,
        path: Callable[[], Path],
        options: Options,
        *,
        since_ns: int,
        bounded: bool,
        on_too_much: Callable[[], None],
        step_source: Callable[[], str | None] = lambda: None,
        steps_are_settled: Callable[[], bool] = lambda: True,
    ) -> None:
        """`path` and `since_ns` are as of `TraceFiles`. `step_source()` is what ends steps, in words; while that may
        change, which `steps_are_settled()` denies, no recording opens between steps without the profiler.

        `on_too_much` is called on a thread of the memory guard's; `make_room` should follow on the right one.
        """
        self._options = options
        self._bounded = bounded
        self._on_too_much = on_too_much
        self._step_source, self._steps_are_settled = step_source, steps_are_settled
        self._stage = Stage.DONE
        self._rehearsal: Take | None = None
        """None once the recording counts."""
        self._recording: Take | None = None
        self._unmarked: Take | None = None
        """Recording without a step that is in the file, until a step is recorded."""
        self._unmarked_windows = 0
        self._ranges = OpenRanges()
        self._timer = StepTimer(options.plain_steps)
        """Of steps before the recording, and then of those behind it."""
        self._before: TimedSteps | None = None
        self._slow = None if options.slow_step is None else SlowSteps(options.slow_step)
        self._opens = options.wait
        """The next window opens at the end of that many steps, or later."""
        self._files = TraceFiles(path, options.repeat, since_ns=since_ns)
        self._done: list[Take] = []
        """What is in the files of earlier windows."""
        self._steps = 0
        """Finished steps."""
        self._notes: list[str] = []
        self._failures: list[str] = []
        self.why_worthless: Callable[[Session], str | None] | None = None
        """Says why a recording without steps is not to be written, where that is so."""

    @property
    def running(self) -> bool:
        """Whether anything is being recorded, or will be."""
        return self._stage not in (Stage.BEHIND, Stage.DONE)

    @property
    def recording(self) -> bool:
        """Whether a window is open, or the program's first steps are recorded."""
        return self._stage in (Stage.REHEARSAL, Stage.RECORDING)

    @property
    def counts(self) -> bool:
        """Whether the recording is under way, and no rehearsal."""
        return self._stage is Stage.RECORDING

    @property
    def marked(self) -> bool:
        """True once the program has marked a step."""
        return self._steps > 0

    @property
    def bounded_out(self) -> bool:
        """True if nothing more is recorded unless the program marks a step."""
        return self._stage is Stage.UNMARKED and self._unmarked_windows == _UNMARKED_WINDOWS

    @property
    def put_off(self) -> bool:
        """Nothing was started yet; `start_now` or a step does."""
        return self._stage is Stage.PUT_OFF

    @property
    def wants_steps(self) -> bool:
        """Whether ends of steps matter still."""
        return self._stage is not Stage.DONE

    @property
    def complete(self) -> bool:
        """Whether nothing is left for `finish` to do."""
        return self._stage is Stage.DONE and not self._timer.timed and not self._files.pending

    @property
    def step_times(self) -> StepTimes:
        """How long a step took while nothing was recorded, and while the one that counts was."""
        plain = self._files.plain_steps
        recorded_ns = () if self._last is None else tuple(self._last.judged_ns)
        return StepTimes(plain.before.host_ns, plain.after.host_ns, recorded_ns, self._options.plain_steps)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The traces of windows that are over."""
        return self._files.paths if self.bounded_out else self._files.paths[: len(self._done)]

    @property
    def written(self) -> bool:
        """True if there is a file, even if a better recording may replace it."""
        return bool(self._files.paths)

    @property
    def notes(self) -> list[str]:
        """Sentences on what is, or will be, in the files."""
        counting = self._counting
        takes = self._done if counting is None else [*self._done, counting]
        return [*(note for take in takes for note in take.notes), *self._files.notes, *self._notes, *self._failures]

    @property
    def failure(self) -> RecordingFailed | None:
        """Why there is no trace, where that is so."""
        return RecordingFailed(self._failures[0]) if self._failures else None

    def start(self, *, put_off: bool = False) -> None:
        """Record from here on; `put_off` does so only from `start_now` or the first step on.

        Raises RecordingFailed where the profiler does not start.
        """
        if put_off:
            self._stage = Stage.PUT_OFF
        else:
            self._start_first()
            self._begin_step()

    def start_now(self) -> None:
        """Start what was put off."""
        if self.put_off:
            self._or_fail(self._start_first)
            self._begin_step()

    def open(self) -> bool:
        """Open a window here, in the middle of a step. False where that cannot be now."""
        if self._stage not in (Stage.PUT_OFF, Stage.BETWEEN, Stage.UNMARKED) or not self._undisturbed():
            return False
        if self._stage is Stage.UNMARKED:
            self._or_fail(self._start_first)
            self._begin_step()
        else:
            self._or_fail(self._open_recording)
        return self.recording

    def close(self) -> None:
        """Close the window that is open."""
        if not self.recording:
            return
        if self._bounded and not self.marked:
            self._end_unmarked()
        else:
            self._end_recording()

    def step(self) -> None:
        """Mark the end of a step, and do what is due then."""
        self._steps += 1
        if self._running is not None:
            self._running.allow(self._options.max_size_bytes)
            self._running.end_step(self._steps)
        match self._stage:
            case Stage.PUT_OFF:
                self._or_fail(self._start_first)
            case Stage.UNMARKED:
                if self._undisturbed():
                    self._or_fail(self._start_first)
            case Stage.REHEARSAL:
                self._step_in_rehearsal()
            case Stage.BETWEEN:
                self._timer.step(self._steps)
                if self._recording_is_due():
                    self._or_fail(self._open_recording)
            case Stage.RECORDING:
                self._step_in_recording()
            case Stage.BEHIND:
                if profiler_running():
                    # The program's own, which may leave it slower.
                    self._stage = Stage.DONE
                else:
                    self._timer.step(self._steps)
                    if self._timer.full:
                        self._stage = Stage.DONE
                        self._add_behind(wait=True)
            case Stage.DONE:
                pass
        self._begin_step()

    def finish(self) -> None:
        """Stop, write what is not written, and add to the trace what was timed behind it."""
        if self.put_off and self._options.at_once:
            self._fail(
                "There is no trace: the program used no GPU and marked no step. If it works in other processes, add "
                "--subprocesses; overlapscope.step() at the end of an iteration marks steps."
            )
        elif self.running:
            take = self._running
            if self._unmarked and take and not self.marked and take.lasted_s > _LEAST_UNMARKED_S:
                self._end_unmarked()
            self._end()
            self._notes += self._what_is_missing()
        self._stage = Stage.DONE
        self._add_behind()
        if self._done and self._options.plain_steps and not (self._options.by_steps or self._files.timed):
            self._notes.append(
                "No step ended before or after the recording, so no step was timed without the profiler."
            )

    def _add_behind(self, *, wait: bool = False) -> None:
        """Add the steps timed after the recording to its file."""
        if self._timer.timed:
            self._files.time_behind(self._timer.read(wait=wait))
            self._timer.restart()
        self._notes += self._files.amend()

    def steps_changed(self) -> None:
        """Time steps anew: from now on they are others."""
        self._timer.restart()

    def start_over(self) -> bool:
        """Throw away what is being recorded, and begin anew with the next step, on any thread. False where the thread
        that began has to stop it, or nothing is to be recorded any more.
        """
        take = self._running
        if not self.running or (take is not None and not (take.session and take.session.all_threads)):
            return False
        if take is not None:
            self._stop()
            self._rehearsal = self._recording = None
            self._stage = Stage.PUT_OFF
        return True

    def discard(self) -> None:
        """Stop and write nothing."""
        with suppress(Exception):
            self._stop()
        self._forget()

    def abandon(self) -> None:
        """`discard`, where another thread's profiler is about to take the place of this one.

        To stop it then crashes the process (torch 2.13), unless it records all threads.
        """
        take = self._running
        if take is not None and take.session is not None and take.session.all_threads:
            self.discard()
        else:
            self._forget()

    def _forget(self) -> None:
        if self._running is not None:
            self._running.forget()
        self._rehearsal = self._recording = None
        self._unmarked = None
        self._timer.restart()
        self._stage = Stage.DONE

    def make_room(self) -> None:
        """End what is being recorded where its events take too much memory."""
        take = self._running
        if take is None or not take.takes_too_much(self._steps):
            return
        if self._bounded and not self.marked:
            if self._options.max_size_bytes > _UNMARKED_BYTES:
                # A larger --max-size would change nothing.
                take.notes.pop()
            self._end_unmarked()
        elif self._stage is Stage.REHEARSAL:
            with self._timer.pausing(self._steps):
                self._ranges.look()
                self._stop()
                self._write(take)
            self._stage = Stage.BETWEEN
        else:
            self._end_recording()

    # -- from stage to stage --------------------------------------------------------------------------

    def _start_first(self) -> None:
        rehearsal = self._options.rehearsal
        if not self._options.at_once:
            # Takes upon itself what the first start costs, which would make a window late.
            self._recording = self._start_session(self._options.recording(self._steps), Stage.RECORDING)
            self._stop()
            self._recording, self._stage = None, Stage.BETWEEN
        elif rehearsal is None:
            self._recording = self._start_session(self._options.whole.begun(self._steps), Stage.RECORDING)
        elif rehearsal.over(self._steps):
            self._stage = Stage.BETWEEN
        else:
            self._rehearsal = self._start_session(rehearsal.begun(self._steps), Stage.REHEARSAL)

    def _end_unmarked(self) -> None:
        """End a recording without a step, and keep the former one where this has none of the program's ops."""
        take = self._running
        assert take is not None
        self._unmarked_windows += 1
        when = "after its start-up" if self._unmarked else "from its start on"
        take.notes.append(_UNMARKED.format(take.lasted_s, when))
        with self._timer.pausing(self._steps):
            self._ranges.look()
            self._stop()
            if self._unmarked is None or (take.session is not None and not take.session.empty):
                self._write(take)
                self._unmarked = take
        self._rehearsal = self._recording = None
        self._stage = Stage.UNMARKED

    def _step_in_rehearsal(self) -> None:
        take = self._rehearsal
        assert take is not None
        if not take.window.over(self._steps):
            if take.window.over(self._steps + 1):
                self._ranges.look()
            self.make_room()
        elif self._ranges.look_whether_new() and (self._steps > 1 or self._ranges.are_left):
            with self._timer.pausing(self._steps):
                self._stop()
            self._stage = Stage.BETWEEN
        else:
            self._rehearsal, self._recording = None, take
            whole = self._options.whole.begun(take.window.first)
            del take.judged_ns[: whole.judged - take.window.judged]
            take.window = whole
            if self._options.plain_steps:
                take.notes.append(
                    "A record_function stays open around several steps, so none could be timed before the recording."
                )
            self._stage = Stage.RECORDING
            self._step_in_recording()

    def _recording_is_due(self) -> bool:
        due = self._options.by_steps and self._steps >= self._opens and self._timer.full
        settled = not self._options.plain_steps or self._steps_are_settled()
        return due and settled and self._undisturbed()

    def _undisturbed(self) -> bool:
        """Whether the profiler can start: no range of the last session is open, and no other profiler runs."""
        return self._ranges.are_left and not profiler_running()

    def _open_recording(self) -> None:
        # The session waits for the devices as well, but only when the profiler looks on.
        self._before = self._timer.read(wait=True)
        if self._done:
            self._files.time_behind(self._before)
        # The step under way, in whose middle another may open the window, is no step of it.
        first = self._steps if self._options.by_steps else self._steps + 1
        self._recording = self._start_session(self._options.recording(first), Stage.RECORDING)

    def _step_in_recording(self) -> None:
        take = self._recording
        assert take is not None
        if self._counting is take:
            self._rehearsal = None
        if self._slow is not None and self._steps > take.window.judged:
            slow = self._slow.judge(self._steps - 1, take.judged_ns[-1])
            if slow is not None:
                take.keep(self._steps - 1, slow)
        if take.window.over(self._steps):
            self._end_recording()
        else:
            self.make_room()

    def _end_recording(self) -> None:
        take = self._recording
        assert take is not None
        again = not take.wanted or len(self._done) + 1 < self._options.repeat
        with self._timer.pausing(self._steps):
            if again:
                self._ranges.look()
            self._end()
        if self._failures:
            self._stage = Stage.DONE
        elif again:
            # A step lies between two windows: see `open_ranges`.
            self._opens = self._steps + (max(1, self._options.wait) if take.wanted else 1)
            self._stage = Stage.BETWEEN
        elif self._options.plain_steps and self._last is take and self._steps:
            self._stage = Stage.BEHIND
        else:
            self._stage = Stage.DONE

    def _what_is_missing(self) -> Iterator[str]:
        """Sentences on what a program that has ended leaves to be wished."""
        done = len(self._done)
        if not done and self._slow is not None:
            yield self._slow.none()
        elif not done and not self._failures:
            self._fail(self._options.why_none())
        elif done < self._options.repeat and not self._failures:
            yield f"The program ended after {done} of {self._options.repeat} windows."

    @property
    def _last(self) -> Take | None:
        """What counts of the window under way, or else of the last."""
        return self._counting or (self._done[-1] if self._done else None)

    @property
    def _counting(self) -> Take | None:
        """What is written if nothing more comes."""
        rehearsal, recording = self._rehearsal, self._recording
        if recording is None or rehearsal is None:
            take = recording or rehearsal
            without_a_step = take is None or self._steps <= take.window.first
            return self._unmarked if self._unmarked and without_a_step else take
        more = self._steps > recording.window.first and len(recording.judged_ns) >= len(rehearsal.judged_ns)
        return recording if more else rehearsal

    def _end(self) -> None:
        """Stop, and write what counts, unless that is in the file."""
        self._stop()
        take = self._counting
        if not (self._steps or self._done) and take is not None and take.session is not None and self.why_worthless:
            reason = self.why_worthless(take.session)
            if reason is not None:
                self._rehearsal = self._recording = None
                self._fail(f"There is no trace: the program marked no step, used no GPU and {reason}.")
                return
        if take is None or not take.wanted or (self._done and self._options.by_steps and not take.judged_ns):
            self._recording = None
            return
        if take is not self._unmarked and (take is self._rehearsal or not take.judged_ns):
            short = self._options.why_short(self._steps, len(take.judged_ns))
            if short is not None:
                take.notes.append(short)
        if take is self._recording:
            # What was timed lies before it, and is in its metadata.
            self._timer.restart()
        self._write(take)
        self._done.append(take)
        for dropped in (self._rehearsal, self._recording):
            if dropped is not None:
                dropped.session = None
        self._rehearsal = self._recording = self._unmarked = None

    # -- the session ----------------------------------------------------------------------------------

    @property
    def _running(self) -> Take | None:
        """What is being recorded."""
        if self._stage is Stage.REHEARSAL:
            return self._rehearsal
        return self._recording if self._stage is Stage.RECORDING else None

    def _start_session(self, window: Window, stage: Stage) -> Take:
        waits = stage is Stage.REHEARSAL and self._options.wait > 0
        unmarked = self._bounded and not self.marked
        max_size_bytes = self._options.max_size_bytes
        options = replace(
            self._options,
            stacks=self._options.stacks and not waits,
            max_size_bytes=min(max_size_bytes, _UNMARKED_BYTES) if unmarked else max_size_bytes,
        )
        take = Take(
            window,
            options,
            on_too_much=self._on_too_much,
            wanted=self._slow is None,
        )
        if options.stacks != self._options.stacks:
            take.notes.append(_NO_STACKS)
        self._stage = stage
        return take

    def _or_fail(self, start: Callable[[], None]) -> None:
        """`start`, in the middle of the program. Where that fails, what there is already is written."""
        try:
            start()
        except RecordingFailed as failure:
            self._stage = Stage.DONE
            if self._rehearsal is None:
                self._fail(str(failure))
            else:
                self._rehearsal.notes.append(f"{failure}; its first steps were recorded instead.")
                self._write(self._rehearsal)
                self._done.append(self._rehearsal)
                self._rehearsal = None

    def _stop(self) -> None:
        """Stop the session, if one runs. A step under way stays open in its trace."""
        take = self._running
        if take is None:
            return
        from overlapscope.trace.model import TimedSteps

        before = self._before if take is self._recording and self._before is not None else TimedSteps()
        try:
            take.stop(self._steps, before, self._step_source())
        except RecordingFailed as failure:
            self._fail(str(failure))

    def _write(self, take: Take) -> None:
        session, take.session = take.session, None
        if session is None:
            return
        try:
            self._files.write(len(self._done) + 1, session)
        except RecordingFailed as failure:
            self._fail(str(failure))

    def _fail(self, sentence: str) -> None:
        self._failures.append(sentence)

    def _begin_step(self) -> None:
        if self._running is not None:
            self._running.begin_step(self._steps)
