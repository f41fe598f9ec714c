"""Starting the process that analyses a recording, and waiting for its answer."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
import time
from typing import IO, Final

import msgspec

from overlapscope.base.child import ROOT, Child, how_it_ended
from overlapscope.watching.analyser import Analysed, AnalysisTask

GRACE_S: Final = 10.0
"""Time that a program waits for it at its end, in seconds."""
_LOOK_S = 1.0
_MOST_BYTES = 1 << 20


def analyse(task: AnalysisTask) -> Analysed:
    """Start the process, and wait for its answer. Failures become sentences."""
    try:
        return _analyse(task)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        return Analysed(failures=(f"recordings cannot be analyzed ({error}).",))


def _analyse(task: AnalysisTask) -> Analysed:
    # A new process instead of a fork, which may not use CUDA if the program has used it.
    # -P: a file of the program may have the name of a module of Python's.
    command = [sys.executable, "-P", "-m", "overlapscope.watching.analyser"]
    pipe = subprocess.PIPE
    child = Child(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=_environment())
    assert child.stdin is not None and child.stdout is not None
    try:
        # A process that dies before it has read the task breaks the pipe; how it ended says more.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(msgspec.json.encode(task) + b"\n")
            child.stdin.flush()
        answer = _answer(child.stdout)
    finally:
        # If it still runs, it ends when its stdin is closed.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
        if not child.ends_within(_LOOK_S):
            child.end()
    if answer is None:
        return Analysed(failures=("the program ended before its last recording was analyzed.",))
    if not answer:
        return Analysed(failures=(f"the process that analyses a recording {how_it_ended(child.returncode)}.",))
    return msgspec.json.decode(answer, type=Analysed)


def _answer(out: IO[bytes]) -> bytes | None:
    """Return its whole output; None if the program has ended and the answer takes too long."""
    answer, until = b"", None
    with selectors.DefaultSelector() as ready:
        ready.register(out, selectors.EVENT_READ)
        while len(answer) < _MOST_BYTES:
            if until is None and not threading.main_thread().is_alive():
                until = time.monotonic() + GRACE_S
            if until is not None and time.monotonic() >= until:
                return None
            if ready.select(_LOOK_S):
                block = os.read(out.fileno(), 1 << 16)
                if not block:
                    break
                answer += block
    return answer


def _environment() -> dict[str, str]:
    """Return the program's environment, with a single thread of numpy and without GPUs."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OVERLAPSCOPE_WATCH", "LD_PRELOAD")
    }
    return environment | one_thread | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
