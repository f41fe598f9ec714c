"""The interventions: what a prediction can change, one module each."""

from __future__ import annotations

import importlib

from overlapscope.prediction.interventions.intervention import Intervention

_IN_ORDER = (
    "faster_loader",
    "pin",
    "non_blocking",
    "no_sync",
    "batch_copies",
    "side_stream",
    "two_way",
    "prefetch",
    "graph",
)
"""In which they are applied, whatever the order asked for: what one does, a later one may build on."""


def all_interventions() -> tuple[Intervention, ...]:
    """Every intervention, in the order in which they are applied."""
    return tuple(importlib.import_module(f"{__name__}.{name}").INTERVENTION for name in _IN_ORDER)
