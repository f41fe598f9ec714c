"""Input of views: a report, and data that only its analysis has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath

from msgspec import Struct, field
from msgspec.structs import replace

from overlapscope.analysis.results import Device, TraceResult
from overlapscope.analysis.strip import Strip
from overlapscope.base.words import Unit, clean, unit_for
from overlapscope.report.model import Report, spoken
from overlapscope.rules.finding import Finding

_SMALL = 100
"""A part shorter than the span divided by this number gets its own unit."""


class Page(Struct, frozen=True):
    """A report to be drawn."""

    report: Report
    scope: str = "window"
    """`window`, or the step or range that was analysed."""
    verbose: bool = False
    plain_step_option: str = "--plain-step"
    """Name of the option that takes the step time without the profiler."""
    strips: Mapping[tuple[int, int], Strip] = field(default_factory=dict)
    """By number of the trace in the report, and device ordinal. A report read from JSON has none."""

    def sections(self) -> Iterator[DeviceReport]:
        """Yield a report for each device of each trace, and one without device for a trace that has none."""
        for number, trace in enumerate(self.report.traces):
            for device in trace.devices or (None,):
                yield DeviceReport(self, number, trace, device)


class DeviceReport(Struct, frozen=True):
    """The report on one device of one trace."""

    page: Page
    number: int
    trace: TraceResult
    device: Device | None

    @property
    def usable(self) -> bool:
        """True if the figures are reliable enough to show."""
        return self.device is not None and self.trace.trust.verdict != "unusable"

    @property
    def unit(self) -> Unit:
        """The unit for all times of the device."""
        return unit_for(self.device.span_ns if self.device else 0)

    def unit_of(self, part_ns: int) -> Unit:
        """Return the unit for a part: the device's unit, or a smaller unit for a far shorter part."""
        span_ns = self.device.span_ns if self.device else 0
        return self.unit if _SMALL * part_ns >= span_ns else unit_for(part_ns)

    @property
    def strip(self) -> Strip | None:
        """The timeline strip, if any."""
        return self.page.strips.get((self.number, self.device.device)) if self.device else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings on this device."""
        if self.device is None:
            return ()
        device = self.device.device
        return tuple(f for f in self.page.report.findings if f.source == self.trace.source and f.device == device)

    @property
    def judged_ns(self) -> int:
        """Length of time that causes and costs are a share of, in nanoseconds; excludes the lead-in."""
        if self.device is None:
            return 0
        lead_in = self.device.lead_in_ns or 0
        return self.device.span_ns - (lead_in if self.page.scope == "window" else 0)

    @property
    def spoken(self) -> DeviceReport:
        """The same report with the figures to report (`model.spoken`), which verdict and findings are about."""
        return self if self.device is None else replace(self, device=spoken(self.device))

    @property
    def label(self) -> str:
        """The rank or, without ranks, the file; with the device if there are several."""
        rank, devices = self.trace.rank, self.trace.devices
        name = clean(PurePath(self.trace.source).name, 80) if rank is None else f"rank {rank}"
        return f"{name}, device {self.device.device}" if self.device and len(devices) > 1 else name

    @property
    def title(self) -> str:
        """The file, with rank and device if known."""
        parts = [clean(PurePath(self.trace.source).name, 80)]
        if self.trace.rank is not None:
            parts.append(f"rank {self.trace.rank}")
        if self.device is not None:
            if len(self.trace.devices) > 1 or not self.device.name:
                parts.append(f"device {self.device.device}")
            if self.device.name:
                parts.append(clean(self.device.name, 60))
        if self.page.scope != "window":
            parts.append(clean(self.page.scope, 60))
        if self.trace.predicted_by is not None:
            changes = ", ".join(self.trace.predicted_by) or "nothing changed"
            parts.append(f"predicted by overlapscope whatif ({clean(changes, 120)})")
        return ", ".join(parts)


def section_of(page: Page, finding: Finding) -> DeviceReport | None:
    """Return the device's report that a finding belongs to."""
    for section in page.sections():
        if section.device and section.device.device == finding.device and section.trace.source == finding.source:
            return section
    return None
