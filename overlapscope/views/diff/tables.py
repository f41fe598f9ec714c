"""The tables of a diff as text cells, for any view to lay out.

What did not change, or by no more than noise, is counted and left out, unless more is asked for. What adds up to a
whole is always there, so that it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from overlapscope.base.words import Unit, clean
from overlapscope.compare.difference import (
    Change,
    CopyChange,
    DeviceDiff,
    Diff,
    Figures,
    FindingChange,
    KernelChange,
    OpChange,
    RangeDiff,
    StallChange,
)
from overlapscope.views.diff.rows import (
    INTERVAL,
    MOST,
    NOISE_FLOOR,
    RELATIVE,
    Group,
    Line,
    change_table,
    group_table,
    kept,
    left_out,
    longest,
    there_is,
)
from overlapscope.views.diff.words import (
    BETTER,
    MARKS,
    WORSE,
    Good,
    basis,
    device_title,
    finding_standing,
    interval,
    mark,
    number,
    pair,
    relative,
    side_name,
    signed,
    trust,
    unit_of,
    worth_showing,
)
from overlapscope.views.old_tables import Column, Table, text

LAUNCHED_BY = "launched by"
WHAT = "what was found"

FINDINGS = "Findings"
"""The title of their table."""
_TONES: Final[dict[str, str]] = {BETTER: "good", WORSE: "poor"}
FINDING_TONES: Final[dict[str, str]] = {
    "gone": "good",
    "shrunk": "good",
    "new (good)": "good",
    "new": "poor",
    "grown": "poor",
    "gone (bad)": "poor",
}

_NAME_LIMIT = 200
_LOST: Final = {"exposed copy": "+/- exp. copy", "exposed comm": "+/- exp. comm", "idle": "+/- idle"}
"""Buckets of which only the change is shown, by the titles of their columns."""

DROPPABLE: Final = (INTERVAL, LAUNCHED_BY, NOISE_FLOOR, RELATIVE, WHAT, *_LOST.values())
"""Titles of columns that a table can do without where there is not enough room, in this order."""


def tones(table: Table) -> dict[str, str]:
    """Cells whose words tell good from bad, each with the palette's name of its colour."""
    # Of copies and kernels, what is new is not bad.
    return _TONES | (FINDING_TONES if table.title == FINDINGS else {})


# -- both sides -----------------------------------------------------------------------------------


def sides(diff: Diff) -> Table:
    """What is compared."""
    rows = []
    for word, side, other in (("before", diff.before, diff.after), ("after", diff.after, diff.before)):
        made = side.environment
        versions = [f"torch {made.torch}"] if made.torch else []
        versions += [f"CUDA {made.cuda}"] if made.cuda else []
        rows.append(
            (
                word,
                side_name(side, other),
                clean(", ".join(made.gpus), 60) or "unknown",
                clean(", ".join(versions), 60) or "unknown",
                trust(side),
            )
        )
    columns = (text(""), text("trace", flexible=True), text("GPU", flexible=True), text("recorded with", flexible=True))
    note = (
        "Figures are without what recording costs: corrected to plain steps."
        if diff.of == "plain"
        else "Figures include what recording costs the host."
    )
    return Table("What is compared", (*columns, text("trust", flexible=True)), tuple(rows), note)


def doubts(diff: Diff) -> list[tuple[str, str]]:
    """What differs, and what can still be compared."""
    return [(clean(doubt.detail, 1000), f"What still holds: {clean(doubt.holds, 1000)}") for doubt in diff.doubts]


def summary(diff: Diff) -> Table:
    """One row for each device of several."""
    unit = unit_of(device.figures.span for device in diff.devices)
    rows = []
    for device in diff.devices:
        span = device.figures.span
        changes = [signed("ns", _bucket(device.figures, name).change, unit) for name in _LOST]
        times = [number("ns", value, unit) for value in (span.before, span.after)]
        span_cells = (*times, signed("ns", span.change, unit), relative(span), mark(span, "less"))
        rows.append((device_title(diff, device), *span_cells, *changes))
    titles = (f"before {unit.name}", "after", "change", RELATIVE)
    return Table(
        "Each device",
        (text("span of each device", flexible=True), *map(Column, titles), text(""), *map(Column, _LOST.values())),
        tuple(rows),
        f"{MARKS}.",
    )


def _bucket(figures: Figures, name: str) -> Change:
    return next(one for one in figures.buckets if one.name == name)


# -- one device -----------------------------------------------------------------------------------


def of_device(device: DeviceDiff, *, verbose: bool) -> list[Table]:
    """All tables in order; the empty ones left out."""
    tables = [buckets(device), *causes(device, verbose=verbose), *details(device, verbose=verbose)]
    return [table for table in tables if table.rows]


