"""The verdict: the answer in a few sentences, before any table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Literal

from overlapscope.analysis.results import Device, HostUse, Plain, copies_matter, missing_ns
from overlapscope.base.words import Unit, listed, percent, plural, share, unit_for
from overlapscope.catalog.causes import EXPOSED_COPY, IDLE, Cause, CopyCause, IdleCause
from overlapscope.report.page import Section
from overlapscope.report.tables import HARDLY, plain_unit
from overlapscope.rules import RULES
from overlapscope.rules.finding import costliest_first
from overlapscope.trace.lost import CAUSES, Part, part_words

Level = Literal["good", "fair", "poor", "unusable"]

GOOD_BELOW = 0.05
"""Lost time, as a share of the judged time, below which all is well."""
POOR_FROM = 0.15
WORTH_SAYING = 0.01
"""The floor of the rules: what costs less is not worth a sentence."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it stands, and the sentences that say so."""

    level: Level
    text: str
    plain: str = ""
    """What a step takes while nothing is recorded, and which of the two programs the verdict is on."""


def judge(section: Section) -> Verdict:
    """The verdict on one device of one trace: on the plain program where its step is measured or told."""
    section = section.spoken
    device, trust = section.device, section.trace.trust
    if device is None or trust.verdict == "unusable":
        reasons = [check.detail for check in trust.checks if check.status == "fail"]
        reasons += [host_sentence(section.trace.host)] if section.trace.host is not None else []
        return Verdict("unusable", f"{section.title}: {' '.join(reasons) or 'nothing ran on a GPU.'}")
    lost = max(_lost_ns(device), max((finding.spoken_bound_ns for finding in section.findings), default=0))
    part = lost / section.judged_ns if section.judged_ns > 0 else 0.0
    level: Level = "good" if part < GOOD_BELOW else "fair" if part < POOR_FROM else "poor"
    gone = trust.lost & CAUSES
    if level == "good" and (gone or max(_supply_ns(device), _unexplained_ns(device)) >= GOOD_BELOW * device.span_ns):
        level = "fair"
    # What matters comes first.
    sentences = [sentence for _, sentence in sorted(_losses(section, device), key=lambda one: -one[0])]
    if level == "good":
        sentences.append(f"That is good: {_rest(part)}.")
    sentences += _fix(section, device)
    if gone:
        sentences.append(_untold(gone))
    if trust.verdict == "degraded":
        sentences.append(_doubt(section))
    return Verdict(level, f"{section.title}: {' '.join(sentences)}", plain_sentence(device))


def _rest(part: float) -> str:
    if part == 0:
        return "there is nothing left to save"
    return f"less than {100 * part + 0.05:.1f}% of the time could be saved"


def _supply_ns(device: Device) -> int:
    return device.exposed_copy_by_cause.get(CopyCause.NO_COMPUTE, 0)


def _unexplained_ns(device: Device) -> int:
    """Idle time of which nobody can say whether it could be saved."""
    return device.idle_by_cause.get(IdleCause.UNKNOWN, 0) + missing_ns(device)


def _lost_ns(device: Device) -> int:
    """Time that better overlap, a busier GPU or hidden communication could save, all of it taken together."""
    idle = sum(device.idle_by_cause.get(cause.id, 0) for cause in IDLE.values() if cause.fixing)
    return _unoverlapped_ns(device) + device.buckets.exposed_comm_ns + idle


def _unoverlapped_ns(device: Device) -> int:
    """What the engines would take less if all that can run side by side did; the lead-in cannot be judged."""
    overlap = device.overlap
    return max(0, overlap.busy_ns - overlap.ideal_ns - device.exposed_copy_by_cause.get(CopyCause.LEAD_IN, 0))


