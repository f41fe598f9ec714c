"""Drives the profiler through the phases of a recording.

What a user sees is `recording.Recording`, which also sees to it that only the thread of the process that began
calls in here, and nothing twice at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from overlapscope.errors import RecordingFailed
from overlapscope.recorder import devices
from overlapscope.recorder.memory_guard import MemoryGuard
from overlapscope.recorder.schedule import Phase, Schedule
from overlapscope.recorder.session import Options, Session

_STEP = "ProfilerStep#"
"""How torch.profiler names a step, and what every reader looks for."""


class Recorder:
    """Records from `start` on, until the schedule, the memory guard or `finish` ends it.

    A failure after the start is kept in `failure`, as a program does not stop because its recording failed.
    """

    def __init__(
        self,
        path: Path,
        schedule: Schedule,
        options: Options,
        *,
        max_size_bytes: int,
        on_too_much: Callable[[], None],
    ) -> None:
        """`on_too_much` is called on a thread of the memory guard's; `make_room` should follow on the right one."""
        self._path = path
        self._schedule = schedule
        self._options = options
        self._max_size_bytes = max_size_bytes
        self._on_too_much = on_too_much
        self._session: Session | None = None
        self._stopped: Session | None = None
        """What was recorded before the wait was over, in case that the program ends before a session follows."""
        self._first_step = 0
        """The first step in the session's trace."""
        self._steps = 0
        """Finished steps."""
        self._annotation: Any = None
        """The open `record_function` of the present step."""
        self._guard: MemoryGuard | None = None
        self.cuda_came_up = False
        """CUDA was initialised after the session was started without it."""
        self.notes: list[str] = []
        self.failure: RecordingFailed | None = None

    @property
    def running(self) -> bool:
        """Whether anything is being recorded or will be."""
        return self._session is not None or self._stopped is not None

    def start(self) -> None:
        """Raises RecordingFailed where the profiler does not start."""
        self._start_session()
        self._open_annotation()

    def step(self) -> None:
        """Mark the end of a step, and do what is due then."""
        self._close_annotation()
        self._steps += 1
        if self._schedule.phase(self._steps) is Phase.DONE:
            self.finish()
        elif self._schedule.opens(self._steps + 1):
            self._stopped = self._stop_session()
        elif self._schedule.opens(self._steps):
            self._open()
        elif self._guard is not None and self._guard.exceeded_bytes is not None:
            self.make_room()
        elif self.cuda_came_up:
            self.record_cuda_too()
        if self._annotation is None:
            self._open_annotation()

    def finish(self) -> None:
        """Stop and write the trace."""
        unfinished = None if self._annotation is None else f"{_STEP}{self._steps}"
        session, self._stopped = self._stopped, None
        if session is None:
            session = self._stop_session(warm_up_steps=self._schedule.warm_up_steps(self._first_step, self._steps))
        if session is None:
            return
        short = self._schedule.why_unjudged(self._steps)
        if short is not None:
            self.notes.append(short)
        try:
            session.write(self._path, unfinished=unfinished)
        except RecordingFailed as failure:
            self._fail(str(failure))

    def discard(self) -> None:
        """Stop and write nothing."""
        self._stopped = None
        if self._session is not None:
            self._stop_session()

    def abandon(self) -> None:
        """Forget about the profiler, which another thread's is about to take the place of.

        To stop it then crashes the process (torch 2.13).
        """
        self._session = self._stopped = None
        if self._guard is not None:
            self._guard.stop()

    def record_cuda_too(self) -> None:
        """Begin anew with CUDA, which has just been initialised, unless that would lose what matters."""
        self.cuda_came_up = True
        if self._session is None:
            return
        if not self._schedule.judged(self._steps):
            self._restart()
            return
        self.cuda_came_up = False
        self.notes.append(
            f"The GPU was first used in step {self._steps}, after the first judged step, and is not in the trace: "
            f"have more steps of warm-up, or wait."
        )

    def make_room(self) -> None:
        """The events take too much memory: end, or while waiting begin anew, so that the latest are kept."""
        if self._session is None or self._guard is None or self._guard.exceeded_bytes is None:
            return
        if self._schedule.phase(self._steps) is Phase.WAIT:
            self._restart()
            return
        where = f", in step {self._steps}" if self._steps else ""
        self.notes.append(
            f"Recording ended early{where}: the program and the profiler together had taken "
            f"{self._guard.exceeded_bytes / 1e9:.2f} GB more memory (--max-size)."
        )
        self.finish()

    # -- the session ----------------------------------------------------------------------------------

    def _start_session(self) -> None:
        try:
            self._session = Session(self._options, cuda=self.cuda_came_up or devices.cuda_is_up())
        except Exception as error:
            raise RecordingFailed(f"torch.profiler does not start: {_first_line(error)}") from error
        self._first_step = self._steps
        self.cuda_came_up = False
        self._guard = MemoryGuard(self._max_size_bytes, self._on_too_much)

    def _stop_session(self, *, warm_up_steps: int = 0) -> Session | None:
        """The session, stopped; None where it could not be. A step under way stays open in its trace."""
        assert self._session is not None and self._guard is not None
        session, self._session = self._session, None
        self._guard.stop()
        try:
            session.stop(warm_up_steps=warm_up_steps)
        except Exception as error:
            self._fail(f"the profiler cannot be stopped, and there is no trace: {_first_line(error)}")
            return None
        finally:
            self._close_annotation()
        return session

    def _open(self) -> None:
        """The wait is over: leave out what was recorded so far.

        The session was stopped one step ahead. When a `record_function` of a session ends while the next one runs,
        torch writes to memory that it has freed (torch 2.13), and one may be open here: the program's around its
        step, or torch's around an optimizer's. After a wait of one step there is no such distance, and what was
        recorded before it stays, not to be judged.
        """
        if self._session is None:
            self._stopped = None
            self._start_again()

    def _restart(self) -> None:
        """Leave out what was recorded so far."""
        if self._stop_session() is not None:
            self._start_again()

    def _start_again(self) -> None:
        try:
            self._start_session()
        except RecordingFailed as failure:
            self._fail(str(failure))
        self._open_annotation()

    def _fail(self, sentence: str) -> None:
        self.failure = RecordingFailed(sentence)
        self.notes.append(sentence)

    # -- the step's annotation ------------------------------------------------------------------------

    def _open_annotation(self) -> None:
        if self._session is None:
            return
        from torch.profiler import record_function

        self._annotation = record_function(f"{_STEP}{self._steps}")
        self._annotation.__enter__()

    def _close_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
