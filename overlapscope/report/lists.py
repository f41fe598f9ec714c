"""Tables with a row for each copy, cause, stall, kernel, op, step or range. Rows may have a place in the timeline.

Each table is declared once. Columns that are `extra` show only where a table can be sorted, which has more room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.average import find_outliers, judged_ranges
from overlapscope.analysis.figures import Period, Window
from overlapscope.analysis.results import CopyGroup, Device, HostStall, KernelGroup
from overlapscope.base.intervals import I64
from overlapscope.base.words import Unit, clean, ends, plural, unit_for
from overlapscope.catalog.causes import COPY_CAUSES, STALL_CAUSES, WORK_UNKNOWN, Subject
from overlapscope.catalog.measures import Measure, of_group
from overlapscope.documents import columns as column
from overlapscope.documents.columns import ColumnOf
from overlapscope.documents.table import Cell, Column, Table, table_of
from overlapscope.report.page import DeviceReport
from overlapscope.trace.host import Where
from overlapscope.trace.model import Kind, Memory
from overlapscope.trace.op_names import kernel_names, op_words

if TYPE_CHECKING:
    from overlapscope.analysis.each_copy import EachCopy

T = TypeVar("T")
SHORT_FORM_ROWS = 5
"""Rows of a list that can be long; `verbose` shows all of them."""
EXPOSED_KERNEL = "A kernel is exposed while no other kernel computes."
_LINE: Final[dict[str, Any]] = {"id": "line", "long": "line of code", "width": 230, "flexible": True}

# -- Copies ----------------------------------------------------------------------------------------


def copies(section: DeviceReport, device: Device) -> Table:
    """Return the copies grouped by direction, memory kinds, devices and stream."""
    unit = section.unit_of(max(device.overlap.copy_ns, device.overlap.p2p_ns))
    return table_of(
        device.copies,
        column.text("copies", lambda group: group.direction, id="direction", width=90, heads=True),
        column.text("memory", _memory, width=170),
        column.number("stream", lambda group: group.stream),
        column.count("count", lambda group: group.count, among=section.steps),
        column.bytes_of(
            "size",
            lambda group: None if group.bytes is None else section.per_step(group.bytes),
            id="bytes",
            long="bytes",
        ),
        column.rate(lambda group: group.gb_per_s if group.says_bandwidth else None),
        column.time("time", unit, lambda group: group.time_ns),
        column.time("exposed", unit, lambda group: group.exposed_ns),
        column.share("exposed, %", lambda group: group.exposed_ns, lambda group: group.time_ns, id="share", extra=True),
        title="Copies",
    )


def _memory(group: CopyGroup) -> str:
    """Return the memory on both sides of copies; the devices of peer copies where they are recorded."""
    if group.source_device is None or group.target_device is None:
        return f"{group.source_kind} to {group.target_kind}"
    return f"device {group.source_device} to {group.target_device}"


def most_exposed(copies: EachCopy, count: int) -> I64:
    """Return the rows of the copies with the most exposed time, the worst first."""
    order = np.lexsort((copies.start_ns, -copies.exposed_ns))[:count]
    return order[copies.exposed_ns[order] > 0]


def worst_copies(section: DeviceReport, copies: EachCopy, rows: I64, issuers: Sequence[Where]) -> Table:
    """Return the given copies, each with the code that issued it."""
    copies = copies.take(rows)
    unit = section.unit_of(int(copies.duration_ns.max(initial=0)))
    sizes, memory = [size if size >= 0 else None for size in copies.bytes.tolist()], copies.host_memory
    return table_of(
        range(len(copies)),
        column.text("copy", lambda row: Kind(copies.kind[row]).name.lower(), id="direction", width=75),
        column.text("memory", lambda row: Memory(memory[row]).name.lower(), width=95),
        column.time("exposed", unit, lambda row: int(copies.exposed_ns[row])),
        column.text("cause", lambda row: COPY_CAUSES[copies.cause[row]], width=145),
        column.text("where", lambda row: issuers[row].line, when=any(issuer.line for issuer in issuers), **_LINE),
        column.text("launched by", lambda row: op_words(issuers[row].op), id="op", width=130),
        column.time("time", unit, lambda row: int(copies.duration_ns[row])),
        column.bytes_of("size", lambda row: sizes[row], id="bytes", long="bytes"),
        column.rate(lambda row: None if sizes[row] is None else float(copies.gb_per_s[row])),
        column.text("call", lambda row: issuers[row].call, width=140),
        title="Copies with the most exposed time",
        place=lambda row: (int(copies.start_ns[row]), int(copies.end_ns[row])),
    )


# -- Causes and stalls -----------------------------------------------------------------------------


def evidence(section: DeviceReport, device: Device, subject: Subject) -> Table:
    """Return the evidence for a bucket's causes by op, call and line."""
    cases = [case for case in device.evidence if case.subject == subject and case.cause not in WORK_UNKNOWN]
    whole_ns = sum(ns for cause, ns in device.by_subject[subject].items() if cause not in WORK_UNKNOWN)
    unit = section.unit_of(whole_ns)

    return table_of(
        cases,
        column.text("cause", lambda case: case.cause, width=145),
        column.time("time", unit, lambda case: case.time_ns),
        column.share("%", lambda case: case.time_ns, lambda _: whole_ns, id="share", width=70),
        column.text("where", lambda case: case.where, when=any(case.where for case in cases), **_LINE),
        column.text("op", lambda case: op_words(case.op), width=130),
        column.text("call", lambda case: case.call, width=140),
        column.text("copies", lambda case: case.copies, when=subject == "exposed-copy", width=140),
        column.text("collective", lambda case: case.collective, when=subject == "exposed-comm", width=180),
        column.text("waited for", lambda case: case.waited_for, when=subject == "exposed-comm", width=180),
        column.count("cases", lambda case: case.count, among=section.steps, id="count"),
        column.text("confidence", lambda case: case.confidence, width=105),
        title="Where it comes from",
        place=lambda case: _place(case.example),
    )


