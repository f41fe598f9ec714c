"""Communication kernels of one device, and the messages that they send to or receive from single other ranks.

A kernel has one message, or all those of a call of `batch_isend_irecv`. NCCL launches the latter after all of them were
noted on the host, outside their notes. On the host, a range such as `gloo:send` is one message. It begins when the
program has started the send or receive, whose data may be under way since the op that starts it began. It ends when
the program has waited for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final

import numpy as np
from msgspec import Meta, Raw, Struct, field
from msgspec.structs import replace

from overlapscope.analysis.collectives import CommKind, bytes_of_type
from overlapscope.analysis.periods import is_step
from overlapscope.base.columns import Columns, pick
from overlapscope.base.grouping import group_starts, numbered, rows_by
from overlapscope.base.intervals import I64, Bool, expand
from overlapscope.base.marks import step_number
from overlapscope.reading._events import NOTHING, decoded_text
from overlapscope.reading.op_args import read_args
from overlapscope.trace.model import GpuOps, HostEvents, Trace

# -- Kernels -----------------------------------------------------------------------------------------


class CommKernels(Columns, frozen=True):
    """Communication kernels of one device by start, one row each."""

    kinds: tuple[CommKind, ...]
    """All kinds, each once; not a column."""
    start_ns: I64
    end_ns: I64
    kind: I64
    """Index into `kinds`."""
    step: I64
    """Number of the profiler step whose host part launched it; -1 where the launch or the step was not recorded."""
    elements: I64
    """Number of elements sent by this rank; -1 where not recorded."""
    sequence: I64
    """The process group's own count; -1 where not recorded."""
    received: I64
    """Number of elements received by this rank; -1 where not recorded."""
    bytes: I64
    """Size of the message, of the larger buffer; -1 where unknown."""
    reaches_all: I64
    """1 if an all-to-all has data for and from every member, 0 if not, -1 where unknown."""
    splits: I64
    """1 if it was called with split sizes, 0 if not, -1 where unknown."""
    element_bytes: I64
    """Size of an element; -1 where unknown."""
    sent_rows: I64
    """Sum of the split sizes of the tensor sent: its rows, such as tokens; -1 where unknown."""
    received_rows: I64

    def by_kind(self, figure: Callable[[CommKind], int]) -> I64:
        """Return a figure of each kind, to be indexed with `kind`."""
        return np.array([figure(kind) for kind in self.kinds], np.int64)

    def of_kinds(self, holds: Callable[[CommKind], bool]) -> Bool:
        """Return a mask of the kernels of the kinds for which something holds."""
        mask: Bool = self.by_kind(holds)[self.kind] != 0
        return mask


UNRECORDED: Final = (
    "elements",
    "sequence",
    "received",
    "reaches_all",
    "splits",
    "element_bytes",
    "sent_rows",
    "received_rows",
)
"""Columns that only kernels with metadata have."""


def step_numbers(notes: HostEvents, at: I64) -> I64:
    """Return the number of the profiler step at each moment on the host, or -1. `notes` has the steps."""
    rows = np.flatnonzero(is_step(notes))
    numbers = np.array([step_number(notes.name(row)) for row in rows.tolist()], np.int64)
    step = np.searchsorted(notes.start_ns[rows], at, side="right") - 1
    inside = (step >= 0) & (at < pick(notes.end_ns[rows], step, 0))
    return np.where(inside, pick(numbers, step), -1)


# -- Messages ----------------------------------------------------------------------------------------

BATCH = "batch_isend_irecv"
_POINT_TO_POINT = re.compile(rf"i?send\w*|i?recv\w*|coalesced|{BATCH}", re.IGNORECASE)
_POINT_TO_POINT_KERNEL = re.compile(r"send|recv", re.IGNORECASE)


def point_to_point(kind: CommKind) -> bool:
    """Return whether it is not a collective, or a collective of a single rank."""
    if kind.recorded:
        return kind.group_size == 1 or _POINT_TO_POINT.fullmatch(kind.collective) is not None
    return _POINT_TO_POINT_KERNEL.search(kernel_name(kind)) is not None


def is_message(kind: CommKind) -> bool:
    """Return whether it sends to or receives from single other ranks."""
    return point_to_point(kind) and kind.group_size != 1


def kernel_name(kind: CommKind) -> str:
    """Return the name of a kernel without template parameters and arguments."""
    return kind.collective.partition("<")[0].partition("(")[0]


class Messages(Columns, frozen=True):
    """Messages of one rank by kernel, one row each. Those of one kernel are in the order in which they were issued."""

    channels: tuple[str, ...]
    """Process groups, each with the tag; not a column. Messages between two ranks keep their order in a channel."""
    whole_steps: tuple[int, ...]
    """Numbers of the steps whose ranges were recorded to their ends; not a column."""
    kernel: I64
    """Row in `CommKernels`."""
    begin_ns: I64
    """Start of its kernel or, on the host, of the op that started it."""
    outgoing: I64
    """1 if the rank sends it, 0 if it receives it."""
    peer: I64
    """The other rank."""
    bytes: I64
    """Size; -1 where unknown."""
    channel: I64
    """Index into `channels`."""


