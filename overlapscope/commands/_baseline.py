"""Writing and showing baselines."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.base import disk
from overlapscope.base.output import tell
from overlapscope.commands import DONE
from overlapscope.commands._options import report_of
from overlapscope.commands._output import check_output, write
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.budgets.settings import Settings

DEFAULT_FILE = "overlap-baseline.json"
"""Name of a baseline without another name, beside the configuration."""


def write_baseline(args: argparse.Namespace, settings: Settings, output: Path, config: Path | None) -> int:
    """Write a baseline from the traces of one job. Raises UsageError."""
    check_output(output, force=args.force, inputs=(*args.traces, config))
    from overlapscope.budgets import baseline

    report = report_of(args.traces, args)
    new = baseline.of(report, ranges=settings.compared_ranges, allow_predicted=args.allow_predicted)
    for doubt in baseline.doubts(new):
        tell(f"overlapscope: warning: {doubt}")
    write(baseline.to_json(new), output, force=args.force)
    return DONE


def show_baseline(file: Path) -> int:
    """Print where a baseline was made, and the median of each metric. Raises UsageError."""
    from overlapscope.budgets.baseline import from_json
    from overlapscope.budgets.document import baseline_document
    from overlapscope.render import terminal

    try:
        data = disk.read(file)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror or error}).") from None
    write(terminal.to_stream(baseline_document(from_json(data, str(file))), sys.stdout), None)
    return DONE
