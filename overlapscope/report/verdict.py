"""The verdict: the answer in a few sentences, before any table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from overlapscope.analysis import spread
from overlapscope.analysis.results import Device, HostUse, TraceResult, copies_matter, missing_ns
from overlapscope.base.words import between, clean, duration, listed, part_of, percent, plural, share
from overlapscope.catalog.causes import EXPOSED_COPY, IDLE, Cause, CopyCause, IdleCause
from overlapscope.report.page import DeviceReport
from overlapscope.report.tables import HARDLY
from overlapscope.rules import RULES
from overlapscope.rules.finding import costliest_first
from overlapscope.trace.lost import CAUSES, Part, part_words
from overlapscope.trace.model import OwnPeriod

Level = Literal["good", "fair", "poor", "unusable"]

GOOD_BELOW = 0.05
"""Lost time, as a share of the judged time, below which all is well."""
POOR_FROM = 0.15
WORTH_SAYING = 0.01
"""The floor of the rules: what costs less is not worth a sentence."""
_NONE = "no overlap: "
_CLAUSES = 2
"""Losses that the verdict names; the tables have all."""


class Verdict(Struct, frozen=True):
    """Judgement on one device, as a level and the sentences that give its reasons."""

    level: Level
    subject: str
    """The trace and device, as `Section.title` names them."""
    lead: str
    """The answer, usually one sentence; a page shows it large."""
    rest: str = ""
    """Sentences after the lead, such as what to fix first."""
    plain: str = ""
    """What a step takes while nothing is recorded, and which of the two programs the verdict is on."""
    doubt: str = ""
    """Why figures may be wrong, or findings missing."""
    steps: str = ""
    """How much steps differ, what makes long ones long, and how steps were found if nothing marks them."""

    @property
    def answer(self) -> str:
        """The lead and the rest."""
        return f"{self.lead} {self.rest}".rstrip()

    @property
    def text(self) -> str:
        """The answer with its subject before it."""
        return f"{self.subject}: {self.answer}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Paragraphs below the text."""
        return tuple(filter(None, (self.plain, self.steps, self.doubt)))


def judge(section: DeviceReport) -> Verdict:
    """The verdict on one device of one trace: on the plain program where its step is measured or told."""
    section = section.spoken
    device, trust = section.device, section.trace.trust
    if device is None or trust.verdict == "unusable":
        reasons = [check.detail for check in trust.checks if check.status == "fail"]
        if section.trace.host is not None:
            return _of_host(section, section.trace.host, " ".join(reasons))
        lead, *rest = reasons or ["Nothing ran on a GPU."]
        return Verdict("unusable", section.title, lead, " ".join(rest))
    lost = max(_lost_ns(device), max((finding.spoken_bound_ns for finding in section.findings), default=0))
    part = lost / section.judged_ns if section.judged_ns > 0 else 0.0
    level = _level(part)
    gone = trust.lost & CAUSES
    if level == "good" and (gone or max(_supply_ns(device), _unexplained_ns(device)) >= GOOD_BELOW * device.span_ns):
        level = "fair"
    # What matters comes first, and two of it are a sentence.
    losses = sorted(_losses(device, lost="copies" in trust.lost), key=lambda loss: -loss[0])
    clauses = [clause for _, clause in losses[:_CLAUSES]]
    fix = _fix(section, device)
    if level == "good":
        little = "little to gain" if fix or clauses[0].startswith(_NONE) else "no overlap problems found"
        clauses = [f"{little}: {clauses[0].removeprefix(_NONE)}"]
        fix = fix or (f"Less than {100 * part + 0.05:.1f}% of the time could be saved." if part else "")
    lead = "; ".join(clauses)
    doubt = " ".join(filter(None, (_doubt(section), _untold(gone))))
    steps = steps_sentence(spread.of_device(device), section.trace) if section.page.scope == "window" else ""
    return Verdict(level, section.title, f"{lead[:1].upper()}{lead[1:]}.", fix, plain_sentence(device), doubt, steps)


def _level(part: float) -> Level:
    """By the share of the time that is lost."""
    return "good" if part < GOOD_BELOW else "fair" if part < POOR_FROM else "poor"


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


