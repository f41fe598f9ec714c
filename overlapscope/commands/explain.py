"""`overlapscope explain`."""

from __future__ import annotations

import argparse
import shutil
import textwrap

from overlapscope.base.output import bounded
from overlapscope.base.words import did_you_mean
from overlapscope.commands import DONE
from overlapscope.commands._output import write
from overlapscope.errors import UsageError


class Command:
    """Explain one rule: what it means, how it is computed, a program that has
    the problem and the same program without it.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("rule", metavar="RULE", help="id of a rule, as `overlapscope rules` lists them")

    def run(self, args: argparse.Namespace) -> int:
        from overlapscope.rules import RULES
        from overlapscope.trace.lost import rests

        if args.rule not in RULES:
            hint = did_you_mean(args.rule, RULES)
            raise UsageError(f"there is no rule {args.rule!r}{hint}; rules: {', '.join(RULES)}.")
        rule = RULES[args.rule]
        width = min(100, bounded(shutil.get_terminal_size().columns))
        parts = [
            f"{rule.id} ({rule.severity}): {rule.summary}",
            _filled(rule.meaning, width),
            f"How it is computed\n\n{_filled(rule.computation, width)}",
            f"What the fix saves\n\n{_filled(rule.cost, width)}",
            f"What it rests on\n\n{_filled(rests(rule.rests_on), width)}",
            f"Wrong\n\n{_indented(rule.wrong)}",
            f"Right\n\n{_indented(rule.right)}",
        ]
        write(("\n\n".join(parts) + "\n").encode(), None)
        return DONE


def _filled(text: str, width: int) -> str:
    """Paragraphs filled to the width; their blank lines kept."""
    paragraphs = textwrap.dedent(text).strip().split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(paragraph.split()), width) for paragraph in paragraphs)


def _indented(program: str) -> str:
    return textwrap.indent(textwrap.dedent(program).strip("\n"), "    ")
