"""Matching of communication kernels: which kernels of different ranks are one collective.

Kernels are matched, or left out and counted, never guessed. A kernel is identified by its kind (collective and process
group), and within its kind by the group's own count where that was recorded. Otherwise its place counts, among the
kernels that the same profiler step launched. If a rank's first or last step has fewer kernels of a kind than on other
ranks, the recording began or ended inside the step, and places count from the end or from the beginning. Kernels
without metadata are matched by name, where every rank has the same number of them in a step. The sizes that members
sent and received must fit together; otherwise everything of that kind in that step is left out.

A step's number is assumed to mean the same step on all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from overlapscope.analysis.collectives import CommKind
from overlapscope.base.columns import Columns, mask_of
from overlapscope.base.grouping import distinct, group_starts, groups_of
from overlapscope.base.intervals import I64, Bool
from overlapscope.ranks.messages import CommKernels, kernel_name, point_to_point
from overlapscope.ranks.reduced import ComparedRank

# The names are those that ProcessGroupNCCL gives to RECORD_PARAM_COMMS.
_SYMMETRIC = re.compile(
    r"all_?reduce\w*|_?all_?gather\w*|_?reduce_scatter\w*|all_?to_?all(_single|_base)?|barrier", re.IGNORECASE
)
_UNEVEN = re.compile(r"all_?to_?allv", re.IGNORECASE)
_SYMMETRIC_KERNEL = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce", re.IGNORECASE)
_REDUCES_TO_ALL = re.compile(r"all_?reduce|barrier|cross_device_reduce", re.IGNORECASE)
_HOST_RANGE = re.compile(r"\w+:\w+")


def symmetric(kind: CommKind) -> bool:
    """Return whether every member needs data from every other member, so that none can end before the last arrives.

    False for broadcast, reduce, scatter and gather, and for an all-to-all whose parts may be empty, of which
    `Meetings.symmetric` decides one by one.
    """
    if kind.recorded:
        return _SYMMETRIC.fullmatch(kind.collective) is not None
    return _SYMMETRIC_KERNEL.search(kernel_name(kind)) is not None


def goes_round(kind: CommKind) -> bool:
    """Return whether a member of a symmetric collective can finish before its data has reached all others.

    It can in all but an all-reduce.
    """
    return _REDUCES_TO_ALL.search(kind.collective) is None


def on_host(kind: CommKind) -> bool:
    """Return whether it is a range on the host, such as `gloo:all_reduce`."""
    return not kind.recorded and _HOST_RANGE.fullmatch(kind.collective) is not None


def _uneven(kind: CommKind) -> bool:
    """Return whether its members may send parts of different sizes, even empty ones."""
    return kind.recorded and _UNEVEN.fullmatch(kind.collective) is not None


class Kernels(CommKernels, frozen=True):
    """Communication kernels of all ranks, one row each."""

    rank: I64
    """Place of the rank in the sequence of ranks."""
    index: I64
    """Place by start among the kernels of its kind on its rank, from 0."""
    lossy: tuple[int, ...]
    """Places of the ranks whose file lost events; not a column."""

    @property
    def group(self) -> I64:
        """Number of the process group of each kernel."""
        groups: dict[tuple[str, str], int] = {}
        return self.by_kind(lambda kind: groups.setdefault((kind.group, kind.ranks), len(groups)))[self.kind]


class Meetings(Struct, frozen=True, eq=False):
    """Matched collectives.

    Meeting `i` has the kernels `row[first[i] : first[i + 1]]`: two or more, one for each rank, in the order of ranks.
    """

    kernels: Kernels
    first: I64
    """First entry of each meeting in `row`, and the length of `row`."""
    row: I64
    """Rows of `kernels`."""
    not_collective: int
    """Number of kernels that are point-to-point, or of a single rank."""

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def rank(self) -> I64:
        """Place of the rank of each entry of `row`."""
        return self.kernels.rank[self.row]

    @property
    def start_ns(self) -> I64:
        """Start of the kernel of each entry of `row`, by its rank's clock."""
        return self.kernels.start_ns[self.row]

    @property
    def end_ns(self) -> I64:
        """End of the kernel of each entry of `row`, by its rank's clock."""
        return self.kernels.end_ns[self.row]

    @property
    def meeting(self) -> I64:
        """Meeting of each entry of `row`."""
        return np.repeat(np.arange(len(self)), self.members)

    @property
    def kind(self) -> I64:
        """Kind of each meeting, as an index into `kernels.kinds`."""
        return self.kernels.kind[self.row[self.first[:-1]]]

    @property
    def group(self) -> I64:
        """Number of the process group of each meeting."""
        return self.kernels.group[self.row[self.first[:-1]]]

    @property
    def members(self) -> I64:
        """Number of kernels of each meeting."""
        return np.diff(self.first)

    @property
    def group_size(self) -> I64:
        """Size of the process group of each meeting; -1 where not recorded."""
        return self.kernels.by_kind(lambda kind: kind.group_size)[self.kind]

    def extremes(self, column: I64) -> tuple[I64, I64]:
        """Return the least and the largest value of each meeting's members, given the values of all kernels."""
        values, first = column[self.row], self.first[:-1]
        return np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)

    def of_kinds(self, holds: Callable[[CommKind], bool]) -> Bool:
        """Return a mask of the meetings of the kinds for which something holds."""
        mask: Bool = self.kernels.by_kind(holds)[self.kind] != 0
        return mask

    @property
    def by(self) -> Literal["metadata", "kernel-names", "both", "none"]:
        """Source of the identification of collectives."""
        recorded = {self.kernels.kinds[kind].recorded for kind in distinct(self.kind).tolist()}
        if len(recorded) == 2:
            return "both"
        return "none" if not recorded else "metadata" if recorded.pop() else "kernel-names"

    def take(self, kept: Bool) -> Meetings:
        """Return these meetings only."""
        sizes = np.diff(self.first)
        first = np.append(0, np.cumsum(sizes[kept]))
        return Meetings(self.kernels, first, self.row[np.repeat(kept, sizes)], self.not_collective)

    def symmetric(self) -> Meetings:
        """Return the meetings in which every member waits for every other."""
        reaches, _ = self.extremes(self.kernels.reaches_all)
        return self.take(self.of_kinds(symmetric) | (self.of_kinds(_uneven) & (reaches == 1)))

    def alike(self) -> Bool:
        """Select the meetings whose members all have messages of the same size; the others may end far apart."""
        least, most = self.extremes(self.kernels.bytes)
        alike: Bool = (least == most) | ~self.of_kinds(_uneven)
        return alike


