"""Pipelines: ranks that pass paired messages on from stage to stage, in the same way in each step.

The first stage is the only rank that sends before it has received anything. Messages go forward from there; those in
the other direction come back. Each stage is judged in its rank's own steps, which don't overlap: while the first stage
ends a step, the last one may be in the next. In a step, a stage computes, waits for the other side of a message, or
does something else.

Schedules are recognized by the order in which messages go forward and come back. Theoretical bubbles follow from
Narayanan et al. 2021 (arXiv 2104.04473, section 2.2): with p stages, m microbatches and v chunks, the bubble is
(p-1)/(vm) of the time without it, which is (p-1)/(vm+p-1) of the step. GPipe and 1F1B have one chunk and the same
bubble.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct

from overlapscope.base.columns import mask_of, pick
from overlapscope.base.grouping import groups_of, rows_by
from overlapscope.base.intervals import EMPTY, I64, Intervals, clip, subtract, total, union
from overlapscope.base.marks import step_number
from overlapscope.base.words import number_runs
from overlapscope.plugins.jobs.part import PhaseTime, Pipeline, PipelineStep, StageTime
from overlapscope.ranks.clocks import components
from overlapscope.ranks.comparison import Comparison
from overlapscope.ranks.messages import is_message
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.waits import common_steps

_NEVER: Final = np.iinfo(np.int64).max


class _Stage(NamedTuple):
    """A rank: when it computes, when its messages run and wait, and begin and end of each step by name."""

    rank: int
    compute: Intervals
    messages: tuple[Intervals, Intervals]
    steps: dict[str, tuple[int, int]]


def find_pipelines(
    ranks: Sequence[ReducedRank], comparison: Comparison
) -> tuple[tuple[Pipeline, ...], tuple[str, ...]]:
    """Return the pipelines among the ranks compared, and notes on those that can't be judged."""
    found, notes = [], []
    by_step, unjudged = _by_step(comparison), _unjudged(comparison)
    messages = _messages(comparison)
    pairs = sorted({pair for traffic in by_step.values() for pair in traffic})
    sender, receiver = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    label = components(sender, receiver, len(ranks))
    for _, members in rows_by(label):
        places = members.tolist()
        if label[places[0]] < 0:
            continue
        names = common_steps([ranks[place] for place in places]).names
        numbers = {name: number for name in names if (number := step_number(name)) >= 0}
        steps = dict[str, StepTraffic]()
        for name, number in numbers.items():
            if among := {pair: times for pair, times in by_step.get(number, {}).items() if pair[0] in places}:
                steps[name] = among
        traffic = _traffic(list(steps.values()))
        if traffic is None:
            continue
        if doubt := _doubt(comparison, unjudged, places, list(numbers.values())):
            runs = ", ".join(number_runs(rank for place in places if (rank := ranks[place].rank) is not None))
            notes.append(f"The pipeline of ranks {runs} is not judged: {doubt}.")
        else:
            stages = [
                _Stage(rank.rank or 0, rank.compute, messages.get(place, (EMPTY, EMPTY)), _own_steps(rank))
                for place in traffic.places
                for rank in [ranks[place]]
            ]
            found.append(_pipeline(stages, traffic, list(steps)))
    return tuple(sorted(found, key=lambda pipeline: min(pipeline.ranks))), tuple(notes)


def _by_step(comparison: Comparison) -> dict[int, StepTraffic]:
    """Return the paired messages of each step."""
    paired = comparison.waits.messages.paired
    sides, (send, receive) = paired.sides, paired.ends
    result: defaultdict[int, StepTraffic] = defaultdict(dict)
    if len(send):
        for _, rows in rows_by(groups_of([sides.step[send], sides.rank[send], sides.rank[receive]])):
            first, last = send[rows[0]], receive[rows[0]]
            pair = int(sides.rank[first]), int(sides.rank[last])
            times = np.sort(sides.start_ns[send[rows]]), np.sort(sides.end_ns[receive[rows]])
            result[int(sides.step[first])][pair] = times
    return result


