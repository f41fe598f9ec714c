"""The watcher of a running program, which counts and times its steps, and records some on request."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

from overlapscope.base import clock
from overlapscope.base.output import tell
from overlapscope.base.words import clean
from overlapscope.errors import OverlapscopeError
from overlapscope.plugins.watch.protocol import RecordingRequest, RequestOutcome, Status
from overlapscope.recorder import cupti, recording
from overlapscope.recorder.automatic_steps import ProgramSteps
from overlapscope.recorder.destination import rank_of
from overlapscope.recorder.main_thread import Interruption, Wake
from overlapscope.recorder.recording import Recording, SilentRecording
from overlapscope.recorder.session import profiler_running
from overlapscope.version import __version__

_AGAIN_S: Final = 0.05
_PATIENCE_S: Final = 30.0
"""Time for the main thread to run Python code, in seconds."""
_BUSY: Final = "The program is being recorded already; ask again when that is over."
_ENDS: Final = "The program ends."

_CUT_OFF: Final = "The program ended before its recording was complete."
_WITHDRAWN: Final = "The request was withdrawn."

_TIMED_STEPS: Final = 100
"""Number of the latest steps that the step time is based on."""
_STEPS_PER_TIMING: Final = 20
"""Number of steps that are timed together, since the host runs ahead of the GPU and waits for it every ten or so."""

Done = Callable[[RequestOutcome], None]


class Watcher:
    """The watcher of a process. Without requests, it costs the program a few instructions per step.

    A failure here ends a recording, and never reaches the program.
    """

    def __init__(self) -> None:
        self.after_step: list[Callable[[], None]] = []
        """Functions to call at the end of each step, on its thread."""
        self._steps = ProgramSteps(self._stepped, heeds=self._is_the_programs)
        self._plain_step = PlainStepTimer()
        self._attached = False
        """True if CUPTI stays attached after a recording, and slows all later steps."""
        # Reentrant, since the main thread may be interrupted to begin by time while it holds the lock.
        self._lock = threading.RLock()
        self._wanted: tuple[RecordingRequest, Done] | None = None
        self._running: tuple[AskedRecording, Done] | None = None
        self._taken: RecordingRequest | None = None
        """Request under way, from before the start of the profiler until the trace is written."""
        self.begun: int | None = None
        """Number of steps that were finished when the recording under way began; None without a recording."""
        self._withdrawn = False
        self._finished = False
        """True if the program is ending."""
        self._recorded_at_ns: int | None = None
        self._wake = Wake()
        self._beginning = Interruption(lambda: self._guarded(lambda: self._begin(by_time=True)))
        self._ending = Interruption(self._end_by_time)
        self._failed = False

    def start(self) -> None:
        """Begin to count steps, now or as soon as torch is imported."""
        os.register_at_fork(after_in_child=self._forked)
        self._wake.start()
        self._steps.start()

    @property
    def steps(self) -> int:
        """Number of finished steps."""
        return self._steps.count

    @property
    def status(self) -> Status:
        """Status of the process."""
        place = rank_of(os.environ)
        return Status(
            pid=os.getpid(),
            script=_script(),
            rank=None if place is None else place.number,
            world_size=None if place is None else place.world_size,
            job=None if place is None else _job(place.world_size),
            steps=self.steps,
            plain_step_ns=self._plain_step.ns,
            recording=self.begun is not None,
            recorded_at_ns=self._recorded_at_ns,
            version=__version__,
        )

    # -- Requests, on any thread ---------------------------------------------------------------------

    def ask(self, request: RecordingRequest, done: Done) -> None:
        """Ask for a recording. `done` is called once with the outcome, on any thread, and must not take long."""
        with self._lock:
            refused, too_late = self._why_not(), request.at_step is not None and request.at_step <= self.steps
            if not refused and not too_late:
                self._wanted, self._withdrawn = (request, done), False
        if refused:
            done(RequestOutcome(failure=refused, busy=refused == _BUSY, ended=refused == _ENDS))
        elif too_late:
            done(self._too_late())
        elif request.options.by_clock:
            threading.Thread(target=self._until_begun, args=(request,), name="overlapscope ask", daemon=True).start()

    def withdraw(self, request: RecordingRequest) -> None:
        """Cancel a request. A recording that has begun stops at the end of the next step, or by the clock."""
        with self._lock:
            if self._wanted is not None and self._wanted[0] is request:
                self._wanted = None
            elif self._taken is request:
                self._withdrawn = True
                if request.options.by_clock:
                    self._ending.request()

    def finish(self) -> None:
        """End the recording under way, since the program is ending."""
        with self._lock:
            self._finished = True
            wanted, self._wanted = self._wanted, None
        if wanted is not None:
            wanted[1](RequestOutcome(failure="The program ended before its recording began.", ended=True))
        self._guarded(self._end)

    def _why_not(self) -> str:
        if "torch" not in sys.modules:
            return "The program has not imported torch, so there is nothing to record."
        if self._finished:
            return _ENDS
        if self._wanted is not None or self._taken is not None:
            return _BUSY
        return ""

    def _too_late(self) -> RequestOutcome:
        return RequestOutcome(failure=f"The program has made {self.steps:,} steps already.", too_late=True)

    # -- Recordings by steps -------------------------------------------------------------------------

    def _is_the_programs(self) -> bool:
        """Return whether the program marks a step for the watcher, and not for a recording of its own."""
        under_way = recording.current()
        # Other threads may make steps while one writes the trace.
        return under_way is None or (self.begun is not None and isinstance(under_way, AskedRecording))

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
        running = self._running
        if running is None:
            self._begin(by_time=False)
            return
        requested, _ = running
        if self._withdrawn:
            requested.give_up(_WITHDRAWN)
        elif not self._steps.marked:
            requested.mark()
        if requested.over:
            self._end()

    def _begin(self, *, by_time: bool) -> None:
        with self._lock:
            if self._wanted is None or self._running is not None:
                return
            request, done = self._wanted
            if request.options.by_clock != by_time or self.steps < (request.at_step or 0):
                return
            self._wanted, self._taken = None, request
            late = request.at_step is not None and self.steps > request.at_step
        if late:
            self._taken = None
            done(self._too_late())
            return
        try:
            requested = AskedRecording(request.path, request.options)
            begun = self.steps
            requested.begin()
        except Exception as error:
            self._taken = None
            done(RequestOutcome(failure=_sentence(error)))
            return
        # The window closes in the middle of the recorder's work, so that the end is only requested.
        requested.when_over = self._ending.request if by_time else None
        self._running, self.begun = (requested, done), begun

    def _end(self) -> None:
        with self._lock:
            # If the program ends on one thread, another may still make steps.
            running, self._running = self._running, None
        if running is None:
            return
        (requested, done), failure = running, ""
        try:
            requested.end()
        except Exception as error:
            failure = _sentence(error)
        begun, self.begun, self._taken = self.begun, None, None
        self._attached = self._attached or cupti.stays_attached()
        self._plain_step.interrupt()
        if requested.given_up or failure or not requested.paths:
            # The recording may have ended already, right before this.
            failure = requested.given_up or requested.why_unwritten or (_CUT_OFF if self._finished else failure)
            failure = failure or "Nothing was recorded."
            done(RequestOutcome(failure=failure, begun=begun, ended=failure == _CUT_OFF))
            return
        self._recorded_at_ns = time.time_ns()
        done(RequestOutcome(path=str(requested.path), begun=begun, notes=requested.notes))

    # -- Recordings by time, on the main thread, at any place ------------------------------------------

    def _until_begun(self, request: RecordingRequest) -> None:
        """Interrupt the main thread, which may be waiting, to begin the recording."""
        until = time.monotonic() + _PATIENCE_S
        self._beginning.request()
        while (wanted := self._wanted) is not None and wanted[0] is request and time.monotonic() < until:
            time.sleep(_AGAIN_S)
            self._wake.wake()
        with self._lock:
            wanted = self._wanted
            if wanted is None or wanted[0] is not request:
                return
            self._wanted = None
        wanted[1](RequestOutcome(failure=f"The main thread was inside one call for {_PATIENCE_S:.0f} s."))

    def _end_by_time(self) -> None:
        running = self._running
        if running is not None and self._withdrawn:
            self._guarded(lambda: running[0].give_up(_WITHDRAWN))
        self._guarded(self._end)
        # The recording has removed the handler of the signal.
        self._wake.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._complain(error)

    # -- Forks and failures --------------------------------------------------------------------------

    def _forked(self) -> None:
        """Forget the requests in a forked child, since they are its parent's."""
        self._wanted = self._running = self._taken = self.begun = None
        self._lock = threading.RLock()
        self._plain_step = PlainStepTimer()

    def _complain(self, error: Exception) -> None:
        """Report the first failure."""
        if not self._failed:
            self._failed = True
            tell(f"overlapscope: watching failed, and the program goes on: {_sentence(error)}")


