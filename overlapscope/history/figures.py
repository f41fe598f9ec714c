"""Figures of a report for the history: the values that `overlapscope check` judges, by device and metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import inf, isclose
from statistics import fmean, stdev
from typing import Final

from msgspec.structs import replace

from overlapscope.analysis.group_results import CopiesByStep, EvidenceByStep, StallsByStep
from overlapscope.analysis.results import Device, TraceResult
from overlapscope.base.words import clean, listed
from overlapscope.budgets.gate import doubt
from overlapscope.budgets.metrics import CAUSES_OF, METRICS, Metric
from overlapscope.budgets.places import JudgedPlace, find_places
from overlapscope.budgets.samples import Series, lacking, noise_floor, series, spent
from overlapscope.budgets.settings import Budget
from overlapscope.budgets.verdicts import CheckResult
from overlapscope.errors import UsageError
from overlapscope.history.entry import Entry, HistoryFigure, Origin, digest, pack, repeated
from overlapscope.report.model import Report, of_program
from overlapscope.trace.lost import CAUSES
from overlapscope.version import __version__

KEPT_BYTES: Final = 16 << 10
"""Maximum size of a packed entry in bytes. Parts that make it larger are left out."""

_ROUNDED: Final = 1e-9
_SCALARS: Final = {"ns": ("_time", "_ms", 1e-6), "gb_per_s": ("_bandwidth", "_gb_per_s", 1.0)}
"""Suffix of metrics by unit, suffix of their scalars, and factor between the two."""


def figures(report: Report) -> tuple[HistoryFigure, ...]:
    """Return all figures of a report: of the plain program if its step time is known, otherwise of the recording.

    A metric's value is the mean of the steps that a budget judges. Causes of idle time, of exposed copies and of
    exposed communication have their own figures, even if they are 0. A device without steps has percentages and
    bandwidths of its window, but no times, since the length of a recording says nothing about the program.
    """
    report = of_program(report)
    return tuple(figure for metric in METRICS.values() for figure in _of_metric(report, metric))


def _of_metric(report: Report, metric: Metric) -> Iterator[HistoryFigure]:
    for place in find_places(report, Budget(metric=metric.id), (), {}):
        if place.device is not None and not place.device.steps and metric.unit != "ns":
            rank, device = place.subject.rank, place.device
            places = find_places(report, Budget(metric=metric.id, scope="window"), (), {})
            place = next(each for each in places if each.device is device and each.subject.rank == rank)
        values = series(place.samples, metric, None)
        if place.missing is not None or lacking(metric, None, place.samples, values):
            continue
        yield _figure(place, metric, values, None)
        if place.trace is None or doubt(place.trace, CAUSES):
            continue
        for cause in CAUSES_OF.get(metric.id, ()):
            yield _figure(place, metric, series(place.samples, metric, None, cause), cause)


def _figure(place: JudgedPlace, metric: Metric, values: Series, cause: str | None) -> HistoryFigure:
    known_values = values.known()
    numbers, value = known_values.numbers, place.budget.combine(known_values)
    return HistoryFigure(
        metric=metric.id if cause is None else f"{metric.id}/{cause}",
        rank=place.subject.rank,
        # Figures of the host belong to no device.
        device=place.subject.device or 0,
        value=value,
        spread=stdev(numbers) if len(numbers) > 1 else None,
        samples=len(numbers),
        floor=_floor(place, metric, value, cause),
    )


def _floor(place: JudgedPlace, metric: Metric, value: float, cause: str | None) -> float:
    """Return the change that `check` would consider noise between two recordings like this one."""
    now = spent(partial(series, place.samples), None)
    if cause is not None:
        only = {cause: value}
        now = replace(now, exposed_copy=only, exposed_comm=only, idle=only)
    whole = fmean(metric.whole(sample, None) for sample in place.samples) if metric.whole is not None else 0.0
    return noise_floor(metric, now, now, whole, value)


def scalars(report: Report) -> dict[str, float]:
    """Return figures for tools that draw curves, by names with units: `efficiency_pct`, `idle_ms`, `copy_gb_per_s`.

    Each is the mean over the devices that have it.
    """
    by_name: dict[str, list[float]] = {}
    for figure in figures(report):
        if figure.metric in METRICS:
            name, value = _scalar(METRICS[figure.metric], figure.value)
            by_name.setdefault(name, []).append(value)
    plain = [device.plain.step_ns / 1e6 for device in report.devices if device.plain is not None]
    return {name: fmean(values) for name, values in (by_name | {"plain_step_ms": plain}).items() if values}


def _scalar(metric: Metric, value: float) -> tuple[str, float]:
    ending, instead, factor = _SCALARS.get(metric.unit, ("", "", 1.0))
    return metric.id.removesuffix(ending) + instead, value * factor


# -- Entries ----------------------------------------------------------------------------------------


def entry(report: Report, origin: Origin, check: CheckResult | None = None) -> Entry:
    """Return the entry for a report, with the result of its check if there was one.

    If the packed entry exceeds `KEPT_BYTES`, parts of the report are left out. A note in it states which.

    Raises:
        UsageError: A trace was predicted, or two traces are of the same device, and so not of the same job.
    """
    plain, recorded = of_program(report) is not report, figures(report)
    for trace in report.traces:
        if trace.predicted_by is not None:
            raise UsageError(
                f"{clean(trace.source)}: was predicted by `overlapscope whatif`, and a history is of recordings; add a "
                "recording of the changed program."
            )
    if repeated(recorded):
        raise UsageError(
            f"{clean(report.traces[0].source)} and the traces beside it are of the same rank, and an entry of the "
            "history belongs to one job; add them one by one."
        )
    whole = Entry(
        id=digest(origin, report, plain=plain),
        origin=origin,
        plain=plain,
        gpu=gpu_of(report),
        figures=recorded,
        report=report,
        check=check,
    )
    kept, cuts = whole, []
    for part, cut in _CUTS.items():
        if len(pack(kept)) <= KEPT_BYTES:
            break
        cuts.append(part)
        kept = replace(kept, report=_without(kept.report, cut))
    if not cuts:
        return whole
    note = f"The history keeps no {listed(cuts)} of this report, because it is large."
    return replace(kept, left_out=tuple(cuts), report=replace(kept.report, notes=(*kept.report.notes, note)))


_MOST_LAUNCHES = 10**9
"""Number of launches that no recording has: each takes some 100 bytes of it."""


def contradicted(entry: Entry) -> bool:
    """Return whether an entry states another GPU or other figures than its report gives.

    Another version may define figures differently, and a large report has lost its steps. Then figures can't be
    computed again, and only impossible ones contradict the report.
    """
    report = entry.report
    program = of_program(report)
    if entry.gpu != gpu_of(report) or entry.plain != (program is not report):
        return True
    may_be_cut = "steps" in entry.left_out or report.tool.version != __version__
    cut = may_be_cut and not any(device.steps for device in program.devices)
    if any(_impossible(figure, program, cut=cut) for figure in entry.figures):
        return True
    if report.tool.version != __version__:
        return False
    again, stated = (
        {(figure.metric, figure.rank, figure.device): figure for figure in all if not cut or _metric(figure).of_host}
        for all in (figures(report), entry.figures)
    )
    return again.keys() != stated.keys() or not all(_same(again[key], stated[key]) for key in again)


def _metric(figure: HistoryFigure) -> Metric:
    return METRICS[figure.metric.partition("/")[0]]


def _impossible(figure: HistoryFigure, report: Report, *, cut: bool) -> bool:
    """Return whether no analysis of this recording has such a figure. `cut`: whether its report has lost its steps."""
    if figure.metric.partition("/")[0] not in METRICS:
        # A newer version may have further metrics.
        return report.tool.version == __version__
    metric = _metric(figure)
    spans_ns = [
        spans_ns
        for trace in report.traces
        if trace.rank == figure.rank
        for device, spans_ns in _spans_ns(trace, of_host=metric.of_host)
        if device == figure.device
    ]
    if not spans_ns:
        return True
    longest_ns, steps = spans_ns[0]
    # A step of the host may be longer than any on the device.
    bounds = {"ns": longest_ns, "pct": 100.0, "launches": _MOST_LAUNCHES} if metric.needs != "host" else {}
    largest = bounds.get(metric.unit, inf) * (1 + _ROUNDED)
    return (
        not 0 <= figure.value <= largest
        or not 0 <= (figure.spread or 0.0) <= largest
        or not 0 <= figure.floor < inf
        or not 1 <= figure.samples <= (inf if cut and not metric.of_host else max(steps, 1))
    )


def _spans_ns(trace: TraceResult, *, of_host: bool) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each device of a trace with the longest time that a figure of it can be, and its number of steps."""
    if not of_host:
        yield from ((device.device, (device.span_ns, len(device.steps))) for device in trace.devices)
    elif trace.host is not None:
        yield 0, (max(step.span_ns for step in trace.host.steps), len(trace.host.steps))


