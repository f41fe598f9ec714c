"""`overlapscope schema`."""

from __future__ import annotations

import argparse
from typing import Any

from overlapscope.base.registry import load
from overlapscope.commands import DONE
from overlapscope.commands._options import add_output
from overlapscope.commands._output import check_output, write

WRITERS = {
    "report": "report.model:Report",
    "diff": "compare.difference:Diff",
    "whatif": "prediction.result:WhatIf",
    "whatif-ranks": "ranks.joint.result:JointWhatIf",
    "check": "budgets.verdicts:CheckResult",
    "baseline": "budgets.baseline:BaselineFile",
    "ranks": "ranks.result:RanksReport",
    "doctor": "doctor.result:Diagnosis",
    "trial": "trials.result:Trial",
    "query": "query.written:Result",
    "history-entry": "history.entry:Entry",
    "history-levels": "history.course:JobCourse",
    "history-check": "history.course:HistoryCheck",
}
"""Structures of JSON output by kind."""


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of one of `WRITERS`."""
    from overlapscope.base.saved import published

    return published(load(f"overlapscope.{WRITERS[kind]}"), kind)


class SchemaCommand:
    """Print the JSON schema (2020-12) of the output of `overlapscope analyze`,
    `diff`, `whatif`, `check`, `ranks`, `doctor`, `try` or `query` with `--format
    json`, of a baseline, or of the entries and output of `overlapscope history`.
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
