"""Where the time of a program without GPU activity goes, as tables and in a sentence."""

from __future__ import annotations

from statistics import median_low

from overlapscope.analysis.results import HostUse
from overlapscope.base.words import clean, plural, share, unit_for
from overlapscope.documents.table import Column, Table, rows, words
from overlapscope.report.page import Section
from overlapscope.report.tables import NAME_LIMIT

FEW = 8
_LOADER = {
    "none": "",
    "own-thread": " The thread of the steps makes the batches itself, so loading never runs beside its ops: use "
    "num_workers.",
    "workers": " Workers make the batches; loading is what the thread of the steps still waits for them.",
}


def sentence(host: HostUse) -> str:
    """`A step takes 12.3 ms on the host: 40.0 % loading data, 55.0 % in ops, 5.0 % in neither, such as Python.`"""
    total = sum(step.span_ns for step in host.steps)
    spans = [step.span_ns for step in host.steps]
    unit = unit_for(max(spans))
    what = "A step takes" if host.by_steps else "The recording, in which no step is marked, takes"
    parts = [(sum(getattr(step, f"{part}_ns") for step in host.steps), said) for part, said in _PARTS]
    said = ", ".join(f"{share(ns, total)} {word}" for ns, word in parts)
    return f"{what} {unit.text(median_low(spans))} on the host: {said}.{_LOADER[host.loader]}"


_PARTS = (("loading", "loading data"), ("ops", "in ops"), ("rest", "in neither, such as Python"))


def host_tables(section: Section) -> list[Table]:
    """The steps, the ops and the threads of a trace without GPU activity; none of another."""
    host, verbose = section.trace.host, section.page.verbose
    if host is None:
        return []
    unit = unit_for(max(step.span_ns for step in host.steps))
    total = sum(step.span_ns for step in host.steps)
    steps = host.steps if verbose else host.steps[:FEW]
    spans = rows(
        (clean(step.name, NAME_LIMIT), *map(unit.number, (step.span_ns, step.loading_ns, step.ops_ns, step.rest_ns)))
        for step in steps
    )
    columns = (f"span {unit.name}", "loading", "ops", "neither")
    ops = host.ops if verbose else host.ops[:FEW]
    threads = host.threads if verbose else host.threads[:FEW]
    return [
        Table(
            "Steps on the host",
            (words("step", flexible=True, heads=True), *map(Column, columns)),
            spans,
            _left(host.steps, steps),
        ),
        Table(
            "Ops on the host",
            (words("outermost op", flexible=True, heads=True), Column("count"), Column(unit.name), Column("share")),
            rows(
                (clean(o.op, NAME_LIMIT), f"{o.count:,}", unit.number(o.time_ns), share(o.time_ns, total)) for o in ops
            ),
            _left(host.ops, ops),
        ),
        Table(
            "Threads",
            (words("thread", heads=True), Column(f"in ops {unit.name}"), Column("share")),
            rows(
                (
                    f"{t.thread}{', which marks the steps' if t.steps and host.by_steps else ''}",
                    unit.number(t.busy_ns),
                    share(t.busy_ns, total),
                )
                for t in threads
            ),
            _left(host.threads, threads),
        ),
    ]


def _left(all_of_them: tuple[object, ...], shown: tuple[object, ...]) -> str:
    left = len(all_of_them) - len(shown)
    return f"{plural(left, 'more row')}: see --verbose." if left else ""
