"""Document of a diff: the answer, the compared traces, warnings, and the tables of each device.

Rows that changed by no more than noise are counted and left out unless the user asks for them. Parts of a total are
always shown, so that they add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.words import Unit, clean, listed, plural
from overlapscope.catalog.buckets import bucket_of
from overlapscope.catalog.measures import of_group
from overlapscope.compare.difference import (
    DeviceDiff,
    Diff,
    FigureChange,
    Figures,
    FindingChange,
    KernelChange,
    OpChange,
    RangeDiff,
    Standing,
)
from overlapscope.compare.words import (
    MARKS,
    Good,
    basis,
    compute_notes,
    compute_part,
    device_title,
    finding_standing,
    interval,
    marked,
    number,
    pair,
    relative,
    side_name,
    signed,
    standing,
    trust,
    unit_of,
    worth_showing,
)
from overlapscope.documents.model import (
    Block,
    Document,
    Heading,
    Items,
    Room,
    Section,
    Span,
    Text,
    brief,
    detail,
    panel,
)
from overlapscope.documents.table import Cell, Column, Table, Tone, prose, rows, words
from overlapscope.report.sentences import WORTH_SAYING
from overlapscope.trace.op_names import short_kernel

FINDINGS: Final = "findings"
"""Id of the table of findings."""
MAX_ROWS = 10
"""Maximum number of rows of a long list."""
_FINDING_TONES: Final[dict[str, Tone]] = {
    "gone": "good",
    "shrunk": "good",
    "new (good)": "good",
    "new": "poor",
    "grown": "poor",
    "gone (bad)": "poor",
}
_NAME_LIMIT = 200
_MAX_NAMED_KERNELS = 3
"""Maximum number of kernels that are named in a cell."""
_MORE = "-v lists all"
COMMENT_CHARACTERS = 60_000
"""Size limit of a comment; GitHub refuses more than 65,536 characters."""
_MAX_DOUBTS = 3
"""Maximum number of warnings in the short form, the gravest first."""
_GOOD: Final[Mapping[str, Good]] = {
    measure.label: "more" if measure.more_is_better else "less"
    for measure in (*of_group("overlap"), *of_group("engines"))
    if measure.more_is_better is not None
}
"""Direction in which a figure is better, by its name."""
_LOST: Final = {"exposed copy": "+/- exp. copy", "exposed comm": "+/- exp. comm", "idle": "+/- idle"}
"""Buckets for which tables show only the change, with the titles of their columns."""

# Columns that a table drops if there is not enough room, the lowest number first.
_INTERVAL = Column("interval", spare=1)
_LAUNCHED_BY = Column("launched by", number=False, flexible=True, spare=2)
_NOISE_FLOOR = Column("noise up to", spare=3)
_RELATIVE = Column("change %", spare=4)
_WHAT = prose("what was found", spare=5)
_LOST_COLUMNS = tuple(Column(title, spare=6) for title in _LOST.values())


def _change_columns(unit: str) -> tuple[Column, ...]:
    return (Column(f"before {unit}".rstrip()), Column("after"), Column("change"), _RELATIVE)


def _change_cells(change: FigureChange, unit: Unit) -> tuple[str, ...]:
    sides = (number(change.unit, value, unit) for value in (change.before, change.after))
    return (*sides, signed(change.unit, change.change, unit), relative(change))


def _lost_cells(figures: Figures, unit: Unit) -> tuple[str, ...]:
    return tuple(signed("ns", figures.bucket(name).change, unit) for name in _LOST)


# -- The document ------------------------------------------------------------------------------------


def document(diff: Diff, *, verbose: bool = False, room: Room | None = None) -> Document:
    """Return the document of a diff.

    Args:
        verbose: Whether to show rows that did not change.
        room: Room in a comment. Details are folded, and devices that don't fit even in the short form are listed.
    """
    title = f"{side_name(diff.before, diff.after)} → {side_name(diff.after, diff.before)}"
    blocks: list[Block] = [Heading(f"overlapscope diff: {title}", 1), *head(diff)]
    several = len(diff.devices) > 1
    devices = []
    for device in diff.devices:
        shown = tuple(of_device(device, verbose, several=several, folded=room is not None))
        name = device_title(diff, device)
        verdict = Text((Span(f"{name}: {clean(device.verdict)}", strong=True),))
        devices.append(Section((verdict, *shown), name, "article") if several else Section(shown))
    kept = len(devices)
    if room is not None and several and not verbose:
        kept = room.less(blocks).fitting([Section(brief(Document("", (section,))).blocks) for section in devices])
    blocks += devices[:kept]
    if omitted := [section.title for section in devices[kept:]]:
        blocks.append(Text(f"Left out for lack of space: {listed(omitted, MAX_ROWS)}."))
    return Document(f"overlapscope diff: {title}", tuple(blocks))


def head(diff: Diff) -> Iterator[Block]:
    """Yield the answer, the compared traces, warnings, and a row for each device if there are several."""
    word, tone = standing(diff)
    yield Section((Text(clean(diff.verdict), tone=tone, badge=word),), kind="verdict", id="compare")
    yield sides(diff)
    if diff.doubts:
        warnings = tuple(
            (f"{clean(doubt.detail, 1000)}\n", Span(f"Still valid: {clean(doubt.holds, 1000)}", tone="muted"))
            for doubt in diff.doubts
        )
        yield panel("Warnings", Items(warnings[:_MAX_DOUBTS], sign="!"), tone="fair")
        if more := warnings[_MAX_DOUBTS:]:
            yield from detail("more warnings", [panel("More warnings", Items(more, sign="!"), tone="fair")])
    if len(diff.devices) > 1:
        yield summary(diff)


def of_device(device: DeviceDiff, verbose: bool, *, several: bool, folded: bool) -> Iterator[Block]:
    """Yield the figures of a device.

    Buckets, causes and findings are always shown for a single device. With several, everything is a detail.
    """
    evidence = [buckets(device), phases(device), *causes(device, verbose=verbose)]
    evidence.append(findings(device, verbose=verbose))
    for table in (*(each for each in evidence if each.rows), *details(device, verbose=verbose)):
        answers = table in evidence
        block: Block = table
        if folded and not answers:
            block = Section((replace(table, title=""),), table.title, folded=True)
        if several or not answers:
            yield from detail(table.id or table.title.lower(), [block])
        else:
            yield block


# -- Both sides -----------------------------------------------------------------------------------


def sides(diff: Diff) -> Table:
    """Return the traces on both sides, with their environments and trust."""
    lines = []
    for word, side, other in (("before", diff.before, diff.after), ("after", diff.after, diff.before)):
        environment = side.environment
        versions = [f"torch {environment.torch}"] if environment.torch else []
        versions += [f"CUDA {environment.cuda}"] if environment.cuda else []
        cells = (clean(", ".join(names), 60) or "unknown" for names in (environment.gpus, versions))
        lines.append((word, side_name(side, other), *cells, trust(side)))
    titles = ("trace", "GPU", "recorded with", "trust")
    note = (
        "Figures are of the programs without the profiler."
        if diff.of == "plain"
        else "Figures are of the recordings, which the profiler makes slower."
    )
    columns = (words("", heads=True), *(words(title, flexible=True) for title in titles))
    return Table("What is compared", columns, rows(lines), note)


def summary(diff: Diff) -> Table:
    """Return a table with a row for each device."""
    unit = unit_of(device.figures.span for device in diff.devices)
    lines: list[tuple[str | Cell, ...]] = []
    for device in diff.devices:
        span = device.figures.span
        change, lost = _change_cells(span, unit), _lost_cells(device.figures, unit)
        lines.append((device_title(diff, device), *change, marked(span, "less"), *lost))
    name = words("time of each device", flexible=True, heads=True)
    columns = (name, *_change_columns(unit.name), words(""), *_LOST_COLUMNS)
    return Table("Each device", columns, rows(lines), f"{MARKS}.")


# -- Rows -----------------------------------------------------------------------------------------


class _Line(Struct, frozen=True):
    """A row about a change."""

    name: str
    change: FigureChange
    good: Good | None = None
    standing: str = ""
    """Word to show instead of a judgement of the change."""
    group: str = ""
    """Name of the group, in the group's first row only."""


