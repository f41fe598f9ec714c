"""The verdict: the answer in a few sentences, before any table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis import spread
from overlapscope.analysis.figures import copies_matter
from overlapscope.analysis.host_results import HostUse, LineTime, SampledStep
from overlapscope.analysis.plain_step import takes
from overlapscope.analysis.results import Device, TraceResult, missing_by_cause, missing_ns
from overlapscope.base.words import between, capital, clean, duration, listed, plural, saved_between, share, size
from overlapscope.catalog import causes, devices
from overlapscope.catalog.causes import IDLE, WORK_UNKNOWN, Cause, CopyCause, IdleCause, OtherCause, Subject
from overlapscope.report import net_overlap
from overlapscope.report.page import DeviceReport
from overlapscope.rules import RULES
from overlapscope.rules.finding import HARDLY, Finding
from overlapscope.trace.lost import CAUSES, FIGURES, Part, part_words
from overlapscope.trace.model import OwnPeriod

Level = Literal["good", "fair", "poor", "unknown", "recorded", "unusable"]
"""`unknown` if the lost time reaches from good to poor, since the profiler's part of it is unknown; `recorded` if the
figures are of a recording although the program without the profiler is known, and judged."""

GOOD_BELOW = 0.05
"""Lost time, as a share of the judged time, below which the level is good."""
POOR_FROM = 0.15
MORE = 1.1
"""A saving is explained if it exceeds this multiple of the cost."""
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
    """The answer in a sentence; a page shows it large."""
    why: str = ""
    """What costs most, with its place in the code."""
    remedy: str = ""
    """What to do about it, and what that saves."""
    plain: str = ""
    """Step time without the profiler, and which of the two programs the figures are of."""
    doubt: str = ""
    """Reasons why figures may be wrong, or findings missing."""
    steps: str = ""
    """Differences between steps, the cause of long steps, and how steps were found if nothing marks them."""
    overlap_cost: str = ""
    """Time by which overlap certainly lengthens kernels, if it is worth saying."""

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
    verdict, names = _judge(section), section.trace.environment.gpus
    sentences = {
        field: devices.in_words_of(names, getattr(verdict, field))
        for field in ("lead", "why", "remedy", "plain", "doubt", "steps", "overlap_cost")
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
    first = next((finding for finding in section.findings if finding.cost_ns > 0), None)
    known_ns = max((section.per_step(each.cost_ns) for each in section.findings), default=0)
    lost_ns = max(_lost_ns(device), known_ns) + _unmeasured_ns(device)
    part = lost_ns / (device.span_ns + _unmeasured_ns(device)) if device.span_ns > 0 else 0.0
    least = _least_part(section, device, lost_ns)
    lost_parts = trust.lost & CAUSES
    level: Level = "recorded" if section.page.recorded else _level(part)
    unclear_ns = device.span_ns - device.buckets.compute_ns + section.per_step(_unclear_ns(device))
    if level == "good" and (lost_parts or unclear_ns >= GOOD_BELOW * device.span_ns):
        level = "fair"
    if level == "poor" and _level(least) == "good":
        level = "unknown"
    if missing_ns(device) >= GOOD_BELOW * device.span_ns or lost_parts & FIGURES:
        # What is known to be lost stands; anything else may have been work.
        level = "poor" if known_ns >= POOR_FROM * device.span_ns else "unknown"
    reach = "up to " if _level(least) != _level(part) else ""
    # The largest losses come first.
    losses = sorted(_losses(device, lost="copies" in trust.lost, reach=reach), key=lambda loss: -loss.ns)
    figures = f"{_frame(section, device)} {' and '.join(loss.clause for loss in losses[:_CLAUSES])}"
    if reach and any(loss.is_idle for loss in losses[:_CLAUSES]):
        of = "that" if losses[:_CLAUSES][-1].is_idle else "the idle time"
        figures += f"; how much of {of} is the profiler's is not known"
    nothing = level == "good" and losses[0].ns < max(1, WORTH_SAYING * device.span_ns)
    name = "No overlap problems found" if nothing and not first else "Little to gain" if level == "good" else ""
    if losses[0].ns >= POOR_FROM * device.span_ns:
        name = losses[0].name
    lead = f"{name}: {figures}." if name else f"{capital(figures)}."
    doubt = " ".join(filter(None, (_doubt(section), _unjudged(lost_parts), _unclear(section, device))))
    steps = steps_sentence(spread.of_device(device), section.trace, device) if section.page.scope == "window" else ""
    cost = net_overlap.sentence(section)
    told = level != "recorded"
    why, remedy = (_why(section, device, first), _remedy(section, device, first)) if told else ("", "")
    return Verdict(level, section.title, lead, why, remedy, plain_sentence(section), doubt, steps, cost)


def _least_part(section: DeviceReport, device: Device, lost_ns: int) -> float:
    """Return the least share of lost time that is possible without the profiler, if the figures are of a recording."""
    alone = device.alone
    if section.is_plain or alone is None or not alone.low_ns:
        return lost_ns / device.span_ns if device.span_ns > 0 else 0.0
    return max(0, lost_ns - (device.span_ns - alone.low_ns)) / alone.low_ns


def _frame(section: DeviceReport, device: Device) -> str:
    """Return what the figures describe: `in each step of 16.8 ms`."""
    length = duration(device.span_ns)
    if section.steps:
        return f"in each step of {length},"
    if section.page.scope != "window":
        return f"in the {length} of {devices.as_recorded(clean(section.page.scope, 60))},"
    return f"in all that was recorded, {length},"


def _level(part: float) -> Level:
    """Return the level for a share of lost time."""
    return "good" if part < GOOD_BELOW else "fair" if part < POOR_FROM else "poor"


def _unmeasured_ns(device: Device) -> int:
    """Return the time of the judged step before its first GPU op that no figure includes."""
    return 0 if device.outside is None else device.outside.unmeasured_ns


def _supply_ns(device: Device) -> int:
    return device.exposed_copy_by_cause.get(CopyCause.NO_COMPUTE, 0)


def _lost_ns(device: Device) -> int:
    """Return the time in which the device doesn't compute, without what no order of the same work can change."""
    buckets, lead_in_ns = device.buckets, device.idle_by_cause.get(IdleCause.LEAD_IN, 0)
    idle_ns = buckets.idle_ns - missing_ns(device) - lead_in_ns
    return _unoverlapped_ns(device) + buckets.exposed_comm_ns + buckets.exposed_other_ns + idle_ns


