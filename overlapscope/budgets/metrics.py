"""Metrics that budgets can limit, and how to read each from a step, a range or the window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from overlapscope.analysis.figures import Period
from overlapscope.analysis.groups import TINY_BYTES
from overlapscope.analysis.results import missing_ns
from overlapscope.base.words import size
from overlapscope.budgets.verdicts import Unit
from overlapscope.catalog.causes import COMM_CAUSES, COPY_CAUSES, IDLE_CAUSES, STALL_CAUSES, IdleCause
from overlapscope.trace.lost import CAUSES, ENGINES, FIGURES, FINDINGS, HOST, Part

Direction = Literal["h2d", "d2h"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("h2d", "d2h")
Blame = Literal["exposed-copy", "idle", "exposed-comm", "copies", "kernels"]
"""Kind of time that explains why a metric is worse than its limit."""


class Moved(Struct, frozen=True):
    """Copies in the same direction that begin in a sample and whose size is known."""

    bytes: float
    duration_ns: float


class Sample(Struct, frozen=True):
    """Input of a metric: one step, one occurrence of a range, or the window."""

    name: str
    figures: Period
    moved: Mapping[Direction, Moved]
    """Copies by direction. Empty for a range, since the analysis doesn't count copies by range."""


Amount = Callable[[Sample, Direction | None], float]
"""Function that reads an amount from a sample, for copies in a given direction or in both."""
Known = Callable[[Sample], bool]
"""Function that tells whether a sample states an amount."""


class Metric(Struct, frozen=True, kw_only=True):
    """A metric: its meaning, its unit and its computation."""

    id: str
    meaning: str
    """Definition, for `--explain` and the documentation, without a capital letter and a full stop."""
    unit: Unit
    more_is_better: bool = False
    part: Amount
    """The measured amount: nanoseconds or bytes."""
    whole: Amount | None = None
    """Divisor in nanoseconds; None for a metric that is a time."""
    blames: tuple[Blame, ...] = ()
    known: Known = lambda _: True
    """False for a sample in which the amount is unknown."""
    needs: Literal["copies", "comm", "host", ""] = ""
    """Ops without which the metric means nothing. Metrics that need copies can be narrowed to a direction."""
    by_range: bool = True
    of_host: bool = False
    """True if the metric exists only for the host's steps of programs without GPU activity.

    Metrics of GPU programs don't exist for them, so that a recording without GPU activity can't meet their budgets.
    """
    rests_on: frozenset[Part] = ENGINES
    """Parts of the recording that the metric is computed from. If one of them may be incomplete, it is unknown."""

    def read(self, sample: Sample, direction: Direction | None) -> float | None:
        """Return the metric of a sample, in its unit; None for a percentage of nothing, and where it is unknown."""
        if not self.known(sample):
            return None
        part = self.part(sample, direction)
        if self.whole is None:
            return float(part)
        whole = self.whole(sample, direction)
        return (100 * part if self.unit == "pct" else part) / whole if whole else None


def _span_ns(sample: Sample, _: Direction | None) -> int:
    return sample.figures.span_ns


def copy_ns(sample: Sample, direction: Direction | None) -> int:
    """Return the time in which copies ran, in nanoseconds. Copies that run at once count once."""
    engines = sample.figures.engines
    by_direction = {"h2d": engines.h2d_ns, "d2h": engines.d2h_ns}
    return by_direction[direction] if direction else sample.figures.overlap.copy_ns


def _exposed_copy_ns(sample: Sample, direction: Direction | None) -> int:
    overlap = sample.figures.overlap
    by_direction = {"h2d": overlap.exposed_h2d_ns, "d2h": overlap.exposed_d2h_ns}
    return by_direction[direction] if direction else sample.figures.buckets.exposed_copy_ns


def _moved(sample: Sample, direction: Direction | None) -> list[Moved]:
    return [moved for way, moved in sample.moved.items() if direction in (None, way)]


def _of_step(
    id: str,
    meaning: str,
    field: str,
    unit: Unit = "ns",
    known: Known = lambda sample: sample.figures.host is not None,
) -> Metric:
    """Return a metric of the launching thread in a step, which doesn't depend on the GPU's speed."""
    return Metric(
        id=id,
        meaning=meaning,
        unit=unit,
        part=lambda sample, _: getattr(sample.figures.host, field, 0),
        known=known,
        needs="host",
        by_range=False,
        rests_on=FINDINGS,
    )


def _as_share_and_time(id: str, meaning: str, of: str, *, whole: Amount, **more: Any) -> tuple[Metric, Metric]:
    """Return two metrics: a length as a percentage of another, and the length itself. `more` are fields of both."""
    share = Metric(id=f"{id}_pct", meaning=f"{meaning}, as a share of {of}", unit="pct", whole=whole, **more)
    return share, Metric(id=f"{id}_time", meaning=meaning, unit="ns", **more)


