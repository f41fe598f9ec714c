"""`overlapscope diff`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from overlapscope.commands import DONE
from overlapscope.commands._options import (
    add_format,
    add_output,
    add_plain_step,
    add_reading,
    add_steps_by,
    add_verbose,
)
from overlapscope.commands._output import check_output, drawn, write

if TYPE_CHECKING:
    from overlapscope.compare.difference import Diff


class Command:
    """Show what changed between two traces of one program, by how much, and
    why.

    BEFORE and AFTER are each a trace file (.json.gz, .sqlite, .xplane.pb), a
    directory with the traces of several ranks, a glob pattern, or a report
    that `overlapscope analyze --format json` wrote.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "before", metavar="BEFORE", help="trace, directory of traces, glob pattern, report, or - for stdin"
        )
        parser.add_argument("after", metavar="AFTER", help="the same, after the change")
        add_format(parser)
        add_output(parser)
        add_verbose(parser, "also show every other table, and what did not change")
        add_plain_step(parser, sides=("BEFORE", "AFTER"))
        add_steps_by(parser)
        add_reading(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force, inputs=(args.before, args.after))
        from overlapscope.compare.diff import diff, to_json
        from overlapscope.inputs import read_report

        before, after = (
            read_report(
                [path], limit_bytes=args.max_size, cache=args.cache, steps_by=args.steps_by, plain_step_ns=step_ns
            )
            for path, step_ns in zip((args.before, args.after), args.plain_step, strict=True)
        )
        changes = diff(before, after)
        data = to_json(changes) if args.format == "json" else _drawn(changes, args)
        write(data, args.output, force=args.force)
        return DONE


def _drawn(changes: Diff, args: argparse.Namespace) -> bytes:
    from overlapscope.compare.document import COMMENT_CHARACTERS, document
    from overlapscope.documents.model import Room
    from overlapscope.render import markdown

    room = Room(markdown.lines, COMMENT_CHARACTERS) if args.format == "markdown" else None
    return drawn(document(changes, verbose=args.verbose, room=room), args, verbose=args.verbose)
