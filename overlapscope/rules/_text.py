"""How findings put numbers and names into words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from overlapscope.rules._claims import Place
from overlapscope.rules.finding import Where

_LONGEST_NAME = 90


def duration(ns: int) -> str:
    """`412 us`, `9.69 ms`, `1.2 s`: three significant digits with a unit."""
    value = float(ns)
    for unit in ("ns", "us", "ms"):
        if abs(value) < 999.5:
            return f"{_digits(value)} {unit}" if unit != "ns" else f"{ns} ns"
        value /= 1000
    return f"{_digits(value)} s"


def size(count: int) -> str:
    """`4 B`, `3.91 KiB`, `128 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{_digits(value)} {unit}"
        value /= 1024
    return f"{_digits(value)} TiB"


def _digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def share(part: int, whole: int) -> str:
    """`18.4 %`, to be read as a share of the span unless the sentence says otherwise."""
    return f"{100 * part / whole:.1f} %" if whole else "none"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 copy`, `4 copies`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {plural or (noun[:-1] + 'ies' if noun.endswith('py') else noun + 's')}"


def streams(ids: Sequence[int]) -> str:
    """`stream 7`, `streams 7 and 20`."""
    return f"stream{'s' if len(ids) != 1 else ''} {listed(ids)}"


def listed(words: Sequence[object]) -> str:
    """`1`, `1 and 2`, `1, 2 and 3`."""
    texts = [str(word) for word in words]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


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
        + "; ".join(f"{duration(p.time_ns)} ({counted(p.count, 'time')}) {text}" for text, p in known)
        + "."
    )
