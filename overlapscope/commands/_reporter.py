"""Printing a report while the program goes on, or after it was killed.

A process beside the program runs this file, without importing overlapscope. It reads a task per line, and does the
latest task after the time that the task states, or once the program is gone and so the pipe is closed. If the program
goes on after it has closed the pipe, as daemons close all files, this process ends.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlapscope.base.output import Descriptor

_LOWEST_PRIORITY = 19
_ENDS_WITHIN_S = 5


class Reporter:
    """The process, as the program sees it. If it cannot be started, its methods do nothing."""

    def __init__(self) -> None:
        self._tasks: Descriptor | None = None
        self._answers: Descriptor | None = None
        self._last = 0

    def start(self, errors: int | None) -> None:
        """Start the process, which prints to the file descriptor `errors`.

        It isn't a child of this one, since programs may wait for all their children.
        """
        from overlapscope.base.output import Descriptor

        if errors is None:
            return
        with suppress(OSError, ValueError, AttributeError):
            tasks, our_end = os.pipe()
            self._tasks = Descriptor(our_end)
            our_end, answers = os.pipe()
            self._answers = Descriptor(our_end)
            streams = [(os.POSIX_SPAWN_DUP2, here, there) for here, there in ((tasks, 0), (answers, 1), (errors, 2))]
            command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
            try:
                # Unlike processes of `subprocess`, this is not counted as the program's (`recorder.program`).
                process = os.posix_spawn(sys.executable, command, os.environ, file_actions=streams)
            except (OSError, ValueError):
                self._forget()
                return
            finally:
                os.close(tasks)
                os.close(answers)
            os.register_at_fork(after_in_child=self._forget)
            os.waitpid(process, 0)

    def ask(self, *, commands: Sequence[Sequence[str]] = (), message: str = "", wait_s: float | None = None) -> None:
        """Replace the last task, unless it was done, by a message and commands.

        They are due after `wait_s` seconds, or when the program is gone.
        """
        self._last += 1
        task = {"id": self._last, "commands": commands, "message": message, "wait_s": wait_s}
        number = None if self._tasks is None else self._tasks.number
        if number is not None:
            with suppress(OSError):
                os.write(number, f"{json.dumps(task)}\n".encode())

    def close(self) -> bool:
        """Cancel the last task. If it was done already, return true; if it is under way, wait for it, too."""
        last, done = str(self._last).encode(), b""
        self.ask()
        if self._tasks is not None:
            self._tasks.close()
        number = None if self._answers is None else self._answers.number
        if number is not None:
            with suppress(OSError):
                while answer := os.read(number, 4096):
                    done += answer
        self._forget()
        return last in done.split()

    def _forget(self) -> None:
        for descriptor in (self._tasks, self._answers):
            if descriptor is not None:
                descriptor.close()


def _main() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    program = _of_process(int(sys.argv[1]))
    task: dict[str, Any] | None = None
    rest = b""
    while True:
        if not select.select([0], [], [], None if task is None else task["wait_s"])[0] and task is not None:
            _do(task, before=_give_way)
            task = None
            continue
        data = os.read(0, 1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            task = json.loads(lines[-1])
    # A program that has canceled its task waits for this process to end.
    if task is not None and (task["commands"] or task["message"]) and _ended(program):
        _do(task)


def _of_process(number: int) -> int | None:
    """Return a file descriptor that can be read once the process has ended; None if the system has none."""
    with suppress(OSError, AttributeError):
        return os.pidfd_open(number)
    return None


def _ended(program: int | None) -> bool:
    """Return whether the program has ended. While it ends, its files are closed before that can be seen."""
    return program is None or bool(select.select([program], [], [], _ENDS_WITHIN_S)[0])


def _give_way() -> None:
    """Leave the cores to the program, which goes on."""
    os.nice(_LOWEST_PRIORITY)


def _do(task: dict[str, Any], *, before: Callable[[], None] | None = None) -> None:
    # This fails if the program was killed.
    with suppress(OSError):
        os.write(1, f"{task['id']} ".encode())
    with suppress(OSError):
        if os.isatty(2) and (task["message"] or task["commands"]):
            # A progress bar may stand on this line.
            os.write(2, b"\n")
        os.write(2, task["message"].encode())
        for command in task["commands"]:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, check=False, preexec_fn=before)


if __name__ == "__main__":
    _main()
