"""Lengths of steps: timed without the profiler, described in sentences, and compared to find slow steps and paces."""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import sys
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from random import Random
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
        recorded_ns = round(statistics.mean(self.recorded_ns or (max(plain_ns),)))
        plain = measured(self.plain, recorded_ns, self.activity or HostActivity())
        # The mean of all steps, which the report is of, may be neither.
        if drifted(before_ns, after_ns) and not (plain and plain.clocked_steps):
            before, after = (round(statistics.mean(side)) for side in (before_ns, after_ns))
            unit = unit_for(max(before, after))
            return (
                f"without the profiler a step takes {unit.text(before)} before the recording and {unit.text(after)} "
                "after it: the program or the machine changed."
            )
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


# -- The pace of a program: the lengths of all its steps without the profiler, by the host's clock -----

MAX_PACE_DIFFERENCE = 0.2
"""Relative difference up to which two lengths are the same pace."""
_BLOCK_STEPS = 20
_BLOCK_NS = 200_000_000
"""Minimum number of steps in a block, and minimum time."""
_BUCKET_WIDTH = math.log1p(MAX_PACE_DIFFERENCE) / 2
"""Width of a bucket of lengths, as a logarithm. Lengths of the same pace are at most two buckets apart."""
_MAX_KEPT = 1 << 14
"""Maximum number of lengths to keep."""
_TENTH = 10
_MIN_HALF = 5
"""Minimum number of steps on each side for a trend: by chance, one in 252 series of ten shows it."""


