"""What fixing a finding saves: by replay where the recording can be replayed, else the bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.base.words import duration
from overlapscope.prediction.program import replayed_unasked
from overlapscope.rules._claims import Claims
from overlapscope.rules.finding import CostFrom, Draft, Fixes
from overlapscope.rules.rule import Rule

if TYPE_CHECKING:
    from overlapscope.prediction.base import Base
    from overlapscope.prediction.savings import Savings

CONTRADICTS = 0.1
"""A replay that saves less than this share of what a finding explains contradicts a finding that explains most of the
time lost."""
MORE = 1.1
"""A saving larger than this many times what the finding explains is told the reason of."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a fix saves."""

    ns: int
    known_from: CostFrom
    doubt: str = ""
    """What has to be said of it, in sentences."""


class Costs:
    """Those of one device's findings; the recording is replayed when the first of them asks."""

    def __init__(
        self, analysis: TraceAnalysis, device: DeviceAnalysis, found: Claims, ready: Base | None = None
    ) -> None:
        """`ready` is what predictions of it start from, where somebody has it."""
        self._trace, self._device, self._ready = analysis.trace, device, ready
        self._judged_ns = found.judged_ns
        self._lost_ns = found.buckets.idle_ns + found.buckets.exposed_copy_ns
        self._can_be_replayed = _is_whole(device) and replayed_unasked(analysis.trace)
        self._savings: Savings | None = None

    def of(self, rule: Rule, draft: Draft) -> Cost:
        """What the fix saves."""
        fixes = _filled_in(rule.fixes if draft.fixes is None else draft.fixes, draft)
        saved = self._saved_ns(fixes) if fixes and draft.bound_ns and self._can_be_replayed else None
        if saved is None:
            return Cost(draft.bound_ns, "bound")
        if saved < CONTRADICTS * draft.bound_ns and 2 * draft.bound_ns > self._lost_ns:
            doubt = (
                f"By replay the fix saves only {duration(saved)}, though the finding explains most of the time that "
                "the GPU loses. Either is wrong, or something else is nearly as slow. The saving shown is the upper "
                "bound."
            )
            return Cost(draft.bound_ns, "bound", doubt)
        if saved > MORE * draft.bound_ns:
            said = f"By replay the fix saves more than the {duration(draft.bound_ns)} that this finding explains"
            return Cost(saved, "replay", f"{said}: it may shorten what other findings explain, too.")
        return Cost(saved, "replay")

    def _saved_ns(self, fixes: Fixes) -> int | None:
        """None where no replay can tell."""
        # Most healthy programs have no such finding, and need neither the replay nor its modules.
        from overlapscope.prediction.savings import Savings

        if self._savings is None:
            self._savings = Savings(self._trace, self._device.result.device, self._ready)
        try:
            saved = self._savings.largest(fixes)
        except (ArithmeticError, LookupError, MemoryError, ValueError):
            # An estimate must not cost the analysis of a trace that is unlike any seen so far.
            self._can_be_replayed = False
            return None
        if saved is None:
            return None
        # The lead-in is replayed too, but not judged. Warm-up steps gain as the others do, and a share of the whole
        # does not depend on where the first judged step happens to begin after the fix.
        span_ns = max(1, self._device.result.span_ns)
        return round(min(saved, span_ns) * self._judged_ns / span_ns)


def _is_whole(device: DeviceAnalysis) -> bool:
    """Whether the figures are of all that was recorded, not of a step or range alone."""
    windows, timeline = device.windows, device.timeline
    return bool((windows.starts <= timeline.start_ns).any() and (windows.ends >= timeline.end_ns).any())


def _filled_in(fixes: Fixes, draft: Draft) -> Fixes:
    """The fixes with the call at the finding's place; without those that need it where it is not known.

    Where an op makes the call, the op stands for it: others may make calls of that name for reasons of their own.
    """
    where = draft.where
    call = ((where.op or where.call).strip() if where.call else "") if where is not None else ""
    return tuple(
        tuple(one.replace("{call}", call) for one in fix)
        for fix in fixes
        if call or not any("{call}" in one for one in fix)
    )
