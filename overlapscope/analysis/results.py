"""Results of the analysis, as frozen structures whose names are those of the JSON report.

All times are integer nanoseconds. A percentage of nothing is None, never 0 or 100. Values that the trace doesn't show
are None, and the trust checks say why.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from overlapscope.analysis.figures import Beside, ByCause, Period, PerStep, ServedSteps, TimeFigures, Window
from overlapscope.analysis.measured import Buckets
from overlapscope.base.words import between, duration, noun_for, plural
from overlapscope.catalog.causes import Subject
from overlapscope.catalog.measures import TINY_BYTES
from overlapscope.trace.lost import Part
from overlapscope.trace.model import OwnPeriod, TraceOrigin

# -- Groups of ops -----------------------------------------------------------------------------------

CopyDirection = Literal["h2d", "d2h", "p2p"]
"""Direction of copies between host and device, or `p2p` for copies between devices."""


class CopiesByStep(msgspec.Struct, frozen=True, kw_only=True):
    """A group of copies in each of `Device.steps`, in their order."""

    count: tuple[int, ...]
    """Number of copies that begin in the step."""
    bytes: tuple[int, ...]
    """Bytes of these copies, as far as they state their size."""
    duration_ns: tuple[int, ...]
    """Sum of the durations of the copies that state their size."""
    time_ns: tuple[int, ...]
    """Length of the union, cut at the step's edges."""
    exposed_ns: tuple[int, ...]


class CopyGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All copies of a direction, pair of memory kinds, pair of devices and stream."""

    direction: CopyDirection
    source_kind: str
    target_kind: str
    source_device: int | None = None
    """Device that peer copies read; None for other copies, and if not recorded."""
    target_device: int | None = None
    """Device that peer copies write."""
    stream: int
    count: int
    bytes: int | None
    """Bytes; None if no copy of the group states its size."""
    time_ns: int
    """Length of the union of the group's copies."""
    exposed_ns: int
    gb_per_s: float | None
    """1e9 bytes per second over the copies' own durations."""
    judged_bytes: int
    """Bytes of the copies that begin after the lead-in and state their size."""
    judged_duration_ns: int
    """Sum of the durations of the copies in `judged_bytes`."""
    judged_count: int
    """Number of copies that begin after the lead-in."""
    judged_time_ns: int
    """`time_ns` after the lead-in."""
    judged_exposed_ns: int
    """`exposed_ns` after the lead-in."""
    by_step: CopiesByStep

    @property
    def says_bandwidth(self) -> bool:
        """True if the bandwidth is meaningful: that of mostly tiny copies only shows their latency."""
        return self.bytes is not None and self.bytes >= TINY_BYTES * self.count


class StallsByStep(msgspec.Struct, frozen=True, kw_only=True):
    """A host stall in each of `Device.steps`, in their order, cut at the steps' edges; calls count where they begin."""

    count: tuple[int, ...]
    host_wait_ns: tuple[int, ...]
    idle_caused_ns: tuple[int, ...]


class HostStall(msgspec.Struct, frozen=True, kw_only=True):
    """One blocking call of one line of code, over the whole window."""

    call: str
    op: str | None
    """Innermost CPU op around the call."""
    thread: int
    count: int
    host_wait_ns: int
    """Time the host spent inside the call."""
    idle_caused_ns: int
    """Cost: GPU idle time that followed because the host could not launch in the meantime."""
    judged_count: int
    """Number of calls that begin after the lead-in."""
    judged_wait_ns: int
    """Time the host spent inside the call after the lead-in."""
    where: str | None
    """Python line, if stacks were recorded."""
    by_step: StallsByStep


class EvidenceByStep(msgspec.Struct, frozen=True, kw_only=True):
    """A row of evidence in each of `Device.steps`, in their order; cases count where they begin."""

    count: tuple[int, ...]
    time_ns: tuple[int, ...]
    """Time, cut at the steps' edges."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a cause's time: its calls, largest first, with the longest single case."""

    subject: Subject
    cause: str
    time_ns: int
    count: int
    op: str | None
    """CPU op that issued the copy, or during which the GPU was idle."""
    call: str | None
    """Runtime call."""
    where: str | None
    """Python line, if stacks were recorded."""
    detail: str
    """Observation as a single sentence."""
    copies: str | None = None
    """Exposed copies by their memory and stream; None for other subjects."""
    collective: str | None = None
    """Exposed communication by collective and process group; None for other subjects."""
    waited_for: str | None = None
    """Op that the collective of the example waited for before it began; None if there is none."""
    confidence: Literal["exact", "rebuilt"]
    """`rebuilt` if it is based on an event edge that the trace doesn't state."""
    example: Window
    """The longest single case."""
    by_step: EvidenceByStep