def _traffic(steps: list[StepTraffic]) -> Traffic | None:
    """Return the messages by stage; None if the ranks are not a pipeline, or steps differ."""
    counts = [{pair: len(times[0]) for pair, times in step.items()} for step in steps]
    stages = [_stages(step) for step in steps]
    if not steps or not stages[0] or any(each != counts[0] for each in counts) or any(s != stages[0] for s in stages):
        return None
    return Traffic(tuple(stages[0]), counts[0], steps)


def _stages(step: StepTraffic) -> list[int]:
    """Return the ranks in the order of the stages, from the messages of a step; empty if there is no such order."""
    neighbors: defaultdict[int, set[int]] = defaultdict(set)
    first_send: dict[int, tuple[int, Pair]] = {}
    first_arrival: dict[int, int] = {}
    for pair, (sent, received) in step.items():
        for rank, other in (pair, pair[::-1]):
            neighbors[rank].add(other)
        first_send[pair[0]] = min(first_send.get(pair[0], (int(sent[0]), pair)), (int(sent[0]), pair))
        first_arrival[pair[1]] = min(first_arrival.get(pair[1], int(received[0])), int(received[0]))
    starts = [pair for at, pair in first_send.values() if at < first_arrival.get(pair[0], at + 1)]
    if len(starts) != 1 or any(len(each) > 2 for each in neighbors.values()):
        return []
    stages = [*starts[0]]
    while following := neighbors[stages[-1]] - set(stages):
        stages.append(min(following))
    return stages if len(stages) == len(neighbors) else []


def _unjudged(comparison: Comparison) -> tuple[I64, I64]:
    """Return rank and step of each kernel that sends or receives with an unknown other side."""
    kernels = comparison.met.kernels
    rows = np.flatnonzero(kernels.of_kinds(is_message) & ~mask_of(comparison.waits.messages.kernel, len(kernels)))
    return kernels.rank[rows], kernels.step[rows]


def _doubt(comparison: Comparison, unjudged: tuple[I64, I64], places: Sequence[int], steps: Sequence[int]) -> str:
    """Return why a pipeline can't be judged; empty if it can."""
    offsets = comparison.offsets
    apart = len(set(offsets.reference[places].tolist())) > 1
    if apart or (offsets.error_ns[places] < 0).any():
        return "the offsets between its clocks are unknown"
    count = int((np.isin(unjudged[0], places) & np.isin(unjudged[1], steps)).sum())
    return f"the other side of {count:,} of its sends and receives is unknown" if count else ""


def _pipeline(stages: Sequence[_Stage], traffic: Traffic, names: Sequence[str]) -> Pipeline:
    schedule, count = recognized(traffic), len(traffic.places)
    steady = schedule.name != "gpipe"
    steps = [_step(stages, traffic, number, name, steady=steady) for number, name in enumerate(names)]
    compute = [sum(step.stages[stage].compute_ns for step in steps) for stage in range(count)]
    length = sum(stage.length_ns for step in steps for stage in step.stages)
    bubble, share = Fraction(length - sum(compute), max(length, 1)), schedule.bubble(count)
    return Pipeline(
        ranks=tuple(stage.rank for stage in stages),
        schedule=schedule.name,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        bubble_pct=float(100 * bubble),
        theoretical_bubble_pct=None if share is None else float(100 * share),
        formula=schedule.formula,
        longest_stage=stages[compute.index(max(compute))].rank,
        even_step_ns=None if share is None or bubble <= share else sum(compute) // ((1 - share) * count * len(steps)),
        steps=tuple(steps),
    )


def _step(stages: Sequence[_Stage], traffic: Traffic, number: int, name: str, *, steady: bool) -> PipelineStep:
    """Return the time of each stage in its own step. Without a steady state, the drain follows the warm-up."""
    times = []
    for place, stage in enumerate(stages):
        first, last = stage.steps[name]
        warm, drain = traffic.phases(number, place)
        warm = min(max(first if warm is None else warm, first), last)
        drain = min(max(last if drain is None else drain, warm), last) if steady else warm
        phases = (_phase(stage, *edges) for edges in pairwise((first, warm, drain, last)))
        times.append(StageTime(rank=stage.rank, **dict(zip(("warm_up", "steady", "drain"), phases, strict=True))))
    return PipelineStep(name=name, stages=tuple(times))


