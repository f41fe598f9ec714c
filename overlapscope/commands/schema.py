"""`overlapscope schema`."""

from __future__ import annotations

import argparse
from typing import Any

from overlapscope.base.registry import load
from overlapscope.commands import DONE
from overlapscope.commands._options import add_output
from overlapscope.commands._output import check_output, write

WRITERS = {
    "report": "report.model",
    "diff": "compare.diff",
    "whatif": "prediction.result",
    "check": "budgets.verdicts",
    "baseline": "budgets.baseline",
    "ranks": "ranks.result",
    "doctor": "doctor.result",
    "trial": "trials.result",
    "query": "query.written",
    "history-entry": "history.entry",
}
"""What can be asked for, and the module that knows its schema."""


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of one of `WRITERS`."""
    schema: dict[str, Any] = load(f"overlapscope.{WRITERS[kind]}:schema")()
    return schema


class Command:
    """Print the JSON schema (2020-12) of what `overlapscope analyze`, `diff`,
    `whatif`, `check`, `ranks`, `doctor`, `try` and `query` print with `--format
    json`, of a baseline, or of an entry of `overlapscope history`.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "of",
            nargs="?",
            choices=tuple(WRITERS),
            default="report",
            help="what to print the schema of (default: report)",
        )
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force)
        from overlapscope.base.saved import encode

        write(encode(schema_of(args.of)), args.output, force=args.force)
        return DONE
