"""Host activity in steps without the profiler: sampled stacks, states of the main thread, and facts of the system.

The recorder takes these in steps of their own, which are neither recorded nor timed, since sampling and recording would
distort each other. Figures are totals of these steps; divide by `steps` for an average step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from msgspec import Struct


class StackFrame(Struct, frozen=True, array_like=True):
    """A Python frame of a sampled stack."""

    file: str
    """Full path, or what Python states instead, such as `<string>`."""
    line: int
    """Line being executed; 0 if unknown."""
    function: str


class SampledStack(Struct, frozen=True, array_like=True):
    """A Python stack, and the number of samples that found a thread in it."""

    thread: int
    """Number of the thread in the operating system."""
    frames: tuple[int, ...]
    """Indices into `HostActivity.frames`, outermost first; none for all rare stacks of the thread together."""
    samples: int
    running: int
    """Number of these samples in which the thread ran; the thread slept or waited in the others."""


class ThreadStates(Struct, frozen=True):
    """Number of samples in which the main thread was in each state, by its system call (`/proc/PID/task/*/syscall`)."""

    running: int = 0
    gil_wait: int = 0
    """Waiting for Python's global interpreter lock."""
    file_io: int = 0
    """Inside a call that reads, writes or flushes a file."""
    other_wait: int = 0
    """Waiting for anything else: a lock, a pipe or socket, another process, a timer."""

    @property
    def total(self) -> int:
        """Number of samples."""
        return self.running + self.gil_wait + self.file_io + self.other_wait


class SystemFacts(Struct, frozen=True, kw_only=True):
    """Facts of the operating system and of Python; None where the system does not state them.

    They are of steps that ran before those that were sampled, since the sampler needs CPU time. Those of threads are
    sums over the main thread and autograd's threads for devices, which run while it waits.
    """

    steps: int = 0
    """Number of these steps."""
    span_ns: int = 0
    """Length of these steps together by the host's clock."""

    run_queue_ns: int | None = None
    """Time for which these threads could have run but had no CPU (`schedstat`), throttling included.

    It is at most the time in which none of them had a CPU.
    """
    throttled_ns: int | None = None
    """Time for which the control group's CPU quota stopped the process (`cpu.stat`), at most `run_queue_ns`."""
    kernel_ns: int | None = None
    """CPU time of these threads in the system's kernel, which is counted in ticks of usually 10 ms (`stat`)."""
    other_threads_cpu_ns: int | None = None
    """CPU time of the process's other threads."""
    involuntary_switches: int | None = None
    """Number of times that these threads lost their CPU."""
    major_faults: int | None = None
    gc_pause_ns: int | None = None
    """Time in Python's garbage collector."""
    gc_collections: int | None = None
    usable_cpus: int | None = None
    """Number of CPUs that the process may use (its affinity)."""
    quota_cpus: float | None = None
    """CPU quota of the control group, in CPUs; None without a quota."""
    torch_threads: int | None = None
    """Number of threads of `torch.get_num_threads()`."""

    @property
    def whole_cpus(self) -> int | None:
        """Number of CPUs that the program can use all the time, at least 1; None if unknown."""
        cpus = [n for n in (self.usable_cpus, self.quota_cpus) if n is not None]
        return max(1, int(min(cpus))) if cpus else None

    @property
    def cpus_to_match(self) -> int | None:
        """Number of CPUs for torch's threads if there are more threads than CPUs; None otherwise."""
        threads, cpus = self.torch_threads, self.whole_cpus
        return cpus if threads is not None and cpus is not None and threads > cpus else None

    @property
    def beside_others(self) -> bool:
        """True if mostly other processes had the CPU while the launching thread waited for one.

        While a quota stops the process, none of them need run.
        """
        if self.run_queue_ns is None:
            return False
        return self.exceeds_other_threads(self.run_queue_ns - (self.throttled_ns or 0))

    def exceeds_other_threads(self, waited_ns: int | None) -> bool:
        """Return whether the process's other threads ran for less than half of some time; False if that is unknown."""
        other_threads_ns = self.other_threads_cpu_ns
        return waited_ns is not None and other_threads_ns is not None and 2 * other_threads_ns < waited_ns


class HostActivity(Struct, frozen=True, kw_only=True):
    """Activity of the host in some steps without the profiler; without any by default."""

    thread: int = 0
    """Number of the thread that marks the steps (the main thread)."""
    steps: int = 0
    """Number of steps."""
    span_ns: int = 0
    """Length of these steps together by the host's clock."""
    interval_ns: int = 0
    """Time between two samples of stacks; 0 without samples."""
    sampler: str = ""
    """Sampler and version, such as `py-spy 0.4.3`; empty without samples."""
    frames: tuple[StackFrame, ...] = ()
    stacks: tuple[SampledStack, ...] = ()
    states: ThreadStates = ThreadStates()
    files: dict[str, int] = {}
    """Number of samples of `states.file_io` by file."""
    facts: SystemFacts = SystemFacts()

    @property
    def main_stacks(self) -> tuple[SampledStack, ...]:
        """Stacks of the main thread."""
        return tuple(stack for stack in self.stacks if stack.thread == self.thread)

    @property
    def main_samples(self) -> int:
        """Number of samples in them."""
        return sum(stack.samples for stack in self.main_stacks)

    def __bool__(self) -> bool:
        """Return whether any activity is known."""
        return self.steps > 0


# -- Kinds of stacks ---------------------------------------------------------------------------------

Frames: TypeAlias = Sequence[StackFrame]
"""Frames of a stack, outermost first."""
_LOADER: Final = "torch/utils/data/"
_RUNS_ELSEWHERE: Final = ("torch/autograd/graph.py", _LOADER)
"""Files whose functions wait for another thread: autograd's engine, or workers."""


def is_torch(frames: Frames) -> bool:
    """Return whether a stack ends in a function of PyTorch's."""
    return bool(frames) and "/torch/" in frames[-1].file


def is_not_torch(frames: Frames) -> bool:
    """Return whether a stack ends in another function than PyTorch's."""
    return not is_torch(frames)


def is_loading(frames: Frames) -> bool:
    """Return whether a stack is inside a DataLoader."""
    return any(_LOADER in frame.file for frame in frames)


def is_python(frames: Frames) -> bool:
    """Return whether a stack may be Python's own work, neither a backward pass nor data loading."""
    return not any(file in frame.file for frame in frames for file in _RUNS_ELSEWHERE)
