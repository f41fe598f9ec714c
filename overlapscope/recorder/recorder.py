"""The recorder: the profiler's way through the windows of a schedule.

It decides, by its table of `states`, and knows no threads: `driver.Driver` calls it on one thread, one call at a time.
Users see `recording.Recording`. It opens and closes a `session.Session`, a run of the profiler.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlapscope.base import clock
from overlapscope.base.median import median_ns
from overlapscope.base.words import duration
from overlapscope.errors import RecordingFailed
from overlapscope.recorder import all_threads, states, trace_file
from overlapscope.recorder.destination import rank_of
from overlapscope.recorder.options import Options, StepWindow
from overlapscope.recorder.sampling.host_sampler import LONGEST_STEP_NS, HostSampler
from overlapscope.recorder.session import OpenRanges, Role, Session, profiler_running
from overlapscope.recorder.states import Event, State
from overlapscope.recorder.step_times import Pace, SlowSteps, StepTimer, StepTimings, becomes_faster, compilations
from overlapscope.recorder.trace_file import Metadata, Written
from overlapscope.recorder.wrapping import is_a_handlers

if TYPE_CHECKING:
    from overlapscope.trace.model import ClockedSteps, TimedSteps

_UNMARKED_BYTES = 220_000_000
"""Memory of two million events, each of which takes at least 110 bytes (`memory_guard`)."""
_UNMARKED_WINDOWS = 2
"""Number of windows of a program without steps: the first at its start, the second after its start-up."""
_UNMARKED = (
    "The program marked no step, so {:.1f} s of it were recorded, {}. overlapscope.step() at the end of an iteration "
    "marks steps; --whole records the whole program."
)
_UNUSED = (
    "There is no trace: the program used no GPU and marked no step. If it works in other processes, add "
    "--subprocesses; overlapscope.step() at the end of an iteration marks steps."
)
_NO_GPU_TIMES = (
    "The recording of later steps has no times of GPU ops, which is a defect of torch.profiler, so what was recorded "
    "before them is used instead; run it again to record later steps."
)
_NO_PLAIN_STEPS = "No step ended before or after the recording, so no step was timed without the profiler."
_NO_ROOM = "A record_function stays open around several steps, so none could be timed before the recording."
SETTLES_S: float = 5
"""Time from the first step in which the pace often changes, as tuning and compilation end, in seconds."""
_TIMES_AGAIN = 2
"""Maximum number of times that steps are recorded again because the pace changed."""
_PATIENCE_S = 30
"""Maximum time to wait for steady steps before a recording, in seconds."""
_UNSTEADY = f"Steps still became faster after {_PATIENCE_S} s, and are recorded all the same."
_MIN_UNMARKED_S = 1
"""Minimum length of the second of these windows for it to replace the first, in seconds."""
_NO_STACKS = (
    "The trace has no stacks, because they are not recorded while the recorder waits for steps; --wait 0 records "
    "them from the start."
)


class WindowRecorder:
    """Records from the start until the schedule, the memory guard or the program's end ends it.

    `states.TABLE` lists its actions at each event. The end of this module says what they mean.

    A session that was stopped is kept, in memory or in the file, until a later one counts in its place: the rehearsal
    until the recording counts, a recording without a step until a step is recorded, and the first recording until one
    at another pace is complete.

    A range that was entered under one session of the profiler must not be left under another (`OpenRanges`). So the
    profiler is off for at least a step between rehearsal and recording, in which such ranges close: the program's
    around its step, or torch's around an optimizer's. If a range stays open around several steps, the rehearsal
    continues as the recording, and its steps to wait for are not judged.

    While a rehearsal waits for steps, no stacks are recorded, since a Python call takes 1.6 KB when the profiler stops
    and the first step may take long.

    A program that is `bounded` and marks no step is recorded only between `open` and `close`, the first time from its
    start, until it marks a step.

    A window by the events `open` and `close`, and not by steps, has no rehearsal. With `slow_step`, windows without a
    slow step are thrown away.

    A failure after the start is kept in `failure`, since a program does not stop when its recording fails.

    Args:
        path: Function that returns the trace file.
        options: Options of the recording.
        since_ns: Time after which other processes may have written a file of this name (`destination.put`).
        bounded: Whether to limit the recording of a program without steps.
        on_too_much: Function that the memory guard calls on its thread. The event `memory` should follow.
        step_source: Function that returns what ends steps, in words.
        steps_are_settled: Function that returns false while what ends steps may change; no recording is timed then.
        records_again: Whether to clock all steps, and to record again if the pace changes.
    """

    _last: Session
    """Session that started last, which runs while `recording` is true."""
    _take: Session | None = None
    """Session of the present window."""
    _kept: Session | None = None
    """Session that is kept until `_take` counts."""
    _judged_before = 0
    """Number of judged steps with which `_take` counts."""
    _kept_for_gpu_times = False
    """True if `_kept` is so instead of the rehearsal, which has no times of GPU ops."""
    _done: Session | None = None
    """Session that is in the file for good, unless steps are recorded again."""
    _first: Session | None = None
    """The first recording, once steps are recorded again."""
    _file: Written | None = None
    _metadata: Metadata | None = None
    """Metadata that is in the file."""
    _amended: Metadata | None = None
    """Metadata that `amend` writes instead."""
    _settles_by_ns = 0
    """Time at which the report need not wait for another pace any more."""
    _before_again: tuple[tuple[int, int], ...] = ()
    """Lengths of all steps between the recording before and the one under way (`Pace.at_recorded_pace`)."""

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
        records_again: bool = False,
    ) -> None:
        self._path, self._since_ns = path, since_ns
        self._options, self._bounded, self._on_too_much = options, bounded, on_too_much
        self._step_source, self._steps_are_settled = step_source, steps_are_settled
        self.why_worthless: Callable[[Session], str | None] | None = None
        """Function that returns why a recording without steps is not to be written, or None if it is."""
        self.state = State.DONE
        self.recording = False
        """True if a window is open, or the program's first steps are recorded."""
        self._notes: list[str] = []
        """Sentences that are about no session in particular."""
        self._failures: list[str] = []
        self._failure = ""
        """Sentence on the error that ended the recording."""
        self._ranges = OpenRanges()
        self._steps = 0
        """Number of finished steps."""
        self._opens = options.wait
        """Number of finished steps at which the next window may open."""
        self._unmarked_windows = 0
        """Number of windows that ended without a step."""
        self._moved = False
        """True if another thread than the first marks the steps."""
        self._slow = None if options.slow_step is None else SlowSteps(options.slow_step)
        self._timer = StepTimer(options.plain_steps)
        """Times the steps before the recording, and then those after it."""
        self._sampler: HostSampler | None = None
        """Samples the host after the recording."""
        self._before: TimedSteps | None = None
        """Steps timed before the recording under way."""
        self._why_now: list[str] = []
        """Sentences on why the next recording opens when it does."""
        self._unsteady_since_ns: int | None = None
        """Time since which a recording waits for steady steps."""
        self._compilations = 0
        """Number of frames that torch.compile has looked at before the latest end of a step."""
        self._compiled = False
        """True if the step that ended last compiled."""
        self._pace = Pace()
        self._clocks_on = records_again and options.plain_steps > 0 and options.at_once
        self._times_again = _TIMES_AGAIN

    # -- What others ask

    @property
    def running(self) -> bool:
        """True if anything is being recorded, or will be."""
        return self.state.records

    @property
    def marked(self) -> bool:
        """True if the program has marked a step."""
        return self._steps > 0

    @property
    def bounded_out(self) -> bool:
        """True if nothing more is recorded unless the program marks a step."""
        return self.state is State.UNMARKED and self._unmarked_windows == _UNMARKED_WINDOWS

    @property
    def repeating(self) -> bool:
        """True if a recording is written, and steps are recorded again to replace it."""
        return self._first is not None and self.running

    @property
    def wants_steps(self) -> bool:
        """True if ends of steps still matter."""
        return self.state is not State.DONE

    @property
    def complete(self) -> bool:
        """True if the recording and all that belongs to it is written."""
        return self.state in (State.CLOCKING, State.DONE) and not self._timer.timed and self._amended == self._metadata

    @property
    def step_times(self) -> StepTimings:
        """Lengths of steps with and without the profiler."""
        from overlapscope.trace.model import PlainSteps

        take = self._counting or self._done
        plain = PlainSteps() if self._metadata is None else self._metadata.plain_steps
        activity = None if self._metadata is None else self._metadata.host_activity
        return StepTimings(plain, () if take is None else tuple(take.judged_ns), activity)

    @property
    def all_steps(self) -> str | None:
        """A sentence on all steps without the profiler; None if none was clocked, or only their launches."""
        from overlapscope.analysis.plain_step import host_ran_ahead

        times = self.step_times
        return None if host_ran_ahead(times.plain) else self._pace.sentence(times.recorded_ns)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The trace, once its window is over."""
        return (self._file.path,) if self._file and (self.bounded_out or self._done) else ()

    @property
    def written(self) -> bool:
        """True if there is a file, even if a better recording may replace it."""
        return self._file is not None

    @property
    def notes(self) -> list[str]:
        """Sentences on the contents of the file, written or to be written."""
        of_takes = (note for take in (self._done, self._counting) if take is not None for note in take.notes)
        return [*of_takes, *self._notes, *self._failures]

    @property
    def failure(self) -> RecordingFailed | None:
        """Error that prevents a trace; None if nothing failed."""
        return RecordingFailed(self._failures[0]) if self._failures else None

    @property
    def why_unwritten(self) -> str | None:
        """Sentence on why a take that was complete is in no file; None if there is none."""
        return self._failures[0] if self._failures and self._done and not self.written else None

    # -- Events

    def handle(self, event: Event) -> None:
        """Follow the table when an event happens.

        An error ends the recording, and does not reach the program. Only the error of a start is raised.
        """
        try:
            if event == "step":
                self._end_step()
            self.state = states.follow(self.state, event, self._call, self._call)
            if event == "step":
                self._begin_step()
        except Exception as error:
            if is_a_handlers(error):
                raise
            if event == "failed":
                # The first error is what is reported. Nothing may keep the profiler running.
                with suppress(Exception):
                    self._stop()
                self.state, self.recording = State.DONE, False
                self._failures.append(self._failure)
            else:
                known = isinstance(error, RecordingFailed)
                self._failure = str(error) if known else f"The recorder failed: {type(error).__name__}: {error}"
                self.handle("failed")
            if event == "start":
                raise

    def _call(self, name: str) -> bool:
        return bool(_MEANINGS[name](self))

    def _end_step(self) -> None:
        before, self._compilations = self._compilations, compilations()
        self._compiled = self._compilations != before
        self._pace.end(counts=not self._compiled)
        self._steps += 1
        if self._steps == 1:
            self._settles_by_ns = clock.now_ns() + round(SETTLES_S * clock.NS_PER_S)
        if self.recording:
            self._last.allow(self._options.max_size_bytes)
            self._last.end_step(self._steps)

    def _begin_step(self) -> None:
        if self.recording:
            self._last.begin_step(self._steps)
        # Only a step that nothing slows is clocked.
        samples = self._sampler is not None and self._sampler.slows
        slowed = self.recording or samples or not self._clocks_on or profiler_running()
        self._pace.begin(clocked=not slowed and self._timer.settled(self._steps))

    def steps_changed(self) -> None:
        """Time steps anew, since other events end them now."""
        self._timer.restart()
        self._pace = Pace()

    def move(self) -> bool:
        """Continue on the calling thread, and count none of the steps so far, nor the one under way.

        Returns:
            False if only the thread that began may stop the profiler, or if nothing more is to be recorded.
        """
        if not self.running or (self.recording and not self._last.all_threads):
            return False
        if self.recording:
            self._last.move(self._steps)
        self._moved = True
        return True

    def stay(self) -> None:
        """Record nothing again."""
        self._times_again = 0

    def add_found(self, counts: dict[str, int]) -> None:
        """Add the number of things that each observer found to the files."""
        self._add(found=counts)
        self._amend()

    # -- The start, and the rehearsal

    def _may_start(self) -> bool:
        """Return whether the profiler can start: no range of the last session is open, and no profiler runs.

        A recorder that has moved may have to be ended on another thread, which only a session of all threads allows.
        """
        return self._ranges.are_left and not self._is_stuck and not profiler_running()

    @property
    def _is_stuck(self) -> bool:
        return self._moved and not all_threads.left_ops_are_over()

    def _start_from(self, window: StepWindow, **options: Any) -> None:
        """Start a session in the middle of a step that belongs to it."""
        self._take = self._session(window.begun(self._steps), **options)
        self._take.begin_step(self._steps)

    def _start_whole(self) -> None:
        self._start_from(self._options.whole)

    def _start_rehearsal(self) -> None:
        window = self._options.rehearsal
        assert window is not None
        self._start_from(window, stacks=self._options.wait == 0, role="rehearsal")

    def _session(self, window: StepWindow, *, stacks: bool = True, role: Role = "recording") -> Session:
        unmarked = self._bounded and not self.marked
        max_size_bytes = self._options.max_size_bytes
        options = replace(
            self._options,
            stacks=self._options.stacks and stacks,
            max_size_bytes=min(max_size_bytes, _UNMARKED_BYTES) if unmarked else max_size_bytes,
        )
        session = Session(window, options, on_too_much=self._on_too_much, wanted=self._slow is None, role=role)
        if options.stacks != self._options.stacks:
            session.notes.append(_NO_STACKS)
        self._last, self.recording = session, True
        return session

    def _continue_as_recording(self) -> None:
        take = self._last
        take.role = "recording"
        whole = self._options.whole.begun(take.window.first)
        del take.judged_ns[: whole.judged - take.window.judged]
        take.window = whole
        if self._options.plain_steps:
            take.notes.append(_NO_ROOM)

    def _count(self) -> None:
        self._unmarked_windows += 1
        when = "after its start-up" if self._kept else "from its start on"
        self._last.notes.append(_UNMARKED.format(self._last.lasted_s, when))

    def _write_rehearsal(self) -> None:
        rehearsal = self._last
        if rehearsal.has_gpu_times or not (self._kept and self._kept.has_gpu_times):
            self._write_into_file(rehearsal)
        rehearsal.release()

    def _write_unmarked(self) -> None:
        """Write a recording without a step: a second one only if it has ops, and GPU ops if the first has them."""
        take, before, self._take = self._last, self._kept, None
        has_gpu_times = take.has_gpu_times
        lost = before is not None and before.has_gpu_times and not has_gpu_times
        if before is None or not (take.empty or lost):
            self._write_into_file(take)
            take.role, self._kept = "unmarked", take
        take.release()

    # -- The steps before the recording, and the recording

    def _time(self) -> None:
        """Time the step that has ended. If it compiled, begin anew, unless the recording has waited long enough."""
        self._timer.step(self._steps)
        if self._compiled and _is_alone() and self._may_wait():
            self._timer.restart()

    def _may_wait(self) -> bool:
        """Return whether the recording may wait longer for steady steps."""
        if self._unsteady_since_ns is None:
            self._unsteady_since_ns = clock.now_ns()
        return clock.now_ns() - self._unsteady_since_ns < _PATIENCE_S * clock.NS_PER_S

    @property
    def _is_due(self) -> bool:
        due = not self._options.by_clock and self._steps >= self._opens and self._timer.full
        return due and (not self._options.plain_steps or self._steps_are_settled())

    def _plan_window(self) -> None:
        # A step lies between two windows: see `OpenRanges`.
        self._opens = self._steps + 1

    def _is_steady(self) -> bool:
        """Return whether the timed steps don't become faster, or have done so for too long.

        Ranks of a job don't wait: all record the same steps.
        """
        if not becomes_faster(self._timer.lengths_ns) or not _is_alone():
            return True
        if self._may_wait():
            return False
        self._why_now.append(_UNSTEADY)
        return True

    def _start_recording(self) -> None:
        # The session waits for the devices as well, but only once the profiler runs.
        self._before = self._timer.read(wait=True)
        self._before_again = self._pace.at_recorded_pace
        self._pace.record(self._before.host_ns)
        earlier, before = self._counting_by_steps, self._kept
        has_lost = earlier is not None and before is not None and before.has_gpu_times and not earlier.has_gpu_times
        self._kept = before if has_lost else self._counting
        # If it could not be stopped, that is in the notes.
        self._kept_for_gpu_times = bool(has_lost and earlier and earlier.has_gpu_times is False)
        self._judged_before = len(earlier.judged_ns) if earlier is not None else 0
        # The window may open in the middle of a step, which does not belong to it.
        first = self._steps + 1 if self._options.by_clock else self._steps
        self._take = self._session(self._options.recording(first))
        self._take.notes += self._why_now
        self._why_now = []

    def _judge(self) -> None:
        take = self._last
        if take.window.end is None and self._counting is take:
            self._kept = None
        if self._slow is not None and self._steps > take.window.judged:
            slow = self._slow.judge(self._steps - 1, take.judged_ns[-1])
            if slow is not None:
                take.keep(self._steps - 1, slow)

    # -- The profiler and the files

    @property
    def _counting(self) -> Session | None:
        """Session that is written if nothing more comes."""
        take = self._counting_by_steps
        other = self._kept if take is self._take else self._take
        if take is None or other is None or (other is self._take and other.role == "recording"):
            return take
        # A later session may have no times of GPU ops, or an earlier one none yet.
        return other if take.has_gpu_times is False and other.has_gpu_times else take

    @property
    def _counting_by_steps(self) -> Session | None:
        """The session that counts as soon as it has a step and at least as many judged steps as the one kept."""
        take, kept = self._take, self._kept
        if take is None or kept is None:
            return take or kept
        return take if self._steps > take.window.first and len(take.judged_ns) >= self._judged_before else kept

    def _stop(self) -> None:
        """Stop the profiler, if it runs. The annotation of the present step stays open in the trace."""
        from overlapscope.trace.model import TimedSteps

        if not self.recording:
            return
        before = self._before if self._last.role == "recording" else None
        try:
            self._last.stop(self._steps, before or TimedSteps(), self._step_source())
        except RecordingFailed as failure:
            self._failures.append(str(failure))
        self.recording = False

    def _forget(self) -> None:
        if self.recording:
            self._last.abandon()
        self.recording = False
        self._take = self._kept = None
        self._timer.restart()

    def _write(self) -> None:
        """Write the session that counts, unless it is in the file already or not wanted."""
        take, first = self._counting, self._first
        if self._failures and first is not None and self._kept is first:
            self._keep_first(first)
            return
        if not self._steps and take is not None and take.in_memory and self.why_worthless:
            reason = self.why_worthless(take)
            if reason is not None:
                self._take = self._kept = None
                self._failures.append(f"There is no trace: the program marked no step, used no GPU and {reason}.")
                return
        if take is None or not take.wanted:
            self._take = None
            return
        if take is self._kept and (take is not self._counting_by_steps or self._kept_for_gpu_times):
            take.notes.append(_NO_GPU_TIMES)
        elif take.role == "rehearsal" or take is first or (take.role == "recording" and not take.judged_ns):
            short = self._options.why_short(self._steps, len(take.judged_ns))
            if self._is_stuck:
                short = f"Later steps were not recorded: {all_threads.WHY_NOT_AGAIN}."
            # A recording at an earlier pace is complete.
            if short is not None and first is None:
                take.notes.append(short)
        if (take is self._take and take.role == "recording") or first is not None:
            # The steps timed before it are in its metadata, or of another pace than the first recording's.
            self._timer.restart()
        self._finish(take)
        if first is not None and self._failures:
            self._keep_first(first)

    def _finish(self, take: Session) -> None:
        """Write a session, and forget the others."""
        self._write_into_file(take)
        self._done = take
        for other in filter(None, (self._take, self._kept)):
            other.release()
        self._take = self._kept = None

    def _keep_first(self, first: Session) -> None:
        """Keep a recording at an earlier pace, since a later one failed."""
        self._timer.restart()
        self._notes += self._failures
        self._failures.clear()
        self._take = self._kept = None
        self._done = first

    @property
    def _fallback(self) -> Session | None:
        """The rehearsal, or a recording at an earlier pace, unless the recording counts already."""
        takes = filter(None, (self._take, self._kept))
        return next((take for take in takes if take.role == "rehearsal" or take is self._first), None)

    def _keep_rehearsal(self) -> None:
        rehearsal = self._fallback
        assert rehearsal is not None
        rehearsal.notes.append(f"{self._failure}; its first steps were recorded instead.")
        self._timer.restart()
        self._finish(rehearsal)

    def _write_into_file(self, take: Session) -> None:
        if not take.in_memory:
            return
        try:
            path = self._path()
            self._file = trace_file.write(take.export, path, no_steps=take.no_steps, since_ns=self._since_ns)
            self._metadata = self._amended = take.metadata
            if self._file.path != path:
                beside = f"{path}: belongs to another process, so this trace is {self._file.path.name}."
                self._notes += [] if beside in self._notes else [beside]
        except RecordingFailed as failure:
            self._failures.append(str(failure))
        finally:
            take.release()

    def _add(self, plain: dict[str, TimedSteps | ClockedSteps] | None = None, **more: Any) -> None:
        """Have `amend` add to the file what came after the window: fields of `PlainSteps`, and of `Metadata`."""
        from msgspec.structs import replace as replace_struct

        if self._amended is not None:
            plain_steps = replace_struct(self._amended.plain_steps, **(plain or {}))
            self._amended = replace(self._amended, plain_steps=plain_steps, **more)

    def _amend(self) -> None:
        """Add what came after the recording to the file, and note if it cannot be amended."""
        if self._file is None or self._metadata is None or self._amended is None or self._amended == self._metadata:
            return
        old, new = (metadata.json().encode() for metadata in (self._metadata, self._amended))
        try:
            self._file = trace_file.amend(self._file, old, new)
            self._metadata = self._amended
        except RecordingFailed as failure:
            self._amended = self._metadata
            self._notes.append(f"{failure} It lacks what was measured after the recording.")

    # -- Steps after the recording, and samples of the host

    def _add_steps(self, *, wait: bool = False) -> None:
        if self._timer.timed:
            self._add({"after": self._timer.read(wait=wait)})
            self._timer.restart()

    def _sample(self) -> None:
        sampler = self._sampler
        assert sampler is not None
        if profiler_running():
            # The program's own profiler, which slows it.
            sampler.stop()
        else:
            # It starts once the program has settled.
            self._timer.step(self._steps)
            if self._timer.timed:
                sampler.step()

    def _finish_sampling(self) -> None:
        if self._sampler is not None:
            self._sampler.finish()
            self._end_sampling()

    def _end_sampling(self) -> None:
        sampler, self._sampler = self._sampler, None
        assert sampler is not None
        self._timer.restart()
        if self._clocks_on:
            self._clock()
        if sampler.activity is not None:
            self._add(host_activity=sampler.activity)
        self._notes += filter(None, [sampler.note])

    def _start_sampling(self) -> None:
        self._sampler = HostSampler()

    # -- All steps, and other steps that are recorded instead

    def _clock(self, groups: tuple[tuple[int, int], ...] | None = None) -> None:
        """Note the lengths of all steps at the pace of the recording."""
        from overlapscope.trace.model import ClockedSteps

        clocked = ClockedSteps(
            self._pace.at_recorded_pace if groups is None else groups, max(self.step_times.recorded_ns, default=0)
        )
        if clocked.steps:
            self._add({"clocked": clocked})

    def _clock_first(self) -> None:
        """Do so for a first recording that stays, since the program ended before or during a better one."""
        if self._first is not None and self._done is self._first:
            self._clock(self._before_again if self.state is State.RECORDING else None)

    def _pace_differs(self) -> bool:
        """Return whether the recorded steps are not the program's usual ones, so that later steps are recorded."""
        now_ns = self._pace.elsewhere() if self._times_again and _is_alone() else None
        if now_ns is not None:
            self._why_now.append(
                f"Steps took {duration(self._pace.recorded_ns)} when they were first recorded, but the program spends "
                f"more of its time in steps of {duration(now_ns)}. Steps after step {self._steps:,} are recorded "
                "instead."
            )
        return now_ns is not None

    def _record_again(self) -> None:
        self._times_again, self._unsteady_since_ns = self._times_again - 1, None
        self._first = self._kept = self._done
        self._done = None

    # -- The end

    def _explain(self) -> None:
        """Note a window that the program, which has ended, did not reach."""
        if self._done is None and self._slow is not None:
            self._notes.append(self._slow.why_none())
        elif self._done is None and not self._failures:
            self._failures.append(self._options.why_none())

    def _explain_times(self) -> None:
        plain, due = self.step_times.plain, self._options.plain_steps and self._options.by_clock
        if self._done and due and not (plain.before.host_ns or plain.after.host_ns):
            self._notes.append(_NO_PLAIN_STEPS)


