"""The driver of a recorder, which calls it on the right thread, one call at a time."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from overlapscope.base import clock
from overlapscope.recorder import devices
from overlapscope.recorder.automatic_steps import MARKS, AutomaticSteps
from overlapscope.recorder.main_thread import Interruption, Wake, held, threads_without_signals
from overlapscope.recorder.options import Options
from overlapscope.recorder.recorder import WindowRecorder

_POLL_S = 0.01
UNMARKED_S: float = 5
"""Length of each recording of a program that marks no step, in seconds."""
START_UP_S: float = 10
"""Time between the end of the first one and the start of the second, in seconds."""
FIRST_STEP_S: float = 60
"""Length of the first one at most, in seconds, if the program seems to be in its first step meanwhile."""
_LOOK_AGAIN_S = 1
_AGAIN_S = 0.05
_LATE_NS = 500_000_000
"""Report what happens later than this."""


class Driver:
    """Calls a recorder on the thread of the process that began it, at steps and at other events.

    Other events are the first use of CUDA, a clock, and a lack of memory. An event during other work waits for the next
    step.

    Args:
        options: Options of the recording.
        bounded: As in `WindowRecorder`.
        by: Calls that end steps, as in `Options.steps_by`.
        whole_program: Whether the program need not know of the recording.
        step: Function to call on the recorder's thread for each mark that counts.
        worked: Function to call after each piece of work.
    """

    def __init__(
        self,
        options: Options,
        *,
        bounded: bool,
        by: str | None,
        whole_program: bool,
        step: Callable[[], None],
        worked: Callable[[], None],
    ) -> None:
        self.recorder: WindowRecorder | None = None
        """None before it has begun."""
        self.gave_way: str | None = None
        """Sentence on why this recording is not written, if it gave way to another."""
        self._step, self._worked, self._by, self._whole_program = step, worked, by, whole_program
        self._interruption = Interruption(self._look)
        self.automatic = AutomaticSteps(
            lambda: self.mark(by_program=False), self._automatic_changed, by=by, at_once=whole_program
        )
        self.trigger: ClockTrigger | None = None
        """Opens and closes windows without steps; None if only steps do."""
        if bounded:
            self.trigger = UnmarkedTrigger(self._interruption, lambda: self.automatic.awaits_first)
        elif options.by_clock:
            self.trigger = ClockTrigger(options.delay_s or 0, options.duration_s, self._interruption)
        self._by_program: bool | None = None
        """True if the program marks its steps; None before the first mark."""
        self._steps_are_elsewhere = False
        """True if another thread makes the steps than was thought, and the recorder was too busy to move there."""
        self.elsewhere = False
        """True if another thread marked a step, which does not count."""
        self._process = self._thread = -1
        self._moved: threading.Thread | None = None
        """Thread to which the recorder has moved; None if it stays where it began."""
        self._busy = False
        self._unsettled = False
        """True from the beginning of a piece of work until `worked` has been called after it."""
        self._cuda_is_up = False
        """True if CUDA was initialized after a start that was put off."""

    @property
    def in_this_process(self) -> bool:
        """False in a forked child."""
        return os.getpid() == self._process

    @property
    def on_this_thread(self) -> bool:
        """True if the calling thread began it."""
        return threading.get_ident() == self._thread

    @property
    def ready(self) -> WindowRecorder | None:
        """The recorder, if steps still matter to it and this thread may call it now."""
        recorder = self.recorder
        if recorder is None or not recorder.wants_steps or self._busy or not self.on_this_thread:
            return None
        return recorder if self.in_this_process and not devices.capturing() else None

    def begin(self, recorder: WindowRecorder, *, put_off: bool) -> None:
        """Start the recorder, which belongs to this thread then. Raises RecordingFailed.

        With `put_off`, it waits until CUDA is initialized or a step ends.
        """
        recorder.handle("put_off" if put_off else "start")
        if self.trigger is not None:
            self.trigger.start(recorder)
        self._process, self._thread = os.getpid(), threading.get_ident()
        self.recorder = recorder
        if put_off:
            devices.when_cuda_comes_up(self._on_cuda)

    def _move_here(self, *, again: bool) -> bool:
        """Move the recorder to the calling thread.

        It can move until it has recorded a step, or with `again`, if the steps turn out to be here. The steps so far
        don't count then.

        Returns:
            Whether it belongs to the calling thread now.
        """
        recorder = self.recorder
        if (
            recorder is None
            or (recorder.marked and not again)
            or self._busy
            or not self.in_this_process
            or devices.capturing()
        ):
            return False
        with self.working():
            moved = recorder.move()
            if moved:
                self._thread, self._moved = threading.get_ident(), threading.current_thread()
        return moved

    def move_back(self) -> bool:
        """Move a recorder that has moved to the calling thread.

        A recorder that has moved records all threads, so any thread may end it.

        Returns:
            False if it belongs to another thread.
        """
        if self._moved is None:
            return self.on_this_thread
        self._thread = threading.get_ident()
        while self._busy and self._moved.is_alive():
            time.sleep(_POLL_S)
        return True

    @contextmanager
    def working(self) -> Iterator[None]:
        """Surround work that must not be interrupted."""
        with held():
            self._busy = self._unsettled = True
            try:
                try:
                    yield
                finally:
                    self._busy = False
                self._worked()
            finally:
                self._unsettled = False
        if self.trigger is not None and self.recorder is not None and not self.recorder.running:
            self.trigger.stop()

    def can_end(self, *, within_s: float) -> bool:
        """Return whether this thread, of this process, may end the recording.

        Work under way on another thread, such as writing, is waited for, as long as `within_s`.
        """
        if not self.in_this_process or self.on_this_thread:
            return self.in_this_process
        until_s = time.monotonic() + within_s
        while self._unsettled and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return self._moved is not None and not self._unsettled

    def give_way(self, because: str) -> bool:
        """Stop and write nothing. Returns false if this recording is complete and stays."""
        recorder = self.recorder
        if recorder is None:
            return False
        if not recorder.running:
            recorder.stay()
            return False
        if self.on_this_thread:
            with self.working():
                recorder.handle("discard")
        else:
            # A profiler on another thread is about to replace this one.
            recorder.handle("abandon")
        self.gave_way = because
        return True

    def interrupt(self) -> None:
        """Interrupt the main thread for work, from any thread. On other threads, the next step does the work."""
        if self._thread == threading.main_thread().ident:
            self._interruption.request()

    def _look(self) -> None:
        """Do the work that is due, on the recording's thread, anywhere in the program."""
        recorder = self.ready
        if recorder is not None:
            with self.working():
                if self._cuda_is_up:
                    recorder.handle("cuda")
                recorder.handle("memory")
                self.advance(recorder)

    def advance(self, recorder: WindowRecorder) -> None:
        """Open or close a window if the clock says so."""
        if self.trigger is not None:
            self.trigger.advance(recorder)

    def _on_cuda(self) -> None:
        """Start what waits for CUDA. This may be on any thread, in a forked child, or long after the end."""
        if not self.in_this_process:
            return
        self._cuda_is_up = True
        if self.on_this_thread:
            self._look()
        else:
            self.interrupt()

    # -- Ends of steps

    @property
    def source(self) -> str | None:
        """Description of what ends steps; None before the first."""
        if self._by_program is None:
            return None
        return "overlapscope.step()" if self._by_program else self.automatic.label

    def mark(self, *, by_program: bool) -> None:
        """Take note of the end of a step: calls that the program repeats count until it marks a step itself."""
        user_chose_automatic = self._by not in (None, MARKS)
        if user_chose_automatic if by_program else self._by_program:
            return
        may_move = not by_program or self._whole_program
        if not self.on_this_thread and not (may_move and self._move_here(again=self._steps_are_elsewhere)):
            self.elsewhere = True
            return
        before, self._by_program = self._by_program, by_program
        if by_program and not before:
            self.automatic.stop()
            if before is not None:
                # The calls that these replace have ended this step already.
                return
        self._step()

    def _automatic_changed(self) -> None:
        if self.recorder is not None:
            self.recorder.steps_changed()
            self._steps_are_elsewhere = not (self.on_this_thread or self._move_here(again=True))


