"""Small pieces of what is said of an op."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.host import line_ids_around, line_text, name_text, op_ids_around
from overlapscope.analysis.pieces import ExposedCopies
from overlapscope.base.intervals import I64, Intervals
from overlapscope.base.words import clean, share, unit_for
from overlapscope.catalog.causes import COPY_CAUSES
from overlapscope.trace.model import Trace

Facts = list[list[str]]
"""Pairs of a word and what there is to say, both fit to be shown as plain text."""


def duration(ns: int) -> str:
    """A length with the digits it has."""
    return f"{ns:,} ns" if abs(ns) < 1_000 else unit_for(abs(ns)).text(ns)


def instant(ns: int) -> str:
    """A time from the origin, to the nanosecond."""
    return f"{ns / 1e6:,.6f} ms" if abs(ns) < 1 << 52 else f"{ns:,} ns"


def part_of(part: int, whole: int) -> str:
    """`1.2 ms (35.0%)`."""
    return f"{duration(part)} ({share(part, whole)})"


def by_cause(causes: dict[str, int]) -> str:
    """`same-stream 1.2 ms, no-compute 0.3 ms`, longest first."""
    return ", ".join(f"{cause} {duration(ns)}" for cause, ns in sorted(causes.items(), key=lambda one: -one[1]))


def code(trace: Trace, thread: int, at_ns: int) -> Facts:
    """The innermost CPU op and the Python line around an instant of a thread."""
    threads, at = np.array([thread], np.int64), np.array([at_ns], np.int64)
    op = name_text(trace, int(op_ids_around(trace, threads, at)[0]))
    line = line_text(trace, int(line_ids_around(trace, threads, at)[0]))
    return [[word, clean(text)] for word, text in (("CPU op", op), ("line", line)) if text is not None]


def inside(a: Intervals, start_ns: int, end_ns: int) -> int:
    """Length of a set in one span; costs as much as lies in it."""
    starts, ends = _cut(a.starts, a.ends, start_ns, end_ns)
    return int((ends - starts).sum())


def exposed_inside(exposed: ExposedCopies, start_ns: int, end_ns: int) -> tuple[dict[str, int], int]:
    """The exposed copy time of a span by cause, and the lowest confidence of it."""
    mine = _touching(exposed.start_ns, exposed.end_ns, start_ns, end_ns)
    starts, ends = _cut(exposed.start_ns, exposed.end_ns, start_ns, end_ns)
    ns = np.zeros(len(COPY_CAUSES), np.int64)
    np.add.at(ns, exposed.cause[mine], ends - starts)
    causes = {str(cause): int(length) for cause, length in zip(COPY_CAUSES, ns, strict=True) if length}
    return causes, int(exposed.confidence[mine].min(initial=np.iinfo(np.int8).max))


def _touching(starts: I64, ends: I64, start_ns: int, end_ns: int) -> slice:
    return slice(int(ends.searchsorted(start_ns, side="right")), int(starts.searchsorted(end_ns, side="left")))


def _cut(starts: I64, ends: I64, start_ns: int, end_ns: int) -> tuple[I64, I64]:
    mine = _touching(starts, ends, start_ns, end_ns)
    return np.maximum(starts[mine], start_ns), np.minimum(ends[mine], end_ns)
