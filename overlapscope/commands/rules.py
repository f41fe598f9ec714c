"""`overlapscope rules`, an earlier list of what `overlapscope explain` lists."""

from __future__ import annotations

import argparse

from overlapscope.commands import DONE
from overlapscope.commands._output import write


class RulesCommand:
    """List the rules that findings follow from.

    `overlapscope explain` lists them with all other words, and `overlapscope
    explain RULE` explains one.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, args: argparse.Namespace) -> int:
        from overlapscope.rules import RULES

        widest = max(map(len, RULES), default=0)
        write(
            "".join(f"{rule.id:<{widest}}  {rule.severity:<7}  {rule.summary}\n" for rule in RULES.values()).encode(),
            None,
        )
        return DONE
