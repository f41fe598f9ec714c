"""Drives the profiler through the phases of a recording.

What a user sees is `recording.Recording`, which also sees to it that only the thread of the process that began
calls in here, and nothing twice at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overlapscope.errors import RecordingFailed
from overlapscope.recorder.memory_guard import MemoryGuard
from overlapscope.recorder.open_ranges import open_ranges
from overlapscope.recorder.schedule import Phase, Schedule
from overlapscope.recorder.session import Options, Session

_STEP = "ProfilerStep#"
"""How torch.profiler names a step, and what every reader looks for."""


class Recorder:
    """Records from `start` on, until the schedule, the memory guard or `finish` ends it.

    It never begins anew while something is recorded, but leaves a gap, in which the ranges can close that must not
    be left under another session than they were entered under (`open_ranges`): the program's around its step, torch's
    around an optimizer's. Where a range stays open around several steps, and after a wait of one step, there is no
    such gap, and what was recorded of the wait stays in the file, unjudged.

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
        self.put_off = False
        """Nothing was started yet; `start_now` or a step does."""
        self._session: Session | None = None
        self._guard: MemoryGuard | None = None
        """The session's."""
        self._paused = False
        """There is no session until the warm-up opens."""
        self._before: Session | None = None
        """What was recorded before the pause, stopped; kept until a step has ended after it."""
        self._ranges: list[weakref.ref[Any]] = []
        """Ranges that were open when they were last looked for."""
        self._why_nothing: str | None = None
        """Half a sentence on why there is nothing from before; None where there is, or it is in the file."""
        self._first_step = 0
        """The first step in the session's trace."""
        self._steps = 0
        """Finished steps."""
        self._annotation: Any = None
        """The open `record_function` of the present step."""
        self.notes: list[str] = []
        self.failure: RecordingFailed | None = None

    @property
    def running(self) -> bool:
        """Whether anything is being recorded, or will be."""
        return self._session is not None or self._paused or self.put_off

    def start(self, *, put_off: bool = False) -> None:
        """Record from here on; `put_off` does so only from `start_now` or the first step on.

        Raises RecordingFailed where the profiler does not start.
        """
        if put_off:
            self.put_off = True
            self._why_nothing = "The program used no GPU and marked no step"
        else:
            self._start_session()
            self._open_annotation()

    def start_now(self) -> None:
        """Start what was put off."""
        if self.put_off:
            self.put_off, self._why_nothing = False, None
            self._start_session_or_fail()
            self._open_annotation()

    def step(self) -> None:
        """Mark the end of a step, and do what is due then."""
        self._close_annotation()
        self._steps += 1
        if self._session is not None:
            self._before = None
        if self._schedule.phase(self._steps) is Phase.DONE:
            self.finish()
        elif self._session is None:
            self._wake()
        elif self._schedule.opens(self._steps + 2):
            self._ranges = open_ranges()
            self.make_room()
        elif self._schedule.opens(self._steps + 1) and self._ranges_close_with_the_step():
            self._pause(keep=True)
        else:
            self.make_room()
        if self._annotation is None:
            self._open_annotation()

    def finish(self) -> None:
        """Stop and write the trace."""
        unfinished = None if self._annotation is None else f"{_STEP}{self._steps}"
        session, self._before = self._before, None
        if self._session is not None:
            stopped = self._stop_session(warm_up_steps=self._schedule.warm_up_steps(self._first_step, self._steps))
            session = session or stopped
        elif self._why_nothing is not None:
            self._fail(f"{self._why_nothing}: there is no trace.")
        self._paused = self.put_off = False
        short = self._schedule.why_unjudged(self._steps)
        if short is not None and self.failure is None:
            self.notes.append(short)
        if session is not None:
            self._write(session, unfinished)

    def discard(self) -> None:
        """Stop and write nothing."""
        self._before, self._paused, self.put_off = None, False, False
        if self._session is not None:
            self._stop_session()

    def abandon(self) -> None:
        """Forget about the profiler, which another thread's is about to take the place of.

        To stop it then crashes the process (torch 2.13).
        """
        self._session = self._before = None
        self._paused = self.put_off = False
        if self._guard is not None:
            self._guard.stop()

    def make_room(self) -> None:
        """End where the events take too much memory; while steps are waited for, pause."""
        if self._session is None or self._guard is None or self._guard.exceeded_bytes is None:
            return
        where = f", in step {self._steps}" if self._steps else ""
        taken = (
            f"{where}: the program and the profiler together had taken {self._guard.exceeded_bytes / 1e9:.2f} GB more "
            f"memory (--max-size)"
        )
        if self._steps and self._schedule.phase(self._steps) is Phase.WAIT:
            self._why_nothing = f"Recording paused{taken}, and the program ended before it could go on"
            self._pause(keep=False)
            return
        self.notes.append(f"Recording ended early{taken}.")
        if self._schedule.phase(self._steps) is not Phase.WAIT:
            self.finish()
            return
        # If no step comes, this was all; if one does, there is another trace to come.
        self._pause(keep=True)
        session, self._before = self._before, None
        if session is not None:
            self._write(session, f"{_STEP}{self._steps}")

    # -- the session ----------------------------------------------------------------------------------

    def _ranges_close_with_the_step(self) -> bool:
        """Whether none that is open was so a step ago; after a wait of two steps, whether none is open."""
        before = {one() for one in self._ranges}
        return all(self._steps > 1 and one() not in before for one in open_ranges())

    def _pause(self, *, keep: bool) -> None:
        self._ranges = open_ranges()
        self._before = self._stop_session()
        self._paused = self._before is not None
        if not keep:
            self._before = None

    def _wake(self) -> None:
        """At the end of a step without a session: start one, if it is time."""
        was_put_off, self.put_off, self._paused = self.put_off, False, True
        if was_put_off:
            self._why_nothing = "The program ended before anything was to be recorded"
        over = self._schedule.phase(self._steps) is not Phase.WAIT
        closed = all(one() is None for one in self._ranges)
        if (over and closed) or (was_put_off and not over and not self._schedule.opens(self._steps + 1)):
            self._paused, self._why_nothing, self.failure = False, None, None
            self.notes.clear()
            self._start_session_or_fail()

    def _start_session(self) -> None:
        try:
            self._session = Session(self._options)
        except Exception as error:
            raise RecordingFailed(f"torch.profiler does not start: {_first_line(error)}") from error
        self._first_step = self._steps
        self._guard = MemoryGuard(self._max_size_bytes, self._on_too_much)

    def _start_session_or_fail(self) -> None:
        try:
            self._start_session()
        except RecordingFailed as failure:
            self._fail(str(failure))

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

    def _write(self, session: Session, unfinished: str | None) -> None:
        try:
            session.write(self._path, unfinished=unfinished)
        except RecordingFailed as failure:
            self._fail(str(failure))

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
