"""Results of the analysis, as frozen structures whose names are those of the JSON report.

All times are integer nanoseconds. A percentage of nothing is None, never 0 or 100. Values that the trace doesn't show
are None, and the trust checks say why.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from overlapscope.analysis.figures import Buckets, Engines, Overlap, Period, PerStep, ServedSteps, Window
from overlapscope.analysis.group_results import CopyGroup, Evidence, HostStall, KernelGroup, NetOverlap
from overlapscope.analysis.host_results import OpTime, SampledStep, ThreadUse
from overlapscope.analysis.trust_results import Environment, Trust
from overlapscope.catalog.buckets import bucket_of
from overlapscope.catalog.causes import WORK_UNKNOWN, Subject
from overlapscope.trace.model import OwnPeriod, TraceOrigin


class StreamUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one stream."""

    stream: int
    compute_ns: int
    comm_ns: int
    h2d_ns: int
    d2h_ns: int
    other_ns: int
    ops: int


PlainOrigin = Literal["measured", "told"]
"""Origin of a plain step's length: timed by the recorder, or told by the user."""


class StepRange(msgspec.Struct, frozen=True, kw_only=True):
    """Interval of a step's length without the profiler, where it was neither timed nor told."""

    low_ns: int
    """At least the time in which the device works, or may have worked."""
    high_ns: int
    """The step as recorded."""


class Plain(msgspec.Struct, frozen=True, kw_only=True):
    """One device without the profiler: the time of a step (`docs/how-it-works/numbers.md`)."""

    step_ns: int
    low_ns: int
    """Lower bound of the interval, with `low_ns <= step_ns <= high_ns`."""
    high_ns: int
    origin: PlainOrigin
    clocked_steps: int = 0
    """Number of steps that `step_ns` is the mean of, if all of the program were clocked; otherwise 0."""
    longer_steps: int = 0
    """Number of those that took over 1.5 times as long as the longest recorded step."""
    longer_ns: int = 0
    """Part of `step_ns` that is due to these, which is in the idle time as `unrecorded`."""
    recorded_step_ns: int
    """Average step in the recording; the time after the lead-in if no step is judged."""
    recorded_busy_ns: int
    """Time of it in which the device works."""
    buckets: Buckets | None
    """Buckets of a step, which add up to `step_ns`; None if the recording can't be replayed and took less time than its
    ops do."""
    exposed_copy_by_cause: dict[str, int]
    """Exposed copy by cause, which adds up to the bucket."""
    exposed_comm_by_cause: dict[str, int]
    """Exposed communication by cause, which adds up to the bucket."""
    idle_by_cause: dict[str, int]
    """Idle time by cause, which adds up to the bucket. `unknown` has the time that no replay explains."""
    program: Device | None = None
    """Figures of the recording replayed with plain steps; None if nothing could be replayed."""


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a device's recording after the lead-in that lies in no step."""

    unmeasured_ns: int
    """Time of the first judged step on the host before the recording's first GPU op, if its successor, which would show
    as much, isn't judged: the window begins with that op. 0 if the device had work before."""
    before_ns: int
    """Time before the first step."""
    after_ns: int
    """Time after the last step."""
    between_ns: int | UnsetType = UNSET
    """Time between steps, in which a server waited for requests; absent if there is none."""
    h2d_bytes: int | None
    """Bytes of the copies to the device that lie entirely in that time; None if one of them doesn't state its size."""
    d2h_bytes: int | None
    """The same of copies to the host."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Results on one device of one trace."""

    device: int
    name: str | None
    span_ns: int
    lead_in_ns: int | None
    """Length of the lead-in; None if the trace records no launches, so that it is unknown."""
    window: Window
    main_stream: int
    """Stream with the most compute; if there is none, the busiest stream."""
    buckets: Buckets
    engines: Engines
    overlap: Overlap
    judged: Period | None
    """Figures without the lead-in; None if nothing is left."""
    per_step: PerStep | None
    """An average step; None if no step is whole, or a single step or range is analysed."""
    outside: Outside | None
    """Time and copies outside the steps; None without steps, or if a single step or range is analysed."""
    host_before_ns: int = 0
    """Time of ops on the host before any device's first op, which is in no figure; 0 if a single step or range is
    analysed."""
    host_after_ns: int = 0
    """The same after the last op of all devices."""
    streams: tuple[StreamUse, ...]
    copies: tuple[CopyGroup, ...]
    exposed_copy_by_cause: dict[str, int]
    exposed_comm_by_cause: dict[str, int]
    exposed_other_by_cause: dict[str, int]
    """Kinds of memory work, which add up to the bucket `exposed other`."""
    idle_by_cause: dict[str, int]
    evidence: tuple[Evidence, ...]
    host_stalls: tuple[HostStall, ...]
    steps: tuple[Period, ...]
    ranges: tuple[Period, ...]
    kernels: tuple[KernelGroup, ...]
    """Kernels, longest first."""
    net_overlap: tuple[NetOverlap, ...] = ()
    """Gain and cost of overlap, for communication and copies of which any is hidden; empty in predictions."""
    plain: Plain | None = None
    """Figures without the profiler; None if they are unknown, or a single step or range is analysed."""
    served: ServedSteps | UnsetType = UNSET
    """Steps of an inference server by phase; absent for other programs, or if a single step or range is analysed."""
    alone: StepRange | None = None
    """Interval of a step, or of all that is judged, without the profiler; None if `plain` has it, or it isn't a
    recording's."""