def _changes(
    title: str, names: Sequence[str], lines: Sequence[_Line], unit: Unit, *, note: str = "", mixed: bool = False
) -> Table:
    """Return a table with a row for each change.

    Args:
        names: Titles of the name columns. With two, the first has the names of groups.
        mixed: Whether units differ between rows, which then state them.
    """
    between = [interval(line.change, unit) for line in lines]
    columns = [words(name, flexible=bool(name), heads=not number) for number, name in enumerate(names)]
    columns += _change_columns("" if mixed else unit.name)
    columns += [_INTERVAL, _NOISE_FLOOR] if any(between) else []
    cells: list[tuple[str | Cell, ...]] = []
    for line, spread in zip(lines, between, strict=True):
        change = line.change
        named = (line.group, line.name)[-len(names) :]
        floor = number(change.unit, change.noise_floor, unit) if spread and change.noise_floor else ""
        noise = (spread, floor) if any(between) else ()
        cells.append((*named, *_change_cells(change, unit), *noise, marked(change, line.good, line.standing)))
    return Table(title, (*columns, words("")), rows(cells), note if cells else "", total=not mixed)


_Group = tuple[str, Standing, tuple[_Line, ...]]
"""Several rows that belong together: their name, the sides that have them, and the rows."""


def _groups(title: str, name: str, groups: Sequence[_Group], unit: Unit, verbose: bool, noun: str) -> Table:
    """Return a table with several rows for each group. The first row has the group's name."""
    moved = [group for group in groups if verbose or any(worth_showing(line.change) for line in group[2])]
    shown = moved if verbose else moved[:MAX_ROWS]
    lines: list[_Line] = []
    for group, sides, figures in shown:
        # A new or gone group is neither better nor worse in itself, since another may replace it.
        standing = "" if sides == "both" else sides
        kept = [line for line in figures if _exists(line.change) and (verbose or line.change.change != 0)]
        lines += (replace(line, standing=standing, group="" if number else group) for number, line in enumerate(kept))
    return _changes(title, (name, ""), lines, unit, note=_left_out(groups, shown, noun), mixed=True)


