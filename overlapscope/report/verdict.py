"""The verdict: the answer in a few sentences, before any table."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.results import Device, HostUse, Plain, TraceResult
from overlapscope.base.words import between, capital, clean, duration, listed, noun_for, saved_between, share
from overlapscope.catalog.causes import IdleCause
from overlapscope.report import sentences
from overlapscope.report.page import DeviceReport
from overlapscope.report.sentences import WORTH_SAYING, is_last_judged, overlap_sentence, phase_words, steps_sentence
from overlapscope.rules import RULES
from overlapscope.rules.finding import NEGLIGIBLE_SHARE, Finding
from overlapscope.trace.lost import PARTS_FOR_CAUSES, PARTS_FOR_FIGURES, Part, part_words
from overlapscope.trace.model import OwnPeriod

Level = Literal["good", "fair", "poor", "unknown", "recorded", "unusable"]
"""`unknown` if the lost time may reach from good to poor, as the profiler's part of it or waits are unknown; `recorded`
if the figures are of a recording although the program without the profiler is known, and judged."""

GOOD_BELOW = 0.05
"""Lost time, as a share of the judged time, below which the level is good."""
POOR_FROM = 0.15
_MAX_CLAUSES = 2
"""Number of losses that the verdict names; the tables have all."""
_MAX_NAMED_KERNELS = 3
"""Number of kernels of unclear kind that the verdict names."""


class Verdict(Struct, frozen=True):
    """Judgement on one device, as a level and the sentences that give its reasons."""

    level: Level
    subject: str
    """The trace and device, as `Section.title` names them."""
    lead: str
    """The answer in a sentence; a page shows it large."""
    why: str = ""
    """Costliest loss, with its place in the code."""
    remedy: str = ""
    """Remedy, and the saving that it brings."""
    of_finding: bool = False
    """True if `why` and `remedy` repeat a finding."""
    plain: str = ""
    """Step time without the profiler, and which of the two programs the figures are of."""
    doubt: str = ""
    """Reasons why figures may be wrong, or findings missing."""
    steps: str = ""
    """Differences between steps, the cause of long steps, and how steps were found if nothing marks them."""
    overlap_cost: str = ""
    """Time by which overlap certainly lengthens kernels, if it is worth saying."""
    lost: float | None = None
    """Part of the time that is lost; None if that is unknown."""
    may_lose_less: bool = False
    """True if the profiler may be to blame for much of it."""

    @property
    def answer(self) -> str:
        """The answer, why, and what to do."""
        return " ".join(filter(None, (self.lead, self.why, self.remedy)))

    @property
    def text(self) -> str:
        """The answer with its subject before it, a line for each part."""
        return "\n".join(filter(None, (f"{self.subject}: {self.lead}", self.why, self.remedy)))

    @property
    def notes(self) -> tuple[str, ...]:
        """Paragraphs after the answer."""
        return tuple(filter(None, (" ".join(filter(None, (self.plain, self.steps))), self.overlap_cost, self.doubt)))


def judge(section: DeviceReport) -> Verdict:
    """Return the verdict on a device, about the figures that people read (`page.DeviceReport.device`)."""
    device, trust = section.device, section.trace.trust
    if device is None or trust.verdict == "unusable":
        reasons = [check.detail for check in trust.checks if check.status == "fail"]
        if section.trace.host is not None:
            return _of_host(section, section.trace.host, " ".join(reasons))
        lead, *rest = reasons or ["Nothing ran on a GPU."]
        return Verdict("unusable", section.title, lead, " ".join(rest))
    first = next((finding for finding in section.findings if finding.cost_ns > 0), None)
    known_ns = max((section.per_step(each.cost_ns) for each in section.findings), default=0)
    unmeasured_ns = sentences.unmeasured_ns(device)
    lost_ns = max(sentences.lost_ns(device), known_ns) + unmeasured_ns
    part = lost_ns / (device.span_ns + unmeasured_ns) if device.span_ns > 0 else 0.0
    least_level = _level(_least_part(device, lost_ns))
    lost_parts = trust.lost & PARTS_FOR_CAUSES
    level = "recorded" if section.page.recorded else _known_level(section, device, _level(part), least_level, known_ns)
    reach = "up to " if least_level != _level(part) else ""
    # The largest losses come first.
    losses = sentences.of_device(device, lost="copies" in trust.lost, reach=reach)
    named = sorted(losses, key=lambda loss: -loss.ns)[:_MAX_CLAUSES]
    figures = f"{_frame(section, device)} {' and '.join(loss.clause for loss in named)}"
    if reach and any(loss.is_idle for loss in named):
        of = "that" if named[-1].is_idle else "the idle time"
        figures += f"; how much of {of} is the profiler's is not known"
    if phase_words(device) and first is not None and first.where is not None and first.where.line:
        waits_ns = section.per_step(first.idle_ns)
        if waits_ns >= max(1, WORTH_SAYING * device.span_ns):
            line = clean(first.where.line, 120)
            figures += f"; for {duration(waits_ns)} ({share(waits_ns, device.span_ns)}) it waits for the host at {line}"
    nothing = level == "good" and named[0].ns < max(1, WORTH_SAYING * device.span_ns)
    name = "No overlap problems found" if nothing and not first else "Little to gain" if level == "good" else ""
    if named[0].ns >= POOR_FROM * device.span_ns:
        name = named[0].name
    if _is_unclear(device):
        name = "The marks of these steps don't tell prefill from decode, so an average may mix both, and is not judged"
    lead = f"{name}: {figures}." if name else f"{capital(figures)}."
    doubt = " ".join(filter(None, (_doubt(section), _unjudged(lost_parts), _unclear(device))))
    judged = [device.steps[number] for number in judged_steps(device)]
    steps = steps_sentence(judged, section.trace, device) if section.page.scope == "window" else ""
    cost = overlap_sentence(section)
    why, remedy, of_finding = ("", "", False) if level == "recorded" else _why_and_remedy(section, device, first)
    plain = plain_sentence(section)
    return Verdict(level, section.title, lead, why, remedy, of_finding, plain, doubt, steps, cost, part, bool(reach))


def _known_level(section: DeviceReport, device: Device, level: Level, least_level: Level, known_ns: int) -> Level:
    """Return the level of a share of lost time as far as it is known.

    Args:
        section: Report on the device.
        device: Its figures in the frame.
        level: Level of the lost time in the frame.
        least_level: Its level if all that may be the profiler's is.
        known_ns: Cost of the costliest finding in an average step.
    """
    lost_parts = section.trace.trust.lost & PARTS_FOR_CAUSES
    if device.missing_ns >= GOOD_BELOW * device.span_ns or lost_parts & PARTS_FOR_FIGURES:
        # What is known to be lost stands; anything else may have been work.
        return "poor" if known_ns >= POOR_FROM * device.span_ns else "unknown"
    if _is_unclear(device) or _too_short(section) or not (device.engines.sm_ns or device.overlap.copy_ns):
        return "unknown"
    if level == "poor":
        return "unknown" if least_level == "good" else "poor"
    if is_last_judged(device):
        return "unknown"
    if level == "good" and (
        lost_parts or device.span_ns - device.buckets.compute_ns + _unclear_ns(device) >= GOOD_BELOW * device.span_ns
    ):
        return "fair"
    if level == "good" and _unjudged_ns(section.trace, device) >= MAX_UNJUDGED_RATIO * device.span_ns * max(
        1, section.steps
    ):
        return "unknown"
    return level


def _is_unclear(device: Device) -> bool:
    """Return whether the judged steps of a server may be of several phases, of which an average tells nothing."""
    return device.per_step is not None and device.per_step.phase == "unclear"


def _too_short(section: DeviceReport) -> bool:
    """Return whether the step that the user passed is shorter than the GPU's work in it."""
    plain = section.plain
    return plain is not None and section.is_plain and plain.is_impossible(plain.recorded_busy_ns)


