"""Tables to be sorted: each cell is a value to sort by, and the text to show. Rows may name a place in the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from overlapscope.analysis.causes import COPY_CAUSES
from overlapscope.analysis.each_copy import EachCopy
from overlapscope.analysis.groups import BLOCKED
from overlapscope.analysis.host import CallSite
from overlapscope.analysis.results import Device, Period, Window, efficiency_shown, missing_ns
from overlapscope.analysis.steps import find_outliers
from overlapscope.base.intervals import I64
from overlapscope.base.words import Unit, bandwidth, bare_percent, clean, size
from overlapscope.report.page import Section
from overlapscope.report.scale import unit_of
from overlapscope.trace.model import Kind, Memory

NAME_LIMIT = 200

Value = float | int | str | None


@dataclass(frozen=True, slots=True)
class Cell:
    """None as a value sorts before everything."""

    value: Value
    text: str


@dataclass(frozen=True, slots=True)
class Field:
    """A column."""

    key: str
    title: str
    number: bool = True
    width: int = 92
    """Pixels it needs; words get what is left over as well."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cells in the order of the fields."""

    cells: tuple[Cell, ...]
    window: Window | None = None
    """Where to look in the timeline."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table."""

    fields: tuple[Field, ...]
    rows: tuple[Row, ...]


def _word(text: str | None) -> Cell:
    """Empty cells sort together and say that nothing is known."""
    shown = clean(text, NAME_LIMIT) if text else ""
    return Cell(shown, shown or "–")


def _count(number: int) -> Cell:
    return Cell(number, f"{number:,}")


def _time(ns: int, unit: Unit) -> Cell:
    return Cell(ns / unit.ns, unit.number(ns))


def _pct(value: float | None) -> Cell:
    return Cell(value, bare_percent(value))


def _share(part: int, whole: int) -> Cell:
    return _pct(100 * part / whole if whole else None)


def _rate(value: float | None) -> Cell:
    return Cell(value, bandwidth(value))


def _words(key: str, title: str, width: int = 150) -> Field:
    return Field(key, title, number=False, width=width)


def copy_groups(section: Section, device: Device) -> Grid:
    """Copies grouped by direction, memory kinds and stream."""
    unit = unit_of(section, device.overlap.copy_ns)
    fields = (
        _words("direction", "copies", 90),
        _words("memory", "memory", 170),
        Field("stream", "stream", width=80),
        Field("count", "count", width=80),
        Field("bytes", "bytes"),
        Field("rate", "GB/s", width=80),
        Field("time", f"time, {unit.name}"),
        Field("exposed", f"exposed, {unit.name}"),
        Field("share", "exposed, %"),
    )
    rows = (
        Row(
            (
                _word(group.direction),
                _word(f"{group.source_kind} to {group.target_kind}"),
                _count(group.stream),
                _count(group.count),
                _bytes(group.bytes),
                _rate(group.gb_per_s),
                _time(group.time_ns, unit),
                _time(group.exposed_ns, unit),
                _share(group.exposed_ns, group.time_ns),
            )
        )
        for group in device.copies
    )
    return Grid(fields, tuple(rows))


def _bytes(count: int | None) -> Cell:
    return Cell(count, size(count))


def most_exposed(copies: EachCopy, count: int) -> I64:
    """Rows of the table of copies with the most exposed time, the worst first."""
    order = np.lexsort((copies.start_ns, -copies.exposed_ns))[:count]
    return order[copies.exposed_ns[order] > 0]


def worst_copies(section: Section, copies: EachCopy, numbers: I64, issued: Sequence[CallSite]) -> Grid:
    """The given copies, each with what issued it."""
    unit = unit_of(section, int(copies.duration_ns[numbers].max(initial=0)))
    lined = any(one.line for one in issued)
    fields = (
        _words("direction", "copy", 75),
        _words("memory", "memory", 95),
        Field("exposed", f"exposed, {unit.name}"),
        _words("cause", "cause", 145),
        *([_words("line", "line of code", 230)] if lined else []),
        _words("op", "launched by", 130),
        Field("time", f"time, {unit.name}"),
        Field("bytes", "bytes"),
        Field("rate", "GB/s", width=80),
        _words("call", "call", 140),
    )
    rows = []
    for number, issuer in zip(numbers.tolist(), issued, strict=True):
        moved = int(copies.bytes[number])
        start, end = int(copies.start_ns[number]), int(copies.end_ns[number])
        cells = (
            _word(Kind(copies.direction[number]).name.lower()),
            _word(Memory(copies.memory[number]).name.lower()),
            _time(int(copies.exposed_ns[number]), unit),
            _word(COPY_CAUSES[copies.cause[number]]),
            *([_word(issuer.line)] if lined else []),
            _word(issuer.op),
            _time(end - start, unit),
            _bytes(moved if moved >= 0 else None),
            _rate(float(copies.gb_per_s[number]) if moved >= 0 else None),
            _word(issuer.call),
        )
        rows.append(Row(cells, Window(start_ns=start, end_ns=end)))
    return Grid(fields, tuple(rows))