def _is_alone() -> bool:
    """Return whether the program has no other ranks."""
    return rank_of(os.environ) is None


_MEANINGS: dict[str, Callable[[WindowRecorder], object]] = {
    **{name.lstrip("_"): method for name, method in vars(WindowRecorder).items() if callable(method)},
    # Questions
    "clocks_all": lambda r: r._clocks_on,
    "events_fit": lambda r: not r._last.takes_too_much(r._steps),
    "has_failed": lambda r: r._failures,
    "has_rehearsal": lambda r: r._fallback,
    "has_settled": lambda r: clock.now_ns() > r._settles_by_ns,
    "is_first_time": lambda r: r._options.plain_steps and r._first is None,
    "is_hopeless": lambda r: r._is_stuck and r._is_due and not r._may_wait(),
    "is_past_rehearsal": lambda r: r._options.rehearsal and r._options.rehearsal.over(r._steps),
    "is_sampled": lambda r: r._sampler and r._sampler.over,
    "is_timed_after": lambda r: r._options.plain_steps and r._steps and (r._counting or r._done) is r._last,
    "is_unmarked": lambda r: r._bounded and not r.marked,
    "is_unmarked_again": lambda r: r._kept and not r.marked and r._last.lasted_s > _MIN_UNMARKED_S,
    "lacks_rehearsal": lambda r: r._options.rehearsal is None,
    "may_record": lambda r: r._is_due and r._may_start() and r._is_steady(),
    "one_step_is_left": lambda r: r._last.window.end == r._steps + 1,
    "opens_later": lambda r: not r._options.at_once,
    "others_may_stop": lambda r: r.recording and r._last.all_threads,
    "profiler_runs": lambda r: profiler_running(),
    "ranges_close": lambda r: r._ranges.look_whether_new() and (r._steps > 1 or r._ranges.are_left),
    "starts_at_once": lambda r: r._options.at_once,
    "steps_are_left": lambda r: not r._last.window.over(r._steps),
    "steps_are_long": lambda r: r._timer.full and median_ns(r._timer.lengths_ns) > LONGEST_STEP_NS,
    "steps_are_timed": lambda r: r._timer.full,
    "windows_follow": lambda r: not r._last.wanted,
    # Actions
    "await_steps": lambda r: r._add_steps(wait=True),
    # A larger --max-size would change nothing.
    "blame_no_option": lambda r: r._options.max_size_bytes > _UNMARKED_BYTES and r._last.notes.pop(),
    "blame_program": lambda r: r._failures.append(_UNUSED),
    "fail": lambda r: r._failures.append(r._failure),
    "look": lambda r: r._ranges.look(),
    "pause": lambda r: r._timer.pause(),
    "resume": lambda r: r._timer.resume(r._steps),
    # The first start is slow, and would make a window late.
    "try_profiler": lambda r: r._session(r._options.recording(r._steps)),
}
"""Answers to the questions of `states.TABLE`, and its actions: methods of the recorder, and what takes a line."""
