"""`overlapscope samples`."""

from __future__ import annotations

import argparse
import os
import sys

from overlapscope.commands import DONE
from overlapscope.commands._output import write


class SamplesCommand:
    """Print the directory of the sample traces that come with overlapscope, as in:

    overlapscope analyze "$(overlapscope samples)/training_naive.json.gz"

    On a terminal, it also lists the traces and what each one shows.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, args: argparse.Namespace) -> int:
        from overlapscope.reading.samples import SAMPLES, WHAT_THEY_ARE

        lines = [os.fsencode(SAMPLES)]
        if sys.stdout is not None and sys.stdout.isatty():
            widest = max(map(len, WHAT_THEY_ARE))
            lines += [f"  {name:<{widest}}  {program}".encode() for name, program in WHAT_THEY_ARE.items()]
        write(b"".join(line + b"\n" for line in lines), None)
        return DONE