MAX_UNJUDGED_RATIO = 1.0
"""Time outside the steps, as a share of theirs, from which on they stand for too little to be good."""


def _unjudged_ns(trace: TraceResult, device: Device) -> int:
    """Return the time that is not judged; where steps are marked, in the device's recording after the lead-in."""
    if device.outside is None or device.per_step is None or not device.steps:
        return sum(sentences.unjudged_ns(device))
    # The last step ends with the recording.
    last_ns = max(0, device.steps[-1].span_ns - device.per_step.span_ns)
    around_ns = sum(sentences.unjudged_ns(device)) if isinstance(trace.period, OwnPeriod) else 0
    return device.outside.before_ns + device.outside.after_ns + last_ns + around_ns


def _least_part(device: Device, lost_ns: int) -> float:
    """Return the least share of lost time that is possible without the profiler, if the figures are of a recording."""
    alone = device.alone
    if alone is None or not alone.low_ns:
        return lost_ns / device.span_ns if device.span_ns > 0 else 0.0
    return max(0, lost_ns - (device.span_ns - alone.low_ns)) / alone.low_ns


def _frame(section: DeviceReport, device: Device) -> str:
    """Return what the figures describe: `in each step of 16.8 ms`."""
    length = duration(device.span_ns)
    steps = phase_words(device)
    if sentences.unmeasured_ns(device) >= max(1, sentences.WORTH_SAYING * device.span_ns):
        only = phase_words(device, "step") or "step"
        return f"in the only {only}, of which the {device.gpu}'s part takes {length},"
    if steps and section.steps == 1:
        return f"a {phase_words(device, 'step')} takes {length};"
    if steps:
        return f"{steps} take {length};"
    if section.steps:
        return f"in each step of {length},"
    if section.page.scope != "window":
        return f"in the {length} of {clean(section.page.scope, 60)},"
    lead_in_ns, *around_ns = sentences.unjudged_ns(device)
    if lead_in_ns:
        return f"in the {length} after the lead-in,"
    if any(around_ns):
        return f"from the {device.gpu}'s first op to its last, {length},"
    return f"in all that was recorded, {length},"


