"""Results of the analysis, as frozen structures whose names are those of the JSON report.

All times are integer nanoseconds. A percentage of nothing is None, never 0 or 100. Values that the trace doesn't show
are None, and the trust checks say why.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from overlapscope.catalog.causes import IdleCause, Subject
from overlapscope.catalog.checks import check_by_id
from overlapscope.trace.lost import EVERYTHING, Part, in_order
from overlapscope.trace.model import OwnPeriod, TraceOrigin


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Interval `[start_ns, end_ns)` in absolute times."""

    start_ns: int
    end_ns: int


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """Partition of the window, whose five parts add up to its length exactly."""

    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    exposed_other_ns: int
    idle_ns: int

    def named(self) -> dict[str, int]:
        """Return each bucket's length by its name for readers (`exposed copy`), in order."""
        return {name.removesuffix("_ns").replace("_", " "): ns for name, ns in msgspec.structs.asdict(self).items()}


class Engines(msgspec.Struct, frozen=True, kw_only=True):
    """Working times of the engines, as lengths of unions, which may run side by side."""

    sm_ns: int
    """Compute and communication kernels together."""
    compute_ns: int
    comm_ns: int
    h2d_ns: int
    d2h_ns: int
    other_ns: int


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """Amount of work that ran side by side."""

    copy_ns: int
    hidden_copy_ns: int
    hidden_copy_pct: float | None
    serial_ns: int
    """Sum of the three engines: SM, H2D, D2H."""
    busy_ns: int
    """Union of the three engines."""
    ideal_ns: int
    """The longest of the three engines."""
    efficiency_pct: float | None
    """(serial - busy) / (serial - ideal); None if only one engine worked."""
    h2d_d2h_ns: int
    """Time in which both copy directions ran at once."""
    comm_compute_pct: float | None
    """Share of communication that ran under compute."""
    exposed_h2d_ns: int
    """H2D copies outside compute and comm. Together with `exposed_d2h_ns` it exceeds the exposed copy if both are
    exposed at once."""
    exposed_d2h_ns: int


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
    """All copies of a direction, pair of memory kinds and stream."""

    direction: Literal["h2d", "d2h"]
    source_kind: str
    target_kind: str
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
    by_step: CopiesByStep


class StallsByStep(msgspec.Struct, frozen=True, kw_only=True):
    """A host stall in each of `Device.steps`, in their order, cut at the steps' edges; calls count where they begin."""

    count: tuple[int, ...] = ()
    """Empty in reports of earlier versions."""
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
    """Exposed copies by their memory and stream; None for idle time."""
    confidence: Literal["exact", "rebuilt"]
    """`rebuilt` if it is based on an event edge that the trace doesn't state."""
    example: Window
    """The longest single case."""
    by_step: EvidenceByStep = EvidenceByStep(count=(), time_ns=())
    """Empty in reports of earlier versions."""


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """A step or a range on the device."""

    name: str
    window: Window
    span_ns: int
    buckets: Buckets
    engines: Engines
    overlap: Overlap
    exposed_copy_by_cause: dict[str, int]
    idle_by_cause: dict[str, int]
    partial: bool
    """True if it began in the lead-in, so that a part of it was cut off."""


class PerStep(msgspec.Struct, frozen=True, kw_only=True):
    """An average step of a device: each length is the mean over the judged steps, each percentage a ratio of sums."""

    steps: int
    """Number of judged steps: whole ones, without a warm-up step at first and without the last step."""
    first: int
    """Number of the first of them in `Device.steps`; the others follow."""
    span_ns: int
    buckets: Buckets
    engines: Engines
    overlap: Overlap
    exposed_copy_by_cause: dict[str, int]
    idle_by_cause: dict[str, int]


class KernelsByStep(msgspec.Struct, frozen=True, kw_only=True):
    """A group of kernels in each of `Device.steps`, in their order; kernels count where they begin."""

    count: tuple[int, ...]
    time_ns: tuple[int, ...]


class KernelGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of the same name launched by the same op."""

    kernel: str
    op: str | None
    """Innermost CPU op around the launch."""
    comm: bool
    count: int
    time_ns: int
    """Sum of the kernels' own durations, even if they ran side by side."""
    by_step: KernelsByStep


class StreamUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one stream."""

    stream: int
    compute_ns: int
    comm_ns: int
    h2d_ns: int
    d2h_ns: int
    other_ns: int
    ops: int


PlainOrigin = Literal["measured", "told", "estimated"]
"""Origin of a plain step's length: timed by the recorder, told by the user, or estimated from the recording."""


