"""A recording of a program that goes on, asked for by somebody else."""

from __future__ import annotations

from collections.abc import Callable

from overlapscope.recorder.recording import Recording, SilentRecording
from overlapscope.watching.protocol import Request

_OWN_RECORDING = "The program began a recording of its own, which takes precedence."


class AskedRecording(SilentRecording):
    """One recording, which whatever the program itself records takes the place of."""

    when_over: Callable[[], None] | None = None
    """Called behind the recorder's work once nothing is left for it to do."""

    @classmethod
    def of(cls, request: Request) -> AskedRecording:
        """Raises UsageError for numbers and file names that make no sense."""
        by_time = request.seconds is not None
        return cls(
            request.path,
            active=None if by_time else request.steps,
            duration_s=request.seconds,
            plain_steps=0 if by_time else request.plain_steps,
            light=request.light,
            stacks=request.stacks,
        )

    @property
    def step_source(self) -> str | None:
        """Unknown: the watcher passes on what it takes for steps."""
        return None

    @property
    def over(self) -> bool:
        """Nothing is recorded or timed any more, or something of the program's took precedence."""
        return self._recorder is not None and not self._recorder.wants_steps

    @property
    def given_up(self) -> str | None:
        """Why nothing was written: a sentence."""
        return self._driver.gave_way

    def give_up(self, because: str) -> None:
        """Stop and write nothing; on the thread that began, or where a profiler of the program's takes over."""
        if self._driver.give_way(because):
            self._leave()

    def _worked(self) -> None:
        if self.over and self.when_over is not None:
            call, self.when_over = self.when_over, None
            call()

    def _make_way(self, other: Recording) -> None:
        self.give_up(_OWN_RECORDING)
