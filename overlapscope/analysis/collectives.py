"""Collectives as recorded: which one of which process group a kernel is, and its message.

The kernel's own metadata decides. Older PyTorch wrote none; there the range on the host in which the kernel was
launched names the collective (`nccl:all_to_all`), and elsewhere only the kernel's name does.

Of messages: their size and rows, whom they reach, and bus bandwidth by the arithmetic of nccl-tests.
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md derives the factors. PyTorch names types of elements
as in `c10/core/ScalarType.h`, and collectives as in `ProcessGroupNCCL.cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Final

import numpy as np
from msgspec import Struct

from overlapscope.base.columns import I32, I64, Bool, pick
from overlapscope.base.grouping import distinct_rows, groups_of
from overlapscope.base.kept import kept
from overlapscope.base.words import clean
from overlapscope.trace.host import around
from overlapscope.trace.model import Collectives, GpuOps, HostEvents, Trace
from overlapscope.trace.op_names import collective_of_kernel, collective_of_range

# -- Messages ----------------------------------------------------------------------------------------

_BYTES: Final = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz", "Float8_e8m0fnu"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Size of an element by its type."""
_LIST_OF_PARTS = re.compile(r"\[(\d{1,15}(?:, \d{1,15})*)\]")

_FACTORS: Final[tuple[tuple[re.Pattern[str], Callable[[int], Fraction]], ...]] = (
    (re.compile(r"all_?reduce", re.IGNORECASE), lambda ranks: Fraction(2 * (ranks - 1), ranks)),
    (
        re.compile(r"all_?gather|reduce_?scatter|all_?to_?all|gather|scatter", re.IGNORECASE),
        lambda ranks: Fraction(ranks - 1, ranks),
    ),
    (re.compile(r"broadcast|reduce|send|recv", re.IGNORECASE), lambda ranks: Fraction(1)),
)
"""Collectives, and the factor between algorithm and bus bandwidth for a number of ranks."""


def bus_factor(collective: str, ranks: int) -> Fraction | None:
    """Return the bus bandwidth per algorithm bandwidth; None if unknown.

    Args:
        collective: Name of the collective as recorded, such as `_allgather_base`.
        ranks: Number of ranks in the group.
    """
    if ranks < 1:
        return None
    return next((factor(ranks) for name, factor in _FACTORS if name.search(collective)), None)


def bytes_of_type(dtype: str) -> int:
    """Return the size of an element by PyTorch's name of its type; -1 where unknown."""
    return _BYTES.get(dtype, -1)


def element_bytes(recorded: Collectives, names: Sequence[str]) -> I64:
    """Return the size of an element of each message; -1 where unknown."""
    return _from_texts(recorded.dtype, names, bytes_of_type)


def message_bytes(recorded: Collectives, names: Sequence[str]) -> I64:
    """Return the size of each message as nccl-tests counts it: of the larger buffer of a rank; -1 where unknown."""
    element = element_bytes(recorded, names)
    elements = np.maximum(recorded.elements_in, recorded.elements_out)
    return np.where((element > 0) & (elements >= 0), element * elements, -1)


def reaches_all(recorded: Collectives, names: Sequence[str]) -> I64:
    """Return for each all-to-all 1 if the rank sends to all ranks and receives from all, otherwise 0; -1 if unknown.

    An all-to-all without split sizes is even. PyTorch shortens the split sizes of large groups, which makes them
    unknown.
    """
    size = recorded.group_size.astype(np.int64)
    reaches = np.ones(len(size), np.int64)
    for parts, elements in ((recorded.parts_in, recorded.elements_in), (recorded.parts_out, recorded.elements_out)):
        least = _from_texts(parts, names, lambda text: min(_split(text), default=-1))
        count = _from_texts(parts, names, lambda text: len(_split(text)))
        even = _from_texts(parts, names, lambda text: int(text == "[]")) == 1
        unknown = np.where(even, elements < 0, count != size) | (size < 1)
        all_sides = np.where(unknown, -1, np.where(even, elements >= size, least > 0))
        reaches = np.where((reaches == 0) | (all_sides == 0), 0, np.minimum(reaches, all_sides))
    return reaches


def has_splits(recorded: Collectives, names: Sequence[str]) -> Bool:
    """Return a mask of the collectives that were called with split sizes."""
    sides = (recorded.parts_in, recorded.parts_out)
    one, other = (_from_texts(parts, names, lambda text: int(text not in {"", "[]"})) == 1 for parts in sides)
    is_given: Bool = one | other
    return is_given


def split_rows(parts: I32, names: Sequence[str]) -> I64:
    """Return the sum of split sizes, which are rows of a tensor; -1 without any, or if PyTorch shortened the list."""
    return _from_texts(parts, names, lambda text: sum(_split(text)) if _split(text) else -1)


def _split(text: str) -> list[int]:
    parts = _LIST_OF_PARTS.fullmatch(text)
    return [int(part) for part in parts[1].split(", ")] if parts else []


def _from_texts(ids: I32, names: Sequence[str], figure: Callable[[str], int]) -> I64:
    """Return a figure of the text of each row; -1 where there is no text."""
    distinct, which = np.unique(ids, return_inverse=True)
    figures = np.array([figure(names[text]) if text >= 0 else -1 for text in distinct.tolist()], np.int64)
    return pick(figures, which.ravel())


# -- Kinds -------------------------------------------------------------------------------------------


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
