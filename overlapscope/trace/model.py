"""The Trace: a profiler's recording as columns.

All times are integer nanoseconds since the epoch of the recording (absolute where the source knows it). Intervals are
half-open `[start_ns, end_ns)`. Every table is sorted by start and, within equal starts, longest first, so that a parent
stands before its children.

A table's columns are numpy arrays of equal length; each docstring states its unit and the meaning of -1. Strings are
stored once in `names`; a `name_id` column indexes it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict

from overlapscope.base import columns
from overlapscope.base.columns import Columns, Integers, mask_of
from overlapscope.base.grouping import distinct
from overlapscope.base.kept import kept
from overlapscope.base.marks import is_step_name
from overlapscope.base.words import noun_for
from overlapscope.trace.host_activity import HostActivity

if TYPE_CHECKING:
    import pandas as pd

I64 = columns.I64
I32 = columns.I32
F64 = columns.F64
I8 = columns.I8
Bool = columns.Bool
Index = columns.Index


class Kind(IntEnum):
    """Kind of a GPU op (`docs/how-it-works/numbers.md`)."""

    COMPUTE = 0
    COMM = 1
    H2D = 2
    D2H = 3
    OTHER = 4
    P2P = 5


class Memory(IntEnum):
    """Memory on one side of a copy. `UNKNOWN` where the profiler does not state it (ROCm, XPU)."""

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2
    DEVICE = 3
    MANAGED = 4
    ARRAY = 5


Framework = Literal["pytorch", "jax", "cuda"]
"""Framework of a program, which selects the wording of advice. `cuda` is CUDA C++ or anything else."""


class Sync(IntEnum):
    """Kind of a synchronization record."""

    STREAM_WAIT_EVENT = 0
    EVENT = 1
    STREAM = 2
    CONTEXT = 3


_FEW_NAMES: Final = 4
"""Maximum number of names for which comparing each row with all of them is faster than looking it up."""


class TraceTable(Columns, frozen=True, weakref=True):
    """Columns that every table has."""

    labels: ClassVar[dict[str, type[IntEnum]]] = {}
    """Enumerations whose values the columns hold, by column."""

    names: tuple[str, ...]
    """String table of the trace. It is shared, and not a column."""
    start_ns: I64
    end_ns: I64
    name_id: I32
    place: I32
    """Index of the event in the source's list of events."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows)"

    def name(self, row: int) -> str:
        name: str = self.names[int(self.name_id[row])]
        return name

    def named(self, judge: Callable[[str], object]) -> Bool:
        """Return a mask of the rows whose names pass; each distinct name is judged once."""
        passing = [name_id for name_id in _names_in(self) if judge(self.names[name_id])]
        if not passing:
            return np.zeros(len(self), np.bool_)
        if len(passing) <= _FEW_NAMES:
            few: Bool = np.logical_or.reduce([self.name_id == name_id for name_id in passing])
            return few
        return mask_of(np.array(passing), len(self.names)).take(self.name_id)

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with names and enumerations as text; -1 stays -1."""
        import pandas as pd

        frame: dict[str, Any] = {}
        for column, values in asdict(self).items():
            if column == "names":
                continue
            if column == "name_id":
                frame["name"] = pd.Categorical.from_codes(values, categories=pd.Index(self.names))
            elif column in self.labels:
                words = pd.Index([member.name.lower() for member in self.labels[column]])
                frame[column] = pd.Categorical.from_codes(values, categories=words)
            else:
                frame[column] = values
        return pd.DataFrame(frame)


def stream_keys(device: Integers, stream: Integers) -> I64:
    """Return a number for each row's stream that is unique across devices, whose streams share numbers."""
    keys: I64 = device.astype(np.int64) << 32 | (stream.astype(np.int64) & 0xFFFFFFFF)
    return keys