class KernelsByStep(msgspec.Struct, frozen=True, kw_only=True):
    """A group of kernels in each of `Device.steps`, in their order; kernels count where they begin."""

    count: tuple[int, ...]
    time_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]


class KernelGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of the same name on the same stream, launched by the same op from the same module and line."""

    kernel: str
    op: str | None
    """Innermost CPU op around the launch; for a graph, around the capture, if known."""
    module: str | UnsetType = UNSET
    """Class of the innermost module of PyTorch around it; absent if not recorded."""
    where: str | None
    """Python line of the launch or capture, if stacks were recorded."""
    stream: int
    comm: bool
    unclear: bool = False
    """True if the kernels count as compute, but their name is like that of communication."""
    count: int
    time_ns: int
    """Sum of the kernels' own durations, even if they ran side by side."""
    exposed_ns: int
    """Part of that sum in which no other kernel computed."""
    example: Window
    """The longest kernel."""
    judged_count: int
    """Number of kernels that begin after the lead-in."""
    judged_time_ns: int
    """Sum of the durations of these kernels."""
    judged_exposed_ns: int
    """Exposed part of that sum."""
    by_step: KernelsByStep


class GraphUse(msgspec.Struct, frozen=True, kw_only=True):
    """GPU ops that launched graphs contain. Times are sums of their own durations."""

    count: int
    time_ns: int
    known_count: int
    """Number of ops whose op, module and line at the capture are known."""
    known_time_ns: int
    captured: bool
    """True if any capture was recorded."""


Unjudged = Literal["never-alone", "too-few", "varying"]
"""Reason why kernels beside other work can't be compared: equal ones never ran alone, too few ran either way, or their
lengths vary too much."""


class SlowedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Equal kernels that ran alone and beside other work. Times with bounds are of an average step."""

    kernel: str
    overlapped_ns: int
    """Time in which they ran beside the other work."""
    alone_count: int
    """Number of compared kernels that ran alone."""
    alone_ns: int
    """Their median length."""
    beside_count: int
    """Number of compared kernels that ran beside the other work."""
    beside_ns: int
    """Their median length."""
    slowed_low_ns: int
    slowed_ns: int
    """Estimate of how much longer they ran."""
    slowed_high_ns: int


class NetOverlap(msgspec.Struct, frozen=True, kw_only=True):
    """Gain and cost of overlap in an average step of the recording (`docs/how-it-works/numbers.md`)."""

    beside: Beside
    hidden_ns: int
    """Time in which this work was hidden: what overlap saves at most."""
    overlapped_ns: int
    """Time of compute kernels beside this work, added up over kernels."""
    judged_ns: int
    """Part of it in which kernels could be compared with equal ones that ran alone."""
    unjudged_by_cause: dict[Unjudged, int]
    """The rest, by what prevents the comparison. Together with `judged_ns` it adds up to `overlapped_ns`."""
    slowed_low_ns: int | None
    slowed_ns: int | None
    """Estimate of how much longer the judged kernels ran; negative if they ran shorter. None if none is judged."""
    slowed_high_ns: int | None
    kernels: tuple[SlowedKernel, ...]
    """The kernels that this work slows most, at most 5 groups."""


# -- Time of the host --------------------------------------------------------------------------------


class OpTime(msgspec.Struct, frozen=True, kw_only=True):
    """Outermost CPU ops of the same name."""

    op: str
    count: int
    time_ns: int


class ThreadUse(msgspec.Struct, frozen=True, kw_only=True):
    """Time that one thread was in CPU ops."""

    thread: int
    name: str = ""
    """Python's name of the thread; empty if the recording doesn't state it."""
    steps: bool
    """True if the steps run on it."""
    busy_ns: int


class LineTime(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code, by samples of the program without the profiler."""

    line: str
    """File and number, such as `train.py:212`."""
    function: str
    calls: str
    """Function of a library that it calls most; empty if it calls none."""
    time_ns: int
    """Part of an average step."""


class SampledStep(msgspec.Struct, frozen=True, kw_only=True):
    """The launching thread in an average step without the profiler, as far as samples and facts of the host show it.

    A GPU that has work left waits for only a part of these times.
    """

    step_ns: int
    """Length of the step of which the times are parts."""
    lines: tuple[LineTime, ...] = ()
    """Lines with the most samples, at most 20."""
    by_cause: dict[str, int] = {}
    """Time by cause: `gil-wait`, `file-io`, `preempted`, `cpu-throttled`, `gc-pause`; without causes of no time."""


