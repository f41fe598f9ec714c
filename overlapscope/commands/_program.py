"""Arguments that name a program to run, as for Python."""

from __future__ import annotations

import argparse
import re
from contextlib import suppress
from pathlib import Path

from overlapscope.errors import UsageError

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?(\.exe)?")
_LAUNCHERS = {
    "torchrun": "torchrun",
    "torch.distributed.run": "python -m torch.distributed.run",
    "torch.distributed.launch": "python -m torch.distributed.launch",
    "accelerate": "accelerate launch",
    "accelerate.commands.launch": "accelerate launch",
}
"""Launchers of other programs, with the names that users know."""


def add_program(parser: argparse.ArgumentParser, command: str) -> None:
    """Add `args.script` and `args.arguments`, with `args.module` and `args.code` for the kind of script."""
    parser.usage = (
        f"overlapscope {command} [options] SCRIPT [ARGUMENTS...]\n"
        f"       overlapscope {command} [options] -m MODULE [ARGUMENTS...]\n"
        f"       overlapscope {command} [options] -c CODE [ARGUMENTS...]"
    )
    parser.add_argument(
        "script", metavar="SCRIPT", help="script, directory or zip file with a __main__.py, or - for stdin"
    )
    arguments = parser.add_argument(
        "arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="arguments and options of the script"
    )
    arguments.required = False
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("-m", dest="module", action="store_true", help="run a module, as `python -m` does")
    kinds.add_argument(
        "-c", dest="code", action="store_true", help="run code from the command line, as `python -c` does"
    )


def launcher_of(args: argparse.Namespace) -> str | None:
    """Return the name of the launcher if the program is one."""
    if args.code:
        return None
    return _LAUNCHERS.get(args.script if args.module else Path(args.script).name)


def check_not_python(args: argparse.Namespace) -> None:
    """Raise UsageError if the program is Python itself."""
    if not (args.module or args.code) and _PYTHON.fullmatch(Path(args.script).name) and not _is_text(args.script):
        raise UsageError(f"overlapscope starts Python itself; leave out {args.script}.")


def _is_text(path: str) -> bool:
    """Return whether a file is text, and so may be a script instead of an interpreter."""
    with suppress(OSError), open(path, "rb") as file:
        return b"\0" not in file.read(1024)
    return False