# -- Windows that a clock opens and closes, without steps ---


class ClockTrigger:
    """Opens a window `delay_s` after the start, or the end of the last one, and closes it `duration_s` later.

    On the main thread, `due` interrupts the program when a window is due, even while the thread waits. On another
    thread, windows open and close with the next step. Both are late inside a long call into C, and a note says so.
    """

    def __init__(self, delay_s: float, duration_s: float | None, due: Interruption) -> None:
        """With a `duration_s` of None, a window stays open until the program ends. `due` calls `advance`."""
        self.notes: list[str] = []
        """Sentences on windows that opened or closed late."""
        self._delay_ns, self._duration_ns = _ns(delay_s), _ns(math.inf if duration_s is None else duration_s)
        self._due_ns = 0
        """Time of the next opening or closing, in nanoseconds of `base.clock`."""
        self._refused = False
        """True if a window is due and cannot open."""
        self._interruption, self._wake = due, Wake()
        self._woken = self._stopped = False
        self._changed = threading.Condition()

    def start(self, recorder: WindowRecorder) -> None:
        """Begin. Called on the recorder's thread."""
        self._next_after(self._delay_ns)
        if threading.current_thread() is threading.main_thread():
            self._wake.start()
            with threads_without_signals():
                threading.Thread(target=self._watch, name="overlapscope clock", daemon=True).start()

    def stop(self) -> None:
        """End for good. Further calls do nothing."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._wake.stop()

    def advance(self, recorder: WindowRecorder) -> None:
        """Open or close a window if that is due. Called on the recorder's thread."""
        begun_ns = clock.now_ns()
        if self._stopped or begun_ns < self._due_ns:
            return
        closes = recorder.recording
        recorder.handle("close" if closes else "open")
        if closes or recorder.recording:
            self._note("closed" if closes else "opened", begun_ns - self._due_ns)
            # The time that the profiler needs to start is not part of the window.
            self._next_after(self._delay_ns if closes else self._duration_ns)
        else:
            self._refused = True

    def _next_after(self, length_ns: int) -> None:
        """Let the next opening or closing be due after this time."""
        with self._changed:
            self._due_ns, self._refused = clock.now_ns() + length_ns, False
            self._changed.notify()

    def _note(self, event: str, late_ns: int) -> None:
        if late_ns > _LATE_NS:
            why = (
                "another profiler ran, or a range of the last window was open"
                if self._refused
                else "the thread that records was inside one call"
            )
            self.notes.append(f"A window {event} {late_ns / clock.NS_PER_S:.1f} s late: until then {why}.")

    def _watch(self) -> None:
        with self._changed:
            while not self._stopped:
                left_ns = self._due_ns - clock.now_ns()
                if left_ns > 0:
                    self._woken = False
                    self._changed.wait(left_ns / clock.NS_PER_S)
                    continue
                if not self._interruption.under_way:
                    self._interruption.request()
                elif not self._woken:
                    self._woken = True
                    self._wake.wake()
                self._changed.wait(_AGAIN_S)


