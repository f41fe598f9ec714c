"""The recorder: the profiler's way through the windows of a schedule.

It decides, and knows no threads: `driver.Driver` calls it on one thread, one call at a time. Users see
`recording.Recording`. It opens and closes a `session.Session`, a run of the profiler.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.base import clock
from overlapscope.base.median import median_ns
from overlapscope.base.words import duration, plural
from overlapscope.errors import RecordingFailed
from overlapscope.recorder import all_threads
from overlapscope.recorder.options import Options, StepWindow
from overlapscope.recorder.pace import Pace, becomes_faster, compilations, each_of, long_steps, steps_to_record
from overlapscope.recorder.recorder_state import RecorderState, Stage
from overlapscope.recorder.sampling.host_sampler import LONGEST_STEP_NS, HostSampler
from overlapscope.recorder.session import OpenRanges, Session, profiler_running
from overlapscope.recorder.trace_file import TraceFiles

if TYPE_CHECKING:
    from overlapscope.trace.model import TimedSteps

_UNMARKED_BYTES = 220_000_000
"""Memory of two million events, each of which takes at least 110 bytes (`memory_guard`)."""
_UNMARKED = (
    "The program marked no step, so {:.1f} s of it were recorded, {}. overlapscope.step() at the end of an iteration "
    "marks steps; --whole records the whole program."
)
_NO_GPU_TIMES = (
    "The recording of later steps has no times of GPU ops, which is a defect of torch.profiler, so what was recorded "
    "before them is used instead; run it again to record later steps."
)
SETTLES_S: float = 5
"""Time from the first step in which the pace often changes, as tuning and compilation end, in seconds."""
_TIMES_AGAIN = 2
"""Maximum number of times that steps are recorded again because the pace changed."""
_FIRST_LOOK, _NEXT_LOOK = 40, 1.25
"""Number of clocked steps from which on the recorded ones are compared with all, and the growth from look to look."""
_PATIENCE_S = 30
"""Maximum time to wait for steady steps before a recording, in seconds."""
_UNSTEADY = "Steps still became faster after {} s, and are recorded all the same."
_LEAST_UNMARKED_S = 1
"""Minimum length of the second of these windows for it to replace the first, in seconds."""
_NO_STACKS = (
    "The trace has no stacks, because they are not recorded while the recorder waits for steps; --wait 0 records "
    "them from the start."
)


class WindowRecorder(RecorderState):
    """Records from `start` until the schedule, the memory guard or `finish` ends it.

    Either the rehearsal or the recording counts (`TakeChoice`). Until the recording does, the rehearsal is kept in
    memory or, if memory runs short, in the file.

    A range that was entered under one session of the profiler must not be left under another (`OpenRanges`). So the
    profiler is off for at least a step between rehearsal and recording, in which such ranges close: the program's
    around its step, or torch's around an optimizer's. If a range stays open around several steps, the rehearsal
    continues as the recording, and its steps to wait for are not judged.

    While a rehearsal waits for steps, no stacks are recorded, since a Python call takes 1.6 KB when the profiler stops
    and the first step may take long.

    A program that is `bounded` and marks no step is recorded only between `open` and `close`, the first time from its
    start, until it marks a step.

    Windows that open by `open` and `close`, and not by steps, have no rehearsal. Each of several windows has a file.
    With `slow_step`, windows without a slow step are thrown away.

    A failure after the start is kept in `failure`, since a program does not stop when its recording fails.
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
        awaits_first_step: Callable[[], bool] = lambda: False,
        records_again: bool = False,
        is_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare a recorder.

        Args:
            path: Function that returns the trace file (`TraceFiles`).
            options: Options of the recording.
            since_ns: Time after which other processes may have written a file of this name (`TraceFiles`).
            bounded: Whether to limit the recording of a program without steps.
            on_too_much: Function that the memory guard calls on its thread. `make_room` should follow on the right one.
            step_source: Function that returns what ends steps, in words.
            steps_are_settled: Function that returns false while what ends steps may change; no recording is timed then.
            awaits_first_step: Function that returns whether the program seems to be in its first step.
            records_again: Whether to clock all steps, and to record again if the pace changes.
            is_alone: Function that returns whether the program has no other ranks.
        """
        super().__init__(options, TraceFiles(path, options.repeat, since_ns=since_ns))
        self._bounded = bounded
        self._on_too_much = on_too_much
        self._step_source, self._steps_are_settled = step_source, steps_are_settled
        self.awaits_first_step = awaits_first_step
        self._is_alone = is_alone
        self._clocks_on = records_again and options.plain_steps > 0 and options.at_once and options.repeat == 1
        self._times_again = _TIMES_AGAIN
        self._next_look = _FIRST_LOOK
        """Number of clocked steps at which to compare the recorded ones with all."""
        self._sought = 0
        """Number of steps to record so that they are like all; 0 if the options state it."""
        self._settles_by_ns = 0
        """Time at which the report need not wait for another pace any more."""
        self._compilations = 0
        """Number of frames that torch.compile has looked at before the latest end of a step."""
        self._unsteady_since_ns: int | None = None
        """Time since which a recording waits for steady steps."""
        self._why_now: list[str] = []
        """Sentences on why the next recording opens when it does."""
        self._ranges = OpenRanges()
        self._moved = False
        """True if another thread than the first marks the steps."""
        self._before_again: tuple[tuple[int, int], ...] = ()
        """Lengths of all steps between the recording before and the one under way (`Pace.at_recorded_pace`)."""
        self._before: TimedSteps | None = None
        """Steps timed before the recording under way."""
        self._opens = options.wait
        """Number of finished steps at which the next window may open."""
        self.why_worthless: Callable[[Session], str | None] | None = None
        """Function that returns why a recording without steps is not to be written, or None if it is."""

    def start(self, *, put_off: bool = False) -> None:
        """Start to record, or with `put_off` wait for `start_now` or the end of a step.

        Raises RecordingFailed if the profiler does not start.
        """
        if put_off:
            self.stage = Stage.PUT_OFF
        else:
            self._start_first()
            self._begin_step()

    def start_now(self) -> None:
        """Start a recording that was put off."""
        if self.stage is Stage.PUT_OFF:
            self._or_fail(self._start_first)
            self._begin_step()

    def open(self) -> bool:
        """Open a window, in the middle of a step. Returns false if that is impossible now."""
        if self.stage not in (Stage.PUT_OFF, Stage.BETWEEN, Stage.UNMARKED) or not self._profiler_may_start():
            return False
        if self.stage is Stage.UNMARKED:
            self._or_fail(self._start_first)
            self._begin_step()
        else:
            self._or_fail(self._open_recording)
        return self.recording

    def close(self) -> None:
        """Close the open window."""
        if not self.recording:
            return
        if self._bounded and not self.marked:
            self._end_unmarked()
        else:
            self._end_recording()

    def step(self) -> None:
        """Mark the end of a step, and open or close a window if that is due."""
        before, self._compilations = self._compilations, compilations()
        compiled = self._compilations != before
        self._pace.end(counts=not compiled)
        self._steps += 1
        if self._steps == 1:
            self._settles_by_ns = clock.now_ns() + round(SETTLES_S * clock.NS_PER_S)
        if self._running is not None:
            self._running.allow(self._options.max_size_bytes)
            self._running.end_step(self._steps)
        match self.stage:
            case Stage.PUT_OFF:
                self._or_fail(self._start_first)
            case Stage.UNMARKED:
                if self._profiler_may_start():
                    self._or_fail(self._start_first)
            case Stage.REHEARSAL:
                self._step_in_rehearsal()
            case Stage.BETWEEN:
                self._time_step(compiled=compiled)
                if self._recording_is_due():
                    if self._profiler_may_start():
                        if self._is_steady():
                            self._or_fail(self._open_recording)
                    elif self._moved and not all_threads.left_ops_are_over() and not self._may_wait():
                        self._give_up()
            case Stage.RECORDING:
                self._step_in_recording()
            case Stage.AFTER:
                if profiler_running():
                    # The program's own profiler, which may leave it slower.
                    self.stage = Stage.DONE
                else:
                    self._time_step(compiled=compiled)
                    if self._timer.full:
                        self._end_steps_after()
            case Stage.SAMPLING:
                self._step_in_sampling()
            case Stage.SETTLING:
                if not self._follow_pace() and clock.now_ns() > self._settles_by_ns:
                    self.stage = Stage.CLOCKING
            case Stage.CLOCKING:
                self._follow_pace()
        self._begin_step()

    def finish(self) -> None:
        """Stop, write the trace unless that is done, and add the steps timed since then to it."""
        if self.stage is Stage.PUT_OFF and self._options.at_once:
            self._takes.failures.append(
                "There is no trace: the program used no GPU and marked no step. If it works in other processes, add "
                "--subprocesses; overlapscope.step() at the end of an iteration marks steps."
            )
        elif self.running:
            take = self._running
            if self._takes.unmarked and take and not self.marked and take.lasted_s > _LEAST_UNMARKED_S:
                self._end_unmarked()
            groups = self._before_again if self.stage is Stage.RECORDING else self._pace.at_recorded_pace
            first = self._takes.rehearsal
            self._end()
            if self._repeats and self._takes.done == [first]:
                self._note_clocked(groups)
            self._takes.notes += self._why_incomplete()
        elif self._clocks_on:
            self._note_clocked(self._pace.at_recorded_pace)
        if self._sampler is not None:
            self._sampler.finish()
            self._end_sampling(self._sampler)
        self.stage = Stage.DONE
        self._add_steps_after()
        if self._takes.done and self._options.plain_steps and not (self._options.by_steps or self._takes.files.timed):
            self._takes.notes.append(
                "No step ended before or after the recording, so no step was timed without the profiler."
            )

    def add_found(self, counts: dict[str, int]) -> None:
        """Add the number of things that each observer found to the files."""
        self._takes.files.found(counts)
        self._takes.notes += self._takes.files.amend()

    def _add_steps_after(self, *, wait: bool = False) -> None:
        """Add the steps timed after the recording, and the samples, to its file."""
        if self._timer.timed:
            self._takes.files.add(after=self._timer.read(wait=wait))
            self._timer.restart()
        self._takes.notes += self._takes.files.amend()

    def _end_steps_after(self) -> None:
        """Write the steps timed after the recording, and begin to sample unless steps take too long for that."""
        length_ns = median_ns(self._timer.read().host_ns)
        with self._timer.pausing(self._steps):
            self._add_steps_after(wait=True)
        if length_ns > LONGEST_STEP_NS:
            self.stage = self._last_stage
        else:
            self.stage, self._sampler = Stage.SAMPLING, HostSampler()

    def _step_in_sampling(self) -> None:
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
        if sampler.over:
            self._end_sampling(sampler)
            self.stage = self._last_stage

    def _note_clocked(self, groups: tuple[tuple[int, int], ...]) -> None:
        from overlapscope.trace.model import ClockedSteps

        longest_ns = max(self.step_times.recorded_ns, default=0)
        self._takes.files.add(clocked=ClockedSteps(groups, longest_ns))

    def _end_sampling(self, sampler: HostSampler) -> None:
        self._sampler = None
        self._timer.restart()
        if self._clocks_on:
            self._note_clocked(self._pace.at_recorded_pace)
        if sampler.activity is not None:
            self._takes.files.add(activity=sampler.activity)
        self._takes.notes += filter(None, [sampler.note])
        self._add_steps_after()

    def steps_changed(self) -> None:
        """Time steps anew, since other events end them now."""
        self._timer.restart()
        self._pace = Pace()

    def move(self) -> bool:
        """Continue on the calling thread, and count none of the steps so far, nor the one under way.

        Returns:
            False if only the thread that began may stop the profiler, or if nothing more is to be recorded.
        """
        take = self._running
        if not self.running or (take is not None and not take.all_threads):
            return False
        if take is not None:
            take.move(self._steps)
        self._moved = True
        return True

    def discard(self) -> None:
        """Stop and write nothing."""
        with suppress(Exception):
            self._stop()
        self._forget()

    def abandon(self) -> None:
        """Stop and write nothing, since a profiler on another thread is about to replace this one.

        Stopping this one then crashes the process (torch 2.13), unless it records all threads; if not, it is only
        forgotten.
        """
        take = self._running
        if take is not None and take.all_threads:
            self.discard()
        else:
            self._forget()

    def _forget(self) -> None:
        if self._running is not None:
            self._running.abandon()
        self._takes.drop()
        self._takes.unmarked = None
        self._timer.restart()
        self.stage = Stage.DONE

    def make_room(self) -> None:
        """End the recording under way if its events take too much memory."""
        take = self._running
        if take is None or not take.takes_too_much(self._steps):
            return
        if self._bounded and not self.marked:
            if self._options.max_size_bytes > _UNMARKED_BYTES:
                # A larger --max-size would change nothing.
                take.notes.pop()
            self._end_unmarked()
        elif self.stage is Stage.REHEARSAL:
            with self._timer.pausing(self._steps):
                self._stop()
                self._ranges.look()
                has_gpu_times = take.has_gpu_times
                if self._takes.unmarked is None or has_gpu_times or not self._takes.unmarked.has_gpu_times:
                    self._takes.write(take)
                take.release()
            self.stage = Stage.BETWEEN
        else:
            self._end_recording()

    def _start_first(self) -> None:
        rehearsal = self._options.rehearsal
        if not self._options.at_once:
            # The first start is slow, and would make a window late.
            self._takes.recording = self._start_session(self._options.recording(self._steps), Stage.RECORDING)
            self._stop()
            self._takes.recording, self.stage = None, Stage.BETWEEN
        elif rehearsal is None:
            self._takes.recording = self._start_session(self._options.whole.begun(self._steps), Stage.RECORDING)
        elif rehearsal.over(self._steps):
            self.stage = Stage.BETWEEN
        else:
            self._takes.rehearsal = self._start_session(rehearsal.begun(self._steps), Stage.REHEARSAL)

    def _end_unmarked(self) -> None:
        """End a recording without a step. It replaces the one before only if it has ops, and GPU ops if that has."""
        take = self._running
        assert take is not None
        self._unmarked_windows += 1
        when = "after its start-up" if self._takes.unmarked else "from its start on"
        take.notes.append(_UNMARKED.format(take.lasted_s, when))
        with self._timer.pausing(self._steps):
            self._stop()
            self._ranges.look()
            before, has_gpu_times = self._takes.unmarked, take.has_gpu_times
            lost = before is not None and before.has_gpu_times and not has_gpu_times
            if before is None or not (take.empty or lost):
                self._takes.write(take)
                self._takes.unmarked = take
        self._takes.drop()
        self.stage = Stage.UNMARKED

    def _step_in_rehearsal(self) -> None:
        take = self._takes.rehearsal
        assert take is not None
        if not take.window.over(self._steps):
            if take.window.over(self._steps + 1):
                self._ranges.look()
            self.make_room()
        elif self._ranges.look_whether_new() and (self._steps > 1 or self._ranges.are_left):
            with self._timer.pausing(self._steps):
                self._stop()
                self._ranges.look()
            self.stage = Stage.BETWEEN
        else:
            self._takes.rehearsal, self._takes.recording = None, take
            whole = self._options.whole.begun(take.window.first)
            del take.judged_ns[: whole.judged - take.window.judged]
            take.window = whole
            if self._options.plain_steps:
                take.notes.append(
                    "A record_function stays open around several steps, so none could be timed before the recording."
                )
            self.stage = Stage.RECORDING
            self._step_in_recording()

    @property
    def _last_stage(self) -> Stage:
        return Stage.SETTLING if self._clocks_on else Stage.DONE

    def _follow_pace(self) -> bool:
        """Return whether the recorded steps are not the program's usual ones, so that later steps are recorded."""
        why = self._why_again() if self._times_again and self._is_alone() else None
        if why is None:
            return False
        self._times_again, self._unsteady_since_ns = self._times_again - 1, None
        self._why_now.append(f"{why} Steps after step {self._steps:,} are recorded instead.")
        self._takes.rehearsal, self.stage, self._repeats = self._takes.done.pop(), Stage.BETWEEN, True
        return True

    def _why_again(self) -> str | None:
        """Return a sentence on why other steps have to be recorded; None if none have to."""
        now_ns = self._pace.elsewhere()
        if now_ns is not None:
            self._sought = 0
            return (
                f"Steps took {duration(self._pace.recorded_ns)} when they were first recorded, but the program spends "
                f"more of its time in steps of {duration(now_ns)}."
            )
        if self._pace.steps < self._next_look or not self._pace.is_that_recorded:
            return None
        self._next_look = math.ceil(_NEXT_LOOK * self._pace.steps)
        recorded_ns, groups = self.step_times.recorded_ns, self._pace.at_recorded_pace
        self._sought = steps_to_record(recorded_ns, groups) or 0
        if not self._sought:
            return None
        recorded_pct, pct = (round(100 * long_steps(steps)[1]) for steps in (each_of(recorded_ns), groups))
        return (
            f"Steps that take over twice the median have {pct}% of the program's time, but {recorded_pct}% of that of "
            f"the {plural(len(recorded_ns), 'recorded step')}."
        )

    def _give_up(self) -> None:
        """Record nothing more, and write what was recorded."""
        with self._timer.pausing(self._steps):
            self._end()
        times_more = self._options.plain_steps and not self._repeats
        self._times_again, self.stage = 0, Stage.AFTER if times_more else self._last_stage

    def _time_step(self, *, compiled: bool) -> None:
        """Time the step that has ended; after one that compiled, begin anew."""
        self._timer.step(self._steps)
        if compiled and self._is_alone() and self._may_wait():
            self._timer.restart()

    def _is_steady(self) -> bool:
        """Return whether the timed steps don't become faster, or have done so for too long.

        Ranks of a job don't wait: all record the same steps.
        """
        if not becomes_faster(self._timer.lengths_ns) or not self._is_alone():
            return True
        if self._may_wait():
            return False
        self._why_now.append(_UNSTEADY.format(_PATIENCE_S))
        return True

    def _may_wait(self) -> bool:
        """Return whether the recording may wait longer for steady steps."""
        if self._unsteady_since_ns is None:
            self._unsteady_since_ns = clock.now_ns()
        return clock.now_ns() - self._unsteady_since_ns < _PATIENCE_S * clock.NS_PER_S

    def _recording_is_due(self) -> bool:
        due = self._options.by_steps and self._steps >= self._opens and self._timer.full
        return due and (not self._options.plain_steps or self._steps_are_settled())

    def _profiler_may_start(self) -> bool:
        """Return whether the profiler can start: no range of the last session is open, and no profiler runs.

        A recorder that has moved may have to be ended on another thread, which only a session of all threads allows.
        """
        may_stop_elsewhere = not self._moved or all_threads.left_ops_are_over()
        return self._ranges.are_left and may_stop_elsewhere and not profiler_running()

    def _open_recording(self) -> None:
        # The session waits for the devices as well, but only once the profiler runs.
        self._before = self._timer.read(wait=True)
        self._before_again = self._pace.at_recorded_pace
        self._pace.record(self._before.host_ns, at_same_pace=self._sought > 0)
        if self._takes.done:
            self._takes.files.add(after=self._before)
        # The window may open in the middle of a step, which does not belong to it.
        first = self._steps if self._options.by_steps else self._steps + 1
        window = self._options.recording(first)
        if self._sought:
            window = replace(window, end=window.judged + self._sought)
        self._takes.recording = self._start_session(window, Stage.RECORDING)
        self._takes.recording.notes += self._why_now
        self._why_now = []

    def _step_in_recording(self) -> None:
        take = self._takes.recording
        assert take is not None
        if take.window.end is None and self._takes.counting(self._steps) is take:
            self._takes.rehearsal = None
        if self._slow is not None and self._steps > take.window.judged:
            slow = self._slow.judge(self._steps - 1, take.judged_ns[-1])
            if slow is not None:
                take.keep(self._steps - 1, slow)
        if self._lacks_long_step(take):
            take.window = replace(take.window, end=self._steps + 1)
        if take.window.over(self._steps):
            self._end_recording()
        else:
            self.make_room()

    def _lacks_long_step(self, take: Session) -> bool:
        """Return whether the recording is to go on, up to twice its length, since it is still unlike all steps."""
        if not self._sought or not take.window.over(self._steps) or len(take.judged_ns) >= 2 * self._sought:
            return False
        return steps_to_record(take.judged_ns, self._before_again) is not None

    def _end_recording(self) -> None:
        take = self._takes.recording
        assert take is not None
        again = not take.wanted or len(self._takes.done) + 1 < self._options.repeat
        with self._timer.pausing(self._steps):
            self._end()
            if again or self._clocks_on:
                self._ranges.look()
        if self._takes.failures:
            self.stage = Stage.DONE
        elif again:
            # A step lies between two windows: see `OpenRanges`.
            self._opens = self._steps + (max(1, self._options.wait) if take.wanted else 1)
            self.stage = Stage.BETWEEN
        elif self._options.plain_steps and self._takes.last(self._steps) is take and self._steps:
            self.stage = Stage.AFTER
        else:
            self.stage = Stage.DONE

    def _end(self) -> None:
        """Stop, and write the take that counts, unless it is in the file already or not wanted."""
        self._stop()
        takes, take = self._takes, self._takes.counting(self._steps)
        if takes.failures and self._repeats and takes.rehearsal is not None:
            self._keep(takes.rehearsal)
            return
        if not (self._steps or takes.done) and take is not None and take.in_memory and self.why_worthless:
            reason = self.why_worthless(take)
            if reason is not None:
                takes.drop()
                takes.failures.append(f"There is no trace: the program marked no step, used no GPU and {reason}.")
                return
        if take is None or not take.wanted or (takes.done and self._options.by_steps and not take.judged_ns):
            takes.recording = None
            return
        if take is not takes.by_steps(self._steps):
            take.notes.append(_NO_GPU_TIMES)
        elif take is not takes.unmarked and (take is takes.rehearsal or not take.judged_ns):
            short = self._options.why_short(self._steps, len(take.judged_ns))
            if self._moved and not all_threads.left_ops_are_over():
                short = f"Later steps were not recorded: {all_threads.WHY_NOT_AGAIN}."
            # A recording at an earlier pace is complete.
            if short is not None and not self._repeats:
                take.notes.append(short)
        if take is takes.recording or self._repeats:
            # The steps timed before it are in its metadata, or of another pace than the first recording's.
            self._timer.restart()
        first = takes.rehearsal if self._repeats else None
        takes.finish(take)
        if first is not None and takes.failures:
            self._keep(first)

    def _keep(self, first: Session) -> None:
        """Keep a recording at an earlier pace, since a later one failed."""
        self._timer.restart()
        self._takes.notes += self._takes.failures
        self._takes.failures.clear()
        self._takes.drop()
        self._takes.done = [first]

    def stay(self) -> None:
        """Record nothing again."""
        self._times_again = 0

    def _start_session(self, window: StepWindow, stage: Stage) -> Session:
        waits = stage is Stage.REHEARSAL and self._options.wait > 0
        unmarked = self._bounded and not self.marked
        max_size_bytes = self._options.max_size_bytes
        options = replace(
            self._options,
            stacks=self._options.stacks and not waits,
            max_size_bytes=min(max_size_bytes, _UNMARKED_BYTES) if unmarked else max_size_bytes,
        )
        take = Session(
            window,
            options,
            on_too_much=self._on_too_much,
            wanted=self._slow is None,
        )
        if options.stacks != self._options.stacks:
            take.notes.append(_NO_STACKS)
        self.stage = stage
        return take

    def _or_fail(self, start: Callable[[], None]) -> None:
        """Call `start` in the middle of the program. If it fails, write the rehearsal, if it exists."""
        try:
            start()
        except RecordingFailed as failure:
            self.stage = Stage.DONE
            rehearsal = self._takes.rehearsal
            if rehearsal is None:
                self._takes.failures.append(str(failure))
            else:
                rehearsal.notes.append(f"{failure}; its first steps were recorded instead.")
                self._timer.restart()
                self._takes.finish(rehearsal)

    def _stop(self) -> None:
        """Stop the profiler, if it runs. The annotation of the present step stays open in the trace."""
        take = self._running
        if take is None:
            return
        from overlapscope.trace.model import TimedSteps

        before = self._before if take is self._takes.recording and self._before is not None else TimedSteps()
        try:
            take.stop(self._steps, before, self._step_source())
        except RecordingFailed as failure:
            self._takes.failures.append(str(failure))

    def _begin_step(self) -> None:
        if self._running is not None:
            self._running.begin_step(self._steps)
        # Only a step that nothing slows is clocked.
        samples = self._sampler is not None and self._sampler.slows
        slowed = self.recording or samples or not self._clocks_on or profiler_running()
        self._pace.begin(clocked=not slowed and self._timer.settled(self._steps))
