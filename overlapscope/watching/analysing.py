"""The process that analyses, as seen by the program that starts it."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import threading
import time
from typing import IO, Final

import msgspec

from overlapscope.base.child import ROOT, Child, how_it_ended
from overlapscope.watching.analyser import Analysed, Task

GRACE_S: Final = 10.0
"""How long a program that has ended waits for it."""
_LOOK_S = 1.0
_MOST_BYTES = 1 << 20


def analyse(task: Task) -> Analysed:
    """Start the process and wait for its answer; what goes wrong is told in a sentence."""
    try:
        return _analyse(task)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        return Analysed(failures=(f"recordings cannot be analysed ({error}).",))


def _analyse(task: Task) -> Analysed:
    # No code of this process runs in the child: a copy of a program that uses CUDA may not touch it.
    # -P: a file of the program may have the name of a module of Python's.
    command = [sys.executable, "-P", "-m", "overlapscope.watching.analyser"]
    pipe = subprocess.PIPE
    child = Child(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=_environment())
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(msgspec.json.encode(task) + b"\n")
        child.stdin.flush()
        answer = _answer(child.stdout)
    finally:
        # It ends with its stdin, if it has not yet.
        child.stdin.close()
        child.stdout.close()
        child.ends_within(_LOOK_S)
        child.end()
    if answer is None:
        return Analysed(failures=("the program ended before its last recording was analysed.",))
    if not answer:
        return Analysed(failures=(f"the process that analyses a recording {how_it_ended(child.returncode)}.",))
    return msgspec.json.decode(answer, type=Analysed)


def _answer(out: IO[bytes]) -> bytes | None:
    """All that it writes; None where the program has ended and it takes too long."""
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
    """The program's own, but for one thread of numpy and no GPU."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    kept = {name: value for name, value in os.environ.items() if name not in ("OVERLAPSCOPE_WATCH", "LD_PRELOAD")}
    return kept | alone | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
