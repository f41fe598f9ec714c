"""Metrics that budgets can limit, and how to read each from a step, a range or the window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, Literal

from msgspec import Struct

from overlapscope.analysis.facts import facts_of
from overlapscope.analysis.figures import Period
from overlapscope.analysis.groups import TINY_BYTES
from overlapscope.base.words import size
from overlapscope.budgets.verdicts import Unit
from overlapscope.catalog.causes import COMM_CAUSES, COPY_CAUSES, IDLE_CAUSES, IdleCause
from overlapscope.catalog.measures import MEASURES, Amount, Blame, Measure
from overlapscope.trace.lost import ENGINES, FINDINGS, HOST, Part

Direction = Literal["h2d", "d2h"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("h2d", "d2h")


class Moved(Struct, frozen=True):
    """Copies in the same direction that begin in a sample and whose size is known."""

    bytes: float
    duration_ns: float


class Sample(Struct, frozen=True, dict=True):
    """Input of a metric: one step, one occurrence of a range, or the window."""

    name: str
    figures: Period
    moved: Mapping[Direction, Moved]
    """Copies by direction. Empty for a range, since the analysis doesn't count copies by range."""

    @cached_property
    def ns(self) -> Mapping[str, int]:
        """Lengths of the figures by name, in nanoseconds."""
        return {name: int(column[0]) for name, column in facts_of((self.figures,)).items()}


Reading = Callable[[Sample, Direction | None], float]
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
    part: Reading
    """The measured amount: nanoseconds or bytes."""
    whole: Reading | None = None
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


def copy_ns(sample: Sample, direction: Direction | None) -> int:
    """Return the time in which copies ran, in nanoseconds. Copies that run at once count once."""
    return _amount(MEASURES["copy_ns"].part)(sample, direction)


def _amount(amount: Amount) -> Callable[[Sample, Direction | None], int]:
    """Return a function that reads an amount from a sample."""
    return lambda sample, direction: (amount.narrowed(direction) if direction else amount).of(sample.ns)


def _of_measure(measure: Measure) -> Metric:
    return Metric(
        id=measure.metric,
        meaning=measure.meaning,
        unit=measure.unit,
        more_is_better=measure.more_is_better or False,
        part=_amount(measure.part),
        whole=None if measure.whole is None else _amount(measure.whole),
        blames=measure.blames,
        needs=measure.needs,
        rests_on=measure.rests_on,
    )


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


_ALL: Final = (
    *(_of_measure(measure) for measure in MEASURES.values() if measure.metric),
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
        part=_amount(MEASURES["span_ns"].part),
        of_host=True,
        by_range=False,
        rests_on=HOST,
    ),
    Metric(
        id="host_loading_pct",
        meaning="time that the thread of the steps was inside the DataLoader's next, as a share of the step, for "
        "a program that does not use a GPU",
        unit="pct",
        part=_amount(Amount((f"idle:{IdleCause.DATA_LOADING}",))),
        whole=_amount(MEASURES["span_ns"].part),
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
