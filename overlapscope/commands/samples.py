"""`overlapscope samples`."""

from __future__ import annotations

import argparse
import os

from overlapscope.commands import DONE
from overlapscope.commands._output import write


class Command:
    """Print the directory of the sample traces that come with overlapscope, as in:

    overlapscope analyze "$(overlapscope samples)"
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, args: argparse.Namespace) -> int:
        from overlapscope.reading.samples import sample_traces

        write(os.fsencode(sample_traces()) + b"\n", None)
        return DONE
