"""Sampling of this process between two marks of steps, by a process that runs `outside_script.py`."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from overlapscope.base import clock
from overlapscope.base.child import Child
from overlapscope.base.extras import install_line
from overlapscope.recorder.memory_guard import heap_addresses
from overlapscope.recorder.sampling.facts import FactTaker

if TYPE_CHECKING:
    from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame, SystemFacts


LONGEST_STEP_NS = 2 * clock.NS_PER_S
"""Longest step of a program that is sampled. Longer ones would take longer than users wait for."""
_MIN_STEPS = 2
_MIN_FACTS_NS = clock.NS_PER_S
"""Minimum time to take facts. Quotas of CPU time are allotted for periods of 100 ms."""
_MIN_NS = 2 * clock.NS_PER_S
"""Minimum time to sample."""
_START_LIMIT_NS = 5 * clock.NS_PER_S
"""Maximum time from the start of the process that samples until it is ready."""
_END_LIMIT_NS = 5 * clock.NS_PER_S
"""Maximum time from the last sample to the result."""
_MIN_SAMPLED_RATIO = 10
"""Minimum ratio of the sampled steps to what follows them until the program ends, since that is sampled as well."""
_PATIENCE_S = 1.0
"""Maximum time for which a program's end waits for the result."""
_NO_STACKS = "No Python stacks were sampled: {}."
_MISSING = "py-spy is not installed (`{}`)"
_FORBIDDEN = "py-spy may not read the program. In a container, the capability SYS_PTRACE allows it"
_FAILED = "py-spy failed ({})"


class HostSampler:
    """Takes facts of some steps of this process, and then samples some more.

    All calls come from the thread that marks the steps. The program waits for nothing, except at its end in `finish`.
    """

    def __init__(self) -> None:
        self.activity: HostActivity | None = None
        """The result; None until it is complete, and if there is none."""
        self.note: str | None = None
        """Sentence for the user on what could not be sampled."""
        self.over = False
        """True if nothing more is to come."""
        self._outside: OutsideSampler | None = None
        self._thread = threading.get_native_id()
        self._fact_taker = FactTaker(self._thread)
        self._facts: SystemFacts | None = None
        self._began_ns = self._marked_ns = self._steps = 0
        """Beginning and end of the steps under way, and their number."""
        self._at_mark: Callable[[int], None] = self._start_facts
        """Function to call at the next mark with its time in nanoseconds."""

    @property
    def slows(self) -> bool:
        """True while more is under way than to take facts, which costs nothing between two marks."""
        return self._at_mark not in (self._start_facts, self._take_facts)

    def step(self) -> None:
        """Mark the end of a step."""
        if not self.over:
            self._at_mark(clock.now_ns())

    def finish(self) -> None:
        """End the sampling with the program. Steps since the start count if they are enough, and nothing came after."""
        sampled_ns, since_ns = self._marked_ns - self._began_ns, clock.now_ns() - self._marked_ns
        if self._at_mark == self._sample and self._steps >= _MIN_STEPS and since_ns * _MIN_SAMPLED_RATIO < sampled_ns:
            self._end()
        if self._at_mark == self._collect:
            self._take_result(_PATIENCE_S)
        self.stop()

    def stop(self) -> None:
        """End the sampling, and drop samples that were not returned."""
        self.over = True
        self._fact_taker.abandon()
        if self._outside is not None:
            self._outside.stop()
        self._outside = None

    def _start_facts(self, _: int) -> None:
        self._fact_taker.start()
        self._begin(self._take_facts)

    def _take_facts(self, now_ns: int) -> None:
        if self._count(now_ns, _MIN_FACTS_NS):
            self._facts = self._fact_taker.stop(self._steps, now_ns - self._began_ns)
            with suppress(OSError, ValueError, AttributeError):
                self._outside = OutsideSampler(self._thread)
            self._at_mark = self._await_sampler

    def _await_sampler(self, now_ns: int) -> None:
        outside = self._outside
        if outside is not None and not outside.ready:
            if not outside.ended and now_ns - self._marked_ns < _START_LIMIT_NS:
                return
            outside.stop()
            outside = self._outside = None
        self._begin(self._sample)
        if outside is not None:
            outside.begin()

    def _sample(self, now_ns: int) -> None:
        if self._count(now_ns, _MIN_NS):
            self._end()

    def _collect(self, now_ns: int) -> None:
        self._take_result(0)
        if now_ns - self._marked_ns > _END_LIMIT_NS:
            self.stop()

    def _begin(self, at_mark: Callable[[int], None]) -> None:
        self._steps, self._began_ns, self._at_mark = 0, clock.now_ns(), at_mark

    def _count(self, now_ns: int, least_ns: int) -> bool:
        """Count a step, and return whether there are enough."""
        self._steps, self._marked_ns = self._steps + 1, now_ns
        return self._steps >= _MIN_STEPS and now_ns - self._began_ns >= least_ns

    def _end(self) -> None:
        """Sample no more."""
        self._at_mark = self._collect
        if self._outside is None:
            self._build({})
        else:
            self._outside.end()

    def _take_result(self, within_s: float) -> None:
        """Take the result of a process that has ended."""
        if self._outside is None:
            return
        content = self._outside.result(within_s)
        if content is not None:
            with suppress(KeyError, TypeError, ValueError):
                self._build(content)
        elif self._outside.ended:
            self.stop()

    def _build(self, content: dict[str, Any]) -> None:
        """Build the result from the process's samples."""
        from overlapscope.trace.host_activity import HostActivity, ThreadStates

        assert self._facts is not None
        frames, stacks = host_stacks(content.get("all", ()), content.get("running", ()))
        if self._outside is not None and not self._outside.has_stacks:
            self.note = _NO_STACKS.format(_why(content["problem"]))
        self.activity = HostActivity(
            thread=self._thread,
            steps=self._steps,
            span_ns=self._marked_ns - self._began_ns,
            interval_ns=clock.NS_PER_S // content["stacks_per_s"] if stacks else 0,
            sampler=f"py-spy {content['version']}" if stacks else "",
            frames=frames,
            stacks=stacks,
            states=ThreadStates(*content.get("states", ())),
            files=content.get("files", {}),
            facts=self._facts,
        )
        self.stop()


