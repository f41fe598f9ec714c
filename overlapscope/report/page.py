"""Input of views: a report, and data that only its analysis has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath

from msgspec import Struct, field

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.average import in_frame
from overlapscope.analysis.results import Device, HostUse, NetOverlap, Plain, PlainOrigin, TraceResult, host_parts
from overlapscope.analysis.strip import Strip
from overlapscope.base.words import Unit, clean, unit_for
from overlapscope.report.model import Report, of_plain
from overlapscope.rules.finding import Finding
from overlapscope.trace.host_activity import HostActivity

_MATTERS = 0.05
"""Minimum share of a step that the profiler may have added for it to matter."""
_NAME_LIMIT = 200
_SMALL = 100
"""A part shorter than the span divided by this number gets its own unit."""


class SampledHost(Struct, frozen=True):
    """Sampled stacks of a trace's process."""

    activity: HostActivity
    step_ns: int
    """Length of a step without the profiler, of which all samples of the main thread are the whole."""

    @property
    def samples(self) -> int:
        """Number of samples of the main thread."""
        return self.activity.main_samples

    def time_ns(self, samples: int) -> int:
        """Return the part of a step that some samples of the main thread stand for."""
        return round(self.step_ns * samples / self.samples)


class Page(Struct, frozen=True, dict=True):
    """A report to be drawn."""

    report: Report
    scope: str = "window"
    """`window`, or the step or range that was analysed."""
    verbose: bool = False
    recorded: bool = False
    """Whether the figures describe the recording, even if those of the program without the profiler are known."""
    strips: Mapping[tuple[int, int], Strip] = field(default_factory=dict)
    """By number of the trace in the report, and device ordinal. A report read from JSON has none."""
    sampled: Mapping[int, HostActivity] = field(default_factory=dict)
    """Activity of the host by number of the trace in the report, where stacks were sampled (`sampled_hosts`)."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings on the program that the figures describe; none on a recording beside it."""
        return () if self.recorded else self.report.findings

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each trace's file, or its path if several files have that name."""
        sources = [trace.source for trace in self.report.traces]
        files = [PurePath(source).name for source in sources]
        count = Counter(files)
        named = zip(sources, files, strict=True)
        return tuple(clean(source if count[file] > 1 else file, _NAME_LIMIT) for source, file in named)

    def label(self, number: int) -> str:
        """Return the rank of a trace; the name of its file without a rank, or if several traces are of that rank."""
        ranks = [trace.rank for trace in self.report.traces]
        rank = ranks[number]
        return clean(self.names[number], 80) if rank is None or ranks.count(rank) > 1 else f"rank {rank}"

    def sections(self) -> Iterator[DeviceReport]:
        """Yield a report for each device of each trace, and one without device for a trace that has none.

        Traces of different ranks are in the order of their ranks.
        """
        yield from self._sections

    @cached_property
    def _sections(self) -> list[DeviceReport]:
        sections: list[DeviceReport] = []
        findings: dict[tuple[str, int], list[Finding]] = {}
        for finding in self.findings:
            findings.setdefault((finding.source, finding.device), []).append(finding)
        for number in _by_rank([trace.rank for trace in self.report.traces]):
            trace = self.report.traces[number]
            for device in trace.devices:
                shown = device if self.recorded else of_plain(device)
                of_device = tuple(findings.get((trace.source, device.device), ()))
                sections.append(DeviceReport(self, number, trace, in_frame(shown), device, of_device))
            if not trace.devices:
                sections.append(DeviceReport(self, number, trace, None, None))
        return sections


def _by_rank(ranks: Sequence[int | None]) -> Sequence[int]:
    """Return the places of ranks in ascending order; as given if any is unknown or occurs twice."""
    known = [rank for rank in ranks if rank is not None]
    different = len({*known}) == len(ranks)
    return sorted(range(len(ranks)), key=lambda place: ranks[place] or 0) if different else range(len(ranks))