def _unoverlapped_ns(device: Device) -> int:
    """Return the engine time that perfect overlap would save. The lead-in cannot be judged."""
    overlap = device.overlap
    return max(0, overlap.busy_ns - overlap.ideal_ns - device.exposed_copy_by_cause.get(CopyCause.LEAD_IN, 0))


class _Loss(Struct, frozen=True):
    """Lost time of a kind."""

    ns: int
    clause: str
    name: str = ""
    """The loss where it is the main one, such as `Launch-bound`."""
    is_idle: bool = False


_ALONE: Final[Mapping[str, str]] = {
    OtherCause.PEER_COPY: "copies between GPUs run",
    OtherCause.PAGE_MIGRATION: "migrations of managed memory run",
    OtherCause.DEVICE_COPY: "copies within the GPU run",
    OtherCause.MEMSET: "memsets run",
}
_BOUND: Final[Mapping[str, str]] = {
    IdleCause.DATA_LOADING: "Input-bound",
    IdleCause.DISPATCH: "Launch-bound",
    IdleCause.LAUNCH_LATENCY: "Launch-bound",
    IdleCause.HOST_SYNC: "Synchronization-bound",
    IdleCause.NOT_RECORDED: "Host-bound",
}
"""Names of programs by the main cause of idle time."""
_OF_HOST: Final[Mapping[str, str]] = {
    IdleCause.GRAPH_CAPTURE: "; for {time} the host captures a CUDA graph",
    IdleCause.FIRST_LAUNCH: "; for {time} the host launches kernels for the first time",
    IdleCause.NOT_RECORDED: "; what the host did was not recorded",
}
"""Clauses for main causes of idle time that the program is not to blame for."""


