"""A DataLoader that is always ready."""

from __future__ import annotations

from overlapscope.analysis.host import loading
from overlapscope.base.words import duration, plural
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions._changes import without_time_in
from overlapscope.prediction.interventions.intervention import Applied, Intervention, Premise, Request


def _apply(graph: Graph, request: Request) -> Applied:
    notes = loading(graph.trace)
    changed, calls, spared = without_time_in(graph, notes)
    what = (
        f"{plural(len(notes), 'batch')} are ready when the program asks for them: {duration(spared)} of waiting "
        "disappear."
    )
    if request.stance == Stance.WORST:
        # At worst, more workers load no faster.
        changed = graph
    return Applied(changed, calls, len(notes) if spared else 0, what)


INTERVENTION = Intervention(
    id="faster-loader",
    meaning="The program no longer waits inside the DataLoader's next.",
    assumptions=(Premise("The DataLoader workers stay ahead of the steps and do not slow the main thread.", True),),
    advice="Make the DataLoader faster than the steps.\n"
    "Use more workers (DataLoader(num_workers=..., persistent_workers=True, prefetch_factor=...)), cheaper "
    "decoding, or data prepared beforehand.",
    apply=_apply,
)
