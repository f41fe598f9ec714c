"""What the rules say -> findings: of the program that a report speaks of, each with what its fix saves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.base.session import kept_in_session
from overlapscope.base.words import duration
from overlapscope.catalog.advice import in_words_of
from overlapscope.prediction.base import Base
from overlapscope.prediction.program import Program, replayed_unasked
from overlapscope.rules import Said, apply_all
from overlapscope.rules._claims import Claims, share_out
from overlapscope.rules.finding import CostFrom, Finding, costliest_first
from overlapscope.rules.rule import Draft, Fixes, Rule

if TYPE_CHECKING:
    from overlapscope.prediction.gains import Savings

CONTRADICTS = 0.1
"""A replay that saves less than this share of what a finding explains contradicts a finding that explains most of the
time lost."""
MORE = 1.1
"""A saving larger than this many times what the finding explains is told the reason of."""


def find_all(
    analyses: Sequence[TraceAnalysis],
    programs: Sequence[Program | None] | None = None,
    *,
    scope: str = "window",
    replayed: bool = True,
) -> tuple[Finding, ...]:
    """What all rules find in all traces and devices, costliest first, good news last.

    `programs` are the plain ones behind the recordings: where one decides, findings are of it. `replayed` is false
    where nobody asks what fixes save: every cost is its bound then.
    """
    findings = [
        finding
        for analysis, program in zip(analyses, programs or [None] * len(analyses), strict=True)
        if analysis.result.trust.verdict != "unusable"
        for device in analysis.devices
        for finding in _on_device(analysis, device, program, scope, replayed)
    ]
    return tuple(sorted(findings, key=costliest_first))


@kept_in_session
def _on_device(
    analysis: TraceAnalysis, device: DeviceAnalysis, program: Program | None, scope: str, replayed: bool
) -> tuple[Finding, ...]:
    claims, ordinal = share_out(analysis, device), device.result.device
    spoken = of_recording = apply_all(claims)
    costs = Costs(claims, None if program is None else program.recorded)
    plain = None
    if program is not None and program.analysis is not None:
        plain = next((other for other in program.analysis.devices if other.result.device == ordinal), None)
        if plain is not None:
            claims = share_out(program.analysis, plain)
            spoken, costs = apply_all(claims), Costs(claims, program.base)
    findings = []
    for (rule, draft), recorded in zip(spoken, counterparts(spoken, of_recording), strict=True):
        cost = costs.of(rule, draft) if replayed else Cost(draft.bound_ns, "bound")
        findings.append(
            Finding(
                rule=rule.id,
                severity=draft.severity or rule.severity,
                source=analysis.result.source,
                rank=analysis.result.rank,
                device=ordinal,
                scope=scope,
                title=draft.title,
                detail=draft.detail,
                advice=in_words_of(analysis.trace.framework, rule.id, draft.advice),
                cost_ns=cost.ns,
                bound_ns=recorded.bound_ns if recorded is not None else 0,
                plain_bound_ns=None if plain is None else draft.bound_ns,
                cost_from=cost.known_from,
                fix=cost.fix,
                doubt=cost.doubt,
                where=(recorded.where if recorded is not None else None) or draft.where,
                # A window of the recording, which is what can be looked at.
                example=recorded.example if recorded is not None else None,
                plain_example=None if plain is None else draft.example,
            )
        )
    return tuple(findings)


def counterparts(spoken: Sequence[Said], recorded: Sequence[Said]) -> list[Draft | None]:
    """For each draft of the program that is spoken of, the one that says the same of the recording.

    It is of the same rule and call; where there is none, what is left of the rule, in order. None is taken twice.
    """
    left = list(recorded)
    matched: list[Draft | None] = [None] * len(spoken)
    for by_call in (True, False):
        for number, (rule, draft) in enumerate(spoken):
            alike = (
                place
                for place, (other_rule, other) in enumerate(left)
                if other_rule.id == rule.id and not (by_call and _call(other) != _call(draft))
            )
            if matched[number] is None and (place := next(alike, None)) is not None:
                matched[number] = left.pop(place)[1]
    return matched


def _call(draft: Draft) -> tuple[str | None, str | None] | None:
    return None if draft.where is None else (draft.where.op, draft.where.call)


class Cost(NamedTuple):
    """What a fix saves."""

    ns: int
    known_from: CostFrom
    fix: tuple[str, ...] = ()
    """The interventions replayed for it."""
    doubt: str = ""
    """What has to be said of it, in sentences."""


class Costs:
    """Those of one device's findings; the recording is replayed when the first of them asks."""

    def __init__(self, claims: Claims, ready: Base | None = None) -> None:
        """`ready` is what predictions of it start from, where somebody has it."""
        self._claims, self._ready = claims, ready
        self._can_be_replayed = _is_whole(claims.device) and replayed_unasked(claims.trace)
        self._savings: Savings | None = None

    def of(self, rule: Rule, draft: Draft) -> Cost:
        """What the fix saves."""
        fixes = _filled_in(rule.fixes if draft.fixes is None else draft.fixes, draft)
        largest = self._largest(fixes) if fixes and draft.bound_ns and self._can_be_replayed else None
        if largest is None:
            return Cost(draft.bound_ns, "bound")
        saved, fix = largest
        lost_ns = self._claims.buckets.idle_ns + self._claims.buckets.exposed_copy_ns
        if saved < CONTRADICTS * draft.bound_ns and 2 * draft.bound_ns > lost_ns:
            doubt = (
                f"By replay the fix saves {f'only {duration(saved)}' if saved else 'nothing'}, though the finding "
                "explains most of the time that the GPU loses. One of the two is wrong, or something else is nearly as "
                "slow. The saving shown is the upper bound."
            )
            return Cost(draft.bound_ns, "bound", doubt=doubt)
        if saved > MORE * draft.bound_ns:
            said = f"By replay the fix saves more than the {duration(draft.bound_ns)} that this finding explains"
            return Cost(saved, "replay", fix, f"{said}: it may shorten what other findings explain, too.")
        return Cost(saved, "replay", fix)

    def _largest(self, fixes: Fixes) -> tuple[int, tuple[str, ...]] | None:
        """What the best of the fixes saves, and which it is; None where no replay can tell."""
        # Most healthy programs have no such finding, and need neither the replay nor its modules.
        from overlapscope.prediction.gains import Savings

        if self._savings is None:
            self._savings = Savings(self._claims.trace, self._claims.device.result.device, self._ready)
        try:
            largest = self._savings.largest(fixes)
        except (ArithmeticError, LookupError, MemoryError, ValueError):
            # An estimate must not cost the analysis of a trace that is unlike any seen so far.
            self._can_be_replayed = False
            return None
        if largest is None:
            return None
        part, fix = largest
        return round(part * self._claims.judged_ns), fix


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
        tuple(change.replace("{call}", call) for change in fix)
        for fix in fixes
        if call or not any("{call}" in change for change in fix)
    )
