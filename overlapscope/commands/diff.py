"""`overlapscope diff`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from overlapscope.commands import DONE
from overlapscope.commands._output import add_output_arguments, check_output, write
from overlapscope.commands._reading import add_reading_arguments, parse_step

if TYPE_CHECKING:
    from overlapscope.compare.difference import Diff

FORMATS = ("text", "json", "markdown", "html")
_FILE_WIDTH = 120
"""Width of a text that is written to a file."""


class Command:
    """Say what changed between two recordings of one program, by how much,
    and why.

    BEFORE and AFTER are each a trace file (.json, .json.gz, .json.zst), a
    directory with the traces of several ranks, a glob pattern, or a report
    that `overlapscope analyze --format json` wrote.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "before", metavar="BEFORE", help="trace, directory of traces, pattern, report, or - for stdin"
        )
        parser.add_argument("after", metavar="AFTER", help="the same, after the change")
        parser.add_argument("--format", choices=FORMATS, default="text", help="what to print (default: text)")
        add_output_arguments(parser)
        parser.add_argument("-v", "--verbose", action="store_true", help="what did not change, too, and whole lists")
        parser.add_argument(
            "--plain-step",
            nargs=2,
            metavar=("BEFORE", "AFTER"),
            type=parse_step,
            default=(None, None),
            help="what a step takes while nothing is recorded, such as 31.8ms, before and after (default: what the "
            "recorder timed)",
        )
        add_reading_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force, inputs=(args.before, args.after))
        from overlapscope.compare.diff import diff, to_json
        from overlapscope.inputs import read_report

        before, after = (
            read_report([path], limit_bytes=args.max_size, cache=args.cache, plain_step_ns=step_ns)
            for path, step_ns in zip((args.before, args.after), args.plain_step, strict=True)
        )
        found = diff(before, after)
        data = to_json(found) if args.format == "json" else _drawn(found, args)
        write(data, args.output, force=args.force)
        return DONE


def _drawn(found: Diff, args: argparse.Namespace) -> bytes:
    if args.format == "markdown":
        from overlapscope.views.diff import markdown

        return markdown.render(found, verbose=args.verbose).encode("utf-8", "replace")
    if args.format == "html":
        from overlapscope.views.diff import html

        return html.render(found, verbose=args.verbose).encode("utf-8", "replace")
    from overlapscope.views import terminal
    from overlapscope.views.diff import text

    width, color, encoding = (_FILE_WIDTH, None, "utf-8") if args.output else terminal.describe(sys.stdout)
    shown = text.render(found, width=width, color=color, encoding=encoding, verbose=args.verbose)
    return shown.encode(encoding, "replace")
