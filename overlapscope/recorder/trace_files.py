"""The files of a recording, one for each window, to which the steps that were timed behind it are added at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.errors import RecordingFailed
from overlapscope.recorder import trace_file
from overlapscope.recorder.destination import window_path
from overlapscope.recorder.session import Metadata, Session
from overlapscope.recorder.trace_file import Written

if TYPE_CHECKING:
    from overlapscope.trace.model import PlainSteps, TimedSteps


@dataclass(slots=True)
class _File:
    written: Written
    metadata: Metadata
    """What is in it."""
    after: TimedSteps | None = None
    """What is to be added."""


class TraceFiles:
    """Those of up to `windows` windows."""

    def __init__(self, path: Callable[[], Path], windows: int, *, since_ns: int) -> None:
        """`path()` is asked for the file when it is written. One that was modified at `since_ns` or later is another
        process's, unless it is one of these (`claims.put`).
        """
        self._path = path
        self._windows = windows
        self._since_ns = since_ns
        self.notes: list[str] = []
        self._files: dict[int, _File] = {}

    @property
    def paths(self) -> tuple[Path, ...]:
        """Those that were written, in order."""
        return tuple(file.written.path for file in self._files.values())

    @property
    def pending(self) -> bool:
        """Whether there is something for `amend` to do."""
        return any(file.after is not None for file in self._files.values())

    @property
    def timed(self) -> bool:
        """Whether steps were timed around any window."""
        return self.pending or any(file.metadata.plain_steps.before.host_ns for file in self._files.values())

    @property
    def plain_steps(self) -> PlainSteps:
        """The steps that were timed around the last window, as far as they are in its file."""
        from overlapscope.trace.model import PlainSteps

        files = list(self._files.values())
        return files[-1].metadata.plain_steps if files else PlainSteps()

    def write(self, number: int, session: Session) -> None:
        """Write window `number`, from 1 on, perhaps in the place of what it was before. Raises RecordingFailed."""
        path = self._path()
        if self._windows > 1:
            path = window_path(path, number)
            with suppress(OSError):
                path.parent.mkdir(exist_ok=True)  # a rank's
        written = session.write(path, since_ns=self._since_ns)
        self._files[number] = _File(written, session.metadata)
        if written.path != path:
            self.notes = [f"{path}: is another process's trace, so this one is {written.path.name}."]

    def time_behind(self, timed: TimedSteps) -> None:
        """These steps came behind the window that was written last."""
        if self._files and timed.host_ns:
            self._files[max(self._files)].after = timed

    def amend(self) -> Iterator[str]:
        """Add what was timed. Gives a sentence on each file where that fails."""
        for file in self._files.values():
            if file.after is None:
                continue
            amended = replace(file.metadata, plain_steps=replace(file.metadata.plain_steps, after=file.after))
            file.after = None
            try:
                file.written = trace_file.amend(file.written, file.metadata.json().encode(), amended.json().encode())
            except RecordingFailed as failure:
                yield f"{failure} It lacks the steps that were timed after the recording."
            else:
                file.metadata = amended
