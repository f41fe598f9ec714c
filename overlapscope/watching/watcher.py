"""Looks on while a program runs: counts and times its steps, and records some when asked."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from overlapscope.base import clock
from overlapscope.base.output import tell
from overlapscope.base.words import clean
from overlapscope.errors import OverlapscopeError
from overlapscope.recorder import cupti, recording
from overlapscope.recorder.destination import rank_of
from overlapscope.recorder.main_thread import Interruption, Wake
from overlapscope.recorder.program_steps import ProgramSteps
from overlapscope.recorder.session import profiler_running
from overlapscope.version import __version__
from overlapscope.watching.plain_step import PlainStep
from overlapscope.watching.protocol import Outcome, Request, Status
from overlapscope.watching.recording import AskedRecording

_AGAIN_S: Final = 0.05
_PATIENCE_S: Final = 30.0
"""For the main thread to come to an instruction."""
_BUSY: Final = "The program is being recorded already; ask again when that is over."
_ENDS: Final = "The program ends."

_CUT_OFF: Final = "The program ended before its recording was complete."
_WITHDRAWN: Final = "Nobody waits for it any more."

Done = Callable[[Outcome], None]


class Watcher:
    """One in a process. It costs a program the time of a few instructions a step, until somebody asks.

    What goes wrong here ends a recording, and never reaches the program.
    """

    def __init__(self) -> None:
        self.after_step: list[Callable[[], None]] = []
        """Called at the end of each, on the thread that makes them."""
        self._steps = ProgramSteps(self._stepped, heeds=self._is_the_programs)
        self._plain_step = PlainStep()
        self._attached = False
        """CUPTI stays attached behind a recording, and slows all steps from then on."""
        self._ours = False
        """It is we who mark a step of the recording."""
        # The main thread may be interrupted, to begin by time, where it holds it.
        self._lock = threading.RLock()
        self._wanted: tuple[Request, Done] | None = None
        self._running: tuple[AskedRecording, Done] | None = None
        self._taken: Request | None = None
        """What is being recorded, from before the profiler starts until its trace is written."""
        self._begun = 0
        self._withdrawn = False
        self._ending_now = False
        """A recording is being ended, on whatever thread."""
        self._finished = False
        """The program ends."""
        self._recorded_at_ns: int | None = None
        self._wake = Wake()
        self._beginning = Interruption(self._begin_by_time)
        self._ending = Interruption(self._end_by_time)
        self._failed = False

    def start(self) -> None:
        """Count steps from now on, or as soon as torch is imported."""
        os.register_at_fork(after_in_child=self._forked)
        self._wake.start()
        self._steps.start()

    @property
    def steps(self) -> int:
        """Finished ones."""
        return self._steps.count

    @property
    def status(self) -> Status:
        """How the process is."""
        place = rank_of(os.environ)
        return Status(
            pid=os.getpid(),
            script=_script(),
            rank=None if place is None else place.number,
            world_size=None if place is None else place.world_size,
            job=None if place is None else _job(place.world_size),
            steps=self.steps,
            plain_step_ns=self._plain_step.ns,
            recording=self._running is not None,
            recorded_at_ns=self._recorded_at_ns,
            version=__version__,
        )

    # -- requests, on any thread ---------------------------------------------------------------------

    def ask(self, request: Request, done: Done) -> None:
        """Have a recording made. `done` is called with what became of it, once, on whatever thread knows; it must not
        take long.
        """
        with self._lock:
            refused, too_late = self._why_not(), request.at_step is not None and request.at_step <= self.steps
            if not refused and not too_late:
                self._wanted, self._withdrawn = (request, done), False
        if refused:
            done(Outcome(failure=refused, busy=refused == _BUSY, ended=refused == _ENDS))
        elif too_late:
            done(self._too_late())
        elif request.seconds is not None:
            threading.Thread(target=self._until_begun, args=(request,), name="overlapscope ask", daemon=True).start()

    def withdraw(self, request: Request) -> None:
        """Nobody waits for it any more: what has begun is stopped at the end of the next step, or by the clock."""
        with self._lock:
            if self._wanted is not None and self._wanted[0] is request:
                self._wanted = None
            elif self._taken is request:
                self._withdrawn = True
                if request.seconds is not None:
                    self._ending.request()

    def finish(self) -> None:
        """The program ends: what was recorded of it until now is all that there will be."""
        with self._lock:
            self._finished = True
            wanted, self._wanted = self._wanted, None
        if wanted is not None:
            wanted[1](Outcome(failure="The program ended before its recording began.", ended=True))
        self._guarded(self._end)

    @property
    def begun(self) -> int | None:
        """How many steps were finished when the recording under way began; None where there is none."""
        return self._begun if self._running is not None else None

    def _why_not(self) -> str:
        if "torch" not in sys.modules:
            return "The program has not imported torch, so there is nothing to record."
        if self._finished:
            return _ENDS
        if self._wanted is not None or self._taken is not None:
            return _BUSY
        return ""

    def _too_late(self) -> Outcome:
        return Outcome(failure=f"The program has made {self.steps:,} steps already.", too_late=True)

    # -- by steps ------------------------------------------------------------------------------------

    def _is_the_programs(self) -> bool:
        """Whether a step is marked by the program, and not of what it records itself, which may be the last such."""
        under_way, running = recording.current(), self._running
        of_another = under_way is not None and (running is None or under_way is not running[0])
        return not (self._ours or of_another)

    def _stepped(self) -> None:
        try:
            if profiler_running():
                self._plain_step.interrupt()
            elif not self._attached:
                self._plain_step.mark(clock.now_ns())
            if self._running is not None or self._wanted is not None:
                self._advance()
            for call in tuple(self.after_step):
                call()
        except Exception as error:
            self._complain(error)

    def _advance(self) -> None:
        if self._running is None:
            self._begin(by_time=False)
            return
        asked, _ = self._running
        if self._withdrawn:
            asked.give_up(_WITHDRAWN)
        elif not self._steps.marked:
            self._ours = True
            try:
                asked.step()
            finally:
                self._ours = False
        if asked.over:
            self._end()

    def _begin(self, *, by_time: bool) -> None:
        with self._lock:
            if self._wanted is None or self._running is not None:
                return
            request, done = self._wanted
            if (request.seconds is not None) != by_time or self.steps < (request.at_step or 0):
                return
            self._wanted, self._taken = None, request
            late = request.at_step is not None and self.steps > request.at_step
        if late:
            self._taken = None
            done(self._too_late())
            return
        try:
            asked = AskedRecording.of(request)
            self._begun = self.steps
            asked.begin()
        except Exception as error:
            self._taken = None
            done(Outcome(failure=_said(error)))
            return
        asked.when_over = self._over_by_time if by_time else None
        self._running = asked, done

    def _end(self) -> None:
        with self._lock:
            # Where the program ends on one thread, its steps may go on on another.
            if self._running is None or self._ending_now:
                return
            self._ending_now = True
        (asked, done), failure = self._running, ""
        try:
            asked.end()
        except Exception as error:
            failure = _CUT_OFF if self._finished else _said(error)
        self._running = self._taken = None
        self._ending_now = False
        self._attached = self._attached or cupti.stays_attached()
        self._plain_step.interrupt()
        failure = asked.given_up or failure
        if failure or not asked.paths:
            failure = failure or "Nothing was recorded."
            done(Outcome(failure=failure, begun=self._begun, ended=failure == _CUT_OFF))
            return
        self._recorded_at_ns = time.time_ns()
        done(Outcome(path=str(asked.path), begun=self._begun, notes=asked.notes))

    # -- by time, on the main thread, wherever it is ---------------------------------------------------

    def _until_begun(self, request: Request) -> None:
        """Have the main thread begin, which may wait for something."""
        until = time.monotonic() + _PATIENCE_S
        self._beginning.request()
        while self._is_wanted(request) and time.monotonic() < until:
            time.sleep(_AGAIN_S)
            self._wake.wake()
        with self._lock:
            wanted = self._wanted
            if wanted is None or wanted[0] is not request:
                return
            self._wanted = None
        wanted[1](Outcome(failure=f"The main thread was inside one call for {_PATIENCE_S:.0f} s."))

    def _is_wanted(self, request: Request) -> bool:
        return self._wanted is not None and self._wanted[0] is request

    def _begin_by_time(self) -> None:
        self._guarded(lambda: self._begin(by_time=True))

    def _over_by_time(self) -> None:
        """The window is closed, in the middle of the recorder's work."""
        self._ending.request()

    def _end_by_time(self) -> None:
        running = self._running
        if running is not None and self._withdrawn:
            self._guarded(lambda: running[0].give_up(_WITHDRAWN))
        self._guarded(self._end)
        # The recording gave the signal back.
        self._wake.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._complain(error)

    # -- the rest ------------------------------------------------------------------------------------

    def _forked(self) -> None:
        """This is a child: what its parent was asked is not its business."""
        self._wanted = self._running = self._taken = None
        self._lock = threading.RLock()
        self._plain_step = PlainStep()

    def _complain(self, error: Exception) -> None:
        """Once."""
        if not self._failed:
            self._failed = True
            tell(f"overlapscope: watching failed, and the program goes on: {_said(error)}")


def _said(error: Exception) -> str:
    """What an error says, as a sentence."""
    text = str(error) if isinstance(error, OverlapscopeError) else f"{type(error).__name__}: {error}"
    text = clean(text, 500)
    return text if text.endswith(".") else f"{text}."


def _script() -> str:
    """As `ps` shows it: the program and its arguments."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    name = f"-m {spec.name.removesuffix('.__main__')}" if spec is not None else sys.argv[0] if sys.argv else ""
    return clean(" ".join([name or "python", *sys.argv[1:]]), 200)


def _job(world_size: int) -> str:
    """The same for all ranks of a job, and no others, as far as launchers tell."""
    variables = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "OMPI_MCA_ess_base_jobid")
    return " ".join([*(os.environ.get(name, "") for name in variables), str(world_size)])
