"""Gain and cost of overlap, as tables and in a sentence. All figures are of the recording."""

from __future__ import annotations

from msgspec.structs import replace

from overlapscope.analysis.results import NetOverlap
from overlapscope.base.words import Unit, capital, duration, share
from overlapscope.documents import columns as column
from overlapscope.documents.table import Table, table_of
from overlapscope.report.losses import WORTH_SAYING
from overlapscope.report.page import DeviceReport

_NOTE = "Kernels are judged where equal ones ran both alone and beside it."


def summary(section: DeviceReport) -> Table:
    """Return one row each for communication and copies: what overlap hides, costs and brings."""
    results, unit = _results(section), section.unit
    unjudged = any(result.judged_ns < result.overlapped_ns for result in results)
    table = table_of(
        results,
        column.text("net overlap", lambda result: result.beside, heads=True),
        column.time("hidden", unit, lambda result: result.hidden_ns),
        column.time("kernels beside it", unit, lambda result: result.overlapped_ns),
        column.share("judged %", lambda result: result.judged_ns, lambda result: result.overlapped_ns),
        column.figure("slowed by", lambda result: _bounds(unit, result.slowed_low_ns, result.slowed_high_ns)),
        title="Net overlap, as recorded",
    )
    return replace(table, note=_NOTE) if unjudged else table


def kernels(section: DeviceReport) -> Table:
    """Return the kernels that other work slows most."""
    slowed = [(result.beside, kernel) for result in _results(section) for kernel in result.kernels]
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


def sentence(section: DeviceReport) -> str:
    """Return what overlap costs at the lower end of its 95% interval, for each kind of work where that is much."""
    recorded = section.window
    frame = None if recorded is None else recorded.per_step or recorded.judged
    if recorded is None or frame is None:
        return ""
    where, a_step = "In the recording, " if section.is_plain else "", " a step" if frame is recorded.per_step else ""
    sentences = [
        f"{where}{result.beside} is hidden for {duration(result.hidden_ns)}{a_step}, but kernels beside it "
        f"probably run at least {duration(result.slowed_low_ns)} ({share(result.slowed_low_ns, frame.span_ns)}) "
        "longer than alone."
        for result in _results(section)
        if result.slowed_low_ns is not None and result.slowed_low_ns >= max(1, WORTH_SAYING * frame.span_ns)
    ]
    return " ".join(map(capital, sentences))


def _results(section: DeviceReport) -> tuple[NetOverlap, ...]:
    return () if section.window is None else section.window.net_overlap


def _bounds(unit: Unit, low_ns: int | None, high_ns: int | None) -> str:
    """Return an interval in the unit, such as `0.55 to 0.91 ms`."""
    if low_ns is None or high_ns is None:
        return "unknown"
    return f"{unit.number(low_ns)} to {unit.number(high_ns)} {unit.name}"
