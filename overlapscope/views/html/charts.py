"""Which charts a report on paper or in a file shows, each on light and on dark ground."""

from __future__ import annotations

from dataclasses import dataclass

from overlapscope.views.html.document import Chart

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