def _same(again: HistoryFigure, stated: HistoryFigure) -> bool:
    def alike(first: float | None, second: float | None) -> bool:
        return first == second or (
            first is not None and second is not None and isclose(first, second, rel_tol=_ROUNDED, abs_tol=_ROUNDED)
        )

    return (
        again.samples == stated.samples
        and alike(again.value, stated.value)
        and alike(again.spread, stated.spread)
        and alike(again.floor, stated.floor)
    )


def gpu_of(report: Report) -> str | None:
    """Return the names of the report's GPUs as the history keeps them."""
    gpus = sorted({gpu for trace in report.traces for gpu in trace.environment.gpus})
    return ", ".join(gpus)[:500] or None


def _without(report: Report, cut: Callable[[Device], Device]) -> Report:
    def both(device: Device) -> Device:
        plain = device.plain
        if plain is not None and plain.program is not None:
            plain = replace(plain, program=cut(plain.program))
        return replace(cut(device), plain=plain)

    traces = (replace(trace, devices=tuple(map(both, trace.devices))) for trace in report.traces)
    return replace(report, traces=tuple(traces))


def _without_steps(device: Device) -> Device:
    copies = CopiesByStep(count=(), bytes=(), duration_ns=(), time_ns=(), exposed_ns=())
    stalls = StallsByStep(count=(), host_wait_ns=(), idle_caused_ns=())
    cases = EvidenceByStep(count=(), time_ns=())
    return replace(
        device,
        steps=(),
        copies=tuple(replace(group, by_step=copies) for group in device.copies),
        host_stalls=tuple(replace(stall, by_step=stalls) for stall in device.host_stalls),
        evidence=tuple(replace(case, by_step=cases) for case in device.evidence),
    )


_CUTS: Final[dict[str, Callable[[Device], Device]]] = {
    "kernels": lambda device: replace(device, kernels=()),
    "ranges": lambda device: replace(device, ranges=()),
    "steps": _without_steps,
}
"""Parts to leave out of large reports, in this order."""
