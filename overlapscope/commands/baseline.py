"""`overlapscope baseline`, the earlier spelling of options of `overlapscope check`."""

from __future__ import annotations

import argparse
from pathlib import Path

from overlapscope.commands._baseline import show_baseline, write_baseline
from overlapscope.commands._options import add_actions, add_allow_predicted, add_analysis, add_output, add_traces
from overlapscope.commands.check import add_config_argument, find_config, read_settings


class BaselineCommand:
    """Write or show a baseline.

    `overlapscope check --write-baseline` and `overlapscope check
    --show-baseline` do the same.
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
        shows.add_argument("file", metavar="FILE", type=Path, help="baseline to show")

    def run(self, args: argparse.Namespace) -> int:
        if args.action == "show":
            return show_baseline(args.file)
        config = find_config(args.config)
        return write_baseline(args, read_settings(config), args.output, config)
