"""Results on groups of ops: copies, kernels, blocking calls of the host, and evidence for causes.

All times are integer nanoseconds. Values that the trace doesn't show are None.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.analysis.figures import Window
from overlapscope.catalog.causes import Subject

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


class KernelGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of the same name launched by the same op."""

    kernel: str
    op: str | None
    """Innermost CPU op around the launch."""
    comm: bool
    unclear: bool = False
    """True if the kernels count as compute, but their name is like that of communication."""
    count: int
    time_ns: int
    """Sum of the kernels' own durations, even if they ran side by side."""
    judged_count: int
    """Number of kernels that begin after the lead-in."""
    judged_time_ns: int
    """Sum of the durations of these kernels."""
    by_step: KernelsByStep


Beside = Literal["communication", "copies"]
"""Work that runs beside compute kernels."""


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