def split_stream_key(key: int) -> tuple[int, int]:
    """Return device and stream of one of `stream_keys`."""
    return key >> 32, ((key & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


@kept()
def _names_in(table: TraceTable) -> list[int]:
    """Return the distinct `name_id` values of a table, ascending."""
    ids: list[int] = np.flatnonzero(mask_of(table.name_id, len(table.names))).tolist()
    return ids


class GpuOps(TraceTable, frozen=True):
    """Kernels, copies and memsets."""

    labels: ClassVar = {"kind": Kind, "source_kind": Memory, "target_kind": Memory}

    kind: I8
    device: I32
    """Device ordinal; -1 where the source names none."""
    stream: I32
    """Stream id within the device; 0 is a stream; -1 where the source names none."""
    correlation: I64
    """Joins the op to the runtime call that launched it; -1 where missing. Not unique: a graph launch has one
    correlation for all its ops."""
    launch: I64
    """Row in `Trace.runtime_calls` of the launching call; -1 where it was not recorded."""
    bytes: I64
    """Bytes moved; -1 where not a memory operation or not recorded."""
    source_kind: I8
    target_kind: I8
    stated_gb_per_s: F64
    """Bandwidth of a memory operation according to the profiler; -1 where it states none. Our figures come from `bytes`
    and the times instead."""
    blocks: I64
    """Number of thread blocks in a kernel's grid; -1 where not a kernel or not recorded."""
    block_threads: I64
    """Number of threads in each of them; -1 where not a kernel or not recorded."""
    source_device: I32
    """Device that a copy reads; -1 where not recorded, which most sources do only for peer copies."""
    target_device: I32
    """Device that a copy writes; -1 where not recorded."""
    graph_node: I64
    """Number of the op's node in the order of the capture; -1 outside of graphs, or if not recorded."""

    @property
    def is_copy(self) -> Bool:
        """Return a mask of the copies between host and device."""
        copies: Bool = (self.kind == Kind.H2D) | (self.kind == Kind.D2H)
        return copies

    @property
    def host_memory(self) -> I8:
        """Return the memory on the host's side of each copy; for other ops, their target."""
        return np.where(self.kind == Kind.H2D, self.source_kind, self.target_kind)


class HostEvents(TraceTable, frozen=True):
    """CPU ops, `record_function` annotations, Python frames and profiler overhead, by thread."""

    thread: I64
    """Operating-system thread id as recorded; -1 where unknown. Not necessarily positive or unique across processes."""


class RuntimeCalls(HostEvents, frozen=True):
    """Calls into the device runtime or driver."""

    correlation: I64
    """Correlation with GPU ops; -1 where missing."""


class Syncs(TraceTable, frozen=True):
    """Synchronization records (`cuda_sync`, `xpu_sync`): never work, always waiting."""

    labels: ClassVar = {"kind": Sync}

    kind: I8
    device: I32
    stream: I32
    """Stream that waits (stream wait), or that the host waits for (stream sync); -1 for none."""
    correlation: I64
    """Correlation of the runtime call that made the host or stream wait; -1 where missing."""
    event: I64
    """Id of the event waited for; -1 where not recorded."""
    source_stream: I32
    """Stream that the event was recorded on; -1 where not recorded (CUDA 13)."""
    source_device: I32
    """Device of that stream; -1 where not recorded."""
    record_correlation: I64
    """Correlation of the call that recorded the event; -1 where not recorded (CUDA 13)."""


class DeviceAnnotations(TraceTable, frozen=True):
    """`record_function` ranges as the profiler copied them to the device's lanes: never work."""

    device: I32
    stream: I32


class Collectives(TraceTable, frozen=True):
    """Collectives of communication kernels, one row for each kernel that states its collective.

    `start_ns` and `end_ns` are the kernel's, `name_id` is the collective's name (`allreduce`). The keys come from
    PyTorch's `ParamCommsUtils.cpp`.
    """

    device: I32
    stream: I32
    correlation: I64
    """Correlation of the kernel, as in `Trace.gpu_ops`."""
    group: I32
    """Name of the process group, as a row of `names`; -1 where missing."""
    ranks: I32
    """Ranks of the group as text (`[0, 1]`; PyTorch shortens long lists), as a row of `names`; -1 where missing."""
    group_size: I32
    """Number of ranks in the group; -1 where missing."""
    elements_in: I64
    """Number of input elements; -1 where missing."""
    elements_out: I64
    """Number of output elements; -1 where missing."""
    dtype: I32
    """Type of the elements, as a row of `names`; -1 where missing."""
    sequence: I64
    """Number of the collective within its group; -1 where missing."""
    description: I32
    """Description of the process group (`mesh_dp`), as a row of `names`; -1 where missing."""
    parts_in: I32
    """Rows of the first dimension sent to each rank (`[7, 1]`; `[]` if even), as a row of `names`; -1 where missing."""
    parts_out: I32
    """Rows of the first dimension received from each rank, in the same form."""


class Damage(Struct, frozen=True):
    """Damage of the source, and losses while reading it. All values are zero for a clean file."""

    truncated: bool = False
    """True if the file ends before its JSON does, or its packing is broken; `examples` states which."""
    lost_bytes: int = 0
    """Bytes of the source that hold no readable event."""
    lost_events: int = 0
    """Number of events that could not be read."""
    repaired_events: int = 0
    """Number of events that were read although they were not valid JSON or held values of the wrong type."""
    impossible_times: int = 0
    """Number of events of any table that were left out because their time is negative, absurd or missing."""
    impossible_by: dict[str, int] = field(default_factory=dict)
    """Number of such events by part of the recording (`overlapscope.trace.lost`)."""
    impossible_sizes: dict[str, int] = field(default_factory=dict)
    """Number of GPU ops whose stated size cannot be moved in their time and is taken as unknown, by part."""
    examples: tuple[str, ...] = ()
    """Up to three short descriptions of the damage."""


class TimedSteps(Struct, frozen=True):
    """Steps that were timed without the profiler, in order; empty where there were none."""

    host_ns: tuple[int, ...] = ()
    """Length of each step from mark to mark on the host's clock."""
    device_ns: tuple[int, ...] = ()
    """Length of each step between CUDA events recorded at the marks on the current stream; empty without a GPU."""


class ClockedSteps(Struct, frozen=True):
    """All steps without the profiler at the pace of the recording, on the host's clock."""

    lengths: tuple[tuple[int, int], ...] = ()
    """Steps of about the same length, the shortest first: their number, and their time in nanoseconds."""
    recorded_ns: int = 0
    """Longest judged step of the recording on the same clock, in nanoseconds."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(steps for steps, _ in self.lengths)

    @property
    def span_ns(self) -> int:
        """Time of all of them, in nanoseconds."""
        return sum(span_ns for _, span_ns in self.lengths)


class PlainSteps(Struct, frozen=True):
    """Steps without the profiler: timed before and after the recording, and all (`docs/reference/recording.md`)."""

    before: TimedSteps = TimedSteps()
    after: TimedSteps = TimedSteps()
    clocked: ClockedSteps = ClockedSteps()


class TraceOrigin(Struct, frozen=True, kw_only=True):
    """Origin of a recording according to the recorder; fields are None where it did not know."""

    at_ns: int | None = None
    """Start of the recording, in nanoseconds since 1970."""
    job: str | None = None
    """Name of the script."""
    commit: str | None = None
    """Commit of the script's working tree, with the suffix `-dirty` if it had changes."""
    branch: str | None = None


MIN_COVERED_PCT: Final = 90
"""Minimum share of a recording that repeats cover to be steps."""


HOST_OPS: Final = "CPU ops"
"""Sequence that a recording without a GPU repeats."""


class OwnPeriod(Struct, frozen=True, kw_only=True):
    """Sequence that a recording without steps repeats; each repetition is a step if together they cover enough."""

    of: str
    """`kernel launches`, or `CPU ops` without a GPU."""
    length: int
    """Median number of launches or ops in a repeat."""
    repeats: int
    """Number of repeats."""
    regular_pct: float
    """Share of the launches or ops that the typical repeat has as well."""
    covered_pct: float
    """Share of the GPU's recording after the lead-in that lies in repeats, of several GPUs the least, if that is too
    little; of the host's, without a GPU."""

    @property
    def is_step(self) -> bool:
        """Return whether the repeats are steps, because they cover nearly all of the recording."""
        return self.covered_pct >= MIN_COVERED_PCT

    def sentence(self, gpu: str) -> str:
        """Return whether and how steps were found, and how much of the recording of the GPU, so named, they cover."""
        # Rounded down, so that 90% and 100% are exact.
        what = f"{self.length:,} {self.of}"
        whole = "the recording" if self.of == HOST_OPS else f"the {gpu}'s recording"
        covered = f"{int(self.covered_pct)}% of {whole}"
        if self.is_step:
            return (
                f"Steps were found by what repeats: every {what} repeat, {self.repeats:,} times; "
                f"{self.regular_pct:.0f}% regular. They cover {covered}."
            )
        return f"{what} repeat {self.repeats:,} times, but cover only {covered}, so they are not taken for steps."


class Trace(Struct, frozen=True, eq=False, weakref=True):
    """The recording of one process.

    Build it with a source (`overlapscope.load`), not by hand.
    """

    source: str
    """Path of the file, as the user gave it."""
    names: tuple[str, ...]
    gpu_ops: GpuOps
    runtime_calls: RuntimeCalls
    cpu_ops: HostEvents
    annotations: HostEvents
    """`record_function` ranges on the host, including steps."""
    python_frames: HostEvents
    """Python frames; empty unless recorded with stacks."""
    overheads: HostEvents
    """Time that the profiler itself took."""
    syncs: Syncs
    """Synchronization records; empty unless recorded with sync events."""
    device_annotations: DeviceAnnotations
    collectives: Collectives
    device_names: dict[int, str]
    """Product names by ordinal, for the devices that the source lists."""
    rank: int | None = None
    world_size: int | None = None
    process_groups: int | None = None
    """Number of process groups, one of which has all ranks; None where the source does not state it."""
    start_ns: int = -1
    """Start of the recording; -1 where the source does not state it."""
    end_ns: int = -1
    """End of the recording; -1 where the source does not state it."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions that the source states, such as `cuda_runtime`."""
    flags: dict[str, bool] = field(default_factory=dict)
    """Options of the recording that the source states, such as `record_shapes`."""
    damage: Damage = field(default_factory=Damage)
    warm_up_steps: int = 0
    """Number of first steps that were recorded only to fill the pipeline, and must not be judged."""
    base_ns: int = 0
    """Nanoseconds that were added to the file's own times; needed to write such times again."""
    predicted_by: tuple[str, ...] | None = None
    """Changes with which `overlapscope whatif` predicted the trace; None for a recording."""
    plain_steps: PlainSteps = field(default_factory=PlainSteps)
    """Step times without the profiler, as far as the recorder measured them."""
    host_activity: HostActivity = HostActivity()
    """Activity of the host in steps without the profiler, as far as the recorder sampled it."""

    recorder: str = "kineto"
    """Source that recorded the trace (`overlapscope.reading.source`)."""
    framework: Framework = "pytorch"
    """Framework of the program, as far as the recording shows."""
    steps_by: str = ""
    """Name of the ranges that are the steps; empty if torch.profiler marked the steps, or there are none."""
    step_source: str = ""
    """End of a step according to the recorder, such as `calls of ResNet.forward`; empty if not noted."""
    thread_names: dict[int, str] = field(default_factory=dict)
    """Python's names of threads by their numbers, as far as the recorder noted them."""
    found: dict[str, int] = field(default_factory=dict)
    """Number of things that each observer of the recording found, such as `hazards`, by the names of their plugins."""
    period: OwnPeriod | None = None
    """Period of a recording without marked steps; None if it marks steps, or nothing repeats."""
    whole_graphs: int = 0
    """Number of GPU ops that are CUDA graphs, each recorded as a single op whatever it contains."""
    warnings: tuple[str, ...] = ()
    """Messages of the recorder itself about a failed recording of the GPU."""
    unpacked_bytes: int = 0
    """Unpacked size of the file; 0 if the trace comes from no file."""
    origin: TraceOrigin | None = None
    captures: tuple[Trace, ...] = ()
    """Recordings of captures of graphs that the program launches. They have the same names."""

    def __repr__(self) -> str:
        return f"Trace({self.source!r}, rank={self.rank}, {len(self.gpu_ops):,} GPU ops)"

    @property
    def gpu(self) -> str:
        """Noun for its devices."""
        return noun_for(self.device_names.values())

    @property
    def has_steps(self) -> bool:
        """True if the recording marks steps."""
        return bool(self.annotations.named(is_step_name).any())

    @property
    def devices(self) -> tuple[int, ...]:
        """Return the devices that did anything, in ascending order."""
        return tuple(distinct(self.gpu_ops.device).tolist())
