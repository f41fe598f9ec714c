"""Run a program with hooks that only read the clock: when its natural steps end, without overlapscope.

    python benchmarks/public_programs_clock.py FILE STEP SCRIPT [ARGUMENTS...]
    python benchmarks/public_programs_clock.py FILE STEP -c CODE [ARGUMENTS...]

STEP is `optimizer` (any optimizer stepped), `optimizer N` (only the N-th that stepped), `backward` or `call CLASS`.
FILE gets the times as JSON, in nanoseconds.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from typing import Any


def watch_optimizers(times: list[int], number: int) -> None:
    """Note when an optimizer has stepped; number 0 is any."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    seen: list[int] = []

    def stepped(optimizer: Any, *_: Any) -> None:
        if id(optimizer) not in seen:
            seen.append(id(optimizer))
        if not number or seen.index(id(optimizer)) == number - 1:
            times.append(time.perf_counter_ns())

    register_optimizer_step_post_hook(stepped)


def watch_backward(times: list[int]) -> None:
    """Note when `Tensor.backward` returns."""
    import torch

    original: Callable[..., None] = torch.Tensor.backward

    def backward(*args: Any, **options: Any) -> None:
        original(*args, **options)
        times.append(time.perf_counter_ns())

    torch.Tensor.backward = backward  # type: ignore[method-assign]


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
                times.append(time.perf_counter_ns())
                return result

            kind.__call__ = call

    torch.nn.Module.__init__ = init  # type: ignore[method-assign]


def main() -> None:
    target, step, *command = sys.argv[1:]
    times: list[int] = []
    what, _, which = step.partition(" ")
    if what == "optimizer":
        watch_optimizers(times, int(which or 0))
    elif what == "backward":
        watch_backward(times)
    else:
        watch_calls(times, which)
    pid = os.getpid()

    def write() -> None:
        if os.getpid() == pid:
            with open(target, "w", encoding="utf-8") as file:
                json.dump(times, file)

    atexit.register(write)
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
