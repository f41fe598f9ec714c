"""Tables to be sorted, whose rows may name a place in the timeline. What is not known sorts before everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from overlapscope.analysis.each_copy import EachCopy
from overlapscope.analysis.groups import says_bandwidth
from overlapscope.analysis.host import CallSite
from overlapscope.analysis.results import Device, Window, efficiency_shown
from overlapscope.analysis.steps import find_outliers
from overlapscope.base.intervals import I64
from overlapscope.base.words import NOTHING, Unit, bandwidth, bare_percent, clean, size
from overlapscope.catalog.causes import COPY_CAUSES, STALL_CAUSES, Subject
from overlapscope.documents.table import Cell, Column, Table, table_of
from overlapscope.report.page import Section
from overlapscope.report.tables import NAME_LIMIT, added_up, ranges_by_name
from overlapscope.trace.model import Kind, Memory

T = TypeVar("T")
Say = Callable[[T], Cell]
"""What a column says of one thing."""


def _words(
    id: str, title: str, width: int, say: Callable[[T], str | None], *, when: bool = True
) -> tuple[Column, Say[T]] | None:
    """A column of foreign words; empty ones sort together and say that nothing is known."""

    def cell(item: T) -> Cell:
        shown = clean(say(item) or "", NAME_LIMIT)
        return Cell(shown or "–", shown)

    return (Column(title, number=False, id=id, width=width), cell) if when else None


def _counts(id: str, title: str, say: Callable[[T], int], width: int = 80) -> tuple[Column, Say[T]]:
    return Column(title, id=id, width=width), lambda item: Cell(f"{say(item):,}", say(item))


def _bytes(say: Callable[[T], int | None]) -> tuple[Column, Say[T]]:
    return Column("bytes", id="bytes"), lambda item: Cell(size(say(item)), say(item))


def _rates(say: Callable[[T], float | None]) -> tuple[Column, Say[T]]:
    def cell(item: T) -> Cell:
        rate = say(item)
        return Cell(NOTHING if rate is None else bandwidth(rate), rate)

    return Column("GB/s", id="rate", width=80), cell


def time_cell(ns: int | None, unit: Unit) -> Cell:
    """A time that is sorted and exported in its unit."""
    return Cell(unit.number(ns), None if ns is None else ns / unit.ns)


def _times(id: str, title: str, unit: Unit, say: Callable[[T], int]) -> tuple[Column, Say[T]]:
    return Column(f"{title}, {unit.name}", id=id), lambda item: time_cell(say(item), unit)


def percent_cell(value: float | None) -> Cell:
    """A percentage."""
    return Cell(bare_percent(value), value)


def _shares(title: str, say: Callable[[T], int], whole: Callable[[T], int], width: int = 92) -> tuple[Column, Say[T]]:
    def cell(item: T) -> Cell:
        return percent_cell(100 * say(item) / whole(item) if whole(item) else None)

    return Column(title, id="share", width=width), cell


# -- copies ---------------------------------------------------------------------------------------


def copy_groups(section: Section, device: Device) -> Table:
    """Copies grouped by direction, memory kinds and stream."""
    unit = section.unit_of(device.overlap.copy_ns)
    return table_of(
        device.copies,
        _words("direction", "copies", 90, lambda group: group.direction),
        _words("memory", "memory", 170, lambda group: f"{group.source_kind} to {group.target_kind}"),
        _counts("stream", "stream", lambda group: group.stream),
        _counts("count", "count", lambda group: group.count),
        _bytes(lambda group: group.bytes),
        _rates(lambda group: group.gb_per_s if says_bandwidth(group) else None),
        _times("time", "time", unit, lambda group: group.time_ns),
        _times("exposed", "exposed", unit, lambda group: group.exposed_ns),
        _shares("exposed, %", lambda group: group.exposed_ns, lambda group: group.time_ns),
    )


def most_exposed(copies: EachCopy, count: int) -> I64:
    """Rows of the table of copies with the most exposed time, the worst first."""
    order = np.lexsort((copies.start_ns, -copies.exposed_ns))[:count]
    return order[copies.exposed_ns[order] > 0]


def worst_copies(section: Section, copies: EachCopy, numbers: I64, issued: Sequence[CallSite]) -> Table:
    """The given copies, each with what issued it."""
    unit = section.unit_of(int(copies.duration_ns[numbers].max(initial=0)))
    lined = any(issuer.line for issuer in issued)
    known = {number: int(size) for number, size in zip(numbers.tolist(), copies.bytes[numbers], strict=True)}
    pairs = zip(numbers.tolist(), issued, strict=True)
    return table_of(
        pairs,
        _words("direction", "copy", 75, lambda pair: Kind(copies.direction[pair[0]]).name.lower()),
        _words("memory", "memory", 95, lambda pair: Memory(copies.memory[pair[0]]).name.lower()),
        _times("exposed", "exposed", unit, lambda pair: int(copies.exposed_ns[pair[0]])),
        _words("cause", "cause", 145, lambda pair: COPY_CAUSES[copies.cause[pair[0]]]),
        _words("line", "line of code", 230, lambda pair: pair[1].line, when=lined),
        _words("op", "launched by", 130, lambda pair: pair[1].op),
        _times("time", "time", unit, lambda pair: int(copies.duration_ns[pair[0]])),
        _bytes(lambda pair: known[pair[0]] if known[pair[0]] >= 0 else None),
        _rates(lambda pair: float(copies.gb_per_s[pair[0]]) if known[pair[0]] >= 0 else None),
        _words("call", "call", 140, lambda pair: pair[1].call),
        place=lambda pair: (int(copies.start_ns[pair[0]]), int(copies.end_ns[pair[0]])),
    )


# -- causes and stalls ----------------------------------------------------------------------------


def evidence(section: Section, device: Device, subject: Subject) -> Table:
    """What the causes of a bucket rest on, by op, call and line."""
    found = [one for one in device.evidence if one.subject == subject]
    whole = device.buckets.idle_ns if subject == "idle" else device.buckets.exposed_copy_ns
    lined = any(one.where for one in found)
    return table_of(
        found,
        _words("cause", "cause", 145, lambda case: case.cause),
        _times("time", "time", section.unit_of(whole), lambda case: case.time_ns),
        _shares("%", lambda case: case.time_ns, lambda _: whole, width=70),
        _words("line", "line of code", 230, lambda case: case.where, when=lined),
        _words("op", "op", 130, lambda case: case.op),
        _words("call", "call", 140, lambda case: case.call),
        # The evidence says which copies before it says why.
        _words("copies", "copies", 140, lambda case: case.detail.partition(":")[0], when=subject == "exposed-copy"),
        _counts("count", "cases", lambda case: case.count),
        _words("confidence", "confidence", 105, lambda case: case.confidence),
        place=lambda case: _place(case.example),
    )


def stalls(section: Section, device: Device) -> Table:
    """Blocking calls of the host, costliest first; each leads to the longest idle gap that it caused."""
    unit = section.unit
    examples = {
        (case.call, case.op, case.where): case.example
        for case in reversed(device.evidence)
        if case.subject == "idle" and case.cause in STALL_CAUSES
    }
    lined = any(stall.where for stall in device.host_stalls)
    return table_of(
        device.host_stalls,
        _words("call", "blocking call", 150, lambda stall: stall.call),
        _words("line", "line of code", 230, lambda stall: stall.where, when=lined),
        _times("idle", "idle caused", unit, lambda stall: stall.idle_caused_ns),
        _times("wait", "host waits", unit, lambda stall: stall.host_wait_ns),
        _counts("count", "count", lambda stall: stall.count),
        _words("op", "in op", 130, lambda stall: stall.op),
        _shares("of idle, %", lambda stall: stall.idle_caused_ns, lambda stall: device.buckets.idle_ns),
        (Column("thread", id="thread"), lambda stall: Cell(str(stall.thread), stall.thread)),
        place=lambda stall: _place(examples.get((stall.call, stall.op, stall.where))),
    )


def _place(window: Window | None) -> tuple[int, int] | None:
    return None if window is None else (window.start_ns, window.end_ns)


# -- steps and ranges -----------------------------------------------------------------------------


def each_step(section: Section, device: Device) -> Table:
    """One row for each step; outliers say so."""
    unusual = find_outliers(device.steps).tolist()
    steps = [(step, outlier, added_up([step])) for step, outlier in zip(device.steps, unusual, strict=True)]
    return table_of(
        steps,
        _words("name", "step", 125, lambda step: step[0].name),
        _words("note", "unusual", 90, lambda step: "outlier" if step[1] else "", when=any(unusual)),
        *_parts(section, device),
        (Column("efficiency, %", id="efficiency"), lambda step: percent_cell(efficiency_shown(step[0]))),
        place=lambda step: _place(step[0].window),
    )


def ranges(section: Section, device: Device) -> Table:
    """Ranges by name: their occurrences added up; each leads to the longest."""
    return table_of(
        [(name, periods, added_up(periods)) for name, periods in ranges_by_name(device)],
        _words("name", "range", 180, lambda item: item[0]),
        _counts("count", "count", lambda item: len(item[1])),
        *_parts(section, device),
        place=lambda item: _place(max(item[1], key=lambda period: period.span_ns).window),
    )


def _parts(section: Section, device: Device) -> Iterator[tuple[Column, Say[tuple[object, object, tuple[int, ...]]]]]:
    """What the periods of each row consist of, all of them together: the third of it, as `added_up` gives them."""
    for number, title in enumerate(("span", "compute", "exposed comm", "exposed copy", "idle")):
        if title != "exposed comm" or device.engines.comm_ns:

            def total(item: tuple[object, object, tuple[int, ...]], number: int = number) -> int:
                return item[2][number]

            yield _times(title.removeprefix("exposed "), title, section.unit, total)
