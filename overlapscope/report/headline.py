"""Figures at the head of a report, each with its meaning."""

from __future__ import annotations

from msgspec import Struct

from overlapscope.analysis.figures import efficiency_shown, hidden_copy_shown
from overlapscope.analysis.results import Device, by_subject, missing_by_cause, missing_ns, partition
from overlapscope.base.words import bare_shares, between, capital, duration, percent, plural, share, shares_by_name
from overlapscope.catalog.buckets import bucket_of
from overlapscope.catalog.causes import Subject
from overlapscope.documents.model import Card
from overlapscope.report.charts import by_cause
from overlapscope.report.losses import WORTH_SAYING
from overlapscope.report.page import DeviceReport

_EFFICIENCY = (
    "The part of the possible overlap that happened. 0%: kernels and copies ran one at a time; 100%: no order of the "
    "same work would hide more."
)
_UNKNOWN = "{}, so the GPU's activity in that time is unknown."
"""Begins with the meaning of the bucket."""

MOST_CAUSES = 4
"""Number of a bucket's causes in a line; the bucket's page has all."""


class Reason(Struct, frozen=True):
    """Main causes of a bucket."""

    subject: Subject
    name: str
    causes: tuple[tuple[str, str], ...]
    """Causes with their share of the bucket, largest first."""


def reasons(section: DeviceReport, device: Device) -> tuple[Reason, ...]:
    """Return the causes that are worth mentioning of each bucket that has causes, the largest bucket first."""
    parts, reasons = partition(device), []
    subjects = [(parts[bucket_of(subject).name], subject) for subject, found in by_subject(device).items() if found]
    for bucket_ns, subject in sorted(subjects, key=lambda loss: -loss[0]):
        if bucket_ns >= WORTH_SAYING * device.span_ns and bucket_ns:
            causes = by_cause(section, subject)
            shares = shares_by_name(causes, bucket_ns)
            largest = tuple((cause, shares[cause]) for cause in causes)[:MOST_CAUSES]
            reasons.append(Reason(subject, subject.replace("-", " "), largest))
    return tuple(reasons)


def headlines(section: DeviceReport, device: Device) -> tuple[Card, ...]:
    """Return the figures of a device, the most telling first."""
    unit, buckets = section.unit, device.buckets
    idle_ns = buckets.idle_ns - missing_ns(device)
    missing = [(bucket_of(cause), ns) for cause, ns in missing_by_cause(device).items()]
    stall_ns = sum(stall.idle_caused_ns for stall in device.host_stalls)
    of = "of the step" if section.steps else "of the time"
    # The shares are those of the bar and of the table, which add up to 100.
    parts = partition(device)
    shares = dict(zip(parts, bare_shares(list(parts.values()), device.span_ns), strict=True))

    def part(name: str) -> str:
        return f"{shares[name]}% {of}"

    return (
        _step(section, device),
        *_overlap(section, device),
        Card(
            "exposed copy",
            unit.text(buckets.exposed_copy_ns),
            part("exposed copy") if device.overlap.copy_ns else "nothing was copied",
            "Time in which a copy ran and no kernel beside it: the GPU only moved data.",
        ),
        Card(
            "exposed comm",
            unit.text(buckets.exposed_comm_ns),
            part("exposed comm") if device.engines.comm_ns else "no communication",
            "Time in which a collective (NCCL and the like) ran and no other kernel beside it.",
        ),
        Card("idle", unit.text(idle_ns), part("idle"), "Time in which nothing ran on the GPU."),
        *(
            Card(bucket.name, unit.text(ns), part(bucket.name), _UNKNOWN.format(capital(bucket.meaning)))
            for bucket, ns in missing
        ),
        Card(
            "stall cost",
            unit.text(stall_ns),
            f"{share(stall_ns, idle_ns)} of idle" if stall_ns else "no call cost idle time",
            "The part of idle that blocking calls caused: the host waited in them and could launch nothing.",
        ),
        Card("compute", unit.text(buckets.compute_ns), part("compute"), "Time in which a kernel computed."),
    )


def _step(section: DeviceReport, device: Device) -> Card:
    """Return the length of an average step or, without steps, of the time that was judged."""
    plain, length = device.plain, section.unit.text(device.span_ns)
    name = "step" if section.steps else "time"
    if plain is None or not section.is_plain:
        count = f"average of {plural(section.steps, 'step')}, as recorded" if section.steps else "as recorded"
        return Card(name, length, count, "How long a step takes in the recording.")
    # No line ends between a number and its unit.
    interval = between(plain.low_ns, plain.high_ns).replace(" ", "\N{NO-BREAK SPACE}")
    between_ends = "" if plain.low_ns == plain.high_ns else f", {interval}"
    return Card(
        name,
        length,
        f"{plain.origin}{between_ends}",
        f"How long a step takes when nothing is recorded. In the recording: {duration(plain.recorded_step_ns)}.",
    )


def _overlap(section: DeviceReport, device: Device) -> tuple[Card, ...]:
    """Return how well copies overlap, as far as that is known."""
    efficiency, hidden = efficiency_shown(device), hidden_copy_shown(device)
    cards = []
    if efficiency is not None:
        cards.append(Card("overlap efficiency", percent(efficiency), "of what is possible", _EFFICIENCY))
    if hidden is not None:
        of = f"of {section.unit.text(device.overlap.copy_ns)}"
        cards.append(Card("hidden copy", percent(hidden), of, "The part of the copy time during which a kernel ran."))
    return tuple(cards)
