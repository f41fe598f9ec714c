"""The verdict: the answer in a few sentences, before any table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis import spread
from overlapscope.analysis.figures import copies_matter
from overlapscope.analysis.host_results import HostUse, SampledStep
from overlapscope.analysis.plain_step import takes
from overlapscope.analysis.results import Device, TraceResult, missing_by_cause, missing_ns
from overlapscope.base.words import between, capital, clean, duration, listed, plural, share, size
from overlapscope.catalog import devices
from overlapscope.catalog.causes import EXPOSED_COPY, IDLE, WORK_UNKNOWN, Cause, CopyCause, IdleCause
from overlapscope.report import net_overlap
from overlapscope.report.page import DeviceReport
from overlapscope.rules import RULES
from overlapscope.rules.finding import HARDLY, surest_first
from overlapscope.trace.lost import CAUSES, Part, part_words
from overlapscope.trace.model import OwnPeriod

Level = Literal["good", "fair", "poor", "recorded", "unusable"]
"""`recorded` if the figures are of a recording although the program without the profiler is known, and judged."""

GOOD_BELOW = 0.05
"""Lost time, as a share of the judged time, below which the level is good."""
POOR_FROM = 0.15
WORTH_SAYING = 0.01
"""Share of the time below which a cost is not worth a sentence, as in the rules."""
_CLAUSES = 2
"""Number of losses that the verdict names; the tables have all."""


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
    """Step time without the profiler, and which of the two programs the verdict is about."""
    doubt: str = ""
    """Reasons why figures may be wrong, or findings missing."""
    steps: str = ""
    """Differences between steps, the cause of long steps, and how steps were found if nothing marks them."""
    overlap_cost: str = ""
    """Time by which overlap certainly lengthens kernels, if it is worth saying."""

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
        """Paragraphs after the answer."""
        return tuple(filter(None, (" ".join(filter(None, (self.plain, self.steps))), self.overlap_cost, self.doubt)))


def judge(section: DeviceReport) -> Verdict:
    """Return the verdict on a device, about the figures that people read (`page.DeviceReport.device`)."""
    verdict, names = _judge(section), section.trace.environment.gpus
    sentences = {
        field: devices.in_words_of(names, getattr(verdict, field))
        for field in ("lead", "rest", "plain", "doubt", "steps", "overlap_cost")
    }
    return replace(verdict, **sentences)


def _judge(section: DeviceReport) -> Verdict:
    """Return the verdict in the words for GPUs."""
    device, trust = section.device, section.trace.trust
    if device is None or trust.verdict == "unusable":
        reasons = [devices.as_recorded(check.detail) for check in trust.checks if check.status == "fail"]
        if section.trace.host is not None:
            return _of_host(section, section.trace.host, " ".join(reasons))
        lead, *rest = reasons or ["Nothing ran on a GPU."]
        return Verdict("unusable", section.title, lead, " ".join(rest))
    largest = max((section.per_step(finding.spoken_bound_ns) for finding in section.findings), default=0)
    part = max(_lost_ns(device), largest) / device.span_ns if device.span_ns > 0 else 0.0
    level: Level = "recorded" if section.page.recorded else _level(part)
    lost_parts = trust.lost & CAUSES
    if level == "good" and (
        lost_parts or max(_supply_ns(device), _unexplained_ns(device)) >= GOOD_BELOW * device.span_ns
    ):
        level = "fair"
    # The largest losses come first.
    losses = sorted(_losses(device, lost="copies" in trust.lost), key=lambda loss: -loss[0])
    clauses = [clause for _, clause in losses[:_CLAUSES]]
    figures = f"{_frame(section, device)} {' and '.join(clauses)}."
    lead = capital(figures)
    fix = "" if level == "recorded" else _fix(section, device)
    if level == "good":
        little = (
            "Little to gain"
            if fix or losses[0][0] >= max(1, WORTH_SAYING * device.span_ns)
            else "No overlap problems found"
        )
        lead = f"{little}: {figures}"
        fix = fix or (f"Less than {100 * part + 0.05:.1f}% of the time could be saved." if part else "")
    doubt = " ".join(filter(None, (_doubt(section), _unjudged(lost_parts))))
    steps = steps_sentence(spread.of_device(device), section.trace, device) if section.page.scope == "window" else ""
    cost = net_overlap.sentence(section)
    return Verdict(level, section.title, lead, fix, plain_sentence(section), doubt, steps, cost)


def _frame(section: DeviceReport, device: Device) -> str:
    """Return what the figures describe: `in each step of about 16.8 ms (16.1 to 17.4 ms)`."""
    plain, length = device.plain, duration(device.span_ns)
    if section.is_plain and plain is not None and plain.origin == "estimated":
        length = f"about {length} ({between(plain.low_ns, plain.high_ns)})"
    if section.steps:
        return f"in each step of {length},"
    if section.page.scope != "window":
        return f"in the {length} of {devices.as_recorded(clean(section.page.scope, 60))},"
    return f"in all that was recorded, {length},"


def _level(part: float) -> Level:
    """Return the level for a share of lost time."""
    return "good" if part < GOOD_BELOW else "fair" if part < POOR_FROM else "poor"


def _supply_ns(device: Device) -> int:
    return device.exposed_copy_by_cause.get(CopyCause.NO_COMPUTE, 0)


def _unexplained_ns(device: Device) -> int:
    """Return the idle time whose cause is unknown, so that it may or may not be avoidable."""
    return device.idle_by_cause.get(IdleCause.UNKNOWN, 0) + missing_ns(device)


def _lost_ns(device: Device) -> int:
    """Return the time that better overlap, a busier GPU and hidden communication could save together."""
    idle = sum(device.idle_by_cause.get(cause.id, 0) for cause in IDLE.values() if cause.fixing)
    return _unoverlapped_ns(device) + device.buckets.exposed_comm_ns + idle


def _unoverlapped_ns(device: Device) -> int:
    """Return the engine time that perfect overlap would save. The lead-in cannot be judged."""
    overlap = device.overlap
    return max(0, overlap.busy_ns - overlap.ideal_ns - device.exposed_copy_by_cause.get(CopyCause.LEAD_IN, 0))


def _losses(device: Device, *, lost: bool) -> list[tuple[int, str]]:
    """Return clauses on copies, communication and idle time, each with its time.

    Negligible losses are left out, unless there is no other. `lost` is whether the recording may lack copies.
    """
    buckets, span, missing = device.buckets, device.span_ns, missing_by_cause(device)
    idle = buckets.idle_ns - missing_ns(device)
    losses = []
    if copies_matter(device):
        losses.append((buckets.exposed_copy_ns, _copies(device)))
    if buckets.exposed_comm_ns >= max(1, WORTH_SAYING * span):
        clause = f"communication runs alone for {duration(buckets.exposed_comm_ns)}"
        losses.append((buckets.exposed_comm_ns, f"{clause} ({share(buckets.exposed_comm_ns, span)})"))
    if idle >= max(1, GOOD_BELOW * span):
        explained = ((ns, cause) for cause, ns in device.idle_by_cause.items() if cause not in WORK_UNKNOWN)
        most, cause = max(explained, default=(0, "unknown"), key=lambda item: item[0])
        why = f", mostly {cause}" if most > idle // 2 else ""
        losses.append((idle, f"the GPU is idle for {duration(idle)} ({share(idle, span)}{why})"))
    for unknown, ns in missing.items():
        if ns >= max(1, WORTH_SAYING * span):
            losses.append((ns, _UNKNOWN[unknown].format(f"{duration(ns)} ({share(ns, span)})")))
    if not device.overlap.copy_ns and lost:
        return losses or [(0, "no copy between host and device is left in the recording")]
    return losses or [(0, _copies(device))]


_UNKNOWN: Final[Mapping[str, str]] = {
    IdleCause.MISSING_OPS: "GPU ops are missing from the recording for {}",
    IdleCause.UNRECORDED: "nothing was recorded of {}",
}


def _copies(device: Device) -> str:
    """Return how far copies are hidden."""
    overlap, exposed = device.overlap, device.buckets.exposed_copy_ns
    if not overlap.copy_ns:
        return "nothing is copied between host and device"
    if not copies_matter(device):
        return f"copies take only {duration(overlap.copy_ns)}"
    if not exposed:
        return f"all {duration(overlap.copy_ns)} of copies are hidden under compute"
    if exposed < WORTH_SAYING * device.span_ns:
        return f"all but {duration(exposed)} of the {duration(overlap.copy_ns)} of copies are hidden under compute"
    unhideable = _supply_ns(device)
    part = ", " if duration(unhideable) == duration(exposed) else f"; {duration(unhideable)} "
    why = f"{part}because they outlast compute"
    return (
        f"copies run alone for {duration(exposed)} ({share(exposed, device.span_ns)}"
        f"{why if unhideable >= max(1, WORTH_SAYING * device.span_ns) else ''})"
    )


def _fix(section: DeviceReport, device: Device) -> str:
    """Return what to fix first: the surest finding or, without findings, the largest cause that has a remedy."""
    costly = [finding for finding in section.findings if finding.spoken_bound_ns > 0]
    if costly:
        first = min(costly, key=surest_first)
        saved_ns = section.per_step(first.cost_ns)
        if saved_ns < HARDLY * device.span_ns:
            return f"Fixing {first.rule} alone would save nothing."
        about = "about" if first.cost_from == "replay" else "at most"
        return f"Fixing {first.rule} would save {about} {duration(saved_ns)} ({share(saved_ns, device.span_ns)})."
    recorder = section.trace.environment.recorder
    copy_ns, fix_copy = _largest_remedy(device.exposed_copy_by_cause, EXPOSED_COPY, recorder)
    idle_ns, fix_idle = _largest_remedy(device.idle_by_cause, IDLE, recorder)
    if max(copy_ns, idle_ns) < max(1, WORTH_SAYING * device.span_ns):
        return ""
    if copy_ns > idle_ns:
        return f"{fix_copy} would hide at most {duration(copy_ns)} of copies under compute."
    return f"{fix_idle} would save at most {duration(idle_ns)} ({share(idle_ns, device.span_ns)})."


def _largest_remedy(by_cause: Mapping[str, int], causes: Mapping[str, Cause], recorder: str) -> tuple[int, str]:
    """Return the time of the largest cause that has a remedy, and the remedy as the subject of a sentence."""
    return max((by_cause.get(cause.id, 0), cause.helps(recorder)[1]) for cause in causes.values() if cause.fixing)


def _unjudged(lost: frozenset[Part]) -> str:
    """Return what findings cannot cover because parts of the recording are lost."""
    if not lost:
        return ""
    what = "Parts of the recording" if lost == CAUSES else f"Some {part_words(lost)}"
    silent = sum(bool(rule.rests_on & lost) for rule in RULES.values())
    which = "no rule can" if silent == len(RULES) else f"{silent} of {len(RULES)} rules cannot"
    return f"{what} are lost or wrong, so {which} tell whether there is more to find."


def _doubt(section: DeviceReport) -> str:
    """Return the checks that failed or warned in a sentence.

    Example: `Some figures may be wrong: clock-skew failed; launches and steps warned (overlapscope explain clock-skew
    says what to do).`
    """
    trust = section.trace.trust
    if trust.verdict != "degraded":
        return ""
    by_status = {word: [check.id for check in trust.checks if check.status == status] for status, word in _STATUS}
    failures = "; ".join(f"{listed(ids)} {word}" for word, ids in by_status.items() if ids)
    worst = next(id for ids in by_status.values() for id in ids)
    return f"Some figures may be wrong: {failures} (overlapscope explain {worst} says what to do)."


_STATUS = (("fail", "failed"), ("warn", "warned"))


# -- The program without the profiler --------------------------------------------------------------


def plain_sentence(section: DeviceReport) -> str:
    """Return how the length of a step is known, and which program the figures are about."""
    device = section.device
    plain = None if device is None else device.plain
    if plain is None:
        return ""
    what = "a step" if section.steps else "all that was recorded"
    recorded = f"in the recording {what} takes {duration(plain.recorded_step_ns)}"
    if section.is_plain and plain.origin == "estimated":
        return (
            f"These are estimates of the program without the profiler; {recorded}. If you know the real time, pass "
            f"{section.page.plain_step_option}."
        )
    length = takes(plain.step_ns, plain.low_ns, plain.high_ns, plain.origin)
    if section.is_plain:
        return f"This is the program without the profiler, where {what} takes {length}; {recorded}."
    why = "" if section.page.recorded else " The recording cannot be replayed."
    return f"This is the recording. Without the profiler {what} takes {length}.{why}"


# -- Programs without GPU activity -----------------------------------------------------------------

_LOADER = {
    "none": "",
    "own-thread": "The thread of the steps makes the batches itself, so loading never runs beside its ops: use "
    "num_workers.",
    "workers": "Workers make the batches; loading is what the thread of the steps still waits for them.",
}


def _of_host(section: DeviceReport, host: HostUse, reasons: str) -> Verdict:
    """Return the verdict on a program without a GPU, which can save the time of loading data."""
    part = sum(step.loading_ns for step in host.steps) / max(sum(step.span_ns for step in host.steps), 1)
    steps = steps_sentence(spread.of_host(host) if host.by_steps else None, section.trace)
    return Verdict(
        _level(part),
        section.title,
        f"{host_sentence(host)}{sampled_sentence(section.trace.sampled)}",
        _LOADER[host.loader],
        plain=_host_plain_sentence(host),
        doubt=reasons,
        steps=steps,
    )


def _host_plain_sentence(host: HostUse) -> str:
    """Return the step time without the profiler; empty if the recorder didn't measure it."""
    if host.plain is None:
        return ""
    length = takes(host.plain.step_ns, host.plain.low_ns, host.plain.high_ns, "measured")
    return f"This is the recording. Without the profiler a step takes {length}."


