"""Tables of a report that summarize."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from overlapscope.analysis.figures import PerStep, TimeFigures
from overlapscope.analysis.results import Device, TraceResult
from overlapscope.base.median import median
from overlapscope.base.words import (
    NOTHING,
    Unit,
    bare_percent,
    bare_share,
    capital,
    clean,
    duration,
    percent,
    shares_by_name,
    unit_for,
)
from overlapscope.catalog.buckets import bucket_of
from overlapscope.catalog.causes import IDLE, WORK_UNKNOWN, Subject
from overlapscope.catalog.checks import check_by_id
from overlapscope.catalog.measures import of_group
from overlapscope.documents import columns as column
from overlapscope.documents.columns import ColumnOf
from overlapscope.documents.model import Bar, bar_of
from overlapscope.documents.table import Cell, Column, Table, Tone, rows, table_of, words
from overlapscope.report.lists import SHORT_FORM_ROWS
from overlapscope.report.page import DeviceReport, Page
from overlapscope.report.sentences import WORTH_SAYING, rate, requests_words
from overlapscope.rules.finding import Finding
from overlapscope.trace.lost import PARTS_FOR_CAUSES
from overlapscope.trace.op_names import op_words

T = TypeVar("T")


EXPLAINED_SAVING_RATIO = 1.1
"""A saving is explained if it exceeds this multiple of the cost."""
_STATUS: dict[str, Tone] = {"ok": "good", "warn": "fair", "fail": "poor"}
_ENDING = re.compile(r"(\.(pt\.)?trace)?\.json(\.gz|\.zst)?$")


def summary(page: Page) -> Table:
    """Return a row per device, all in the same unit."""
    sections = list(page.sections())
    unit = unit_for(max((section.device.span_ns for section in sections if section.device), default=0))
    what = "step" if all(section.steps for section in sections if section.device) else "time"

    def time(of: Callable[[Device], int]) -> Callable[[DeviceReport], int | None]:
        return lambda section: None if section.device is None else of(section.device)

    return table_of(
        sections,
        trace_column(lambda section: page.names[section.number]),
        column.number(
            "rank",
            lambda section: section.trace.rank,
            when=any(section.trace.rank is not None for section in sections),
        ),
        column.number(
            "device",
            lambda section: None if section.device is None else section.device.device,
            when=any(len(trace.devices) > 1 or trace.rank is None for trace in page.report.traces),
        ),
        column.time(what, unit, time(lambda device: device.span_ns)),
        column.percent("eff. %", lambda section: None if section.device is None else section.device.efficiency_shown),
        column.time("exposed copy", unit, time(lambda device: device.buckets.exposed_copy_ns), short="exp. copy"),
        column.time("exposed comm", unit, time(lambda device: device.buckets.exposed_comm_ns), short="exp. comm"),
        column.time("idle", unit, time(lambda device: device.buckets.idle_ns - device.missing_ns), short="idle"),
        column.text("trust", lambda section: section.trace.trust.verdict),
        title="Traces",
    )


def trace_column(name_of: Callable[[T], str]) -> ColumnOf[T] | None:
    """Return a column with the names of traces."""
    # All are traces, so the ending adds nothing, and names fit better without it.
    return column.text("trace", lambda item: _ENDING.sub("", name_of(item)), flexible=True, heads=True)


def buckets(section: DeviceReport, device: Device) -> Table:
    """Return the partition of a step, or of the time that was judged if there are no steps."""
    title, whole = ("Where a step goes", "step") if section.steps else ("Where the time goes", "all")
    return partition_table(title, whole, section.unit, device)


def window(section: DeviceReport) -> Table:
    """Return the partition of the whole window as recorded, lead-in included."""
    title, device = "The whole window, as recorded", section.window
    return Table(title, ()) if device is None else partition_table(title, "window", unit_for(device.span_ns), device)


def partition_table(title: str, whole: str, unit: Unit, figures: TimeFigures) -> Table:
    """Return the buckets of some time, and the whole of them."""
    parts = ((Cell(part.name, color=part.color), part.amount, part.share) for part in bar(figures, unit).parts)
    return parts_table(title, unit, parts, (whole, figures.span_ns))


def bar(figures: TimeFigures, unit: Unit) -> Bar:
    """Return the buckets of some time as a bar."""
    return bar_of(figures.partition, unit)


def parts_table(
    title: str, unit: Unit, parts: Iterable[tuple[Cell | str, int, str]], whole: tuple[str, int] | None = None
) -> Table:
    """Return a table of parts, each with its time in ns and its share of the whole, which is the last row."""
    last = [] if whole is None else [(*whole, "100")]
    lines = ((name, unit.number(ns), part) for name, ns, part in (*parts, *last))
    head = words(title[:1].lower() + title[1:], heads=True)
    return Table(title, (head, Column(unit.name), Column("%")), rows(lines), total=whole is not None)


def figures(section: DeviceReport, device: Device) -> Table:
    """Return the figures of overlap and of the engines; times of 0 are left out."""
    lines = [*overlap_lines(device, section.unit, every=True)]
    lead_in = "unknown" if device.lead_in_ns is None else duration(device.lead_in_ns)
    # The lead-in is before any step or range.
    return overlap_table([*lines, ("lead-in", lead_in)] if section.page.scope == "window" else lines)


def overlap_table(lines: Iterable[tuple[str, str]]) -> Table:
    """Return figures of overlap with their names."""
    return Table("Overlap", (words("overlap", heads=True), Column("")), rows(lines))


def overlap_lines(figures: TimeFigures, unit: Unit, *, every: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the figures of overlap that can be better or worse, or `every` one, and those of engines; no times of 0."""
    for measure in (*of_group("overlap"), *of_group("engines")):
        value = figures.shown(measure)
        if every or measure.more_is_better is not None:
            if measure.unit == "pct":
                yield measure.label, percent(value)
            elif value:
                yield measure.label, unit.text(round(value))


