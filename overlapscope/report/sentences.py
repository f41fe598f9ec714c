"""Clauses on the time that a device loses, and sentences on the steps of a recording and on the cost of overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Final

from msgspec import Struct

from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.figures import Period, PhaseFigures
from overlapscope.analysis.results import Device, TraceResult, host_parts
from overlapscope.base.median import mean, median_ns
from overlapscope.base.words import (
    NOTHING,
    between,
    capital,
    clean,
    duration,
    ends,
    fill,
    listed,
    noun_for,
    plural,
    share,
    size,
)
from overlapscope.catalog.causes import CAUSES, IDLE, WORK_UNKNOWN, Cause, CopyCause, IdleCause, OtherCause, Subject
from overlapscope.report.page import DeviceReport
from overlapscope.trace.model import OwnPeriod
from overlapscope.trace.servers import phase_in

WORTH_SAYING = 0.01
"""Share of the time below which a cost is not worth a sentence, as in the rules."""
LONG_STEP_RATIO = 1.5
"""Minimum length of a long step, as a multiple of the median."""


_NO_LOSS: Final = WORK_UNKNOWN | {IdleCause.AWAITING_REQUESTS}


def unmeasured_ns(device: Device) -> int:
    """Return the time of the judged step before its first GPU op that no figure includes."""
    return 0 if device.outside is None else device.outside.unmeasured_ns


def unjudged_ns(device: Device) -> tuple[int, int, int]:
    """Return the parts of a recording that no figure of the device includes; 0 for those that are hardly any.

    These are the lead-in, and the time of ops on the host before any device's first op and after the last.
    """
    # If nothing is left after the lead-in, the figures are of it.
    ahead_ns = 0 if device.judged is None else device.lead_in_ns or 0
    judged_ns = device.span_ns * (1 if device.per_step is None else device.per_step.steps)
    lead_in_ns, before_ns, after_ns = (
        ns if ns >= max(1, _HARDLY_ANY * judged_ns) else 0
        for ns in (ahead_ns, device.host_before_ns, device.host_after_ns)
    )
    return lead_in_ns, before_ns, after_ns


_HARDLY_ANY: Final = 0.05
"""Share of the judged time below which time that isn't judged is not worth a sentence."""


def lost_ns(device: Device) -> int:
    """Return the time in which the device doesn't compute, without what no order of the same work can change."""
    buckets, by_cause = device.buckets, device.exposed_copy_by_cause
    # The lead-in cannot be judged, and a server without requests has nothing to do.
    no_loss = (IdleCause.LEAD_IN, IdleCause.AWAITING_REQUESTS)
    idle_ns = buckets.idle_ns - device.missing_ns - sum(device.idle_by_cause.get(cause, 0) for cause in no_loss)
    fixed_ns = by_cause.get(CopyCause.LEAD_IN, 0) + by_cause.get(CopyCause.NO_COMPUTE, 0)
    return buckets.exposed_copy_ns - fixed_ns + buckets.exposed_comm_ns + buckets.exposed_other_ns + idle_ns


class Loss(Struct, frozen=True):
    """Lost time of a kind."""

    ns: int
    clause: str
    name: str = ""
    """The loss where it is the main one, such as `Launch-bound`."""
    is_idle: bool = False


