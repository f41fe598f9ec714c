"""Pairing of messages: which send of one rank is which receive of another, what each waited for, and clocks from that.

Messages between two ranks keep their order within a channel (process group and tag). They are paired by their places in
a step that both ranks recorded as a whole. A direction is left out if anything contradicts: sizes that differ, or a
receive that ends before its send began.

A side waits until the other side has begun. A send that ended before its receive began was buffered and did not wait.
A kernel with several messages ends after all of them, so it waits for the last of its counterparts. It is judged only
if all its messages are paired. No rank is charged with these waits: a stage that waits while a pipeline fills does not
wait for a slow rank.

Messages relate clocks where no collective does, since no receive can end before its send began. With `offset` as a
clock's lead over the reference, each message says

    offset_receiver - offset_sender <= end of the receive - start of the send

Messages in both directions bound an offset from both sides, and those along a chain of ranks bound that of its ends.
The estimate is zero if the bounds allow it, since clocks are mostly set to the same time, and otherwise their middle.
Ranks whose clocks are related by collectives, such as the replicas of a stage, keep their offsets within such a set.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.collectives import CommKind
from overlapscope.base.columns import locate, mask_of, pick
from overlapscope.base.grouping import distinct, distinct_rows, groups_of, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.base.marks import step_number
from overlapscope.ranks.clocks import TIMESTAMP_ERROR_NS, Offsets, components
from overlapscope.ranks.collectives import Kernels, Meetings, met_by_order, on_host
from overlapscope.ranks.messages import UNRECORDED
from overlapscope.ranks.reduced import ComparedRank

NO_CLOCKS_NS = np.int64(1) << 61
"""Error of clocks that are unknown."""


class MessageSides(Kernels, frozen=True):
    """Messages of all ranks compared, as the sides that each rank recorded, one row each.

    A side lasts from its begin to the end of its kernel. A kind is a direction between two ranks in a channel.
    """

    kernel: I64
    """Row of its kernel in the `Kernels` of all communication."""
    kernel_start_ns: I64
    outgoing: Bool
    """True if the side sends."""
    comparable: Bool
    """True in steps recorded as a whole, and for all sides of ranks without steps."""


class PairedMessages(Struct, frozen=True, eq=False):
    """Messages of which both sides are known."""

    sides: MessageSides
    met: Meetings
    """Meetings of two sides each."""
    contradicted: Bool
    """Mask of the sides left out because sizes or times contradict the pairing, or leave others possible."""

    @property
    def ends(self) -> tuple[I64, I64]:
        """Rows in `sides` of each message's send and of its receive."""
        first, second = self.met.row[self.met.first[:-1]], self.met.row[self.met.first[1:] - 1]
        sends = self.sides.outgoing[first]
        return np.where(sends, first, second), np.where(sends, second, first)

    def leads(self, ranks: int) -> tuple[I64, I64]:
        """Return pairs of ranks in order (sender * ranks + receiver), and the receiver's maximum lead over the sender.

        No receive can end before its send began.
        """
        (send, receive), sides = self.ends, self.sides
        pairs, number = np.unique(sides.rank[send] * ranks + sides.rank[receive], return_inverse=True)
        at_most = np.full(len(pairs), NO_CLOCKS_NS)
        np.minimum.at(at_most, number, sides.end_ns[receive] - sides.start_ns[send])
        return pairs, at_most


class MessageWaits(Struct, frozen=True, eq=False):
    """Waiting of the kernels whose messages are all paired, one row each. Kernels are by row."""

    paired: PairedMessages
    kernel: I64
    waited_ns: I64
    """Time until the last counterpart has begun, at most the kernel's length."""


def _directions(rank: ComparedRank, numbers: dict[CommKind, int]) -> I64:
    """Return the number of each message's direction: the ranks and the channel. New directions get new numbers."""
    messages = rank.messages
    if not len(messages):
        return messages.kernel
    columns = (messages.outgoing, messages.peer, messages.channel)
    kinds = []
    for sends, peer, channel in distinct_rows(columns):
        source, target = (rank.rank, peer) if sends else (peer, rank.rank)
        direction = CommKind(f"{source} to {target}", messages.channels[channel], group_size=2)
        kinds.append(numbers.setdefault(direction, len(numbers)))
    return np.array(kinds, np.int64)[groups_of(columns)]