def _why(problem: str) -> str:
    """Return a clause on why py-spy did not sample, with what to do."""
    if not problem:
        return _MISSING.format(install_line("record"))
    forbidden = any(word in problem for word in ("ermission", "not permitted", "elevated"))
    return _FORBIDDEN if forbidden else _FAILED.format(problem.splitlines()[-1])


# -- Stacks of limited number and size, without the recorder's own frames --------------------------------

_MAX_STACKS = 2000
_MAX_BYTES = 400_000
"""Maximum size of all stacks in the trace. The recorder rewrites the trace's head, which contains them, in memory."""
_MAX_DEPTH = 200
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
    half = _MAX_DEPTH // 2
    return tuple(frames if len(frames) <= _MAX_DEPTH else [*frames[:half], *frames[-half:]])


_ALIKE: tuple[Callable[[Stack], Hashable], ...] = (
    lambda stack: stack,
    lambda stack: (stack[0], tuple((file, function) for file, _, function in stack[1])),
    lambda stack: (stack[0], stack[1][-1]),
)
"""Keys that stacks are compared by: all lines, then all functions, and then the innermost line."""


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
        if len(kept) < _MAX_STACKS and size + needed <= _MAX_BYTES:
            size += needed
            seen |= new
        else:
            stack = thread, ()
        kept[stack] += count
        runs_kept[stack] += runs[thread, frames]
    return kept, runs_kept


# -- A process ---------------------------------------------------------------------------------------

_SCRIPT = Path(__file__).with_name("outside_script.py")
_LIMIT_S = 30
"""Maximum time after which the process ends by itself."""
_PR_SET_PTRACER = 0x59616D61
_STATE_BYTES = 1 << 19
"""Upper bound on the size of Python's runtime state: it has 166,688 bytes in Python 3.11, and 459,944 in 3.12."""


class OutsideSampler:
    """A process that samples this one, and the state of one of its threads."""

    def __init__(self, thread: int) -> None:
        """Start it for the thread of this number. Raises OSError, AttributeError or ValueError where it cannot."""
        # The state of Python's runtime contains the lock of the main interpreter, whose address tells waits for it.
        state = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
        # Other locks are in the heap, which may begin soon after it.
        heap, end = heap_addresses(), state + _STATE_BYTES
        end = min(end, heap.start) if state < heap.start else end
        self._result = os.memfd_create("overlapscope")
        # Unlike a pipe, a socket never raises SIGPIPE, which the program may have set to end it.
        self._socket, other = socket.socketpair()
        numbers = os.getpid(), thread, state, end, _LIMIT_S
        try:
            self._child = Child(
                [sys.executable, "-I", "-S", str(_SCRIPT), *map(str, numbers), _py_spy()],
                stdin=other,
                stdout=self._result,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self._close()
            raise
        finally:
            other.close()
        # Yama lets only ancestors read a process, and another process that it names, with the children of that process.
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(self._child.pid), 0, 0, 0)
        self._send()

    @property
    def ready(self) -> bool:
        """True once `begin` may be called."""
        return os.fstat(self._result).st_size > 0

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._child.poll() is not None

    @property
    def has_stacks(self) -> bool:
        """True if py-spy samples. Valid once it is ready."""
        return os.pread(self._result, 1, 0) == b"+"

    def begin(self) -> None:
        """Begin to sample."""
        self._send()

    def end(self) -> None:
        """Stop sampling."""
        self._send()

    def result(self, within_s: float) -> dict[str, Any] | None:
        """Return its samples, after `end`; None if it does not end within this time, or has failed."""
        if self._child.ends_within(within_s):
            with suppress(OSError, ValueError):
                content = json.loads(os.pread(self._result, os.fstat(self._result).st_size, 1))
                return content if isinstance(content, dict) else None
        return None

    def stop(self) -> None:
        """End the process."""
        self._child.end()
        self._close()

    def _close(self) -> None:
        self._socket.close()
        os.close(self._result)

    def _send(self) -> None:
        with suppress(OSError):
            self._socket.send(b".", getattr(socket, "MSG_NOSIGNAL", 0))


def _py_spy() -> str:
    """Return the path of py-spy where its package has it, or else the shell's; empty without one."""
    with suppress(importlib.metadata.PackageNotFoundError, OSError):
        package = importlib.metadata.distribution("py-spy")
        stated = [file for file in package.files or () if file.name == "py-spy"]
        # `pip install --target` puts it elsewhere than it states.
        for file in (*stated, Path("bin", "py-spy")):
            if (path := Path(str(package.locate_file(file)))).is_file():
                return str(path.resolve())
    return shutil.which("py-spy") or ""
