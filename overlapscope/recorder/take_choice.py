"""The choice between the takes of a recording: sessions of the profiler, of which one is written for each window."""

from __future__ import annotations

from overlapscope.errors import RecordingFailed
from overlapscope.recorder.session import Session
from overlapscope.recorder.trace_file import TraceFiles


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
            self.files.write(len(self.done) + 1, take)
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