def by_subject(figures: Device | Period | PerStep) -> dict[Subject, dict[str, int]]:
    """Return the causes of each kind of time that has causes."""
    return {
        "exposed-copy": figures.exposed_copy_by_cause,
        "exposed-comm": figures.exposed_comm_by_cause,
        "exposed-other": figures.exposed_other_by_cause,
        "idle": figures.idle_by_cause,
    }


def missing_by_cause(figures: Device | Period | PerStep) -> dict[str, int]:
    """Return the parts of the idle bucket in which the GPU may have worked."""
    return {cause: ns for cause in sorted(WORK_UNKNOWN) if (ns := figures.idle_by_cause.get(cause, 0))}


def missing_ns(figures: Device | Period | PerStep) -> int:
    """Return the part of the idle bucket in which the GPU may have worked."""
    return sum(missing_by_cause(figures).values())


def host_parts(step: Period | PerStep | Plain) -> dict[str, int]:
    """Return the parts of a step on the host by name, which add up to it: `ops`, `communication`, and idle causes."""
    buckets = step.buckets
    assert buckets is not None
    return {"ops": buckets.compute_ns, "communication": buckets.exposed_comm_ns, **step.idle_by_cause}


def partition(figures: Device | Period) -> dict[str, int]:
    """Return the buckets by their names for readers; they add up to the span.

    Any time in which the GPU may have worked is taken out of idle.
    """
    parts = {bucket_of(name).name: ns for name, ns in figures.buckets.named().items()}
    missing = {bucket_of(cause).name: ns for cause, ns in missing_by_cause(figures).items()}
    return parts | {"idle": parts["idle"] - missing_ns(figures)} | missing


class HostUse(msgspec.Struct, frozen=True, kw_only=True):
    """The host as a device, in a program that runs nothing on a GPU: ops compute, collectives communicate.

    Idle time is that of the thread of the steps outside of both, by its cause: `data-loading` in the DataLoader's next,
    or else `python`, with anything that the profiler doesn't record.
    """

    by_steps: bool
    """False if no steps are marked; then the only one of `steps` is the whole recording."""
    steps: Annotated[tuple[Period, ...], msgspec.Meta(min_length=1)]
    per_step: PerStep
    """An average step as recorded."""
    plain: Plain | None = None
    """An average step without the profiler, with the recorded step's shares as far as no sample shows others; None if
    its length is unknown."""
    loader: Literal["none", "own-thread", "workers"]
    """Maker of the DataLoader's batches: no loader, the thread that marks the steps, or worker processes."""
    ops: tuple[OpTime, ...]
    """Outermost ops on that thread, in the judged steps, outside loading, the longest first, at most 20 names."""
    threads: tuple[ThreadUse, ...]
    """Threads in the judged steps: the thread of the steps first, then the busiest."""

    @property
    def judged(self) -> tuple[Period, ...]:
        """Steps that `per_step` is the average of."""
        return self.steps[self.per_step.first : self.per_step.first + self.per_step.steps]

    def frame(self, *, recorded: bool = False) -> PerStep | Plain:
        """Return the step that reports are about: without the profiler if its length is known, else as recorded."""
        return self.per_step if recorded or self.plain is None else self.plain


class TraceResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results on one trace, which is of one process."""

    source: str
    rank: int | None
    trust: Trust
    devices: tuple[Device, ...]
    environment: Environment
    predicted_by: tuple[str, ...] | None = None
    """Changes with which `overlapscope whatif` predicted it; null for a recording."""
    host: HostUse | None = None
    """Host time of a trace without GPU activity; null for all others."""
    sampled: SampledStep | None = None
    """The launching thread in an average step without the profiler; null if the recorder took no samples or facts."""
    origin: TraceOrigin | UnsetType = UNSET
    """Origin of the recording, if the recorder noted it; absent otherwise."""
    step_source: str | UnsetType = UNSET
    """Mark that ended the steps, such as `calls of ResNet.forward`; absent if the recorder did not note it."""
    period: OwnPeriod | UnsetType = UNSET
    """Period by which steps were found; absent where the recording marks its steps, or has none."""
