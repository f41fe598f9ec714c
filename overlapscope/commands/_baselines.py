"""From what a user names as a baseline to a Baseline: a file that holds one, a trace, or a report."""

from __future__ import annotations

import re
from pathlib import Path

from overlapscope.compare.baseline import Baseline, of
from overlapscope.compare.baseline_file import from_json
from overlapscope.compare.budgets import RELATIVE, Settings
from overlapscope.errors import UnreadableTrace

_BEGINS_LIKE_A_BASELINE = re.compile(rb'\s*\{\s*"devices"\s*:')
_HEAD_BYTES = 256


def read_baseline(path: str, settings: Settings, *, limit_bytes: int | None = None) -> Baseline:
    """The baseline in a file, or the one that the traces or the report there make.

    Raises UnreadableTrace where it is none of these, UsageError where the traces cannot serve as one.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            mine = _BEGINS_LIKE_A_BASELINE.match(opened.read(_HEAD_BYTES)) is not None
        if mine:
            return from_json(file.read_bytes(), path)
    except IsADirectoryError:
        pass
    except OSError as error:
        if not file.exists() and any(character in path for character in "*?["):
            pass
        else:
            raise UnreadableTrace(f"{path}: cannot be read ({error.strerror or error}).") from None
    from overlapscope.commands._reports import read

    return of(read([path], limit_bytes=limit_bytes), ranges=ranges_of(settings))


def ranges_of(settings: Settings) -> tuple[str, ...]:
    """Patterns of the ranges that budgets compare with a baseline."""
    return tuple(
        dict.fromkeys(
            budget.where.range
            for budget in settings.budgets
            if budget.where.range is not None and set(budget.limits) & set(RELATIVE)
        )
    )
