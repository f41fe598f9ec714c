"""`overlapscope baseline`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from overlapscope.base import disk
from overlapscope.base.output import tell
from overlapscope.commands import DONE
from overlapscope.commands._options import (
    add_actions,
    add_allow_predicted,
    add_analysis,
    add_output,
    add_traces,
    report_of,
)
from overlapscope.commands._output import check_output, write
from overlapscope.commands.check import add_config_argument, find_config, read_settings
from overlapscope.errors import UsageError


class BaselineCommand:
    """Write or show a baseline, which relative budgets of `overlapscope check`
    compare with.

    A baseline is a small JSON file to keep beside the code. It has the values
    of every metric in every step, and the machine and software they were
    measured on.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_action = add_actions(parser)
        writes = add_action("write", "write a baseline from the traces of one job")
        add_traces(writes, reports=True)
        add_output(writes, required=True)
        add_config_argument(writes)
        add_allow_predicted(writes)
        add_analysis(writes)
        shows = add_action("show", "show where a baseline was made, and the mean of each metric")
        shows.add_argument("file", metavar="FILE", help="file written by `overlapscope baseline write`")

    def run(self, args: argparse.Namespace) -> int:
        return _write(args) if args.action == "write" else _show(args)


def _write(args: argparse.Namespace) -> int:
    config = find_config(args.config)
    check_output(args.output, force=args.force, inputs=(*args.traces, config))
    settings = read_settings(config)
    from overlapscope.budgets import baseline

    report = report_of(args.traces, args)
    new = baseline.of(report, ranges=settings.compared_ranges, allow_predicted=args.allow_predicted)
    for doubt in baseline.doubts(new):
        tell(f"overlapscope: warning: {doubt}")
    write(baseline.to_json(new), args.output, force=args.force)
    return DONE


def _show(args: argparse.Namespace) -> int:
    from overlapscope.budgets.baseline import from_json
    from overlapscope.budgets.document import baseline_document
    from overlapscope.render import terminal

    try:
        data = disk.read(Path(args.file))
    except OSError as error:
        raise UsageError(f"{args.file}: cannot be read ({error.strerror or error}).") from None
    write(terminal.to_stream(baseline_document(from_json(data, args.file)), sys.stdout), None)
    return DONE