# -- Trust and environment ---------------------------------------------------------------------------


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trust check of a trace."""

    id: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    lost: tuple[Part, ...] | None
    """Parts of the recording that may be lost or wrong, so that everything based on them is unknown; null if there are
    none."""

    @property
    def lost_parts(self) -> frozenset[Part]:
        """Return `lost`, empty if there are none."""
        return frozenset(self.lost or ())


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """Trustworthiness of a trace's numbers."""

    verdict: Literal["trusted", "degraded", "unusable"]
    checks: tuple[Check, ...]

    @property
    def lost(self) -> frozenset[Part]:
        """Parts of the recording that may be lost or wrong according to any check."""
        return frozenset().union(*(check.lost_parts for check in self.checks))


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Environment of a recording, as far as the trace states it; absent otherwise."""

    gpus: tuple[str, ...] = ()
    """Product names of the devices that worked, sorted, each once."""
    recorder: str = "kineto"
    """Recorder: `kineto` is torch.profiler, `nsys` Nsight Systems."""
    world_size: int | None = None
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    """Highest CUDA version that the driver supports."""
    flags: dict[str, bool] = {}
    """Recorded besides times: `sync_events`, `stacks`, `shapes`, `memory`."""


# -- Devices and traces ----------------------------------------------------------------------------


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


_MIN_PART_OF_WORK = 0.9
"""Minimum length of a possible step, as a part of the device's work in a recorded one."""


class PlainStep(msgspec.Struct, frozen=True):
    """Length of a step without the profiler."""

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
    """Part of `step_ns` that is due to these, which is in the idle time as `unrecorded`: the mean of the others is
    shorter by it."""

    @property
    def usual(self) -> PlainStep:
        """The mean of the steps that are like recorded ones, whose parts the recording shows."""
        step_ns, low_ns, high_ns = (max(1, ns - self.longer_ns) for ns in (self.step_ns, self.low_ns, self.high_ns))
        return PlainStep(step_ns, low_ns, high_ns, self.origin, self.clocked_steps)

    def is_impossible(self, busy_ns: int) -> bool:
        """Return whether the user passed a step that is much shorter than the device's work in a recorded one."""
        return self.origin == "told" and self.step_ns < _MIN_PART_OF_WORK * busy_ns

    @property
    def words(self) -> str:
        """The length, its origin and the interval, such as `31.9 ms (measured, 31.4 to 33.1 ms)`."""
        interval = "" if self.low_ns == self.high_ns else f", {between(self.low_ns, self.high_ns)}"
        of_steps = f", the mean of {plural(self.clocked_steps, 'step')}" if self.clocked_steps else ""
        how = "as given" if self.origin == "told" else self.origin
        return f"{duration(self.step_ns)} ({how}{of_steps}{interval})"


class Plain(ByCause, PlainStep, frozen=True, kw_only=True):
    """One device without the profiler: the time of a step (`docs/how-it-works/numbers.md`)."""

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

    @property
    def span_ns(self) -> int:
        """Length of the step, by the name that other figures have for it."""
        return self.step_ns

    @classmethod
    def of(
        cls, step: PlainStep, recorded: TimeFigures, figures: TimeFigures | None, program: Device | None = None
    ) -> Plain:
        """Return a step of that length with its `figures`, given those of the recorded step."""
        return cls(
            **msgspec.structs.asdict(step),
            recorded_step_ns=recorded.span_ns,
            recorded_busy_ns=recorded.span_ns - recorded.buckets.idle_ns,
            buckets=None if figures is None else figures.buckets,
            exposed_copy_by_cause={} if figures is None else figures.exposed_copy_by_cause,
            exposed_comm_by_cause={} if figures is None else figures.exposed_comm_by_cause,
            idle_by_cause={} if figures is None else figures.idle_by_cause,
            program=program,
        )


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


class Device(TimeFigures, frozen=True, kw_only=True):
    """Results on one device of one trace."""

    device: int
    name: str | None
    lead_in_ns: int | None
    """Length of the lead-in; None if the trace records no launches, so that it is unknown."""
    window: Window
    main_stream: int
    """Stream with the most compute; if there is none, the busiest stream."""
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
    graphs: GraphUse | UnsetType = UNSET
    """Ops of graphs; absent if no graph was launched."""
    alone: StepRange | None = None
    """Interval of a step, or of all that is judged, without the profiler; None if `plain` has it, or it isn't a
    recording's."""

    @property
    def gpu(self) -> str:
        """Noun for its kind of device."""
        return noun_for((self.name,))


def host_parts(step: Period | PerStep | Plain) -> dict[str, int]:
    """Return the parts of a step on the host by name, which add up to it: `ops`, `communication`, and idle causes."""
    buckets = step.buckets
    assert buckets is not None
    return {"ops": buckets.compute_ns, "communication": buckets.exposed_comm_ns, **step.idle_by_cause}


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
