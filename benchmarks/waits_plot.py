"""The plot of `docs/evaluation/waits.md`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go

from benchmarks.picture import save

WIDTH, HEIGHT = 960, 420


def draw(releases: Mapping[str, Mapping[str, float]], target: Path) -> None:
    """Seconds of each figure over the releases, on a logarithmic axis, as a PNG."""
    figure = go.Figure()
    for what in dict.fromkeys(name for figures in releases.values() for name in figures):
        measured = {release: figures[what] for release, figures in releases.items() if what in figures}
        figure.add_scatter(
            x=list(measured), y=list(measured.values()), name=what.replace("`", ""), mode="lines+markers"
        )
    figure.update_xaxes(type="category")
    figure.update_yaxes(type="log", title="seconds")
    figure.update_layout(
        template="plotly_white", width=WIDTH, height=HEIGHT, margin={"t": 20, "b": 40, "l": 60, "r": 20}
    )
    save(figure, target)
