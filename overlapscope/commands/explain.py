"""The command `overlapscope explain`."""

from __future__ import annotations

import argparse
import sys

from overlapscope.commands import DONE
from overlapscope.commands._output import write


class ExplainCommand:
    """Explain a word in a report: a rule (what it means, how it is computed, a
    program with the problem and the same program without it), a cause, a
    metric, a trust check or a change, and what is related to it.

    Without a word, it lists all rules and all other words.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "word",
            metavar="WORD",
            nargs="*",
            help="word to explain, such as same-stream or exposed copy",
        )

    def run(self, args: argparse.Namespace) -> int:
        from overlapscope import glossary
        from overlapscope.render import terminal

        word = " ".join(args.word)
        document = glossary.explain(word) if word else glossary.listing()
        write(terminal.to_stream(document, sys.stdout), None)
        return DONE
