"""A device's two copy engines, one for each direction: which copy they take when, and when it ends.

An engine takes one copy at a time. While both have one, they slow each other, so that neither's end is known before the
other's: the earliest event of the two is, whatever comes later.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from overlapscope.analysis.edges import HANDOVER_NS
from overlapscope.trace.model import Kind

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    Copies = Iterator[tuple[int, int, int]]
    """Copies that follow each other on their lane: each with the gap behind the one before it, and with when it is
    ready as far as its call goes."""

NEVER = float("inf")
_LONG_AGO_NS = -(2**61)


class Engine:
    """The copies that are ready for it, and the one it works on. Times are ns, fractions of them while both work."""

    __slots__ = ("at", "beside", "free", "item", "lag", "ready", "then", "when", "work")

    def __init__(self, beside: float, lag: Sequence[int]) -> None:
        self.beside = beside
        """Its rate beside the other direction, alone being 1."""
        self.ready: list[tuple[int, int, Copies]] = []
        """When, which item, and what follows it on its lane: a heap."""
        self.lag = lag
        """Of each item: how long after the engine is free it begins, at least 0."""
        self.item = -1
        self.then: Copies = iter(())
        """What follows the item on its lane."""
        self.work = 0.0
        """What is left to do, in ns alone, at `at`."""
        self.at = 0.0
        self.free = _LONG_AGO_NS
        """When its last copy ended."""
        self.when = NEVER
        """When it takes its next copy, or ends the one it has, as things stand."""

    def want(self, item: int, at: int, then: Copies) -> None:
        """Let a copy that is ready then wait for it."""
        heappush(self.ready, (at, item, then))
        if self.item < 0:
            self.when = max(self.ready[0][0], self.free)

    def pick(self, now: float) -> tuple[int, int, Copies]:
        """The next copy. Of those that are ready, or as good as, the one that came first when recorded."""
        chosen, passed = heappop(self.ready), []
        while self.ready and self.ready[0][0] <= now + HANDOVER_NS:
            passed.append(heappop(self.ready))
            if passed[-1][1] < chosen[1]:
                chosen, passed[-1] = passed[-1], chosen
        for one in passed:
            heappush(self.ready, one)
        return chosen


class Pair:
    """The engines of one device."""

    def __init__(self, h2d: Engine, d2h: Engine, work: Sequence[float]) -> None:
        self.h2d, self.d2h = h2d, d2h
        self._work = work
        """Of each item, in ns alone."""

    def of(self, kind: int) -> Engine:
        """The engine for a `trace.Kind` of copies."""
        return self.h2d if kind == Kind.H2D else self.d2h

    @property
    def next(self) -> tuple[float, bool]:
        """When the next event is; and whether a copy is taken then. An end comes before a start at the same instant:
        what it sets free may want the engine."""
        first = self._first()
        return first.when, first.item < 0

    def _first(self) -> Engine:
        h2d, d2h = self.h2d, self.d2h
        return d2h if d2h.when < h2d.when or (d2h.when == h2d.when and h2d.item < 0 <= d2h.item) else h2d

    def run(self, until: float, awaited: Container[int], starts: memoryview[int], ends: memoryview[int]) -> int | None:
        """Let the next event happen, and those after it that come before `until`, up to the end of a copy that somebody
        waits for: its item. None where there is none such.

        This is where a replay of copies in both directions spends its time, hence one loop with few calls.
        """
        h2d, d2h, work = self.h2d, self.d2h, self._work
        while True:
            engine, other = h2d, d2h
            if d2h.when <= h2d.when and (d2h.when < h2d.when or h2d.item < 0 <= d2h.item):
                engine, other = d2h, h2d
            at, item, ready, busy = engine.when, engine.item, engine.ready, other.item >= 0
            if busy and at > other.at:
                _work(other, beside=engine, until=at)
            if item < 0:
                ready_at, item, engine.then = ready.pop() if len(ready) == 1 else engine.pick(at)
                begins = engine.free + engine.lag[item]
            else:
                engine.item, engine.when = -1, NEVER
                engine.free = ends[item] = ended = round(at)
                if busy:
                    other.when = other.at + other.work
                following = -1
                for following, gap, ready_at in engine.then:
                    if ended + gap > ready_at:
                        ready_at = ended + gap
                    at = ready_at if ready_at > ended else ended
                    if ready or item in awaited or at >= other.when or at >= until:
                        heappush(ready, (ready_at, following, engine.then))
                        following = -1
                    break
                if following < 0:
                    if ready:
                        engine.when = ready[0][0] if ready[0][0] > ended else ended
                    if item in awaited:
                        return item
                    if engine.when >= until and other.when >= until:
                        return None
                    continue
                # Nothing happens before it takes the next one.
                if busy and at > other.at:
                    _work(other, beside=engine, until=at)
                item, begins = following, ended + engine.lag[following]
            if ready_at > begins:
                begins = ready_at
            engine.item, engine.at, engine.work, starts[item] = item, begins, work[item], begins
            if busy:
                engine.when, other.when = _end(engine, other), _end(other, engine)
            else:
                engine.when = begins + engine.work
            if engine.when >= until and other.when >= until:
                return None


def _work(engine: Engine, *, beside: Engine, until: float) -> None:
    """Let an engine have worked until then: more slowly while both did."""
    did, since = until - engine.at, beside.at if beside.at > engine.at else engine.at
    if beside.item >= 0 and until > since:
        did -= (until - since) * (1 - engine.beside)
    engine.work -= did
    engine.at = until


def _end(engine: Engine, beside: Engine) -> float:
    """When an engine ends its copy while the other works on one, too."""
    alone = beside.at - engine.at
    if alone >= engine.work:
        return engine.at + engine.work
    if alone < 0:
        alone = 0.0
    return engine.at + alone + (engine.work - alone) / engine.beside
