"""`overlapscope schema`."""

from __future__ import annotations

import argparse
from typing import Any

from overlapscope.base.registry import load
from overlapscope.commands import DONE
from overlapscope.commands._options import add_output
from overlapscope.commands._output import check_output, write


class Command:
    """Print the JSON schema (2020-12) of what `overlapscope analyze`, `diff`,
    `whatif`, `check` and `ranks` print with `--format json`, or of a baseline.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "of",
            nargs="?",
            choices=("report", "diff", "whatif", "check", "baseline", "ranks"),
            default="report",
            help="default: report",
        )
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force)
        import msgspec

        data = msgspec.json.format(msgspec.json.encode(_schema(args.of)), indent=2) + b"\n"
        write(data, args.output, force=args.force)
        return DONE


def _schema(of: str) -> dict[str, Any]:
    module = {
        "report": "overlapscope.report.model",
        "diff": "overlapscope.compare.diff",
        "whatif": "overlapscope.prediction.result",
        "check": "overlapscope.budgets.verdicts",
        "baseline": "overlapscope.budgets.baseline_file",
        "ranks": "overlapscope.ranks.result",
    }[of]
    schema: dict[str, Any] = load(f"{module}:schema")()
    return schema
