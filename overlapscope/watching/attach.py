"""Has a process watched that never heard of overlapscope (PEP 768: sys.remote_exec, Python 3.14)."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from overlapscope.errors import UsageError
from overlapscope.watching.ask import lives, status_of, statuses
from overlapscope.watching.protocol import Status

_ROOT: Final = Path(__file__).parents[2]
_PATIENCE_S: Final = 20.0
"""For the process to come to an instruction of Python's on its main thread."""
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
    said = ""
except BaseException as error:
    said = f"{{type(error).__name__}}: {{error}}"
finally:
    sys.path.remove({root!r})
with open({answer!r} + ".part", "w") as file:
    file.write(said)
os.replace({answer!r} + ".part", {answer!r})
"""


def attach(pid: int) -> Status:
    """Watch it from now on. Raises UsageError where that cannot be."""
    if any(one.pid == pid for one in statuses()):
        return status_of(pid)
    if not lives(pid):
        raise UsageError(f"there is no process {pid}.")
    remote_exec = getattr(sys, "remote_exec", None)
    if remote_exec is None:
        version = ".".join(map(str, sys.version_info[:2]))
        raise UsageError(f"attaching to a process needs Python 3.14 or newer, and this is {version}. {_INSTEAD}")
    with TemporaryDirectory(prefix="overlapscope-") as directory:
        script, answer = Path(directory, "attach.py"), Path(directory, "answer")
        script.write_text(_CODE.format(root=str(_ROOT), answer=str(answer)))
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
                raise UsageError(f"process {pid} did not come to an instruction of Python's in {_PATIENCE_S:.0f} s.")
            time.sleep(_POLL_S)
        said = answer.read_text()
    if said:
        raise UsageError(f"process {pid} cannot import overlapscope ({said}). {_INSTEAD}")
    return status_of(pid)
