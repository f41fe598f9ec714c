"""No pauses of Python's garbage collector."""

from __future__ import annotations

from overlapscope.analysis.host_work import gc_pauses
from overlapscope.base.words import duration, plural
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.interventions._changes import without_time_in
from overlapscope.prediction.interventions.intervention import Applied, Intervention, Premise, Request


def _apply(graph: Graph, request: Request) -> Applied:
    pauses = gc_pauses(graph.trace)
    changed, calls, spared = without_time_in(graph, pauses)
    what = f"{plural(len(pauses), 'pause')} of the garbage collector disappear, {duration(spared)} in all."
    return Applied(changed, calls, len(pauses) if spared else 0, what)


INTERVENTION = Intervention(
    id="no-gc",
    meaning="Python's garbage collector no longer pauses the threads that launch work.",
    assumptions=(Premise("Objects that the program makes later need no collection in these steps.", False),),
    advice="Exempt long-lived objects from garbage collection.\n"
    "Call gc.collect() and gc.freeze() once, before the loop. Or call gc.disable(), and gc.collect() now and then.",
    apply=_apply,
)
