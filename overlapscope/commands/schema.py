"""`overlapscope schema`."""

from __future__ import annotations

import argparse
from typing import Any

from overlapscope.base.registry import load
from overlapscope.commands import DONE
from overlapscope.commands._options import add_output
from overlapscope.commands._output import check_output, write
from overlapscope.plugin import plugins

_OF_CORE = {
    "report": "report.model:Report",
    "diff": "compare.difference:Diff",
    "whatif": "prediction.result:WhatIf",
    "check": "budgets.verdicts:CheckResult",
    "baseline": "budgets.baseline:Baseline",
    "ranks": "ranks.result:RanksReport",
    "doctor": "doctor.examine:Diagnosis",
}
"""Structures of the core's JSON output by kind."""


def writers() -> dict[str, str]:
    """Return the places of all structures of JSON output, by kind."""
    core = {kind: f"overlapscope.{place}" for kind, place in _OF_CORE.items()}
    return core | {kind: place for plugin in plugins() for kind, place in plugin.schemas.items()}


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of one of `writers`."""
    from overlapscope.base.saved import published

    return published(load(writers()[kind]), kind)


class SchemaCommand:
    """Print the JSON schema (2020-12) of the output of `overlapscope analyze`,
    `diff`, `whatif`, `check`, `ranks`, `doctor`, `try` or `query` with `--format
    json`, of a baseline, or of the entries and output of `overlapscope history`.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "of",
            nargs="?",
            choices=tuple(writers()),
            default="report",
            help="what to print the schema of (default: report)",
        )
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force)
        from overlapscope.base.saved import encode

        write(encode(schema_of(args.of)), args.output, force=args.force)
        return DONE