def _losses(device: Device, *, lost: bool) -> list[tuple[int, str]]:
    """What there is to say of copies, communication and idle time as clauses, each with the time that it takes: of what
    takes next to none, only where there is nothing else. `lost` is whether copies may be."""
    buckets, span, missing = device.buckets, device.span_ns, missing_ns(device)
    idle = buckets.idle_ns - missing
    found = []
    if copies_matter(device):
        found.append((buckets.exposed_copy_ns, _copies(device)))
    if buckets.exposed_comm_ns >= max(1, WORTH_SAYING * span):
        said = f"{part_of(buckets.exposed_comm_ns, device.engines.comm_ns)} of communication is exposed"
        found.append((buckets.exposed_comm_ns, said))
    if idle >= max(1, GOOD_BELOW * span):
        known = ((ns, cause) for cause, ns in device.idle_by_cause.items() if cause != IdleCause.MISSING_OPS)
        most, cause = max(known, default=(0, "unknown"), key=lambda item: item[0])
        why = f", mostly {cause}" if most > idle // 2 else ""
        found.append((idle, f"the GPU is idle for {duration(idle)} ({share(idle, span)}{why})"))
    if missing >= max(1, WORTH_SAYING * span):
        said = f"GPU ops are missing from the recording for {duration(missing)} ({share(missing, span)})"
        found.append((missing, said))
    if not device.overlap.copy_ns and lost:
        return found or [(0, "no copy between host and device is left in the recording")]
    return found or [(0, _copies(device))]


def _copies(device: Device) -> str:
    """How far copies are hidden."""
    overlap, exposed = device.overlap, device.buckets.exposed_copy_ns
    if not overlap.copy_ns:
        return "nothing is copied between host and device"
    if not copies_matter(device):
        return f"copies take only {duration(overlap.copy_ns)} of {duration(device.span_ns)}"
    if not exposed:
        return f"all {duration(overlap.copy_ns)} of copies are hidden under compute"
    said = f"{part_of(exposed, overlap.copy_ns)} of copies are exposed"
    if overlap.efficiency_pct:
        said += f" (overlap efficiency {percent(overlap.efficiency_pct)})"
    elif exposed == overlap.copy_ns:
        said = f"{_NONE}{said}"
    parts = (
        (_supply_ns(device), "cannot be hidden because copies outlast compute"),
        (device.exposed_copy_by_cause.get(CopyCause.LEAD_IN, 0), "ran in the lead-in, which is not judged"),
    )
    clauses = [f"{duration(ns)} {why}" for ns, why in parts if ns >= max(1, WORTH_SAYING * device.span_ns)]
    return f"{said}, of which {' and '.join(clauses)}" if clauses else said


def _fix(section: DeviceReport, device: Device) -> str:
    """What to fix first, in a sentence: the costliest finding; without one, the largest cause that has a remedy."""
    judged = section.judged_ns
    costly = [finding for finding in section.findings if finding.spoken_bound_ns > 0]
    if costly:
        first = min(costly, key=costliest_first)
        if first.cost_ns < HARDLY * judged:
            return f"By replay, fixing {first.rule} alone would save nothing."
        about = "about" if first.cost_from == "replay" else "at most"
        return f"Fixing {first.rule} would save {about} {duration(first.cost_ns)} ({share(first.cost_ns, judged)})."
    recorder = section.trace.environment.recorder
    copy_ns, fix_copy = _largest_remedy(device.exposed_copy_by_cause, EXPOSED_COPY, recorder)
    idle_ns, fix_idle = _largest_remedy(device.idle_by_cause, IDLE, recorder)
    if max(copy_ns, idle_ns) < max(1, WORTH_SAYING * judged):
        return ""
    if copy_ns > idle_ns:
        return f"{fix_copy} would hide at most {duration(copy_ns)} of copies under compute."
    return f"{fix_idle} would save at most {duration(idle_ns)} ({share(idle_ns, judged)})."


def _largest_remedy(by_cause: Mapping[str, int], causes: Mapping[str, Cause], recorder: str) -> tuple[int, str]:
    """How long the longest cause that has a remedy takes, and that remedy as the subject of a sentence."""
    return max((by_cause.get(cause.id, 0), cause.helps(recorder)[1]) for cause in causes.values() if cause.fixing)


def _untold(gone: frozenset[Part]) -> str:
    """What the findings do not say, since it cannot be known."""
    if not gone:
        return ""
    what = "Parts of the recording" if gone == CAUSES else f"Some {part_words(gone)}"
    untold = sum(bool(rule.rests_on & gone) for rule in RULES.values())
    which = "no rule can" if untold == len(RULES) else f"{untold} of {len(RULES)} rules cannot"
    return f"{what} are lost or wrong, so {which} tell whether there is more to find."


def _doubt(section: DeviceReport) -> str:
    """`Trust is degraded: clock-skew failed; launches and steps warned (overlapscope explain clock-skew).`"""
    trust = section.trace.trust
    if trust.verdict != "degraded":
        return ""
    by_status = {word: [check.id for check in trust.checks if check.status == status] for status, word in _STATUS}
    told = "; ".join(f"{listed(ids)} {word}" for word, ids in by_status.items() if ids)
    worst = next(id for ids in by_status.values() for id in ids)
    return f"Trust is degraded: {told} (overlapscope explain {worst})."


