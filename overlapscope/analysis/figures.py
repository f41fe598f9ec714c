"""Figures of a device in a window, a step or a range: buckets, engines and overlap.

All times are integer nanoseconds. A percentage of nothing is None, never 0 or 100.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from overlapscope.analysis.measured import Buckets, Engines, Overlap
from overlapscope.catalog.buckets import bucket_of
from overlapscope.catalog.causes import CAUSES, WORK_UNKNOWN, Subject
from overlapscope.catalog.measures import BY_CAUSE, MEASURES, Measure
from overlapscope.trace.servers import Phase


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Interval `[start_ns, end_ns)` in absolute times."""

    start_ns: int
    end_ns: int


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


COPIES_MATTER_FROM = 0.01
"""Minimum share of the span for copies to matter. If they take less, their hidden share says nothing about a program.
"""


class ShownOverlap:
    """Figures of overlap for readers, of a structure that has a span and overlap."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def span_ns(self) -> int: ...
        @property
        def overlap(self) -> Overlap: ...

    @property
    def copies_matter(self) -> bool:
        """True if copies take long enough for their percentages to be meaningful."""
        return self.overlap.copy_ns >= max(1, COPIES_MATTER_FROM * self.span_ns)

    def shown(self, measure: Measure) -> float | None:
        """Return a measure; None for a percentage of nothing, or of copies that take too little time."""
        if measure.of_copies and not self.copies_matter:
            return None
        value: float | None = getattr(getattr(self, measure.groups[0]), measure.id)
        return value

    @property
    def efficiency_shown(self) -> float | None:
        """Overlap efficiency."""
        return self.shown(MEASURES["efficiency_pct"])

    @property
    def hidden_copy_shown(self) -> float | None:
        """Hidden share of copies."""
        return self.shown(MEASURES["hidden_copy_pct"])


class ByCause:
    """Times by cause, of a structure that divides kinds of time so."""

    __slots__ = ()

    @property
    def by_subject(self) -> dict[Subject, dict[str, int]]:
        """Causes of each kind of time that has causes, as far as the structure has them."""
        return {subject: getattr(self, f"{subject.replace('-', '_')}_by_cause", {}) for subject in CAUSES}


class TimeFigures(ShownOverlap, ByCause, msgspec.Struct, frozen=True, kw_only=True):
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

    @property
    def missing_by_cause(self) -> dict[str, int]:
        """Parts of the idle bucket in which the GPU may have worked."""
        return {cause: ns for cause in sorted(WORK_UNKNOWN) if (ns := self.idle_by_cause.get(cause, 0))}

    @property
    def missing_ns(self) -> int:
        """Part of the idle bucket in which the GPU may have worked."""
        return sum(self.missing_by_cause.values())

    @property
    def partition(self) -> dict[str, int]:
        """Buckets by their names for readers, which add up to the span.

        Any time in which the GPU may have worked is taken out of idle.
        """
        parts = {bucket_of(name).name: ns for name, ns in self.buckets.named().items()}
        missing = {bucket_of(cause).name: ns for cause, ns in self.missing_by_cause.items()}
        return parts | {"idle": parts["idle"] - self.missing_ns} | missing


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