def _own_steps(rank: ReducedRank) -> dict[str, tuple[int, int]]:
    """Return the begin and end of each step of a rank by name. They don't overlap.

    On a device, a step begins with its first op on the main stream. Its messages may begin earlier on another stream.
    Then the step begins with the first of them, or where the compute of the step before ends if that is later.
    """
    steps, messages = rank.steps, rank.messages.kernel
    start, end = steps.start_ns, steps.start_ns + steps.span_ns
    by_step = rows_by(rank.comm.step[messages])
    first_message = {number: int(rank.comm.start_ns[messages[rows]].min()) for number, rows in by_step if number >= 0}
    earliest = np.array([first_message.get(step_number(name), _NEVER) for name in steps.names], np.int64)
    computes = np.searchsorted(rank.compute.starts, start) - 1
    computed = np.where(computes >= 0, pick(rank.compute.ends, computes), earliest)
    begin = np.minimum(start, np.maximum(np.maximum(earliest, computed), np.append(earliest[:1], start[:-1])))
    end = np.minimum(end, np.append(begin[1:], end[-1:]))
    return dict(zip(steps.names, zip(begin.tolist(), end.tolist(), strict=True), strict=True))


def _messages(comparison: Comparison) -> dict[int, tuple[Intervals, Intervals]]:
    """Return when messages of each rank ran, and when they waited for their other sides, by the rank's clock."""
    messages, kernels = comparison.waits.messages, comparison.met.kernels
    (start, end), waited = (side[messages.kernel] for side in (kernels.start_ns, kernels.end_ns)), messages.waited_ns
    by_rank = rows_by(kernels.rank[messages.kernel])
    return {
        place: (union(start[rows], end[rows]), union(start[rows], start[rows] + waited[rows]))
        for place, rows in by_rank
    }


def _phase(stage: _Stage, begin: int, end: int) -> PhaseTime:
    computed = clip(stage.compute, begin, end)
    compute_ns = total(computed)
    running_ns, waiting_ns = (total(subtract(clip(each, begin, end), computed)) for each in stage.messages)
    return PhaseTime(
        compute_ns=compute_ns,
        waiting_ns=waiting_ns,
        other_ns=end - begin - compute_ns - waiting_ns,
        idle_ns=end - begin - compute_ns - running_ns,
    )


Pair = tuple[int, int]
"""Places of a sender and of a receiver."""
StepTraffic = dict[Pair, tuple[I64, I64]]
"""Messages of a step: when the sends of each pair began and when the receives ended, by each rank's clock, in order."""


class Traffic(Struct, frozen=True, eq=False):
    """Messages between the stages of a pipeline."""

    places: tuple[int, ...]
    """Places of the ranks in the order of the stages."""
    counts: dict[Pair, int]
    """Number of messages in each step."""
    steps: list[StepTraffic]

    def forward(self, stage: int) -> Pair:
        """Return the pair of a stage and the next one; after the last stage, the first one is next."""
        return self.places[stage], self.places[(stage + 1) % len(self.places)]

    def back(self, stage: int) -> Pair:
        """Return the pair of the next stage and this one."""
        return self.forward(stage)[::-1]

    @property
    def goes_round(self) -> bool:
        """True if the last stage sends to the first: ranks have several chunks of layers."""
        return len(self.places) > 2 and self.forward(len(self.places) - 1) in self.counts

    def turns(self, step: int, stage: int) -> tuple[I64, I64]:
        """Return when a stage passes messages on and when they come back, by its clock.

        The last stage passes none on: when they arrive, and when it sends some back.
        """
        times, last = self.steps[step], len(self.places) - 1
        stage, forward, back = (stage, 0, 1) if stage < last else (stage - 1, 1, 0)
        none = np.empty((2, 0), np.int64)
        return times.get(self.forward(stage), none)[forward], times.get(self.back(stage), none)[back]

    def phases(self, step: int, stage: int) -> tuple[int | None, int | None]:
        """Return the end of the warm-up and the begin of the drain of a stage, by its clock; None where it has none."""
        forward, back = self.turns(step, stage)
        is_last = stage == len(self.places) - 1
        if not len(back):
            # A model that only infers sends nothing back. Its warm-up lasts until the first message arrives.
            arrived = self.steps[step].get(self.forward(stage - 1)) if stage else None
            warm_up = None if arrived is None else int(arrived[1][0])
            return warm_up, None if is_last or not len(forward) else int(forward[-1])
        if not is_last:
            return int(back[0]), int(forward[-1]) if len(forward) else None
        before = forward[forward <= back[0]]
        return int(before[-1]) if len(before) else None, int(back[-1])