def stalls(section: DeviceReport, device: Device, most: int | None = None) -> Table:
    """Return the host's blocking calls, costliest first, each placed at the longest idle gap that it caused.

    With `most`, only the first of them.
    """
    unit, shown, idle_ns = section.unit, device.host_stalls[:most], device.buckets.idle_ns - device.missing_ns
    are_different = len({(stall.call, op_words(stall.op), stall.where) for stall in shown}) == len(shown)
    examples = {
        (case.call, case.op, case.where): case.example
        for case in reversed(device.evidence)
        if case.subject == "idle" and case.cause in STALL_CAUSES
    }

    def place(stall: HostStall) -> tuple[int, int] | None:
        return _place(examples.get((stall.call, stall.op, stall.where)))

    return table_of(
        shown,
        column.text(
            "host stall",
            lambda stall: stall.call,
            id="call",
            long="blocking call",
            width=150,
            flexible=True,
            heads=True,
        ),
        column.text("in", lambda stall: op_words(stall.op), id="op", long="in op", width=130, flexible=True),
        column.count("count", lambda stall: stall.count, among=section.steps),
        column.time("host waits", unit, lambda stall: stall.host_wait_ns, id="wait"),
        column.time("idle caused", unit, lambda stall: stall.idle_caused_ns, id="idle", short=f"GPU idle {unit.name}"),
        column.share("of idle, %", lambda stall: stall.idle_caused_ns, lambda _: idle_ns, id="share", extra=True),
        column.text("where", lambda stall: stall.where, when=any(stall.where for stall in shown), **_LINE),
        # Calls of several threads would look the same without it.
        column.number("thread", lambda stall: stall.thread, extra=are_different),
        title="Host stalls",
        place=place,
        note=_more(device.host_stalls, shown),
    )


def _more(items: Sequence[object], shown: Sequence[object]) -> str:
    """Return a note on the rows that are not shown; empty without any."""
    left_out = len(items) - len(shown)
    return f"{plural(left_out, 'more row')} with less time." if left_out else ""


def _place(window: Window | None) -> tuple[int, int] | None:
    return None if window is None else (window.start_ns, window.end_ns)


# -- Kernels and ops -------------------------------------------------------------------------------


def kernels(section: DeviceReport, device: Device, most: int | None = None) -> Table:
    """Return the kernels by name, stream, op, module and line, the longest first, each placed at its longest run.

    With `most`, only the first of them.
    """
    shown = device.kernels[:most]
    names = kernel_names(group.kernel for group in shown)

    def name(group: KernelGroup) -> Cell:
        return Cell(clean(names[group.kernel]), clean(group.kernel))

    notes = (EXPOSED_KERNEL if _are_hidden(shown) else "", _more(device.kernels, shown))
    return table_of(
        shown,
        (Column("kernel", number=False, flexible=True, heads=True, id="kernel", width=200), name),
        *_kernel_times(section, device, shown),
        column.number("stream", lambda group: group.stream, extra=len({group.stream for group in shown}) == 1),
        column.text("launched by", lambda group: op_words(group.op), id="op", width=150, flexible=True),
        column.text("module", lambda group: group.module or "", when=any(group.module for group in shown), width=130),
        column.text("where", lambda group: group.where, when=any(group.where for group in shown), **_LINE),
        title="Kernels",
        place=lambda group: _place(group.example),
        note=" ".join(filter(None, notes)),
    )


