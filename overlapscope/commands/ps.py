"""`overlapscope ps`, the earlier spelling of `overlapscope record --list`."""

from __future__ import annotations

import argparse

from overlapscope.commands._options import add_format
from overlapscope.commands.record import list_processes


class PsCommand:
    """List the running processes that can be recorded, with their steps.

    `overlapscope record --list` does the same.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_format(parser, ("text", "json"))

    def run(self, args: argparse.Namespace) -> int:
        return list_processes(args.format)
