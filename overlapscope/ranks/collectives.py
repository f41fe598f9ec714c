"""Which communication kernels of different ranks are one collective: matched, or left out and counted, never guessed.

A kernel is known by its kind (collective and process group), and among its kind by the group's own count where that is
recorded; else by its place among those that the same profiler step launched. Where a rank's first or last step has
fewer of a kind than on other ranks, the recording began or ended inside it, and places count from the end or from the
beginning. Kernels that say nothing are matched by name where every rank has as many in the same step. Members must have
sent the same number of elements, or all of that kind in that step is left out.

Numbers of steps are taken to mean the same step on all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from overlapscope.base.intervals import I64, Bool
from overlapscope.ranks.reduced import CommKernels, CommKind, ReducedRank

# The names are those that ProcessGroupNCCL gives to RECORD_PARAM_COMMS.
_SYMMETRIC = re.compile(
    r"all_?reduce\w*|_?all_?gather\w*|_?reduce_scatter\w*|all_?to_?all(_single|_base)?|barrier", re.IGNORECASE
)
_SYMMETRIC_KERNEL = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce", re.IGNORECASE)
_REDUCES_TO_ALL = re.compile(r"all_?reduce|barrier|cross_device_reduce", re.IGNORECASE)
_POINT_TO_POINT = re.compile(r"i?send\w*|i?recv\w*|coalesced|batch_isend_irecv", re.IGNORECASE)
_POINT_TO_POINT_KERNEL = re.compile(r"send|recv", re.IGNORECASE)


def symmetric(kind: CommKind) -> bool:
    """Whether every member needs something of every other, so that none can end before the last has come.

    Not so of broadcast, reduce, scatter and gather, nor of an all-to-all whose parts may be empty.
    """
    if kind.recorded:
        return _SYMMETRIC.fullmatch(kind.collective) is not None
    return _SYMMETRIC_KERNEL.search(kind.collective.partition("<")[0].partition("(")[0]) is not None


def goes_round(kind: CommKind) -> bool:
    """Whether a member can be through before what it brought has reached all others: in all but an all-reduce."""
    return symmetric(kind) and _REDUCES_TO_ALL.search(kind.collective) is None


def point_to_point(kind: CommKind) -> bool:
    """Whether it is no collective, or one of a group of one."""
    if kind.recorded:
        return kind.group_size == 1 or _POINT_TO_POINT.fullmatch(kind.collective) is not None
    return _POINT_TO_POINT_KERNEL.search(kind.collective.partition("<")[0].partition("(")[0]) is not None


class Kernels(CommKernels, frozen=True):
    """All communication kernels of all ranks, as columns."""

    rank: I64
    """Place of the rank in the sequence given."""
    index: I64
    """The how many-th of its kind on its rank, from 0."""


class Meetings(Struct, frozen=True, eq=False):
    """Matched collectives: meeting `i` has the kernels `row[first[i] : first[i + 1]]`, two or more, one a rank."""

    kernels: Kernels
    first: I64
    """One more than there are meetings."""
    row: I64
    """Rows of `kernels`."""
    not_collective: int
    """How many kernels are point-to-point, or of a group of one."""

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def kind(self) -> I64:
        """Of each meeting."""
        return self.kernels.kind[self.row[self.first[:-1]]]

    @property
    def group(self) -> I64:
        """A number for the process group of each meeting."""
        groups: dict[tuple[str, str], int] = {}
        numbers = [groups.setdefault((kind.group, kind.ranks), len(groups)) for kind in self.kernels.kinds]
        return np.array(numbers, np.int64)[self.kind]

    @property
    def meeting(self) -> I64:
        """The meeting of each entry of `row`."""
        return np.repeat(np.arange(len(self)), np.diff(self.first))

    @property
    def by(self) -> Literal["metadata", "kernel-names", "both", "none"]:
        """What told the collectives apart."""
        recorded = {self.kernels.kinds[kind].recorded for kind in np.unique(self.kind).tolist()}
        if len(recorded) == 2:
            return "both"
        return "none" if not recorded else "metadata" if recorded.pop() else "kernel-names"

    def take(self, kept: Bool) -> Meetings:
        """Only those meetings."""
        sizes = np.diff(self.first)
        first = np.append(0, np.cumsum(sizes[kept]))
        return Meetings(self.kernels, first, self.row[np.repeat(kept, sizes)], self.not_collective)

    def recorded(self) -> Meetings:
        """Only those whose kernels say what they are."""
        good = np.array([kind.recorded for kind in self.kernels.kinds], np.bool_)
        return self.take(good[self.kind])

    def symmetric(self) -> Meetings:
        """Only those in which every member waits for every other."""
        good = np.array([symmetric(kind) for kind in self.kernels.kinds], np.bool_)
        return self.take(good[self.kind])


def gather(ranks: Sequence[ReducedRank]) -> Kernels:
    """The communication kernels of all ranks in one table, kinds told apart alike."""
    numbers: dict[CommKind, int] = {}
    kinds = [np.empty(0, np.int64)]
    for rank in ranks:
        own = [numbers.setdefault(kind, len(numbers)) for kind in rank.comm.kinds]
        kinds.append(np.array(own, np.int64)[rank.comm.kind])
    kind = np.concatenate(kinds)
    place = np.repeat(np.arange(len(ranks)), [len(rank.comm) for rank in ranks])
    names = ("start_ns", "end_ns", "step", "elements", "sequence")
    empty = np.empty(0, np.int64)
    columns = {name: np.concatenate([empty, *(getattr(rank.comm, name) for rank in ranks)]) for name in names}
    index, _ = _places([place, kind], columns["start_ns"])
    return Kernels(kinds=tuple(numbers), kind=kind, rank=place, index=index, **columns)


def match(kernels: Kernels, ranks: int) -> Meetings:
    """The collectives in which at least two of so many ranks met."""
    p2p = np.array([point_to_point(kind) for kind in kernels.kinds], np.bool_)
    collective = ~p2p[kernels.kind] if len(kernels) else np.empty(0, np.bool_)
    rows = np.flatnonzero(collective & _placed(kernels, ranks))
    counted = kernels.sequence[rows] >= 0
    phase = np.where(counted, kernels.sequence[rows], kernels.step[rows])
    bucket = _number([kernels.kind[rows], counted.astype(np.int64), phase])
    place, count = _places([bucket, kernels.rank[rows]], kernels.start_ns[rows])
    slot = _aligned(kernels, rows, bucket, place, count)
    order = np.lexsort((kernels.rank[rows], slot, bucket))
    order = order[slot[order] >= 0]
    rows, bucket, slot = rows[order], bucket[order], slot[order]
    first = _begins(bucket, slot)
    good = _sizes_agree(kernels, rows, first, bucket) & _all_there(kernels, rows, first, ranks)
    met = Meetings(kernels, np.append(first, len(rows)), rows, int((~collective).sum()))
    return met.take(good)


def _placed(kernels: Kernels, ranks: int) -> Bool:
    """Which kernels have a place that others can know: a count, a step, or their order where there are no steps."""
    stepless = np.bincount(kernels.rank[kernels.step >= 0], minlength=ranks) == 0
    placed: Bool = (kernels.sequence >= 0) | (kernels.step >= 0) | stepless[kernels.rank]
    return placed


def _aligned(kernels: Kernels, rows: I64, bucket: I64, place: I64, count: I64) -> I64:
    """The place of each kernel that means the same on all ranks of its bucket, or -1 where there is none."""
    if not len(rows):
        return place
    buckets = int(bucket.max()) + 1
    most = np.zeros(buckets, np.int64)
    np.maximum.at(most, bucket, count)
    fewer = count < most[bucket]
    rank, step = kernels.rank[rows], kernels.step[rows]
    steps = (kernels.step >= 0) & (kernels.sequence < 0)
    first = np.full(int(rank.max()) + 1, np.iinfo(np.int64).max)
    last = np.full(len(first), -1)
    np.minimum.at(first, rank[steps[rows]], step[steps[rows]])
    np.maximum.at(last, rank[steps[rows]], step[steps[rows]])
    # A bucket in which some rank has fewer is of use only where all that have fewer began, or ended, inside it.
    cut_at_start = ~fewer | ((step >= 0) & (step == first[rank]))
    cut_at_end = ~fewer | ((step >= 0) & (step == last[rank]))
    from_end = np.ones(buckets, np.bool_)
    from_start = np.ones(buckets, np.bool_)
    np.logical_and.at(from_end, bucket, cut_at_start)
    np.logical_and.at(from_start, bucket, cut_at_end)
    uneven = np.zeros(buckets, np.bool_)
    uneven[bucket[fewer]] = True
    counts_back = (uneven & from_end & ~from_start)[bucket]
    known = (~uneven | (from_end ^ from_start))[bucket]
    return np.where(known, np.where(counts_back, count - 1 - place, place), -1)


def _sizes_agree(kernels: Kernels, rows: I64, first: I64, bucket: I64) -> Bool:
    """Which meetings' members all sent alike; where one in a bucket does not, none of it is believed."""
    if not len(first):
        return np.empty(0, np.bool_)
    sent = kernels.elements[rows]
    least = np.minimum.reduceat(np.where(sent >= 0, sent, np.iinfo(np.int64).max), first)
    differ = np.maximum.reduceat(sent, first) > least
    alike = np.array([symmetric(kind) for kind in kernels.kinds], np.bool_)[kernels.kind[rows[first]]]
    doubted = np.zeros(int(bucket.max()) + 1, np.bool_)
    doubted[bucket[first[differ & alike]]] = True
    good: Bool = ~doubted[bucket[first]]
    return good


