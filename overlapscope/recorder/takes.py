"""A take: a run of the profiler with its marks of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overlapscope.base import clock
from overlapscope.errors import RecordingFailed
from overlapscope.recorder.memory_guard import MemoryGuard
from overlapscope.recorder.options import Options
from overlapscope.recorder.schedule import StepWindow
from overlapscope.recorder.session import Metadata, Session, thread_names

if TYPE_CHECKING:
    from overlapscope.trace.model import TimedSteps

_NS_PER_S = 1_000_000_000
_STEP = "ProfilerStep#"
"""Prefix of torch.profiler's names of steps, which every reader of traces looks for."""


class Take:
    """A rehearsal or a recording, running from construction to `stop`."""

    def __init__(
        self,
        window: StepWindow,
        options: Options,
        *,
        on_too_much: Callable[[], None],
        wanted: bool = True,
    ) -> None:
        """Start the profiler. Raises RecordingFailed if it does not start.

        Args:
            window: Steps to record.
            options: Contents of the recording, and its limit of memory.
            on_too_much: Function that `MemoryGuard` calls.
            wanted: Whether to keep it.
        """
        self.window = window
        self.wanted = wanted
        """True to keep it."""
        self.judged_ns: list[int] = []
        """Lengths of its judged steps by the host's clock, in nanoseconds."""
        self._has_gpu_times: bool | None = None
        self._stopped = False
        self.notes: list[str] = []
        self.session: Session | None
        """None once it is written, or if it could not be stopped."""
        try:
            self.session = Session(options)
        except Exception as error:
            raise RecordingFailed(f"torch.profiler failed to start: {_first_line(error)}") from error
        self._guard = MemoryGuard(options.max_size_bytes, on_too_much, stacks=options.stacks)
        self._begun_ns = clock.now_ns()
        """Time at which the present step began, in nanoseconds of `base.clock`."""
        self._annotation: Any = None
        """Open `record_function` of the present step."""

    def takes_too_much(self, finished: int) -> bool:
        """Return whether its events take too much memory, and add a note if they do."""
        exceeded_bytes = self._guard.exceeded_bytes
        if exceeded_bytes is None:
            return False
        where = f", in step {finished}" if finished else ""
        least = (
            " With stacks, the limit is an eighth of that." if self.session is not None and self.session.stacks else ""
        )
        self.notes.append(
            f"Recording ended early{where}: its events took up to {exceeded_bytes / 1e9:.2f} GB of memory "
            f"(--max-size).{least}"
        )
        return True

    def allow(self, max_size_bytes: int) -> None:
        """Change the limit of memory for its events."""
        self._guard.allow(max_size_bytes)

    @property
    def lasted_s(self) -> float:
        """Time since the present step began, in seconds."""
        return (clock.now_ns() - self._begun_ns) / _NS_PER_S

    @property
    def has_gpu_times(self) -> bool | None:
        """True if it has a GPU op with a time; None while it runs, and if this was not asked before it was written."""
        if self._has_gpu_times is None and self._stopped and self.session is not None:
            # To look takes a microsecond per event.
            self._has_gpu_times = self.session.has_gpu_times
        return self._has_gpu_times

    def keep(self, step: int, because: str) -> None:
        """Keep it for its last step, which alone is judged, and add the sentence `because` to its notes."""
        self.wanted = True
        self.window = StepWindow(self.window.first, step, step + 1)
        self.notes.append(because)
        del self.judged_ns[:-1]

    def begin_step(self, step: int) -> None:
        """Begin a step."""
        self._begun_ns = clock.now_ns()
        if self._annotation is None:
            from torch.profiler import record_function

            self._annotation = record_function(f"{_STEP}{step}")
            self._annotation.__enter__()

    def end_step(self, finished: int) -> None:
        """End the present step, after which `finished` steps are finished."""
        self._close_annotation()
        if finished > self.window.judged:
            self.judged_ns.append(clock.now_ns() - self._begun_ns)

    def forget(self) -> None:
        """Stop the memory guard of a take that is abandoned while its session continues."""
        self._guard.stop()

    def stop(self, finished: int, before: TimedSteps, step_source: str | None) -> None:
        """Stop the profiler. The annotation of a step under way stays open in the trace.

        Args:
            finished: Number of finished steps.
            before: Steps timed before it without the profiler.
            step_source: Description of what ended steps.

        Raises:
            RecordingFailed: The profiler does not stop, so there is nothing to write.
        """
        if self.session is None:
            return
        from overlapscope.trace.model import PlainSteps

        self._guard.stop()
        unfinished = None if self._annotation is None else self._annotation.name
        try:
            source = step_source if finished > self.window.first else None
            plain, origin = PlainSteps(before=before), self.session.origin
            metadata = Metadata(self.window.warm_up_steps(finished), plain, origin, source, thread_names())
            self.session.stop(metadata, unfinished=unfinished)
            self._stopped = True
            self.notes += filter(None, [self.session.what_others_did])
        except Exception as error:
            self.session = None
            raise RecordingFailed(
                f"the profiler cannot be stopped, so there is no trace: {_first_line(error)}"
            ) from error
        finally:
            self._close_annotation()

    def _close_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
