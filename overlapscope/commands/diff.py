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
        if args.format == "html":
            from overlapscope.render.page import require_plotly

            require_plotly()
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
    from overlapscope.compare.document import COMMENT_CHARACTERS, document

    if args.format == "markdown":
        from overlapscope.documents.fit import Room
        from overlapscope.render import markdown

        room = Room(markdown.lines, COMMENT_CHARACTERS)
        return markdown.render(document(found, verbose=args.verbose, room=room)).encode("utf-8", "replace")
    shown = document(found, verbose=args.verbose)
    if args.format == "html":
        from overlapscope.render import html

        return html.render(shown).encode("utf-8", "replace")
    from overlapscope.render import terminal

    return terminal.to_stream(shown, None if args.output else sys.stdout)
