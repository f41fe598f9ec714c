"""The tables of a report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import TypeVar

from overlapscope.analysis.results import (
    Device,
    Plain,
    TraceResult,
    efficiency_shown,
    hidden_copy_shown,
    missing_ns,
    partition,
)
from overlapscope.base.words import (
    NOTHING,
    Unit,
    bare_percent,
    bare_share,
    bare_shares,
    clean,
    duration,
    percent,
    plural,
    share,
    unit_for,
)
from overlapscope.catalog.causes import IdleCause
from overlapscope.catalog.checks import check_by_id
from overlapscope.documents.columns import NAME_LIMIT
from overlapscope.documents.table import Cell, Column, Table, Tone, prose, rows, words
from overlapscope.report.lists import FEW
from overlapscope.report.page import DeviceReport, Page
from overlapscope.rules.finding import Finding
from overlapscope.trace.lost import CAUSES

HARDLY = 0.0005
"""A replayed saving below this share of the time would be shown as 0.0%."""

N = TypeVar("N", int, float)


_STATUS: dict[str, Tone] = {"ok": "good", "warn": "fair", "fail": "poor"}
_ENDING = re.compile(r"(\.(pt\.)?trace)?\.json(\.gz|\.zst)?$")


def summary(page: Page) -> Table:
    """One row for each device of several: ranks next to one another, in one unit."""
    sections = list(page.sections())
    if all(section.trace.host is not None for section in sections):
        return _summary_of_hosts(page)
    unit = unit_for(max((section.device.span_ns for section in sections if section.device), default=0))
    ranked = any(section.trace.rank is not None for section in sections)
    by_device = any(len(trace.devices) > 1 or trace.rank is None for trace in page.report.traces)
    lines = []
    for section in sections:
        device, trace = section.device, section.trace
        # All are traces: the ending says nothing, and without it the names fit.
        row = [_ENDING.sub("", source_name(page, trace))]
        row += [str(trace.rank) if trace.rank is not None else NOTHING] if ranked else []
        row += [str(device.device) if device else NOTHING] if by_device else []
        if device is None:
            row += [NOTHING] * 5
        else:
            b = device.buckets
            row += [unit.number(device.span_ns), bare_percent(efficiency_shown(device))]
            row += [unit.number(ns) for ns in (b.exposed_copy_ns, b.exposed_comm_ns, b.idle_ns - missing_ns(device))]
        lines.append((*row, trace.trust.verdict))
    columns = [words("trace", flexible=True, heads=True)]
    columns += [Column("rank")] if ranked else []
    columns += [Column("device")] if by_device else []
    columns += map(Column, (f"span {unit.name}", "eff. %", "exp. copy", "exp. comm", "idle"))
    return Table("Traces", (*columns, words("trust")), rows(lines))


def source_name(page: Page, trace: TraceResult) -> str:
    """The file's name, or the path where several files have that name."""
    name = PurePath(trace.source).name
    alike = sum(1 for other in page.report.traces if PurePath(other.source).name == name)
    return clean(trace.source if alike > 1 else name, NAME_LIMIT)


def buckets(section: DeviceReport, device: Device) -> Table:
    """The partition of the window."""
    unit, parts = section.unit, partition(device)
    shares = bare_shares(list(parts.values()), device.span_ns)
    lines = [(name, unit.number(ns), part) for (name, ns), part in zip(parts.items(), shares, strict=True) if ns]
    lines.append(("span", unit.number(device.span_ns), "100"))
    title = "Where the time goes"
    return Table(title, (words(title.lower(), heads=True), Column(unit.name), Column("%")), rows(lines), total=True)


def plain_step(section: DeviceReport, device: Device) -> Table:
    """What a plain step consists of, with the causes of what is lost; no rows where that is not known, and of an
    estimated one only with `verbose`."""
    plain, title = device.plain, "A step without the profiler"
    if plain is None or plain.buckets is None or not (plain.program or section.page.verbose):
        return Table(title, ())
    of = plain_unit(plain)
    parts = plain.buckets.named()
    causes = {"exposed copy": plain.exposed_copy_by_cause, "idle": plain.idle_by_cause}
    lines = []
    for (name, ns), part in zip(parts.items(), bare_shares(list(parts.values()), plain.step_ns), strict=True):
        lines.append((name, of.number(ns), part))
        most = sorted(causes.get(name, {}).items(), key=lambda cause: -cause[1])
        lines += [(f"  {cause}", of.number(time), "") for cause, time in most[:2] if time and ns]
    lines.append(("step", of.number(plain.step_ns), "100"))
    columns = (words(title.lower(), heads=True), Column(of.name), Column("%"))
    return Table(title, columns, rows(lines), total=True)