def _bound_name(cause: Cause) -> str:
    return _BOUND.get(cause.id, "Host-bound" if cause.by_host and cause.fixing else "")


def _losses(device: Device, *, lost: bool, reach: str) -> list[_Loss]:
    """Return clauses on copies, communication and idle time, each with its time.

    Negligible losses are left out, unless there is no other. `lost` is whether the recording may lack copies; `reach`
    stands before idle time of which a part may be the profiler's.
    """
    buckets, span, missing = device.buckets, device.span_ns, missing_by_cause(device)
    idle, worth = buckets.idle_ns - missing_ns(device), max(1, WORTH_SAYING * span)
    losses = []
    if copies_matter(device):
        losses.append(_Loss(buckets.exposed_copy_ns, _copies(device), "Copy-bound"))
    if buckets.exposed_comm_ns >= worth:
        clause = f"communication runs alone for {duration(buckets.exposed_comm_ns)}"
        clause += f" ({share(buckets.exposed_comm_ns, span)})"
        losses.append(_Loss(buckets.exposed_comm_ns, clause, "Communication-bound"))
    if buckets.exposed_other_ns >= worth:
        most_ns, cause = max((ns, cause) for cause, ns in device.exposed_other_by_cause.items())
        alone = _ALONE.get(cause, "") if 2 * most_ns > buckets.exposed_other_ns else ""
        clause = f"{alone or 'memory work of the GPU runs'} alone for {duration(buckets.exposed_other_ns)}"
        losses.append(_Loss(buckets.exposed_other_ns, f"{clause} ({share(buckets.exposed_other_ns, span)})"))
    if idle >= worth:
        explained = {cause: ns for cause, ns in device.idle_by_cause.items() if cause not in WORK_UNKNOWN}
        most_ns, cause = max(((ns, cause) for cause, ns in explained.items()), default=(0, ""))
        by_name = Counter[str]()
        for each, ns in explained.items():
            by_name[_bound_name(IDLE[each])] += ns
        name, named_ns = by_name.most_common(1)[0] if by_name else ("", 0)
        clause = f"the GPU is idle for {reach}{duration(idle)} ({share(idle, span)}"
        mostly = most_ns > idle // 2
        of_host = _OF_HOST.get(cause, ", mostly {cause}").format(cause=cause, time=duration(most_ns))
        clause += f"{of_host})" if mostly else ")"
        losses.append(_Loss(idle, clause, name if named_ns > idle // 2 else "", is_idle=True))
    for unknown, ns in missing.items():
        if ns >= worth:
            losses.append(_Loss(ns, _UNKNOWN[unknown].format(f"{duration(ns)} ({share(ns, span)})")))
    unmeasured_ns = _unmeasured_ns(device)
    if unmeasured_ns >= worth:
        losses.append(
            _Loss(unmeasured_ns, f"its first GPU op came {duration(unmeasured_ns)} after it had begun", "Host-bound")
        )
    if not device.overlap.copy_ns and lost:
        return losses or [_Loss(0, "no copy between host and device is left in the recording")]
    return losses or [_Loss(0, _copies(device))]


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


def _why(section: DeviceReport, device: Device, first: Finding | None) -> str:
    """Return what costs most, and where: the first finding or, without findings, the largest cause."""
    if first is not None and _explains(section, device, first):
        where = first.where
        place = where.line or where.op or where.call if where is not None else None
        return f"Why: {first.title}.{f' Costliest place: {clean(place, 120)}.' if place else ''}"
    ns, subject, cause = _main_cause(device)
    if _unmeasured_ns(device) > ns:
        return "Why: only one step was recorded, and the host prepared it before the GPU's first op."
    if ns < max(1, WORTH_SAYING * device.span_ns):
        return ""
    cases = (case for case in device.evidence if (case.subject, case.cause) == (subject, cause.id))
    case = max(cases, key=lambda case: case.time_ns, default=None)
    place = "" if case is None else case.where or case.op or case.call or ""
    costliest = f" Costliest place: {clean(place, 120)}." if place else ""
    return f"Why: {cause.id} costs most, {duration(ns)}.{costliest}"


def _remedy(section: DeviceReport, device: Device, first: Finding | None) -> str:
    """Return what to do first: the advice of the first finding or, without findings, against the largest cause."""
    if first is not None and _explains(section, device, first):
        advice = first.advice.partition("\n")[0].rstrip()
        return f"Next: {advice}{f' It {cost(section, first)}.' if first.saving else ''}"
    ns, _, cause = _main_cause(device)
    if _unmeasured_ns(device) > ns:
        return "Next: record several steps, with lines: `overlapscope run --stacks`."
    remedy = cause.helps(section.trace.environment.recorder)[0] if ns >= max(1, WORTH_SAYING * device.span_ns) else ""
    return f"Next: {remedy}" if remedy else ""


def _explains(section: DeviceReport, device: Device, first: Finding) -> bool:
    """Return whether the first finding explains what costs most, rather than a cause without a finding."""
    return 2 * section.per_step(first.cost_ns) >= max(_main_cause(device)[0], _unmeasured_ns(device))


def _main_cause(device: Device) -> tuple[int, Subject, Cause]:
    """Return the largest cause of all buckets that have causes, with its time and the bucket."""
    subjects: tuple[tuple[Subject, Mapping[str, int]], ...] = (
        ("exposed-copy", device.exposed_copy_by_cause),
        ("exposed-comm", device.exposed_comm_by_cause),
        ("exposed-other", device.exposed_other_by_cause),
        ("idle", device.idle_by_cause),
    )
    every = ((ns, subject, causes.CAUSES[subject][cause]) for subject, by in subjects for cause, ns in by.items())
    return max((each for each in every if each[2].id not in WORK_UNKNOWN), key=lambda each: each[0])


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
    between_ends = "" if duration(low_ns) == duration(high_ns) else f", {saved_between(low_ns, high_ns)}"
    if ns < HARDLY * of_ns:
        return f"saves nothing by itself{between_ends if high_ns >= HARDLY * of_ns else ''}"
    exceeds = ns > MORE * section.per_step(finding.cost_ns)
    more = ", more than it costs, because other waits become shorter, too" if exceeds else ""
    return f"saves about {text(saving.saved_ns)}{between_ends}{more}"


def _unjudged(lost: frozenset[Part]) -> str:
    """Return what findings cannot cover because parts of the recording are lost."""
    if not lost:
        return ""
    what = "Parts of the recording" if lost == CAUSES else f"Some {part_words(lost)}"
    silent = sum(bool(rule.rests_on & lost) for rule in RULES.values())
    which = "no rule can" if silent == len(RULES) else f"{silent} of {len(RULES)} rules cannot"
    return f"{what} are lost or wrong, so {which} tell whether there is more to find."


def _unclear_ns(device: Device) -> int:
    return sum(group.time_ns for group in device.kernels if group.unclear)


def _unclear(section: DeviceReport, device: Device) -> str:
    """Return which kernels may communicate, as far as their names tell, if they take a time that matters."""
    time_ns = section.per_step(_unclear_ns(device))
    if time_ns < max(1, WORTH_SAYING * device.span_ns):
        return ""
    names = listed((devices.as_recorded(clean(group.kernel, 60)) for group in device.kernels if group.unclear), _NAMED)
    return (
        f"Kernels that may communicate count as compute: {duration(time_ns)} ({share(time_ns, device.span_ns)}) in "
        f"{names}. If they do, name them in `communication` in the configuration."
    )


_NAMED = 3


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
    """Return how long a step takes without the profiler, as far as that is known."""
    device = section.device
    if device is None or section.page.scope != "window":
        return ""
    plain, what = device.plain, "a step" if section.steps else "all that was recorded"
    if plain is None:
        return _interval_sentence(section, device, what)
    length = takes(plain.step_ns, plain.low_ns, plain.high_ns, plain.origin)
    if section.is_plain:
        recorded = f"in the recording {what} takes {duration(plain.recorded_step_ns)}"
        return f"This is the program without the profiler, where {what} takes {length}; {recorded}."
    why = "" if section.page.recorded else " The recording cannot be replayed."
    return f"This is the recording. Without the profiler {what} takes {length}.{why}"


def _interval_sentence(section: DeviceReport, device: Device, what: str) -> str:
    """Return the interval of a step without the profiler, if it is wide enough to matter."""
    if device.alone is None or not section.may_be_slowed:
        return ""
    interval = between(device.alone.low_ns, device.alone.high_ns).replace(" to ", " and ")
    return f"Recording slows the host. Alone, {what} takes between {interval}; `overlapscope run` measures it."


# -- Programs without GPU activity -----------------------------------------------------------------

_LOADER = {
    "none": "",
    "own-thread": "The thread of the steps makes the batches itself, so loading never runs beside its ops: use "
    "num_workers.",
    "workers": "Workers make the batches; loading is what the thread of the steps still waits for them.",
}


def _of_host(section: DeviceReport, host: HostUse, reasons: str) -> Verdict:
    """Return the verdict on a program without a GPU, which can save the time of loading data and of waits."""
    sampled, recorded = section.trace.sampled, host_sentence(host)
    part = sum(step.loading_ns for step in host.steps) / max(sum(step.span_ns for step in host.steps), 1)
    if sampled is not None:
        part = max(part, max(sampled.by_cause.get(cause, 0) for cause in _WAITS) / max(sampled.step_ns, 1))
    steps = steps_sentence(spread.of_host(host) if host.by_steps else None, section.trace)
    # Lines say more than the parts of the recording.
    by_line, spends = sampled is not None and bool(sampled.lines), sampled_sentence(sampled).lstrip()
    return Verdict(
        _level(part),
        section.title,
        spends if by_line else recorded,
        why="" if by_line else spends,
        remedy=" ".join(filter(None, (_first_to_do(host, sampled), _LOADER[host.loader]))),
        plain=" ".join(filter(None, (recorded if by_line else "", _host_plain_sentence(host)))),
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
    """Return the costliest function and the waits of an average step without the profiler; empty without samples."""
    if step is None:
        return ""
    parts = [f"{duration(ns)} {words}" for ns, words, _ in _spent(step)]
    return f" Without the profiler, a step spends {listed(parts)}." if parts else ""


def _first_to_do(host: HostUse, sampled: SampledStep | None) -> str:
    """Return what to do about the largest part of a step, or where it is; empty if that is loading data."""
    count, spent = len(host.steps), [] if sampled is None else _spent(sampled)
    loading, ops, rest = (sum(getattr(step, f"{part}_ns") for step in host.steps) // count for part, _ in _PARTS)
    if spent and ((sampled is not None and sampled.lines) or spent[0][0] >= max(loading, ops, rest)):
        return spent[0][2]
    if host.ops and ops > max(loading, rest):
        longest = host.ops[0]
        return f"Start with the ops: {clean(longest.op, 80)} takes {duration(longest.time_ns // count)}."
    return "" if loading >= rest else "overlapscope run shows which lines take the time elsewhere."


def _spent(step: SampledStep) -> list[tuple[int, str, str]]:
    """Return the costliest function and the waits, the longest first, each with its time and what to do about it."""
    functions: dict[tuple[str, str], list[LineTime]] = {}
    for line in step.lines:
        functions.setdefault((line.line.rpartition(":")[0], line.function), []).append(line)
    spent = [
        (ns, words, IDLE[cause].remedy)
        for cause, words in _WAITS.items()
        if (ns := step.by_cause.get(cause, 0)) and ns >= _LEAST_WAIT * step.step_ns
    ]
    if functions:
        lines = max(functions.values(), key=lambda lines: sum(line.time_ns for line in lines))
        ns, first = sum(line.time_ns for line in lines), max(lines, key=lambda line: line.time_ns)
        name = clean(first.function if len(lines) > 1 else first.calls or first.function, 80)
        place = f"in {name} ({'mostly ' if len(lines) > 1 else ''}{clean(first.line, 80)})"
        spent.append((ns, place, f"Start with {name}: a step can become at most {duration(ns)} shorter."))
    return sorted(spent, key=lambda part: -part[0])


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
