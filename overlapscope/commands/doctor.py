"""`overlapscope doctor`."""

from __future__ import annotations

import argparse

from overlapscope.commands import DONE
from overlapscope.commands._options import add_format, add_output
from overlapscope.commands._output import check_output, present

BROKEN = 1
"""Exit code where something is there and does not work."""


class DoctorCommand:
    """Say what works in this installation and what is missing: versions, GPU,
    whether the profiler may record it, extras with the line that installs
    them, cache, browser.

    With PyTorch and a GPU, a few operations are run and recorded. The exit
    code is 1 where something is broken; what is only missing does not count.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_format(parser, ("text", "json", "markdown"))
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force)
        from overlapscope.doctor.document import document
        from overlapscope.doctor.examine import examine

        found = examine()
        present(found, lambda: document(found), args)
        return BROKEN if found.having("broken") else DONE
