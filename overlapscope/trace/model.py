"""The Trace: what a profiler recorded, as columns.

All times are integer nanoseconds since the epoch of the recording (absolute where the source knows it).
Intervals are half-open `[start_ns, end_ns)`. Every table is sorted by start and, within equal starts,
longest first, so that a parent stands before its children.

A table's columns are numpy arrays of equal length; each docstring says its unit and what -1 means.
Strings are stored once in `names`; a `name_id` column indexes it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from overlapscope.base import columns
from overlapscope.base.columns import Columns, Integers
from overlapscope.base.kept import kept
from overlapscope.errors import NotInTrace

if TYPE_CHECKING:
    import pandas as pd

I64 = columns.I64
I32 = columns.I32
F64 = columns.F64
I8 = columns.I8
Bool = columns.Bool
Index = columns.Index


class Kind(IntEnum):
    """What a GPU op does (`docs/how-it-works/numbers.md`)."""

    COMPUTE = 0
    COMM = 1
    H2D = 2
    D2H = 3
    OTHER = 4


class Memory(IntEnum):
    """Where one side of a copy lives. `UNKNOWN` where the profiler does not say (ROCm, XPU)."""

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2
    DEVICE = 3
    MANAGED = 4
    ARRAY = 5


Framework = Literal["pytorch", "jax", "cuda"]
"""What a program is written with: the words that advice is given in. `cuda` is CUDA C++, or anything else."""


class Sync(IntEnum):
    """The kind of a synchronisation record."""

    STREAM_WAIT_EVENT = 0
    EVENT = 1
    STREAM = 2
    CONTEXT = 3


class Table(Columns, frozen=True, weakref=True):
    """Columns every table has."""

    labels: ClassVar[dict[str, type[IntEnum]]] = {}
    """What the numbers of its columns stand for."""

    names: tuple[str, ...]
    """The trace's string table; shared, not a column."""
    start_ns: I64
    end_ns: I64
    name_id: I32
    place: I32
    """The event's place in the source's list of events, for those who look it up there."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows)"

    def name(self, row: int) -> str:
        name: str = self.names[int(self.name_id[row])]
        return name

    def named(self, judge: Callable[[str], bool]) -> Bool:
        """Which rows' names pass; each distinct name is judged once."""
        passes = np.zeros(len(self.names), np.bool_)
        for name_id in _names_in(self):
            passes[name_id] = judge(self.names[name_id])
        return passes.take(self.name_id)

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with one row per row, names and enumerations spelled out, -1 kept as it is."""
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
    """One number for each stream of each device: those of several devices share numbers."""
    keys: I64 = device.astype(np.int64) << 32 | (stream.astype(np.int64) & 0xFFFFFFFF)
    return keys


def of_stream_key(key: int) -> tuple[int, int]:
    """Device and stream of one of `stream_keys`."""
    return key >> 32, ((key & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


@kept()
def _names_in(table: Table) -> list[int]:
    """The numbers of the names that a table's rows have, ascending."""
    used = np.zeros(len(table.names), np.bool_)
    used[table.name_id] = True
    found: list[int] = np.flatnonzero(used).tolist()
    return found


class GpuOps(Table, frozen=True):
    """Kernels, copies and memsets."""

    labels: ClassVar = {"kind": Kind, "source_kind": Memory, "target_kind": Memory}

    kind: I8
    device: I32
    """Device ordinal; -1 where the source names none."""
    stream: I32
    """Stream id within the device; 0 is a stream; -1 where the source names none."""
    correlation: I64
    """Joins the op to the runtime call that launched it; -1 where missing. Not unique: a graph launch
    has one correlation for all its ops."""
    launch: I64
    """Row in `Trace.runtime_calls` of the launching call; -1 where it was not recorded."""
    bytes: I64
    """Bytes moved; -1 where not a memory operation or not recorded."""
    source_kind: I8
    target_kind: I8
    stated_gb_per_s: F64
    """Bandwidth of a memory operation by the profiler's own account; -1 where it gives none. Figures here come from
    `bytes` and the times instead."""

    @property
    def is_copy(self) -> Bool:
        """Which ops are copies between host and device."""
        copies: Bool = (self.kind == Kind.H2D) | (self.kind == Kind.D2H)
        return copies

    @property
    def host_memory(self) -> I8:
        """Where the host's side of each copy lives; of other ops, their target."""
        return np.where(self.kind == Kind.H2D, self.source_kind, self.target_kind)


class HostEvents(Table, frozen=True):
    """CPU ops, `record_function` annotations, Python frames and profiler overhead, by thread."""

    thread: I64
    """Operating-system thread id as recorded; -1 where unknown. Not necessarily positive or unique
    across processes."""


