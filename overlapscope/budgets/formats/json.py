"""A check as JSON; `overlapscope schema check` prints its schema."""

from __future__ import annotations

import msgspec

from overlapscope.budgets.verdicts import CheckResult


def render(result: CheckResult) -> str:
    """The whole result, indented, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"