_ALONE: Final[Mapping[str, str]] = {
    OtherCause.PEER_COPY: "copies between {gpu}s run",
    OtherCause.PAGE_MIGRATION: "migrations of managed memory run",
    OtherCause.DEVICE_COPY: "copies within the {gpu} run",
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


OF_HOST: Final[Mapping[str, str]] = {
    IdleCause.GRAPH_CAPTURE: "; for {time} the host captures a {graph}",
    IdleCause.FIRST_LAUNCH: "; for {time} the host launches kernels for the first time",
    IdleCause.NOT_RECORDED: "; what the host did was not recorded",
}
"""Main causes of idle time that are no fault of the program, in words."""


def of_device(device: Device, *, lost: bool, reach: str) -> list[Loss]:
    """Return clauses on copies, communication and idle time, each with its time.

    Negligible losses are left out, unless there is no other. `lost` is whether the recording may lack copies; `reach`
    stands before idle time of which a part may be the profiler's.
    """
    buckets, span, missing = device.buckets, device.span_ns, device.missing_by_cause
    awaiting = device.idle_by_cause.get(IdleCause.AWAITING_REQUESTS, 0)
    idle, worth = buckets.idle_ns - device.missing_ns - awaiting, max(1, WORTH_SAYING * span)
    found = []
    if device.copies_matter:
        found.append(Loss(buckets.exposed_copy_ns, _copies(device), "Copy-bound"))
    if buckets.exposed_comm_ns >= worth:
        clause = f"communication runs alone for {duration(buckets.exposed_comm_ns)}"
        clause += f" ({share(buckets.exposed_comm_ns, span)})"
        found.append(Loss(buckets.exposed_comm_ns, clause, "Communication-bound"))
    if buckets.exposed_other_ns >= worth:
        most_ns, cause = max((ns, cause) for cause, ns in device.exposed_other_by_cause.items())
        alone = _ALONE.get(cause, "") if 2 * most_ns > buckets.exposed_other_ns else ""
        shown_ns = most_ns if alone else buckets.exposed_other_ns
        clause = fill(alone or "memory work of the {gpu} runs", device.gpu)
        clause += f" alone for {duration(shown_ns)} ({share(shown_ns, span)})"
        found.append(Loss(buckets.exposed_other_ns, clause))
    if idle >= worth:
        explained = {cause: ns for cause, ns in device.idle_by_cause.items() if cause not in _NO_LOSS}
        most_ns, cause = max(((ns, cause) for cause, ns in explained.items()), default=(0, ""))
        by_name = Counter[str]()
        for each, ns in filter(itemgetter(1), explained.items()):
            by_name[_BOUND.get(each, "Host-bound" if IDLE[each].by_host and IDLE[each].words.fixing else "")] += ns
        name, named_ns = by_name.most_common(1)[0] if by_name else ("", 0)
        clause = f"the {device.gpu} is idle for {reach}{duration(idle)} ({share(idle, span)}"
        mostly = most_ns > idle // 2
        of_host = OF_HOST.get(cause, ", mostly {cause}")
        of_host = fill(of_host, device.gpu).format(cause=cause, time=duration(most_ns))
        clause += f"{of_host})" if mostly else ")"
        found.append(Loss(idle, clause, name if named_ns > idle // 2 else "", is_idle=True))
    for unknown, ns in missing.items():
        if ns >= worth:
            found.append(Loss(ns, _UNKNOWN[unknown].format(f"{duration(ns)} ({share(ns, span)})", gpu=device.gpu)))
    before_ns = unmeasured_ns(device)
    if before_ns >= worth:
        found.append(Loss(before_ns, f"the {device.gpu} waited {duration(before_ns)} for its first op", "Host-bound"))
    if not device.overlap.copy_ns and lost:
        return found or [Loss(0, "no copy between host and device is left in the recording")]
    return found or [Loss(0, _copies(device))]


_UNKNOWN: Final[Mapping[str, str]] = {
    IdleCause.MISSING_OPS: "{gpu} ops are missing from the recording for {}",
    IdleCause.UNRECORDED: "the recorded steps lack {}",
}


def _copies(device: Device) -> str:
    """Return how far copies are hidden."""
    overlap, exposed = device.overlap, device.buckets.exposed_copy_ns
    if not overlap.copy_ns:
        return "nothing is copied between host and device"
    if not device.copies_matter:
        return f"copies take only {duration(overlap.copy_ns)}"
    if not exposed:
        return f"all {duration(overlap.copy_ns)} of copies are hidden under compute"
    if exposed < WORTH_SAYING * device.span_ns:
        return f"all but {duration(exposed)} of the {duration(overlap.copy_ns)} of copies are hidden under compute"
    unhideable = device.exposed_copy_by_cause.get(CopyCause.NO_COMPUTE, 0)
    part = ", " if duration(unhideable) == duration(exposed) else f"; {duration(unhideable)} "
    why = f"{part}because they outlast compute"
    return (
        f"copies run alone for {duration(exposed)} ({share(exposed, device.span_ns)}"
        f"{why if unhideable >= max(1, WORTH_SAYING * device.span_ns) else ''})"
    )


def main_cause(device: Device) -> tuple[int, Subject, Cause]:
    """Return the largest cause of all buckets that have causes, with its time and the bucket."""
    all_causes = (
        (ns, subject, CAUSES[subject][cause])
        for subject, by_cause in device.by_subject.items()
        for cause, ns in by_cause.items()
        if cause != IdleCause.AWAITING_REQUESTS
    )
    return max(all_causes, key=lambda each: each[0])


# -- Steps: how much they differ, how they were found, and what lies outside them ------------------


def rate(per_s: float | None) -> str:
    """Return a number of tokens a second in words, such as `4.2` or `1,310`."""
    if per_s is None:
        return NOTHING
    return f"{per_s:,.1f}" if per_s < _MAX_RATE_WITH_DECIMAL else f"{per_s:,.0f}"


_MAX_RATE_WITH_DECIMAL = 100
"""Rate below which a decimal is shown."""
_MIN_MEAN_DIFFERENCE = 0.02
"""Share of the median by which the average must differ to be shown."""


def phase_words(device: Device, what: str = "steps") -> str:
    """Return the steps that the figures are about in words, such as `decode steps of 32 requests`.

    Empty if no server marked them. `what` is `step` for a single one.
    """
    if not device.served or device.per_step is None or not device.per_step.phase:
        return ""
    figures = next(each for each in device.served.phases if each.phase == device.per_step.phase)
    requests, phase = requests_words(figures), "" if figures.phase == "unclear" else f"{figures.phase} "
    return f"{phase}{what}" + (f" of {requests} request{'' if requests == '1' else 's'}" if requests else "")


def is_last_judged(device: Device) -> bool:
    """Return whether the only judged step of a server is the last one, which ends with the recording."""
    judged = judged_steps(device) if device.served and device.steps else ()
    return judged == (len(device.steps) - 1,)


def graphs_sentence(device: Device, *, verbose: bool) -> str:
    """Return which GPU ops of CUDA graphs have a known place in the program; empty if that is not worth saying."""
    graphs = device.graphs
    if not graphs or (not verbose and (not graphs.captured or graphs.known_count == graphs.count)):
        return ""
    whole = f"{plural(graphs.count, 'GPU op')} of CUDA graphs ({duration(graphs.time_ns)})"
    if not graphs.captured:
        return f"The op and line at the capture are unknown for {whole}; --capture names recordings of captures."
    known = f"{graphs.known_count:,} ({duration(graphs.known_time_ns)})"
    if graphs.known_count == graphs.count:
        return f"The op and line at the capture are known for all {whole}."
    return f"The op and line at the capture are known for {known} of {whole}; no single capture fits the others."


def requests_words(figures: PhaseFigures) -> str:
    """Return the number of requests in a step, such as `8` or `4 to 32`; empty if unknown."""
    least, most = figures.fewest_requests, figures.most_requests
    if least is None or most is None:
        return ""
    return ends(f"{least:,}", f"{most:,}")


def steps_sentence(steps: Sequence[Period], trace: TraceResult, device: Device | None = None) -> str:
    """Return how much judged steps differ, how they were found, and what lies outside them.

    `All figures are averages of 9 steps, which take 23 to 761 ms (27.5 ms in the median). 3 of them take over 1.5
    times the median, mostly because of idle time (data-loading).`
    """
    average = None if device is None else device.per_step
    phase = f"{average.phase} " if average is not None and average.phase and average.phase != "unclear" else ""
    averages = f"The {plural(len(steps), 'judged step')} of the recording"
    if device is not None:
        averages = f"All figures are averages of {plural(len(steps), f'{phase}step')}, which"
    sentences = [*_spread(steps, averages, _host_parts if device is None else partial(_parts_on, device.gpu))]
    if device is not None and is_last_judged(device):
        step = phase_words(device, "step")
        sentences.append(f"The only {step} ends with the recording, so the time until the next step is not known.")
    if isinstance(trace.step_source, str):
        sentences.append(f"Steps: {clean(trace.step_source)}.")
    if isinstance(trace.period, OwnPeriod):
        sentences.append(trace.period.sentence(noun_for(trace.environment.gpus)))
    if device is not None and device.served and device.served.tokens_per_s:
        tokens_per_s, decoded_per_s = device.served.tokens_per_s, device.served.decode_tokens_per_s
        of_decode = (
            f", {rate(decoded_per_s)} of them by decoding" if decoded_per_s and decoded_per_s < tokens_per_s else ""
        )
        phases = "Steps of all phases together" if len(device.served.phases) > 1 else f"{phase}steps".capitalize()
        sentences.append(f"{phases} compute {rate(tokens_per_s)} tokens a second{of_decode}.")
    if device is not None and device.served and device.served.awaiting_requests_ns:
        waited = duration(device.served.awaiting_requests_ns)
        sentences.append(f"The server waited for requests for {waited}, which belongs to no step.")
    sentences.append("" if device is None else _outside_sentence(device))
    if device is not None and (device.outside is None or isinstance(trace.period, OwnPeriod)):
        sentences.append(_unjudged_sentence(device))
    sentences.append("" if device is None else none_whole(device))
    if device is not None and average is not None and device.steps:
        last = device.steps[-1]
        alike = phase_in(last.name) == (average.phase or None)
        first = device.steps[0]
        if (
            average.first
            and not first.partial
            and not average.phase
            and first.span_ns > LONG_STEP_RATIO * average.span_ns
        ):
            sentences.append(f"The first step took {duration(first.span_ns)}; it is taken for warm-up, and not judged.")
        if alike and last.span_ns > LONG_STEP_RATIO * average.span_ns and average.steps > 1:
            sentences.append(
                f"The last step is not judged; it ends with the recording, after {duration(last.span_ns)}."
            )
    return " ".join(filter(None, sentences))


def _spread(steps: Sequence[Period], averages: str, parts_of: Callable[[Period], Mapping[str, int]]) -> Iterator[str]:
    """Yield how much steps differ, and the part that grows most in long ones; nothing for fewer than two."""
    spans = [step.span_ns for step in steps]
    if len(spans) < 2:
        return
    usual_ns, least_ns, most_ns = median_ns(spans), min(spans), max(spans)
    length = f"{duration(most_ns)} each" if duration(least_ns) == duration(most_ns) else between(least_ns, most_ns)
    # The average is already known, and the median adds something only if it differs.
    two = abs(round(mean(spans)) - usual_ns) > _MIN_MEAN_DIFFERENCE * usual_ns
    yield f"{averages} take {length}{f' ({duration(usual_ns)} in the median)' if two else ''}."
    long = [parts_of(step) for step in steps if step.span_ns > LONG_STEP_RATIO * usual_ns]
    # With two steps, neither is typical.
    if long and len(spans) > 2:
        usual = [parts_of(step) for step in steps if step.span_ns <= LONG_STEP_RATIO * usual_ns]
        grown = {
            name: mean(part.get(name, 0) for part in long) - mean(part.get(name, 0) for part in usual)
            for name in sorted({name for part in long for name in part})
        }
        cause = max(grown, key=lambda name: grown[name])
        few = "1 of them takes" if len(long) == 1 else f"{len(long):,} of them take"
        more = f"({duration(round(grown[cause]))} more)"
        yield f"{few} over {LONG_STEP_RATIO} times the median, mostly because of {clean(cause, 60)} {more}."


def _host_parts(step: Period) -> dict[str, int]:
    """Return the parts of a step on the host. The recording doesn't show what fills the time outside of ops."""
    elsewhere = "time elsewhere, such as in Python"
    return {elsewhere if name == IdleCause.PYTHON else name: ns for name, ns in host_parts(step).items()}


def _parts_on(gpu: str, step: Period) -> dict[str, int]:
    """Return the parts of a step on a device: its buckets, all but the first divided by cause."""
    return {
        "compute": step.buckets.compute_ns,
        **{f"exposed copies ({cause})": ns for cause, ns in step.exposed_copy_by_cause.items()},
        **{f"exposed communication ({cause})": ns for cause, ns in step.exposed_comm_by_cause.items()},
        **{f"memory work of the {gpu} ({cause})": ns for cause, ns in step.exposed_other_by_cause.items()},
        **{f"idle time ({cause})": ns for cause, ns in step.idle_by_cause.items()},
    }


def none_whole(device: Device) -> str:
    """Return that steps were recorded but none as a whole, in a sentence; empty otherwise."""
    if device.per_step is not None or not device.steps:
        return ""
    count = len(device.steps)
    which = f"{clean(device.steps[0].name, 60)} was not" if count == 1 else f"None of the {count:,} steps was"
    return f"{which} recorded as a whole, so figures are of all that was recorded."


def _unjudged_sentence(device: Device) -> str:
    """Return what is not judged of a recording that marks no steps, besides the time outside those that were found.

    Example: `Not judged: 8.60 s of the host before the first GPU op.`
    """
    gpu = device.gpu
    parts = zip(
        unjudged_ns(device),
        (
            f"in which the {gpu} worked off what was launched before the recording",
            f"of the host before the first {gpu} op",
            f"of the host after the last {gpu} op",
        ),
        strict=True,
    )
    unjudged = [f"{duration(ns)} {words}" for ns, words in parts if ns]
    return f"Not judged: {listed(unjudged)}." if unjudged else ""


def _outside_sentence(device: Device) -> str:
    """Return the time and the copies outside the steps.

    Example: `Outside the steps: 3.20 s, 13.6 GB H2D.`
    """
    outside, judged = device.outside, device.judged
    if outside is None or judged is None:
        return ""
    length, copied = outside.before_ns + outside.after_ns, {"h2d": outside.h2d_bytes, "d2h": outside.d2h_bytes}
    recorded = {way: sum(group.judged_bytes for group in device.copies if group.direction == way) for way in copied}
    much = [part is None or part >= max(1, WORTH_SAYING * recorded[way]) for way, part in copied.items()]
    if length < WORTH_SAYING * judged.span_ns and not any(much):
        return ""
    copies = [f"{size(part)} {way.upper()}" for way, part in copied.items() if part]
    copies += [f"{way.upper()} of unknown size" for way, part in copied.items() if part is None]
    return f"Outside the steps: {', '.join([duration(length), *copies])}."


def overlap_sentence(section: DeviceReport) -> str:
    """Return what overlap costs at the lower end of its 95% interval, for each kind of work where that is much."""
    recorded = section.window
    frame = None if recorded is None else recorded.per_step or recorded.judged
    if recorded is None or frame is None:
        return ""
    where, a_step = "In the recording, " if section.is_plain else "", " a step" if frame is recorded.per_step else ""
    sentences = [
        f"{where}{result.beside} is hidden for {duration(result.hidden_ns)}{a_step}, but kernels beside it "
        f"probably run at least {duration(result.slowed_low_ns)} ({share(result.slowed_low_ns, frame.span_ns)}) "
        "longer than alone."
        for result in section.net_overlap
        if result.slowed_low_ns is not None and result.slowed_low_ns >= max(1, WORTH_SAYING * frame.span_ns)
    ]
    return " ".join(map(capital, sentences))