def _exists(change: FigureChange) -> bool:
    """Return whether a figure is neither zero nor None on some side."""
    return bool(change.before) or bool(change.after)


def _left_out(candidates: Sequence[object], shown: Sequence[object], noun: str) -> str:
    """Return a note about the rows that are not shown; empty if all or none are."""
    omitted = len(candidates) - len(shown)
    return f"{plural(omitted, f'more {noun}')} changed less or not at all; {_MORE}." if omitted > 0 and shown else ""


# -- Devices --------------------------------------------------------------------------------------


def buckets(device: DeviceDiff) -> Table:
    """Return the buckets, which add up to the span."""
    shown = [bucket for bucket in device.figures.buckets if _exists(bucket)]
    names = {each.name: bucket_of(each.name).name for each in shown} | {"idle": device.figures.idle_name}
    lines = [_Line(names[each.name], each, None if each.name == "compute" else "less") for each in shown]
    lines.append(_Line("step" if device.basis == "step" else "all", device.figures.span, "less"))
    note = basis(device) + (f" {MARKS}." if device.basis == "step" else "")
    return _changes("Where the time goes", ["where the time goes"], lines, _unit(device), note=note)


def causes(device: DeviceDiff, *, verbose: bool) -> list[Table]:
    """Return the causes of the changes in exposed time and idle time, if they changed."""
    figures = device.figures
    buckets = {
        "exposed copy": figures.exposed_copy_by_cause,
        "exposed comm": figures.exposed_comm_by_cause,
        "exposed other": figures.exposed_other_by_cause,
        "idle": figures.idle_by_cause,
    }
    tables = []
    for name, by_cause in buckets.items():
        whole = figures.bucket(name)
        if any(map(worth_showing, (whole, *by_cause))) or (verbose and _exists(whole)):
            existing = sorted(filter(_exists, by_cause), key=lambda cause: (-abs(cause.moved), cause.name))
            lines = [*(_Line(cause.name, cause, "less") for cause in existing), _Line("total", whole, "less")]
            title = f"Causes of the change in {name}"
            tables.append(_changes(title, [f"{name} by cause"], lines, _unit(device)))
    if device.compute.parts and (verbose or worth_showing(figures.bucket("compute"))):
        tables.append(_compute(device, verbose))
    return tables


def phases(device: DeviceDiff) -> Table:
    """Return the steps of a server by phase. Parts of a step below 1% on both sides are left out."""
    lines: list[_Line] = []
    for diff in device.phases or ():
        group = f"{diff.name}, {diff.count_before:,} → {diff.count_after:,} steps"
        if diff.figures is None:
            nothing = FigureChange("step", "ns", None, None, None, noise_floor=0)
            lines.append(_Line("step", nothing, standing=diff.standing, group=group))
            continue
        figures = diff.figures
        parts = [_Line(each.name, each, "less") for each in figures.buckets if each.name != "compute"]
        parts += [_Line(f"idle: {cause.name}", cause, "less") for cause in figures.idle_by_cause]
        lines.append(_Line("step", figures.span, "less", group=group))
        idle = figures.bucket("idle")
        before, after = (figures.span.before or 0) - (idle.before or 0), (figures.span.after or 0) - (idle.after or 0)
        # No interval is known for its change.
        busy = FigureChange("busy", "ns", before, after, after - before, figures.span.noise_floor)
        lines.append(_Line("GPU busy", busy))
        lines += [part for part in parts if part.change.larger >= max(1, WORTH_SAYING * figures.span.larger)]
    unit = unit_of(diff.figures.span for diff in device.phases or () if diff.figures is not None)
    return _changes("Steps by phase", ["by phase", ""], lines, unit)


