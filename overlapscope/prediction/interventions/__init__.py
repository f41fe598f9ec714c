"""Changes to a program, as changes to its dependency graph, and the texts that ask for them.

Such a text is `no-sync cudaStreamSynchronize`. Each module has the functions of a subject.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct, field

from overlapscope.analysis.periods import names_of
from overlapscope.base.intervals import I64
from overlapscope.base.registry import load
from overlapscope.base.words import check_known, did_you_mean
from overlapscope.catalog.interventions import INTERVENTIONS, WHOLE_STEP, Intervention
from overlapscope.errors import UsageError
from overlapscope.trace.host import find_blocking, inside_named
from overlapscope.trace.model import Trace

if TYPE_CHECKING:
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


class ShownNeeds(Struct, frozen=True):
    """Dependencies of the moved copies that the recording itself shows."""

    needs: bool = False
    """True if it shows which kernels need each copy, and which kernels each copy needs."""
    turns: bool = False
    """True if it also shows which kernels must finish with a buffer before the buffer is written again."""
    by_shapes: int = 0
    """Number of copies whose readers are known by shapes."""


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


_PLACES: Final = {
    "faster-loader": "host:faster_loader",
    "pin": "copies:pin",
    "non-blocking": "host:non_blocking",
    "no-sync": "host:no_sync",
    "no-gc": "host:no_gc",
    "less-host": "host:less_host",
    "batch-copies": "copies:batch_copies",
    "side-stream": "streams:side_stream",
    "two-way": "streams:two_way",
    "prefetch": "streams:prefetch",
    "fused": "launches:fuse",
    "graph": "launches:launch_graphs",
}
"""Function that applies each intervention."""


class Choice(Struct, frozen=True):
    """An intervention that was asked for, with its argument."""

    intervention: Intervention
    argument: str | None = None

    @property
    def text(self) -> str:
        """The text that asks for it: `no-sync cudaStreamSynchronize`."""
        return f"{self.intervention.id} {self.argument}" if self.argument else self.intervention.id

    def apply(self, graph: Graph, request: Request) -> Applied:
        """Apply the intervention to a graph."""
        applied: Applied = load(f"{__name__}.{_PLACES[self.intervention.id]}")(graph, request)
        return applied


def parse(interventions: Sequence[str]) -> tuple[Choice, ...]:
    """Return the interventions that texts ask for, in the order in which they are applied.

    Raises:
        UsageError: An intervention does not exist, or lacks its argument.
    """
    choices = []
    for text in interventions:
        name, argument = name_and_argument(text)
        if name not in INTERVENTIONS:
            raise UsageError(
                f"there is no intervention {name!r}{did_you_mean(name, INTERVENTIONS)}; "
                f"there are {', '.join(INTERVENTIONS)}."
            )
        intervention = INTERVENTIONS[name]
        if intervention.argument_required and not argument:
            example = next(iter(intervention.arguments), "cudaStreamSynchronize")
            raise UsageError(f"{name} needs its {intervention.argument}, as in '{name} {example}'.")
        allowed = intervention.arguments
        if argument and allowed and argument not in allowed:
            hint = did_you_mean(argument, allowed)
            raise UsageError(f"{name} cannot take {argument!r}{hint}; it takes {', '.join(allowed)}.")
        if argument and intervention.argument is None:
            raise UsageError(f"{name} takes no argument, but {argument!r} was given.")
        choices.append(Choice(intervention, argument or None))
    return in_order(choices)


def name_and_argument(text: str) -> tuple[str, str]:
    """Return the parts of a text that asks for an intervention; the argument may be empty."""
    name, _, argument = text.strip().partition(" ")
    return name, argument.strip()


def in_order(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """Return the choices in the order in which they are applied, without duplicates."""
    order = list(INTERVENTIONS)
    return tuple(sorted({*choices}, key=lambda choice: (order.index(choice.intervention.id), choice.argument or "")))


def check_names(trace: Trace, interventions: Sequence[str]) -> None:
    """Raise UsageError for a call of `no-sync` or a range of `graph` that the trace does not have.

    Errors in the interventions themselves are raised by `parse`.
    """
    notes, calls = trace.annotations, trace.runtime_calls
    for name, argument in map(name_and_argument, interventions):
        if argument and name == "graph" and argument != WHOLE_STEP and not notes.named(argument.__eq__).any():
            none = "none but the steps" if len(notes) else "none"
            check_known(trace.source, "range", argument, names_of(notes)[1], none=none)
        elif argument and name == "no-sync":
            rows = find_blocking(trace).row
            if not inside_named(trace, argument, calls.thread[rows], calls.start_ns[rows]).any():
                check_known(trace.source, "blocking call", argument, dict.fromkeys(map(calls.name, rows.tolist())))
