"""The state of a recorder: its stage, its takes and its counts, and what follows from them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path

from overlapscope.errors import RecordingFailed
from overlapscope.recorder.options import Options
from overlapscope.recorder.pace import Pace
from overlapscope.recorder.sampling.host_sampler import HostSampler
from overlapscope.recorder.session import Session
from overlapscope.recorder.step_times import SlowSteps, StepTimer, StepTimings
from overlapscope.recorder.trace_file import TraceFiles

_UNMARKED_WINDOWS = 2
"""Number of windows of a program without steps: the first at its start, the second after its start-up."""


class Stage(enum.Enum):
    """Stages of a recorder. They follow in this order, though some may be left out."""

    PUT_OFF = "put off"
    REHEARSAL = "rehearsal"
    UNMARKED = "unmarked"
    """A recording without a step is in the file, and the profiler is off. A step starts it again."""
    BETWEEN = "between"
    """The profiler is off: the program settles, steps are timed, and a window will open."""
    RECORDING = "recording"
    AFTER = "after"
    """The trace is written, and steps are timed."""
    SAMPLING = "sampling"
    """The steps are timed, and the host is sampled in steps of their own."""
    SETTLING = "settling"
    """Everything is written, but the program has just begun: its pace may change, and then it is recorded again."""
    CLOCKING = "clocking"
    """The same later: steps are clocked until the program ends."""
    DONE = "done"


class RecorderState:
    """The state of a recorder. Its subclass `WindowRecorder` changes it."""

    def __init__(self, options: Options, files: TraceFiles) -> None:
        self._options = options
        self.stage = Stage.DONE
        self._takes = TakeChoice(files)
        self._unmarked_windows = 0
        """Number of windows that ended without a step."""
        self._timer = StepTimer(options.plain_steps)
        """Times the steps before the recording, and then those after it."""
        self._sampler: HostSampler | None = None
        """Samples the host; None except in the stage for it."""
        self._pace = Pace()
        self._slow = None if options.slow_step is None else SlowSteps(options.slow_step)
        self._steps = 0
        """Number of finished steps."""
        self._repeats = False
        """True if a recording that may be replaced is in the file."""

    @property
    def running(self) -> bool:
        """True if anything is being recorded, or will be."""
        return self.stage not in (Stage.AFTER, Stage.SAMPLING, Stage.SETTLING, Stage.CLOCKING, Stage.DONE)

    @property
    def recording(self) -> bool:
        """True if a window is open, or the program's first steps are recorded."""
        return self.stage in (Stage.REHEARSAL, Stage.RECORDING)

    @property
    def marked(self) -> bool:
        """True if the program has marked a step."""
        return self._steps > 0

    @property
    def bounded_out(self) -> bool:
        """True if nothing more is recorded unless the program marks a step."""
        return self.stage is Stage.UNMARKED and self._unmarked_windows == _UNMARKED_WINDOWS

    @property
    def repeating(self) -> bool:
        """True if a recording is written, and steps are recorded again to replace it."""
        return self._repeats and self.running

    @property
    def wants_steps(self) -> bool:
        """True if ends of steps still matter."""
        return self.stage is not Stage.DONE

    @property
    def complete(self) -> bool:
        """True if the recording and all that belongs to it is written."""
        over = self.stage in (Stage.CLOCKING, Stage.DONE)
        return over and not self._timer.timed and not self._takes.files.pending

    @property
    def step_times(self) -> StepTimings:
        """Lengths of steps with and without the profiler."""
        last = self._takes.last(self._steps)
        files = self._takes.files
        return StepTimings(files.plain_steps, () if last is None else tuple(last.judged_ns), files.host_activity)

    @property
    def all_steps(self) -> str | None:
        """A sentence on all steps without the profiler; None if none was clocked."""
        return self._pace.sentence(self.step_times.recorded_ns)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Traces of windows that are over."""
        paths = self._takes.files.paths
        return paths if self.bounded_out else paths[: len(self._takes.done)]

    @property
    def written(self) -> bool:
        """True if there is a file, even if a better recording may replace it."""
        return bool(self._takes.files.paths)

    @property
    def notes(self) -> list[str]:
        """Sentences on the contents of the files, written or to be written."""
        return self._takes.all_notes(self._steps)

    @property
    def failure(self) -> RecordingFailed | None:
        """Error that prevents a trace; None if nothing failed."""
        return RecordingFailed(self._takes.failures[0]) if self._takes.failures else None

    @property
    def why_unwritten(self) -> str | None:
        """Sentence on why a take that was complete is in no file; None if there is none."""
        return self._takes.failures[0] if self._takes.failures and self._takes.done and not self.written else None

    @property
    def _running(self) -> Session | None:
        """Session that is being recorded."""
        if self.stage is Stage.REHEARSAL:
            return self._takes.rehearsal
        return self._takes.recording if self.stage is Stage.RECORDING else None

    def _why_incomplete(self) -> Iterator[str]:
        """Yield sentences on windows that the program, which has ended, did not reach."""
        done = len(self._takes.done)
        if not done and self._slow is not None:
            yield self._slow.why_none()
        elif not done and not self._takes.failures:
            self._takes.failures.append(self._options.why_none())
        elif done < self._options.repeat and not self._takes.failures:
            yield f"The program ended after {done} of {self._options.repeat} windows."


# -- The choice between takes ------------------------------------------------------------------------


class TakeChoice:
    """Takes of the window under way, of which one counts, and those of earlier windows.

    The recording counts as soon as it has a step and at least as many judged steps as the rehearsal. Until then the
    rehearsal does, or a recording without a step (`unmarked`) if neither has a step yet. If a take turns out to have no
    GPU op with a time when it stops, an earlier take that has them counts instead.
    """

    def __init__(self, files: TraceFiles) -> None:
        self.files = files
        self.rehearsal: Session | None = None
        """None once the recording counts."""
        self.recording: Session | None = None
        self.unmarked: Session | None = None
        """Recording without a step that is in the file, until a step is recorded."""
        self.done: list[Session] = []
        """Takes that are in the files of earlier windows."""
        self.notes: list[str] = []
        """Sentences that are about no take in particular."""
        self.failures: list[str] = []

    def counting(self, steps: int) -> Session | None:
        """Return the take that is written if nothing more comes, after this number of finished steps."""
        take = self.by_steps(steps)
        others = [other for other in (self.rehearsal, self.unmarked) if other is not None and other is not take]
        if take is None or not others or take.has_gpu_times is not False:
            return take
        return next((other for other in others if other.has_gpu_times), take)

    def by_steps(self, steps: int) -> Session | None:
        """Return the take that counts by its steps."""
        rehearsal, recording = self.rehearsal, self.recording
        if recording is None or rehearsal is None:
            take = recording or rehearsal
            without_a_step = take is None or steps <= take.window.first
            return self.unmarked if self.unmarked and without_a_step else take
        more = steps > recording.window.first and len(recording.judged_ns) >= len(rehearsal.judged_ns)
        return recording if more else rehearsal

    def last(self, steps: int) -> Session | None:
        """Return the take that counts of the window under way, or else that of the window before."""
        return self.counting(steps) or (self.done[-1] if self.done else None)

    def all_notes(self, steps: int) -> list[str]:
        """Return the sentences about all takes that are, or would be, in files."""
        counting = self.counting(steps)
        takes = self.done if counting is None else [*self.done, counting]
        return [*(note for take in takes for note in take.notes), *self.files.notes, *self.notes, *self.failures]

    def write(self, take: Session) -> None:
        """Write a take as the present window, unless it is in the file already."""
        if not take.in_memory:
            return
        try:
            self.files.write(len(self.done) + 1, take.export, take.metadata, take.no_steps)
        except RecordingFailed as failure:
            self.failures.append(str(failure))
        finally:
            take.release()

    def finish(self, take: Session) -> None:
        """Write the take that counts, and forget the others of its window."""
        self.write(take)
        self.done.append(take)
        for other in (self.rehearsal, self.recording):
            if other is not None:
                other.release()
        self.drop()
        self.unmarked = None

    def drop(self) -> None:
        """Forget the rehearsal and the recording of the present window."""
        self.rehearsal = self.recording = None
