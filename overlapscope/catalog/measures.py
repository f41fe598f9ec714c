"""Measures: the figures of a device's time, each defined in one place.

A measure of this catalogue is a field of the JSON report, a row of its table and of the dashboard's, a figure of
`diff`, a column of SQL and a word of `explain`; one with a `metric` is judged by `check` and kept by the history, too.
Plugins add their own (`plugin.Plugin.measures`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, reduce
from operator import add, sub
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec

from overlapscope.base.intervals import I64
from overlapscope.base.registry import load
from overlapscope.base.words import size
from overlapscope.catalog.buckets import BUCKETS
from overlapscope.catalog.causes import (
    FOUND,
    STALL_CAUSES,
    WORK_UNKNOWN,
    IdleCause,
)
from overlapscope.errors import UsageError
from overlapscope.plugin import plugins
from overlapscope.trace.lost import CAUSES, ENGINES, FIGURES, FINDINGS, HOST, Part
from overlapscope.trace.ran import Ran

Group = Literal["buckets", "engines", "overlap"]
"""Object of the JSON report that has the measure."""
Blame = Literal["exposed-copy", "idle", "exposed-comm", "copies", "kernels"]
"""Kind of time that explains why a measure is worse than it may be."""

Direction = Literal["h2d", "d2h"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("h2d", "d2h")
Unit = Literal["ns", "pct", "gb_per_s", "launches"]
TINY_BYTES: Final = 64 << 10
"""Size below which a copy's time is mostly latency. At 50 GB/s the bytes take 1.3 us, about as long as the latency."""

# -- Lengths ----------------------------------------------------------------------------------------

BY_CAUSE: Final[Mapping[str, tuple[str, ...]]] = {
    subject.replace("-", "_"): tuple(f"{subject}:{cause}" for cause in causes) for subject, causes in FOUND.items()
}
"""Lengths of the causes of each bucket that has any, such as `idle:host-sync`."""
PARTS: Final = ("compute", *(part for parts in BY_CAUSE.values() for part in parts))
"""Lengths that add up to the span: the buckets, all but the first divided by cause."""

_DIVIDED: Final = {**BY_CAUSE, "span": PARTS}


_MISSING: Final = tuple(f"idle:{cause}" for cause in sorted(WORK_UNKNOWN))


Length = TypeVar("Length", int, I64)
"""A length, or a column of lengths."""


