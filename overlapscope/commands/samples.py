"""`overlapscope samples`."""

from __future__ import annotations

import argparse

from overlapscope.commands import DONE


class Command:
    """Print the directory of the sample traces that come with overlapscope, as in:

    overlapscope analyze "$(overlapscope samples)"
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, args: argparse.Namespace) -> int:
        from overlapscope.samples import sample_traces

        print(sample_traces())
        return DONE