class DeviceReport(Struct, frozen=True):
    """The report on one device of one trace."""

    page: Page
    number: int
    trace: TraceResult
    device: Device | None
    """The figures that people read: of an average step of the program without the profiler if it is known, else of the
    recording. Without steps they are of the time after the lead-in."""
    window: Device | None
    """The figures of the whole window as recorded."""
    findings: tuple[Finding, ...] = ()
    """Findings on this device."""

    @property
    def usable(self) -> bool:
        """True if the figures are reliable enough to show."""
        return self.device is not None and self.trace.trust.verdict != "unusable"

    @property
    def unit(self) -> Unit:
        """The unit for all times of the device."""
        return unit_for(self.span_ns)

    def unit_of(self, part_ns: int) -> Unit:
        """Return the unit for a part: the device's unit, or a smaller unit for a far shorter part."""
        return self.unit if _SMALL * part_ns >= self.span_ns else unit_for(part_ns)

    @property
    def strip(self) -> Strip | None:
        """The timeline strip, if any."""
        return self.page.strips.get((self.number, self.device.device)) if self.device else None

    @property
    def host(self) -> SampledHost | None:
        """Sampled stacks of the process, for its first device; None if there are none.

        They are parts of the step that the report states, if it states one without the profiler.
        """
        first = self.device is None or self.device.device == self.trace.devices[0].device
        activity = self.page.sampled.get(self.number) if first and self.page.scope == "window" else None
        if activity is None or self.trace.sampled is None:
            return None
        step_ns = self.span_ns if self.device is None else self.plain.step_ns if self.plain else 0
        return SampledHost(activity, step_ns or self.trace.sampled.step_ns)

    @property
    def host_parts(self) -> dict[str, int]:
        """Parts of a step on the host in a program without GPU activity, without those of no time."""
        use = self.trace.host
        parts = {} if use is None else host_parts(use.frame(recorded=self.page.recorded))
        return {name: ns for name, ns in parts.items() if ns}

    @property
    def span_ns(self) -> int:
        """Length of the time that the figures are of, on the device or else on the host; 0 without figures."""
        return sum(self.host_parts.values()) if self.device is None else self.device.span_ns

    def of_ops(self, recorded_ns: int) -> int:
        """Return the part of that step for some of the time in ops in all judged steps of the recording."""
        use = self.trace.host
        whole_ns = 0 if use is None else sum(step.buckets.compute_ns for step in use.judged)
        return round(recorded_ns * self.host_parts.get("ops", 0) / whole_ns) if whole_ns else 0

    @property
    def net_overlap(self) -> tuple[NetOverlap, ...]:
        """Gain and cost of overlap. All its figures are of the recording."""
        return () if self.window is None else self.window.net_overlap

    @property
    def steps(self) -> int:
        """Number of steps that the figures are an average of; 0 if no step is judged."""
        of = self.trace.host if self.device is None else self.device
        if of is None or of.per_step is None or (isinstance(of, HostUse) and not of.by_steps):
            return 0
        return of.per_step.steps

    @property
    def plain(self) -> Plain | None:
        """A step without the profiler; None if it is unknown."""
        of = self.trace.host if self.device is None else self.device
        return None if of is None else of.plain

    @property
    def is_plain(self) -> bool:
        """True if the figures describe a replay of the program without the profiler."""
        return self.plain is not None and self.plain.program is not None and not self.page.recorded

    @property
    def may_be_slowed(self) -> bool:
        """True if the figures describe a recording of which a part that matters may be the profiler's."""
        alone = None if self.device is None else self.device.alone
        return alone is not None and alone.high_ns - alone.low_ns >= _MATTERS * alone.high_ns

    @property
    def plain_origin(self) -> PlainOrigin | None:
        """Origin of the plain step's length; None if the figures describe the recording."""
        return self.plain.origin if self.plain is not None and self.is_plain else None

    def per_step(self, ns: int) -> int:
        """Return a length summed over all judged steps as that of an average step."""
        return round(ns / max(1, self.steps))

    @property
    def label(self) -> str:
        """The trace (`Page.label`), with the device if there are several."""
        name = self.page.label(self.number)
        return f"{name}, device {self.device.device}" if self.device and len(self.trace.devices) > 1 else name

    @property
    def title(self) -> str:
        """The file, with rank and device if known."""
        parts = [clean(self.page.names[self.number], 80)]
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


def sampled_hosts(analyses: Iterable[TraceAnalysis]) -> dict[int, HostActivity]:
    """Return the activity of the host in a report's traces by their number in the report, where stacks were sampled."""
    each = enumerate(analysis.trace.host_activity for analysis in analyses)
    return {number: activity for number, activity in each if activity.main_stacks}
