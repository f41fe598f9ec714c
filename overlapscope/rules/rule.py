"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.base.words import listed
from overlapscope.rules._claims import Claims
from overlapscope.rules.finding import Draft, Fixes, Severity
from overlapscope.trace.lost import CAUSES, Part

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
    """How it is computed, the bound on what the fix saves included."""
    wrong: str
    """A minimal program that has it."""
    right: str
    """The same program without it."""
    check: Check
    rests_on: frozenset[Part] = CAUSES
    """The parts of the recording that it is computed from: where some of one may be lost, nobody knows what it would
    find. By default all that causes are found by."""
    fixes: Fixes = ()
    """What stands for the advice in a replay, `{call}` being the call at the finding's place, or the op that makes it;
    without any, a finding costs its bound."""

    @property
    def cost(self) -> str:
        """How what the fix saves is known, in a sentence."""
        if self.severity == "info":
            return "It costs nothing."
        if not self.fixes:
            return "No replay can tell what the fix saves: the cost is the bound."
        sets = [f"`{' + '.join(fix).replace('{call}', 'CALL')}`" for fix in self.fixes]
        best = "the best of " if len(sets) > 1 else ""
        how = f"The recording is replayed with {best}{listed(sets)} (`overlapscope whatif`)"
        return f"{how}; where that cannot be done, the cost is the bound."
