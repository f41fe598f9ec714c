"""Start of a task in a child process; `inside` does the task."""

from __future__ import annotations

import os
import sys
import traceback

import msgspec

from overlapscope.plugins.trials.protocol import VARIABLE, Task
from overlapscope.recorder import imports

_HELPER = "compile_worker"
"""Part of the command line of a process that compiles for torch.compile."""


def environment(task: Task) -> dict[str, str]:
    """Return environment variables that make a program, and every Python process that it starts, do a task."""
    variables = {VARIABLE: msgspec.json.encode(task).decode(), "PYTHONHASHSEED": "0"}
    return imports.start_environment(f"{__name__}:watch") | variables


def watch() -> None:
    """Begin the task in such a process, once torch is imported."""
    if any(_HELPER in part for part in sys.orig_argv):
        return
    try:
        from overlapscope.plugins.trials.inside import ProcessRun

        ProcessRun(msgspec.json.decode(os.environ[VARIABLE], type=Task)).begin()
    except Exception:
        # The program continues without the task. The parent finds no outcome, and this traceback in the output.
        traceback.print_exc()
