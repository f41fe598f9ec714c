"""Launches replaced by a CUDA graph, or by the single launch of a fused optimizer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.host_order import find_calls
from overlapscope.analysis.lane_items import find_lanes
from overlapscope.analysis.periods import is_step, names_of
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct_rows, group_starts, groups_of
from overlapscope.base.intervals import I64, Bool, contains, expand, union
from overlapscope.base.kept import kept
from overlapscope.base.median import proportion
from overlapscope.base.words import duration, plural
from overlapscope.catalog.interventions import WHOLE_STEP
from overlapscope.prediction.graph import DeviceItems, Graph, by_thread
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import Applied, Request
from overlapscope.prediction.interventions.host import LONG_WORK_NS, NOTHING, part_of_work, time_in_events
from overlapscope.trace.host import loading, on_thread, pinning
from overlapscope.trace.model import F64, Trace
from overlapscope.trace.op_names import OPTIMIZER_STEP, OPTIMIZER_ZERO_GRAD

# -- A CUDA graph ------------------------------------------------------------------------------------


_MIN_GRAPH_KERNELS = 2
"""Minimum number of kernels in a graph: a graph of a single kernel saves nothing."""
_LONGER_NS = {Stance.BEST: 0, Stance.EXPECTED: 100, Stance.WORST: 200}
"""Additional recorded length of a short kernel inside a graph: 0.10 and 0.13 us for the 839 and 150 kernels of two
graphs on an H200 (traces/laboratory/forward_backward and cuda_graph)."""


class GraphLaunches(Struct, frozen=True):
    """The launches that replace calls. The calls that become the same launch are adjacent."""

    calls: I64
    """Calls that are replaced."""
    begins: I64
    """Place of each graph launch's first call among them."""
    kernels: I64
    """Number of kernels of each graph launch."""

    @property
    def first(self) -> I64:
        """The first call of each, which becomes the graph launch."""
        return self.calls[self.begins]

    @property
    def number(self) -> I64:
        """Number of the graph launch of each replaced call."""
        return np.repeat(np.arange(len(self.begins)), np.diff(self.begins, append=len(self.calls)))

    def launch_of_items(self, graph: Graph) -> I64:
        """Return the number of the graph launch that launches each item; -1 for none."""
        of_call = np.full(len(graph.calls), -1, np.int64)
        of_call[self.calls] = self.number
        return pick(of_call, graph.items.call)

    def take(self, mask: Bool) -> GraphLaunches:
        """Return those in the mask."""
        left = mask[self.number]
        return GraphLaunches(self.calls[left], group_starts(self.number[left]), self.kernels[mask])


def launch_graphs(graph: Graph, request: Request) -> Applied:
    """Replace consecutive launches by graph launches."""
    found = graph_launches(graph, request)
    places = [] if request.stance == Stance.BEST else _places(graph, request.argument)
    repeated = _repeated(graph, found, places)
    launches = found.take(repeated)
    # The first kernel begins after the call has submitted all of them.
    handover_ns = np.rint((launches.kernels - 1) * (graph.constants.graph_node_call_ns or 0.0)).astype(np.int64)
    length_ns = (graph.constants.graph_call_ns or 0) + handover_ns
    rows, first, calls = launches.calls, launches.first, graph.calls
    # The first call of each graph launch becomes the launch, the others take no time.
    new, rest = calls.copied("before_ns", "length_ns"), np.delete(rows, launches.begins)
    new.before_ns[rest] = new.length_ns[rest] = 0
    new.before_ns[first] -= np.rint(_dispatch_ns(graph, request.stance, first)).astype(np.int64)
    new.length_ns[first] = length_ns
    changed = replace(graph, items=_items_of_graph(graph, launches, handover_ns, request.stance), calls=new)
    last_ns = np.maximum.reduceat(calls.end_ns[rows], launches.begins) if len(rows) else calls.end_ns[:0]
    spared = int((last_ns - calls.start_ns[first] - length_ns).sum())
    what = (
        f"{plural(len(rows), 'launch')} become {plural(len(first), 'graph launch')}, which takes the host "
        f"{duration(spared)} less."
    )
    why_some_stay = ""
    if not repeated.all():
        left = plural(len(found.calls) - len(rows), "launch")
        why_some_stay = (
            f"{left} stay, because no other step launches the same kernels with the same grids in that order"
        )
        what += f" {why_some_stay}."
    return Applied(changed, rows, len(rows), what, why_not=why_some_stay)


