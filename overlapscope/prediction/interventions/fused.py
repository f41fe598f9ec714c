"""An optimizer's launches replaced by a single launch, as with `fused=True`."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host_lines import Frames, main_stacks
from overlapscope.analysis.host_sampled import proportion
from overlapscope.analysis.periods import names_of
from overlapscope.base.grouping import among, groups_of
from overlapscope.base.intervals import I64, Bool
from overlapscope.base.words import duration, plural
from overlapscope.prediction.graph import DeviceItems, Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions._changes import NOTHING, part_of_steps
from overlapscope.prediction.interventions.cuda_graph import GraphLaunches, graph_launches
from overlapscope.prediction.interventions.intervention import Applied, Intervention, Premise, Request
from overlapscope.trace.host_ops import OPTIMIZER_STEP

_TRAFFIC = {Stance.BEST: 1 / 3, Stance.EXPECTED: 0.4, Stance.WORST: 1.0}
"""Part of the memory traffic that is left: a fused Adam reads and writes 7 values for each parameter where its separate
operations do 21, a fused SGD with momentum 5 instead of 8."""
_TENSORS = 30
"""Minimum number of tensors that one launch updates (ATen/native/cuda/MultiTensorApply.cuh)."""

_STAYS = re.compile(r"/(?:lr_scheduler|swa_utils)\.py:|[:.](?:zero_grad|_init_group)$")
"""Functions of `torch/optim` that run beside a fused optimizer, too, as `file:function`."""


def _apply(graph: Graph, request: Request) -> Applied:
    names = [name for name in names_of(graph.trace.annotations)[1] if name.startswith(OPTIMIZER_STEP)]
    found = [graph_launches(graph, replace(request, argument=name)) for name in names]
    groups = [launches.take(~_is_fused(graph, launches)) for launches in found]
    gone = np.concatenate([NOTHING, *(_gone(launches, request.stance) for launches in groups)])
    part = _disappears(graph, request, gone)
    calls, items = graph.calls.copied("before_ns", "length_ns"), graph.items
    for column in (calls.before_ns, calls.length_ns):
        column[gone] -= np.rint(part * column[gone]).astype(np.int64)
    for launches in groups:
        items = _items(replace(graph, items=items), launches, request.stance)
    rows = np.concatenate([NOTHING, *(launches.calls for launches in groups)])
    spared = int((graph.calls.before_ns - calls.before_ns + graph.calls.length_ns - calls.length_ns).sum())
    what = f"{plural(len(rows), 'launch')} of optimizers become few, which takes the host {duration(spared)} less."
    return Applied(replace(graph, calls=calls, items=items), rows, len(rows), what)


def _disappears(graph: Graph, request: Request, gone: I64) -> float:
    """Return which part of the host's time for some calls disappears.

    Samples in the optimizer limit it, without those in functions that a fused optimizer calls, too. The recorder may
    have slowed the optimizer more than the rest of the step.
    """
    activity = graph.trace.host_activity
    stacks = () if activity is None else main_stacks(activity)
    if activity is None or not stacks:
        return 1.0
    updates = [_updates([activity.frames[number] for number in stack.frames]) for stack in stacks]
    samples = sum(stack.samples for stack in stacks)
    inside = sum(stack.samples for stack, chosen in zip(stacks, updates, strict=True) if chosen)
    low, high = proportion(inside / samples, samples)
    share = {Stance.BEST: high, Stance.WORST: low}.get(request.stance, inside / samples)
    work = np.zeros(len(graph.calls))
    work[gone] = graph.calls.before_ns[gone] + graph.calls.length_ns[gone]
    return part_of_steps(graph, request, work, share)


def _updates(frames: Frames) -> bool:
    """Return whether a stack is in an optimizer's update of parameters."""
    own = [f"{frame.file}:{frame.function}" for frame in frames if "/torch/optim/" in frame.file]
    return bool(own) and not any(_STAYS.search(function) for function in own)


def _is_fused(graph: Graph, launches: GraphLaunches) -> Bool:
    """Return a mask of the groups of launches with a fused kernel: that optimizer is fused already."""
    fused_ops = graph.trace.gpu_ops.named(lambda name: "Fused" in name)
    fused_calls = graph.items.call[graph.item_of_op[fused_ops]]
    fused: Bool = np.bincount(launches.number, weights=among(launches.calls, fused_calls)) > 0
    return fused


def _gone(launches: GraphLaunches, stance: Stance) -> I64:
    """Return the calls that disappear: all but the first of each group, and at worst but one for every few tensors."""
    place = np.arange(len(launches.calls)) - launches.begins[launches.number]
    return launches.calls[place % _TENSORS > 0 if stance == Stance.WORST else place > 0]


def _items(graph: Graph, launches: GraphLaunches, stance: Stance) -> DeviceItems:
    """Return the items: the first on each lane does the work of its group, the others are gone."""
    items, number = graph.items, launches.of_items(graph)
    inside = np.flatnonzero((number >= 0) & ~items.gone)
    lane = number[inside] * len(graph.streams) + items.lane[inside]
    _, first, group = np.unique(lane, return_index=True, return_inverse=True)
    new = items.copied("duration_ns", "gone")
    new.gone[inside] = True
    new.gone[inside[first]] = False
    new.duration_ns[inside[first]] = _work_ns(graph, inside, group, len(first), stance)
    return new


def _work_ns(graph: Graph, inside: I64, group: I64, groups: int, stance: Stance) -> I64:
    """Return the length of each group's merged kernel.

    A kernel of a small tensor takes as long as the shortest kernel of its kind, for launching alone. Only at worst, the
    merged kernel takes that time for each of them.
    """
    kind = np.zeros(len(graph.items), np.int64)
    kind[graph.item_of_op] = graph.trace.gpu_ops.name_id
    lengths = graph.items.duration_ns[inside]
    alike = groups_of((group, kind[inside]))
    shortest = np.full(int(alike.max(initial=-1)) + 1, np.inf)
    np.minimum.at(shortest, alike, lengths)
    several = np.bincount(alike)
    work = lengths - (0 if stance == Stance.WORST else shortest[alike] * (1 - 1 / several[alike]))
    return np.bincount(group, weights=_TRAFFIC[stance] * work, minlength=groups)


INTERVENTION = Intervention(
    id="fused",
    meaning="In each step of an optimizer, the launches become one launch, and the kernels one kernel that reads and "
    "writes each value once. Launches before the first and after the last stay as they are.",
    assumptions=(
        Premise("The kernels' time is that of their memory traffic.", True),
        Premise("The optimizer has a fused form for all its parameters.", False),
    ),
    advice="Pass fused=True to the optimizer.\n"
    "Optimizers of torch.optim without that option take foreach=True, which launches a kernel for many parameters.",
    apply=_apply,
)