class PipelineSchedule(Struct, frozen=True):
    """A schedule, as far as it was recognized."""

    name: Literal["gpipe", "1f1b", "interleaved-1f1b"] | None = None
    microbatches: int | None = None
    chunks: int = 1

    def bubble(self, stages: int) -> Fraction | None:
        """Return the share of bubbles with equal stages and microbatches; None without a schedule."""
        if self.name is None or not self.microbatches:
            return None
        return Fraction(stages - 1, self.chunks * self.microbatches + stages - 1)

    @property
    def formula(self) -> str:
        """Formula of `bubble`."""
        return {None: "", "interleaved-1f1b": "(p-1)/(vm+p-1)"}.get(self.name, "(p-1)/(m+p-1)")


def recognized(traffic: Traffic) -> PipelineSchedule:
    """Return the schedule whose order the messages of every step have."""
    stages, counts = len(traffic.places), traffic.counts
    forward, back = (
        {counts.get(pair(stage), 0) for stage in range(stages - 1)} for pair in (traffic.forward, traffic.back)
    )
    if len(forward) != 1 or back not in (forward, {0}):
        return PipelineSchedule()
    (many,) = forward
    if traffic.goes_round:
        return _interleaved(traffic, many) if back == forward else PipelineSchedule()
    if back == {0}:
        # A model that only infers sends nothing back.
        return PipelineSchedule(None, many)
    if _in_order(traffic, lambda _: np.full(many, many)):
        return PipelineSchedule("gpipe", many)
    one_by_one = _in_order(traffic, lambda stage: np.minimum(stages - stage + np.arange(many), many))
    return PipelineSchedule("1f1b", many) if one_by_one else PipelineSchedule()


def _in_order(traffic: Traffic, expected: Callable[[int], I64]) -> bool:
    """Return whether each stage has dealt with the expected number of messages before each that comes back.

    Args:
        traffic: The messages.
        expected: Returns, for each message that comes back to a stage, the number that it has sent on before. For the
            last stage, it is the number that it has received before it sends each message back.
    """
    return all(
        (np.searchsorted(forward, back, side="right") == expected(stage)).all()
        for step in range(len(traffic.steps))
        for stage in range(len(traffic.places))
        for forward, back in [traffic.turns(step, stage)]
    )


def _interleaved(traffic: Traffic, many: int) -> PipelineSchedule:
    """Return the interleaved schedule of 1F1B, if counts and beginning of each step are of it."""
    stages, last = len(traffic.places), len(traffic.places) - 1
    round_trips = {traffic.counts.get(pair(last), 0) for pair in (traffic.forward, traffic.back)}
    microbatches = many - min(round_trips)
    if len(round_trips) != 1 or microbatches <= 0 or many % microbatches:
        return PipelineSchedule()
    chunks = many // microbatches
    for step in range(len(traffic.steps)):
        for stage in range(last):
            forward, back = traffic.turns(step, stage)
            sent = np.searchsorted(forward, back[0], side="right")
            # The first gradients may be received before the first forward after the warm-up is sent.
            warm_up = 2 * (last - stage) + (chunks - 1) * stages
            if sent not in {min(warm_up, many), min(warm_up + 1, many)}:
                return PipelineSchedule()
    return PipelineSchedule("interleaved-1f1b", microbatches, chunks)
