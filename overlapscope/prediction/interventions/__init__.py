"""The interventions, a module each, and the texts that ask for them, such as `no-sync cudaStreamSynchronize`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from overlapscope.analysis.host import find_blocking, inside_named
from overlapscope.analysis.periods import names_of
from overlapscope.base.registry import Registry
from overlapscope.base.words import check_known, did_you_mean
from overlapscope.catalog import interventions as catalogue
from overlapscope.errors import UsageError
from overlapscope.prediction.interventions.intervention import Intervention
from overlapscope.trace.model import Trace

INTERVENTIONS: Registry[Intervention] = Registry(
    __name__, "INTERVENTION", catalogue.INTERVENTIONS, elsewhere={"graph": "cuda_graph"}
)
"""Every intervention, in the order in which they are applied."""


class Choice(Struct, frozen=True):
    """An intervention that was asked for, with its argument."""

    intervention: Intervention
    argument: str | None = None

    @property
    def text(self) -> str:
        """The text that asks for it: `no-sync cudaStreamSynchronize`."""
        return f"{self.intervention.id} {self.argument}" if self.argument else self.intervention.id


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
        if intervention.words.argument_required and not argument:
            example = next(iter(intervention.words.arguments), "cudaStreamSynchronize")
            raise UsageError(f"{name} needs its {intervention.words.argument}, as in '{name} {example}'.")
        possible = intervention.words.arguments
        if argument and possible and argument not in possible:
            hint = did_you_mean(argument, possible)
            raise UsageError(f"{name} cannot take {argument!r}{hint}; it takes {', '.join(possible)}.")
        if argument and intervention.words.argument is None:
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
    for name, asked in map(name_and_argument, interventions):
        if asked and name == "graph" and asked != catalogue.WHOLE_STEP:
            _check_range(trace, asked)
        elif asked and name == "no-sync":
            _check_call(trace, asked)


def _check_range(trace: Trace, asked: str) -> None:
    notes = trace.annotations
    if not notes.named(lambda name: name == asked).any():
        check_known(
            trace.source, "range", asked, names_of(notes)[1], none="none but the steps" if len(notes) else "none"
        )


def _check_call(trace: Trace, asked: str) -> None:
    calls, rows = trace.runtime_calls, find_blocking(trace).row
    if not inside_named(trace, asked, calls.thread[rows], calls.start_ns[rows]).any():
        check_known(trace.source, "blocking call", asked, dict.fromkeys(map(calls.name, rows.tolist())))