def host_sentence(host: HostUse) -> str:
    """Return the host's time in a sentence.

    Example: `A step takes 12.3 ms on the host: 40.0% loading data, 55.0% in ops, 5.0% elsewhere.`
    """
    total = sum(step.span_ns for step in host.steps)
    what = "A step takes" if host.by_steps else "The recording, in which no step is marked, takes"
    average = " on average" if len(host.steps) > 1 else ""
    parts = [(sum(getattr(step, f"{part}_ns") for step in host.steps), description) for part, description in _PARTS]
    description = ", ".join(f"{share(ns, total)} {word}" for ns, word in parts)
    return f"{what} {duration(total // len(host.steps))} on the host{average}: {description}."


_WAITS = {
    IdleCause.GIL_WAIT: "waiting for Python's lock, which another thread holds",
    IdleCause.FILE_IO: "reading and writing files",
    IdleCause.PREEMPTED: "waiting for a CPU",
    IdleCause.CPU_THROTTLED: "stopped by the CPU quota",
    IdleCause.GC_PAUSE: "in Python's garbage collector",
}
"""What the thread of the steps does, by cause."""
_LEAST_WAIT = 0.01
"""Minimum share of a step for a wait to be mentioned."""


def sampled_sentence(step: SampledStep | None) -> str:
    """Return the first line and the waits of an average step without the profiler; empty without samples."""
    if step is None:
        return ""
    parts = []
    if step.lines:
        first = step.lines[0]
        called = f"{first.calls} ({first.line})" if first.calls else first.line
        parts.append(f"{duration(first.time_ns)} in {clean(called, 120)}")
    times = [(step.by_cause.get(cause, 0), words) for cause, words in _WAITS.items()]
    parts += [
        f"{duration(ns)} {words}"
        for ns, words in sorted(times, key=lambda item: -item[0])
        if ns and ns >= _LEAST_WAIT * step.step_ns
    ]
    return f" Without the profiler, a step spends {listed(parts)}." if parts else ""


