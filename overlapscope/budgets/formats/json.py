"""A check as JSON; `overlapscope schema check` prints its schema."""

from __future__ import annotations

from overlapscope.base.saved import encode
from overlapscope.budgets.verdicts import CheckResult


def render(result: CheckResult) -> str:
    """Return the whole result, indented, ending in a newline."""
    return encode(result).decode()
