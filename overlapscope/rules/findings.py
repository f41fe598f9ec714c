"""Findings: the rules' drafts, each with the saving of its fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.periods import phases_of
from overlapscope.analysis.results import Plain
from overlapscope.base.registry import load
from overlapscope.base.words import fill
from overlapscope.catalog import advice
from overlapscope.catalog.causes import IdleCause
from overlapscope.plugin import built_in
from overlapscope.prediction import is_replayed_by_default
from overlapscope.rules import RULES
from overlapscope.rules._claims import Claims, share_out
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.finding import MIN_COST_SHARE, NEGLIGIBLE_SHARE, Finding, Saving, costliest_first
from overlapscope.rules.rule import Draft, Fixes, Rule
from overlapscope.trace.host import Where
from overlapscope.trace.model import Trace

if TYPE_CHECKING:
    from overlapscope.prediction.base import Base
    from overlapscope.prediction.plain_program import PlainProgram

RuleDraft = tuple[Rule, Draft]
CONTRADICTS = 0.1
"""A replay contradicts a finding that explains most of the lost time if its saving is below this share of the cost."""


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
        replayed: Whether to replay fixes; without replays, no saving is known.
    """
    findings = [
        finding
        for analysis, program in zip(analyses, programs or [None] * len(analyses), strict=True)
        if analysis.result.trust.verdict != "unusable"
        for device in analysis.devices
        for finding in _on_device(analysis, device, program, scope, replayed)
    ]
    return tuple(sorted(findings, key=costliest_first))


def _on_device(
    analysis: TraceAnalysis, device: DeviceAnalysis, program: PlainProgram | None, scope: str, replayed: bool
) -> tuple[Finding, ...]:
    claims, ordinal = share_out(analysis, device), device.result.device
    drafts = of_recording = apply_all(claims)
    base = None if program is None else program.recorded
    if program is not None and program.analysis is not None:
        plain = next((other for other in program.analysis.devices if other.result.device == ordinal), None)
        if plain is not None:
            claims = _as_long_as(share_out(program.analysis, plain), program.step_on(device.result))
            drafts, base = apply_all(claims), program.base
    savings = _savings(claims, base, drafts) if replayed else [None] * len(drafts)
    findings = []
    for (rule, draft), recorded, saving in zip(drafts, counterparts(drafts, of_recording), savings, strict=True):
        # A fix that saves nothing by itself, as a replay shows, is no reason to warn.
        saves_nothing = saving is not None and saving.saved_high_ns < NEGLIGIBLE_SHARE * claims.judged_ns
        findings.append(
            Finding(
                rule=rule.id,
                severity="info" if saves_nothing else draft.severity or rule.severity,
                source=analysis.result.source,
                rank=analysis.result.rank,
                device=ordinal,
                scope=scope,
                title=draft.title,
                detail=draft.detail,
                steps=claims.steps,
                advice=_advice(analysis.trace, rule, draft),
                cost_ns=draft.bound_ns,
                idle_ns=min(draft.idle_ns, draft.bound_ns),
                saving=saving,
                effort=rule.effort,
                doubt=_doubt(claims, draft, saving),
                where=_place(draft, recorded),
                # A window of the recording, because only the recording can be looked at.
                example=recorded.example if recorded is not None else None,
            )
        )
    return tuple(findings)


def _as_long_as(claims: Claims, step: Plain | None) -> Claims:
    """Return the claims of a replayed program with the time that its steps take longer than the recorded ones."""
    more_ns = 0 if step is None else step.idle_by_cause.get(IdleCause.UNRECORDED, 0) * max(1, claims.steps)
    idle_ns = claims.buckets.idle_ns + more_ns
    return replace(claims, judged_ns=claims.judged_ns + more_ns, buckets=replace(claims.buckets, idle_ns=idle_ns))


