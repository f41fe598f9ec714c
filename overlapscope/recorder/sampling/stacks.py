"""The stacks of samples, as `HostActivity` has them: of limited number and size, without the recorder's own frames."""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from overlapscope.trace.host_activity import SampledStack, StackFrame

_MOST_STACKS = 2000
_MOST_BYTES = 400_000
"""Maximum size of all stacks in the trace. The recorder rewrites the trace's head, which contains them, in memory."""
_MOST_DEPTH = 200
_FRAME_BYTES, _STACK_BYTES, _NUMBER_BYTES = 24, 40, 6
"""Size of a frame without its names, of a stack without its frames, and of a frame's number, in the trace."""
_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"
_RUNS_THE_PROGRAM = os.path.join(_PACKAGE, "recorder", "script.py")

Frame: TypeAlias = tuple[str, int, str]
"""File, line and function."""
Stack: TypeAlias = tuple[int, tuple[Frame, ...]]
"""Thread, and frames from the outermost."""


def host_stacks(
    every: Iterable[Sequence[Any]], running: Iterable[Sequence[Any]]
) -> tuple[tuple[StackFrame, ...], tuple[SampledStack, ...]]:
    """Return frames and stacks, the most frequent first.

    Args:
        every: All samples, as threads, frames from the outermost, and numbers of samples.
        running: Samples of the same time, as many but taken independently, and only of threads that ran.
    """
    from overlapscope.trace.host_activity import SampledStack, StackFrame

    samples = _counts(every)
    kept, runs = _limited(samples, _matched(samples, _counts(running)))
    numbers = {frame: number for number, frame in enumerate(dict.fromkeys(f for _, frames in kept for f in frames))}
    stacks = tuple(
        SampledStack(thread, tuple(numbers[frame] for frame in frames), count, runs[thread, frames])
        for (thread, frames), count in kept.most_common()
    )
    return tuple(StackFrame(*frame) for frame in numbers), stacks


def _counts(samples: Iterable[Sequence[Any]]) -> Counter[Stack]:
    counts: Counter[Stack] = Counter()
    for thread, frames, count in samples:
        of_program = _of_program([(file, line, function) for file, line, function in frames])
        if of_program:
            counts[thread, of_program] += count
    return _with_callers(counts)


def _with_callers(counts: Counter[Stack]) -> Counter[Stack]:
    """Return the samples; those without the outermost frames count for the most frequent stack that ends alike.

    py-spy doesn't stop the program, and so may see a generator before Python has linked it to its caller.
    """
    roots: Counter[tuple[int, str, str]] = Counter()
    for (thread, frames), count in counts.items():
        roots[thread, frames[0][0], frames[0][2]] += count
    root = {thread: (file, function) for (thread, file, function), _ in reversed(roots.most_common())}
    whole = [(stack, n) for stack, n in counts.most_common() if (stack[1][0][0], stack[1][0][2]) == root[stack[0]]]
    by_innermost = defaultdict[tuple[int, Frame], list[Stack]](list)
    for stack, _ in whole:
        by_innermost[stack[0], stack[1][-1]].append(stack)
    linked: Counter[Stack] = Counter(dict(whole))
    for stack, count in counts.items():
        if stack not in linked:
            thread, inner = stack
            alike = (other for other in by_innermost[thread, inner[-1]] if other[1][-len(inner) :] == inner)
            linked[next(alike, stack)] += count
    return linked


def _of_program(frames: list[Frame]) -> tuple[Frame, ...]:
    """Return the frames of the program, and of the recorder only an innermost one; none of the recorder's threads."""
    begin = max((index + 1 for index, frame in enumerate(frames) if frame[0] == _RUNS_THE_PROGRAM), default=0)
    starts = next((file for file, *_ in frames[begin:] if file != threading.__file__), "")
    if starts.startswith(_PACKAGE):
        return ()
    frames = [frame for frame in frames[begin:-1] if not frame[0].startswith(_PACKAGE)] + frames[-1:]
    half = _MOST_DEPTH // 2
    return tuple(frames if len(frames) <= _MOST_DEPTH else [*frames[:half], *frames[-half:]])


_ALIKE: tuple[Callable[[Stack], Hashable], ...] = (
    lambda stack: stack,
    lambda stack: (stack[0], tuple((file, function) for file, _, function in stack[1])),
    lambda stack: (stack[0], stack[1][-1]),
)
"""What stacks are compared by: all lines, then all functions, and then the innermost line."""


def _matched(samples: Counter[Stack], running: Counter[Stack]) -> Counter[Stack]:
    """Return how many samples of each stack ran.

    Both are random samples of the same time. So of a stack that was seen once by each, the lines mostly differ. Samples
    that match no stack by all lines are matched by all functions, and then by the innermost line.
    """
    runs: Counter[Stack] = Counter()
    left = running.copy()
    for key in _ALIKE:
        found: Counter[Hashable] = Counter()
        for stack, count in left.items():
            found[key(stack)] += count
        for stack, count in samples.items():
            taken = min(count - runs[stack], found[key(stack)])
            runs[stack] += taken
            found[key(stack)] -= taken
        for stack, count in left.items():
            left[stack] = min(count, found[key(stack)])
            found[key(stack)] -= left[stack]
        left = +left
    return runs


def _limited(samples: Counter[Stack], runs: Counter[Stack]) -> tuple[Counter[Stack], Counter[Stack]]:
    """Return the most frequent stacks, and how many samples of each ran. Others become a stack without frames."""
    kept: Counter[Stack] = Counter()
    runs_kept: Counter[Stack] = Counter()
    seen: set[Frame] = set()
    size = 0
    for stack, count in samples.most_common():
        thread, frames = stack
        new = set(frames) - seen
        needed = _STACK_BYTES + _NUMBER_BYTES * len(frames)
        needed += sum(_FRAME_BYTES + len(file) + len(function) for file, _, function in new)
        if len(kept) < _MOST_STACKS and size + needed <= _MOST_BYTES:
            size += needed
            seen |= new
        else:
            stack = thread, ()
        kept[stack] += count
        runs_kept[stack] += runs[thread, frames]
    return kept, runs_kept
