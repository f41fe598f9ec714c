"""Recording a program on request, while it goes on."""

from __future__ import annotations

from collections.abc import Callable

from overlapscope.plugins.watch.protocol import RecordingRequest
from overlapscope.recorder.options import Options
from overlapscope.recorder.recording import Recording, SilentRecording

_OWN_RECORDING = "The program began a recording of its own, which takes precedence."


class AskedRecording(SilentRecording):
    """A recording on request, which gives way to the program's own recordings and profilers."""

    when_over: Callable[[], object] | None = None
    """Function to call after the recorder's work, once nothing is left for it to do."""

    @classmethod
    def of(cls, request: RecordingRequest) -> AskedRecording:
        """Return the recording for a request. Raises UsageError for numbers and file names that make no sense."""
        by_time = request.seconds is not None
        options = Options(
            active=None if by_time else request.steps,
            duration_s=request.seconds,
            plain_steps=0 if by_time else request.plain_steps,
            light=request.light,
            stacks=request.stacks,
        )
        return cls(request.path, options)

    @property
    def step_source(self) -> str | None:
        """None, since the watcher chooses the steps."""
        return None

    @property
    def over(self) -> bool:
        """True if nothing is recorded or timed any more, or a recording of the program took precedence."""
        return self._recorder is not None and not self._recorder.wants_steps

    @property
    def given_up(self) -> str | None:
        """Sentence on why nothing was written; None if nothing prevented it."""
        return self._driver.gave_way

    @property
    def why_unwritten(self) -> str | None:
        """Sentence on why a recording could not be written, such as a full disk; None if there was nothing to write."""
        return self._recorder.why_unwritten if self._recorder is not None else None

    def give_up(self, because: str) -> None:
        """Stop and write nothing, for the reason in the sentence `because`.

        Call this on the thread that began, or when a profiler of the program takes over.
        """
        if self._driver.give_way(because):
            self._leave()

    def _worked(self) -> None:
        if self.over and self.when_over is not None:
            call, self.when_over = self.when_over, None
            call()

    def _make_way(self, other: Recording) -> None:
        self.give_up(_OWN_RECORDING)