class Plain(msgspec.Struct, frozen=True, kw_only=True):
    """One device without the profiler: the time of a step (`docs/how-it-works/numbers.md`)."""

    step_ns: int
    low_ns: int
    """Lower bound of the interval, with `low_ns <= step_ns <= high_ns`."""
    high_ns: int
    origin: PlainOrigin
    recorded_step_ns: int
    """Average step in the recording; the time after the lead-in if no step is judged."""
    buckets: Buckets | None
    """Buckets of a step, which add up to `step_ns`; None if the recording can't be replayed and took less time than its
    ops do."""
    exposed_copy_by_cause: dict[str, int]
    """Exposed copy by cause, which adds up to the bucket."""
    idle_by_cause: dict[str, int]
    """Idle time by cause, which adds up to the bucket. `unknown` has the time that no replay explains."""
    program: Device | None = None
    """Figures of the recording replayed with plain steps; None if nothing could be replayed.

    Verdict and findings are about them; budgets, diffs and baselines only if the plain step isn't estimated.
    """


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
    per_step: PerStep | None = None
    """An average step; None if no step is whole, or a single step or range is analysed."""
    streams: tuple[StreamUse, ...]
    copies: tuple[CopyGroup, ...]
    exposed_copy_by_cause: dict[str, int]
    idle_by_cause: dict[str, int]
    evidence: tuple[Evidence, ...]
    host_stalls: tuple[HostStall, ...]
    steps: tuple[Period, ...]
    ranges: tuple[Period, ...]
    kernels: tuple[KernelGroup, ...]
    """Kernels, longest first."""
    plain: Plain | None = None
    """Figures without the profiler; None if they are unknown, or a single step or range is analysed."""


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


def efficiency_shown(figures: Measured) -> float | None:
    """Return the overlap efficiency for readers; also None if copies take too little time."""
    return figures.overlap.efficiency_pct if copies_matter(figures) else None


def hidden_copy_shown(figures: Measured) -> float | None:
    """Return the hidden share of copies for readers; also None if copies take too little time."""
    return figures.overlap.hidden_copy_pct if copies_matter(figures) else None


def missing_ns(figures: Device | Period) -> int:
    """Return the part of the idle bucket in which ops are missing, so that the GPU may not have been idle."""
    return figures.idle_by_cause.get(IdleCause.MISSING_OPS, 0)


def partition(figures: Device | Period) -> dict[str, int]:
    """Return the buckets by their names for readers; they add up to the span.

    Any time with missing ops is taken out of idle.
    """
    parts, missing = figures.buckets.named(), missing_ns(figures)
    return parts | {"idle": parts["idle"] - missing, "missing ops": missing} if missing else parts


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trust check of a trace."""

    id: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    lost: tuple[Part, ...] | None = None
    """Parts of the recording that may be lost or wrong, so that everything based on them is unknown; null if there are
    none."""

    @classmethod
    def ok(cls, id: str, detail: str) -> Check:
        """Return a check that found nothing."""
        return cls(id=id, status="ok", detail=detail)

    @classmethod
    def warn(cls, id: str, detail: str, lost: Iterable[Part] | None = None) -> Check:
        """Return a check that makes some numbers less exact."""
        return cls(id=id, status="warn", detail=detail, lost=None if lost is None else in_order(lost))

    @classmethod
    def fail(cls, id: str, detail: str, lost: Iterable[Part] | None = None) -> Check:
        """Return a check that makes some numbers unknown."""
        return cls(id=id, status="fail", detail=detail, lost=None if lost is None else in_order(lost))

    @property
    def lost_parts(self) -> frozenset[Part]:
        """Return `lost`.

        Reports of earlier versions don't state it; for them it is everything if anything may be lost.
        """
        if self.lost is not None:
            return frozenset(self.lost)
        unsaid = self.status == "fail" or (self.status == "warn" and check_by_id(self.id).warns_of_loss)
        return EVERYTHING if unsaid else frozenset()


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


class HostStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step on the host, from its mark to the next. Its three parts add up to it."""

    name: str
    window: Window
    span_ns: int
    loading_ns: int
    """Time inside the DataLoader's next."""
    ops_ns: int
    """Time in other CPU ops."""
    rest_ns: int
    """Time in neither: Python, and anything that the profiler doesn't record."""


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


class HostPlain(msgspec.Struct, frozen=True, kw_only=True):
    """Length of a step without the profiler, timed by the recorder."""

    step_ns: int
    low_ns: int
    high_ns: int
    mean_ns: int
    """Mean of all steps that were timed; the others are based on medians."""


class HostUse(msgspec.Struct, frozen=True, kw_only=True):
    """Host time of a program that runs nothing on a GPU."""

    by_steps: bool
    """False if no steps are marked; then the only one of `steps` is the whole recording."""
    steps: Annotated[tuple[HostStep, ...], msgspec.Meta(min_length=1)]
    loader: Literal["none", "own-thread", "workers"]
    """Maker of the DataLoader's batches: no loader, the thread that marks the steps, or worker processes."""
    ops: tuple[OpTime, ...]
    """Ops on that thread, in the steps, outside loading: the longest first, at most 20 names."""
    threads: tuple[ThreadUse, ...]
    """Threads in the steps: the thread of the steps first, then the busiest."""
    plain: HostPlain | None = None
    """None if the recorder timed too few steps."""


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
    origin: TraceOrigin | UnsetType = UNSET
    """Origin of the recording, if the recorder noted it; absent otherwise."""
    step_source: str | UnsetType = UNSET
    """Mark that ended the steps, such as `calls of ResNet.forward`; absent if the recorder did not note it."""
    period: OwnPeriod | UnsetType = UNSET
    """Period by which steps were found; absent where the recording marks its steps, or has none."""
