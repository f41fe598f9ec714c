"""Lengths of steps: timed without the profiler, described in sentences, and compared to find slow steps."""

from __future__ import annotations

import ctypes
import os
import statistics
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from overlapscope.base import clock
from overlapscope.base.median import drifted, median_ns
from overlapscope.base.words import between, duration, plural, unit_for
from overlapscope.recorder import devices
from overlapscope.recorder.options import SETTLING_STEPS
from overlapscope.recorder.session import profiler_running

if TYPE_CHECKING:
    from overlapscope.trace.host_activity import HostActivity
    from overlapscope.trace.model import PlainSteps, TimedSteps


_MAX_REMEMBERED_STEPS = 1000
_MIN_STEPS_FOR_MEDIAN = 10
"""Minimum number of steps for a median."""


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Lengths of steps, in nanoseconds."""

    plain: PlainSteps
    """Steps right before and right after the recording, without the profiler."""
    recorded_ns: tuple[int, ...]
    """Judged steps of the recording by the host's clock."""
    activity: HostActivity | None = None
    """Activity of the host after the recording."""

    def sentence(self) -> str | None:
        """Return a sentence on the length of a step with and without the profiler; None if none was timed."""
        from overlapscope.analysis.plain_step import lengths_of, measured
        from overlapscope.trace.host_activity import HostActivity

        before_ns, after_ns = lengths_of(self.plain.before), lengths_of(self.plain.after)
        plain_ns = (*before_ns, *after_ns)
        if not plain_ns:
            return None
        if drifted(before_ns, after_ns):
            before, after = (round(statistics.mean(side)) for side in (before_ns, after_ns))
            unit = unit_for(max(before, after))
            return (
                f"without the profiler a step takes {unit.text(before)} before the recording and {unit.text(after)} "
                "after it: the program or the machine changed."
            )
        recorded_ns = round(statistics.mean(self.recorded_ns or (max(plain_ns),)))
        plain = measured(self.plain, recorded_ns, self.activity or HostActivity())
        timed = f"{plural(len(plain_ns), 'step')} took {between(min(plain_ns), max(plain_ns))}"
        if plain is None:
            mean = duration(round(statistics.mean(plain_ns)))
            average = "" if timed.endswith(f"took {mean}") else f", {mean} on average"
            return f"without the profiler {timed}{average}; too few were timed for a step time."
        return f"without the profiler a step takes {plain.words}; {timed}."


class SlowSteps:
    """Compares each step with the median of up to 1000 before it."""

    def __init__(self, times: float) -> None:
        self._times = times
        self._lengths_ns: deque[int] = deque(maxlen=_MAX_REMEMBERED_STEPS)
        self._seen = 0

    def judge(self, step: int, length_ns: int) -> str | None:
        """Return a sentence on a step that took more than `times` times the median; None for other steps."""
        lengths_ns, self._seen = self._lengths_ns, self._seen + 1
        usual_ns = median_ns(lengths_ns) if len(lengths_ns) >= _MIN_STEPS_FOR_MEDIAN else None
        lengths_ns.append(length_ns)
        if usual_ns is None or length_ns <= self._times * usual_ns:
            return None
        unit = unit_for(length_ns)
        return (
            f"Step {step} took {unit.text(length_ns)}, {length_ns / max(1, usual_ns):.1f} times the median of "
            f"{unit.text(usual_ns)} ({plural(len(lengths_ns) - 1, 'step')}, recorded ones like it)."
        )

    def why_none(self) -> str:
        """Return a sentence on a program without slow steps."""
        if self._seen <= _MIN_STEPS_FOR_MEDIAN:
            return f"There is no trace: only {plural(self._seen, 'step')} could be judged, too few to tell a slow one."
        usual_ns = median_ns(self._lengths_ns)
        return (
            f"There is no trace: no step took more than {self._times:g} times the median of {duration(usual_ns)} "
            f"({plural(self._seen, 'step')} judged)."
        )


# -- Timing ---------------------------------------------------------------------------------------

_NS_PER_MS = 1_000_000
_MAX_SETTLING_STEPS = 100