_WITH_CAUSES: Final[Mapping[Subject, str]] = {
    "exposed-copy": "copy",
    "exposed-comm": "comm",
    "exposed-other": "memory",
    "idle": "idle",
}
"""Short names of the buckets that have causes."""


def causes_of(figures: TimeFigures, subject: Subject) -> dict[str, int]:
    """Return the causes that took time, largest first. Idle time is without that of `WORK_UNKNOWN`."""
    lost = ((ns, cause) for cause, ns in figures.by_subject[subject].items() if ns and cause not in WORK_UNKNOWN)
    return {cause: ns for ns, cause in largest(lost)}


def cause_tables(figures: TimeFigures, unit: Unit) -> Iterator[Table]:
    """Yield the causes of each bucket that has causes."""
    return (cause_table(figures, subject, unit) for subject in _WITH_CAUSES)


def cause_table(figures: TimeFigures, subject: Subject, unit: Unit) -> Table:
    """Return the causes of a bucket, largest first; shares are of the bucket."""
    causes = causes_of(figures, subject)
    shares = shares_by_name(causes, sum(causes.values()))
    lines = ((_cause(subject, cause), ns, shares[cause]) for cause, ns in causes.items())
    return parts_table(f"{capital(bucket_of(subject).name)} by cause", unit, lines)


def _cause(subject: Subject, cause: str, of: str = "") -> Cell:
    return Cell(f"{of}{clean(cause, 40)}", color=f"{subject}:{cause}")


def costliest_causes(section: DeviceReport, device: Device) -> Table:
    """Return the main causes of the buckets that have causes, largest first; shares are of the span."""
    named = [
        (ns, _cause(subject, cause, f"{short}: "))
        for subject, short in _WITH_CAUSES.items()
        for cause, ns in causes_of(device, subject).items()
    ]
    named.sort(key=lambda each: (-each[0], each[1].text))
    shown = ((cause, ns, bare_share(ns, device.span_ns)) for ns, cause in named[:SHORT_FORM_ROWS])
    return parts_table("Causes", section.unit, shown)


