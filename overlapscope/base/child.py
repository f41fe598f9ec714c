"""Child processes: how overlapscope starts, waits for and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
"""Directory that `overlapscope` is imported from."""
_COMMAND = "import sys; sys.path.append(sys.argv.pop(1)); from overlapscope.commands import main; sys.exit(main())"


class Child(subprocess.Popen[bytes]):
    """A process that leads a session of its own, so that Ctrl-C in the terminal does not reach it.

    The processes that it starts belong to its process group, unless they leave it.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """Start the command. `options` are those of `Popen`; stdin is empty by default."""
        super().__init__(command, **{"stdin": subprocess.DEVNULL} | options, start_new_session=True)

    def ends_within(self, seconds: float) -> bool:
        """Wait for at most this long, and return whether it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(seconds)
        return self.returncode is not None

    def end(self, *, term_s: float = 0) -> None:
        """End the process and its group with SIGKILL, after SIGTERM and `term_s` seconds if that is more than 0."""
        if term_s and self.poll() is None:
            self._signal_group(signal.SIGTERM)
            self.ends_within(term_s)
        self._signal_group(signal.SIGKILL)
        self.wait()

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def end_with_stdin() -> None:
    """End this process at the end of its stdin, as when its parent has died. Runs on a thread of its own."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def how_it_ended(code: int) -> str:
    """Return the end of a sentence about a process with this exit code, which is negative after a signal."""
    if code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def overlapscope_command(*arguments: str) -> list[str]:
    """Return the command line that runs a command of this overlapscope with this Python.

    `-P` and the end of the path keep modules of the user's program from replacing those of Python and its packages.
    """
    return [sys.executable, "-P", "-c", _COMMAND, str(ROOT), *arguments]


def run_overlapscope(*arguments: str, errors: int | None) -> None:
    """Run a command of overlapscope in a process, and wait for it. Ctrl-C reaches it.

    All of its output goes to the file descriptor `errors`; None stands for nowhere. The user's program may have left
    anything in this process: threads, another directory, modules, little memory.
    """
    with suppress(OSError, ValueError):
        command, output = overlapscope_command(*arguments), subprocess.DEVNULL if errors is None else errors
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