def pair(ranks: Sequence[ComparedRank]) -> PairedMessages:
    """Return the messages that are paired by order, without those whose sizes contradict."""
    numbers: dict[CommKind, int] = {}
    parts = [MessageSides.empty(kinds=(), lossy=())]
    before = 0
    for place, rank in enumerate(ranks):
        messages, comm = rank.messages, rank.comm.take(rank.messages.kernel)
        unknown = dict.fromkeys(("index", *UNRECORDED), -1)
        parts.append(
            MessageSides.filled(
                kinds=(),
                lossy=(),
                start_ns=messages.begin_ns,
                end_ns=comm.end_ns,
                kind=_directions(rank, numbers),
                step=comm.step,
                bytes=messages.bytes,
                rank=place,
                kernel=messages.kernel + before,
                kernel_start_ns=comm.start_ns,
                outgoing=messages.outgoing,
                comparable=np.isin(comm.step, messages.whole_steps) | (rank.comm.step < 0).all(),
                **unknown,
            )
        )
        before += len(rank.comm)
    sides = MessageSides.joined(parts)
    sides = replace(sides, kinds=tuple(numbers), index=np.arange(len(sides)))
    met = met_by_order(sides, sides.comparable, len(ranks))
    # If a rank has several devices, two of them may send the same way.
    first, last = met.row[met.first[:-1]], met.row[met.first[1:] - 1]
    met = met.take(sides.outgoing[first] != sides.outgoing[last])
    paired = PairedMessages(sides, met, mask_of(first[:0], len(sides)))
    send, receive = paired.ends
    size = sides.bytes
    return _without(paired, (size[send] >= 0) & (size[receive] >= 0) & (size[send] != size[receive]))


def consistent(ranks: Sequence[ComparedRank], paired: PairedMessages, offsets: Offsets) -> PairedMessages:
    """Return the messages of the directions in which times are consistent with this pairing and with no other.

    A receive can't end before its send began. If every receive of a direction also ended after the send that follows
    its own began, it may belong to that one: the program starts receives a step ahead, or clocks are too uncertain. No
    send follows the last one before the sender's window ends.
    """
    send, receive = paired.ends
    sides, doubt = paired.sides, _clock_error_ns(offsets, paired)
    offset, sent, kind = offsets.offset_ns[sides.rank], sides.start_ns[send], paired.met.kind
    latest_end = sides.end_ns[receive] - offset[receive] + offset[send] + doubt
    # Start of the send that follows each send in its direction, or the end of the window.
    next_send = np.array([rank.end_ns for rank in ranks], np.int64)[sides.rank]
    sends = np.flatnonzero(sides.outgoing)
    order = sends[np.lexsort((sends, sides.start_ns[sends], sides.kind[sends]))]
    same = sides.kind[order[:-1]] == sides.kind[order[1:]]
    next_send[order[:-1][same]] = sides.start_ns[order[1:][same]]
    excludes_next = mask_of(kind[latest_end < next_send[send]], len(sides.kinds))
    return _without(paired, (doubt < NO_CLOCKS_NS) & ((latest_end < sent) | ~excludes_next[kind]))


def _clock_error_ns(offsets: Offsets, paired: PairedMessages) -> I64:
    """Return the maximum error between the clocks of each message's ranks; `NO_CLOCKS_NS` where they are unknown.

    The messages between two ranks can bound it closer than the errors against the reference.
    """
    sender, receiver = (paired.sides.rank[side] for side in paired.ends)
    error, reference, ranks = offsets.error_ns, offsets.reference, len(offsets.offset_ns)
    known = (error[sender] >= 0) & (error[receiver] >= 0) & (reference[sender] == reference[receiver])
    pairs, at_most = paired.leads(ranks)
    lead = offsets.offset_ns[receiver] - offsets.offset_ns[sender]
    lead_bound, lag_bound = (
        pick(at_most, locate(pairs, one * ranks + other), int(NO_CLOCKS_NS))
        for one, other in ((sender, receiver), (receiver, sender))
    )
    between = np.maximum(np.maximum(lead_bound - lead, lag_bound + lead), 0)
    doubt = np.minimum(between, error[sender] + error[receiver]) + TIMESTAMP_ERROR_NS
    return np.where(known, doubt, NO_CLOCKS_NS)


def _without(paired: PairedMessages, contradicts: Bool) -> PairedMessages:
    """Return the messages of the directions in which nothing contradicts."""
    met, sides = paired.met, paired.sides
    doubted = mask_of(met.kind[contradicts], len(sides.kinds))[met.kind] if len(met) else contradicts
    contradicted = paired.contradicted | mask_of(met.take(doubted).row, len(sides))
    return PairedMessages(sides, met.take(~doubted), contradicted)