_PARTS = (("loading", "loading data"), ("ops", "in ops"), ("rest", "elsewhere, such as in Python"))


# -- Steps -----------------------------------------------------------------------------------------

_APART = 0.02
"""Share of the median by which the average must differ to be shown."""


def steps_sentence(step_spread: spread.Spread | None, trace: TraceResult, device: Device | None = None) -> str:
    """Return how much steps differ, how they were found, and what lies outside them.

    `All figures are averages of 9 steps, which take 23 to 761 ms (27.5 ms in the median). 3 of them take over 1.5
    times the median, mostly because of idle time (data-loading).`
    """
    sentences = []
    if step_spread is not None:
        even = duration(step_spread.shortest_ns) == duration(step_spread.longest_ns)
        length = (
            f"{duration(step_spread.longest_ns)} each"
            if even
            else between(step_spread.shortest_ns, step_spread.longest_ns)
        )
        # The average is already known, and the median adds something only if it differs.
        two = abs(step_spread.mean_ns - step_spread.median_ns) > _APART * step_spread.median_ns
        middle = f" ({duration(step_spread.median_ns)} in the median)" if two else ""
        sentences.append(
            f"All figures are averages of {plural(step_spread.count, 'step')}, which take {length}{middle}."
        )
        # With two steps, neither is typical.
        if step_spread.long and step_spread.count > 2:
            few = "1 of them takes" if step_spread.long == 1 else f"{step_spread.long:,} of them take"
            sentences.append(
                f"{few} over {spread.LONG} times the median, mostly because of {clean(step_spread.cause, 60)} "
                f"({duration(step_spread.cause_ns)} more)."
            )
    if isinstance(trace.step_source, str):
        sentences.append(f"Steps: {clean(trace.step_source)}.")
    if isinstance(trace.period, OwnPeriod):
        sentences.append(trace.period.sentence)
    sentences.append("" if device is None else _outside_sentence(device))
    return " ".join(filter(None, sentences))


_LEAST_OUTSIDE = 0.01
"""Minimum share of the time or of the copied bytes for what lies outside the steps to be mentioned."""


def _outside_sentence(device: Device) -> str:
    """Return the time and the copies outside the steps.

    Example: `Outside the steps: 3.20 s, 13.6 GB H2D.`
    """
    outside, judged = device.outside, device.judged
    if outside is None or judged is None:
        return ""
    length, copied = outside.before_ns + outside.after_ns, {"h2d": outside.h2d_bytes, "d2h": outside.d2h_bytes}
    recorded = {way: sum(group.judged_bytes for group in device.copies if group.direction == way) for way in copied}
    much = [part is None or part >= max(1, _LEAST_OUTSIDE * recorded[way]) for way, part in copied.items()]
    if length < _LEAST_OUTSIDE * judged.span_ns and not any(much):
        return ""
    copies = [f"{size(part)} {way.upper()}" for way, part in copied.items() if part]
    copies += [f"{way.upper()} of unknown size" for way, part in copied.items() if part is None]
    return f"Outside the steps: {', '.join([duration(length), *copies])}."
