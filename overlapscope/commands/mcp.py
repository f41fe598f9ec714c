"""`overlapscope mcp`."""

from __future__ import annotations

import argparse
from typing import NoReturn

from overlapscope.base.extras import how_to_install, missing
from overlapscope.errors import MissingPackage


class McpCommand:
    """Answer assistants that ask about traces, over the Model Context Protocol
    (MCP) on stdin and stdout. An assistant starts this command itself.

    It reads traces, reports and histories in the given directories and nothing
    outside, and it writes nothing. Each answer has at most 4 kB.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("directories", nargs="+", metavar="DIR", help="directory to read, with its subdirectories")

    def run(self, args: argparse.Namespace) -> NoReturn:
        if missing("mcp"):
            raise MissingPackage(f"This needs the MCP SDK. {how_to_install('mcp')}")
        from overlapscope.assistant.folders import Folders

        folders = Folders.of(args.directories)
        from overlapscope.assistant.server import serve

        serve(folders)
