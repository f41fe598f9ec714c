"""What opens and closes windows where steps do not: the time, or a range of the program."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overlapscope.base import clock
from overlapscope.recorder.main_thread import Interruption, Wake
from overlapscope.recorder.schedule import CUDA_PROFILER_API, Schedule
from overlapscope.recorder.timetable import Timetable
from overlapscope.recorder.wrapping import around

if TYPE_CHECKING:
    from overlapscope.recorder.recorder import Recorder

UNMARKED_S: float = 5
"""Length of each recording of a program that marks no step, in seconds."""
START_UP_S: float = 10
"""Time between the end of the first one and the start of the second, in seconds."""
_AGAIN_S = 0.05


class Trigger:
    """By itself, where steps open and close windows, it does nothing."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        """What did not happen in time."""

    def start(self, recorder: Recorder) -> None:
        """Begin, on the recorder's thread."""

    def stop(self) -> None:
        """Nothing is due any more. May be called again."""

    def advance(self, recorder: Recorder) -> None:
        """Open or close a window, where that is due, on the recorder's thread."""


def trigger_of(schedule: Schedule, call: Callable[[], None], *, bounded: bool) -> Trigger:
    """That of a schedule. `call` is called on the recorder's thread where something is to be done, which `advance`
    does: at once, or with the next step where that cannot be. `bounded` is as of `Recorder`.
    """
    if bounded:
        return Unmarked(call)
    if schedule.capture_range is not None:
        return CaptureRange(schedule.capture_range, call)
    if schedule.by_clock:
        return Clock(schedule.delay_s or 0, schedule.duration_s, call)
    return Trigger()


class Clock(Trigger):
    """Opens and closes windows by a `Timetable`.

    `advance` does it, on the recorder's thread. On the main thread, `call` is called when something is due, even while
    the thread waits. On another thread, or inside a long call to C code, it happens late, and a note says so.
    """

    def __init__(self, delay_s: float, duration_s: float | None, call: Callable[[], None]) -> None:
        super().__init__()
        self._timetable = Timetable(delay_s, duration_s)
        self._call = call
        self._asked = self._woken = False
        self._interruption = Interruption(self._delivered)
        self._wake = Wake()
        self._stopped = False
        self._changed = threading.Condition()

    def start(self, recorder: Recorder) -> None:
        self._timetable.start(clock.now_ns())
        if threading.current_thread() is threading.main_thread():
            self._wake.start()
            threading.Thread(target=self._watch, name="overlapscope clock", daemon=True).start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._wake.stop()

    def advance(self, recorder: Recorder) -> None:
        begun_ns = clock.now_ns()
        if self._stopped or self._timetable.left_ns(begun_ns) > 0:
            return
        if recorder.recording:
            recorder.close()
            self._go_on(self._timetable.close, begun_ns)
        elif recorder.open():
            self._go_on(self._timetable.open, begun_ns)
        else:
            self._timetable.refuse()

    def _go_on(self, note: Callable[[int, int], str | None], begun_ns: int) -> None:
        with self._changed:
            late = note(begun_ns, clock.now_ns())
            self._changed.notify()
        if late is not None:
            self.notes.append(late)

    def _watch(self) -> None:
        with self._changed:
            while not self._stopped:
                left_ns = self._timetable.left_ns(clock.now_ns())
                if left_ns > 0:
                    self._woken = False
                    self._changed.wait(left_ns / clock.NS_PER_S)
                    continue
                if not self._asked:
                    self._asked = self._interruption.request()
                elif not self._woken:
                    self._woken = True
                    self._wake.wake()
                self._changed.wait(_AGAIN_S)

    def _delivered(self) -> None:
        self._call()
        # Not before: another request would come while the program's handlers of signals wait.
        self._asked = False


class Unmarked(Clock):
    """Bounds the recording of a program that marks no step: its first seconds, and as many after its start-up.

    The first mark of a step ends this, and so does the end of the second window.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__(START_UP_S, UNMARKED_S, call)
        self._started = False

    def start(self, recorder: Recorder) -> None:
        """Wait for the first window to open, if its start was put off."""
        self.advance(recorder)

    def advance(self, recorder: Recorder) -> None:
        if recorder.marked or recorder.bounded_out:
            self.stop()
        elif self._started:
            super().advance(recorder)
            # Nobody asked for windows that open on time.
            self.notes.clear()
        elif recorder.recording:
            self._started = True
            super().start(recorder)
            self._go_on(self._timetable.open, clock.now_ns())


class CaptureRange(Trigger):
    """Watches `record_function` and `torch.cuda.nvtx` for ranges of that name, or the two calls of the CUDA runtime.

    Only on the thread that starts it.
    """

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        super().__init__()
        self._name = name
        self._call = call
        self._thread = -1
        self._inside: object = None
        """The outermost of these ranges that is open: a `record_function`, or how deep an NVTX range lies."""
        self._depth = 0
        self._undo = contextlib.ExitStack()

    def start(self, recorder: Recorder) -> None:
        import torch
        from torch.cuda import nvtx

        self._thread = threading.get_ident()
        if self._name != CUDA_PROFILER_API:
            self._around(torch.profiler.record_function, "__enter__", self._enters)
            self._around(torch.profiler.record_function, "__exit__", self._leaves)
            self._around(nvtx, "range_push", self._pushes)
            self._around(nvtx, "range_pop", self._pops)
        elif runtime := getattr(torch._C, "_cudart", None):
            # What `torch.cuda.profiler` goes through, too. PyTorch for CPUs has none.
            self._around(runtime, "cudaProfilerStart", self._starts)
            self._around(runtime, "cudaProfilerStop", self._stops)

    def stop(self) -> None:
        self._undo.close()

    def advance(self, recorder: Recorder) -> None:
        if self._inside is not None:
            recorder.open()
        else:
            recorder.close()

    def _enters(self, enter: Callable[..., Any], entered: Any) -> Any:
        if entered.name == self._name:
            self._open(entered)
        return enter(entered)

    def _leaves(self, leave: Callable[..., Any], left: Any, *error: Any) -> Any:
        try:
            return leave(left, *error)
        finally:
            self._close(left)

    def _pushes(self, push: Callable[..., Any], name: str, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == self._thread:
            self._depth += 1
            if name == self._name:
                self._open(self._depth)
        return push(name, *args, **options)

    def _pops(self, pop: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return pop(*args, **options)
        finally:
            if threading.get_ident() == self._thread:
                self._close(self._depth)
                self._depth -= 1

    def _starts(self, start: Callable[..., Any]) -> Any:
        self._open(self._name)
        return start()

    def _stops(self, stop: Callable[..., Any]) -> Any:
        self._close(self._name)
        return stop()

    def _open(self, opened: object) -> None:
        if self._inside is None and threading.get_ident() == self._thread:
            self._inside = opened
            self._call()

    def _close(self, closed: object) -> None:
        if self._inside is not None and self._inside == closed and threading.get_ident() == self._thread:
            self._inside = None
            self._call()

    def _around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        self._undo.callback(around(owner, name, call))
