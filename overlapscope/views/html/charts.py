"""Which charts a report on paper or in a file shows, each on light and on dark ground."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.each_copy import list_copies
from overlapscope.report.page import Section
from overlapscope.views import charts
from overlapscope.views.html.document import Chart, Figure

LEAST_STEPS = 2
"""One step's bar says no more than the window's."""


@dataclass(frozen=True, slots=True)
class Titled:
    """A chart with the title that its panel has."""

    title: str
    chart: Chart

    @property
    def height(self) -> int:
        """In CSS pixels."""
        return int(self.chart.light["layout"].get("height", 400))


def of_section(section: Section, analysis: DeviceAnalysis | None) -> Iterator[Titled]:
    """The charts of one device that have anything to show."""
    device = section.device
    if device is None:
        return
    if any(device.exposed_copy_by_cause.values()):
        yield _both("Exposed copy by cause", lambda dark: charts.causes(section, "exposed-copy", dark))
    if any(device.idle_by_cause.values()):
        yield _both("Idle by cause", lambda dark: charts.causes(section, "idle", dark))
    copies = list_copies(analysis) if analysis is not None else None
    if copies is not None and (copies.bytes > 0).any():
        yield _both("Bandwidth of each copy", lambda dark: charts.bandwidth(section, copies, dark))
    if section.page.scope == "window" and len(device.steps) >= LEAST_STEPS:
        yield _both("Steps", lambda dark: charts.steps(section, dark))


def of_all(sections: Sequence[Section]) -> Iterator[Titled]:
    """What compares several devices."""
    if len(sections) > 1:
        yield _both("Where the time goes", lambda dark: charts.ranks(sections, dark))


def _both(title: str, draw: Callable[[bool], Figure]) -> Titled:
    return Titled(title, Chart(draw(False), draw(True)))