def _level(part: float) -> Level:
    """Return the level for a share of lost time."""
    return "good" if part < GOOD_BELOW else "fair" if part < POOR_FROM else "poor"


def _why_and_remedy(section: DeviceReport, device: Device, first: Finding | None) -> tuple[str, str, bool]:
    """Return what costs most and where, what to do about it, and whether a finding says so.

    Both are about the first finding, unless a cause without a finding costs more than twice as much. Causes that are no
    fault of the program come first if they cost more.
    """
    ns, subject, cause = sentences.main_cause(device)
    unmeasured_ns = sentences.unmeasured_ns(device)
    times = 1 if cause in sentences.OF_HOST else 2
    if first is not None and times * section.per_step(first.cost_ns) >= max(ns, unmeasured_ns):
        where = first.where
        place = where.line or where.op or where.call if where is not None else None
        fixed = to_fix(section) or first
        advice = fixed.advice.partition("\n")[0].rstrip()
        saving = f" It {cost(section, fixed)}." if fixed.saving else ""
        return f"Why: {first.title}.{_costliest(place)}", f"Next: {advice}{saving}", True
    if unmeasured_ns > ns:
        return (
            f"Why: only one step was recorded, and the host prepared it before the {device.gpu}'s first op.",
            "Next: record several steps, with lines: `overlapscope run --stacks`.",
            False,
        )
    if ns < max(1, WORTH_SAYING * device.span_ns):
        return "", "", False
    cases = (case for case in device.evidence if (case.subject, case.cause) == (subject, cause))
    case = max(cases, key=lambda case: case.time_ns, default=None)
    place = None if case is None else case.where or case.op or case.call
    words = cause.words_for(device.gpu)
    remedy = words.helps(section.trace.environment.recorder)[0]
    a_step = " a step" if section.steps else ""
    why = f"Why: {words.meaning.rstrip('.')}: {duration(ns)}{a_step} ({cause}).{_costliest(place)}"
    return why, f"Next: {remedy}" if remedy else "", False