def _overlap(section: Section, device: Device) -> str:
    overlap, unit = device.overlap, section.unit
    if overlap.copy_ns == 0 and "copies" in section.trace.trust.lost:
        return "No copy between host and device is left in the recording."
    if overlap.copy_ns == 0:
        return "Nothing is copied between host and device."
    if not copies_matter(device):
        return f"Copies hardly matter: they take {unit.text(overlap.copy_ns)} of {unit.text(device.span_ns)}."
    copies = f"{unit.of(device.buckets.exposed_copy_ns, overlap.copy_ns)} of copies are exposed."
    if overlap.efficiency_pct is None:
        return f"Only copies in one direction ran, and nothing that could hide them; {copies}"
    done = f"{percent(overlap.efficiency_pct)} of the overlap that was possible happened; {copies}"
    saving = _unoverlapped_ns(device)
    if saving < WORTH_SAYING * section.judged_ns:
        return done
    return f"{done} Full overlap would save at most {unit.text(saving)} ({share(saving, section.judged_ns)})."


def _losses(section: Section, device: Device) -> list[tuple[int, str]]:
    """What is worth saying of copies, communication and idle time, each with the time that it takes."""
    buckets, unit = device.buckets, section.unit
    copies, supply = _overlap(section, device), _supply_ns(device)
    if supply >= WORTH_SAYING * device.span_ns:
        engines = device.engines
        both = " or both ways at once" if min(engines.h2d_ns, engines.d2h_ns) > device.overlap.h2d_d2h_ns else ""
        copies += f" Copies outlast compute: {unit.text(supply)} cannot be hidden under it, only copied less{both}."
    found = [(buckets.exposed_copy_ns, copies)]
    if buckets.exposed_comm_ns >= WORTH_SAYING * device.span_ns:
        said = f"Communication is exposed for {unit.of(buckets.exposed_comm_ns, device.engines.comm_ns)}."
        found.append((buckets.exposed_comm_ns, said))
    missing = missing_ns(device)
    idle = buckets.idle_ns - missing
    if idle >= GOOD_BELOW * device.span_ns:
        known = ((ns, cause) for cause, ns in device.idle_by_cause.items() if cause != IdleCause.MISSING_OPS)
        most, cause = max(known, default=(0, "unknown"), key=lambda item: item[0])
        why = f", mostly {cause}" if most > idle // 2 else ""
        found.append((idle, f"The GPU is idle for {unit.text(idle)} ({share(idle, device.span_ns)}{why})."))
    if missing >= WORTH_SAYING * device.span_ns:
        part = f"{unit.text(missing)} ({share(missing, device.span_ns)})"
        said = f"Ops are missing for {part}: the host waited for the GPU, and the trace has no op there."
        found.append((missing, said))
    return found


def _fix(section: Section, device: Device) -> list[str]:
    """What to fix first: the costliest finding; without one, the largest cause that has a remedy."""
    unit, judged = section.unit, section.judged_ns
    costly = [finding for finding in section.findings if finding.spoken_bound_ns > 0]
    if costly:
        first = min(costly, key=costliest_first)
        if first.cost_ns < HARDLY * judged:
            return [f"By replay, fixing {first.rule} would by itself save nothing."]
        about = "about" if first.cost_from == "replay" else "at most"
        return [f"Fixing {first.rule} would save {about} {unit.text(first.cost_ns)} ({share(first.cost_ns, judged)})."]
    copy_ns, fix_copy = _largest_remedy(device.exposed_copy_by_cause, EXPOSED_COPY)
    idle_ns, fix_idle = _largest_remedy(device.idle_by_cause, IDLE)
    if max(copy_ns, idle_ns) < max(1, WORTH_SAYING * judged):
        return []
    if copy_ns > idle_ns:
        return [f"{fix_copy} would hide at most {unit.text(copy_ns)} of copies under compute."]
    return [f"{fix_idle} would save at most {unit.text(idle_ns)} ({share(idle_ns, judged)})."]