def _repeated(graph: Graph, launches: GraphLaunches, places: Sequence[tuple[int, int]]) -> Bool:
    """Return a mask of the graph launches whose kernels another place launches, too, with the same grids and order.

    A grid follows from the shapes of the kernel's tensors, so that a graph can't stand for launches which differ from
    step to step. A single place shows nothing: the mask is True everywhere.
    """
    if len(places) < 2 or not len(launches.begins):
        return np.ones(len(launches.begins), np.bool_)
    number = launches.launch_of_items(graph)
    inside = np.flatnonzero((number >= 0) & ~graph.items.gone)
    number = number[inside]
    order = np.lexsort((inside, graph.items.call[inside], number))
    works = _work_numbers(graph.trace)[inside[order]]
    bounds = np.searchsorted(number[order], np.arange(len(launches.begins) + 1)).tolist()
    sequences = [works[begin:end].tobytes() for begin, end in pairwise(bounds)]
    place = np.searchsorted([start for start, _ in places], graph.calls.start_ns[launches.first], "right").tolist()
    found_in = defaultdict(set)
    for sequence, number_of_place in zip(sequences, place, strict=True):
        found_in[sequence].add(number_of_place)
    return np.array([len(found_in[sequence]) > 1 for sequence in sequences], np.bool_)


@kept()
def _work_numbers(trace: Trace) -> I64:
    """Return a number for each item that is equal for equal work: the same kernel and grid, or the same bytes."""
    ops, lanes = trace.gpu_ops, find_lanes(trace)
    work = np.full(len(lanes.items), -1, np.int64)
    work[lanes.item_of_op] = groups_of([ops.kind, ops.device, ops.name_id, ops.blocks, ops.block_threads, ops.bytes])
    return work


def graph_launches(graph: Graph, request: Request) -> GraphLaunches:
    """Return the graph launches with enough kernels."""
    call_of = graph.items.call
    rows, run = _runs(graph, request.argument, request.stance == Stance.WORST)
    launched = np.bincount(call_of[call_of >= 0], minlength=len(graph.calls))
    kernels = np.bincount(run, weights=launched[rows]).astype(np.int64)
    large = kernels[run] >= _MIN_GRAPH_KERNELS
    rows, run = rows[large], run[large]
    begins = group_starts(run)
    return GraphLaunches(rows, begins, kernels[run[begins]])


def _items_of_graph(graph: Graph, launches: GraphLaunches, handover_ns: I64, stance: Stance) -> DeviceItems:
    """Return the items: those of a graph wait for its launch, and follow each other as kernels of a graph do."""
    items, constants = graph.items, graph.constants
    graph_of_item = launches.launch_of_items(graph)
    inside = np.flatnonzero(graph_of_item >= 0)
    number = graph_of_item[inside]
    new = items.copied("call", "launch_lag_ns", "after_call", "queue_lag_ns", "duration_ns")
    new.call[inside] = launches.first[number]
    new.launch_lag_ns[inside] = (constants.graph_latency_ns or 0) + handover_ns[number]
    new.after_call[inside] = False
    # The first item of each lane follows the item before the graph.
    leading = np.unique(number * len(graph.streams) + items.lane[inside], return_index=True)[1]
    later = np.delete(inside, leading)
    new.queue_lag_ns[later] = np.minimum(items.queue_lag_ns[later], constants.graph_gap_ns or 0)
    new.duration_ns[inside[(graph.is_single_op & ~items.gone)[inside]]] += _LONGER_NS[stance]
    return new


def _dispatch_ns(graph: Graph, stance: Stance, first: I64) -> F64:
    """Return how much of the work before each first call a graph removes: the time in the op that makes the call.

    At best, all Python code before it was there to make the call. At worst, nothing is removed.
    """
    calls, before_ns = graph.calls, graph.calls.before_ns[first]
    if stance == Stance.WORST:
        return np.zeros(len(first))
    if stance == Stance.BEST:
        return np.where(before_ns < LONG_WORK_NS, np.maximum(before_ns, 0), 0).astype(np.float64)
    work = calls.start_ns[first] - calls.since_ns[first]
    dispatch: F64 = before_ns * _inside_op_ns(graph.trace)[first] / np.maximum(work, 1)
    return dispatch


