"""The figures at the head of a report, each with what it means."""

from __future__ import annotations

from dataclasses import dataclass

from overlapscope.analysis.results import Device, copies_matter, efficiency_shown, hidden_copy_shown, missing_ns
from overlapscope.base.words import NOTHING, bare_shares, percent, share
from overlapscope.catalog.causes import Subject
from overlapscope.documents.model import Card
from overlapscope.report.charts import by_cause
from overlapscope.report.page import Section
from overlapscope.report.verdict import WORTH_SAYING

_MISSING = "The host waited for GPU ops that were not recorded: nobody can say what the GPU did then."

MOST_CAUSES = 4
"""Of a bucket, in one line; its page has all."""


@dataclass(frozen=True, slots=True)
class Reason:
    """What a bucket is mostly due to."""

    subject: Subject
    name: str
    causes: tuple[tuple[str, str], ...]
    """Each cause with its share of the bucket, largest first."""


def reasons(section: Section, device: Device) -> tuple[Reason, ...]:
    """Why copies are exposed and the GPU is idle, where that is worth saying: the largest bucket first."""
    buckets = device.buckets
    idle_ns = buckets.idle_ns - missing_ns(device)
    subjects: tuple[tuple[int, Subject], ...] = ((buckets.exposed_copy_ns, "exposed-copy"), (idle_ns, "idle"))
    found = []
    for whole, subject in sorted(subjects, key=lambda one: -one[0]):
        if whole >= WORTH_SAYING * device.span_ns and whole:
            causes = by_cause(section, subject)
            shares = zip(causes, bare_shares(list(causes.values()), whole), strict=True)
            found.append(Reason(subject, subject.replace("-", " "), tuple(shares)[:MOST_CAUSES]))
    return tuple(found)


def headlines(section: Section, device: Device) -> tuple[Card, ...]:
    """The figures of a device, the most telling first."""
    unit, buckets = section.unit, device.buckets
    idle_ns, missing = buckets.idle_ns - missing_ns(device), missing_ns(device)
    stall_ns = sum(stall.idle_caused_ns for stall in device.host_stalls)

    def of_span(ns: int) -> str:
        return f"{share(ns, device.span_ns)} of the span"

    return (
        Card(
            "efficiency",
            percent(efficiency_shown(device)),
            _overlapped(section, device),
            "How much of the overlap that was possible happened. 0: kernels and copies ran one at a time; 100: no "
            "order of the same work would hide more.",
        ),
        Card(
            "hidden copy",
            percent(hidden_copy_shown(device)),
            _copied(section, device),
            "How much of the time in which data moved between host and device a kernel ran beside it.",
        ),
        Card(
            "exposed copy",
            unit.text(buckets.exposed_copy_ns),
            of_span(buckets.exposed_copy_ns),
            "A copy ran, and no kernel beside it: the GPU only moved data.",
        ),
        Card(
            "exposed comm",
            unit.text(buckets.exposed_comm_ns),
            of_span(buckets.exposed_comm_ns) if device.engines.comm_ns else "no communication",
            "A collective (NCCL and the like) ran, and no other kernel beside it.",
        ),
        Card(
            "idle",
            unit.text(idle_ns),
            of_span(idle_ns),
            "Nothing ran on the GPU at all.",
        ),
        *([Card("missing ops", unit.text(missing), of_span(missing), _MISSING)] if missing else []),
        Card(
            "stall cost",
            unit.text(stall_ns),
            f"{share(stall_ns, idle_ns)} of idle" if stall_ns else "no call cost idle time",
            "Idle time because the host sat in a blocking call and could launch nothing. It is a part of idle.",
        ),
        Card(
            "span",
            unit.text(device.span_ns),
            f"compute {share(buckets.compute_ns, device.span_ns)}" if device.span_ns else NOTHING,
            "From the first GPU op's start to the last one's end: what every share here is a share of.",
        ),
    )


def _copied(section: Section, device: Device) -> str:
    copies = device.overlap.copy_ns
    if not copies:
        return "nothing was copied"
    return f"{'of' if copies_matter(device) else 'copies take only'} {section.unit.text(copies)}"


def _overlapped(section: Section, device: Device) -> str:
    if device.overlap.efficiency_pct is None:
        return "only one engine worked"
    return "of the possible overlap" if copies_matter(device) else _copied(section, device)