def _compute(device: DeviceDiff, verbose: bool) -> Table:
    """Return the change of compute by what became of kernels, with the names of those that changed most."""
    unit = _unit(device)
    lines = []
    for part in device.compute.parts:
        named = [
            f"{clean(kernel if verbose else short_kernel(kernel), _NAME_LIMIT)} {signed('ns', ns, unit)}"
            for kernel, ns in part.kernels.items()
        ]
        lines.append((compute_part(part), signed("ns", part.change_ns, unit), listed(named, _MAX_NAMED_KERNELS)))
    lines.append(("total", signed("ns", device.compute.change_ns, unit), ""))
    columns = (words("compute by kernel", heads=True), Column(f"change {unit.name}"), prose("kernels"))
    return Table("Why compute changed", columns, rows(lines), compute_notes(device.compute, unit), total=True)


def details(device: DeviceDiff, *, verbose: bool) -> list[Table]:
    """Return the tables of details of a device, without empty ones."""
    tables = (_overlap, _copies, _stalls, _kernels, _ops, _ranges)
    return [table for table in (draw(device, verbose) for draw in tables) if table.rows]


def findings(device: DeviceDiff, *, verbose: bool) -> Table:
    """Return the findings, with their costs before and after."""
    unit = _unit(device)
    shown, note = shown_findings(device, verbose=verbose)
    per_step = "per step" if device.basis == "step" else "over the window"
    columns = (words("finding", heads=True), words("rule"), *_change_columns(unit.name)[:-1], _WHAT)
    note = f"Costs are {per_step}. {note}".rstrip()
    lines: list[tuple[str | Cell, ...]] = []
    for change in shown:
        finding, word = change.after or change.before, finding_standing(change)
        costs = ["" if cost is None else unit.number(round(cost)) for cost in (change.cost.before, change.cost.after)]
        # A side without the finding may still have a small cost.
        moved = interval(change.cost, unit) if change.cost.change is None else signed("ns", change.cost.change, unit)
        state = Cell(word, tone=_FINDING_TONES.get(word, ""))
        lines.append((state, clean(change.rule, 60), *costs, moved, clean(finding.title, 400) if finding else ""))
    return Table("Findings", columns, rows(lines), note, id=FINDINGS)


def shown_findings(device: DeviceDiff, *, verbose: bool) -> tuple[list[FindingChange], str]:
    """Return the findings in the rows of their table, and a note about those left out."""
    shown = [
        finding
        for finding in device.findings
        if finding.standing != "same" or (_exists(finding.cost) if verbose else worth_showing(finding.cost))
    ]
    return shown, _left_out([finding for finding in device.findings if _exists(finding.cost)], shown, "finding")


def _overlap(device: DeviceDiff, verbose: bool) -> Table:
    """Return overlap figures and the busy times of the engines."""
    figures, unit = device.figures, _unit(device)
    lines = [
        _Line(f"{figure.name}, {'%' if figure.unit == 'pct' else unit.name}", figure, _GOOD.get(figure.name))
        for figure in (*figures.overlap, *figures.engines)
        if _exists(figure)
    ]
    shown = [line for line in lines if verbose or worth_showing(line.change)]
    note = _left_out(lines, shown, "figure")
    return _changes("Overlap", ["overlap and engines"], shown, unit, note=note, mixed=True)


def _copies(device: DeviceDiff, verbose: bool) -> Table:
    """Return copies by direction, memory kinds and kind of stream."""
    unit = _unit(device)
    groups: list[_Group] = []
    for group in device.copies:
        name = f"{group.direction} {group.source_kind} to {group.target_kind} ({group.stream})"
        lines = (
            _Line(f"time {unit.name}", group.time),
            _Line(f"exposed {unit.name}", group.exposed, "less"),
            _Line("count", group.count),
            _Line("size", group.bytes),
            _Line("GB/s", group.bandwidth, "more"),
        )
        groups.append((clean(name, _NAME_LIMIT), group.standing, lines))
    table = _groups("Copies", "copies (stream)", groups, unit, verbose, "group of copies")
    return replace(table, note=f"main: the compute stream; side: another stream. {table.note}".rstrip())


