"""Offsets between the ranks' clocks from messages, where no collective relates them.

No receive can end before its send began. With `offset` as a clock's lead over the reference, each message says

    offset_receiver - offset_sender <= end of the receive - start of the send

Messages in both directions bound an offset from both sides, and those along a chain of ranks bound that of its ends.
The estimate is zero if the bounds allow it, since clocks are mostly set to the same time, and otherwise their middle.
Ranks whose clocks are related by collectives, such as the replicas of a stage, keep their offsets within such a set.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import mask_of
from overlapscope.base.intervals import I64
from overlapscope.ranks.clocks import Offsets
from overlapscope.ranks.pairs import PairedMessages

_FAR = np.int64(1) << 61


def related_by_messages(offsets: Offsets, paired: PairedMessages) -> Offsets | None:
    """Return the offsets with those between sets of ranks; None if messages bound none, or contradict each other."""
    ranks = len(offsets.offset_ns)
    everyone = np.arange(ranks)
    own = np.where(offsets.reference >= 0, offsets.reference, everyone)
    offset = offsets.offset_ns
    doubt = np.maximum(offsets.error_ns, 0)
    pairs, at_most = paired.leads(ranks)
    sender, receiver = pairs // ranks, pairs % ranks
    lead = at_most - offset[receiver] + offset[sender] + doubt[sender] + doubt[receiver]
    between = own[sender] != own[receiver]
    sender, receiver, lead = own[sender][between], own[receiver][between], lead[between]
    reference = components(sender, receiver, ranks)
    high, low = _shortest(sender, receiver, lead, reference), _shortest(receiver, sender, lead, reference)
    if high is None or low is None:
        return None
    bounded = (reference >= 0) & (high < _FAR) & (low < _FAR)
    if not (bounded & (reference != everyone)).any():
        return None
    high, low = np.where(bounded, high, 0), np.where(bounded, -low, 0)
    allows_0 = (low <= 0) & (high >= 0)
    shift = np.where(allows_0, 0, low + (high - low) // 2)
    error = doubt + np.maximum(high - shift, shift - low)[own]
    related = bounded[own] | (offsets.reference >= 0)
    return replace(
        offsets,
        offset_ns=offset + shift[own],
        error_ns=np.where(related, error, -1),
        reference=np.where(bounded[own], reference[own], offsets.reference),
    )


def components(sender: I64, receiver: I64, ranks: int) -> I64:
    """Return for each rank the lowest rank connected with it through messages; -1 for ranks without messages."""
    label = np.arange(ranks)
    while True:
        new = label.copy()
        np.minimum.at(new, sender, label[receiver])
        np.minimum.at(new, receiver, label[sender])
        if (new == label).all():
            break
        label = new
    return np.where(mask_of(np.concatenate([sender, receiver]), ranks), label, -1)


def _shortest(begin: I64, end: I64, length: I64, reference: I64) -> I64 | None:
    """Return the shortest way from each rank's reference; None if lengths are negative round a circle."""
    ranks = len(reference)
    distance = np.where(reference == np.arange(ranks), 0, _FAR)
    for _ in range(ranks + 1):
        reached = distance[begin] < _FAR
        new = distance.copy()
        np.minimum.at(new, end[reached], distance[begin[reached]] + length[reached])
        if (new == distance).all():
            return distance
        distance = new
    return None
