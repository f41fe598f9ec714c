"""The plot of `docs/evaluation/performance.md`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plotly.subplots import make_subplots

from benchmarks.picture import save
from benchmarks.processes import ProcessUsage

WIDTH, HEIGHT = 960, 380


def draw(sizes: Sequence[float], hta: Sequence[ProcessUsage], ours: Sequence[ProcessUsage], target: Path) -> None:
    """Seconds and peak memory of both tools against the MB of traces, on logarithmic axes, as a PNG."""
    figure = make_subplots(1, 2, subplot_titles=("seconds", "peak memory, MB"), horizontal_spacing=0.1)
    for name, color, symbol, runs in (
        ("HTA, load", "#b5651d", "square", hta),
        ("overlapscope, all", "#1f6fb2", "circle", ours),
    ):
        for column, values in enumerate(([run.seconds for run in runs], [run.peak_mb for run in runs]), 1):
            figure.add_scatter(
                x=sizes,
                y=values,
                name=name,
                mode="lines+markers+text",
                text=[f"{value:,.0f}" if value >= 100 else f"{value:.2g}" for value in values],
                textposition="top center",
                marker={"color": color, "symbol": symbol, "size": 9},
                line={"color": color},
                showlegend=column == 1,
                row=1,
                col=column,
            )
    figure.update_xaxes(type="log", title="MB of trace", tickvals=sizes, ticktext=[f"{size:.0f}" for size in sizes])
    figure.update_yaxes(type="log", dtick=1, tickformat=",")
    figure.update_layout(
        template="plotly_white",
        width=WIDTH,
        height=HEIGHT,
        margin={"t": 70, "b": 50, "l": 50, "r": 40},
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1.24},
    )
    save(figure, target)
