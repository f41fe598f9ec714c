"""`overlapscope schema`."""

from __future__ import annotations

import argparse

from overlapscope.commands import DONE
from overlapscope.commands._output import add_output_arguments, check_output, write


class Command:
    """Print the JSON schema (2020-12) of the report that
    `overlapscope analyze --format json` prints.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_output_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force)
        import msgspec

        from overlapscope.report import schema

        data = msgspec.json.format(msgspec.json.encode(schema()), indent=2) + b"\n"
        write(data, args.output, force=args.force)
        return DONE
