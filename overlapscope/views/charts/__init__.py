"""Plotly figures as plain dicts: a section and light or dark in, a figure out. Nothing here imports Plotly."""

from overlapscope.views.charts.bandwidth import bandwidth
from overlapscope.views.charts.buckets import bucket_bar, ranks
from overlapscope.views.charts.causes import causes
from overlapscope.views.charts.steps import steps

__all__ = ["bandwidth", "bucket_bar", "causes", "ranks", "steps"]
