"""Comparison of two reports, rank by rank and device by device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from overlapscope.analysis.average import after_lead_in, judged_steps, occurrences
from overlapscope.analysis.figures import Period, TimeFigures
from overlapscope.analysis.results import Device, TraceResult
from overlapscope.catalog.causes import IdleCause
from overlapscope.compare.difference import Basis, DeviceDiff, Diff, FigureChange, FindingChange, RangeDiff, Side
from overlapscope.compare.doubts import find_doubts, fingerprint, is_plain, lost_in
from overlapscope.compare.groups import (
    ComparedSide,
    compare_compute,
    compare_copies,
    compare_kernels,
    compare_ops,
    compare_stalls,
    match_kernels,
    pairs,
)
from overlapscope.compare.noise import Pair, compare, floor_ns
from overlapscope.compare.words import of_all, of_device, of_lost
from overlapscope.report.model import Report, of_program
from overlapscope.rules.finding import FLOOR, Finding
from overlapscope.trace.lost import CAUSES, FIGURES
from overlapscope.trace.servers import Phase


def diff(before: Report, after: Report) -> Diff:
    """Compare two reports. Devices are matched by rank and ordinal."""
    mixed = is_plain(fingerprint(of_program(before))) != is_plain(fingerprint(of_program(after)))
    recorded = before, after
    if not mixed:
        before, after = of_program(before), of_program(after)
    matches, unmatched = _matched(_subjects(before), _subjects(after))
    devices = tuple(_device(*pair, alike=not mixed) for pair in matches)
    return Diff(
        verdict=of_all(devices),
        before=_side(before),
        after=_side(after),
        of="plain" if is_plain(fingerprint(before)) else "recorded",
        doubts=tuple(find_doubts(before, after, devices, unmatched, recorded=recorded)),
        devices=devices,
        unmatched=unmatched,
    )


class _Subject(Struct, frozen=True):
    """A device of a report, with its findings."""

    trace: TraceResult
    device: Device
    findings: tuple[Finding, ...]


def _side(report: Report) -> Side:
    return Side(
        sources=tuple(trace.source for trace in report.traces),
        environment=fingerprint(report),
        trust=tuple(trace.trust for trace in report.traces),
        predicted_by=next((trace.predicted_by for trace in report.traces if trace.predicted_by is not None), None),
    )


# -- Matching -------------------------------------------------------------------------------------


_Subjects = Mapping[str, Mapping[int, _Subject]]
"""Devices by rank and ordinal. An unusable trace has none."""


def _matched(before: _Subjects, after: _Subjects) -> tuple[list[tuple[_Subject, _Subject]], tuple[str, ...]]:
    """Return the pairs of devices, and descriptions of devices that only one side has or can use."""
    if len(before) == len(after) == 1:
        # The user wants to compare two single traces even if they state different ranks.
        after = dict(zip(before, after.values(), strict=True))
    matches: list[tuple[_Subject, _Subject]] = []
    unmatched: list[str] = []
    for key in dict.fromkeys([*before, *after]):
        first, second = before.get(key, {}), after.get(key, {})
        if len(first) == len(second) == 1:
            [mine], [theirs] = first.values(), second.values()
            matches.append((mine, theirs))
            continue
        matches += [(first[ordinal], second[ordinal]) for ordinal in sorted(first.keys() & second.keys())]
        alone = {ordinal: "before" if ordinal in first else "after" for ordinal in first.keys() ^ second.keys()}
        unmatched += [f"{key}, device {ordinal}, is only in {alone[ordinal]}" for ordinal in sorted(alone)]
        sides = {"before": before.get(key), "after": after.get(key)}
        unmatched += [f"{key} of {name} is unusable" for name, devices in sides.items() if devices == {}]
    return matches, tuple(unmatched)


def _subjects(report: Report) -> _Subjects:
    """Return the devices of a report by rank, or by position of the trace if ranks are missing or repeated."""
    ranks = [trace.rank for trace in report.traces]
    named = [(f"trace {number}", trace) for number, trace in enumerate(report.traces, 1)]
    if None not in ranks and len({*ranks}) == len(ranks):
        by_rank = sorted(report.traces, key=lambda trace: trace.rank or 0)
        named = [(f"rank {trace.rank}", trace) for trace in by_rank]
    findings: dict[tuple[str, int | None], list[Finding]] = {}
    for finding in report.findings:
        findings.setdefault((finding.source, finding.device), []).append(finding)
    return {
        name: {
            device.device: _Subject(trace, device, tuple(findings.get((trace.source, device.device), ())))
            for device in (() if trace.trust.verdict == "unusable" else trace.devices)
        }
        for name, trace in named
    }


# -- Devices --------------------------------------------------------------------------------------


def _device(before: _Subject, after: _Subject, *, alike: bool) -> DeviceDiff:
    """Compare two devices; `alike` is whether the findings of both are about the same kind of program."""
    phase = _common_phase(before.device, after.device)
    first, second = (ComparedSide(each.device, judged_steps(each.device, phase=phase)) for each in (before, after))
    basis: Basis = "step" if first.steps and second.steps else "window"
    if basis == "window":
        first, second = (ComparedSide(after_lead_in(each.device), ()) for each in (first, second))
    sides = first, second
    lost = lost_in(before.trace.trust) | lost_in(after.trace.trust)
    pair = _pair(first.periods, second.periods, reliable=not lost & FIGURES)
    figures = compare(first.periods, second.periods, pair)
    findings = compare_findings(
        before.findings,
        after.findings,
        floors_ns=tuple(
            round(FLOOR * (side.device.per_step or side.device.judged or side.device).span_ns)
            for side in (before, after)
        ),
        spans_ns=pair.spans_ns,
        reliable=alike and not lost & CAUSES,
    )
    kernels = match_kernels(sides, pair)
    compute = compare_compute(sides, kernels, pair, figures.bucket("compute"))
    return DeviceDiff(
        rank=before.trace.rank if after.trace.rank is None else after.trace.rank,
        device=after.device.device,
        basis=basis,
        steps_before=len(first.steps),
        steps_after=len(second.steps),
        left_out_before=len(before.device.steps) - len(first.steps) if basis == "step" else 0,
        left_out_after=len(after.device.steps) - len(second.steps) if basis == "step" else 0,
        figures=figures,
        ranges=_by_name(occurrences(first.device), occurrences(second.device), reliable=pair.reliable),
        phases=_phases(before.device, after.device, reliable=pair.reliable),
        copies=compare_copies(sides, pair),
        host_stalls=compare_stalls(sides, pair),
        findings=findings,
        kernels=compare_kernels(kernels, pair),
        ops=compare_ops(kernels, pair),
        compute=compute,
        verdict=of_device(basis, figures, findings, compute) if pair.reliable else of_lost(lost & FIGURES),
    )


def _pair(before: Sequence[TimeFigures], after: Sequence[TimeFigures], *, reliable: bool) -> Pair:
    return Pair([period.span_ns for period in before], [period.span_ns for period in after], reliable=reliable)


def _common_phase(before: Device, after: Device) -> Phase | None:
    """Return the phase of a server that takes most time on both sides together; None if no phase is on both."""
    time_ns: list[dict[Phase, int]] = [
        {
            each.phase: each.per_step.steps * each.per_step.span_ns
            for each in (device.served.phases if device.served else ())
            if each.per_step is not None
        }
        for device in (before, after)
    ]
    both = time_ns[0].keys() & time_ns[1].keys()
    return max(sorted(both), key=lambda phase: time_ns[0][phase] + time_ns[1][phase], default=None)


def _phases(before: Device, after: Device, *, reliable: bool) -> tuple[RangeDiff, ...] | UnsetType:
    """Compare the steps of a server by phase. If all have the same, there is nothing that the device doesn't have.

    A phase whose steps a side recorded in part only is left out, since it is neither new nor gone.

    Returns:
        The phases of either side.
    """
    phases = dict.fromkeys(each.phase for device in (after, before) if device.served for each in device.served.phases)
    if len(phases) < 2 or not before.served or not after.served:
        return UNSET
    sides: list[dict[str, list[Period]]] = [
        {phase: [device.steps[number] for number in judged_steps(device, phase=phase)] for phase in phases}
        for device in (before, after)
    ]
    recorded = zip(sides, (before.served, after.served), strict=True)
    in_part = {each.phase for side, served in recorded for each in served.phases if not side[each.phase]}
    first, second = ({name: side[name] for name in side if name not in in_part} for side in sides)
    return _by_name(first, second, reliable=reliable, copies_stay=True)


def _by_name(
    periods_before: Mapping[str, Sequence[Period]],
    periods_after: Mapping[str, Sequence[Period]],
    *,
    reliable: bool,
    copies_stay: bool = False,
) -> tuple[RangeDiff, ...]:
    """Compare periods by name, in the order in which they first appear. `copies_stay` is that of `compare`."""
    ranges = []
    for name in dict.fromkeys([*periods_after, *periods_before]):
        first, second = periods_before.get(name, ()), periods_after.get(name, ())
        figures = None
        if first and second:
            figures = compare(first, second, _pair(first, second, reliable=reliable), copies_stay=copies_stay)
        ranges.append(
            RangeDiff(
                name=name,
                standing="both" if figures else "gone" if first else "new",
                count_before=len(first),
                count_after=len(second),
                figures=figures,
            )
        )
    return tuple(ranges)


# -- Findings ----------------------------------------------------------------------------------------


def compare_findings(
    before: Sequence[Finding],
    after: Sequence[Finding],
    *,
    floors_ns: tuple[int, ...],
    spans_ns: tuple[float, float],
    reliable: bool,
) -> tuple[FindingChange, ...]:
    """Return a change for each finding of either side, matched by rule and place, the largest cost first.

    Args:
        floors_ns: Costs per step below which rules report nothing. A side without a finding may cost up to this.
        reliable: Whether the recordings are complete enough to judge whether a cost changed.
    """
    # Findings are compared without results of a replay, which only some reports have.
    sides = [
        sorted((replace(each, saving=None, doubt="") for each in side), key=lambda each: -each.cost_ns)
        for side in (before, after)
    ]

    def place(finding: Finding) -> tuple[str, str | None, str | None]:
        where = finding.where
        return (finding.rule, where.op, where.call) if where else (finding.rule, None, None)

    matched, gone, new = pairs(sides[0], sides[1], (place, lambda finding: finding.rule))
    everything: list[tuple[Finding | None, Finding | None]] = [
        *matched,
        *((finding, None) for finding in gone),
        *((None, finding) for finding in new),
    ]
    changes = []
    for first, second in everything:
        cost = _cost(first, second, floors_ns, spans_ns)
        if not reliable:
            cost = replace(cost, low=None, high=None, beyond_noise=None)
        standing: Literal["new", "gone", "grown", "shrunk", "same"] = "new" if first is None else "gone"
        if first is not None and second is not None:
            standing = "same" if not cost.beyond_noise else "grown" if cost.moved > 0 else "shrunk"
        rule = next(finding.rule for finding in (first, second) if finding is not None)
        changes.append(FindingChange(rule=rule, standing=standing, before=first, after=second, cost=cost))
    return tuple(sorted(changes, key=lambda each: (-each.cost.larger, each.rule)))


def _cost(
    before: Finding | None, after: Finding | None, floors_ns: tuple[int, ...], spans_ns: tuple[float, float]
) -> FigureChange:
    findings = [finding for finding in (before, after) if finding is not None]
    costs = [None if finding is None else finding.mean_cost_ns for finding in (before, after)]
    minima = [0 if cost is None else cost for cost in costs]
    maxima = [floor if cost is None else cost for cost, floor in zip(costs, floors_ns, strict=True)]
    low, high = minima[1] - maxima[0], maxima[1] - minima[0]
    # The cost of a finding often depends on the host.
    loads, least = findings[0].rule == IdleCause.DATA_LOADING, min(minima)
    noise = floor_ns(spans_ns, host_ns=0 if loads else least, loading_ns=least if loads else 0)
    informs = not all(finding.cost_ns for finding in findings)
    change = None if None in costs else high
    beyond_noise = None if informs else low > noise or high < -noise
    return FigureChange("cost", "ns", costs[0], costs[1], change, noise, low, high, beyond_noise)
