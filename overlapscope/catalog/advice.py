"""Advice for programs that don't use PyTorch, or no GPU, by the ids of rules and interventions.

The rules and interventions have the advice for PyTorch on GPUs. The first line of each text can stand alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from overlapscope.base.texts import GPU, read_texts
from overlapscope.trace.model import Framework, Trace

NAMES: Final[Mapping[str, str]] = {"jax": "JAX", "cuda": "CUDA C++"}
"""Frameworks with advice in words of their own."""


class _Advice(Struct, frozen=True, forbid_unknown_fields=True):
    """An advice, from `advice.toml`."""

    of: tuple[str, ...]
    """Rules and interventions with this advice."""
    advice: str


@cache
def advice_of(kind: str) -> Mapping[str, str]:
    """Return the advice for a framework, or for `other-devices`, by the ids of rules and interventions."""
    every = read_texts(Path(__file__).with_name("advice.toml"), dict[str, tuple[_Advice, ...]])
    return {id: each.advice for each in every.get(kind, ()) for id in each.of}


def for_program(trace: Trace, id: str, advice: str) -> str:
    """Return the advice of a rule or an intervention for the devices and in the words of a trace's framework."""
    if trace.gpu != GPU:
        advice = advice_of("other-devices").get(id, advice)
    return in_words_of(trace.framework, id, advice)


def in_words_of(framework: Framework, id: str, advice: str) -> str:
    """Return the advice of a rule or an intervention in the words of a framework, or unchanged if there are none."""
    return advice_of(framework).get(id, advice) if framework in NAMES else advice
