"""A process that imports the modules of its script, reports that, and runs it on request.

python -m benchmarks.plain_worker time FILE SCRIPT [ARGUMENTS...]                     # without overlapscope
python -m benchmarks.plain_worker record SCRIPT [OPTIONS...] SCRIPT [ARGUMENTS...]    # by overlapscope run
python -m benchmarks.plain_worker run SCRIPT [ARGUMENTS...]                           # as it is
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import platform
import runpy
import sys
import time
import types
from pathlib import Path
from typing import Any

READY = "ready to run"


class StepEnds:
    """When steps ended, by the host's clock and as events on the GPU."""

    def __init__(self) -> None:
        self._host_ns: list[int] = []
        self._events: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._host_ns)

    def mark(self) -> None:
        import torch

        if torch.cuda.is_initialized():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        self._host_ns.append(time.perf_counter_ns())

    def lengths(self) -> dict[str, list[int]]:
        """Return the steps between the marks, without the first third."""
        import torch

        if self._events:
            torch.cuda.synchronize()
        host = [end - begin for begin, end in zip(self._host_ns, self._host_ns[1:], strict=False)]
        device = [round(1e6 * a.elapsed_time(b)) for a, b in zip(self._events, self._events[1:], strict=False)]
        return {"host_ns": host[len(host) // 3 :], "device_ns": device[len(device) // 3 :]}


def time_steps(target: Path, script: str, arguments: list[str]) -> None:
    """Run a script and write how long its steps took. They end where it says so, else when its first optimizer stepped.

    `overlapscope` is a module with nothing but `step` meanwhile.
    """
    import torch
    from torch.optim import Optimizer
    from torch.optim.optimizer import register_optimizer_step_post_hook

    marks, stepped = StepEnds(), StepEnds()
    first: list[Optimizer] = []

    def on_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        if not first:
            first.append(optimizer)
        if first[0] is optimizer and not marks:
            stepped.mark()

    register_optimizer_step_post_hook(on_step)
    stand_in: Any = types.ModuleType("overlapscope")
    stand_in.step = marks.mark
    sys.modules["overlapscope"] = stand_in
    run_script(script, arguments)
    if any(name.startswith("overlapscope.") for name in sys.modules):
        raise RuntimeError("overlapscope was imported")
    machine = {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_initialized() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    target.write_text(json.dumps((marks or stepped).lengths() | {"machine": machine}))


def import_as(script: str) -> None:
    """Import the modules of a script except overlapscope, and those that torch loads when it makes an optimizer."""
    for node in ast.parse(Path(script).read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            if not any(name and name.partition(".")[0] == "overlapscope" for name in names):
                exec(compile(ast.Module([node], []), script, "exec"), {})
    importlib.import_module("torch._dynamo")


def run_script(script: str, arguments: list[str]) -> None:
    """Run it as Python does."""
    sys.argv[:] = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def main(task: str, *arguments: str) -> None:
    # Else the import of torch imports a part of overlapscope, to be watched where that is asked for.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import_as(arguments[1] if task == "time" else arguments[0])
    print(READY, flush=True)
    sys.stdin.readline()
    if task == "time":
        time_steps(Path(arguments[0]), arguments[1], list(arguments[2:]))
    elif task == "run":
        run_script(arguments[0], list(arguments[1:]))
    else:
        from overlapscope.commands import main

        sys.exit(main(["run", *arguments[1:]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