def _advice(trace: Trace, rule: Rule, draft: Draft) -> str:
    """Return a draft's advice, or that for the kind of program that was recorded."""
    remedies = (plugin.remedies[rule.id] for plugin in built_in() if rule.id in plugin.remedies)
    if phases_of(trace) and (place := next(remedies, None)):
        # The marks of steps name the server.
        return fill(load(place)(trace.step_source.removeprefix("marks of ")), trace.gpu)
    text = draft.advice or advice_by_case(rule.id, trace.gpu)[draft.case]
    return text if draft.for_all else advice.for_program(trace, rule.id, text)


def _doubt(claims: Claims, draft: Draft, saving: Saving | None) -> str:
    """Return reservations about a saving that contradicts the cost."""
    if saving is None:
        return ""
    lost_ns = claims.buckets.idle_ns + claims.buckets.exposed_copy_ns
    if saving.saved_ns < CONTRADICTS * draft.bound_ns and 2 * draft.bound_ns > lost_ns:
        return (
            f"The finding explains most of the time that the {claims.gpu} loses, but the replay saves hardly any of "
            "it: one of the two is wrong, or something else is nearly as slow."
        )
    return ""


def _place(draft: Draft, recorded: Draft | None) -> Where | None:
    """Return the place of a finding: the recording's if it is of the same op, since replays have no samples."""
    if recorded is None or recorded.where is None:
        return draft.where
    return recorded.where if draft.where is None or recorded.where.op == draft.where.op else draft.where


def apply_all(claims: Claims) -> tuple[RuleDraft, ...]:
    """Apply all rules to one device. Those that can't find anything aren't even imported."""
    floor = max(1, round(MIN_COST_SHARE * claims.judged_ns))
    # The pieces of a rule may add up to more than the judged time, but nothing costs more than that.
    return tuple(
        (rule, replace(draft, bound_ns=min(draft.bound_ns, claims.judged_ns)))
        for rule in (RULES[id] for id in RULES if claims.concern(id))
        for draft in rule.check(claims)
        if "info" in (draft.severity, rule.severity) or draft.bound_ns >= floor
    )


def counterparts(drafts: Sequence[RuleDraft], recorded: Sequence[RuleDraft]) -> list[Draft | None]:
    """Return, for each draft on the program that findings are about, the same finding on the recording.

    Drafts match by rule and call, and the rest by rule, in order. No draft matches twice.

    Returns:
        One element per draft; None if no finding on the recording matches.
    """
    unmatched, matched = list(recorded), list[Draft | None]([None] * len(drafts))
    for by_call in (True, False):
        for number, (rule, draft) in enumerate(drafts):
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


def _savings(claims: Claims, base: Base | None, drafts: Sequence[RuleDraft]) -> list[Saving | None]:
    """Return the saving of each draft's fix; None if no replay can tell.

    The recording is replayed for the first draft with a fix, unless `base`, the starting point of predictions, exists.
    """
    savings, steps = list[Saving | None]([None] * len(drafts)), max(1, claims.steps)
    windows, timeline = claims.device.windows, claims.device.timeline
    # Figures of a step or range alone can't be replayed.
    is_whole = (windows.starts <= timeline.start_ns).any() and (windows.ends >= timeline.end_ns).any()
    fixes = [_filled_in(rule.fixes if draft.fixes is None else draft.fixes, draft) for rule, draft in drafts]
    fixable = [number for number, (_, draft) in enumerate(drafts) if fixes[number] and draft.bound_ns]
    if not fixable or not is_whole or not is_replayed_by_default(claims.trace):
        return savings
    # Most healthy programs have no such finding and never need the replay or its modules.
    from overlapscope.prediction.outcomes import largest_gains

    try:
        gains = largest_gains(claims.trace, claims.device.result.device, [fixes[number] for number in fixable], base)
        for number, largest in zip(fixable, gains, strict=True):
            if largest is not None:
                gain = largest.gain_ns
                ns, low_ns, high_ns = (each_ns * steps for each_ns in (gain.value, gain.low, gain.high))
                savings[number] = Saving(saved_ns=ns, saved_low_ns=low_ns, saved_high_ns=high_ns, fix=largest.fix)
    except (ArithmeticError, LookupError, MemoryError, ValueError):
        # A failed estimate must not fail the analysis of an unusual trace.
        pass
    return savings


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