_ALL: Final = (
    Metric(
        id="efficiency_pct",
        meaning="overlap efficiency, (serial - busy) / (serial - ideal): serial is the sum of the busy times of "
        "the three engines (kernels, H2D copies, D2H copies), busy is the time in which at least one of "
        "them worked, ideal is the longest of the three busy times. 0%: one thing at a time; 100%: "
        "nothing hides better",
        unit="pct",
        more_is_better=True,
        part=lambda sample, _: sample.figures.overlap.serial_ns - sample.figures.overlap.busy_ns,
        whole=lambda sample, _: sample.figures.overlap.serial_ns - sample.figures.overlap.ideal_ns,
        blames=("exposed-copy",),
    ),
    Metric(
        id="hidden_copy_pct",
        meaning="time in which copies ran beside kernels, as a share of the time in which copies ran",
        unit="pct",
        more_is_better=True,
        part=lambda sample, direction: copy_ns(sample, direction) - _exposed_copy_ns(sample, direction),
        whole=copy_ns,
        blames=("exposed-copy",),
        needs="copies",
    ),
    *_as_share_and_time(
        "exposed_copy",
        "time in which copies ran and no kernel did",
        "the time in which copies ran",
        part=_exposed_copy_ns,
        whole=copy_ns,
        blames=("exposed-copy",),
        needs="copies",
    ),
    *_as_share_and_time(
        "exposed_comm",
        "time in which collectives ran and no other kernel did",
        "the time in which they ran",
        part=lambda sample, _: sample.figures.buckets.exposed_comm_ns,
        whole=lambda sample, _: sample.figures.engines.comm_ns,
        blames=("exposed-comm",),
        needs="comm",
    ),
    *_as_share_and_time(
        "idle",
        "time in which nothing ran on the GPU and no op is missing",
        "the step",
        part=lambda sample, _: sample.figures.buckets.idle_ns - missing_ns(sample.figures),
        whole=_span_ns,
        blames=("idle",),
        rests_on=FIGURES,
    ),
    Metric(
        id="host_stall_time",
        meaning="idle time of the GPU caused by blocking calls of the host: the idle causes host-sync, allocation "
        "and host-staging added up",
        unit="ns",
        part=lambda sample, _: sum(sample.figures.idle_by_cause.get(cause, 0) for cause in STALL_CAUSES),
        blames=("idle",),
        rests_on=CAUSES | {"fills"},
    ),
    Metric(
        id="step_time",
        meaning="length of the step on the device, from its first op on the main stream to the next step's",
        unit="ns",
        part=_span_ns,
        blames=("idle", "exposed-copy", "exposed-comm", "kernels"),
    ),
    Metric(
        id="compute_time",
        meaning="time in which kernels other than collectives ran",
        unit="ns",
        part=lambda sample, _: sample.figures.buckets.compute_ns,
        blames=("kernels",),
    ),
    Metric(
        id="copy_time",
        meaning="time in which copies between host and device ran, hidden or not",
        unit="ns",
        part=copy_ns,
        blames=("copies",),
        needs="copies",
    ),
    Metric(
        id="copy_bandwidth",
        meaning="bytes of the copies divided by the sum of their durations, without streams whose copies have "
        f"less than {size(TINY_BYTES)} on average: those copies only show latency",
        unit="gb_per_s",
        more_is_better=True,
        part=lambda sample, direction: sum(moved.bytes for moved in _moved(sample, direction)),
        whole=lambda sample, direction: sum(moved.duration_ns for moved in _moved(sample, direction)),
        blames=("copies",),
        needs="copies",
        by_range=False,
    ),
    _of_step(
        "python_ms_per_step",
        "time of a step in which the launching thread was in Python, between ops and runtime calls",
        "python_ns",
    ),
    _of_step(
        "launches_per_step",
        "number of calls in a step that launch kernels, copies or graphs on the device",
        "launches",
        "launches",
    ),
    _of_step(
        "gc_ms_per_step",
        "time of a step in which Python's garbage collector held the launching thread; known if the recorder marked it",
        "gc_pause_ns",
        known=lambda sample: sample.figures.host is not None and sample.figures.host.gc_known,
    ),
    Metric(
        id="host_step_time",
        meaning="step time on the host, from one step mark to the next, for a program that does not use a GPU",
        unit="ns",
        part=_span_ns,
        of_host=True,
        by_range=False,
        rests_on=HOST,
    ),
    Metric(
        id="host_loading_pct",
        meaning="time that the thread of the steps was inside the DataLoader's next, as a share of the step, for "
        "a program that does not use a GPU",
        unit="pct",
        part=lambda sample, _: sample.figures.idle_by_cause.get(IdleCause.DATA_LOADING, 0),
        whole=_span_ns,
        of_host=True,
        by_range=False,
        rests_on=HOST,
    ),
)

METRICS: Final[dict[str, Metric]] = {metric.id: metric for metric in _ALL}
"""Metrics by id, in the order of the documentation."""

CAUSES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "exposed_copy_time": COPY_CAUSES,
    "exposed_comm_time": COMM_CAUSES,
    "idle_time": IDLE_CAUSES,
}
"""Causes that the time of a metric is divided by."""
