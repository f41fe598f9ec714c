"""Words that several interventions use."""

from __future__ import annotations

from overlapscope.base.intervals import I64
from overlapscope.base.words import plural, size
from overlapscope.prediction.graph import Graph


def copies(graph: Graph, rows: I64) -> str:
    """How many copies, and how much they move: `96 copies of 4.9 GB in all`."""
    moved = int(graph.items.bytes[rows].sum())
    return f"{plural(len(rows), 'copy')} of {size(moved)} in all"
