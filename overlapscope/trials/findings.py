"""What a trial knows so far, whenever it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from overlapscope.trials import search
from overlapscope.trials.plan import Plan
from overlapscope.trials.protocol import Facts
from overlapscope.trials.result import LeftOut
from overlapscope.trials.search import AS_IS, Candidate, Runs, Settings


@dataclass(slots=True)
class Findings:
    """Grows with each run."""

    facts: Facts
    ranks: int
    plan: Plan
    candidates: list[Candidate]
    left_out: list[LeftOut]
    runs: Runs = field(default_factory=Runs)
    kept: Settings = AS_IS
    """The changes that later ones were tried on top of."""
    cut_short: bool = False
    """Not all that was planned was run."""
    notes: list[str] = field(default_factory=list)
    before: Path | None = None
    after: Path | None = None
    """Recordings."""
    races: dict[Settings, int] = field(default_factory=dict)
    """That the hazard checker found, of the sets that it was run on."""

    @property
    def best(self) -> Settings | None:
        """The set to take; None where none pays."""
        return search.best(self.runs, racing={settings for settings, races in self.races.items() if races})
