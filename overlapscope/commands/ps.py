"""`overlapscope ps`."""

from __future__ import annotations

import argparse

from overlapscope.commands import DONE
from overlapscope.commands._options import add_format
from overlapscope.commands._output import drawn, write


class PsCommand:
    """List the running processes that can be recorded, with their steps.

    These are the ones that were started with `overlapscope run --on-demand`,
    that call overlapscope.watch(), or that were started with
    OVERLAPSCOPE_WATCH=1. Only processes of the same user on this machine are
    listed. `overlapscope record PID` records one of them.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_format(parser, ("text", "json"))

    def run(self, args: argparse.Namespace) -> int:
        from overlapscope.watching.ask import statuses

        programs = statuses()
        if args.format == "json":
            from overlapscope.base.saved import encode

            write(encode(programs), None)
            return DONE
        from overlapscope.watching.document import document

        write(drawn(document(programs), argparse.Namespace(format="text", output=None)), None)
        return DONE
