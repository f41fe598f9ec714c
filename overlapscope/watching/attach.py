"""Watching a process that was started without overlapscope (PEP 768: sys.remote_exec, Python 3.14)."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from overlapscope.base.child import ROOT
from overlapscope.errors import UsageError
from overlapscope.watching.ask import lives, status_of, statuses, why_silent
from overlapscope.watching.protocol import Status

_PATIENCE_S: Final = 20.0
"""Time for the process to run Python code on its main thread, in seconds."""
_POLL_S: Final = 0.05
_INSTEAD: Final = (
    "Start it with `overlapscope run --on-demand`, call overlapscope.watch() in it, or set OVERLAPSCOPE_WATCH=1 for it."
)
_CODE: Final = """\
import os, sys
sys.path.append({root!r})
try:
    from overlapscope.watching.api import watch
    watch()
    error_text = ""
except BaseException as error:
    error_text = f"{{type(error).__name__}}: {{error}}"
finally:
    sys.path.remove({root!r})
with open({answer!r} + ".part", "w") as file:
    file.write(error_text)
os.replace({answer!r} + ".part", {answer!r})
"""


def attach(pid: int) -> Status:
    """Begin to watch a process. Raises UsageError if that is impossible."""
    if any(status.pid == pid for status in statuses()):
        return status_of(pid)
    if not lives(pid):
        raise UsageError(f"there is no process {pid}.")
    remote_exec = getattr(sys, "remote_exec", None)
    if remote_exec is None:
        version = ".".join(map(str, sys.version_info[:2]))
        raise UsageError(f"attaching to a process needs Python 3.14 or newer, and this is {version}. {_INSTEAD}")
    with TemporaryDirectory(prefix="overlapscope-") as directory:
        script, answer = Path(directory, "attach.py"), Path(directory, "answer")
        script.write_text(_CODE.format(root=str(ROOT), answer=str(answer)))
        try:
            remote_exec(pid, str(script))
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"process {pid} cannot be attached to: {error}. It must run the same version of Python, be of the same "
                f"user, and not forbid it (PYTHON_DISABLE_REMOTE_DEBUG, ptrace). {_INSTEAD}"
            ) from None
        until = time.monotonic() + _PATIENCE_S
        while not answer.exists():
            if time.monotonic() > until:
                raise UsageError(f"process {pid} ran no Python code within {_PATIENCE_S:.0f} s; {why_silent(pid)}.")
            time.sleep(_POLL_S)
        error_text = answer.read_text()
    if error_text:
        raise UsageError(f"process {pid} cannot import overlapscope ({error_text}). {_INSTEAD}")
    return status_of(pid)
