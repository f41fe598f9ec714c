"""The takes of a window, which are runs of the profiler: the choice of one, and its file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.errors import RecordingFailed
from overlapscope.recorder import trace_file
from overlapscope.recorder.session import Session
from overlapscope.recorder.step_times import StepTimings
from overlapscope.recorder.trace_file import Metadata, Written

if TYPE_CHECKING:
    from overlapscope.trace.host_activity import HostActivity
    from overlapscope.trace.model import ClockedSteps, TimedSteps


@dataclass(slots=True)
class _WindowFile:
    written: Written
    metadata: Metadata
    """Metadata that is in the file."""
    amended: Metadata
    """Metadata that `WindowTakes.amend` writes instead."""


class WindowTakes:
    """Takes of the window, of which one counts.

    The recording counts as soon as it has a step and at least as many judged steps as the rehearsal. Until then the
    rehearsal does, or a recording without a step (`unmarked`) if neither has a step yet. If a take turns out to have no
    GPU op with a time when it stops, an earlier take that has them counts instead.
    """

    def __init__(self, path: Callable[[], Path], *, since_ns: int) -> None:
        """Prepare to write one. `path()` returns the file's path; `since_ns` is that of `destination.put`."""
        self._path, self._since_ns = path, since_ns
        self._file: _WindowFile | None = None
        self._beside: list[str] = []
        """Sentence on a file with another name than its own."""
        self.rehearsal: Session | None = None
        """None once the recording counts."""
        self.recording: Session | None = None
        self.unmarked: Session | None = None
        """Recording without a step that is in the file, until a step is recorded."""
        self.done: Session | None = None
        """Take that is in the file for good, unless steps are recorded again."""
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
        """Return the take that counts of the window under way, or else the one that is done."""
        return self.counting(steps) or self.done

    def all_notes(self, steps: int) -> list[str]:
        """Return the sentences about the takes that are, or would be, in the file."""
        takes = filter(None, (self.done, self.counting(steps)))
        return [*(note for take in takes for note in take.notes), *self._beside, *self.notes, *self.failures]

    def write(self, take: Session) -> None:
        """Write a take, unless it is in the file already."""
        if not take.in_memory:
            return
        try:
            path = self._path()
            written = trace_file.write(take.export, path, no_steps=take.no_steps, since_ns=self._since_ns)
            self._file = _WindowFile(written, take.metadata, take.metadata)
            if written.path != path:
                self._beside = [f"{path}: belongs to another process, so this trace is {written.path.name}."]
        except RecordingFailed as failure:
            self.failures.append(str(failure))
        finally:
            take.release()

    def finish(self, take: Session) -> None:
        """Write the take that counts, and forget the others."""
        self.write(take)
        self.done = take
        for other in filter(None, (self.rehearsal, self.recording)):
            other.release()
        self.forget()

    def forget(self) -> None:
        """Forget all takes of the present window."""
        self.rehearsal = self.recording = self.unmarked = None

    # -- The file

    @property
    def path(self) -> Path | None:
        """File that was written."""
        return None if self._file is None else self._file.written.path

    @property
    def pending(self) -> bool:
        """True if `amend` has something to add."""
        return self._file is not None and self._file.amended != self._file.metadata

    @property
    def timed(self) -> bool:
        """True if steps were timed around the window."""
        if self._file is None:
            return False
        plain = self._file.metadata.plain_steps
        return self.pending or bool(plain.before.host_ns or plain.after.host_ns)

    def step_times(self, steps: int) -> StepTimings:
        """Return the lengths of steps with the profiler, of the `last` take, and without, as the file has them."""
        from overlapscope.trace.model import PlainSteps

        last = self.last(steps)
        metadata = Metadata(0, PlainSteps()) if self._file is None else self._file.metadata
        return StepTimings(metadata.plain_steps, () if last is None else tuple(last.judged_ns), metadata.host_activity)

    def add(self, activity: HostActivity | None = None, **plain: TimedSteps | ClockedSteps) -> None:
        """Note what came after the window: activity of the host, and fields of `PlainSteps`."""
        from msgspec.structs import replace as replace_struct

        if self._file is not None:
            amended = self._file.amended
            plain_steps = replace_struct(amended.plain_steps, **plain)
            self._file.amended = replace(
                amended, plain_steps=plain_steps, host_activity=activity or amended.host_activity
            )

    def found(self, counts: dict[str, int]) -> None:
        """Note how many things each observer found."""
        if self._file is not None:
            self._file.amended = replace(self._file.amended, found=counts)

    def amend(self) -> None:
        """Add what came after the recording to the file, and note if it cannot be amended."""
        file = self._file
        if file is None or file.amended == file.metadata:
            return
        try:
            file.written = trace_file.amend(file.written, file.metadata.json().encode(), file.amended.json().encode())
            file.metadata = file.amended
        except RecordingFailed as failure:
            file.amended = file.metadata
            self.notes.append(f"{failure} It lacks what was measured after the recording.")