def causes(device: DeviceDiff, *, verbose: bool) -> list[Table]:
    """What the change in exposed copy and in idle is due to."""
    exposed = _causes(device, "exposed copy", device.figures.exposed_copy_by_cause, verbose)
    return [exposed, _causes(device, "idle", device.figures.idle_by_cause, verbose)]


def details(device: DeviceDiff, *, verbose: bool) -> list[Table]:
    """What lies behind it."""
    return [
        findings(device, verbose=verbose),
        overlap(device, verbose=verbose),
        copies(device, verbose=verbose),
        stalls(device, verbose=verbose),
        kernels(device, verbose=verbose),
        ops(device, verbose=verbose),
        ranges(device, verbose=verbose),
    ]


def buckets(device: DeviceDiff) -> Table:
    """The partition of the span."""
    figures = device.figures
    shown = [Line(one.name, one, None if one.name == "compute" else "less") for one in figures.buckets if there_is(one)]
    marks = f" {MARKS}." if device.basis == "step" else ""
    lines = [*shown, Line("span", figures.span, "less")]
    note = f"{basis(device)}{marks}"
    return change_table("Where the time goes", "where the time goes", lines, _unit(device), note=note, total=True)


def _causes(device: DeviceDiff, name: str, by_cause: Sequence[Change], verbose: bool) -> Table:
    whole = _bucket(device.figures, name)
    title = f"What the change in {name} is due to"
    moved = any(map(worth_showing, (whole, *by_cause)))
    if not moved and not (verbose and there_is(whole)):
        return Table(title, (), ())
    found = sorted((one for one in by_cause if there_is(one)), key=lambda one: (-abs(one.change or 0), one.name))
    lines = [*(Line(one.name, one, "less") for one in found), Line("together", whole, "less")]
    return change_table(title, f"{name} by cause", lines, _unit(device), total=True)


def overlap(device: DeviceDiff, *, verbose: bool) -> Table:
    """Overlap figures, and how long each engine worked."""
    figures, unit = device.figures, _unit(device)
    percentages = [Line(f"{one.name}, %", one, "more") for one in figures.overlap if one.unit == "pct"]
    times = [Line(f"{one.name}, {unit.name}", one, _GOOD.get(one.name)) for one in figures.overlap if one.unit == "ns"]
    busy = [Line(f"{one.name} busy, {unit.name}", one) for one in figures.engines]
    shown, note = kept([*percentages, *times, *busy], lambda line: line.change, verbose, "figure")
    return change_table("Overlap", "overlap and engines", shown, unit, note=note, mixed=True)


_GOOD: Final[dict[str, Good]] = {"hidden copy": "more", "exposed H2D": "less", "exposed D2H": "less"}


def copies(device: DeviceDiff, *, verbose: bool) -> Table:
    """Copies by direction, memory, and whether they are on the stream that computes."""
    unit = _unit(device)
    groups = [Group(_copy_name(one), one.standing, _copy_lines(one, unit)) for one in device.copies]
    table = group_table("Copies", "copies (stream)", groups, unit, verbose, "group of copies")
    return replace(table, note=f"main: the stream that computes; side: another. {table.note}".rstrip())


def _copy_name(group: CopyChange) -> str:
    return clean(f"{group.direction} {group.source_kind} to {group.target_kind} ({group.stream})", _NAME_LIMIT)


def _copy_lines(group: CopyChange, unit: Unit) -> tuple[Line, ...]:
    return (
        Line(f"time {unit.name}", group.time),
        Line(f"exposed {unit.name}", group.exposed, "less"),
        Line("count", group.count),
        Line("size", group.bytes),
        Line("GB/s", group.bandwidth, "more"),
    )


def stalls(device: DeviceDiff, *, verbose: bool) -> Table:
    """Blocking calls of the host."""
    unit = _unit(device)
    groups = [Group(_stall_name(one), one.standing, _stall_lines(one, unit)) for one in device.host_stalls]
    return group_table("Host stalls", "host stalls", groups, unit, verbose, "blocking call")


def _stall_name(stall: StallChange) -> str:
    where = stall.where_after or stall.where_before
    parts = [stall.call, *([f"in {stall.op}"] if stall.op else []), *([f"at {where}"] if where else [])]
    return " ".join(clean(part, _NAME_LIMIT) for part in parts)


def _stall_lines(stall: StallChange, unit: Unit) -> tuple[Line, ...]:
    return (
        Line(f"idle caused {unit.name}", stall.idle_caused, "less"),
        Line(f"host waits {unit.name}", stall.host_wait),
    )


