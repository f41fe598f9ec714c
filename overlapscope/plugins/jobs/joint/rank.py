"""Structures of a rank's summary for the joint replay."""

from __future__ import annotations

from msgspec import Struct

from overlapscope.analysis.plain_step import PlainStep
from overlapscope.base.intervals import I64
from overlapscope.plugins.jobs.joint.result import JointChange
from overlapscope.prediction.graph import Network
from overlapscope.prediction.hardware import Stance
from overlapscope.ranks.reduced import ComparedRank

NOT_SHOWN = -2
"""In `Parts.ready`: the recording doesn't show when the input of the collective is ready."""
BY_EVENT = -1
"""In `Parts.ready`: the collective waits for an event after which its input is ready."""


class Unfit(Struct, frozen=True):
    """A recording that can't take part in a joint replay, and why."""

    source: str
    reason: str


class Parts(Struct, frozen=True, eq=False):
    """A rank's network at a stance.

    Each collective is two items in a row: the rank's arrival, which has no length, and the rest. Work is divided into
    segments: a segment ends with the launch of a collective.
    """

    network: Network
    comm: I64
    """Item of the rest of each collective, in the order of `ComparedRank.comm`; its arrival is the item before it."""
    segment_of_item: I64
    segment_of_call: I64
    closed_by: I64
    """Segment that the launch of each collective ends; -1 where the launch was not recorded."""
    work_ns: I64
    """As in `prediction.condense`, and so are the next four."""
    launched_work_ns: I64
    compute_ns: I64
    launched_compute_ns: I64
    launched_host_ns: I64
    recorded_start_ns: I64
    """Recorded start of each item; of a stretch, of its last op."""
    recorded_end_ns: I64
    ready: I64
    """Call at which the input of each collective is ready; `BY_EVENT` or `NOT_SHOWN`."""
    ahead_call: I64
    """Call after which each collective could be launched if weights were gathered one layer ahead; -1 for none."""
    ahead_item: I64
    """Item that each of these would wait for."""
    filled_ns: I64
    """Time over which the gradients that each collective reduces become ready; -1 where it is unknown."""
    before_launch_ns: I64
    """Host work of the op that launches each collective, up to the launch."""
    after_launch_ns: I64
    """Host work of that op after the launch."""
    marks: I64
    """Items with which the judged steps begin; on the host, calls, the end of the last step included."""
    marks_are_calls: bool


class RankSummary(Struct, frozen=True, eq=False):
    """A rank, ready to be joined."""

    reduced: ComparedRank
    recorded: Parts
    by_stance: dict[Stance, Parts]
    """Networks of the changed rank in a lucky, usual and unlucky run."""
    lengths_ns: I64
    """Recorded lengths of the judged steps."""
    changed: tuple[JointChange, ...] = ()
    """Interventions on this rank alone."""
    plain: PlainStep | None = None
    """Step without the profiler, if the recorder timed it."""
    lighter: tuple[RankSummary, ...] = ()
    """The rank with ever less host work (`prediction.overhead.lighter_ones`); empty if `plain` is None."""
    lost_speed: tuple[float, float, float] | None = (0.0, 0.0, 0.0)
    """Share of its speed that compute loses beside collectives: lower bound, estimate, upper bound; None if unknown."""
    uncertain: int = 0
    """Number of times on the host that may have been waits or work."""