_STATUS = (("fail", "failed"), ("warn", "warned"))


# -- the program while nothing is recorded ---------------------------------------------------------

_HOW = {"measured": "measured", "told": "as given", "estimated": "estimated"}

_HARDLY = 0.02


def plain_sentence(device: Device) -> str:
    """What a plain step takes, how that is known, and what the figures are of; empty where nothing is known."""
    plain = device.plain
    if plain is None:
        return ""
    recorded = f"in the recording it takes {duration(plain.recorded_step_ns)}"
    interval = between(plain.low_ns, plain.high_ns)
    what = "a step takes" if not all(step.partial for step in device.steps) else "all that was recorded takes"
    if plain.origin == "estimated":
        said = f"Without the profiler {what} {interval} ({_HOW[plain.origin]}); {recorded}."
        if plain.step_ns >= (1 - _HARDLY) * plain.recorded_step_ns:
            return said
        return f"{said} All figures are of the recording; pass the real step as --plain-step."
    spread = "" if plain.low_ns == plain.high_ns else f", {interval}"
    said = f"Without the profiler {what} {duration(plain.step_ns)} ({_HOW[plain.origin]}{spread}); {recorded}."
    if plain.program is None:
        return f"{said} The recording cannot be replayed, so all figures are of the recording."
    return f"{said} Verdict, findings and savings are of the program without the profiler."


# -- a program without GPU activity ---------------------------------------------------------------

_LOADER = {
    "none": "",
    "own-thread": "The thread of the steps makes the batches itself, so loading never runs beside its ops: use "
    "num_workers.",
    "workers": "Workers make the batches; loading is what the thread of the steps still waits for them.",
}


def _of_host(section: DeviceReport, host: HostUse, reasons: str) -> Verdict:
    """The verdict on a program without a GPU, which can save the time of loading."""
    part = sum(step.loading_ns for step in host.steps) / max(sum(step.span_ns for step in host.steps), 1)
    steps = steps_sentence(spread.of_host(host) if host.by_steps else None, section.trace)
    return Verdict(_level(part), section.title, host_sentence(host), _LOADER[host.loader], doubt=reasons, steps=steps)


def host_sentence(host: HostUse) -> str:
    """`A step takes 12.3 ms on the host: 40.0% loading data, 55.0% in ops, 5.0% elsewhere, such as in Python.`"""
    total = sum(step.span_ns for step in host.steps)
    what = "A step takes" if host.by_steps else "The recording, in which no step is marked, takes"
    average = " on average" if len(host.steps) > 1 else ""
    parts = [(sum(getattr(step, f"{part}_ns") for step in host.steps), said) for part, said in _PARTS]
    said = ", ".join(f"{share(ns, total)} {word}" for ns, word in parts)
    return f"{what} {duration(total // len(host.steps))} on the host{average}: {said}."


_PARTS = (("loading", "loading data"), ("ops", "in ops"), ("rest", "elsewhere, such as in Python"))


# -- steps ----------------------------------------------------------------------------------------

_APART = 0.02
"""Share of the median by which an average differs enough to be shown beside it."""


def steps_sentence(found: spread.Spread | None, trace: TraceResult) -> str:
    """`9 steps take 23 to 761 ms: 27.5 ms in the median, 225 ms on average. 3 of them take over 1.5 times the median,
    mostly because of idle time (data-loading).`"""
    said = []
    if found is not None:
        even = duration(found.shortest_ns) == duration(found.longest_ns)
        length = f"{duration(found.longest_ns)} each" if even else between(found.shortest_ns, found.longest_ns)
        # The average says more only where it is another figure.
        two = abs(found.mean_ns - found.median_ns) > _APART * found.median_ns
        middle = f"{duration(found.median_ns)} in the median, {duration(found.mean_ns)} on average"
        said.append(f"{plural(found.count, 'step')} take {length}{f': {middle}' if two else ''}.")
        # Of two steps, neither is the usual one.
        if found.long and found.count > 2:
            few = "1 of them takes" if found.long == 1 else f"{found.long:,} of them take"
            said.append(
                f"{few} over {spread.LONG} times the median, mostly because of {clean(found.cause, 60)} "
                f"({duration(found.cause_ns)} more)."
            )
    if isinstance(trace.step_source, str):
        said.append(f"Steps: {clean(trace.step_source)}.")
    if isinstance(trace.period, OwnPeriod):
        said.append(f"Steps were found by what repeats: {trace.period}.")
    return " ".join(said)
