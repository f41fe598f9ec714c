"""What the analysis finds, as frozen structures; their names are those of the JSON report.

All times are integer nanoseconds. A percentage of nothing is None, never 0 or 100. What cannot be known from
the trace is None and the trust checks say why.
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
    """`[start_ns, end_ns)`, absolute."""

    start_ns: int
    end_ns: int


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of the window; the five add up to its length exactly."""

    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    exposed_other_ns: int
    idle_ns: int

    def named(self) -> dict[str, int]:
        """Each bucket's length by the name that people read, in order: `exposed copy`."""
        return {name.removesuffix("_ns").replace("_", " "): ns for name, ns in msgspec.structs.asdict(self).items()}


class Engines(msgspec.Struct, frozen=True, kw_only=True):
    """How long each engine worked: lengths of unions, which may run side by side."""

    sm_ns: int
    """Compute and communication kernels together."""
    compute_ns: int
    comm_ns: int
    h2d_ns: int
    d2h_ns: int
    other_ns: int


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """How much ran side by side."""

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
    """(serial - busy) / (serial - ideal); None where only one engine worked."""
    h2d_d2h_ns: int
    """Both copy directions at once."""
    comm_compute_pct: float | None
    """Share of communication that ran under compute."""
    exposed_h2d_ns: int
    """H2D copies outside compute and comm; with `exposed_d2h_ns` more than the exposed copy where both are exposed at
    once."""
    exposed_d2h_ns: int


class CopiesByStep(msgspec.Struct, frozen=True, kw_only=True):
    """A group of copies in each of `Device.steps`, in their order."""

    count: tuple[int, ...]
    """Copies that begin in the step."""
    bytes: tuple[int, ...]
    """Of those among them that state their size."""
    duration_ns: tuple[int, ...]
    """Sum of the durations of the same copies."""
    time_ns: tuple[int, ...]
    """Length of the union, cut at the step's edges."""
    exposed_ns: tuple[int, ...]


class CopyGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All copies of one direction, pair of memory kinds and stream."""

    direction: Literal["h2d", "d2h"]
    source_kind: str
    target_kind: str
    stream: int
    count: int
    bytes: int | None
    """None where no copy of the group states its size."""
    time_ns: int
    """Length of the union of the group's copies."""
    exposed_ns: int
    gb_per_s: float | None
    """1e9 bytes per second over the copies' own durations."""
    judged_bytes: int
    """Of the copies that begin behind the lead-in and state their size."""
    judged_duration_ns: int
    """Sum of the durations of the same copies."""
    by_step: CopiesByStep


class StallsByStep(msgspec.Struct, frozen=True, kw_only=True):
    """A host stall in each of `Device.steps`, in their order, cut at the steps' edges."""

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
    """GPU idle time that followed because the host could not launch meanwhile: the cost."""
    where: str | None
    """Python line, where recorded with stacks."""
    by_step: StallsByStep


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Where a cause's time comes from: the calls behind it, largest first, with the longest single case."""

    subject: Subject
    cause: str
    time_ns: int
    count: int
    op: str | None
    """The CPU op behind it: the one that issued the copy, or during which the GPU was idle."""
    call: str | None
    """The runtime call behind it."""
    where: str | None
    """Python line, where recorded with stacks."""
    detail: str
    """One sentence: what was seen."""
    confidence: Literal["exact", "rebuilt"]
    """`rebuilt` where it rests on an event edge that the trace does not state."""
    example: Window
    """The longest single case."""


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
    """It began in the lead-in, and what lay there was cut off."""


class KernelsByStep(msgspec.Struct, frozen=True, kw_only=True):
    """A group of kernels in each of `Device.steps`, in their order: those that begin in it."""

    count: tuple[int, ...]
    time_ns: tuple[int, ...]


class KernelGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of one name that one op launched."""

    kernel: str
    op: str | None
    """Innermost CPU op around the launch."""
    comm: bool
    count: int
    time_ns: int
    """Sum of the kernels' own durations, whether they ran side by side or not."""
    by_step: KernelsByStep


class StreamUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one stream did."""

    stream: int
    compute_ns: int
    comm_ns: int
    h2d_ns: int
    d2h_ns: int
    other_ns: int
    ops: int


PlainOrigin = Literal["measured", "told", "estimated"]
"""How the length of a plain step is known: timed by the recorder, told by the user, or estimated from the recording."""


class Plain(msgspec.Struct, frozen=True, kw_only=True):
    """One device while nothing is recorded: what a step of the program takes then (`docs/how-it-works/numbers.md`)."""

    step_ns: int
    low_ns: int
    """`low_ns <= step_ns <= high_ns`: how sure it is."""
    high_ns: int
    origin: PlainOrigin
    recorded_step_ns: int
    """What a step took in the recording: the median of those whose end is known; without steps the window."""
    buckets: Buckets | None
    """Of a step, adding up to `step_ns`; None where the recording cannot be replayed and took less than its ops do."""
    exposed_copy_by_cause: dict[str, int]
    """Adds up to the bucket."""
    idle_by_cause: dict[str, int]
    """Likewise. `unknown` holds what no replay explains."""
    program: Device | None = None
    """The figures of the recording replayed with its steps as long as plain ones, which is what verdict, budgets, diffs
    and baselines speak of; None where the plain step is only estimated, or nothing could be replayed."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one device in one trace."""

    device: int
    name: str | None
    span_ns: int
    lead_in_ns: int | None
    """None where the trace records no launches, so that it cannot be told."""
    window: Window
    main_stream: int
    """The stream with the most compute; where there is none, the busiest."""
    buckets: Buckets
    engines: Engines
    overlap: Overlap
    judged: Period | None
    """The same without the lead-in; None where that is all there is."""
    streams: tuple[StreamUse, ...]
    copies: tuple[CopyGroup, ...]
    exposed_copy_by_cause: dict[str, int]
    idle_by_cause: dict[str, int]
    evidence: tuple[Evidence, ...]
    host_stalls: tuple[HostStall, ...]
    steps: tuple[Period, ...]
    ranges: tuple[Period, ...]
    kernels: tuple[KernelGroup, ...]
    """Longest first."""
    plain: Plain | None = None
    """The same while nothing is recorded; None where it is not known at all, or a step or range is looked at alone."""


COPIES_MATTER_FROM = 0.01
"""Of the span: how well copies hide says nothing about a program in which they take less."""


class Measured(Protocol):
    """A span of a device and how much ran side by side in it: a device, a period, a variant of the laboratory."""

    @property
    def span_ns(self) -> int: ...
    @property
    def overlap(self) -> Overlap: ...


def copies_matter(figures: Measured) -> bool:
    """Whether copies take long enough for percentages of them to say anything."""
    return figures.overlap.copy_ns >= max(1, COPIES_MATTER_FROM * figures.span_ns)


def efficiency_shown(figures: Measured) -> float | None:
    """The overlap efficiency for people; None as well where copies are too little to matter."""
    return figures.overlap.efficiency_pct if copies_matter(figures) else None


def hidden_copy_shown(figures: Measured) -> float | None:
    """The share of copies that is hidden, for people; None as well where copies are too little to matter."""
    return figures.overlap.hidden_copy_pct if copies_matter(figures) else None


def missing_ns(figures: Device | Period) -> int:
    """How much of the idle bucket is time in which ops are missing: nobody knows whether the GPU was idle then."""
    return figures.idle_by_cause.get(IdleCause.MISSING_OPS, 0)


