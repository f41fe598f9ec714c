"""`overlapscope doctor`."""

from __future__ import annotations

import argparse

from overlapscope.commands import DONE
from overlapscope.commands._options import add_format, add_output
from overlapscope.commands._output import check_output, present

BROKEN = 1
"""Exit code if a part is installed and does not work."""


class DoctorCommand:
    """Examine this installation for missing and broken parts: versions, GPU,
    whether the profiler may record it, extras with the line that installs
    them, cache, browser.

    With PyTorch and a GPU, a few operations are run and recorded. The exit
    code is 1 if a part is broken; missing parts do not count.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_format(parser, ("text", "json", "markdown"))
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force)
        from overlapscope.doctor.document import document
        from overlapscope.doctor.examine import examine

        diagnosis = examine()
        present(diagnosis, lambda: document(diagnosis), args)
        return BROKEN if diagnosis.having("broken") else DONE
