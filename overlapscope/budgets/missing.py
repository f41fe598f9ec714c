"""Reasons why something cannot be judged: unreliable figures, absent ranks, nothing to measure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from overlapscope.analysis.figures import COPIES_MATTER_FROM
from overlapscope.analysis.results import TraceResult
from overlapscope.base.words import clean, listed, percent
from overlapscope.budgets.metrics import Direction, Metric, Sample, copy_ns
from overlapscope.budgets.samples import Series
from overlapscope.catalog.checks import check_by_id
from overlapscope.compare.environment import fingerprint
from overlapscope.errors import UsageError
from overlapscope.report.model import Report
from overlapscope.trace.lost import Part, part_words

_LISTED = 80
"""Maximum number of absent ranks to list; a job may have thousands."""
_NOTED = 8
"""Maximum number of absent ranks that get a warning each."""


def doubt(trace: TraceResult, rests_on: Collection[Part]) -> str | None:
    """Return the reason why figures computed from these parts of a recording are unreliable; None if they are not."""
    for check in sorted(
        trace.trust.checks, key=lambda check: (not check_by_id(check.id).grave, check.status != "fail")
    ):
        lost = check.lost_parts.intersection(rests_on)
        if lost:
            problem = f"some {part_words(lost)} are lost or wrong, according to the trust check {check.id}"
            if check.status == "fail":
                problem = f"the trust check {check.id} failed"
            problem = check_by_id(check.id).grave or problem
            return f"{problem} ({clean(check.detail, 300).rstrip('.')})"
    return None


def refuse_predicted(report: Report) -> None:
    """Raise UsageError if a trace was predicted instead of recorded."""
    for trace in report.traces:
        if trace.predicted_by is not None:
            changes = ", ".join(trace.predicted_by) or "with nothing changed"
            raise UsageError(
                f"{trace.source}: was predicted by `overlapscope whatif` ({clean(changes, 120)}), and is not a "
                "recording; name a recording of the changed program, or pass --allow-predicted."
            )


def absent_ranks(report: Report, expected: Collection[int]) -> dict[int, str]:
    """Return the ranks of the job whose traces were not given, each with the reason it was expected.

    The traces state how many ranks the job had; `expected` are the ranks of the baseline.
    """
    present = {trace.rank for trace in report.traces if trace.rank is not None}
    size = (fingerprint(report).world_size or 0) if present else 0
    absent = {
        rank: f"its trace was not given, and the job had {size} ranks"
        for rank in range(min(size, len(present) + _LISTED))
        if rank not in present
    }
    if present or len(expected) > 1:
        for rank in sorted(set(expected) - present):
            absent.setdefault(rank, "its trace was not given, and the baseline has it")
    return absent


def absence_notes(absent: Mapping[int, str]) -> Iterator[str]:
    """Yield a sentence about each of the first absent ranks, and a sentence about the others."""
    yield from (f"rank {rank}: {reason}." for rank, reason in islice(absent.items(), _NOTED))
    if len(absent) > _NOTED:
        more = len(absent) - _NOTED
        # More ranks than are listed may be absent.
        least = "At least " if len(absent) >= _LISTED else ""
        yield f"{least}{more} more {'rank was' if more == 1 else 'ranks were'} not given."


def mixed_notes(report: Report) -> Iterator[str]:
    """Yield a warning if several traces have the same rank or state no rank, since they may be of different jobs."""
    if len(report.traces) < 2:
        return
    sources: dict[int | None, list[str]] = {}
    for trace in report.traces:
        sources.setdefault(trace.rank, []).append(trace.source)
    for rank, of_rank in sources.items():
        if len(of_rank) > 1:
            named = listed((clean(source, 200) for source in of_rank), 2)
            which = "name no rank" if rank is None else f"are all of rank {rank}"
            yield f"{named} {which}, and are judged as one job; check traces of different jobs separately."


def lacking(metric: Metric, direction: Direction | None, samples: tuple[Sample, ...], values: Series) -> str | None:
    """Return what the samples lack for a metric to be computed; None if they lack nothing."""
    if metric.needs == "copies" and not any(copy_ns(sample, direction) for sample in samples):
        way = f"{direction} " if direction else ""
        return f"there are no {way}copies between host and device"
    if values.numbers and (problem := _too_little_copied(metric, direction, samples)):
        return problem
    if metric.needs == "comm" and not any(sample.figures.engines.comm_ns for sample in samples):
        return "there is no communication"
    if values.numbers:
        return None
    if metric.needs == "host":
        gc = metric.id == "gc_ms_per_step" and any(sample.figures.host is not None for sample in samples)
        return (
            "the recorder did not mark runs of Python's garbage collector"
            if gc
            else "the ops of the launching thread were not recorded, or there are no steps"
        )
    if metric.id == "efficiency_pct":
        return "only one engine worked, so there was nothing to overlap"
    if metric.id == "copy_bandwidth":
        return "no copy states its size, or the copies are so small that they only show latency"
    return "there is nothing to measure"


def _too_little_copied(metric: Metric, direction: Direction | None, samples: Sequence[Sample]) -> str | None:
    """Return the reason why a percentage of copies means nothing: they take almost no time."""
    if metric.unit != "pct" or "exposed-copy" not in metric.blames:
        return None
    copies = sum(copy_ns(sample, direction) for sample in samples)
    span = sum(sample.figures.span_ns for sample in samples)
    if copies >= COPIES_MATTER_FROM * span:
        return None
    way = f"{direction} " if direction else ""
    took = percent(100 * copies / span)
    return f"{way}copies take {took} of the time, too little for a meaningful percentage"
