"""Findings: the rules' drafts, each with the saving of its fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.base.session import kept_in_session
from overlapscope.catalog import advice, devices
from overlapscope.prediction.base import Base
from overlapscope.prediction.overhead import replayed_unasked
from overlapscope.prediction.plain_program import PlainProgram
from overlapscope.rules import Said, apply_all
from overlapscope.rules._claims import Claims, share_out
from overlapscope.rules.finding import HARDLY, CostFrom, Finding, Where, surest_first
from overlapscope.rules.rule import Draft, Fixes, Rule

if TYPE_CHECKING:
    from overlapscope.prediction.gains import Saving, Savings

CONTRADICTS = 0.1
"""A replay contradicts a finding that explains most of the lost time if its saving is below this share of the time that
the finding explains."""
MORE = 1.1
"""A saving is explained if it exceeds this multiple of the time that its finding explains."""


def find_all(
    analyses: Sequence[TraceAnalysis],
    programs: Sequence[PlainProgram | None] | None = None,
    *,
    scope: str = "window",
    replayed: bool = True,
) -> tuple[Finding, ...]:
    """Return the findings of all rules in all traces and devices, costliest first, good news last.

    Args:
        analyses: Traces to judge.
        programs: Plain programs of the traces. Findings are about the plain program if it can be replayed.
        scope: Name of the analyzed part.
        replayed: Whether to replay fixes; without replays, every cost is its bound.
    """
    findings = [
        finding
        for analysis, program in zip(analyses, programs or [None] * len(analyses), strict=True)
        if analysis.result.trust.verdict != "unusable"
        for device in analysis.devices
        for finding in _on_device(analysis, device, program, scope, replayed)
    ]
    return tuple(sorted(findings, key=surest_first))


@kept_in_session
def _on_device(
    analysis: TraceAnalysis, device: DeviceAnalysis, program: PlainProgram | None, scope: str, replayed: bool
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
    pairs = list(zip(spoken, counterparts(spoken, of_recording), strict=True))
    matched = {id(recorded) for _, recorded in pairs}
    if plain is not None:
        # The plain program may not have a finding of the recording, which may be judged all the same.
        unmatched = (each for each in of_recording if id(each[1]) not in matched)
        pairs += [(each, each[1]) for each in unmatched]

    def said(text: str) -> str:
        return devices.in_words_of(analysis.trace.device_names.values(), text)

    findings = []
    for (rule, draft), recorded in pairs:
        gone = plain is not None and recorded is draft
        cost = Cost(0, 0, 0, "bound") if gone else costs.of(rule, draft) if replayed else Cost.bound(draft)
        findings.append(
            Finding(
                rule=rule.id,
                # A fix that saves nothing by itself is no reason to warn.
                severity="info" if cost.is_nothing(claims.judged_ns) and not gone else draft.severity or rule.severity,
                source=analysis.result.source,
                rank=analysis.result.rank,
                device=ordinal,
                scope=scope,
                found_in="recorded" if gone else "plain" if recorded is None else "both",
                title=said(draft.title),
                detail=said(draft.detail),
                steps=claims.steps,
                advice=said(
                    draft.advice if draft.for_all else advice.for_program(analysis.trace, rule.id, draft.advice)
                ),
                cost_ns=cost.ns,
                low_ns=cost.low_ns,
                high_ns=cost.high_ns,
                bound_ns=recorded.bound_ns if recorded is not None else 0,
                plain_bound_ns=None if plain is None else 0 if gone else draft.bound_ns,
                cost_from=cost.known_from,
                effort=rule.effort,
                fix=cost.fix,
                doubt=said(cost.doubt),
                where=_place(draft, recorded),
                # A window of the recording, because only the recording can be looked at.
                example=recorded.example if recorded is not None else None,
                plain_example=None if plain is None or gone else draft.example,
            )
        )
    return tuple(findings)


def _place(draft: Draft, recorded: Draft | None) -> Where | None:
    """Return the place of a finding: the recording's if it is of the same op, since replays have no samples."""
    if recorded is None or recorded.where is None:
        return draft.where
    return recorded.where if draft.where is None or recorded.where.op == draft.where.op else draft.where