def gather(ranks: Sequence[ComparedRank]) -> Kernels:
    """Return the communication kernels of all ranks in one table with common kinds."""
    numbers: dict[CommKind, int] = {}
    parts = [Kernels.empty(kinds=(), lossy=())]
    for place, rank in enumerate(ranks):
        comm, at = rank.comm, np.full(len(rank.comm), place)
        kinds = np.array([numbers.setdefault(kind, len(numbers)) for kind in comm.kinds], np.int64)
        parts.append(Kernels(**asdict(comm) | {"kind": kinds[comm.kind]}, rank=at, index=at, lossy=()))
    all_kernels = Kernels.joined(parts)
    index, _ = _places([all_kernels.rank, all_kernels.kind], all_kernels.start_ns)
    lossy = tuple(number for number, rank in enumerate(ranks) if rank.lossy)
    return replace(all_kernels, kinds=tuple(numbers), index=index, lossy=lossy)


def match(kernels: Kernels, ranks: int) -> Meetings:
    """Return the collectives in which at least two of the ranks met."""
    return met_by_order(kernels, ~kernels.of_kinds(point_to_point), ranks)


def met_by_order(kernels: Kernels, chosen: Bool, ranks: int) -> Meetings:
    """Return the meetings of the chosen kernels, by their counts, steps and places."""
    # Ranks share the place of a kernel with a count or a step, or its order if there are no steps.
    stepless = np.bincount(kernels.rank[kernels.step >= 0], minlength=ranks) == 0
    placed = (kernels.sequence >= 0) | (kernels.step >= 0) | stepless[kernels.rank]
    rows = np.flatnonzero(chosen & placed)
    rank, step, sequence = kernels.rank[rows], kernels.step[rows], kernels.sequence[rows]
    counted = sequence >= 0
    phase = np.where(counted, sequence, step)
    bucket = groups_of([kernels.kind[rows], counted.astype(np.int64), phase]) if len(rows) else rows
    place, count = _places([bucket, rank], kernels.start_ns[rows])
    candidates = _Candidates(rows, rank, step, (step >= 0) & ~counted, bucket, place, count)
    slot = _slots(candidates, np.isin(candidates.rank, kernels.lossy))
    order = np.lexsort((candidates.rank, slot, candidates.bucket))
    order = order[slot[order] >= 0]
    candidates, slot = candidates.take(order), slot[order]
    first = group_starts(candidates.bucket, slot)
    met = Meetings(kernels, np.append(first, len(slot)), candidates.row, int((~chosen).sum()))
    return met.take(_sizes_agree(met, candidates.bucket[first]) & _possible_sizes(met, ranks))


class _Candidates(Columns, frozen=True):
    """Kernels that may have counterparts on other ranks, one row each."""

    row: I64
    """Row of the kernel in `Kernels`."""
    rank: I64
    step: I64
    """Number of the step that launched it; -1 where unknown."""
    by_step: Bool
    """True if it is identified by its step, and not by its group's count."""
    bucket: I64
    """Number of its kind and step, or of its kind and count. Counterparts have the same bucket."""
    place: I64
    """Place by start among its rank's kernels in the bucket, from 0."""
    count: I64
    """Number of its rank's kernels in the bucket."""


