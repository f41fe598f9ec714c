"""`overlapscope attach`."""

from __future__ import annotations

import argparse

from overlapscope.base.output import tell
from overlapscope.commands import DONE


class AttachCommand:
    """Watch a running Python process that was started without overlapscope,
    so that `overlapscope record PID` can record it.

    This needs Python 3.14 or newer, in the same version as the process, and
    permission to trace it: you run both, and on Linux ptrace is allowed.
    With an older Python, start the process with `overlapscope run
    --on-demand`, or set OVERLAPSCOPE_WATCH=1 for it.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", metavar="PID", type=int, help="process to watch from now on")

    def run(self, args: argparse.Namespace) -> int:
        from overlapscope.watching.attach import attach

        status = attach(args.pid)
        tell(f"overlapscope: `overlapscope record {status.pid}` records this process while it goes on.")
        return DONE
