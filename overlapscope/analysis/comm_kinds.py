"""Kinds of communication kernels: which collective of which process group they are.

The kernel's own metadata decides. Older PyTorch wrote none; there the range on the host in which the kernel was
launched names the collective (`nccl:all_to_all`), and elsewhere only the kernel's name does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from overlapscope.analysis.host import around
from overlapscope.base.columns import pick
from overlapscope.base.grouping import distinct_rows, groups_of
from overlapscope.base.intervals import I64
from overlapscope.base.kept import kept
from overlapscope.base.words import clean
from overlapscope.trace.model import Collectives, GpuOps, HostEvents, Trace
from overlapscope.trace.op_names import collective_of_kernel, collective_of_range


class CommKind(Struct, frozen=True):
    """Metadata of a communication kernel. Kernels of the same kind on a rank are distinguished by their order."""

    collective: str
    """Name of the collective as recorded (`allreduce`). Without metadata, the name in the range that launched it
    (`all_reduce`), or the kernel's, without template arguments and parameters."""
    group: str = ""
    """Name of the process group."""
    ranks: str = ""
    """Ranks of the group as text, shortened by torch if there are many."""
    group_size: int = -1
    """Size of the group; -1 where not recorded."""
    recorded: bool = True
    """True if the kernel has metadata beyond its name."""
    description: str = ""
    """Description of the process group, such as `mesh_dp`."""

    @property
    def words(self) -> str:
        """The kind for readers, such as `_allgather_base of FSDP (8 ranks)`."""
        name = clean(self.collective, 80)
        group = clean(self.description or (self.group and f"group {self.group}"), 40)
        size = f" ({self.group_size} ranks)" if self.group_size > 0 else ""
        return f"{name} of {group}{size}" if group else f"{name}{size}"


class CommKinds(Struct, frozen=True, eq=False):
    """Kinds of some communication kernels."""

    kinds: tuple[CommKind, ...]
    """All kinds, each once."""
    kind: I64
    """Index into `kinds` of each kernel."""
    row: I64
    """Row of each kernel in `Trace.collectives`; -1 for a kernel without metadata."""


def comm_kinds(trace: Trace, ops: GpuOps) -> CommKinds:
    """Return the kinds of communication kernels, which are the given ops."""
    recorded = trace.collectives
    rows = {key: row for row, key in enumerate(_keys(recorded))}
    row = np.array([rows.get(key, -1) for key in _keys(ops)], np.int64)
    texts = (recorded.name_id, recorded.group, recorded.description, recorded.ranks, recorded.group_size)
    columns = [pick(column, row) for column in texts]
    # A kernel without metadata is identified by the name of the range in which it was launched, or by its own.
    ranges, calls = _launching_ranges(trace), trace.runtime_calls
    launched_in = around(ranges, pick(calls.thread, ops.launch), pick(calls.start_ns, ops.launch))
    name = np.where(launched_in >= 0, pick(ranges.name_id, launched_in), ops.name_id)
    columns.append(np.where(row < 0, name, -1))
    kinds: dict[CommKind, int] = {}
    number = [kinds.setdefault(_kind(trace.names, *ids), len(kinds)) for ids in distinct_rows(columns)]
    return CommKinds(tuple(kinds), np.array(number, np.int64)[groups_of(columns)], row)


@kept()
def _launching_ranges(trace: Trace) -> HostEvents:
    notes = trace.annotations
    return notes.take(notes.named(lambda name: collective_of_range(name) != ""))


def _kind(names: Sequence[str], collective: int, *group: int) -> CommKind:
    *texts, group_size, bare = group
    if bare >= 0:
        return CommKind(collective_of_range(names[bare]) or collective_of_kernel(names[bare]), recorded=False)
    name, description, ranks = (names[text] if text >= 0 else "" for text in texts)
    return CommKind(names[collective], name, ranks, group_size, description=description)


def _keys(table: Collectives | GpuOps) -> Iterator[tuple[int, ...]]:
    columns = (table.correlation, table.device, table.stream, table.start_ns, table.end_ns)
    return zip(*(column.tolist() for column in columns), strict=True)