def _slots(candidates: _Candidates, lossy: Bool) -> I64:
    """Return the place of each kernel that means the same on all ranks of its bucket; -1 where there is none.

    If all ranks have the same number of kernels in a bucket, the places are comparable as they are. A rank may have
    fewer only because its recording began or ended inside the bucket's step: then places count from the end or from
    the beginning. If the ranks with fewer kernels aren't all cut on the same side, nothing is comparable.

    Args:
        candidates: The kernels.
        lossy: Mask of kernels of ranks whose file lost events. They are left out where these ranks have fewer.
    """
    bucket, rank, step, count = candidates.bucket, candidates.rank, candidates.step, candidates.count
    buckets = int(bucket.max(initial=-1)) + 1
    most = np.zeros(buckets, np.int64)
    np.maximum.at(most, bucket, count)
    lost = lossy & (count < most[bucket])
    fewer = ~lost & (count < most[bucket])
    stepped = candidates.by_step
    first, last = _first_and_last(rank[stepped], step[stepped], int(rank.max(initial=-1)) + 1)
    from_end, from_start = np.ones((2, buckets), np.bool_)
    np.logical_and.at(from_end, bucket, ~fewer | ((step >= 0) & (step == first[rank])))
    np.logical_and.at(from_start, bucket, ~fewer | ((step >= 0) & (step == last[rank])))
    uneven = mask_of(bucket[fewer], buckets)
    counts_back = (uneven & from_end & ~from_start)[bucket]
    comparable = (~uneven | (from_end ^ from_start))[bucket] & ~lost
    return np.where(comparable, np.where(counts_back, count - 1 - candidates.place, candidates.place), -1)


def _first_and_last(rank: I64, step: I64, ranks: int) -> tuple[I64, I64]:
    """Return the first and the last step of each rank, given the rank and the step of some kernels."""
    first, last = np.full(ranks, np.iinfo(np.int64).max), np.full(ranks, -1)
    np.minimum.at(first, rank, step)
    np.maximum.at(last, rank, step)
    return first, last


def _sizes_agree(met: Meetings, bucket: I64) -> Bool:
    """Return a mask of the meetings in whose bucket the sizes of each meeting's members fit together.

    Members of symmetric meetings send the same number of elements. Those of an uneven all-to-all send as many together
    as they receive.

    Args:
        met: Meetings of any kind.
        bucket: Bucket of each meeting.
    """
    sent, received, first = met.kernels.elements[met.row], met.kernels.received[met.row], met.first[:-1]
    least = np.minimum.reduceat(np.where(sent >= 0, sent, np.iinfo(np.int64).max), first)
    differ = np.maximum.reduceat(sent, first) > least
    counted = (met.members == met.group_size) & (np.minimum.reduceat(np.minimum(sent, received), first) >= 0)
    lost = counted & (np.add.reduceat(sent - received, first) != 0)
    doubted = bucket[(differ & met.of_kinds(symmetric)) | (lost & met.of_kinds(_uneven))]
    good: Bool = ~mask_of(doubted, int(bucket.max(initial=-1)) + 1)[bucket]
    return good


def have_whole_groups(met: Meetings, world_size: int | None) -> Bool:
    """Return a mask of the kernels at meetings of all members of the group.

    A group of unknown size is taken for all ranks.
    """
    size = met.group_size
    whole: Bool = met.members == np.where(size >= 0, size, -1 if world_size is None else world_size)
    return mask_of(met.row[whole[met.meeting]], len(met.kernels))


def _possible_sizes(met: Meetings, ranks: int) -> Bool:
    """Return a mask of the meetings of two or more members, at most the group's.

    Without metadata, there must be a member on each rank that recorded communication before and after, or in the step:
    a recording may end before those of the others. Ranks whose file lost events may lack any member.

    Args:
        met: Meetings of any kind.
        ranks: Number of ranks.
    """
    members, size, recorded = met.members, met.group_size, met.of_kinds(lambda kind: kind.recorded)
    whole = np.add.reduceat(~np.isin(met.rank, met.kernels.lossy), met.first[:-1], dtype=np.int64)
    good: Bool = (members >= 2) & ((size < 0) | (members <= size)) & (recorded | (whole == _recording(met, ranks)))
    return good


def _recording(met: Meetings, ranks: int) -> I64:
    """Return the number of ranks that must have been recorded in the step of each meeting; without steps, of all ranks.

    Ranks whose kernels are all of earlier steps, or all of later ones, were not. Those whose file lost events aren't
    counted.
    """
    kernels, never = met.kernels, np.iinfo(np.int64).max
    stepped = kernels.step >= 0
    first, last = _first_and_last(kernels.rank[stepped], kernels.step[stepped], ranks)
    silent = last < 0
    first[silent], last[silent] = -1, never
    step = kernels.step[met.row[met.first[:-1]]]
    whole = ~mask_of(np.array(kernels.lossy, np.int64), ranks)
    begun = np.searchsorted(np.sort(first[whole]), step, side="right")
    ended = np.searchsorted(np.sort(last[whole]), step, side="left")
    return np.where(step < 0, whole.sum(), begun - ended)


def _places(columns: Sequence[I64], start: I64) -> tuple[I64, I64]:
    """Return the place of each row, by start, among the rows with equal columns, and the number of these rows."""
    order = np.lexsort((start, *columns[::-1]))
    first = group_starts(*(column[order] for column in columns))
    sizes = np.diff(np.append(first, len(order)))
    place, count = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(first, sizes)
    count[order] = np.repeat(sizes, sizes)
    return place, count