@kept()
def _inside_op_ns(trace: Trace) -> I64:
    """Return how long before each call its thread was in the op that makes it, within the work before the call."""
    calls = find_calls(trace).calls
    result = np.zeros(len(calls), np.int64)
    for thread, of_thread in by_thread(trace):
        ops, at, since = on_thread(trace.cpu_ops, thread), calls.start_ns[of_thread], calls.since_ns[of_thread]
        # Use the union of nested ops, up to the call.
        begins = pick(ops.starts, np.maximum(np.searchsorted(ops.starts, at, "right") - 1, 0), 0)
        result[of_thread] = np.where(contains(ops, at) & (at > since), at - np.maximum(begins, since), 0)
    return result


@kept(most=1)
def _runs(graph: Graph, name: str | None, worst: bool) -> tuple[I64, I64]:
    """Return the calls to replace, and the ascending number of the graph launch that each becomes part of.

    The calls of a graph launch are for the same device and follow each other, on a thread or on threads that hand over
    to each other, with only capturable work between them.
    """
    calls, items = graph.calls, graph.items
    # Graphs hold launches of kernels, memsets and copies within the device, which don't wait. Copies from and to the
    # host stay outside, because their addresses change from step to step.
    captured = graph.launching(~items.gone) & ~graph.launching(items.is_copy)
    captured[graph.waits.call] = False
    # No graph can hold loading and pinning; at worst, no long work of the host.
    divides: Bool = (calls.before_ns >= LONG_WORK_NS) & worst
    for find in (loading, pinning):
        divides |= time_in_events(graph.trace, find) > 0
    if name is None:
        captured &= ~_updates(graph.trace)
    device = np.full(len(calls), -1, np.int64)
    launched = items.call >= 0
    device[items.call[launched]] = items.device[launched]
    # The lowest number of the threads that hand over to each thread, directly or through others.
    group = np.arange(len(graph.threads))
    handed = np.flatnonzero(calls.handed_by >= 0)
    for thread, giver in distinct_rows((calls.thread[handed], calls.thread[calls.handed_by[handed]])):
        group[group == max(group[thread], group[giver])] = min(group[thread], group[giver])
    together = group[calls.thread]
    starts, ends = np.searchsorted(calls.start_ns, np.array(_places(graph, name), np.int64).reshape(-1, 2).T)
    place, inside = expand(starts, ends)
    order = np.lexsort((together[inside], place))
    place, inside = place[order], inside[order]
    tied, taken = together[inside], captured[inside]
    apart = divides[inside]
    apart[1:] |= (np.diff(device[inside]) != 0) | (taken[1:] != taken[:-1])
    apart[group_starts(place, tied)] = True
    number = np.cumsum(apart, dtype=np.int64)
    return inside[taken], number[taken]


def _places(graph: Graph, name: str | None) -> list[tuple[int, int]]:
    """Return the disjoint periods on the host to search for launches.

    These are the outermost ranges of that name, or the steps, each up to the next step's beginning. Without steps, it
    is the whole recording. The name "step" means each step, unless there are ranges of that name.
    """
    notes = graph.trace.annotations
    named = notes.named(lambda annotation: annotation == name)
    steps = name is None or (name == WHOLE_STEP and not named.any())
    chosen = is_step(notes) if steps else named
    if steps and not chosen.any():
        return [(-(2**62), 2**62)]
    starts, ends = notes.start_ns[chosen], notes.end_ns[chosen]
    if not steps:
        starts, ends = union(starts, ends)
    else:
        ends = np.minimum(ends, np.append(starts[1:], ends[-1:]))
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


@kept()
def _updates(trace: Trace) -> Bool:
    """Return a mask of the calls that are not part of a compiled or captured model.

    These are the optimizer's calls, and those between the backward pass and the optimizer, which clip gradients.
    """
    calls, notes = find_calls(trace).calls, trace.annotations
    notes = notes.take(notes.named(lambda name: name.startswith((OPTIMIZER_STEP, OPTIMIZER_ZERO_GRAD))))
    steps = notes.named(lambda name: name.startswith(OPTIMIZER_STEP))
    backward = trace.cpu_ops.named(lambda name: name.startswith("autograd::engine::evaluate_function"))
    ends = np.sort(trace.cpu_ops.end_ns[backward])
    end_of_backward = pick(ends, np.searchsorted(ends, notes.start_ns, "right") - 1, -(2**62))
    # Several optimizers may follow the same backward pass.
    others = np.append(-(2**62), np.maximum.accumulate(np.where(steps, notes.end_ns, 0)))[: len(notes)]
    begins = np.where(steps & (end_of_backward >= others), end_of_backward, notes.start_ns)
    updates, result = replace(notes, start_ns=begins), np.zeros(len(calls), np.bool_)
    for thread, of_thread in by_thread(trace):
        result[of_thread] = contains(on_thread(updates, thread), calls.start_ns[of_thread])
    return result