NO_MESSAGES = Messages.empty(channels=(), whole_steps=())


def on_device(trace: Trace, ops: GpuOps, comm: CommKernels) -> tuple[CommKernels, Messages]:
    """Return the messages of a device's kernels, and the kernels with the kinds and sizes of batches.

    Args:
        trace: The trace.
        ops: The communication kernels as ops.
        comm: The same kernels.
    """
    kernels = np.flatnonzero(comm.of_kinds(is_message) & (ops.launch >= 0))
    if not len(kernels):
        return comm, NO_MESSAGES
    stated = _noted(trace)
    launch, row = _by_launch(trace, ops.launch[kernels], stated)
    order = np.argsort(kernels[launch], kind="stable")
    kernel, stated = kernels[launch[order]], stated.take(row[order])
    return _with_batches(comm, kernel, stated), _table(trace, comm, kernel, stated, comm.start_ns[kernel])


def on_host(trace: Trace, comm: CommKernels, ranges: HostEvents) -> Messages:
    """Return the messages of ranges on the host, which are given as kernels and as ranges."""
    rows, ops = np.flatnonzero(comm.of_kinds(is_message)), trace.cpu_ops
    stated = _started(trace) if len(rows) else _Stated.empty(channels=(), batches=())
    number = np.full(len(rows), -1)
    for thread, of_thread in rows_by(ops.thread[stated.op]):
        at = of_thread[np.argsort(ops.start_ns[stated.op[of_thread]], kind="stable")]
        on_thread = np.flatnonzero(ranges.thread[rows] == thread)
        start = ranges.start_ns[rows[on_thread]]
        before = pick(at, np.searchsorted(ops.start_ns[stated.op[at]], start, side="right") - 1)
        # The range begins inside the op that starts it.
        number[on_thread] = np.where(pick(ops.end_ns, pick(stated.op, before)) >= start, before, -1)
    known = number >= 0
    stated = stated.take(number[known])
    return _table(trace, comm, rows[known], stated, ops.start_ns[stated.op])


def _by_launch(trace: Trace, launch: I64, stated: _Stated) -> tuple[I64, I64]:
    """Return launches, by their places, each with the messages that are certainly its own, by their rows."""
    calls, ops = trace.runtime_calls, trace.cpu_ops
    places, rows = [launch[:0]], [launch[:0]]
    for thread, on_thread in rows_by(calls.thread[launch]):
        on_thread = on_thread[np.argsort(calls.start_ns[launch[on_thread]], kind="stable")]
        noted = np.flatnonzero(ops.thread[stated.op] == thread)
        noted = noted[np.argsort(ops.start_ns[stated.op[noted]], kind="stable")]
        at, op = calls.start_ns[launch[on_thread]], stated.op[noted]
        behind = np.searchsorted(ops.start_ns[op], at, side="right")
        first, following = np.append(0, behind[:-1]), np.append(behind[1:], len(noted) + 1)
        # Without notes in between, it is unknown which of two kernels has the messages.
        is_certain = (first < behind) & (behind < following)
        within_note = at < pick(ops.end_ns, pick(op, behind - 1))
        number, place = expand(np.where(within_note, behind - 1, first)[is_certain], behind[is_certain])
        places.append(on_thread[is_certain][number])
        rows.append(noted[place])
    return np.concatenate(places), np.concatenate(rows)


def _with_batches(comm: CommKernels, kernel: I64, stated: _Stated) -> CommKernels:
    """Return the kernels with kind and size of those that state nothing themselves, given the messages of kernels."""
    kinds = {kind: number for number, kind in enumerate(comm.kinds)}
    kind, size, first = comm.kind.copy(), comm.bytes.copy(), group_starts(kernel)
    least, sent, received = (
        each.reduceat(values, first)
        for each, values in (
            (np.minimum, stated.bytes),
            (np.add, stated.bytes * stated.outgoing),
            (np.add, stated.bytes * (1 - stated.outgoing)),
        )
    )
    # The bytes sent or those received, whichever are more.
    larger = np.where(least < 0, -1, np.maximum(sent, received))
    for row, batch, moved in zip(kernel[first].tolist(), stated.batch[first].tolist(), larger.tolist(), strict=True):
        if not comm.kinds[kind[row]].recorded:
            kind[row], size[row] = kinds.setdefault(stated.batches[batch], len(kinds)), moved
    return replace(comm, kinds=tuple(kinds), kind=kind, bytes=size)


def _table(trace: Trace, comm: CommKernels, kernel: I64, stated: _Stated, begin_ns: I64) -> Messages:
    """Return the messages of all kernels of which every peer is known, given the kernel of each message in order."""
    known = np.isin(kernel, kernel[stated.peer < 0], invert=True)
    kernel, begin_ns, stated = kernel[known], begin_ns[known], stated.take(known)
    steps = trace.annotations.take(is_step(trace.annotations))
    ended = steps.take(steps.end_ns < trace.end_ns) if trace.end_ns >= 0 else steps
    return Messages(
        channels=stated.channels,
        whole_steps=tuple(map(step_number, map(ended.name, range(len(ended))))),
        kernel=kernel,
        begin_ns=begin_ns,
        outgoing=stated.outgoing,
        peer=stated.peer,
        bytes=np.where(stated.bytes == _NOT_STATED, comm.bytes[kernel], stated.bytes),
        channel=stated.channel,
    )