class RuntimeCalls(HostEvents, frozen=True):
    """Calls into the device runtime or driver."""

    correlation: I64
    """-1 where missing."""


class Syncs(Table, frozen=True):
    """Synchronisation records (`cuda_sync`, `xpu_sync`): never work, always waiting."""

    labels: ClassVar = {"kind": Sync}

    kind: I8
    device: I32
    stream: I32
    """The stream that waits (stream wait) or is waited for (stream sync); -1 for none."""
    correlation: I64
    """The runtime call that asked for it; -1 where missing."""
    event: I64
    """Id of the event waited for; -1 where not recorded."""
    source_stream: I32
    """The stream the event was recorded on; -1 where not recorded (CUDA 13)."""
    source_device: I32
    """The device of that stream; -1 where not recorded."""
    record_correlation: I64
    """Correlation of the call that recorded the event; -1 where not recorded (CUDA 13)."""


class DeviceAnnotations(Table, frozen=True):
    """`record_function` ranges as the profiler copied them to the device's lanes: never work."""

    device: I32
    stream: I32


class Collectives(Table, frozen=True):
    """What communication kernels say of their collective: one row for each kernel that says anything.

    `start_ns` and `end_ns` are the kernel's, `name_id` is the collective's name (`allreduce`). The keys are those of
    PyTorch's `ParamCommsUtils.cpp`.
    """

    device: I32
    stream: I32
    correlation: I64
    """That of the kernel's row in `Trace.gpu_ops`."""
    group: I32
    """Name of the process group, as a row of `names`; -1 where missing."""
    ranks: I32
    """The group's ranks as text (`[0, 1]`; PyTorch shortens long lists), as a row of `names`; -1 where missing."""
    group_size: I32
    """-1 where missing."""
    elements_in: I64
    """-1 where missing."""
    elements_out: I64
    """-1 where missing."""
    dtype: I32
    """As a row of `names`; -1 where missing."""
    sequence: I64
    """Number of the collective within its group; -1 where missing."""


class Damage(Struct, frozen=True):
    """What was wrong with the source, and what reading it cost. All zero for a clean file."""

    truncated: bool = False
    """The file ends before its JSON does, or its packing is broken; `examples` says which."""
    lost_bytes: int = 0
    """Bytes of the source that hold no readable event."""
    lost_events: int = 0
    """Events that could not be read at all."""
    repaired_events: int = 0
    """Events that were not valid JSON or held values of the wrong type, and were read all the same."""
    impossible_times: int = 0
    """Events of any table left out because their time is negative, absurd or missing."""
    impossible_by: dict[str, int] = field(default_factory=dict)
    """The same by the part of the recording that they belong to (`overlapscope.trace.lost`)."""
    impossible_sizes: dict[str, int] = field(default_factory=dict)
    """GPU ops whose size is taken as unknown, as no copy moves so much in its time, likewise by part."""
    examples: tuple[str, ...] = ()
    """Up to three short descriptions, for the person who looks into it."""


class TimedSteps(Struct, frozen=True):
    """Steps that were timed while nothing was recorded, in order. Empty where none were."""

    host_ns: tuple[int, ...] = ()
    """From mark to mark, by the host's clock."""
    device_ns: tuple[int, ...] = ()
    """Between CUDA events recorded at the marks on the current stream; empty without a GPU."""


class PlainSteps(Struct, frozen=True):
    """Steps that the recorder timed right before and right behind the recording (`docs/guides/recording.md`)."""

    before: TimedSteps = TimedSteps()
    after: TimedSteps = TimedSteps()


class TraceOrigin(Struct, frozen=True, kw_only=True):
    """What was recorded when, as the recorder noted it; None is what it did not know."""

    at_ns: int | None = None
    """When recording began, in nanoseconds since 1970."""
    job: str | None = None
    """The name of the script."""
    commit: str | None = None
    """Of its working tree, with `-dirty` behind it where that had changes."""
    branch: str | None = None


class OwnPeriod(Struct, frozen=True, kw_only=True):
    """The sequence that a recording without steps repeats, each repetition of which is a step."""

    of: str
    """What the sequence consists of: `kernel launches`, or `CPU ops` without a GPU."""
    length: int
    """Number of launches or ops in a step: the median."""
    repeats: int
    """Number of steps."""
    regular_pct: float
    """Share of the launches or ops that the typical step has as well."""

    def __str__(self) -> str:
        return f"every {self.length:,} {self.of} repeat, {self.repeats:,} times; {self.regular_pct:.0f}% regular"


