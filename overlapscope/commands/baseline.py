"""`overlapscope baseline`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from overlapscope.base.output import tell
from overlapscope.commands import DONE
from overlapscope.commands._output import check_output, write
from overlapscope.commands._reading import add_allow_predicted, add_plain_step, add_reading_arguments
from overlapscope.commands.check import add_config_argument, find_config, read_settings
from overlapscope.errors import UsageError


class Command:
    """Write what relative budgets of `overlapscope check` compare with, or
    show it.

    A baseline is a small JSON file to be kept beside the code: the values of
    every metric in every step, and what they were measured on.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        writes = actions.add_parser(
            "write",
            help="write the baseline of some traces",
            description="Write the baseline of the traces of one job.",
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )
        writes.add_argument(
            "traces", nargs="+", metavar="TRACE", help="trace, directory of traces, pattern, report, or - for stdin"
        )
        writes.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the baseline to write")
        writes.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")
        add_config_argument(writes)
        add_allow_predicted(writes)
        add_plain_step(writes)
        add_reading_arguments(writes)
        shows = actions.add_parser(
            "show",
            help="show what is in a baseline",
            description="Show where a baseline was made, and the typical value of each metric.",
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )
        shows.add_argument("file", metavar="FILE", help="a file that `overlapscope baseline write` wrote")

    def run(self, args: argparse.Namespace) -> int:
        return _write(args) if args.action == "write" else _show(args)


def _write(args: argparse.Namespace) -> int:
    config = find_config(args.config)
    check_output(args.output, force=args.force, inputs=(*args.traces, config))
    settings = read_settings(config)
    from overlapscope.budgets import baseline
    from overlapscope.budgets.baseline_file import to_json
    from overlapscope.inputs import read_report

    report = read_report(args.traces, limit_bytes=args.max_size, cache=args.cache, plain_step_ns=args.plain_step)
    made = baseline.of(report, ranges=settings.compared_ranges, allow_predicted=args.allow_predicted)
    for doubt in baseline.doubts(made):
        tell(f"overlapscope: warning: {doubt}")
    write(to_json(made), args.output, force=args.force)
    return DONE


def _show(args: argparse.Namespace) -> int:
    from overlapscope.budgets.baseline_file import from_json
    from overlapscope.budgets.document import baseline_document
    from overlapscope.render import terminal

    try:
        data = Path(args.file).read_bytes()
    except OSError as error:
        raise UsageError(f"{args.file}: cannot be read ({error.strerror or error}).") from None
    write(terminal.to_stream(baseline_document(from_json(data, args.file)), sys.stdout), None)
    return DONE