class Pace:
    """Clocks every step, and tells at which pace the program spends most of its time.

    Steps are compared in blocks by their medians, so single long steps, such as those of a checkpoint, change no pace.
    """

    def __init__(self) -> None:
        self.steps = 0
        """Number of clocked steps."""
        self.span_ns = 0
        """Time of all clocked steps."""
        self._lengths: list[int] = []
        """Lengths of all steps or, of many, of a random sample."""
        self._random = Random(0)
        self._begun_ns: int | None = None
        """Start of the step under way; None if it is not clocked."""
        self._block: list[int] = []
        self._block_span_ns = 0
        self._block_ns = Counter[int]()
        """Time of blocks by bucket of their median."""
        self._median_ns = 0
        """Median of the latest block."""
        self._latest_ns = 0
        """The same; 0 if the block before it had another pace."""
        self.recorded_ns = 0
        """Median of the steps before the recording."""
        self._pace_ns = 0
        """Median of the first block since the recording; before it ends, of the steps before the recording."""
        self._awaits_block = False
        """True from a recording until the first block since then ends."""
        self._blocks = 0
        """Number of blocks."""
        self._all = _StepLengths()
        """Lengths of all steps, without those of the present block."""
        self._at_recording = _StepLengths()
        """The same when the first recording at the present pace began."""
        self._first: dict[int, _StepLengths] = {}
        """The same after the first block of each bucket, some of whose steps may have had the pace before."""
        self._last: dict[int, tuple[int, _StepLengths]] = {}
        """The same before the last block of each bucket, and the number of that block."""

    def begin(self, *, clocked: bool) -> None:
        """Begin a step, which is left out if it is recorded or follows a pause."""
        self._begun_ns = clock.now_ns() if clocked else None

    def end(self, *, counts: bool = True) -> None:
        """End a step. One that compiled, for example, counts for nothing."""
        if self._begun_ns is None or not counts:
            return
        length_ns = clock.now_ns() - self._begun_ns
        self.steps += 1
        if len(self._lengths) < _MAX_KEPT:
            self._lengths.append(length_ns)
        elif (place := self._random.randrange(self.steps)) < _MAX_KEPT:
            self._lengths[place] = length_ns
        self.span_ns += length_ns
        self._block.append(length_ns)
        self._block_span_ns += length_ns
        if len(self._block) >= _BLOCK_STEPS and self._block_span_ns >= _BLOCK_NS:
            self._end_block()

    def _end_block(self) -> None:
        block, self._block, self._block_span_ns = self._block, [], 0
        before_ns, self._median_ns = self._median_ns, median_ns(block)
        self._latest_ns = self._median_ns if is_same(before_ns, self._median_ns) else 0
        self._block_ns[_bucket(self._median_ns)] += sum(block)
        if self._awaits_block:
            self._pace_ns, self._awaits_block = self._median_ns, False
        bucket, before = _bucket(self._median_ns), self._all
        self._all, self._blocks = before.plus(block), self._blocks + 1
        self._first.setdefault(bucket, self._all)
        self._last[bucket] = self._blocks, before

    def record(self, before_ns: Sequence[int]) -> None:
        """Note that a recording opens, right after steps of these lengths."""
        if not before_ns:
            return
        self._all = self._all.plus(self._block)
        self._block, self._block_span_ns = [], 0
        earlier_ns, self.recorded_ns = self.recorded_ns, median_ns(before_ns)
        if not is_same(earlier_ns, self.recorded_ns):
            self._at_recording = self._all
        self._pace_ns = self.recorded_ns
        self._awaits_block = True

    @property
    def at_recorded_pace(self) -> tuple[tuple[int, int], ...]:
        """Steps at the pace of the latest recording: numbers and times of those of about the same length.

        They are those from the first block at this pace to the last one, or from the recording on if no block before it
        has that pace. The first block doesn't count, nor the last one if other paces follow: some of their steps may
        have another. A single block at the end may be of a validation, and counts, too.
        """
        near = _near(self._pace_ns)
        begin = min([self._at_recording, *(self._first[each] for each in near if each in self._first)], key=len)
        number, end = max(
            (self._last[each] for each in near if each in self._last),
            default=(0, _StepLengths()),
            key=lambda last: last[0],
        )
        if self._blocks - number <= 1 or len(end) <= len(begin):
            end = self._all.plus(self._block)
        return end.minus(begin)

    def elsewhere(self) -> int | None:
        """Return the length of the latest steps if the program has spent more time at it than at the recorded pace."""
        latest_ns, recorded_ns = self._latest_ns, self.recorded_ns
        if not latest_ns or not recorded_ns or is_same(latest_ns, recorded_ns):
            return None
        return latest_ns if self._time_near(latest_ns) > self._time_near(recorded_ns) else None

    def _time_near(self, length_ns: int) -> int:
        return sum(self._block_ns[bucket] for bucket in _near(length_ns))

    def sentence(self, recorded_ns: Sequence[int]) -> str | None:
        """Return a sentence on all clocked steps, and on those of the recording; None if no step was clocked."""
        if not self._lengths:
            return None
        lengths, mean_ns = sorted(self._lengths), round(self.span_ns / self.steps)
        low_ns, high_ns = lengths[len(lengths) // _TENTH], lengths[-1 - len(lengths) // _TENTH]
        most = f", most {between(low_ns, high_ns)}" if len(lengths) >= 2 * _TENTH else ""
        recorded = f"; while recorded, {duration(median_ns(recorded_ns))} in the median" if recorded_ns else ""
        steps = plural(self.steps, "step")
        middle = f"mean {duration(mean_ns)}, median {duration(median_ns(lengths))}"
        return f"{steps} in {duration(self.span_ns)}, {middle}{most}{recorded}."


class _StepLengths:
    """Numbers and times of steps by bucket of their length."""

    def __init__(self, steps: Counter[int] | None = None, span_ns: Counter[int] | None = None) -> None:
        self._steps, self._span_ns = steps or Counter[int](), span_ns or Counter[int]()

    def __len__(self) -> int:
        return self._steps.total()

    def plus(self, lengths_ns: Sequence[int]) -> _StepLengths:
        """Return these and further steps."""
        steps, span_ns = self._steps.copy(), self._span_ns.copy()
        for ns in lengths_ns:
            bucket = _bucket(ns)
            steps[bucket] += 1
            span_ns[bucket] += ns
        return _StepLengths(steps, span_ns)

    def minus(self, others: _StepLengths) -> tuple[tuple[int, int], ...]:
        """Return the number and the time of the steps that are not among the others, by bucket."""
        steps, span_ns = self._steps - others._steps, self._span_ns - others._span_ns
        return tuple((steps[bucket], span_ns[bucket]) for bucket in sorted(steps))


def is_same(one_ns: int, other_ns: int) -> bool:
    """Return whether two lengths are the same pace."""
    return abs(one_ns - other_ns) <= MAX_PACE_DIFFERENCE * min(one_ns, other_ns)


def becomes_faster(lengths_ns: Sequence[int]) -> bool:
    """Return whether steps in a row become faster: each of the first half is longer than all of the second half."""
    half = len(lengths_ns) // 2
    if half < _MIN_HALF:
        return False
    first, second = lengths_ns[:half], lengths_ns[half:]
    return min(first) > max(second) and not is_same(median_ns(first), median_ns(second))


def compilations() -> int:
    """Return the number of frames that torch.compile has looked at so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    # Another thread may be importing the module.
    return sum(getattr(dynamo, "counters", {}).get("frames", {}).values())


def _near(length_ns: int) -> range:
    """Return the buckets of lengths of the same pace."""
    return range(_bucket(length_ns) - 2, _bucket(length_ns) + 3)


def _bucket(length_ns: int) -> int:
    return math.floor(math.log(max(1, length_ns)) / _BUCKET_WIDTH)
