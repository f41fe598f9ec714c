"""Changes that `overlapscope whatif` can predict, in the order in which they are applied.

`interventions.toml` has them. `prediction.interventions` applies them to a graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from overlapscope.base.texts import read_texts

if TYPE_CHECKING:
    from overlapscope.trace.model import Framework


class Premise(Struct, frozen=True, forbid_unknown_fields=True):
    """An assumption of an intervention, and how its cost is found."""

    text: str
    costed: bool = False
    """True if the intervention does the contrary at `Stance.WORST`."""
    harmless: bool = False
    """True if the contrary only makes the step shorter."""


class Intervention(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A change to a program."""

    id: str
    title: str
    """Phrase for its effect: `use pinned memory on the host`."""
    needs: str
    """Requirement on a recording for it to apply: `pageable copies`."""
    elsewhere: tuple[str, str] | None = None
    """Title and requirement for programs not written with PyTorch, if they differ."""
    meaning: str
    """Change to the graph."""
    assumptions: tuple[Premise, ...]
    advice: str
    """Code to change, for PyTorch on GPUs; the first line can stand alone."""
    uses: tuple[str, ...] = ()
    """Fields of `prediction.calibration.Constants` that it reads."""
    argument: str | None = None
    """Placeholder of its argument in help: `CALL`."""
    argument_help: str = ""
    argument_required: bool = False
    arguments: tuple[str, ...] = ()
    """Possible arguments; empty if they depend on the recording."""

    def words(self, framework: Framework) -> tuple[str, str]:
        """Return title and requirement in words that fit the framework."""
        return (self.title, self.needs) if framework == "pytorch" or self.elsewhere is None else self.elsewhere

    @property
    def help(self) -> str:
        """Title, with an explanation of the argument."""
        return f"{self.title}: {self.argument_help}" if self.argument_help else self.title

    @property
    def spelled(self) -> str:
        """Its option in help: `--graph [RANGE]`."""
        argument = self.argument if self.argument_required or self.argument is None else f"[{self.argument}]"
        return f"--{self.id} {argument}" if argument else f"--{self.id}"


WHOLE_STEP: Final = "step"
"""Argument of `graph` for everything that a step launches, the optimizer included."""

_ALL: Final = read_texts(Path(__file__).with_suffix(".toml"), dict[str, tuple[Intervention, ...]])
INTERVENTIONS: Final = {each.id: each for each in _ALL["interventions"]}
