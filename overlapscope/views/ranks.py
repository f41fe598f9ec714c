"""The ranks of a job beside one another: as a table, and in sentences on who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlapscope.analysis.ranks import Waits
from overlapscope.analysis.results import Device
from overlapscope.analysis.spans import median_step
from overlapscope.views.grids import Cell, Field, Grid, Row
from overlapscope.views.page import Section
from overlapscope.words import NOTHING, Unit, bare_percent, clean, plural, share, unit_for


@dataclass(frozen=True, slots=True)
class Rank:
    """One device of one trace, under the name it has among the others."""

    trace: str
    """What the caller calls the trace."""
    name: str
    section: Section
    device: Device


def named(sections: Sequence[tuple[str, Section]]) -> tuple[Rank, ...]:
    """The devices of several traces, by rank; traces that do not say theirs keep their order behind those that do."""
    found = [(id, section, section.device) for id, section in sections if section.device is not None]
    found.sort(key=lambda one: (one[1].trace.rank is None, one[1].trace.rank or 0))
    plain = [
        f"rank {section.trace.rank}" if section.trace.rank is not None else id.rpartition("/")[2]
        for id, section, _ in found
    ]
    return tuple(
        Rank(id, name if plain.count(name) == 1 else f"{name}, device {device.device}", section, device)
        for name, (id, section, device) in zip(plain, found, strict=True)
    )


def unit_of(ranks: Sequence[Rank]) -> Unit:
    """One unit for all, so that they can be compared at a glance."""
    return unit_for(max((rank.device.span_ns for rank in ranks), default=0))


def table(ranks: Sequence[Rank], waits: Waits | None) -> Grid:
    """One row for each rank."""
    unit = unit_of(ranks)
    longest = max((len(rank.name) for rank in ranks), default=0)
    fields = [
        Field("rank", "rank", number=False, width=min(260, 60 + 8 * longest)),
        Field("span", f"span, {unit.name}", width=100),
        Field("step", f"median step, {unit.name}", width=110),
        Field("efficiency", "efficiency, %", width=100),
        Field("compute", f"compute, {unit.name}", width=105),
        Field("copy", f"exposed copy, {unit.name}", width=115),
        Field("comm", f"exposed comm, {unit.name}", width=115),
        *([Field("waited", f"waited for others, {unit.name}", width=125)] if waits else []),
        Field("idle", f"idle, {unit.name}", width=95),
        Field("trust", "trust", number=False, width=110),
    ]
    rows = []
    for number, rank in enumerate(ranks):
        stated = rank.section.trace.rank
        device, buckets, step = rank.device, rank.device.buckets, median_step(rank.device)
        efficiency = device.overlap.efficiency_pct
        cells = [
            Cell(rank.name if stated is None else stated, clean(rank.name, 80)),
            _time(device.span_ns, unit),
            _time(step.span_ns, unit) if step else Cell(None, NOTHING),
            Cell(efficiency, bare_percent(efficiency)),
            *(_time(ns, unit) for ns in (buckets.compute_ns, buckets.exposed_copy_ns, buckets.exposed_comm_ns)),
            *([_time(waits.ranks[number].waited_ns, unit)] if waits else []),
            _time(buckets.idle_ns, unit),
            Cell(rank.section.trace.trust.verdict, rank.section.trace.trust.verdict),
        ]
        rows.append(Row(tuple(cells)))
    return Grid(tuple(fields), tuple(rows))


def _time(ns: int, unit: Unit) -> Cell:
    return Cell(ns / unit.ns, unit.number(ns))


def who_waits(ranks: Sequence[Rank], waits: Waits | None) -> str:
    """Who waits for whom, as far as that can be told."""
    if waits is None:
        return "Not all of these traces hold communication, so nothing can be said about who waits for whom."
    unit = unit_of(ranks)
    compared = f"in the {plural(len(waits.steps), 'step')} that all have" if waits.steps else "over the whole windows"
    if waits.straggler is None:
        return f"The ranks are even {compared}: none makes the others wait in most steps for 2 % of the time or more."
    slow = waits.ranks[waits.straggler]
    often = f"it came last in {slow.last_in} of {len(waits.steps)} steps" if waits.steps else "it came last"
    lost = f"{unit.text(waits.lost_ns)} ({share(waits.lost_ns, slow.span_ns)})"
    whom = "the other rank" if len(ranks) == 2 else "each of the others, on average,"
    return (
        f"{ranks[waits.straggler].name[:1].upper()}{ranks[waits.straggler].name[1:]} seems to be the straggler: "
        f"{often}, and {whom} waited {lost} for it {compared}."
    )


HINT = (
    "A hint, no proof: a collective ends when the last rank arrives, so the rank with the least exposed communication "
    "is taken for the one that came last, and what the others have beyond it for waiting. A wait that compute hides is "
    "not seen, and ranks that talk in groups (tensor or pipeline parallel) wait for their own group only."
)
"""What stands below such a sentence."""
