"""Facts of the operating system and of Python between two marks of steps, which cost a few reads at each mark."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.base import clock
from overlapscope.recorder.marks import GcWatch

if TYPE_CHECKING:
    from overlapscope.trace.host_activity import SystemFacts

_CGROUPS = Path("/sys/fs/cgroup")
_NS_PER_US = 1000
_TASKS = Path("/proc/self/task")
_MAJOR_FAULTS, _KERNEL_TICKS = 9, 12
"""Places in `stat`, after the name."""


def _counters(thread: int) -> tuple[int | None, ...]:
    """Return counters of a thread; None where the system does not state them.

    They are the time on a CPU, the time that it waited for one, involuntary switches, major faults, and the time in the
    kernel, all times in nanoseconds.
    """
    task = _TASKS / str(thread)
    scheduled = _words(task / "schedstat")
    status = dict(line.split(":", 1) for line in _text(task / "status").splitlines() if ":" in line)
    switches = status.get("nonvoluntary_ctxt_switches")
    # The name, which may contain spaces, ends at the last parenthesis.
    numbers = _text(task / "stat").rpartition(")")[2].split()
    # Without the kernel's support, all numbers are 0.
    cpu_ns, run_queue_ns = map(int, scheduled[:2]) if len(scheduled) > 1 and int(scheduled[0]) else (None, None)
    return (
        cpu_ns,
        run_queue_ns,
        None if switches is None else int(switches),
        int(numbers[_MAJOR_FAULTS]) if len(numbers) > _MAJOR_FAULTS else None,
        int(numbers[_KERNEL_TICKS]) * clock.NS_PER_S // os.sysconf("SC_CLK_TCK")
        if len(numbers) > _KERNEL_TICKS
        else None,
    )


class FactTaker:
    """Takes facts of the thread that marks the steps from `start` to `stop`, and of autograd's threads for devices.

    During a backward pass on a GPU, the former waits for one of the latter. So their sums are those of the step.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._first: dict[int, tuple[int | None, ...]] = {}
        self._process_ns = 0
        """CPU time of the process at the start."""
        self._groups: list[Path] = []
        self._throttled_ns: dict[Path, int | None] = {}
        self._collections = Collections()

    def start(self) -> None:
        """Begin."""
        self._groups = list(_cpu_groups())
        self._throttled_ns = {group: _throttled_ns(group) for group in self._groups}
        self._process_ns = time.process_time_ns()
        self._first = {thread: _counters(thread) for thread in (self._thread, *_autograd_threads())}
        self._collections.start()

    def stop(self, steps: int, span_ns: int) -> SystemFacts:
        """Return the facts since `start`, after which some steps of the length `span_ns` together began."""
        import torch

        from overlapscope.trace.host_activity import SystemFacts

        self._collections.stop()
        both = [zip(first, _counters(thread), strict=True) for thread, first in self._first.items()]
        cpu_ns, run_queue_ns, switches, faults, kernel_ns = map(_grown, zip(*both, strict=True))
        process_ns = time.process_time_ns() - self._process_ns
        if run_queue_ns is not None and cpu_ns is not None:
            # While one of the threads waits for a CPU, another may have it, and then no time is lost.
            run_queue_ns = min(run_queue_ns, max(0, span_ns - cpu_ns))
        throttled = [_grown([(ns, _throttled_ns(group))]) for group, ns in self._throttled_ns.items()]
        throttled_ns = max((ns for ns in throttled if ns is not None), default=None)
        if throttled_ns is not None:
            throttled_ns = min(throttled_ns, span_ns if run_queue_ns is None else run_queue_ns)
        quotas = [quota for group in self._groups if (quota := _quota_cpus(group)) is not None]
        return SystemFacts(
            steps=steps,
            span_ns=span_ns,
            run_queue_ns=run_queue_ns,
            throttled_ns=throttled_ns,
            kernel_ns=None if kernel_ns is None else min(kernel_ns, span_ns),
            other_threads_cpu_ns=None if cpu_ns is None else max(0, process_ns - cpu_ns),
            involuntary_switches=switches,
            major_faults=faults,
            gc_pause_ns=min(self._collections.pause_ns, span_ns),
            gc_collections=self._collections.count,
            usable_cpus=_affinity(),
            quota_cpus=min(quotas, default=None),
            torch_threads=torch.get_num_threads(),
        )

    def abandon(self) -> None:
        """Stop without a result."""
        self._collections.stop()


class Collections(GcWatch):
    """Number and length of the garbage collector's runs between `start` and `stop`."""

    def __init__(self) -> None:
        self._began_ns: list[int] = []
        self._ended_ns: list[int] = []
        clock_ns = iter(clock.now_ns, None)
        began, ended = (map(times.append, clock_ns).__next__ for times in (self._began_ns, self._ended_ns))
        super().__init__(began, ended)

    def stop(self) -> None:
        super().stop()
        if self._ended_ns and (not self._began_ns or self._ended_ns[0] < self._began_ns[0]):
            # It was started during a collection.
            del self._ended_ns[0]

    @property
    def count(self) -> int:
        return len(self._ended_ns)

    @property
    def pause_ns(self) -> int:
        return sum(ended - began for began, ended in zip(self._began_ns, self._ended_ns, strict=False))


def _grown(readings: Iterable[tuple[int | None, int | None]]) -> int | None:
    """Return by how much counters have grown in all; None if one is not stated."""
    total = 0
    for first, last in readings:
        if first is None or last is None:
            return None
        total += max(0, last - first)
    return total


def _autograd_threads() -> Iterator[int]:
    """Yield the numbers of autograd's threads for devices."""
    with suppress(OSError):
        for task in _TASKS.iterdir():
            if _text(task / "comm").startswith("pt_autograd_"):
                yield int(task.name)


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _cpu_groups() -> Iterator[Path]:
    """Yield the directories of the process's control group for CPUs, and of those around it."""
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        roots = [_CGROUPS / controllers, _CGROUPS / "cpu"] if controllers else [_CGROUPS, _CGROUPS / "unified"]
        for root in roots:
            group = root / path.lstrip("/")
            # In a container, the path may be the host's, and the root is the container's own group.
            yield from (
                one for one in (group, *group.parents) if one.is_relative_to(root) and (one / "cpu.stat").exists()
            )


def _affinity() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def usable_cpus() -> int:
    """Return the number of CPUs that the process may use at a time: its affinity, within a control group's quota."""
    quotas = (math.ceil(quota) for group in _cpu_groups() if (quota := _quota_cpus(group)) is not None)
    return max(1, min([_affinity() or 1, *quotas]))


def _throttled_ns(group: Path) -> int | None:
    words = _words(group / "cpu.stat")
    numbers = dict(zip(words[::2], words[1::2], strict=False))
    if "throttled_usec" in numbers:
        return int(numbers["throttled_usec"]) * _NS_PER_US
    return int(numbers["throttled_time"]) if "throttled_time" in numbers else None


def _quota_cpus(group: Path) -> float | None:
    limits = _words(group / "cpu.max") or [*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
    if len(limits) != 2 or not all(limit.isdecimal() for limit in limits) or int(limits[1]) == 0:
        return None
    return int(limits[0]) / int(limits[1])