def _all_there(kernels: Kernels, rows: I64, first: I64, ranks: int) -> Bool:
    """Which meetings have two members or more and no more than their group; of kernels without a word, all ranks."""
    members = np.diff(np.append(first, len(rows)))
    kind = kernels.kind[rows[first]]
    recorded = np.array([told.recorded for told in kernels.kinds], np.bool_)[kind]
    size = np.array([told.group_size for told in kernels.kinds], np.int64)[kind]
    good: Bool = (members >= 2) & ((size < 0) | (members <= size)) & (recorded | (members == ranks))
    return good


def _number(columns: Sequence[I64]) -> I64:
    """The same number, from 0, for rows that are equal in all columns."""
    order = np.lexsort(columns[::-1])
    number = np.empty(len(order), np.int64)
    opens = np.zeros(len(order), np.bool_)
    opens[_begins(*(column[order] for column in columns))] = True
    number[order] = np.cumsum(opens) - 1
    return number


def _places(columns: Sequence[I64], start: I64) -> tuple[I64, I64]:
    """Of each row its place by start among those equal to it in all columns, and how many these are."""
    order = np.lexsort((start, *columns[::-1]))
    first = _begins(*(column[order] for column in columns))
    sizes = np.diff(np.append(first, len(order)))
    place, count = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(first, sizes)
    count[order] = np.repeat(sizes, sizes)
    return place, count


def _begins(*columns: I64) -> I64:
    """Where a new combination begins in columns that are sorted together."""
    opens = np.ones(len(columns[0]), np.bool_)
    if len(opens):
        opens[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(opens)