def to_fix(section: DeviceReport) -> Finding | None:
    """Return the first finding, or the first of those whose fix may save something by itself; None without findings."""
    costly = (each for each in section.findings if each.cost_ns and not _saves_nothing(section, each))
    return next(costly, next(iter(section.findings), None))


def _costliest(place: str | None) -> str:
    return f" Costliest place: {clean(place, 120)}." if place else ""


def cost(section: DeviceReport, finding: Finding) -> str:
    """Return the saving of a finding's fix as an interval, or that it is unknown; empty if the finding costs nothing.

    Examples: `saves about 6.82 us a step (0.4%), at most 18.9 us`, `costs 1.20 ms a step (3.1%)`.
    """
    if section.device is None or not finding.cost_ns:
        return ""
    of_ns = section.device.span_ns
    a_step = "" if not section.steps else " a recorded step" if section.may_be_slowed else " a step"

    def text(ns: int) -> str:
        each_ns = section.per_step(ns)
        return f"{duration(each_ns)}{a_step} ({share(each_ns, of_ns)})"

    saving = finding.saving
    if saving is None:
        return f"costs {text(finding.cost_ns)}"
    ns, low_ns, high_ns = map(section.per_step, (saving.saved_ns, saving.saved_low_ns, saving.saved_high_ns))
    # A loss that would show as 0.0% is none.
    low_ns = 0 if -NEGLIGIBLE_SHARE * of_ns < low_ns < 0 else low_ns
    interval = saved_between(low_ns, ns, high_ns)
    between_ends = f", {interval}" if interval else ""
    if _saves_nothing(section, finding):
        at_most = between_ends.removesuffix(", or nothing")
        return f"saves nothing by itself{at_most if high_ns >= NEGLIGIBLE_SHARE * of_ns else ''}"
    return f"saves about {text(saving.saved_ns)}{between_ends}"


def _saves_nothing(section: DeviceReport, finding: Finding) -> bool:
    """Return whether a replay predicts that the fix saves nothing by itself."""
    span_ns = 0 if section.device is None else section.device.span_ns
    return finding.saving is not None and section.per_step(finding.saving.saved_ns) < NEGLIGIBLE_SHARE * span_ns


def _unjudged(lost: frozenset[Part]) -> str:
    """Return what findings cannot cover because parts of the recording are lost."""
    if not lost:
        return ""
    what = "Parts of the recording" if lost == PARTS_FOR_CAUSES else f"Some {part_words(lost)}"
    silent = sum(bool(rule.rests_on & lost) for rule in RULES.values())
    which = "no rule can" if silent == len(RULES) else f"{silent} of {len(RULES)} rules cannot"
    return f"{what} are lost or wrong, so {which} tell whether there is more to find."


def _unclear_ns(device: Device) -> int:
    return sum(group.time_ns for group in device.kernels if group.unclear)


def _unclear(device: Device) -> str:
    """Return which kernels may communicate, as far as their names tell, if they take a time that matters."""
    time_ns = _unclear_ns(device)
    if time_ns < max(1, WORTH_SAYING * device.span_ns):
        return ""
    unclear = dict.fromkeys(group.kernel for group in device.kernels if group.unclear)
    names = listed((clean(name, 60) for name in unclear), _MAX_NAMED_KERNELS)
    return (
        f"Kernels that may communicate count as compute: {duration(time_ns)} ({share(time_ns, device.span_ns)}) in "
        f"{names}. If they do, name them in `communication` in the configuration."
    )


def _doubt(section: DeviceReport) -> str:
    """Return the checks that failed or warned in a sentence.

    Example: `Some figures may be wrong: clock-skew failed; launches and steps warned (overlapscope explain clock-skew
    says what to do).`
    """
    trust = section.trace.trust
    if trust.verdict != "degraded":
        return ""
    words = (("fail", "failed"), ("warn", "warned"))
    by_status = {word: [check.id for check in trust.checks if check.status == status] for status, word in words}
    failures = "; ".join(f"{listed(ids)} {word}" for word, ids in by_status.items() if ids)
    worst = next(id for ids in by_status.values() for id in ids)
    return f"Some figures may be wrong: {failures} (overlapscope explain {worst} says what to do)."


