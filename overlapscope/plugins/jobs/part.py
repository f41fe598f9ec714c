"""Results on pipelines and experts, `parts.jobs` in the JSON of a report of ranks. Times are integer nanoseconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.ranks.comm_result import CommTime


class PhaseTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a stage in one phase of a pipeline's step. The first three fields add up to the length of the phase."""

    compute_ns: int
    waiting_ns: int
    """Part without compute in which a send or receive waited for its other side."""
    other_ns: int
    """Rest: transfers, collectives, copies and idle time without compute."""
    idle_ns: int
    """Part of `other_ns` outside of all sends and receives, which doesn't depend on clocks."""

    @property
    def length_ns(self) -> int:
        """Length of the phase."""
        return self.compute_ns + self.waiting_ns + self.other_ns


class StageTime(msgspec.Struct, frozen=True, kw_only=True):
    """A stage in one step of its rank. The phases add up to the length of that step."""

    rank: int
    warm_up: PhaseTime
    """Until the first message has come back from the next stage. On the last stage, until all has arrived that it
    received before it first sent something back."""
    steady: PhaseTime
    drain: PhaseTime
    """From the last message to the next stage. On the last stage, from the last message that it sent back."""

    @property
    def phases(self) -> tuple[PhaseTime, ...]:
        """All phases, in order."""
        return self.warm_up, self.steady, self.drain

    @property
    def compute_ns(self) -> int:
        """Compute in all phases."""
        return sum(phase.compute_ns for phase in self.phases)

    @property
    def length_ns(self) -> int:
        """Length of the rank's step."""
        return sum(phase.length_ns for phase in self.phases)


class PipelineStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a pipeline. The steps of its ranks may begin and end at different times."""

    name: str
    stages: tuple[StageTime, ...]
    """Stages in order."""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that pass messages on from stage to stage, in the same way in each step."""

    ranks: tuple[int, ...]
    """Ranks in the order of the stages: the first stage sends before it receives anything."""
    schedule: Literal["gpipe", "1f1b", "interleaved-1f1b"] | None
    """Schedule with this order of messages. A schedule that only delays gradients of weights, such as ZB-H1, has that
    of 1F1B. None if the order is of no known schedule."""
    microbatches: int | None
    """Number of messages of a step from each stage to the next, by chunk of layers; None if it differs."""
    chunks: int = 1
    """Number of chunks of layers on each rank; more than 1 if interleaved."""
    bubble_pct: float
    """Share of the steps of all stages in which a stage computes nothing."""
    theoretical_bubble_pct: float | None
    """The same for equal stages, equal microbatches and messages that take no time; None without a schedule."""
    formula: str
    """Formula of that with p stages, m microbatches and v chunks; empty without a schedule."""
    longest_stage: int
    """Rank that computes most, which bounds the pipeline."""
    even_step_ns: int | None
    """Length of an average step in theory if all stages computed the mean, all in equal microbatches, and messages took
    no time; None without a schedule, or if the bubble is not larger than the theoretical one."""
    steps: tuple[PipelineStep, ...]
    """Judged steps that all stages have and in which they pass on messages, in order."""


class ExpertRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank in the exchanges of `ExpertExchange`, summed over the steps of `Communication`."""

    rank: int
    count: int
    """Number of exchanges."""
    sent_elements: int | None
    """Elements that it sends, to itself included; None if unknown."""
    received_elements: int | None
    sent_rows: int | None
    """Sum of the split sizes of the tensors sent: their rows, such as tokens. None where not recorded, or where PyTorch
    shortened the list."""
    received_rows: int | None
    loaded_elements: int | None
    """Part of `received_elements` for its experts: in the `compared` exchanges. None if there are none."""
    loaded_rows: int | None
    """The same in rows."""
    load: float | None
    """`loaded_elements` as a multiple of the mean rank's."""
    time: CommTime


class ExpertExchange(msgspec.Struct, frozen=True, kw_only=True):
    """All-to-alls of a process group with split sizes and elements of the same size, as for tokens and experts."""

    group: str
    """As in `GroupCollective`, and so are the next three."""
    description: str
    group_ranks: str
    group_size: int | None
    element_bytes: int | None
    """Size of an element; None if unknown."""
    compared: int
    """Number of exchanges to experts: of all members, the most that one receives is no less than the most that one
    sends. The others bring results back."""
    skew: float | None
    """Largest number of elements that a rank receives in these, as a multiple of the mean; sums of both. None if there
    are none."""
    followed: int
    """Number of these in which a single rank receives most, and after which a single rank is known to come last to the
    group's next collective."""
    largest_last: int
    """Number of these after which the rank that received most comes last."""
    waited_exposed_ns: int
    """Time without compute that the others wait for it there, summed over them."""
    ranks: tuple[ExpertRank, ...]
    """By rank."""


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a report of ranks."""

    experts: tuple[ExpertExchange, ...]
    """Exchanges between experts, those with the most elements first."""
    pipelines: tuple[Pipeline, ...]
    """Pipelines by the lowest rank."""