def figures(section: DeviceReport, device: Device) -> Table:
    """The headline and what stands behind it."""
    unit, overlap, engines = section.unit, device.overlap, device.engines
    lead_in = "unknown" if device.lead_in_ns is None else unit.text(device.lead_in_ns)
    both = (engines.h2d_ns, engines.d2h_ns, overlap.h2d_d2h_ns)
    lines = (
        ("efficiency", percent(efficiency_shown(device))),
        ("hidden copy", percent(hidden_copy_shown(device))),
        ("comm under compute", percent(overlap.comm_compute_pct)),
        ("h2d, d2h, both at once", f"{', '.join(map(unit.number, both))} {unit.name}"),
        ("engines busy, ideal", f"{unit.number(overlap.busy_ns)}, {unit.text(overlap.ideal_ns)}"),
        # The lead-in lies before any step or range.
        *([("lead-in", lead_in)] if section.page.scope == "window" else []),
    )
    return Table("Overlap", (words("overlap", heads=True), Column("")), rows(lines))


def causes(section: DeviceReport, title: str, by_cause: dict[str, int], whole_ns: int) -> Table:
    """What a bucket's time is due to, largest first; shares are of that bucket."""
    unit = section.unit
    shares = dict(zip(by_cause, bare_shares(list(by_cause.values()), whole_ns), strict=True))
    found = _largest((ns, cause) for cause, ns in by_cause.items() if ns)
    lines = ((clean(cause, 40), unit.number(ns), shares[cause]) for ns, cause in found)
    return Table(title, (words(title.lower(), heads=True), Column(unit.name), Column("%")), rows(lines))


def costliest_causes(section: DeviceReport, device: Device) -> Table:
    """What exposed copies and idle time are mostly due to, largest first; shares are of all the time."""
    unit, told = section.unit, zip(("copy", "idle"), _by_cause(device), strict=True)
    found = [(ns, f"{subject}: {clean(cause, 40)}") for subject, by_cause in told for cause, ns in by_cause.items()]
    lines = [(cause, unit.number(ns), bare_share(ns, device.span_ns)) for ns, cause in _largest(found) if ns]
    return Table("Causes", (words("causes", heads=True), Column(unit.name), Column("%")), rows(lines[:FEW]))


def _by_cause(device: Device) -> tuple[dict[str, int], dict[str, int]]:
    """The causes of exposed copies, and of idle time; ops that are missing are no idle time."""
    idle = {cause: ns for cause, ns in device.idle_by_cause.items() if cause != IdleCause.MISSING_OPS}
    return device.exposed_copy_by_cause, idle