# -- An optimizer with fused=True --------------------------------------------------------------------


_REMAINING_TRAFFIC = {Stance.BEST: 1 / 3, Stance.EXPECTED: 0.4, Stance.WORST: 1.0}
"""Part of the memory traffic that is left: a fused Adam reads and writes 7 values for each parameter where its separate
operations do 21, a fused SGD with momentum 5 instead of 8."""
_MIN_TENSORS_PER_LAUNCH = 30
"""Minimum number of tensors that one launch updates (ATen/native/cuda/MultiTensorApply.cuh)."""

_BESIDE_FUSED_OPTIMIZER = r"/(?:lr_scheduler|swa_utils)\.py:|[:.](?:zero_grad|_init_group)$"
"""Functions of `torch/optim` that run beside a fused optimizer, too, as `file:function`."""


def fuse(graph: Graph, request: Request) -> Applied:
    """Replace the launches of each optimizer by one launch."""
    names = [name for name in names_of(graph.trace.annotations)[1] if name.startswith(OPTIMIZER_STEP)]
    fused_ops = graph.trace.gpu_ops.named(lambda name: "Fused" in name)
    fused_calls = graph.items.call[graph.item_of_op[fused_ops]]
    groups, all_gone = list[GraphLaunches](), [NOTHING]
    for name in names:
        launches = graph_launches(graph, replace(request, argument=name))
        # An optimizer with a fused kernel is fused already.
        is_fused = np.bincount(launches.number, weights=among(launches.calls, fused_calls)) > 0
        launches = launches.take(~is_fused)
        place = np.arange(len(launches.calls)) - launches.begins[launches.number]
        # At worst, a launch is left for every few tensors.
        is_removed = place % _MIN_TENSORS_PER_LAUNCH > 0 if request.stance == Stance.WORST else place > 0
        groups.append(launches)
        all_gone.append(launches.calls[is_removed])
    gone = np.concatenate(all_gone)
    part = _disappears(graph, request, gone)
    calls, items = graph.calls.copied("before_ns", "length_ns"), graph.items
    for column in (calls.before_ns, calls.length_ns):
        column[gone] -= np.rint(part * column[gone]).astype(np.int64)
    for launches in groups:
        items = _items_of_fused(replace(graph, items=items), launches, request.stance)
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
    stacks = activity.main_stacks
    if not stacks:
        return 1.0
    inside, samples = 0, sum(stack.samples for stack in stacks)
    for stack in stacks:
        frames = [activity.frames[number] for number in stack.frames]
        optimizer = [f"{frame.file}:{frame.function}" for frame in frames if "/torch/optim/" in frame.file]
        if optimizer and not any(re.search(_BESIDE_FUSED_OPTIMIZER, function) for function in optimizer):
            inside += stack.samples
    low, high = proportion(inside / samples, samples)
    share = {Stance.BEST: high, Stance.WORST: low}.get(request.stance, inside / samples)
    work = np.zeros(len(graph.calls))
    work[gone] = graph.calls.before_ns[gone] + graph.calls.length_ns[gone]
    return part_of_work(graph, request, work, share)


def _items_of_fused(graph: Graph, launches: GraphLaunches, stance: Stance) -> DeviceItems:
    """Return the items: the first on each lane does the work of its group, the others are gone."""
    items, number = graph.items, launches.launch_of_items(graph)
    inside = np.flatnonzero((number >= 0) & ~items.gone)
    lane = number[inside] * len(graph.streams) + items.lane[inside]
    _, first, group = np.unique(lane, return_index=True, return_inverse=True)
    new = items.without(np.delete(inside, first))
    # A kernel of a small tensor takes as long as the shortest kernel of its kind, for launching alone. Only at worst,
    # the merged kernel takes that time for each of them.
    kind = np.zeros(len(items), np.int64)
    kind[graph.item_of_op] = graph.trace.gpu_ops.name_id
    lengths = items.duration_ns[inside]
    alike = groups_of((group, kind[inside]))
    shortest = np.full(int(alike.max(initial=-1)) + 1, np.inf)
    np.minimum.at(shortest, alike, lengths)
    work = lengths - (0 if stance == Stance.WORST else shortest[alike] * (1 - 1 / np.bincount(alike)[alike]))
    new.duration_ns[inside[first]] = np.bincount(group, weights=_REMAINING_TRAFFIC[stance] * work, minlength=len(first))
    return new