# -- The program without the profiler --------------------------------------------------------------


def plain_sentence(section: DeviceReport) -> str:
    """Return how long a step takes without the profiler, as far as that is known."""
    plain, what = section.plain, "a step" if section.steps else "all that was recorded"
    if section.page.scope != "window":
        return ""
    if plain is None:
        return _interval_sentence(section, what)
    longer = _longer_sentence(plain)
    if section.is_plain or (section.device is None and not section.page.recorded):
        gpu = noun_for(section.trace.environment.gpus)
        wrong = f", and the {gpu} works for longer than that, so the length that you passed can't be right"
        recorded = f"in the recording {what} takes {duration(plain.recorded_step_ns)}{wrong * _too_short(section)}"
        return f"Figures are of the program without the profiler: {what} takes {plain.words}; {recorded}.{longer}"
    why = "" if section.page.recorded else " The recording cannot be replayed."
    return f"Figures are of the recording. Without the profiler {what} takes {plain.words}.{why}{longer}"


def _longer_sentence(plain: Plain) -> str:
    """Return for how much of the program the recorded steps stand, if other steps take time that matters."""
    if plain.longer_ns < max(1, WORTH_SAYING * plain.step_ns):
        return ""
    usual_ns = plain.step_ns - plain.longer_ns
    of = "1 step" if plain.longer_steps == 1 else f"{plain.longer_steps:,} steps"
    return (
        f" {of} took much longer than any recorded one, the others {duration(usual_ns)} on average: the recorded steps "
        f"stand for {share(usual_ns, plain.step_ns)} of the time."
    )


def _interval_sentence(section: DeviceReport, what: str) -> str:
    """Return the interval of a step without the profiler, if it is wide enough to matter."""
    device = section.device
    if device is None:
        return "Figures are of the recording; steps without the profiler were not timed." if section.steps else ""
    if device.alone is None or not section.may_be_slowed:
        return ""
    interval = between(device.alone.low_ns, device.alone.high_ns, "and")
    # A server's program is rarely the user's to run.
    can_run = section.trace.environment.recorder == "kineto" and not device.served
    remedy = "`overlapscope run` measures it" if can_run else "state it with `--plain-step`"
    return f"Recording slows the host. Without the profiler {what} takes between {interval}; {remedy}."


# -- Programs without GPU activity -----------------------------------------------------------------


def _of_host(section: DeviceReport, use: HostUse, reasons: str) -> Verdict:
    """Return the verdict on a program without a GPU, which can save the time of loading, waits and communication."""
    # Reports on GPUs don't need it.
    from overlapscope.report import host_view

    step_ns, recorded = section.span_ns, section.page.recorded and use.plain is not None
    least_ns = GOOD_BELOW * step_ns
    level = _level(sum(host_view.lost_parts(section).values()) / max(1, step_ns))
    if level != "poor" and section.host_parts.get(IdleCause.UNRECORDED, 0) >= least_ns:
        level = "unknown"
    elif level == "good" and section.trace.sampled is None:
        # Waits show in no op and in no Python.
        level, reasons = "unknown", f"{reasons} Without samples of the host it is unknown how much of a step is waits."
    elif level == "good" and step_ns - section.host_parts.get("ops", 0) >= least_ns:
        level = "fair"
    remedy = host_view.remedy(section, use, least_ns)
    return Verdict(
        "recorded" if recorded else level,
        section.title,
        host_view.host_sentence(section),
        remedy=f"Next: {remedy}" if remedy and not recorded else "",
        plain=plain_sentence(section),
        doubt=reasons.strip(),
        steps=steps_sentence(use.judged if use.by_steps else (), section.trace),
    )
