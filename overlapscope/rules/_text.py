"""How findings put places and names into words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from overlapscope.base.words import duration, listed, plural
from overlapscope.rules._claims import Place
from overlapscope.rules.finding import Where

_LONGEST_NAME = 90


def streams(ids: Sequence[int]) -> str:
    """`stream 7`, `streams 7 and 20`."""
    return f"stream{'s' if len(ids) != 1 else ''} {listed(ids)}"


def name(text: str) -> str:
    """A name out of a trace, on one line and not too long. Views escape it."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= _LONGEST_NAME else flat[: _LONGEST_NAME - 3] + "..."


def place(where: Where) -> str:
    """`cudaStreamSynchronize in aten::item at train.py:12 in step`; empty if nothing is known."""
    parts = [name(where.call)] if where.call else []
    if where.op:
        parts.append(f"in {name(where.op)}" if parts else name(where.op))
    if where.line:
        parts.append(f"at {name(where.line)}")
    return " ".join(parts)


def spread(places: Iterable[Place], most: int = 3) -> str:
    """The costliest places in one sentence; empty if none is known."""
    known = [(place(p.where), p) for p in places if place(p.where)][:most]
    if not known:
        return ""
    return (
        " By place: "
        + "; ".join(f"{duration(p.time_ns)} ({plural(p.count, 'time')}) {text}" for text, p in known)
        + "."
    )