def largest(causes: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return times with their names, the longest first."""
    return sorted(causes, key=lambda item: (-item[0], item[1]))


def phases(section: DeviceReport, device: Device) -> Table:
    """Return an average step of each phase of a server, side by side. Causes and buckets below 1% are left out.

    A single phase has the same figures as the average step, and no table.
    """
    each = device.served.phases if device.served and len(device.served.phases) > 1 else ()
    unit = section.unit

    def row(name: str, of: Callable[[PerStep], str]) -> tuple[str, ...]:
        return name, *(NOTHING if figures.per_step is None else of(figures.per_step) for figures in each)

    def times(name: str, of: Callable[[PerStep], int]) -> Iterator[tuple[str, ...]]:
        averages = [figures.per_step for figures in each if figures.per_step is not None]
        if any(of(step) >= max(1, WORTH_SAYING * step.span_ns) for step in averages):
            yield row(f"{name}, {unit.name}", lambda step: unit.number(of(step)))

    def idle_by(cause: str) -> Callable[[PerStep], int]:
        return lambda step: step.idle_by_cause.get(cause, 0)

    lines = [
        ("steps", *(f"{figures.recorded:,}" for figures in each)),
        ("requests", *(requests_words(figures) or NOTHING for figures in each)),
        row(f"step, {unit.name}", lambda step: unit.number(step.span_ns)),
        row("GPU busy, %", lambda step: bare_share(step.span_ns - step.buckets.idle_ns, step.span_ns)),
        *times("exposed copy", lambda step: step.buckets.exposed_copy_ns),
        *times("exposed comm", lambda step: step.buckets.exposed_comm_ns),
        *times("idle", lambda step: step.buckets.idle_ns - step.missing_ns),
        *(line for cause in IDLE for line in times(f"idle: {cause}", idle_by(cause))),
        ("tokens a second", *(rate(figures.tokens_per_s) for figures in each)),
    ]
    columns = (words("by phase", heads=True), *(Column(figures.phase) for figures in each))
    return Table("Steps by phase", columns, rows(lines) if each else ())


def steps(section: DeviceReport, device: Device) -> Table:
    """Return a row that summarizes all steps."""
    unit, periods = section.unit, device.steps
    if not periods:
        return Table("Steps", ())
    spans = [period.span_ns for period in periods]
    efficiencies = [pct for period in periods if (pct := period.efficiency_shown) is not None]
    row = (
        str(len(periods)),
        *(unit.number(round(ns)) for ns in _spread(spans)),
        *(bare_percent(pct) for pct in (_spread(efficiencies) if efficiencies else (None, None, None))),
    )
    titles = ("steps", f"step {unit.name}: median", "min", "max", "efficiency %: median", "min", "max")
    columns = (Column(titles[0], heads=True), *map(Column, titles[1:]))
    return Table("Steps", columns, rows([row]))


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), min(values), max(values)


def checks(section: DeviceReport, *, passed: bool, effects: bool = False) -> Table:
    """Return the checks of the trace that failed or warned.

    With `passed` the others are included; with `effects` a column says what each check can affect.
    """
    return table_of(
        [check for check in section.trace.trust.checks if passed or check.status != "ok"],
        column.text("status", lambda check: check.status, tone=lambda check: _STATUS[check.status], heads=True),
        column.text("check", lambda check: check.id),
        column.text("detail", lambda check: check.detail, limit=1000, flexible=True, prose=True),
        column.text(
            "affects", lambda check: check_by_id(check.id).affects, when=effects, limit=1000, flexible=True, prose=True
        ),
        title="Trust",
    )


def evidence(finding: Finding) -> list[str]:
    """Return the evidence of a finding, and remarks on its saving."""
    return [finding.detail, *filter(None, [finding.doubt])]


def where_none_found(traces: Iterable[TraceResult]) -> str:
    """Return the addition to "no findings" for recordings that are partly lost."""
    return " in what is left of the recording" if any(trace.trust.lost & PARTS_FOR_CAUSES for trace in traces) else ""


def findings_note(traces: Iterable[TraceResult], findings: Iterable[Finding]) -> str:
    """Return a caution about the savings of several findings, and how to get lines of code if none was recorded."""
    costly = [finding for finding in findings if finding.cost_ns]
    notes = []
    overlap = len(costly) > 1 and any(finding.saving is not None for finding in costly)
    exceed = any(each.saving and each.saving.saved_ns > EXPLAINED_SAVING_RATIO * each.cost_ns for each in costly)
    if overlap or exceed:
        what, caution = "include other waits" if exceed else "overlap", "; don't add them up" * overlap
        notes.append(f"Savings {what}{caution}.")
    nowhere = [finding for finding in costly if finding.where is None or finding.where.line is None]
    recorded = list(traces)
    records = [trace.environment for trace in recorded]
    if nowhere and all(by.recorder == "kineto" and not by.flags.get("stacks") for by in records):
        some = "Where no line of code is shown, none" if len(nowhere) < len(costly) else "No line of code"
        served = any(device.served for trace in recorded for device in trace.devices)
        command = "record --url URL --stacks" if served else "run --stacks"
        notes.append(f"{some} was recorded: `overlapscope {command}` shows it (in Python, with_stack=True).")
    return " ".join(notes)


def called(finding: Finding) -> str:
    """Return the op and the call of a finding's place; empty if unknown."""
    where = finding.where
    if where is None:
        return ""
    return ", ".join(clean(part, 200) for part in (op_words(where.op) if where.op else None, where.call) if part)
