"""Schedules of pipelines, recognized by the order in which messages go forward and come back.

Theoretical bubbles follow from Narayanan et al. 2021 (arXiv 2104.04473, section 2.2): with p stages, m microbatches and
v chunks, the bubble is (p-1)/(vm) of the time without it, which is (p-1)/(vm+p-1) of the step. GPipe and 1F1B have one
chunk and the same bubble.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal

import numpy as np
from msgspec import Struct

from overlapscope.base.intervals import I64

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

    def phases(self, step: int, stage: int) -> tuple[int | None, int | None]:
        """Return the end of the warm-up and the begin of the drain of a stage, by its clock; None where it has none."""
        times, last = self.steps[step], len(self.places) - 1
        if stage < last:
            sent, came_back = times.get(self.forward(stage)), times.get(self.back(stage))
            warm = _first(came_back[1]) if came_back else self._first_arrival(step, stage)
            return warm, _last(sent[0]) if sent else None
        arrived, sent_back = times.get(self.forward(stage - 1)), times.get(self.back(stage - 1))
        if sent_back is None:
            return self._first_arrival(step, stage), None
        before = arrived[1][arrived[1] <= sent_back[0][0]] if arrived else sent_back[0][:0]
        return _last(before), _last(sent_back[0])

    def _first_arrival(self, step: int, stage: int) -> int | None:
        arrived = self.steps[step].get(self.forward(stage - 1)) if stage else None
        return _first(arrived[1]) if arrived else None


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
    last = len(traffic.places) - 1
    for times in traffic.steps:
        for stage in range(last):
            done = np.searchsorted(times[traffic.forward(stage)][0], times[traffic.back(stage)][1], side="right")
            if (done != expected(stage)).any():
                return False
        arrived, sent_back = times[traffic.forward(last - 1)][1], times[traffic.back(last - 1)][0]
        if (np.searchsorted(arrived, sent_back, side="right") != expected(last)).any():
            return False
    return True


def _interleaved(traffic: Traffic, many: int) -> PipelineSchedule:
    """Return the interleaved schedule of 1F1B, if counts and beginning of each step are of it."""
    stages, last = len(traffic.places), len(traffic.places) - 1
    round_trips = {traffic.counts.get(pair(last), 0) for pair in (traffic.forward, traffic.back)}
    microbatches = many - min(round_trips)
    if len(round_trips) != 1 or microbatches <= 0 or many % microbatches:
        return PipelineSchedule()
    chunks = many // microbatches
    for times in traffic.steps:
        for stage in range(last):
            sent = np.searchsorted(times[traffic.forward(stage)][0], times[traffic.back(stage)][1][0], side="right")
            # The first gradients may be received before the first forward after the warm-up is sent.
            warm_up = 2 * (last - stage) + (chunks - 1) * stages
            if sent not in {min(warm_up, many), min(warm_up + 1, many)}:
                return PipelineSchedule()
    return PipelineSchedule("interleaved-1f1b", microbatches, chunks)


def _first(times: I64) -> int | None:
    return int(times[0]) if len(times) else None


def _last(times: I64) -> int | None:
    return int(times[-1]) if len(times) else None
