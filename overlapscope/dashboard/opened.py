"""A loaded trace with everything that is shown of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from overlapscope import timeline as lanes
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.dashboard.entries import Entry
from overlapscope.dashboard.url import RECORDED
from overlapscope.prediction.program import find_program
from overlapscope.report.model import Report, joined, of_program
from overlapscope.report.page import Page, Section
from overlapscope.timeline import Lanes
from overlapscope.trace.model import Trace


@dataclass(frozen=True, eq=False)
class Opened:
    """A loaded trace with everything that is shown of it; or its plain program, which is shown alike."""

    id: str
    path: Path
    analysis: TraceAnalysis
    report: Report
    page: Page
    plain: Opened | None = None
    """Its plain program, where verdict and findings speak of that."""

    @cached_property
    def lanes(self) -> Lanes:
        """Prepared when first drawn: not everybody looks at both programs."""
        return lanes.build(self.analysis)

    def of(self, program: str | None) -> Opened:
        """What is shown: the plain program where there is one, unless the recording is asked for (`Place.of`)."""
        return self if self.plain is None or program == RECORDED else self.plain

    def section(self, device: int | None = None) -> Section:
        """The device asked for; the first one where there is no such device."""
        sections = list(self.page.sections())
        return next((one for one in sections if one.device and one.device.device == device), sections[0])


def open_trace(entry: Entry, trace: Trace) -> Opened:
    """Everything that is shown of a trace. Takes as long as its analysis."""
    analysis = analyze_trace(trace)
    program = find_program(analysis, None, estimate=True)
    report = joined([analysis], [program], scope="window", replayed=True)
    spoken = of_program(report)
    plain = None
    if spoken is not report and program is not None and program.analysis is not None:
        plain = Opened(entry.id, entry.path, program.analysis, spoken, Page(spoken, verbose=True))
    return Opened(entry.id, entry.path, analysis, report, Page(report, verbose=True), plain)