def ops(section: DeviceReport, device: Device) -> Table:
    """Return the ops that launch kernels, those of most kernel time first, each placed at its longest kernel."""
    by_op: dict[str, list[KernelGroup]] = {}
    for group in device.kernels:
        by_op.setdefault(op_words(group.op) or "no op", []).append(group)
    items = sorted(((op, _together(groups)) for op, groups in by_op.items()), key=lambda item: -item[1].time_ns)
    of_group = _kernel_times(section, device, [group for _, group in items])
    return table_of(
        items,
        column.text("op", lambda item: item[0], width=200, flexible=True, heads=True),
        *[(each, lambda item, cell=cell: cell(item[1])) for each, cell in of_group],
        column.number("kernels", lambda item: len({group.kernel for group in by_op[item[0]]})),
        title="Ops",
        place=lambda item: _place(item[1].example),
    )


def _together(groups: Sequence[KernelGroup]) -> KernelGroup:
    """Return the sum of several groups, with the longest kernel of all."""
    count, time_ns, exposed_ns = (
        sum(getattr(group, name) for group in groups) for name in ("count", "time_ns", "exposed_ns")
    )
    example = max((group.example for group in groups), key=lambda window: window.end_ns - window.start_ns)
    return replace(groups[0], count=count, time_ns=time_ns, exposed_ns=exposed_ns, example=example)


def _kernel_times(section: DeviceReport, device: Device, groups: Sequence[KernelGroup]) -> list[ColumnOf[KernelGroup]]:
    """Return the columns with the number of kernels in each group and their time."""
    unit = section.unit_of(max((group.time_ns for group in groups), default=0))
    means = {id(group): round(group.time_ns * max(1, section.steps) / max(1, group.count)) for group in groups}
    each = unit_for(max(means.values(), default=0))
    return [
        column.count("calls", lambda group: group.count, among=section.steps),
        column.time("time", unit, lambda group: group.time_ns),
        column.share("%", lambda group: group.time_ns, lambda _: device.span_ns, id="share", width=70),
        column.time("exposed", unit, lambda group: group.exposed_ns, width=95, extra=not _are_hidden(groups)),
        column.time("mean", each, lambda group: means[id(group)], width=85, extra=True),
    ]


def _are_hidden(groups: Iterable[KernelGroup]) -> bool:
    """Return whether another kernel computes during a part of any kernel."""
    return any(group.exposed_ns < group.time_ns for group in groups)


# -- Net overlap -----------------------------------------------------------------------------------


def net_overlap(section: DeviceReport) -> Table:
    """Return one row each for communication and copies: what overlap hides, costs and brings in the recording."""
    results, unit = section.net_overlap, section.unit
    unjudged = any(result.judged_ns < result.overlapped_ns for result in results)
    return table_of(
        results,
        column.text("net overlap", lambda result: result.beside, heads=True),
        column.time("hidden", unit, lambda result: result.hidden_ns),
        column.time("kernels beside it", unit, lambda result: result.overlapped_ns),
        column.share("judged %", lambda result: result.judged_ns, lambda result: result.overlapped_ns),
        column.figure("slowed by", lambda result: _bounds(unit, result.slowed_low_ns, result.slowed_high_ns)),
        title="Net overlap, as recorded",
        note="Kernels are judged where equal ones ran both alone and beside it." if unjudged else "",
    )


def slowed_kernels(section: DeviceReport) -> Table:
    """Return the kernels that other work slows most."""
    slowed = [(result.beside, kernel) for result in section.net_overlap for kernel in result.kernels]
    unit = section.unit_of(max((kernel.alone_ns for _, kernel in slowed), default=0))
    total = section.unit_of(max((abs(kernel.slowed_ns) for _, kernel in slowed), default=0))
    return table_of(
        slowed,
        column.text("kernel", lambda item: item[1].kernel, limit=80, flexible=True, heads=True),
        column.text("beside", lambda item: item[0]),
        column.time("alone", unit, lambda item: item[1].alone_ns),
        column.time("beside it", unit, lambda item: item[1].beside_ns),
        column.figure("slowed by", lambda item: _bounds(total, item[1].slowed_low_ns, item[1].slowed_high_ns)),
        title="Kernels slowed by overlap",
    )


