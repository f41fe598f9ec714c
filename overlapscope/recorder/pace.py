"""The pace of a program: the lengths of all its steps without the profiler, by the host's clock."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from random import Random

from overlapscope.base import clock
from overlapscope.base.median import median_ns
from overlapscope.base.words import between, duration, plural

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