def findings(device: DeviceDiff, *, verbose: bool) -> Table:
    """What became of each finding."""
    unit = _unit(device)
    shown, note = kept(device.findings, lambda one: one.cost, verbose, "finding", lambda one: one.standing != "same")
    per_step = "a step" if device.basis == "step" else "over the window"
    note = f"Costs are upper bounds {per_step}. {note}".rstrip()
    columns = (text("finding"), text("rule"), *map(Column, (f"before {unit.name}", "after", "change")))
    rows = tuple(_finding(one, unit) for one in shown)
    return Table(FINDINGS, (*columns, Column(WHAT, False, flexible=True, prose=True)), rows, note)


def _finding(one: FindingChange, unit: Unit) -> tuple[str, ...]:
    found = one.after or one.before
    costs = ["" if cost is None else unit.number(round(cost)) for cost in (one.cost.before, one.cost.after)]
    # What a side without it would still cost is known to be little, not to be nothing.
    change = interval(one.cost, unit) if one.cost.change is None else signed("ns", one.cost.change, unit)
    return (finding_standing(one), clean(one.rule, 60), *costs, change, clean(found.title, 400) if found else "")


def kernels(device: DeviceDiff, *, verbose: bool) -> Table:
    """Kernels that changed."""
    shown, note = longest(device.kernels, verbose, "kernel")
    unit = unit_of(one.time for one in shown)
    titles = ("count", f"before {unit.name}", "after", "change", RELATIVE)
    columns = (text("kernels", flexible=True), text(LAUNCHED_BY, flexible=True), text(""), *map(Column, titles))
    rows = tuple((_kernel_name(one), clean(one.op or "", _NAME_LIMIT), *_times(one, unit)) for one in shown)
    return Table("Kernels that changed", columns, rows, note)


def _kernel_name(one: KernelChange) -> str:
    # That a kernel returns nothing goes without saying.
    name = clean(one.kernel.removeprefix("void "), _NAME_LIMIT)
    return f"{name} (was {clean(one.renamed_from, _NAME_LIMIT)})" if one.renamed_from is not None else name


def ops(device: DeviceDiff, *, verbose: bool) -> Table:
    """Ops whose kernels changed."""
    shown, note = longest(device.ops, verbose, "op")
    unit = unit_of(one.time for one in shown)
    titles = ("kernels", f"before {unit.name}", "after", "change", RELATIVE)
    columns = (text("ops, by their kernels", flexible=True), text(""), *map(Column, titles))
    rows = tuple((clean(one.op, _NAME_LIMIT), *_times(one, unit)) for one in shown)
    return Table("Ops that changed", columns, rows, note)


def _times(one: KernelChange | OpChange, unit: Unit) -> tuple[str, ...]:
    sides = [number("ns", value, unit) for value in (one.time.before, one.time.after)]
    return (one.standing, pair(one.count, unit), *sides, signed("ns", one.time.change, unit), relative(one.time))


def ranges(device: DeviceDiff, *, verbose: bool) -> Table:
    """Ranges that changed, by name."""

    def moved(one: RangeDiff) -> bool:
        return one.figures is None or any(map(worth_showing, (one.figures.span, *one.figures.buckets)))

    changed = sorted((one for one in device.ranges if verbose or moved(one)), key=lambda one: -_weight(one))
    shown = changed if verbose else changed[:MOST]
    unit = unit_of(one.figures.span for one in shown if one.figures is not None)
    titles = ("count", f"before {unit.name}", "after", "change", RELATIVE)
    columns = (text("ranges", flexible=True), *map(Column, titles), text(""), *map(Column, _LOST.values()))
    rows = tuple(_range(one, unit) for one in shown)
    note = "Mean of the occurrences." if rows else ""
    return Table("Ranges that changed", columns, rows, f"{note} {left_out(device.ranges, shown, 'range')}".strip())


def _weight(one: RangeDiff) -> float:
    """By how much all its occurrences together changed."""
    change = one.figures.span.change if one.figures is not None else None
    return abs(change or 0) * max(one.count_before, one.count_after)


def _range(one: RangeDiff, unit: Unit) -> tuple[str, ...]:
    name = clean(one.name, _NAME_LIMIT)
    counts = (one.count_before, one.count_after)
    count = f"{counts[0]:,}" if counts[0] == counts[1] else f"{counts[0]:,} → {counts[1]:,}"
    if one.figures is None:
        return (name, count, *[""] * 4, one.standing, *[""] * len(_LOST))
    span = one.figures.span
    sides = [number("ns", value, unit) for value in (span.before, span.after)]
    parts = [signed("ns", _bucket(one.figures, part).change, unit) for part in _LOST]
    return (name, count, *sides, signed("ns", span.change, unit), relative(span), mark(span, "less"), *parts)


def untitled(table: Table) -> Table:
    """The table for a place where its title stands above it, so that the first column needs none."""
    return replace(table, columns=(replace(table.columns[0], title=""), *table.columns[1:]))


def _unit(device: DeviceDiff) -> Unit:
    """One unit for all that is a part of the span."""
    return unit_of([device.figures.span])
