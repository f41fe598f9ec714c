"""`overlapscope attach`, the earlier spelling of `overlapscope record --attach`."""

from __future__ import annotations

import argparse

from overlapscope.base.output import tell
from overlapscope.commands import DONE


class AttachCommand:
    """Watch a running process that was started without overlapscope (Python
    3.14), so that `overlapscope record PID` can record it.

    `overlapscope record --attach PID` does both.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", metavar="PID", type=int, help="process to watch from now on")

    def run(self, args: argparse.Namespace) -> int:
        from overlapscope.watching.attach import attach

        status = attach(args.pid)
        tell(f"overlapscope: `overlapscope record {status.pid}` records this process while it goes on.")
        return DONE