def evidence(section: Section, device: Device, subject: Literal["exposed-copy", "idle"]) -> Grid:
    """What the causes of a bucket rest on, by op, call and line."""
    found = [one for one in device.evidence if one.subject == subject]
    whole = device.buckets.idle_ns if subject == "idle" else device.buckets.exposed_copy_ns
    unit = unit_of(section, whole)
    lined = any(one.where for one in found)
    copies = subject == "exposed-copy"
    fields = (
        _words("cause", "cause", 145),
        Field("time", f"time, {unit.name}"),
        Field("share", "%", width=70),
        *([_words("line", "line of code", 230)] if lined else []),
        _words("op", "op", 130),
        _words("call", "call", 140),
        *([_words("copies", "copies", 140)] if copies else []),
        Field("count", "cases", width=80),
        _words("confidence", "confidence", 105),
    )
    rows = (
        Row(
            (
                _word(one.cause),
                _time(one.time_ns, unit),
                _share(one.time_ns, whole),
                *([_word(one.where)] if lined else []),
                _word(one.op),
                _word(one.call),
                # The evidence says which copies before it says why.
                *([_word(one.detail.partition(":")[0])] if copies else []),
                _count(one.count),
                _word(one.confidence),
            ),
            one.example,
        )
        for one in found
    )
    return Grid(fields, tuple(rows))


def stalls(section: Section, device: Device) -> Grid:
    """Blocking calls of the host, costliest first; each leads to the longest idle gap that it caused."""
    unit = section.unit
    examples = {
        (one.call, one.op, one.where): one.example
        for one in reversed(device.evidence)
        if one.subject == "idle" and one.cause in BLOCKED
    }
    lined = any(stall.where for stall in device.host_stalls)
    fields = (
        _words("call", "blocking call", 150),
        *([_words("line", "line of code", 230)] if lined else []),
        Field("idle", f"idle caused, {unit.name}"),
        Field("wait", f"host waits, {unit.name}"),
        Field("count", "count", width=80),
        _words("op", "in op", 130),
        Field("share", "of idle, %"),
        Field("thread", "thread"),
    )
    rows = (
        Row(
            (
                _word(stall.call),
                *([_word(stall.where)] if lined else []),
                _time(stall.idle_caused_ns, unit),
                _time(stall.host_wait_ns, unit),
                _count(stall.count),
                _word(stall.op),
                _share(stall.idle_caused_ns, device.buckets.idle_ns),
                Cell(stall.thread, str(stall.thread)),
            ),
            examples.get((stall.call, stall.op, stall.where)),
        )
        for stall in device.host_stalls
    )
    return Grid(fields, tuple(rows))


def each_step(section: Section, device: Device) -> Grid:
    """One row for each step; outliers say so."""
    unit = section.unit
    unusual = find_outliers(device.steps).tolist()
    marked, comm = any(unusual), device.engines.comm_ns > 0
    rows = (
        Row(
            (
                _word(step.name),
                *([_word("outlier" if odd else "")] if marked else []),
                *_times([step], unit, comm=comm),
                _pct(efficiency_shown(step)),
            ),
            step.window,
        )
        for step, odd in zip(device.steps, unusual, strict=True)
    )
    fields = (
        _words("name", "step", 125),
        *([_words("note", "unusual", 90)] if marked else []),
        *_time_fields(unit, comm=comm),
        Field("efficiency", "efficiency, %"),
    )
    return Grid(fields, tuple(rows))


def ranges(section: Section, device: Device) -> Grid:
    """Ranges by name: their occurrences added up; each leads to the longest."""
    unit, comm = section.unit, device.engines.comm_ns > 0
    by_name: dict[str, list[Period]] = {}
    for period in device.ranges:
        by_name.setdefault(period.name, []).append(period)
    rows = (
        Row(
            (_word(name), _count(len(periods)), *_times(periods, unit, comm=comm)),
            max(periods, key=lambda period: period.span_ns).window,
        )
        for name, periods in sorted(by_name.items(), key=lambda item: (-sum(p.span_ns for p in item[1]), item[0]))
    )
    fields = (_words("name", "range", 180), Field("count", "count", width=80), *_time_fields(unit, comm=comm))
    return Grid(fields, tuple(rows))


def _time_fields(unit: Unit, *, comm: bool) -> tuple[Field, ...]:
    return (
        Field("span", f"span, {unit.name}"),
        Field("compute", f"compute, {unit.name}"),
        *([Field("comm", f"exposed comm, {unit.name}")] if comm else []),
        Field("copy", f"exposed copy, {unit.name}"),
        Field("idle", f"idle, {unit.name}"),
    )


def _times(periods: Sequence[Period], unit: Unit, *, comm: bool) -> tuple[Cell, ...]:
    """Of all periods together; `comm`: whether there is a column for communication."""
    buckets = [period.buckets for period in periods]
    return (
        _time(sum(period.span_ns for period in periods), unit),
        _time(sum(b.compute_ns for b in buckets), unit),
        *([_time(sum(b.exposed_comm_ns for b in buckets), unit)] if comm else []),
        _time(sum(b.exposed_copy_ns for b in buckets), unit),
        _time(sum(period.buckets.idle_ns - missing_ns(period) for period in periods), unit),
    )