def counterparts(spoken: Sequence[Said], recorded: Sequence[Said]) -> list[Draft | None]:
    """Return, for each draft on the program that findings are about, the same finding on the recording.

    Drafts match by rule and call, and the rest by rule, in order. No draft matches twice.

    Returns:
        One element per draft; None if no finding on the recording matches.
    """
    unmatched = list(recorded)
    matched: list[Draft | None] = [None] * len(spoken)
    for by_call in (True, False):
        for number, (rule, draft) in enumerate(spoken):
            alike = (
                place
                for place, (other_rule, other) in enumerate(unmatched)
                if other_rule.id == rule.id and not (by_call and _call(other) != _call(draft))
            )
            if matched[number] is None and (place := next(alike, None)) is not None:
                matched[number] = unmatched.pop(place)[1]
    return matched


def _call(draft: Draft) -> tuple[str | None, str | None] | None:
    return None if draft.where is None else (draft.where.op, draft.where.call)


class Cost(NamedTuple):
    """Saving of a fix."""

    ns: int
    low_ns: int
    high_ns: int
    known_from: CostFrom
    fix: tuple[str, ...] = ()
    """Interventions that were replayed for it."""
    doubt: str = ""
    """Reservations about the saving, in sentences."""

    def is_nothing(self, judged_ns: int) -> bool:
        """Return whether a replay shows that the fix saves nothing by itself."""
        return self.known_from == "replay" and self.ns < HARDLY * judged_ns

    @classmethod
    def bound(cls, draft: Draft, doubt: str = "") -> Cost:
        """Return the time that the finding explains, of which a fix saves an unknown part."""
        return cls(draft.bound_ns, 0, draft.bound_ns, "bound", doubt=doubt)


class Costs:
    """Costs of a device's findings. The recording is replayed when the first finding asks for it."""

    def __init__(self, claims: Claims, ready: Base | None = None) -> None:
        """`ready` is the base of predictions, if it exists already."""
        self._claims, self._ready = claims, ready
        self._can_be_replayed = _is_whole(claims.device) and replayed_unasked(claims.trace)
        self._savings: Savings | None = None

    def of(self, rule: Rule, draft: Draft) -> Cost:
        """Return the saving of a draft's fix."""
        fixes = _filled_in(rule.fixes if draft.fixes is None else draft.fixes, draft)
        largest = self._largest(fixes) if fixes and draft.bound_ns and self._can_be_replayed else None
        if largest is None:
            return Cost.bound(draft)
        judged_ns, buckets = self._claims.judged_ns, self._claims.buckets
        saved, low, high = (round(part * judged_ns) for part in (largest.value, largest.low, largest.high))
        if saved < CONTRADICTS * draft.bound_ns and 2 * draft.bound_ns > buckets.idle_ns + buckets.exposed_copy_ns:
            predicted = f"only {self._claims.time_a_step(saved)}" if saved else "nothing"
            doubt = (
                f"`overlapscope whatif` predicts that the fix saves {predicted}, though the finding explains most of "
                "the time that the GPU loses. One of the two is wrong, or something else is nearly as slow. The saving "
                "shown is the most that is possible."
            )
            return Cost.bound(draft, doubt)
        doubt = ""
        if saved > MORE * draft.bound_ns:
            explained = self._claims.time(draft.bound_ns)
            doubt = (
                f"The fix saves more than the {explained} that this finding explains: it may shorten what other "
                "findings explain, too."
            )
        return Cost(saved, low, high, "replay", largest.fix, doubt)

    def _largest(self, fixes: Fixes) -> Saving | None:
        """Return the saving of the best fix; None if no replay can tell."""
        # Most healthy programs have no such finding and never need the replay or its modules.
        from overlapscope.prediction.gains import Savings

        if self._savings is None:
            self._savings = Savings(self._claims.trace, self._claims.device.result.device, self._ready)
        try:
            return self._savings.largest(fixes)
        except (ArithmeticError, LookupError, MemoryError, ValueError):
            # A failed estimate must not fail the analysis of an unusual trace.
            self._can_be_replayed = False
            return None


def _is_whole(device: DeviceAnalysis) -> bool:
    """Return whether the figures cover the whole recording, not just a step or range."""
    windows, timeline = device.windows, device.timeline
    return bool((windows.starts <= timeline.start_ns).any() and (windows.ends >= timeline.end_ns).any())


def _filled_in(fixes: Fixes, draft: Draft) -> Fixes:
    """Return the fixes with the call at the finding's place, without those that need an unknown call.

    If an op makes the call, the op's name is used, because other ops may make calls of the same name for other reasons.
    """
    where = draft.where
    call = ((where.op or where.call).strip() if where.call else "") if where is not None else ""
    return tuple(
        tuple(change.replace("{call}", call) for change in fix)
        for fix in fixes
        if call or not any("{call}" in change for change in fix)
    )
