"""Texts of interventions, and advice for programs that don't use PyTorch or a GPU, by ids of rules and interventions.

The rules and interventions have the advice for PyTorch on GPUs. The first line of each text can stand alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from overlapscope.base.words import GPU, read_texts
from overlapscope.trace.model import Framework, Trace

NAMES: Final[Mapping[str, str]] = {"jax": "JAX", "cuda": "CUDA C++"}
"""Frameworks with advice in words of their own."""


class Premise(Struct, frozen=True, forbid_unknown_fields=True):
    """An assumption of an intervention, and how its cost is found."""

    text: str
    costed: bool = False
    """True if the intervention does the contrary at `Stance.WORST`."""
    harmless: bool = False
    """True if the contrary only makes the step shorter."""


class InterventionTexts(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Texts of an intervention, from `interventions.toml`."""

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


@cache
def intervention_texts() -> Mapping[str, InterventionTexts]:
    """Return the texts of all interventions by id."""
    return read_texts(Path(__file__).with_name("interventions.toml"), dict[str, InterventionTexts])


class _Advice(Struct, frozen=True, forbid_unknown_fields=True):
    """An advice, from `advice.toml`."""

    of: tuple[str, ...]
    """Rules and interventions with this advice."""
    advice: str


@cache
def advice_of(kind: str) -> Mapping[str, str]:
    """Return the advice for a framework, or for `other-devices`, by the ids of rules and interventions."""
    all_advice = read_texts(Path(__file__).with_name("advice.toml"), dict[str, tuple[_Advice, ...]])
    return {id: each.advice for each in all_advice.get(kind, ()) for id in each.of}


def for_program(trace: Trace, id: str, advice: str) -> str:
    """Return the advice of a rule or an intervention for the devices and in the words of a trace's framework."""
    if trace.gpu != GPU:
        advice = advice_of("other-devices").get(id, advice)
    return in_words_of(trace.framework, id, advice)


def in_words_of(framework: Framework, id: str, advice: str) -> str:
    """Return the advice of a rule or an intervention in the words of a framework, or unchanged if there are none."""
    return advice_of(framework).get(id, advice) if framework in NAMES else advice
