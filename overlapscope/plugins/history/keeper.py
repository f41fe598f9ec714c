"""Reports and predictions that other plugins keep in a history (`report.origin.Keeper`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from overlapscope.plugins.history.drop import put
from overlapscope.plugins.history.figures import entry
from overlapscope.plugins.history.store import Store, default_path
from overlapscope.prediction.result import StoredPrediction
from overlapscope.ranks.files import is_url
from overlapscope.report.model import Report
from overlapscope.report.origin import Origin


def place(named: str | os.PathLike[str] | None) -> tuple[str, Path]:
    """Return where `add` adds to, and a directory for other files of the same programs. Raises UsageError.

    Args:
        named: File, directory or URL; by default the user's history.
    """
    where = os.fspath(default_path() if named is None else named)
    if not is_url(where):
        where = os.path.abspath(os.path.expanduser(where))
    # A drop is for other machines, so other files are kept beside the default history then.
    beside = default_path() if _is_drop(where) else Path(where)
    return where, beside.parent


def add(report: Report, origin: Origin, where: str) -> None:
    """Add a report to a history, or to a directory or URL that is a file drop. Raises UsageError, MissingPackage."""
    new = entry(report, origin)
    if _is_drop(where):
        put(new, where)
    else:
        with Store.open(where) as store:
            store.add(new)


def _is_drop(where: str) -> bool:
    return is_url(where) or os.path.isdir(where)


def add_predictions(predictions: Sequence[StoredPrediction]) -> None:
    """Add predictions beside measurements to the user's history if it exists. Raises UsageError."""
    if predictions and default_path().exists():
        with Store.open() as store:
            store.add_predictions(predictions)