class StepTimer:
    """Times up to `most` of the latest steps, once the program has settled.

    Each end of a step is marked by the host's clock and, once CUDA is in use, by an event on the current stream. Only
    `read` with `wait` waits for the device.
    """

    def __init__(self, most: int) -> None:
        """Prepare to time steps: none if `most` is 0."""
        self._marks: deque[tuple[int, Any]] = deque(maxlen=most + 1)
        """Times of the host in nanoseconds, each with its `torch.cuda.Event`, or None without CUDA."""
        self._most = most
        self._settled = False
        self._paused_ns = self._resumed_ns = self._resumed_step = 0
        """Length of the latest pause, its end, and the step that it was in."""
        _timers.add(self)

    @property
    def timed(self) -> int:
        """Number of timed steps."""
        return max(0, len(self._marks) - 1)

    @property
    def lengths_ns(self) -> tuple[int, ...]:
        """Lengths of the timed steps by the host's clock."""
        return tuple(end - begin for (begin, _), (end, _) in pairwise(self._marks))

    @property
    def full(self) -> bool:
        """True if `most` steps are timed."""
        return self.timed == self._most

    def step(self, finished: int) -> None:
        """Mark the end of a step. Do not call this while a CUDA graph is captured."""
        if not self._most:
            return
        if profiler_running():
            # The program's own profiler runs.
            self.restart()
        elif self._marks or self.settled(finished):
            self._marks.append((clock.now_ns(), _event()))

    def restart(self) -> None:
        """Forget all marks."""
        self._marks.clear()

    def abandon_events(self) -> None:
        """Forget all marks in a forked child, without ever freeing their events.

        Freeing a CUDA event ends a forked child with SIGABRT (torch 2.13): CUDA fails there, and the event's destructor
        must not raise.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._marks))
        self._marks = deque(maxlen=self._marks.maxlen)

    def pause(self) -> None:
        """Begin work that makes the program pause, until `resume`."""
        self._resumed_ns = clock.now_ns()

    def resume(self, finished: int) -> None:
        """End the work, after which the program has to settle again."""
        paused_ns, self._resumed_ns = self._resumed_ns, clock.now_ns()
        self._paused_ns, self._resumed_step, self._settled = self._resumed_ns - paused_ns, finished, False

    def read(self, *, wait: bool = False) -> TimedSteps:
        """Return the timed steps. Without `wait`, the device's times end with the last step that it has finished."""
        from overlapscope.trace.model import TimedSteps

        if wait and self._marks:
            # A device that has failed has no times.
            with suppress(RuntimeError):
                devices.synchronize()
        return TimedSteps(self.lengths_ns, _device_ns([event for _, event in self._marks]))

    def settled(self, finished: int) -> bool:
        """Return whether the program runs at its usual speed again after the last pause."""
        if not self._settled:
            from multiprocessing import active_children

            steps, since_ns = finished - self._resumed_step, clock.now_ns() - self._resumed_ns
            self._settled = settled(steps, since_ns, self._paused_ns, workers=bool(active_children()))
        return self._settled


def settled(steps: int, since_ns: int, pause_ns: int, *, workers: bool) -> bool:
    """Return whether a program runs at its usual speed again, some steps and nanoseconds after a pause.

    During the pause, its worker processes, if any, continued and filled their queues. They are in balance again when
    the program has had at least twice the pause to empty these.
    """
    if steps < SETTLING_STEPS:
        return False
    return not workers or since_ns >= 2 * pause_ns or steps >= _MAX_SETTLING_STEPS


_timers: weakref.WeakSet[StepTimer] = weakref.WeakSet()


def _forked() -> None:
    for timer in _timers:
        timer.abandon_events()


os.register_at_fork(after_in_child=_forked)


def _event() -> Any:
    """Return an event that was recorded; None without CUDA."""
    if not devices.cuda_is_up():
        return None
    import torch

    event = torch.cuda.Event(enable_timing=True)
    # A device that has failed takes no events. The program will notice the failure itself.
    with suppress(RuntimeError):
        event.record()
        return event
    return None


def _device_ns(events: list[Any]) -> tuple[int, ...]:
    """Return the times between events, up to the first that is not done; none if an event is missing."""
    lengths: list[int] = []
    # The program may have changed to another device between two steps.
    with suppress(RuntimeError):
        if None not in events:
            for begin, end in pairwise(events):
                if not end.query():
                    break
                lengths.append(round(begin.elapsed_time(end) * _NS_PER_MS))
            return tuple(lengths)
    return ()
