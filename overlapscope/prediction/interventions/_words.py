"""Words that several interventions use."""

from __future__ import annotations

from overlapscope.base.intervals import I64
from overlapscope.base.words import size, unit_for
from overlapscope.prediction.graph import Graph


def duration(ns: float) -> str:
    """A length in the unit that suits it: `31.2 ms`."""
    return unit_for(round(ns)).text(round(ns))


def copies(graph: Graph, rows: I64) -> str:
    """How many copies, and how much they move: `96 copies of 4.9 GB in all`."""
    moved = int(graph.items.bytes[rows].sum())
    return f"{number_of(len(rows), 'copy', 'copies')} of {size(moved)} in all"


def number_of(many: int, one: str, more: str) -> str:
    """`1 copy`, `1,200 copies`."""
    return f"{many:,} {one if many == 1 else more}"