class Trace(Struct, frozen=True, eq=False, weakref=True):
    """One process' recording.

    Build it with a source (`overlapscope.load`), not by hand.
    """

    source: str
    """Where it came from: a path as the user gave it."""
    names: tuple[str, ...]
    gpu_ops: GpuOps
    runtime_calls: RuntimeCalls
    cpu_ops: HostEvents
    annotations: HostEvents
    """`record_function` ranges on the host, `ProfilerStep#N` among them."""
    python_frames: HostEvents
    """Empty unless recorded with stacks."""
    overheads: HostEvents
    """Time the profiler itself took."""
    syncs: Syncs
    """Empty unless recorded with sync events."""
    device_annotations: DeviceAnnotations
    collectives: Collectives
    device_names: dict[int, str]
    """Ordinal to product name, for the devices the source lists."""
    rank: int | None = None
    world_size: int | None = None
    start_ns: int = -1
    """When recording began; -1 where the source does not say."""
    end_ns: int = -1
    """When recording ended; -1 where the source does not say."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions the source states, e.g. `cuda_runtime`."""
    flags: dict[str, bool] = field(default_factory=dict)
    """What the source says of how it was recorded, e.g. `record_shapes`."""
    damage: Damage = field(default_factory=Damage)
    warm_up_steps: int = 0
    """How many of the first steps were recorded only for the pipeline to fill, and must not be judged."""
    base_ns: int = 0
    """What was added to the file's own times, to write such times again."""
    predicted_by: tuple[str, ...] | None = None
    """The changes with which `overlapscope whatif` predicted it; None for a recording."""
    plain_steps: PlainSteps = field(default_factory=PlainSteps)
    """What a step takes while nothing is recorded, as far as the recorder timed it."""

    recorder: str = "kineto"
    """The source that made it (`overlapscope.reading.sources`): what recorded it."""
    framework: Framework = "pytorch"
    """What the program is written with, as far as the recording tells."""
    steps_by: str = ""
    """The name of the ranges that are its steps; empty where torch.profiler marked them, or nobody did."""
    step_source: str = ""
    """What ended its steps, as the recorder noted it, such as `calls of ResNet.forward`; empty where it did not."""
    period: OwnPeriod | None = None
    """What its steps were found by where nothing marks them; the first one is start-up if `warm_up_steps` is 1."""
    whole_graphs: int = 0
    """How many of the GPU ops are CUDA graphs that were recorded as one op each, whatever they consist of."""
    unpacked_bytes: int = 0
    """How large its file is when unpacked; 0 where it comes from none."""
    origin: TraceOrigin | None = None

    def __repr__(self) -> str:
        return f"Trace({self.source!r}, rank={self.rank}, {len(self.gpu_ops):,} GPU ops)"

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices that did anything, in ascending order."""
        # Ordinals are small, and -1 is one of them.
        return tuple((np.flatnonzero(np.bincount(self.gpu_ops.device + 1)) - 1).tolist())

    def select(
        self,
        *,
        device: int | None = None,
        stream: int | None = None,
        step: str | None = None,
        range: str | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> Trace:
        """The same trace with only the GPU ops that match every given criterion.

        `step` and `range` are annotation names and select the ops launched from inside them on the
        host; `start_ns` and `end_ns` select ops that run at any moment of `[start_ns, end_ns)`. Host tables
        are kept whole, so that causes can still be found.

        Raises NotInTrace where no annotation has the given name.
        """
        ops = self.gpu_ops
        keep = np.ones(len(ops), dtype=np.bool_)
        if device is not None:
            keep &= ops.device == device
        if stream is not None:
            keep &= ops.stream == stream
        for name in (step, range):
            if name is not None:
                keep &= self._launched_in(name)
        if start_ns is not None:
            keep &= (ops.end_ns > start_ns) | (ops.start_ns >= start_ns)
        if end_ns is not None:
            keep &= ops.start_ns < end_ns
        return replace(self, gpu_ops=ops.take(keep))

    def sql(self, statement: str) -> pd.DataFrame:
        """What a SELECT statement finds in the trace and in its results: `overlapscope.sql`."""
        import overlapscope

        return overlapscope.sql(self, statement)

    def _launched_in(self, annotation: str) -> Bool:
        notes = self.annotations
        named = notes.named(lambda name: name == annotation)
        if not named.any():
            raise NotInTrace(
                f"{self.source}: there is no annotation {annotation!r}; see `annotations` for those there are."
            )
        ops = self.gpu_ops
        launched = ops.launch >= 0
        at = np.where(launched, self.runtime_calls.start_ns[ops.launch], 0) if launched.any() else ops.start_ns
        inside = np.zeros(len(ops), dtype=np.bool_)
        for start, end in zip(notes.start_ns[named], notes.end_ns[named], strict=True):
            inside |= (at >= start) & (at < end)
        return inside & launched
