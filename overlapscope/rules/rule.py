"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.rules._claims import Claims
from overlapscope.rules.finding import Draft, Fixes, Severity

Check = Callable[[TraceAnalysis, DeviceAnalysis, Claims], Iterable[Draft]]
"""What a rule makes of one device, given what time it answers for."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule with its explanation, which `overlapscope explain` prints."""

    id: str
    severity: Severity
    summary: str
    """One line for `overlapscope rules`."""
    meaning: str
    """What it means and why it costs time."""
    computation: str
    """How it is computed, cost included."""
    wrong: str
    """A minimal program that has it."""
    right: str
    """The same program without it."""
    check: Check
    fixes: Fixes = ()
    """What stands for the advice in a replay; `{call}` is the call at the finding's place."""
