"""Messages that the host sent to or received from single ranks, as PyTorch notes them, from a trace file.

The file is read again, because a Trace does not hold the arguments of CPU ops (`op_args`).
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from msgspec import Meta, Raw, Struct, field

from overlapscope.reading._events import NOTHING, decoded_text
from overlapscope.reading.op_args import read_args
from overlapscope.trace.model import Trace

NOTED_BY = "record_param_comms"
"""CPU op by which PyTorch notes what NCCL is to do (`ParamCommsUtils.cpp`)."""
_OPS = {"c10d::send": True, "c10d::recv_": False}
"""Ops of any backend, and whether they send."""
_PEER, _TAG = 2, 3
"""Places of the peer and of the tag among the inputs of these ops."""
_NUMBER = re.compile(r"[0-9]{1,9}")


class StatedMessage(NamedTuple):
    """A send or receive, as the host stated it."""

    op: int
    """Row of `Trace.cpu_ops`."""
    outgoing: bool
    peer: int
    """The other rank; -1 where unknown."""
    elements: int = -1
    dtype: str = ""
    group: str = ""
    """Name of the process group."""
    ranks: str = ""
    """Ranks of the group as text."""
    group_size: int = -1
    description: str = ""
    tag: int = 0


_Ordinal = Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)]
_Count = Annotated[int, Meta(ge=-1, le=1 << 50)]
"""Larger numbers are damage, and so the message is unknown."""


class _Noted(Struct, gc=False):
    collective: str = field(default="", name="Collective name")
    source: _Ordinal = field(default=-1, name="Src Rank")
    target: _Ordinal = field(default=-1, name="Dst Rank")
    elements: _Count = field(default=-1, name="In msg nelems")
    dtype: str = ""
    group: Raw = field(default=NOTHING, name="Process Group Name")
    ranks: Raw = field(default=NOTHING, name="Process Group Ranks")
    group_size: _Ordinal = field(default=-1, name="Group size")
    description: Raw = field(default=NOTHING, name="Process Group Description")


class _Inputs(Struct, gc=False):
    concrete: list[str] = field(default_factory=list, name="Concrete Inputs")


def noted_messages(trace: Trace) -> list[StatedMessage]:
    """Return the messages that PyTorch noted for NCCL. A note that can't be read may be a message with any rank."""
    rows = trace.cpu_ops.named(lambda name: name == NOTED_BY).nonzero()[0]
    read = dict(read_args(trace, trace.cpu_ops.take(rows), _Noted))
    return [
        _message(op, read[number]) if number in read else StatedMessage(op, outgoing=True, peer=-1)
        for number, op in enumerate(rows.tolist())
        if number not in read or read[number].collective in ("send", "recv")
    ]


def _message(op: int, noted: _Noted) -> StatedMessage:
    outgoing = noted.collective == "send"
    return StatedMessage(
        op=op,
        outgoing=outgoing,
        peer=noted.target if outgoing else noted.source,
        elements=noted.elements,
        dtype=noted.dtype,
        group=decoded_text(noted.group),
        ranks=decoded_text(noted.ranks),
        group_size=noted.group_size,
        description=decoded_text(noted.description),
    )


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