def partition(figures: Device | Period) -> dict[str, int]:
    """The buckets by the names that people read, with what ops are missing from taken out of idle where there is any.
    They add up to the span."""
    parts, missing = figures.buckets.named(), missing_ns(figures)
    return parts | {"idle": parts["idle"] - missing, "missing ops": missing} if missing else parts


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One question asked of a trace before its numbers are believed."""

    id: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    lost: tuple[Part, ...] | None = None
    """The parts of the recording of which some may be lost or wrong, so that what rests on them is unknown; null where
    the check speaks of none."""

    @classmethod
    def ok(cls, id: str, detail: str) -> Check:
        """Nothing is wrong."""
        return cls(id=id, status="ok", detail=detail)

    @classmethod
    def warn(cls, id: str, detail: str, lost: Iterable[Part] | None = None) -> Check:
        """Some numbers are less exact."""
        return cls(id=id, status="warn", detail=detail, lost=None if lost is None else in_order(lost))

    @classmethod
    def fail(cls, id: str, detail: str, lost: Iterable[Part] | None = None) -> Check:
        """Some numbers are unknown."""
        return cls(id=id, status="fail", detail=detail, lost=None if lost is None else in_order(lost))

    @property
    def lost_parts(self) -> frozenset[Part]:
        """`lost`; in a report of an earlier version, which did not say, everything where it may be anything."""
        if self.lost is not None:
            return frozenset(self.lost)
        unsaid = self.status == "fail" or (self.status == "warn" and check_by_id(self.id).warns_of_loss)
        return EVERYTHING if unsaid else frozenset()


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How far the numbers can be believed."""

    verdict: Literal["trusted", "degraded", "unusable"]
    checks: tuple[Check, ...]

    @property
    def lost(self) -> frozenset[Part]:
        """The parts of the recording of which some may be lost or wrong, by all checks."""
        return frozenset().union(*(check.lost_parts for check in self.checks))


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace was recorded on and how, as far as it says; None and absent where it does not."""

    gpus: tuple[str, ...] = ()
    """Product names of the devices that worked, sorted, each once."""
    recorder: str = "kineto"
    """What recorded it: `kineto` is torch.profiler, `nsys` Nsight Systems."""
    world_size: int | None = None
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    """The highest CUDA version that the driver supports."""
    flags: dict[str, bool] = {}
    """What was recorded besides times: `sync_events`, `stacks`, `shapes`, `memory`."""


class HostStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step on the host, from its mark to the next; its three parts add up to it."""

    name: str
    window: Window
    span_ns: int
    loading_ns: int
    """Inside the DataLoader's next."""
    ops_ns: int
    """In CPU ops besides."""
    rest_ns: int
    """In neither: Python, and whatever the profiler does not record."""


class OpTime(msgspec.Struct, frozen=True, kw_only=True):
    """The outermost CPU ops of one name."""

    op: str
    count: int
    time_ns: int


class ThreadUse(msgspec.Struct, frozen=True, kw_only=True):
    """How long one thread was in CPU ops."""

    thread: int
    steps: bool
    """Whether it is the one that marks the steps."""
    busy_ns: int


class HostUse(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a program goes that does nothing on a GPU."""

    by_steps: bool
    """False where none are marked: the only one of `steps` is the whole recording then."""
    steps: Annotated[tuple[HostStep, ...], msgspec.Meta(min_length=1)]
    loader: Literal["none", "own-thread", "workers"]
    """Who makes the DataLoader's batches: no loader, the thread that marks the steps, or processes beside it."""
    ops: tuple[OpTime, ...]
    """On that thread, in the steps, outside loading; the longest first, at most 20 names."""
    threads: tuple[ThreadUse, ...]
    """In the steps; that of the steps first, then the busiest."""


class TraceResult(msgspec.Struct, frozen=True, kw_only=True):
    """One trace, that is one process."""

    source: str
    rank: int | None
    trust: Trust
    devices: tuple[Device, ...]
    environment: Environment
    predicted_by: tuple[str, ...] | None = None
    """The changes with which `overlapscope whatif` predicted it; null for a recording."""
    host: HostUse | None = None
    """Of a trace without GPU activity: where the host's time goes; null for all others."""
    origin: TraceOrigin | UnsetType = UNSET
    """What was recorded when, where the recorder noted it; absent where it did not."""
    step_source: str | UnsetType = UNSET
    """What ended the steps, such as `calls of ResNet.forward`; absent where the recorder did not note it."""
    period: OwnPeriod | UnsetType = UNSET
    """Period by which steps were found; absent where the recording marks its steps, or has none."""