# -- Messages as PyTorch notes them, from the trace file ----------------------------------------------


NOTED_BY = "record_param_comms"
"""CPU op by which PyTorch notes what NCCL is to do (`ParamCommsUtils.cpp`)."""
_OPS = {"c10d::send": True, "c10d::recv_": False}
"""Ops of any backend, and whether they send."""
_PEER, _TAG = 2, 3
"""Places of the peer and of the tag among the inputs of these ops."""
_NUMBER = re.compile(r"[0-9]{1,9}")


_Ordinal = Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)]
_Count = Annotated[int, Meta(ge=-1, le=1 << 50)]
"""Larger numbers are damage, and so the message is unknown."""


class _Noted(Struct, frozen=True, gc=False):
    """Content of a note on a message."""

    collective: str = field(default="", name="Collective name")
    source: _Ordinal = field(default=-1, name="Src Rank")
    target: _Ordinal = field(default=-1, name="Dst Rank")
    elements: _Count = field(default=-1, name="In msg nelems")
    dtype: str = ""
    group: Raw = field(default=NOTHING, name="Process Group Name")
    ranks: Raw = field(default=NOTHING, name="Process Group Ranks")
    group_size: _Ordinal = field(default=-1, name="Group size")
    description: Raw = field(default=NOTHING, name="Process Group Description")


_NOT_STATED = -2
"""Size of a message whose note has no type: that of its kernel. A note with a type may still leave the size unknown."""
_UNREADABLE = _Noted(collective="send")
"""A note that can't be read may be a message with any rank."""


class _Inputs(Struct, gc=False):
    concrete: list[str] = field(default_factory=list, name="Concrete Inputs")


class _Stated(Columns, frozen=True):
    """Sends and receives as the host stated them, one row each."""

    channels: tuple[str, ...]
    batches: tuple[CommKind, ...]
    """Kinds of batches of these messages."""
    op: I64
    """Row of `Trace.cpu_ops`."""
    outgoing: I64
    peer: I64
    """The other rank; -1 where unknown."""
    bytes: I64
    """Size; -1 where unknown, `_NOT_STATED` where nothing is stated."""
    channel: I64
    batch: I64
    """Index into `batches`."""


def _noted(trace: Trace) -> _Stated:
    """Return the messages that PyTorch noted for NCCL."""
    rows = trace.cpu_ops.named(lambda name: name == NOTED_BY).nonzero()[0]
    read = dict(read_args(trace, trace.cpu_ops.take(rows), _Noted))
    batches, messages = dict[CommKind, int](), list[tuple[int, ...]]()
    for number, op in enumerate(rows.tolist()):
        noted = read.get(number, _UNREADABLE)
        if noted.collective in ("send", "recv"):
            group, ranks, description = map(decoded_text, (noted.group, noted.ranks, noted.description))
            kind = CommKind(BATCH, group, ranks, noted.group_size, description=description)
            element, outgoing = bytes_of_type(noted.dtype), noted.collective == "send"
            size = element * noted.elements if element > 0 and noted.elements >= 0 else -1
            size = size if noted.dtype else _NOT_STATED
            peer, batch = noted.target if outgoing else noted.source, batches.setdefault(kind, len(batches))
            messages.append((op, outgoing, peer, size, batch, batch))
    channels = tuple(" ".join(filter(None, (kind.group, kind.ranks))) for kind in batches)
    return _Stated(channels, tuple(batches), *np.array(messages, np.int64).reshape(-1, 6).T)


def _started(trace: Trace) -> _Stated:
    """Return the messages of the ops that start one, whatever the backend.

    With two ranks the peer is the other one. With more, it stands in the inputs, if they were recorded. It counts
    within the process group, which is that of all ranks only if there is no other.
    """
    ops = trace.cpu_ops
    rows = ops.named(_OPS.__contains__).nonzero()[0]
    other = 1 - trace.rank if trace.world_size == 2 and trace.rank in (0, 1) else -1
    peer, tag = np.full(len(rows), other), np.zeros(len(rows), np.int64)
    if trace.process_groups == 1:
        for number, inputs in read_args(trace, ops.take(rows), _Inputs):
            texts = inputs.concrete[_PEER : _TAG + 1]
            if len(texts) == 2 and all(map(_NUMBER.fullmatch, texts)):
                peer[number], tag[number] = int(texts[0]), int(texts[1])
    tags, channel = numbered(tag)
    return _Stated.filled(
        channels=tuple(f"tag {each}" if each else "" for each in tags.tolist()),
        batches=(),
        op=rows,
        outgoing=np.array([_OPS[ops.name(row)] for row in rows.tolist()], np.int64),
        peer=peer,
        bytes=_NOT_STATED,
        channel=channel,
        batch=-1,
    )
