"""The interventions: what a prediction can change, one module each."""

from __future__ import annotations

from overlapscope.base.registry import Registry
from overlapscope.prediction.interventions.intervention import Intervention

INTERVENTIONS: Registry[Intervention] = Registry(
    __name__,
    "INTERVENTION",
    (
        "faster-loader",
        "pin",
        "non-blocking",
        "no-sync",
        "batch-copies",
        "side-stream",
        "two-way",
        "prefetch",
        "graph",
    ),
    elsewhere={"graph": "cuda_graph"},
)
"""Every intervention, in the order in which they are applied, whatever the order asked for: what one does, a later one
may build on."""
