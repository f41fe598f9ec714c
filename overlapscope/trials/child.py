"""How a run of the program comes to do what its `Task` says; what it does then is in `inside`."""

from __future__ import annotations

import os
import sys
import traceback

import msgspec

from overlapscope.recorder import at_start
from overlapscope.trials.protocol import VARIABLE, Task

_HELPER = "compile_worker"
"""In the command line of a process that compiles for torch.compile."""


def environment(task: Task) -> dict[str, str]:
    """Variables with which a program, and every Python process that it starts, does this task."""
    told = {VARIABLE: msgspec.json.encode(task).decode(), "PYTHONHASHSEED": "0"}
    return at_start.environment(f"{__name__}:watch") | told


def watch() -> None:
    """In each such process, when it has imported torch: begin."""
    if any(_HELPER in part for part in sys.orig_argv):
        return
    try:
        from overlapscope.trials.inside import ProcessRun

        ProcessRun(msgspec.json.decode(os.environ[VARIABLE], type=Task)).begin()
    except Exception:
        # The program goes on without us; whoever started it finds no outcome, and this in its output.
        traceback.print_exc()
