"""Results on communication by process group. Times are integer nanoseconds."""

from __future__ import annotations

import msgspec


class CommTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of communication, summed over ranks and steps.

    `busy_ns` is both `hidden_ns + exposed_ns` and `waiting_ns + transfer_ns + unjudged_ns`; the last three fields add
    up to `exposed_ns`.
    """

    busy_ns: int
    """Time in which at least one kernel ran."""
    hidden_ns: int
    """Part beside compute."""
    exposed_ns: int
    """Part without compute."""
    waiting_ns: int
    """Part before the last rank had arrived."""
    transfer_ns: int
    """Part after the last rank had arrived."""
    unjudged_ns: int
    """Part whose arrivals could not be compared between ranks."""
    exposed_waiting_ns: int
    """Exposed part of `waiting_ns`."""
    exposed_transfer_ns: int
    """Exposed part of `transfer_ns`."""
    exposed_unjudged_ns: int
    """Exposed part of `unjudged_ns`."""


class GroupCollective(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of a process group, over the ranks and steps of `Communication`."""

    collective: str
    """Name as recorded; where not recorded, that of the range that launched it, or the kernel's."""
    group: str
    """Name of the process group; empty where not recorded."""
    description: str
    """Description of the group, such as `mesh_dp`; empty where not recorded."""
    group_ranks: str
    """Ranks of the group as recorded; empty where not recorded."""
    group_size: int | None
    ranks: int
    """Number of ranks that ran it."""
    count: int
    """Number of kernels of all ranks."""
    bytes: int | None
    """Sum of the kernels' messages, each as large as the rank's larger buffer; None if unknown."""
    time: CommTime
    transferred_bytes: int
    """Messages of the collectives whose bandwidth is measured, counted once for the group."""
    transferred_ns: int
    """Time from the last arrival to the end in these."""
    bus_gb_per_s: float | None
    """`transferred_bytes` per `transferred_ns`, times the factor of nccl-tests for this collective: comparable with the
    speed of a link."""
    dimension: int
    """Place of its group in `Communication.dimensions`."""


class CommDimension(msgspec.Struct, frozen=True, kw_only=True):
    """Process groups alike, such as those of tensor parallelism, and their communication."""

    name: str
    """Their description; without one, the collectives that take most of the time, and the size. Empty for kernels of
    unknown groups."""
    groups: int
    """Number of groups."""
    group_size: int | None
    group_ranks: tuple[tuple[int, ...], ...]
    """Ranks of each group; empty where unknown."""
    spans: tuple[int, ...]
    """Places in `Mesh.shape` that a group spans; empty if unknown, or without such a place."""
    ranks: int
    """Number of ranks that communicate in them."""
    time: CommTime
    """Time in which any of their collectives ran."""


class DeviceMesh(msgspec.Struct, frozen=True, kw_only=True):
    """Arrangement of the ranks along dimensions, rebuilt from the ranks of process groups."""

    shape: tuple[int, ...]
    """Sizes of the dimensions, the one whose ranks are farthest apart first; empty if unknown."""
    reason: str
    """Reason if it is unknown, as a clause; otherwise empty."""


class SlowGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of a group that is slower than in the other groups of its dimension, with messages of a size."""

    collective: str
    """As in `GroupCollective`, and so are the next three."""
    group: str
    description: str
    group_ranks: str
    dimension: int
    """Place in `Communication.dimensions`."""
    bytes: int
    """Size of each rank's message."""
    count: int
    """Number of collectives."""
    bus_gb_per_s: float
    """Bus bandwidth of the median transfer, by each collective's shortest kernel."""
    peers: int
    """Number of other groups."""
    peers_gb_per_s: float
    """The same of their median."""
    lost_ns: int
    """Time that all its transfers took longer than at that bandwidth."""


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of the compared ranks in the judged steps that all of them have."""

    ranks: int
    steps: int
    """Number of steps; 0 if there are none in common, so that all time after the lead-in counts."""
    time: CommTime
    """All communication. Collectives that ran at the same time count once."""
    exposed_by_cause: dict[str, int]
    """Causes, which add up to `time.exposed_ns`."""
    rows: tuple[GroupCollective, ...]
    """Longest exposed first."""
    dimensions: tuple[CommDimension, ...]
    """Longest exposed first."""
    mesh: DeviceMesh | None
    """None without process groups."""
    slow_groups: tuple[SlowGroup, ...]
    """Groups slower than their peers, those that lost most first."""
