"""Run a program with hooks that only read the clock: when its natural steps end, and when a recorder disturbs it.

    python benchmarks/public_programs_clock.py FILE STEP SCRIPT [ARGUMENTS...]
    python benchmarks/public_programs_clock.py FILE STEP -c CODE [ARGUMENTS...]
    python benchmarks/public_programs_clock.py FILE STEP -m overlapscope run SCRIPT [ARGUMENTS...]

STEP is `optimizer` (any optimizer stepped), `optimizer N` (only the N-th that stepped), `backward` or `call CLASS`.
FILE gets a `Clocked` as JSON.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

BEGAN_NS = time.perf_counter_ns()


class Disturbance(msgspec.Struct, frozen=True):
    """A part of a program in which it is recorded, or in which the recorder writes."""

    begin_ns: int
    end_ns: int
    workers: bool
    """True if the program had worker processes, which went on."""


class Clocked(msgspec.Struct):
    """Times of a process, in nanoseconds since its start."""

    ends_ns: list[int] = []
    """Ends of its steps."""
    disturbances: list[Disturbance] = []
    """In order of their ends."""


def now_ns() -> int:
    """Return the time since the start, in nanoseconds."""
    return time.perf_counter_ns() - BEGAN_NS


def watch_steps(times: list[int], step: str) -> None:
    """Note when steps of this kind end. Imports torch."""
    what, _, which = step.partition(" ")
    if what == "optimizer":
        watch_optimizers(times, int(which or 0))
    elif what == "backward":
        watch_backward(times)
    else:
        watch_calls(times, which)


def watch_optimizers(times: list[int], number: int) -> None:
    """Note when an optimizer has stepped; number 0 is any."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    seen: list[int] = []

    def stepped(optimizer: Any, *_: Any) -> None:
        if id(optimizer) not in seen:
            seen.append(id(optimizer))
        if not number or seen.index(id(optimizer)) == number - 1:
            times.append(now_ns())

    register_optimizer_step_post_hook(stepped)


def watch_backward(times: list[int]) -> None:
    """Note when `backward` returns."""
    import torch

    autograd: Any = torch.autograd
    original: Callable[..., None] = autograd.backward

    def backward(*args: Any, **options: Any) -> None:
        original(*args, **options)
        times.append(now_ns())

    autograd.backward = backward


def watch_calls(times: list[int], name: str) -> None:
    """Note when a call of a module of this class returns, once one has been made."""
    import torch

    original_init = torch.nn.Module.__init__
    patched: set[type] = set()

    def init(self: Any, *args: Any, **options: Any) -> None:
        original_init(self, *args, **options)
        kind = type(self)
        if kind.__name__ == name and kind not in patched:
            patched.add(kind)
            original_call = kind.__call__

            def call(*args: Any, **options: Any) -> Any:
                result = original_call(*args, **options)
                times.append(now_ns())
                return result

            kind.__call__ = call

    torch.nn.Module.__init__ = init  # type: ignore[method-assign]


def watch_recorder(disturbances: list[Disturbance]) -> None:
    """Note when overlapscope's recorder records, from the profiler's start to its stop, and when it writes."""
    from multiprocessing import active_children

    from overlapscope.recorder import trace_file
    from overlapscope.recorder.session import Session
    from overlapscope.recorder.wrapping import around

    started_ns: list[int] = []

    def start(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        started_ns[:] = [now_ns()]
        return function(*args, **options)

    def stop(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        began_ns = started_ns.pop() if started_ns else now_ns()
        try:
            return function(*args, **options)
        finally:
            disturbances.append(Disturbance(began_ns, now_ns(), bool(active_children())))

    around(Session, "__init__", start)
    for owner, name in ((Session, "stop"), (trace_file, "write"), (trace_file, "amend")):
        around(owner, name, stop)


def main() -> None:
    target, step, *command = sys.argv[1:]
    # No module beside this one is the program's, or overlapscope's.
    sys.path[0] = os.devnull
    clocked, process = Clocked(), os.getpid()

    def write() -> None:
        if os.getpid() == process:
            Path(target).write_bytes(msgspec.json.encode(clocked))

    atexit.register(write)
    # Only the program may import torch: see there.
    from overlapscope.recorder.imports import when_torch_is_imported

    when_torch_is_imported(lambda: watch_steps(clocked.ends_ns, step))
    if command[:2] == ["-m", "overlapscope"]:
        watch_recorder(clocked.disturbances)
        from overlapscope.commands import console

        sys.argv = command[1:]
        sys.exit(console())
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        sys.path[0] = ""
        exec(command[1], {"__name__": "__main__"})
    else:
        sys.argv = command
        sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