def _largest(found: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    return sorted(found, key=lambda item: (-item[0], item[1]))


def _summary_of_hosts(page: Page) -> Table:
    """Return one row for each trace of a program that used no GPU: an average step of each, in one unit."""
    hosts = [(trace, trace.host) for trace in page.report.traces if trace.host is not None]
    unit = unit_for(max(sum(step.span_ns for step in host.steps) // len(host.steps) for _, host in hosts))
    lines = []
    for trace, host in hosts:
        count = len(host.steps)
        parts = (
            [getattr(step, part) for step in host.steps] for part in ("span_ns", "loading_ns", "ops_ns", "rest_ns")
        )
        name = _ENDING.sub("", source_name(page, trace))
        lines.append((name, str(count) if host.by_steps else NOTHING, *(unit.number(sum(ns) // count) for ns in parts)))
    titles = ("steps", f"step {unit.name}", "loading", "ops", "neither")
    return Table("Traces", (words("trace", flexible=True, heads=True), *map(Column, titles)), rows(lines))


def steps(section: DeviceReport, device: Device) -> Table:
    """All steps in one row."""
    unit, periods = section.unit, device.steps
    if not periods:
        return Table("Steps", ())
    spans = [period.span_ns for period in periods]
    known = [pct for period in periods if (pct := efficiency_shown(period)) is not None]
    row = (
        str(len(periods)),
        *(unit.number(ns) for ns in _spread(spans)),
        *(bare_percent(pct) for pct in (_spread(known) if known else (None, None, None))),
    )
    titles = ("steps", f"span {unit.name}: median", "min", "max", "efficiency %: median", "min", "max")
    columns = (Column(titles[0], heads=True), *map(Column, titles[1:]))
    return Table("Steps", columns, rows([row]))


def _spread(values: Sequence[N]) -> tuple[N, N, N]:
    # The lower of the two middle values, so that it is the value of a step that was recorded.
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2], ordered[0], ordered[-1]


def checks(section: DeviceReport, *, passed: bool, effects: bool = False) -> Table:
    """Return the checks of the trace: all or, unless `passed`, those that did not pass; with what each can affect."""
    lines: list[tuple[str | Cell, ...]] = [
        (
            Cell(check.status, tone=_STATUS[check.status]),
            check.id,
            clean(check.detail, 1000),
            *([check_by_id(check.id).affects] if effects else []),
        )
        for check in section.trace.trust.checks
        if passed or check.status != "ok"
    ]
    columns = (words("status", heads=True), words("check"), prose("detail"), *([prose("affects")] if effects else []))
    return Table("Trust", columns, rows(lines))


def cause_tables(section: DeviceReport, device: Device) -> tuple[Table, Table]:
    """Why copies are exposed, and why the GPU is idle."""
    exposed, idle = _by_cause(device)
    return (
        causes(section, "Exposed copy by cause", exposed, device.buckets.exposed_copy_ns),
        causes(section, "Idle by cause", idle, device.buckets.idle_ns - missing_ns(device)),
    )


def cost(section: DeviceReport | None, finding: Finding) -> str:
    """What a finding's fix saves, and how that is known; empty for what costs nothing."""
    if section is None or not finding.spoken_bound_ns:
        return ""
    section = section.spoken
    saved = f"{duration(finding.cost_ns)} ({share(finding.cost_ns, section.judged_ns)})"
    if finding.cost_from == "bound":
        return f"saves at most {saved}"
    if not finding.cost_ns:
        return "saves nothing by itself, by replay"
    if finding.cost_ns < HARDLY * section.judged_ns:
        return "saves almost nothing by itself, by replay"
    if finding.doubt:
        # It is more than the finding explains, and the evidence says why.
        return f"saves about {saved}, knock-on effects included"
    return f"saves about {saved}, by replay"


def evidence(finding: Finding) -> list[str]:
    """What a finding rests on, and what has to be said of its saving."""
    return [finding.detail, *([finding.doubt] if finding.doubt else [])]


def where_none_found(traces: Iterable[TraceResult]) -> str:
    """What is to be added to "no findings": where a part of the recordings is lost, nobody knows."""
    return " in what is left of the recording" if any(trace.trust.lost & CAUSES for trace in traces) else ""


def costs_note(findings: Iterable[Finding]) -> str:
    """What has to be known of the costs of several findings; empty where there is nothing to know."""
    costly = [finding for finding in findings if finding.spoken_bound_ns]
    if len(costly) < 2 or all(finding.cost_from == "bound" for finding in costly):
        return ""
    return "Savings overlap; don't add them up."


def places(finding: Finding) -> list[str]:
    """Where a finding is, from the program inwards, in one line; none where nothing is known."""
    if finding.where is None:
        return []
    known = [clean(part, 200) for part in (finding.where.line, finding.where.op, finding.where.call) if part]
    return [", ".join(known)] if known else []


def plain_unit(plain: Plain) -> Unit:
    """The unit in which the longer of the two steps reads well."""
    return unit_for(max(plain.high_ns, plain.recorded_step_ns))


# -- a trace without GPU activity -----------------------------------------------------------------


def host_tables(section: DeviceReport, *, most: int | None = None) -> list[Table]:
    """The steps, the ops and the threads of a trace without GPU activity, at most so many rows of each; none of
    another."""
    host = section.trace.host
    if host is None:
        return []
    unit = unit_for(max(step.span_ns for step in host.steps))
    total = sum(step.span_ns for step in host.steps)

    def table(title: str, heads: Column, others: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> Table:
        shown = lines[:most]
        left = len(lines) - len(shown)
        note = f"Add -v for {plural(left, 'more row')}." if left else ""
        return Table(title, (heads, *map(Column, others)), rows(shown), note)

    steps = [
        (clean(step.name, NAME_LIMIT), *map(unit.number, (step.span_ns, step.loading_ns, step.ops_ns, step.rest_ns)))
        for step in host.steps
    ]
    ops = [
        (clean(op.op, NAME_LIMIT), f"{op.count:,}", unit.number(op.time_ns), share(op.time_ns, total))
        for op in host.ops
    ]
    threads = [
        (
            f"{thread.thread}{', which marks the steps' if thread.steps and host.by_steps else ''}",
            unit.number(thread.busy_ns),
            share(thread.busy_ns, total),
        )
        for thread in host.threads
    ]
    by_step, by_op = (words(name, flexible=True, heads=True) for name in ("step", "outermost op"))
    return [
        table("Steps on the host", by_step, (f"span {unit.name}", "loading", "ops", "neither"), steps),
        table("Ops on the host", by_op, ("count", unit.name, "share"), ops),
        table("Threads", words("thread", heads=True), (f"in ops {unit.name}", "share"), threads),
    ]
