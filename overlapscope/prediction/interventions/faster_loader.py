"""A DataLoader that is never waited for."""

from __future__ import annotations

from overlapscope.analysis.host import loading
from overlapscope.base.words import duration, plural
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions._changes import without_time_in
from overlapscope.prediction.interventions.intervention import Applied, Assumption, Intervention, Request


def _apply(graph: Graph, request: Request) -> Applied:
    notes = loading(graph.trace)
    changed, calls, spared = without_time_in(graph, notes)
    what = f"{plural(len(notes), 'batch')} are there when asked for: {duration(spared)} of waiting go."
    if request.stance == Stance.WORST:
        # Workers that bring no more than there was are waited for as long.
        changed = graph
    return Applied(changed, calls, len(notes) if spared else 0, what)


INTERVENTION = Intervention(
    id="faster-loader",
    title="data is there when it is asked for",
    meaning="The time inside a DataLoader's next goes.",
    assumptions=(Assumption("The loader's workers keep ahead of the steps, and do not slow the main thread.", True),),
    advice="More workers (DataLoader(num_workers=..., persistent_workers=True, prefetch_factor=...)), cheaper "
    "decoding, or data prepared beforehand.",
    apply=_apply,
)