def _ns(seconds: float) -> int:
    """Return a length of time in nanoseconds, no longer than threads can wait."""
    return round(min(seconds, threading.TIMEOUT_MAX) * clock.NS_PER_S)


class UnmarkedTrigger(ClockTrigger):
    """Limits the recording of a program that marks no step to its first seconds, and as many after its start-up.

    It ends with the first mark of a step, or with the second window. The first window is longer for a program that
    seems to be in its first step, which compiles, tunes or loads its first batch.
    """

    def __init__(self, due: Interruption, awaits_first_step: Callable[[], bool]) -> None:
        super().__init__(START_UP_S, UNMARKED_S, due)
        self._awaits_first_step = awaits_first_step
        """Function that returns whether the program seems to be in its first step."""
        self._started = False
        self._latest_ns = 0
        """Time at which the first window ends even if a step is under way."""

    def start(self, recorder: WindowRecorder) -> None:
        """Wait for the first window to open, if its start was put off."""
        self.advance(recorder)

    def advance(self, recorder: WindowRecorder) -> None:
        now_ns = clock.now_ns()
        if recorder.marked or recorder.bounded_out:
            self.stop()
        elif self._started:
            if self._due_ns <= now_ns < self._latest_ns and recorder.recording and self._awaits_first_step():
                self._next_after(_ns(_LOOK_AGAIN_S))
            super().advance(recorder)
        elif recorder.recording:
            self._started = True
            self._latest_ns = now_ns + _ns(FIRST_STEP_S)
            super().start(recorder)
            self._next_after(self._duration_ns)

    def _note(self, event: str, late_ns: int) -> None:
        """Note nothing: the user has chosen no times, so nothing is late."""
