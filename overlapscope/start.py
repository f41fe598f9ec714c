"""Start of the command line. The list of commands is in a file, since making it takes longer than Python's start."""

import os
import sys

from overlapscope.installed import built_in_names, others_registered

HELP = os.path.join(os.path.dirname(__file__), "help.txt")
"""Output of `overlapscope --help` at 80 columns or more, below a line with the names of the plugins that it lists."""
_WIDTH = 80


def console() -> int:
    """Run the command line as the last thing in a process, and return the exit code."""
    if sys.argv[1:] in (["--help"], ["-h"]) and _is_wide():
        try:
            if text := _help():
                _print(text)
                return 0
        except OSError:
            # What follows says what is wrong with the output, and needs no file.
            pass
    from overlapscope.commands import console

    return console()


def _is_wide() -> bool:
    if "COLUMNS" in os.environ:
        return False
    try:
        return os.get_terminal_size(1).columns >= _WIDTH
    except OSError:
        return True


def _help() -> bytes:
    """Return the help; nothing if other plugins are installed than it lists."""
    with open(HELP, "rb") as file:
        names, text = file.read().split(b"\n", 1)
    return text if names.decode().split() == built_in_names() and not others_registered() else b""


def _print(text: bytes) -> None:
    while text:
        text = text[os.write(1, text) :]
