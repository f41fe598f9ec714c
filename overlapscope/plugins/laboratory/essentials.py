"""Analysis of an experiment's recordings, reduced to the contents of its report.

Figures are those that `overlapscope analyze` shows of each recording with the step that the laboratory timed
(`--plain-step`). Only the strips are of the recording as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.results import Device
from overlapscope.analysis.strip import measure
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.intervals import Intervals, covered
from overlapscope.catalog.causes import CopyCause, IdleCause
from overlapscope.plugins.laboratory.results import Analysis, FindingSummary, RecordedStrip, StripLane, VerdictSummary
from overlapscope.reading import load
from overlapscope.report.model import build
from overlapscope.report.page import DeviceReport, Page
from overlapscope.report.verdict import judge

SLICES = 300
"""Maximum number of slices of a strip."""


def analyse(paths: Sequence[Path], directory: Path, plain_step_ns: int | None = None) -> tuple[Analysis, ...]:
    """Analyze the traces of a variant, one for each rank.

    A trace without GPU activity has no device and adds nothing.

    Args:
        paths: The traces.
        directory: Directory that their names become relative to.
        plain_step_ns: Step time without the profiler (`ExperimentResult.plain_step_ns`).

    Returns:
        The results of each device.

    Raises:
        UnreadableTrace: If a trace can't be read.
    """
    analyses = [analyze_trace(load(path, progress=False, cache=False)) for path in paths]
    page = Page(build(analyses, plain_step_ns=plain_step_ns))
    timelines = {
        (number, device.result.device): device.timeline
        for number, analysis in enumerate(analyses)
        for device in analysis.devices
    }
    return tuple(
        _essentials(
            section,
            section.device,
            section.window,
            timelines[section.number, section.device.device],
            paths[section.number].relative_to(directory).as_posix(),
        )
        for section in page.sections()
        if section.device is not None and section.window is not None
    )


def _essentials(section: DeviceReport, device: Device, recorded: Device, timeline: Timeline, trace: str) -> Analysis:
    trust, stalls = section.trace.trust, device.host_stalls
    verdict = judge(section)
    return Analysis(
        trace=trace,
        rank=section.trace.rank,
        device=device.device,
        trust=trust.verdict,
        doubts=tuple(check.id for check in trust.checks if check.status != "ok"),
        span_ns=device.span_ns,
        steps=section.steps,
        buckets=device.buckets,
        overlap=device.overlap,
        exposed_copy_by_cause=_judged_causes(device.exposed_copy_by_cause, CopyCause.LEAD_IN),
        idle_by_cause=_judged_causes(device.idle_by_cause, IdleCause.LEAD_IN),
        host_wait_ns=sum(stall.host_wait_ns for stall in stalls),
        host_idle_ns=sum(stall.idle_caused_ns for stall in stalls),
        copies=device.copies,
        findings=tuple(msgspec.convert(finding, FindingSummary, from_attributes=True) for finding in section.findings),
        verdict=VerdictSummary(level=verdict.level, text=verdict.answer),
        strip=_strip(timeline, recorded),
    )


def _judged_causes(by_cause: dict[str, int], lead_in: str) -> dict[str, int]:
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
