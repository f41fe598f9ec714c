"""The plot of `docs/evaluation/whatif.md`: predicted against measured steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import plotly.graph_objects as go

from benchmarks.picture import save
from benchmarks.whatif_evaluation import PredictionRow
from overlapscope.prediction.result import Estimate

WIDTH, HEIGHT = 760, 620


def draw(seen: Sequence[PredictionRow], unseen: Sequence[PredictionRow], target: Path) -> None:
    """Draw predicted steps with their intervals and the steps before, against measured ones, as a PNG."""
    figure = go.Figure()
    rows = [*seen, *unseen]
    ends = [min(row.measured_ns for row in rows) / 2e6, max(row.measured_ns for row in rows) / 5e5]
    figure.add_scatter(x=ends, y=ends, mode="lines", name="predicted = measured", line={"color": "#999", "width": 1})
    figure.add_scatter(
        x=[row.measured_ns / 1e6 for row in rows],
        y=[row.prediction.baseline_step_ns / 1e6 for row in rows],
        mode="markers",
        name="before",
        marker={"symbol": "line-ew-open", "size": 8, "color": "#b5651d"},
    )
    for name, some, color, symbol in (
        ("predicted", seen, "#1f6fb2", "circle"),
        ("predicted, never looked at while building", unseen, "#0a7d4f", "diamond"),
    ):
        predicted = list(_predicted(some))
        if not predicted:
            continue
        figure.add_scatter(
            x=[row.measured_ns / 1e6 for row, _ in predicted],
            y=[interval.value / 1e6 for _, interval in predicted],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [(interval.high - interval.value) / 1e6 for _, interval in predicted],
                "arrayminus": [(interval.value - interval.low) / 1e6 for _, interval in predicted],
                "thickness": 1,
                "width": 3,
            },
            mode="markers",
            name=name,
            marker={"color": color, "symbol": symbol, "size": 7},
        )
    figure.update_xaxes(type="log", dtick=1, tickformat=",", title="measured step, ms")
    figure.update_yaxes(type="log", dtick=1, tickformat=",", title="step, ms")
    figure.update_layout(
        template="plotly_white",
        width=WIDTH,
        height=HEIGHT,
        margin={"t": 40, "b": 50, "l": 60, "r": 20},
        legend={"orientation": "h", "x": 0, "y": 1.08},
    )
    save(figure, target)


def _predicted(rows: Sequence[PredictionRow]) -> Iterator[tuple[PredictionRow, Estimate]]:
    for row in rows:
        if row.prediction.predicted_step_ns is not None:
            yield row, row.prediction.predicted_step_ns
