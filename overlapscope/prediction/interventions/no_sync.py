"""A blocking call that returns at once."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host import find_blocking, inside_named
from overlapscope.base.grouping import among
from overlapscope.base.words import duration, plural
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions.intervention import Applied, Intervention, Premise, Request


def _apply(graph: Graph, request: Request) -> Applied:
    calls, runtime = graph.calls, graph.trace.runtime_calls
    blocks = np.flatnonzero(among(calls.row, find_blocking(graph.trace).row))
    rows = calls.row[blocks]
    asked = request.argument or ""
    called = runtime.named(lambda name: name == asked)[rows]
    named = blocks[called | inside_named(graph.trace, asked, runtime.thread[rows], runtime.start_ns[rows])]
    if request.stance == Stance.WORST:
        # At worst, the host needs the result of the wait.
        return Applied(graph, named, len(named), "The calls still wait.")
    new_calls = calls.copied("length_ns")
    new_calls.length_ns[named] = np.minimum(calls.length_ns[named], graph.constants.sync_call_ns or 0)
    waits = graph.waits.take(~among(graph.waits.call, named))
    changed = replace(graph, calls=new_calls, waits=waits)
    waited = (calls.end_ns - calls.start_ns)[named].sum()
    what = f"{plural(len(named), 'call')} of {asked} that took {duration(waited)} in total return at once."
    return Applied(changed, named, len(named), what)


INTERVENTION = Intervention(
    id="no-sync",
    meaning="Blocking calls with this name, or inside a CPU op or range with this name, return at once, as if the "
    "value were not read, or were read a step later.",
    assumptions=(Premise("The host's next work does not need what it waited for.", True),),
    advice="Take the synchronize out of the loop.\n"
    "Keep losses on the GPU and read them every few steps; use event.wait() or wait_stream() where only the order "
    "of streams matters; copy values that must be read to pinned memory with non_blocking=True, and read them a "
    "step later.",
    apply=_apply,
    uses=("sync_call_ns",),
)
