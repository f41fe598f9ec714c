"""The interface of an intervention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct, field

from overlapscope.base.intervals import I64
from overlapscope.catalog.interventions import INTERVENTIONS, InterventionWords
from overlapscope.prediction.data_dependencies import ShownNeeds
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Hardware, Stance
from overlapscope.prediction.steps import JudgedSteps


class Request(Struct, frozen=True, eq=False):
    """Hardware, stance, steps and argument for an intervention."""

    hardware: Hardware
    stance: Stance
    judged: JudgedSteps
    plain_ns: float
    """Replayed length of a plain step, such as those in which the host was sampled."""
    argument: str | None = None


class Applied(Struct, frozen=True, eq=False):
    """Result of an intervention on a graph."""

    graph: Graph
    calls: I64
    """Rows of `Graph.calls` whose calls or items it changed: the places in the program."""
    touched: int
    what: str
    """Effect, in a sentence."""
    copies: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows of `Graph.items` of copies with durations from the hardware's constants."""
    shown: ShownNeeds = field(default_factory=ShownNeeds)
    """Assumed dependencies that the recording shows."""
    why_not: str = ""
    """Clause that says why it touches nothing, unless nothing of the kind was recorded."""


class Premise(Struct, frozen=True):
    """An assumption of an intervention, and how its cost is found."""

    text: str
    costed: bool
    """True if the intervention does the contrary at `Stance.WORST`."""
    harmless: bool = False
    """True if the contrary only makes the step shorter."""


class Intervention(Struct, frozen=True):
    """A change to a program, as a change to its dependency graph."""

    id: str
    """Key of its words in the catalogue."""
    meaning: str
    """Change to the graph."""
    assumptions: tuple[Premise, ...]
    advice: str
    """Code to change."""
    apply: Callable[[Graph, Request], Applied]
    uses: tuple[str, ...] = ()
    """Fields of `Constants` that it reads."""

    @property
    def words(self) -> InterventionWords:
        """Its words in the catalogue."""
        return INTERVENTIONS[self.id]
