"""`overlapscope bisect`."""

from __future__ import annotations

import argparse

from overlapscope.errors import UsageError


class BisectCommand:
    """Find the commit that lost overlap."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", nargs="+", metavar="GOOD BAD -- PROGRAM", help="two commits and a program")

    def run(self, args: argparse.Namespace) -> int:
        raise UsageError("`overlapscope bisect` is not there yet.")