class Amount(msgspec.Struct, frozen=True):
    """Some lengths minus others, by name (`analysis.timeline.lengths`)."""

    added: tuple[str, ...]
    taken: tuple[str, ...] = ()

    def of(self, ns: Mapping[str, Length]) -> Length:
        """Return the amount in a window, or in each row of a table, from its lengths."""
        first, *others = (ns[name] for name in self.added)
        return reduce(sub, (ns[name] for name in self.taken), reduce(add, others, first))

    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the lengths, where buckets and the span are divided by cause."""
        return _divided(self.added), _divided(self.taken)

    def narrowed(self, direction: Direction | None) -> Amount:
        """Return the amount for copies in one direction; unchanged for copies in both."""
        if direction is None:
            return self
        one, other = {"copy": direction, "exposed_copy": f"exposed_{direction}"}, "d2h" if direction == "h2d" else "h2d"
        both = (tuple(one.get(name, name) for name in names) for names in (self.added, self.taken))
        return Amount(*(tuple(name for name in names if not name.startswith(f"{other}:")) for names in both))


def _divided(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for name in names for part in _DIVIDED.get(name, (name,)))


# -- Measures ---------------------------------------------------------------------------------------


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """A measure: its words, its computation, and what it says about a program."""

    id: str
    """Name in JSON, which ends with the unit: `exposed_copy_ns`, `efficiency_pct`, `launches`."""
    groups: tuple[Group, ...] = ()
    """Empty for a measure that only `check` and the history have."""
    label: str
    """Name for readers."""
    meaning: str
    """Definition, without a capital letter and a full stop."""
    part: Amount
    """The time or number, or the dividend of a percentage or rate."""
    whole: Amount | None = None
    """Divisor of a percentage or rate; None for others."""
    length: Callable[[Ran, I64, I64], I64] | None = None
    """Function that measures the length of the measure's name in each window, from their starts and ends; None for
    lengths that `analysis.timeline` measures."""
    joined: Literal["sum", "max"] = "sum"
    """Sum or maximum of the lengths in several windows, for all of them together. An average step has their mean in any
    case."""
    more_is_better: bool | None = None
    """None if neither is better."""
    of_copies: bool = False
    """True if it says nothing about a program whose copies take too little time."""
    noise: tuple[str, ...] | None = None
    """Lengths that make it differ between recordings of a program; None for those that `part` adds."""
    metric: str = ""
    """Id in `check`; empty if no budget limits it."""
    blames: tuple[Blame, ...] = ()
    needs: Literal["copies", "comm", "host", ""] = ""
    """Ops without which it means nothing. Measures that need copies can be narrowed to a direction."""
    by_range: bool = True
    """False if it is known only for steps and for the window."""
    of_host: bool = False
    """True if it exists only for the host's steps of programs without GPU activity.

    Measures of GPU programs don't exist for them, so that a recording without GPU activity can't meet their budgets.
    """
    rests_on: frozenset[Part] = ENGINES
    """Parts of the recording that it is computed from. If one of them may be incomplete, it is unknown."""

    @property
    def unit(self) -> Unit:
        """Nanoseconds, percent, 1e9 bytes per second, or a number of launches."""
        return next(unit for unit in get_args(Unit) if self.id.endswith(unit))

    @property
    def name(self) -> str:
        """The id without its unit, which is the name of its length if it has one."""
        return self.id.removesuffix(f"_{self.unit}")

    def of(self, ns: Mapping[str, int]) -> int | float | None:
        """Return the measure of a window from its lengths; None for a share of nothing."""
        part = self.part.of(ns)
        return part if self.whole is None else self.ratio(part, self.whole.of(ns))

    def ratio(self, part: int, whole: int) -> float | None:
        """Return a percentage or rate, correctly rounded; None for a share of nothing."""
        return (100 * part if self.unit == "pct" else part) / whole if whole else None


def _length(name: str, group: Group, label: str, meaning: str, **more: Any) -> Measure:
    """Return the measure that is the length of its name."""
    return Measure(id=f"{name}_ns", groups=(group,), label=label, meaning=meaning, part=Amount((name,)), **more)


_OF_HOST_THREAD: Final[Mapping[str, Any]] = {"needs": "host", "by_range": False, "rests_on": FINDINGS}
_WITHOUT_GPU: Final[Mapping[str, Any]] = {"by_range": False, "of_host": True, "noise": (), "rests_on": HOST}
_SERIAL: Final = ("sm", "h2d", "d2h")
_OWN: Final = (
    Measure(
        id="efficiency_pct",
        groups=("overlap",),
        label="overlap efficiency",
        meaning="overlap efficiency, (serial - busy) / (serial - ideal): serial is the sum of the busy times of "
        "the three engines (kernels, H2D copies, D2H copies), busy is the time in which at least one of "
        "them worked, ideal is the longest of the three busy times. 0%: one thing at a time; 100%: "
        "nothing hides better",
        part=Amount(_SERIAL, ("busy",)),
        whole=Amount(_SERIAL, ("ideal",)),
        more_is_better=True,
        of_copies=True,
        noise=("exposed_copy",),
        metric="efficiency_pct",
        blames=("exposed-copy",),
    ),
    Measure(
        id="hidden_copy_pct",
        groups=("overlap",),
        label="hidden copy share",
        meaning="time in which copies ran beside kernels, as a share of the time in which copies ran",
        part=Amount(("copy",), ("exposed_copy",)),
        whole=Amount(("copy",)),
        more_is_better=True,
        of_copies=True,
        noise=("exposed_copy",),
        metric="hidden_copy_pct",
        blames=("exposed-copy",),
        needs="copies",
    ),
    Measure(
        id="comm_compute_pct",
        groups=("overlap",),
        label="comm under compute",
        meaning="time in which communication ran beside compute, as a share of the time in which it ran",
        part=Amount(("comm",), ("exposed_comm",)),
        whole=Amount(("comm",)),
        more_is_better=True,
        noise=("exposed_comm",),
    ),
    Measure(
        id="exposed_copy_pct",
        label="exposed copy share",
        meaning="time in which copies ran and no kernel did, as a share of the time in which copies ran",
        part=Amount(("exposed_copy",)),
        whole=Amount(("copy",)),
        more_is_better=False,
        of_copies=True,
        metric="exposed_copy_pct",
        blames=("exposed-copy",),
        needs="copies",
    ),
    _length(
        "exposed_copy",
        "buckets",
        "exposed copy",
        "time in which copies ran and no kernel did",
        more_is_better=False,
        metric="exposed_copy_time",
        blames=("exposed-copy",),
        needs="copies",
    ),
    Measure(
        id="exposed_comm_pct",
        label="exposed comm share",
        meaning="time in which collectives ran and no other kernel did, as a share of the time in which they ran",
        part=Amount(("exposed_comm",)),
        whole=Amount(("comm",)),
        more_is_better=False,
        metric="exposed_comm_pct",
        blames=("exposed-comm",),
        needs="comm",
    ),
    _length(
        "exposed_comm",
        "buckets",
        "exposed comm",
        "time in which collectives ran and no other kernel did",
        more_is_better=False,
        metric="exposed_comm_time",
        blames=("exposed-comm",),
        needs="comm",
    ),
    Measure(
        id="idle_pct",
        label="idle share",
        meaning="time in which nothing ran on the GPU and no op is missing, as a share of the step",
        part=Amount(("idle",), _MISSING),
        whole=Amount(("span",)),
        more_is_better=False,
        metric="idle_pct",
        blames=("idle",),
        rests_on=FIGURES,
    ),
    Measure(
        id="idle_without_missing_ns",
        label="idle",
        meaning="time in which nothing ran on the GPU and no op is missing",
        part=Amount(("idle",), _MISSING),
        more_is_better=False,
        metric="idle_time",
        blames=("idle",),
        rests_on=FIGURES,
    ),
    Measure(
        id="host_stall_ns",
        label="stall cost",
        meaning="idle time of the GPU caused by blocking calls of the host: the idle causes host-sync, allocation "
        "and host-staging added up",
        part=Amount(tuple(f"idle:{cause}" for cause in STALL_CAUSES)),
        more_is_better=False,
        metric="host_stall_time",
        blames=("idle",),
        rests_on=CAUSES | {"fills"},
    ),
    Measure(
        id="span_ns",
        label="step",
        meaning="length of the step on the device, from its first op on the main stream to the next step's",
        part=Amount(("span",)),
        more_is_better=False,
        metric="step_time",
        blames=("idle", "exposed-copy", "exposed-comm", "kernels"),
    ),
    Measure(
        id="compute_ns",
        groups=("buckets", "engines"),
        label="compute",
        meaning="time in which kernels other than collectives ran",
        part=Amount(("compute",)),
        metric="compute_time",
        blames=("kernels",),
    ),
    _length(
        "copy",
        "overlap",
        "copy",
        "time in which copies between host and device ran, hidden or not",
        metric="copy_time",
        blames=("copies",),
        needs="copies",
    ),
    Measure(
        id="hidden_copy_ns",
        groups=("overlap",),
        label="hidden copy",
        meaning="time in which copies ran beside kernels",
        part=Amount(("copy",), ("exposed_copy",)),
        more_is_better=True,
        noise=("copy", "exposed_copy"),
    ),
    _length(
        "exposed_h2d",
        "overlap",
        "exposed H2D",
        "time in which copies to the device ran and no kernel did",
        more_is_better=False,
        noise=("exposed_copy",),
    ),
    _length(
        "exposed_d2h",
        "overlap",
        "exposed D2H",
        "time in which copies to the host ran and no kernel did",
        more_is_better=False,
        noise=("exposed_copy",),
    ),
    Measure(
        id="exposed_at_once_ns",
        groups=("overlap",),
        label="exposed at once",
        meaning="time in which copies in both directions ran and no kernel did: exposed H2D and exposed D2H together "
        "exceed the exposed copy by it",
        part=Amount(("exposed_h2d", "exposed_d2h"), ("exposed_copy",)),
        noise=("exposed_copy",),
    ),
    _length("h2d_d2h", "overlap", "H2D and D2H at once", "time in which copies in both directions ran"),
    Measure(
        id="serial_ns",
        groups=("overlap",),
        label="engines added up",
        meaning="busy times of kernels, H2D copies and D2H copies added up",
        part=Amount(_SERIAL),
    ),
    _length("busy", "overlap", "engines busy", "time in which kernels or copies between host and device ran"),
    _length("ideal", "overlap", "ideal", "the longest of the busy times of kernels, H2D copies and D2H copies"),
    _length(
        "p2p",
        "overlap",
        "peer copy",
        "time in which copies between devices ran, which no other figure of overlap counts",
    ),
    _length(
        "exposed_p2p",
        "overlap",
        "exposed peer copy",
        "time in which copies between devices ran and no kernel did",
        more_is_better=False,
    ),
    _length("sm", "engines", "SM busy", "time in which kernels ran, those of communication included"),
    _length("h2d", "engines", "H2D busy", "time in which copies to the device ran"),
    _length("d2h", "engines", "D2H busy", "time in which copies to the host ran"),
    _length("comm", "engines", "comm busy", "time in which communication ran"),
    _length(
        "other",
        "engines",
        "memory work",
        "time in which copies between devices, copies within the device or memsets ran",
    ),
    _length(
        "exposed_other",
        "buckets",
        "exposed other",
        "time in which only memory work within the GPU or between GPUs ran",
        more_is_better=False,
    ),
    _length(
        "idle",
        "buckets",
        "idle",
        "time in which nothing ran; what missing ops hide is part of it",
        more_is_better=False,
    ),
    Measure(
        id="copy_gb_per_s",
        label="copy bandwidth",
        meaning="bytes of the copies divided by the sum of their durations, without streams whose copies have "
        f"less than {size(TINY_BYTES)} on average: those copies only show latency",
        part=Amount(("h2d:bytes", "d2h:bytes")),
        whole=Amount(("h2d:moving", "d2h:moving")),
        more_is_better=True,
        metric="copy_bandwidth",
        blames=("copies",),
        needs="copies",
        by_range=False,
    ),
    Measure(
        id="python_ns",
        label="Python",
        meaning="time of a step in which the launching thread was in Python, between ops and runtime calls",
        part=Amount(("host:python",)),
        metric="python_ms_per_step",
        **_OF_HOST_THREAD,
    ),
    Measure(
        id="launches",
        label="launches",
        meaning="number of calls in a step that launch kernels, copies or graphs on the device",
        part=Amount(("host:launches",)),
        metric="launches_per_step",
        **_OF_HOST_THREAD,
    ),
    Measure(
        id="marked_gc_pause_ns",
        label="garbage collector",
        meaning="time of a step in which Python's garbage collector held the launching thread; known if the recorder "
        "marked it",
        part=Amount(("host:marked_gc_pause",)),
        metric="gc_ms_per_step",
        **_OF_HOST_THREAD,
    ),
    Measure(
        id="host_step_ns",
        label="step on the host",
        meaning="step time on the host, from one step mark to the next, for a program that does not use a GPU",
        part=Amount(("span",)),
        metric="host_step_time",
        **_WITHOUT_GPU,
    ),
    Measure(
        id="host_loading_pct",
        label="loading on the host",
        meaning="time that the thread of the steps was inside the DataLoader's next, as a share of the step, for "
        "a program that does not use a GPU",
        part=Amount((f"idle:{IdleCause.DATA_LOADING}",)),
        whole=Amount(("span",)),
        metric="host_loading_pct",
        **_WITHOUT_GPU,
    ),
)


def _all() -> Mapping[str, Measure]:
    """Return the measures by id.

    Raises:
        UsageError: A plugin's measure has the id of another.
    """
    measures = {measure.id: measure for measure in _OWN}
    for plugin in plugins():
        for measure in load(plugin.measures) if plugin.measures else ():
            if measures.setdefault(measure.id, measure) is not measure:
                raise UsageError(f"the plugin {plugin.name} has a measure {measure.id!r}, which exists.")
    return measures


MEASURES: Final = _all()
"""Measures by id."""
METRICS: Final = {measure.metric: measure for measure in MEASURES.values() if measure.metric}
"""Measures that `check` judges, by their ids there, in the order of the documentation."""


def _of_cause(bucket: str, length: str) -> Measure:
    cause = length.partition(":")[2]
    return Measure(id=f"{length}_ns", label=cause, meaning="", part=Amount((length,)), metric=f"{bucket}_time/{cause}")


PARTS_OF: Final = {
    bucket: {(part := _of_cause(bucket, length)).label: part for length in lengths}
    for bucket, lengths in BY_CAUSE.items()
}
"""Measures of the causes of each bucket, by cause. Their metrics are such as `idle_time/host-sync`."""
CAUSES_OF: Final = {f"{bucket}_time": parts for bucket, parts in PARTS_OF.items() if f"{bucket}_time" in METRICS}
"""The same by the metric whose time they divide."""

OWN_LENGTHS: Final = {measure.name: measure.length for measure in MEASURES.values() if measure.length is not None}
"""Functions that measure the lengths which the analysis itself doesn't."""
LONGEST: Final = frozenset(measure.name for measure in MEASURES.values() if measure.joined == "max")
"""Lengths of which several windows together have the longest."""
MEASURED: Final = {
    measure.name: (measure.groups[0], measure.id)
    for measure in MEASURES.values()
    if measure.groups and measure.name not in ("compute", *BY_CAUSE) and measure.part == Amount((measure.name,))
}
"""Object and field of the JSON report that has each length, except for the parts of the span."""


@cache
def of_group(group: Group) -> tuple[Measure, ...]:
    """Return the measures of an object of the JSON report; buckets in the order in which they are drawn."""
    order = [bucket.field for bucket in BUCKETS.values()] if group == "buckets" else [*MEASURES]
    return tuple(MEASURES[id] for id in order if id in MEASURES and group in MEASURES[id].groups)