def _sentence(error: Exception) -> str:
    """Return the message of an error as a sentence."""
    text = str(error) if isinstance(error, OverlapscopeError) else f"{type(error).__name__}: {error}"
    text = clean(text, 500)
    return text if text.endswith(".") else f"{text}."


def _script() -> str:
    """Return the program and its arguments, as `ps` shows them."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    name = f"-m {spec.name.removesuffix('.__main__')}" if spec is not None else sys.argv[0] if sys.argv else ""
    return clean(" ".join([name or "python", *sys.argv[1:]]), 200)


def _job(world_size: int) -> str:
    """Return a text that all ranks of a job share, and no other job, as far as launchers set variables."""
    variables = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "OMPI_MCA_ess_base_jobid")
    return " ".join([*(os.environ.get(name, "") for name in variables), str(world_size)])


class PlainStepTimer:
    """The recent step time by the host's clock, without the profiler."""

    def __init__(self) -> None:
        self._marks: deque[int] = deque(maxlen=_TIMED_STEPS + 1)
        """Ends of steps without a recording in between, in nanoseconds."""
        self._before: int | None = None
        """Step time before the last recording, in nanoseconds."""

    def mark(self, at_ns: int) -> None:
        """Note the end of a step."""
        self._marks.append(at_ns)

    def interrupt(self) -> None:
        """Note that something is recorded before the next mark."""
        self._before = self.ns
        self._marks.clear()

    @property
    def ns(self) -> int | None:
        """Median of the means of twenty steps each, in which pauses hardly count; None before the first steps."""
        marks = tuple(self._marks)
        together = min(_STEPS_PER_TIMING, len(marks) - 1)
        if together < 1 or (together < _STEPS_PER_TIMING and self._before is not None):
            return self._before
        begins = range(len(marks) - 1 - together, -1, -together)
        return round(median((marks[begin + together] - marks[begin]) / together for begin in begins))


# -- Recordings on request ---------------------------------------------------------------------------

_OWN_RECORDING = "The program began a recording of its own, which takes precedence."


class AskedRecording(SilentRecording):
    """A recording on request, which gives way to the program's own recordings and profilers."""

    when_over: Callable[[], object] | None = None
    """Function to call after the recorder's work, once nothing is left for it to do."""

    def mark(self) -> None:
        """Mark the end of a step of the recording alone."""
        self._driver.mark(by_program=True)

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
