"""`overlapscope diff`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from overlapscope.commands import DONE
from overlapscope.commands._options import add_analysis, add_format, add_output, add_verbose, less_common, report_of
from overlapscope.commands._output import check_output, present

if TYPE_CHECKING:
    from overlapscope.compare.difference import Diff
    from overlapscope.documents.model import Document


class DiffCommand:
    """Show what changed between two traces of one program, by how much, and
    why.

    BEFORE and AFTER are each a trace file (.json.gz, trace_view.json, .sqlite,
    .xplane.pb), a directory with the traces of several ranks, a glob pattern,
    or a report that `overlapscope analyze --format json` wrote.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "before", metavar="BEFORE", help="trace, directory of traces, glob pattern, report, or - for stdin"
        )
        parser.add_argument("after", metavar="AFTER", help="the same, after the change")
        add_format(parser)
        add_output(parser)
        add_verbose(parser, "also show every other table, and what did not change")
        add_analysis(less_common(parser), sides=("BEFORE", "AFTER"))

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force, inputs=(args.before, args.after))
        from overlapscope.compare.diff import diff

        sides = zip((args.before, args.after), args.plain_step, strict=True)
        before, after = (report_of([path], args, plain_step_ns=step_ns) for path, step_ns in sides)
        changes = diff(before, after)
        present(changes, lambda: _document(changes, args), args, verbose=args.verbose)
        return DONE


def _document(changes: Diff, args: argparse.Namespace) -> Document:
    from overlapscope.compare.document import COMMENT_CHARACTERS, document
    from overlapscope.documents.model import Room
    from overlapscope.render import markdown

    room = Room(markdown.lines, COMMENT_CHARACTERS) if args.format == "markdown" else None
    return document(changes, verbose=args.verbose, room=room)
