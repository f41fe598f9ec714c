"""Figures of a device in a window, a step or a range: buckets, engines and overlap.

All times are integer nanoseconds. A percentage of nothing is None, never 0 or 100.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from overlapscope.analysis.measured import Buckets, Engines, Overlap
from overlapscope.catalog.measures import BY_CAUSE, MEASURES, Measure
from overlapscope.trace.servers import Phase


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Interval `[start_ns, end_ns)` in absolute times."""

    start_ns: int
    end_ns: int


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the program. Fields are None where the trace doesn't state them."""

    op: str | None = None
    """Innermost CPU op."""
    call: str | None = None
    """Runtime call."""
    line: str | None = None
    """Python line."""


class HostTime(msgspec.Struct, frozen=True, kw_only=True):
    """Host time of a step, from its mark to the next, by what the launching thread does. The times add up to it."""

    python_ns: int
    dispatch_ns: int
    """Time inside ops that launch, make views or allocate, and between nodes of a backward pass."""
    cpu_ops_ns: int
    """Time inside ops on the CPU."""
    loading_ns: int
    """Time inside the DataLoader's next."""
    waiting_ns: int
    """Time inside blocking calls."""
    gc_pause_ns: int
    """Time in Python's garbage collector, as far as the recorder marks it."""
    gc_known: bool
    """True if the recorder marks runs of the garbage collector, so that there were no others."""
    profiler_ns: int
    launches: int
    """Number of calls that launch ops on the device."""


class TimeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of some of a device's time."""

    span_ns: int
    buckets: Buckets
    engines: Engines
    overlap: Overlap
    exposed_copy_by_cause: dict[str, int]
    exposed_comm_by_cause: dict[str, int]
    exposed_other_by_cause: dict[str, int]
    """Kinds of memory work, which add up to the bucket `exposed other`."""
    idle_by_cause: dict[str, int]


class Period(TimeFigures, frozen=True, kw_only=True):
    """A step or a range on the device."""

    name: str
    window: Window
    partial: bool
    """True if it began in the lead-in, so that a part of it was cut off."""
    host: HostTime | None = None
    """Host time of a step; None for a range, or if the ops of the launching thread were not recorded."""


class PerStep(TimeFigures, frozen=True, kw_only=True):
    """An average step of a device: each length is the mean over the judged steps, each percentage a ratio of sums."""

    steps: int
    """Number of judged steps: whole ones, without a warm-up step at first and without the last step."""
    first: int
    """Number of the first of them in `Device.steps`; the others of its phase follow."""
    host: HostTime | None = None
    """Host time; None if the ops of the launching thread were not recorded. `launches` is rounded."""
    phase: Phase | msgspec.UnsetType = msgspec.UNSET
    """Phase of an inference server's judged steps, between which there may be others; absent for other programs."""


class PhaseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one phase."""

    phase: Phase
    recorded: int
    """Number of its steps in the recording."""
    fewest_requests: int | None
    """Minimum number of requests in a judged step; None if any step doesn't state them."""
    most_requests: int | None
    tokens_per_s: float | None
    """Tokens that the judged steps compute, by their time; None if any step doesn't state them."""
    per_step: PerStep | None
    """An average of its judged steps; None if none is whole."""


class ServedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of an inference server."""

    phases: tuple[PhaseFigures, ...]
    """The phases, by the time of their judged steps; the first one is that of `Device.per_step`."""
    tokens_per_s: float | None
    """Tokens that the judged steps of all phases compute, by their time; None if any step doesn't state them."""
    awaiting_requests_ns: int
    """Time in which the server waited for requests, which belongs to no step."""
    decode_tokens_per_s: float | None
    """Their tokens of requests that decode."""


def by_cause(ns: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of a period that divide time by cause, from the time of each cause (`idle:host-sync`)."""
    return {
        f"{bucket}_by_cause": {part.partition(":")[2]: ns[part] for part in parts} for bucket, parts in BY_CAUSE.items()
    }


def figures_in(part: TimeFigures) -> TimeFigures:
    """Return the figures that a device, a period and an average step have in common."""
    return TimeFigures(**{name: getattr(part, name) for name in TimeFigures.__struct_fields__})


Beside = Literal["communication", "copies"]
"""Work that runs beside compute kernels."""


def hidden_ns(frame: TimeFigures) -> dict[Beside, int]:
    """Return the time in which each kind of work is hidden."""
    return {
        "communication": frame.engines.comm_ns - frame.buckets.exposed_comm_ns,
        "copies": frame.overlap.hidden_copy_ns,
    }


COPIES_MATTER_FROM = 0.01
"""Minimum share of the span for copies to matter. If they take less, their hidden share says nothing about a program.
"""


class Measured(Protocol):
    """A device, a period or a variant of the laboratory, with its span and overlap."""

    @property
    def span_ns(self) -> int: ...
    @property
    def overlap(self) -> Overlap: ...


def copies_matter(figures: Measured) -> bool:
    """Return whether copies take long enough for their percentages to be meaningful."""
    return figures.overlap.copy_ns >= max(1, COPIES_MATTER_FROM * figures.span_ns)


def shown(measure: Measure, figures: Measured) -> float | None:
    """Return a measure for readers; None for a percentage of nothing, or of copies that take too little time."""
    if measure.of_copies and not copies_matter(figures):
        return None
    value: float | None = getattr(getattr(figures, measure.groups[0]), measure.id)
    return value


def efficiency_shown(figures: Measured) -> float | None:
    """Return the overlap efficiency for readers."""
    return shown(MEASURES["efficiency_pct"], figures)


def hidden_copy_shown(figures: Measured) -> float | None:
    """Return the hidden share of copies for readers."""
    return shown(MEASURES["hidden_copy_pct"], figures)