def _stalls(device: DeviceDiff, verbose: bool) -> Table:
    """Return blocking calls of the host."""
    unit = _unit(device)
    groups: list[_Group] = []
    for stall in device.host_stalls:
        where = stall.where_after or stall.where_before
        name = [stall.call, *([f"in {stall.op}"] if stall.op else []), *([f"at {where}"] if where else [])]
        lines = (
            _Line(f"idle caused {unit.name}", stall.idle_caused, "less"),
            _Line(f"host waits {unit.name}", stall.host_wait),
        )
        groups.append((" ".join(clean(part, _NAME_LIMIT) for part in name), stall.standing, lines))
    return _groups("Host stalls", "host stalls", groups, unit, verbose, "blocking call")


def _kernels(device: DeviceDiff, verbose: bool) -> Table:
    """Return the kernels that changed."""
    shown = device.kernels if verbose else device.kernels[:MAX_ROWS]
    name = _kernel_namer(shown, verbose)
    names = [(name(kernel), clean(kernel.op or "", _NAME_LIMIT)) for kernel in shown]
    table = _launched((words("kernels", flexible=True, heads=True), _LAUNCHED_BY), names, "count", shown)
    note = _left_out(device.kernels, shown, "kernel")
    return replace(table, title="Kernels that changed", note=note, id="kernels")


def _kernel_namer(shown: Sequence[KernelChange], verbose: bool) -> Callable[[KernelChange], str]:
    """Return a function that names kernels: in full if asked for, or if several shown ones have the same short name."""
    short = Counter(short_kernel(kernel.kernel) for kernel in shown)

    def name(kernel: KernelChange) -> str:
        full = verbose or short[short_kernel(kernel.kernel)] > 1 or kernel.renamed_from is not None
        # Every kernel returns void, so the prefix only takes room.
        shown_name = clean(kernel.kernel.removeprefix("void ") if full else short_kernel(kernel.kernel), _NAME_LIMIT)
        return f"{shown_name} (was {clean(kernel.renamed_from, _NAME_LIMIT)})" if kernel.renamed_from else shown_name

    return name


def _ops(device: DeviceDiff, verbose: bool) -> Table:
    """Return the ops whose kernels changed."""
    shown = device.ops if verbose else device.ops[:MAX_ROWS]
    names = [(clean(op.op, _NAME_LIMIT),) for op in shown]
    table = _launched((words("ops, by kernel time", flexible=True, heads=True),), names, "kernels", shown)
    return replace(table, title="Ops that changed", note=_left_out(device.ops, shown, "op"), id="ops")


def _launched(
    columns: Sequence[Column], names: Sequence[tuple[str, ...]], count: str, shown: Sequence[KernelChange | OpChange]
) -> Table:
    """Return a table of what changed in count or time, by its `names`."""
    unit = unit_of(each.time for each in shown)
    lines = [
        (*name, each.standing, pair(each.count, unit), *_change_cells(each.time, unit))
        for name, each in zip(names, shown, strict=True)
    ]
    return Table("", (*columns, words(""), Column(count), *_change_columns(unit.name)), rows(lines))


def _ranges(device: DeviceDiff, verbose: bool) -> Table:
    """Return the ranges that changed, by name."""

    def moved(diff: RangeDiff) -> bool:
        return diff.figures is None or any(map(worth_showing, (diff.figures.span, *diff.figures.buckets)))

    def weight(diff: RangeDiff) -> float:
        """Return the total change of all occurrences."""
        change = diff.figures.span.moved if diff.figures is not None else 0
        return abs(change) * max(diff.count_before, diff.count_after)

    changed = sorted((diff for diff in device.ranges if verbose or moved(diff)), key=weight, reverse=True)
    shown = changed if verbose else changed[:MAX_ROWS]
    unit = unit_of(diff.figures.span for diff in shown if diff.figures is not None)
    lines: list[tuple[str | Cell, ...]] = []
    for diff in shown:
        count = f"{diff.count_before:,}"
        if diff.count_after != diff.count_before:
            count += f" → {diff.count_after:,}"
        cells: tuple[str | Cell, ...] = (*[""] * 4, diff.standing, *[""] * len(_LOST))
        if diff.figures is not None:
            span = diff.figures.span
            cells = (*_change_cells(span, unit), marked(span, "less"), *_lost_cells(diff.figures, unit))
        lines.append((clean(diff.name, _NAME_LIMIT), count, *cells))
    name = words("ranges", flexible=True, heads=True)
    columns = (name, Column("count"), *_change_columns(unit.name), words(""), *_LOST_COLUMNS)
    note = f"Times are means per occurrence. {_left_out(device.ranges, shown, 'range')}".strip()
    return Table("Ranges that changed", columns, rows(lines), note, id="ranges")


def _unit(device: DeviceDiff) -> Unit:
    """Return the unit for all parts of the span."""
    return unit_of([device.figures.span])
