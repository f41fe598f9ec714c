"""Analysis of an experiment's recordings, reduced to the contents of its report.

Figures cover the judged part of a recording: after its lead-in, which includes the recorder's warm-up steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.groups import find_stalls, group_copies
from overlapscope.analysis.host import Blocking, find_blocking
from overlapscope.analysis.results import Device, Window
from overlapscope.analysis.strip import measure
from overlapscope.analysis.timeline import Timeline, lengths, measured
from overlapscope.base.intervals import Intervals, covered
from overlapscope.catalog.causes import CopyCause, IdleCause
from overlapscope.laboratory.results import Analysis, FindingSummary, RecordedStrip, StripLane, VerdictSummary
from overlapscope.reading import load
from overlapscope.report.model import build
from overlapscope.report.page import DeviceReport, Page
from overlapscope.report.verdict import judge
from overlapscope.trace.model import Trace

SLICES = 300
"""Maximum number of slices of a strip."""


def analyse(paths: Sequence[Path], directory: Path) -> tuple[Analysis, ...]:
    """Analyse the traces of a variant, one for each rank.

    A trace without GPU activity has no device and adds nothing.

    Args:
        paths: The traces.
        directory: Directory that their names become relative to.

    Raises:
        UnreadableTrace: If a trace can't be read.
    """
    analyses = [analyze_trace(load(path, progress=False, cache=False)) for path in paths]
    report = build(analyses)
    judged = []
    for analysis in analyses:
        blocking = find_blocking(analysis.trace)
        devices = tuple(_judged(analysis.trace, device, blocking) for device in analysis.devices)
        judged.append(msgspec.structs.replace(analysis.result, devices=devices))
    page = Page(msgspec.structs.replace(report, traces=tuple(judged)))
    timelines = {
        (number, device.result.device): device.timeline
        for number, analysis in enumerate(analyses)
        for device in analysis.devices
    }
    return tuple(
        _essentials(
            section,
            section.device,
            timelines[section.number, section.device.device],
            paths[section.number].relative_to(directory).as_posix(),
        )
        for section in page.sections()
        if section.device is not None
    )


def _judged(trace: Trace, analysis: DeviceAnalysis, blocking: Blocking) -> Device:
    """Return a device's result as if its recording began after the lead-in."""
    timeline, result = analysis.timeline, analysis.result
    starts, ends = np.array([timeline.judged_from_ns]), np.array([timeline.end_ns])
    window = Intervals(starts, ends)
    buckets, engines, overlap = measured({name: int(ns.sum()) for name, ns in lengths(timeline, starts, ends).items()})
    return msgspec.structs.replace(
        result,
        span_ns=int(ends[0] - starts[0]),
        lead_in_ns=0,
        window=Window(start_ns=int(starts[0]), end_ns=int(ends[0])),
        buckets=buckets,
        engines=engines,
        overlap=overlap,
        exposed_copy_by_cause=_known(result.exposed_copy_by_cause, CopyCause.LEAD_IN),
        idle_by_cause=_known(result.idle_by_cause, IdleCause.LEAD_IN),
        copies=group_copies(timeline, analysis.steps, window),
        host_stalls=find_stalls(trace, timeline, blocking, analysis.idle, analysis.steps, window),
    )


def _essentials(section: DeviceReport, device: Device, timeline: Timeline, trace: str) -> Analysis:
    trust, stalls = section.trace.trust, device.host_stalls
    spans = sorted(step.span_ns for step in device.steps)
    verdict = judge(section)
    return Analysis(
        trace=trace,
        rank=section.trace.rank,
        device=device.device,
        trust=trust.verdict,
        doubts=tuple(check.id for check in trust.checks if check.status != "ok"),
        span_ns=device.span_ns,
        steps=len(spans),
        step_ns=spans[(len(spans) - 1) // 2] if spans else None,
        buckets=device.buckets,
        overlap=device.overlap,
        exposed_copy_by_cause=device.exposed_copy_by_cause,
        idle_by_cause=device.idle_by_cause,
        host_wait_ns=sum(stall.host_wait_ns for stall in stalls),
        host_idle_ns=sum(stall.idle_caused_ns for stall in stalls),
        copies=device.copies,
        findings=tuple(msgspec.convert(finding, FindingSummary, from_attributes=True) for finding in section.findings),
        verdict=VerdictSummary(level=verdict.level, text=verdict.answer),
        strip=_strip(timeline, device),
    )


def _known(by_cause: dict[str, int], lead_in: str) -> dict[str, int]:
    """Return the causes that explain any of the judged time."""
    return {str(cause): ns for cause, ns in by_cause.items() if ns and cause != lead_in}


def _strip(timeline: Timeline, device: Device) -> RecordedStrip:
    """Return the part of the recording shown in strips, by kind of work instead of by stream."""
    shown = measure(timeline, device, slices=1)
    start, end = shown.start_ns, shown.end_ns
    slices = max(1, min(SLICES, end - start))
    edges = start + (end - start) * np.arange(slices + 1, dtype=np.int64) // slices
    lanes = []
    for name in ("compute", "comm", "h2d", "d2h", "other", "idle"):
        ran: Intervals = getattr(timeline, name)
        busy = covered(ran, edges[:-1], edges[1:])
        if busy.any():
            tenths = np.minimum(9, 10 * busy // np.diff(edges))
            fill = (str(tenth) if ns else "." for tenth, ns in zip(tenths.tolist(), busy.tolist(), strict=True))
            lanes.append(StripLane(name=name, fill="".join(fill)))
    return RecordedStrip(label=shown.label, span_ns=end - start, lanes=tuple(lanes))
