"""Document of the changes from one contract to another."""

from __future__ import annotations

from collections.abc import Sequence

from overlapscope.base.words import plural
from overlapscope.contracts.compare import Promise
from overlapscope.documents.model import Block, Document, Section, Text
from overlapscope.documents.table import Tone

_TONES: dict[str, Tone] = {"lost": "poor", "gained": "good", "unknown": "fair"}


def changes(promises: Sequence[Promise]) -> Document:
    """Return the losses and gains of a contract, and the promises that can't be judged."""
    blocks: list[Block] = []
    for result, tone in _TONES.items():
        some = [promise for promise in promises if promise.result == result]
        blocks += [Section((Text(promise.message),), f"{result}: {promise.name}", "panel", tone) for promise in some]
    kept = sum(promise.result == "kept" for promise in promises)
    blocks.append(Text(f"{plural(kept, 'promise')} kept, of {len(promises):,}.", tone="muted"))
    return Document("overlapscope contract diff", tuple(blocks))