def _bounds(unit: Unit, low_ns: int | None, high_ns: int | None) -> str:
    """Return an interval in the unit, such as `0.55 to 0.91 ms`."""
    if low_ns is None or high_ns is None:
        return "unknown"
    return f"{ends(unit.number(low_ns), unit.number(high_ns))} {unit.name}"


# -- Steps and ranges ------------------------------------------------------------------------------


def _times(periods: Iterable[Period], steps: int = 1) -> Mapping[str, int]:
    """Return the span and the buckets of some periods together, or of an average step if they are of several steps."""
    total = Counter[str]()
    for period in periods:
        total.update({"time": period.span_ns, **period.partition})
    return {name: round(ns / max(1, steps)) for name, ns in total.items()}


def _time_columns(
    unit: Unit, times: Mapping[T, Mapping[str, int]], short: Mapping[str, str], *extra: str
) -> Iterator[ColumnOf[T]]:
    """Yield the columns of times and buckets, each with its `short` title where the unit is obvious."""
    for name, id in _TIMES.items():

        def time(item: T, name: str = name) -> int:
            return times[item].get(name, 0)

        yield column.time(name, unit, time, id=id, short=short.get(name, ""), extra=name in extra)


_SHORT: Final = {"compute": "compute", "exposed comm": "exp. comm", "exposed copy": "exp. copy", "idle": "idle"}
_TIMES: Final = {"time": "time", "compute": "compute", "exposed comm": "comm", "exposed copy": "copy", "idle": "idle"}
"""The span and buckets that have a column, with their ids."""


def each_step(section: DeviceReport, device: Device) -> Table:
    """Return a row for each step; the sortable table marks outliers."""
    unit, steps, outliers = section.unit, device.steps, find_outliers(device.steps).tolist()
    times = {row: _times([step]) for row, step in enumerate(steps)}
    return table_of(
        range(len(steps)),
        column.text("step", lambda row: steps[row].name, id="name", width=125, flexible=True, heads=True),
        column.text(
            "unusual",
            lambda row: "outlier" if outliers[row] else "",
            when=any(outliers),
            id="note",
            width=90,
            extra=True,
        ),
        *_time_columns(unit, times, _SHORT),
        column.percent("efficiency %", lambda row: steps[row].efficiency_shown, id="efficiency", long="efficiency, %"),
        *(
            _of_measure(measure, steps, unit)
            for measure in of_group("overlap")
            if measure.more_is_better is not None and measure.id != "efficiency_pct"
        ),
        title="Each step",
        place=lambda row: _place(steps[row].window),
    )


def _of_measure(measure: Measure, steps: Sequence[Period], unit: Unit) -> ColumnOf[int] | None:
    """Return a column of the sortable table with a measure of each step, if any has it."""
    values = [step.shown(measure) for step in steps]
    if not any(values):
        return None
    if measure.unit == "pct":
        return column.percent(f"{measure.label} %", lambda row: values[row], id=measure.id, extra=True)
    return column.time(measure.label, unit, lambda row: round(values[row] or 0), id=measure.id, extra=True)


def ranges(section: DeviceReport, device: Device, most: int | None = None) -> Table:
    """Return the ranges of a step by name, the longest total first, each placed at its longest occurrence.

    With `most`, only the first of them.
    """
    unit = section.unit
    by_name: dict[str, list[Period]] = {}
    for period in judged_ranges(device):
        by_name.setdefault(period.name, []).append(period)
    times = {name: _times(periods, section.steps) for name, periods in by_name.items()}
    ordered_names = sorted(by_name, key=lambda name: (-times[name]["time"], name))
    shown = ordered_names[:most]
    return table_of(
        shown,
        column.text("range", lambda name: name, id="name", width=180, flexible=True, heads=True),
        column.count("count", lambda name: len(by_name[name]), among=section.steps),
        *_time_columns(unit, times, {}, "compute", "exposed comm"),
        title="Ranges",
        place=lambda name: _place(max(by_name[name], key=lambda period: period.span_ns).window),
        note=_more(ordered_names, shown),
    )
