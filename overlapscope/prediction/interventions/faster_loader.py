"""A DataLoader that is always ready."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host import loading
from overlapscope.analysis.host_sampled import whole_cpus
from overlapscope.analysis.host_use import ALONE
from overlapscope.base.grouping import distinct
from overlapscope.base.words import duration, plural
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions._changes import without_time_in
from overlapscope.prediction.interventions.intervention import Applied, Intervention, Premise, Request
from overlapscope.trace.model import HostEvents


def _apply(graph: Graph, request: Request) -> Applied:
    notes = loading(graph.trace)
    changed, calls, spared = without_time_in(graph, notes)
    activity, least = graph.trace.host_activity, graph
    if spared and notes.named(lambda name: ALONE in name).all():
        cpus = None if activity is None else whole_cpus(activity)
        if request.stance == Stance.WORST:
            least = without_time_in(graph, _beside_the_steps(notes, 1)).graph
        elif request.stance == Stance.EXPECTED and cpus is not None:
            changed, calls, spared = without_time_in(graph, _beside_the_steps(notes, cpus))
    what = (
        f"{plural(len(notes), 'batch')} are ready when the program asks for them: {duration(spared)} of waiting "
        "disappear."
    )
    if request.stance == Stance.WORST:
        # At worst, more workers load no faster; the first worker at least works beside the steps.
        changed = least
    return Applied(changed, calls, len(notes) if spared else 0, what)


def _beside_the_steps(notes: HostEvents, workers: int) -> HostEvents:
    """Return the part of each loading that workers, each as fast as the thread, do while the thread runs the step.

    A worker begins a batch when the batch before it is fetched. So each of N workers has N steps for a batch.
    """
    end_ns = notes.end_ns.copy()
    for thread in distinct(notes.thread).tolist():
        rows = np.flatnonzero(notes.thread == thread)
        before_ns = np.append(notes.start_ns[rows][:1], notes.end_ns[rows][:-1])
        step_ns = np.maximum(notes.start_ns[rows] - before_ns, 0)
        # The recording begins in the middle of the program.
        step_ns[:1] = step_ns[1:2].sum()
        length_ns = notes.end_ns[rows] - notes.start_ns[rows]
        end_ns[rows] -= np.maximum(-(-length_ns // workers) - step_ns, 0)
    return replace(notes, end_ns=end_ns)


INTERVENTION = Intervention(
    id="faster-loader",
    meaning="The program no longer waits inside the DataLoader's next.",
    assumptions=(
        Premise(
            "There are as many DataLoader workers as needed or as CPUs, and they do not slow the main thread.", True
        ),
    ),
    advice="Make the DataLoader faster than the steps.\n"
    "Use more workers (DataLoader(num_workers=..., persistent_workers=True, prefetch_factor=...)), cheaper "
    "decoding, or data prepared beforehand.",
    apply=_apply,
)
