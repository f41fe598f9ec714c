"""What an intervention is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct, field

from overlapscope.base.intervals import I64
from overlapscope.catalog.interventions import INTERVENTIONS, InterventionWords
from overlapscope.prediction.data_dependencies import Told
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Hardware, Stance


class Request(Struct, frozen=True):
    """What an intervention is told."""

    hardware: Hardware
    stance: Stance
    argument: str | None = None


class Applied(Struct, frozen=True, eq=False):
    """What an intervention made of a graph."""

    graph: Graph
    calls: I64
    """Rows of `Graph.calls` that it changed, or whose items it did: where in the program it acts."""
    touched: int
    what: str
    """A sentence."""
    copies: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows of `Graph.items`: copies whose duration it took from the hardware's constants."""
    told: Told = field(default_factory=Told)
    """What the recording itself tells of what it takes for granted."""


class Assumption(Struct, frozen=True):
    """What it takes for granted, and how to tell what that is worth."""

    text: str
    costed: bool
    """Its contrary is what the intervention does at `Stance.WORST`."""
    harmless: bool = False
    """Its contrary only makes the step shorter."""


class Intervention(Struct, frozen=True):
    """A change to a program, as a change to its dependency graph."""

    id: str
    """That of its words in the catalogue."""
    meaning: str
    """What changes in the graph."""
    assumptions: tuple[Assumption, ...]
    advice: str
    """The code to change."""
    apply: Callable[[Graph, Request], Applied]
    uses: tuple[str, ...] = ()
    """Fields of `Constants` that it reads."""

    @property
    def words(self) -> InterventionWords:
        """What is said of it."""
        return INTERVENTIONS[self.id]