def _largest_remedy(by_cause: Mapping[str, int], causes: Mapping[str, Cause]) -> tuple[int, str]:
    """How long the longest cause that has a remedy takes, and that remedy as the subject of a sentence."""
    return max((by_cause.get(cause.id, 0), cause.fixing) for cause in causes.values() if cause.fixing)


def _untold(gone: frozenset[Part]) -> str:
    """What the other sentences do not say, since it cannot be known."""
    what = "Parts of the recording" if gone == CAUSES else f"Some {part_words(gone)}"
    untold = sum(bool(rule.rests_on & gone) for rule in RULES.values())
    which = "no rule can" if untold == len(RULES) else f"{untold} of {len(RULES)} rules cannot"
    return f"{what} are lost or wrong, so {which} tell whether there is more to find."


def _doubt(section: Section) -> str:
    checks = section.trace.trust.checks
    failed = [check.id for check in checks if check.status == "fail"]
    warned = [check.id for check in checks if check.status == "warn"]
    parts = []
    if failed:
        parts.append(f"{plural(len(failed), 'check')} failed ({', '.join(failed)})")
    if warned:
        parts.append(f"{plural(len(warned), 'check')} warned ({', '.join(warned)})")
    return f"Trust is degraded: {listed(parts)}."


# -- the program while nothing is recorded ---------------------------------------------------------

_HOW = {"measured": "timed around the recording", "told": "as given", "estimated": "estimated from the recording"}

_HARDLY = 0.02


def plain_sentence(device: Device) -> str:
    """What a plain step takes, how that is known, and what the figures are of; empty where nothing is known."""
    plain = device.plain
    if plain is None:
        return ""
    of = plain_unit(plain)
    recorded = f"{of.text(plain.recorded_step_ns)} in the recording"
    if plain.origin == "estimated":
        if plain.step_ns >= (1 - _HARDLY) * plain.recorded_step_ns:
            return f"By estimate, a step takes as long while nothing is recorded: {_interval(plain, of)} ({recorded})."
        return (
            f"Recording slows the host. While nothing is recorded, a step takes {_interval(plain, of)} by estimate "
            f"({recorded}). Verdict and findings are of the recording: time plain steps with `overlapscope run`, or "
            "pass the length as --plain-step."
        )
    between = "" if plain.low_ns == plain.high_ns else f", {_interval(plain, of)}"
    how = f"{_HOW[plain.origin]}{between}"
    said = f"A step takes {of.text(plain.step_ns)} while nothing is recorded ({how}), {recorded}."
    if plain.program is None:
        return f"{said} The recording cannot be replayed, so verdict and findings are of the recording."
    return f"{said} Verdict, findings and savings are of the plain program."


def _interval(plain: Plain, of: Unit) -> str:
    return f"{of.number(plain.low_ns)} to {of.text(plain.high_ns)}"


# -- a program without GPU activity ---------------------------------------------------------------

_LOADER = {
    "none": "",
    "own-thread": " The thread of the steps makes the batches itself, so loading never runs beside its ops: use "
    "num_workers.",
    "workers": " Workers make the batches; loading is what the thread of the steps still waits for them.",
}


def host_sentence(host: HostUse) -> str:
    """`A step takes 12.3 ms on the host: 40.0% loading data, 55.0% in ops, 5.0% in neither, such as Python.`"""
    total = sum(step.span_ns for step in host.steps)
    spans = [step.span_ns for step in host.steps]
    unit = unit_for(max(spans))
    what = "A step takes" if host.by_steps else "The recording, in which no step is marked, takes"
    parts = [(sum(getattr(step, f"{part}_ns") for step in host.steps), said) for part, said in _PARTS]
    said = ", ".join(f"{share(ns, total)} {word}" for ns, word in parts)
    return f"{what} {unit.text(median_low(spans))} on the host: {said}.{_LOADER[host.loader]}"


_PARTS = (("loading", "loading data"), ("ops", "in ops"), ("rest", "in neither, such as Python"))
