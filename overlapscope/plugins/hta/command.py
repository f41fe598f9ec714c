"""`overlapscope hta`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from msgspec.structs import replace

from overlapscope.commands import DONE
from overlapscope.commands._options import add_format, add_output, add_reading, less_common, size_limit, whole_number
from overlapscope.commands._output import check_output, make_directory, present, write
from overlapscope.documents.model import Document
from overlapscope.documents.table import Table, prose, rows, words
from overlapscope.errors import UsageError


class HtaCommand:
    """Run an analysis of HolisticTraceAnalysis (HTA) on traces that
    overlapscope reads, in a fraction of the time.

    The figures are HTA's own, with its definitions and its rounding to whole
    microseconds; docs/evaluation/hta.md compares them with ours. Without NAME, or with
    --list, it lists the analyses.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", nargs="?", metavar="NAME", help="analysis to run")
        parser.add_argument(
            "traces", nargs="*", metavar="TRACE", help="trace file, directory with the ranks of a job, or glob pattern"
        )
        parser.add_argument("--list", action="store_true", help="list the analyses")
        add_format(parser, ("text", "json", "csv", "markdown"))
        add_output(parser)
        parser.add_argument(
            "--nanoseconds", action="store_true", help="do not round to microseconds, as with HTA_DISABLE_NS_ROUNDING=1"
        )
        parser.add_argument("--operator", metavar="TEXT", help="for sequences: host ops with TEXT in their names")
        parser.add_argument(
            "--annotation",
            metavar="TEXT",
            default="ProfilerStep",
            help="for critical-path: ranges with TEXT in their names (default: ProfilerStep)",
        )
        parser.add_argument(
            "--instance",
            metavar="N",
            type=whole_number("a number of at least 0", 0, 10**15),
            help="for critical-path: which of these ranges, from 0",
        )
        parser.add_argument(
            "--overlay",
            metavar="DIR",
            type=Path,
            help="for sequences and critical-path: write copies of the traces to DIR, with the results marked",
        )
        add_reading(less_common(parser))

    def run(self, args: argparse.Namespace) -> int:
        if args.list or args.name is None:
            if args.format != "text" or args.output is not None:
                raise UsageError("the list of analyses is text on stdout; leave out --format and --output.")
            from overlapscope.render import terminal

            write(terminal.to_stream(listing(), sys.stdout), None)
            return DONE
        from overlapscope.plugins.hta.build import require
        from overlapscope.plugins.hta.catalog import HtaOptions, check_name
        from overlapscope.plugins.hta.document import document, run, to_csv
        from overlapscope.reading import expand, load
        from overlapscope.render import terminal

        check_name(args.name)
        if not args.traces:
            raise UsageError(f"no trace is named; write: overlapscope hta {args.name} TRACE...")
        require()
        check_output(args.output, force=args.force, inputs=args.traces)
        if args.overlay is not None:
            make_directory(args.overlay)
        traces = [load(path, limit_bytes=size_limit(args), cache=args.cache) for path in expand(args.traces)]
        options = HtaOptions(
            operator=args.operator, annotation=args.annotation, instance=args.instance, overlay=args.overlay
        )
        result = run(args.name, traces, options, nanoseconds=True if args.nanoseconds else None)
        if args.format == "csv":
            write(to_csv(result).encode("utf-8", "replace"), args.output, force=args.force)
        else:
            width = terminal.width_of(None if args.output else sys.stdout) if args.format == "text" else None
            present(result, lambda: document(result, width=width), args)
        return DONE


def listing() -> Document:
    """Return the list of analyses."""
    from overlapscope.plugins.hta.catalog import ANALYSES

    columns = (words("name"), prose("what it shows"), replace(words("method"), spare=True))
    lines = ((analysis.name, analysis.summary, analysis.method) for analysis in ANALYSES.values())
    return Document("HTA's analyses", (Table("", columns, rows(lines)),))