def message_waits(ranks: Sequence[ComparedRank], paired: PairedMessages, offsets: Offsets) -> MessageWaits:
    """Return the waiting of the kernels whose messages are all paired with known clocks, after every lead-in.

    The first receives of a judged step may begin before its first compute, while the lead-in still lasts.
    """
    sides = paired.sides
    judged_from = np.array([rank.judged_from_ns for rank in ranks], np.int64)
    late_enough = sides.start_ns >= judged_from[sides.rank]
    for place, rows in rows_by(sides.rank):
        late_enough[rows] |= np.isin(sides.step[rows], [*map(step_number, ranks[place].steps.windows())])
    send, receive = paired.ends
    good = (_clock_error_ns(offsets, paired) < NO_CLOCKS_NS) & late_enough[send] & late_enough[receive]
    send, receive = send[good], receive[good]
    paired_side = mask_of(np.concatenate([send, receive]), len(sides))
    offset = offsets.offset_ns[sides.rank]
    begin, start, end = (ns - offset for ns in (sides.start_ns, sides.kernel_start_ns, sides.end_ns))
    waited = np.zeros(len(sides), np.int64)
    buffered = end[send] < begin[receive]
    waited[send] = np.where(buffered, 0, np.clip(begin[receive] - start[send], 0, (end - start)[send]))
    waited[receive] = np.clip(begin[send] - start[receive], 0, (end - start)[receive])
    kernels, number = np.unique(sides.kernel, return_inverse=True)
    whole = np.ones(len(kernels), np.bool_)
    np.logical_and.at(whole, number, paired_side)
    most = np.zeros(len(kernels), np.int64)
    np.maximum.at(most, number, waited)
    return MessageWaits(paired, kernels[whole], most[whole])


def transfers(waits: MessageWaits, kernels: Kernels, counted: Bool) -> dict[int, tuple[int, int]]:
    """Return the bytes and the time of the transfers of each kind of kernel.

    Only kernels on devices with a single message each count: from when the later side begins to its own end, so that no
    clocks are compared. If the size of any is unknown, both are 0.

    Args:
        waits: The messages.
        kernels: All communication.
        counted: Mask of the kernels that count if they begin last.
    """
    sides, (send, receive) = waits.paired.sides, waits.paired.ends
    alone = np.bincount(sides.kernel, minlength=len(kernels)) == 1
    judged = mask_of(waits.kernel, len(kernels)) & alone
    send, receive = sides.kernel[send], sides.kernel[receive]
    single = judged[send] & judged[receive]
    send, receive = send[single], receive[single]
    waited = np.zeros(len(kernels), np.int64)
    waited[waits.kernel] = waits.waited_ns
    late = np.where(waited[receive] > 0, send, receive)
    size, took = kernels.bytes[late], kernels.end_ns[late] - kernels.start_ns[late]
    kinds = kernels.kind
    result = {}
    for kind in distinct(np.concatenate([kinds[send], kinds[receive]])).tolist():
        rows = ((kinds[send] == kind) | (kinds[receive] == kind)) & counted[late]
        if not on_host(kernels.kinds[kind]) and (size[rows] >= 0).all():
            result[kind] = int(size[rows].sum()), int(took[rows].sum())
    return result


# -- Clocks from messages ----------------------------------------------------------------------------

_UNREACHED_NS = np.int64(1) << 61
"""Bound between ranks that no chain of messages connects."""


def related_by_messages(offsets: Offsets, paired: PairedMessages) -> Offsets | None:
    """Return the offsets with those between sets of ranks; None if messages bound none, or contradict each other."""
    ranks = len(offsets.offset_ns)
    everyone = np.arange(ranks)
    set_of = np.where(offsets.reference >= 0, offsets.reference, everyone)
    offset = offsets.offset_ns
    doubt = np.maximum(offsets.error_ns, 0)
    pairs, at_most = paired.leads(ranks)
    sender, receiver = pairs // ranks, pairs % ranks
    lead = at_most - offset[receiver] + offset[sender] + doubt[sender] + doubt[receiver]
    between = set_of[sender] != set_of[receiver]
    sender, receiver, lead = set_of[sender][between], set_of[receiver][between], lead[between]
    reference = components(sender, receiver, ranks)
    high, low = _shortest(sender, receiver, lead, reference), _shortest(receiver, sender, lead, reference)
    if high is None or low is None:
        return None
    bounded = (reference >= 0) & (high < _UNREACHED_NS) & (low < _UNREACHED_NS)
    if not (bounded & (reference != everyone)).any():
        return None
    high, low = np.where(bounded, high, 0), np.where(bounded, -low, 0)
    allows_0 = (low <= 0) & (high >= 0)
    shift = np.where(allows_0, 0, low + (high - low) // 2)
    error = doubt + np.maximum(high - shift, shift - low)[set_of]
    related = bounded[set_of] | (offsets.reference >= 0)
    return replace(
        offsets,
        offset_ns=offset + shift[set_of],
        error_ns=np.where(related, error, -1),
        reference=np.where(bounded[set_of], reference[set_of], offsets.reference),
    )


def _shortest(begin: I64, end: I64, length: I64, reference: I64) -> I64 | None:
    """Return the shortest way from each rank's reference; None if lengths are negative round a circle."""
    ranks = len(reference)
    distance = np.where(reference == np.arange(ranks), 0, _UNREACHED_NS)
    for _ in range(ranks + 1):
        reached = distance[begin] < _UNREACHED_NS
        new = distance.copy()
        np.minimum.at(new, end[reached], distance[begin[reached]] + length[reached])
        if (new == distance).all():
            return distance
        distance = new
    return None
