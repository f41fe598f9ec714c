"""Communication kernels of one device, and the messages that they send to or receive from single other ranks.

A kernel has one message, or all those of a call of `batch_isend_irecv`. NCCL launches the latter after all of them were
noted on the host, outside their notes. On the host, a range such as `gloo:send` is one message. It begins when the
program has started the send or receive, whose data may be under way since the op that starts it began. It ends when
the program has waited for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Raw, Struct, field
from msgspec.structs import replace

from overlapscope.analysis.comm_kinds import CommKind
from overlapscope.analysis.messages import bytes_of_type, element_bytes, has_splits, split_rows
from overlapscope.analysis.periods import is_step
from overlapscope.base.columns import Columns, pick
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64
from overlapscope.base.marks import step_number
from overlapscope.reading._events import NOTHING, decoded_text
from overlapscope.reading.op_args import read_args
from overlapscope.trace.model import Collectives, GpuOps, HostEvents, Trace

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


def step_numbers(notes: HostEvents, at: I64) -> I64:
    """Return the number of the profiler step at each moment on the host, or -1. `notes` has the steps."""
    rows = np.flatnonzero(is_step(notes))
    numbers = np.array([step_number(notes.name(row)) for row in rows.tolist()], np.int64)
    step = np.searchsorted(notes.start_ns[rows], at, side="right") - 1
    inside = (step >= 0) & (at < pick(notes.end_ns[rows], step, 0))
    return np.where(inside, pick(numbers, step), -1)


# -- All-to-alls with split sizes --------------------------------------------------------------------


class Exchanges(Columns, frozen=True):
    """All-to-alls with split sizes, one row for each kernel."""

    kernel: I64
    """Row of the kernel among those of its rank, or of all ranks."""
    element_bytes: I64
    """Size of an element; -1 where unknown."""
    sent: I64
    """Number of elements sent, to the rank itself included; -1 where unknown."""
    received: I64
    """Number of elements received; -1 where unknown."""
    sent_rows: I64
    """Sum of the split sizes of the tensor sent: its rows, such as tokens; -1 where unknown."""
    received_rows: I64


def find_exchanges(recorded: Collectives, names: Sequence[str], row: I64) -> Exchanges:
    """Return the exchanges among some kernels. `row` has the row of each in `recorded`, -1 for none."""
    kernel = np.flatnonzero(pick(has_splits(recorded, names), row, False))
    columns = {
        "element_bytes": element_bytes(recorded, names),
        "sent": recorded.elements_in,
        "received": recorded.elements_out,
        "sent_rows": split_rows(recorded.parts_in, names),
        "received_rows": split_rows(recorded.parts_out, names),
    }
    return Exchanges(kernel=kernel, **{name: pick(column, row[kernel]) for name, column in columns.items()})


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
    kernels = _point_to_point_rows(comm)
    kernels = kernels[ops.launch[kernels] >= 0]
    if not len(kernels):
        return comm, NO_MESSAGES
    of_kernel = _by_launch(trace, kernels, ops.launch[kernels], noted_messages(trace))
    return _with_batches(comm, of_kernel), _table(trace, comm, of_kernel, None)


def on_host(trace: Trace, comm: CommKernels, ranges: HostEvents) -> Messages:
    """Return the messages of ranges on the host, which are given as kernels and as ranges."""
    rows = _point_to_point_rows(comm)
    of_range: dict[int, list[StatedMessage]] = {}
    if len(rows):
        ops, stated = trace.cpu_ops, op_messages(trace)
        op = np.array([each.op for each in stated], np.int64)
        for thread, numbers in rows_by(ops.thread[op]):
            at = numbers[np.argsort(ops.start_ns[op[numbers]], kind="stable")]
            ranges_of_thread = rows[ranges.thread[rows] == thread]
            before = np.searchsorted(ops.start_ns[op[at]], ranges.start_ns[ranges_of_thread], side="right") - 1
            # The range begins inside the op that starts it.
            inside = (before >= 0) & (ops.end_ns[op[at[before]]] >= ranges.start_ns[ranges_of_thread])
            for row, number in zip(ranges_of_thread[inside].tolist(), at[before[inside]].tolist(), strict=True):
                of_range[row] = [stated[number]]
    return _table(trace, comm, of_range, trace.cpu_ops)


def _point_to_point_rows(comm: CommKernels) -> I64:
    kinds = np.array([is_message(kind) for kind in comm.kinds], np.bool_)
    return np.flatnonzero(kinds[comm.kind]) if len(kinds) else np.empty(0, np.int64)


def _by_launch(
    trace: Trace, kernels: I64, launch: I64, stated: Sequence[StatedMessage]
) -> dict[int, list[StatedMessage]]:
    """Return the messages of each kernel, as far as they are certain."""
    calls, ops = trace.runtime_calls, trace.cpu_ops
    found: dict[int, list[StatedMessage]] = {}
    for thread in distinct(calls.thread[launch]).tolist():
        mine = np.flatnonzero(calls.thread[launch] == thread)
        events: list[tuple[int, int, int]] = [
            *((int(calls.start_ns[launch[at]]), 1, int(kernels[at])) for at in mine.tolist()),
            *((int(ops.start_ns[each.op]), 0, at) for at, each in enumerate(stated) if ops.thread[each.op] == thread),
        ]
        found |= _in_order(sorted(events), stated, ops.end_ns)
    return found


def _in_order(
    events: Sequence[tuple[int, int, int]], stated: Sequence[StatedMessage], end_ns: I64
) -> dict[int, list[StatedMessage]]:
    """Return the messages of the kernels of a thread, from its notes (0) and launches (1) by time."""
    found: dict[int, list[StatedMessage]] = {}
    pending: list[StatedMessage] = []
    before = -1
    for at_ns, is_launch, number in events:
        if not is_launch:
            pending.append(stated[number])
            before = -1
        elif pending:
            alone = at_ns < end_ns[pending[-1].op]
            found[number] = pending[-1:] if alone else pending
            pending, before = [], number
        else:
            # A second kernel for the same notes: it is unknown which has which.
            found.pop(before, None)
    return found


def _with_batches(comm: CommKernels, of_kernel: dict[int, list[StatedMessage]]) -> CommKernels:
    """Return the kernels with kind and size of those whose kernel states nothing itself."""
    kinds = {kind: number for number, kind in enumerate(comm.kinds)}
    kind, size = comm.kind.copy(), comm.bytes.copy()
    for row, messages in of_kernel.items():
        noted = messages[0].noted
        if not comm.kinds[kind[row]].recorded:
            group, ranks, description = map(decoded_text, (noted.group, noted.ranks, noted.description))
            batch = CommKind(BATCH, group, ranks, noted.group_size, description=description)
            kind[row] = kinds.setdefault(batch, len(kinds))
            size[row] = _largest_side(messages)
    return replace(comm, kinds=tuple(kinds), kind=kind, bytes=size)


def _largest_side(messages: Sequence[StatedMessage]) -> int:
    """Return the bytes sent or those received, whichever are more; -1 where unknown."""
    sizes = [(message.outgoing, _bytes(message)) for message in messages]
    if any(size < 0 for _, size in sizes):
        return -1
    return max(sum(size for outgoing, size in sizes if outgoing == side) for side in (True, False))


def _bytes(message: StatedMessage) -> int:
    element, elements = bytes_of_type(message.noted.dtype), message.noted.elements
    return element * elements if element > 0 and elements >= 0 else -1


def _table(
    trace: Trace, comm: CommKernels, of_kernel: dict[int, list[StatedMessage]], starters: HostEvents | None
) -> Messages:
    """Return the messages of all kernels of which every peer is known. `starters` are the ops that start ranges."""
    channels: dict[str, int] = {}

    def rows() -> Iterator[tuple[int, ...]]:
        for kernel, messages in sorted(of_kernel.items()):
            if all(message.peer >= 0 for message in messages):
                for each in messages:
                    group, ranks = decoded_text(each.noted.group), decoded_text(each.noted.ranks)
                    channel = " ".join(filter(None, (group, ranks, f"tag {each.tag}" if each.tag else "")))
                    size = _bytes(each) if each.noted.dtype else int(comm.bytes[kernel])
                    begin = int(comm.start_ns[kernel] if starters is None else starters.start_ns[each.op])
                    yield kernel, begin, each.outgoing, each.peer, size, channels.setdefault(channel, len(channels))

    columns = np.array(list(rows()), np.int64).reshape(-1, 6).T
    steps = trace.annotations.take(is_step(trace.annotations))
    ended = steps.take(steps.end_ns < trace.end_ns) if trace.end_ns >= 0 else steps
    return Messages(tuple(channels), tuple(map(step_number, map(ended.name, range(len(ended))))), *columns)


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
    """What a note states of a message."""

    collective: str = field(default="", name="Collective name")
    source: _Ordinal = field(default=-1, name="Src Rank")
    target: _Ordinal = field(default=-1, name="Dst Rank")
    elements: _Count = field(default=-1, name="In msg nelems")
    dtype: str = ""
    group: Raw = field(default=NOTHING, name="Process Group Name")
    ranks: Raw = field(default=NOTHING, name="Process Group Ranks")
    group_size: _Ordinal = field(default=-1, name="Group size")
    description: Raw = field(default=NOTHING, name="Process Group Description")


class StatedMessage(NamedTuple):
    """A send or receive, as the host stated it."""

    op: int
    """Row of `Trace.cpu_ops`."""
    outgoing: bool
    peer: int
    """The other rank; -1 where unknown."""
    tag: int = 0
    noted: _Noted = _Noted()


class _Inputs(Struct, gc=False):
    concrete: list[str] = field(default_factory=list, name="Concrete Inputs")


def noted_messages(trace: Trace) -> list[StatedMessage]:
    """Return the messages that PyTorch noted for NCCL. A note that can't be read may be a message with any rank."""
    rows = trace.cpu_ops.named(lambda name: name == NOTED_BY).nonzero()[0]
    read = dict(read_args(trace, trace.cpu_ops.take(rows), _Noted))
    messages = []
    for number, op in enumerate(rows.tolist()):
        noted = read.get(number)
        if noted is None:
            messages.append(StatedMessage(op, outgoing=True, peer=-1))
        elif noted.collective in ("send", "recv"):
            outgoing = noted.collective == "send"
            messages.append(StatedMessage(op, outgoing, noted.target if outgoing else noted.source, noted=noted))
    return messages


def op_messages(trace: Trace) -> list[StatedMessage]:
    """Return the messages of the ops that start one, whatever the backend.

    With two ranks the peer is the other one. With more, it stands in the inputs, if they were recorded. It counts
    within the process group, which is that of all ranks only if there is no other.
    """
    ops = trace.cpu_ops
    rows = ops.named(_OPS.__contains__).nonzero()[0]
    stated: dict[int, tuple[int, int]] = {}
    if trace.process_groups == 1:
        for number, inputs in read_args(trace, ops.take(rows), _Inputs):
            texts = inputs.concrete[_PEER : _TAG + 1]
            if len(texts) == 2 and all(map(_NUMBER.fullmatch, texts)):
                stated[number] = int(texts[0]), int(texts[1])
    other = 1 - trace.rank if trace.world_size == 2 and trace.rank in (0, 1) else -1
    messages = []
    for number, op in enumerate(rows.tolist()):
        peer, tag = stated.get(number, (other, 0))
        messages.append(StatedMessage(op, outgoing=_OPS[ops.name(op)], peer=peer, tag=tag))
    return messages
