"""A device's two copy engines, one for each direction: which copy each takes, and when the copy ends.

An engine runs one copy at a time. Copies of both directions slow each other while they overlap, so neither end is known
before the other: only the earlier of the two engines' next events is certain.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from overlapscope.analysis.event_waits import HANDOVER_NS
from overlapscope.analysis.host_order import EARLIEST_NS
from overlapscope.trace.model import Kind

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    Followers = Iterator[tuple[int, int, int]]
    """The later copies of a lane: item, gap after the previous copy, and earliest start by its call."""

NEVER = float("inf")


class ReadyCopy(NamedTuple):
    """A copy that waits for its engine; sorts by the time when it is ready."""

    ready_ns: int
    item: int
    followers: Followers


class Engine:
    """A copy engine: the queue of ready copies, and the copy that it runs.

    Times are nanoseconds, with fractions while both engines of a device run. `remaining_ns` is the rest of the running
    copy at `at_ns`.
    """

    __slots__ = ("at_ns", "beside_rate", "followers", "free_ns", "item", "lag_ns", "next_ns", "ready", "remaining_ns")

    def __init__(self, beside_rate: float, lag_ns: Sequence[int]) -> None:
        self.beside_rate = beside_rate
        """Rate while the other direction copies too, as a fraction of the rate alone."""
        self.lag_ns = lag_ns
        """Minimum time from the end of the previous copy to the start of each item."""
        self.ready: list[ReadyCopy] = []
        """A heap."""
        self.item = -1
        """The copy that runs; -1 for none."""
        self.followers: Followers = iter(())
        """Copies that follow the running copy on its lane."""
        self.remaining_ns = 0.0
        """Rest of the copy's length with the other engine idle."""
        self.at_ns = 0.0
        self.free_ns = EARLIEST_NS
        """End of its last copy."""
        self.next_ns = NEVER
        """When it starts its next copy or ends the running copy, unless another copy comes."""

    def want(self, copy: ReadyCopy) -> None:
        """Queue a copy."""
        heappush(self.ready, copy)
        if self.item < 0:
            self.next_ns = max(self.ready[0].ready_ns, self.free_ns)

    def pick(self) -> ReadyCopy:
        """Remove the next copy from the queue: the first as recorded among those ready within a tolerance."""
        if len(self.ready) == 1:
            return self.ready.pop()
        chosen, passed = heappop(self.ready), []
        while self.ready and self.ready[0].ready_ns <= self.next_ns + HANDOVER_NS:
            passed.append(heappop(self.ready))
            if passed[-1].item < chosen.item:
                chosen, passed[-1] = passed[-1], chosen
        for copy in passed:
            heappush(self.ready, copy)
        return chosen

    def advance(self, until_ns: float, *, beside: Engine) -> None:
        """Run the copy until an instant, more slowly while both engines run."""
        done_ns = until_ns - self.at_ns
        both_since_ns = beside.at_ns if beside.at_ns > self.at_ns else self.at_ns
        if beside.item >= 0 and until_ns > both_since_ns:
            done_ns -= (until_ns - both_since_ns) * (1 - self.beside_rate)
        self.remaining_ns -= done_ns
        self.at_ns = until_ns

    def end_ns(self, beside: Engine) -> float:
        """Return the end of the copy if the other engine runs from its `at_ns` on."""
        alone_ns = beside.at_ns - self.at_ns
        if beside.item < 0 or alone_ns >= self.remaining_ns:
            return self.at_ns + self.remaining_ns
        if alone_ns < 0:
            alone_ns = 0.0
        return self.at_ns + alone_ns + (self.remaining_ns - alone_ns) / self.beside_rate


class EnginePair:
    """The engines of one device."""

    def __init__(self, h2d: Engine, d2h: Engine, work_ns: Sequence[float]) -> None:
        self.h2d, self.d2h = h2d, d2h
        self._work_ns = work_ns
        """Length of each item with the other engine idle."""

    def of(self, kind: int) -> Engine:
        """Return the engine for a `trace.Kind` of copies."""
        return self.h2d if kind == Kind.H2D else self.d2h

    @property
    def next(self) -> tuple[float, bool]:
        """Time of the next event, and whether a copy starts then."""
        first, _ = self._in_order()
        return first.next_ns, first.item < 0

    def _in_order(self) -> tuple[Engine, Engine]:
        """Return the engine with the next event, and the other engine.

        At the same instant, ends precede starts: a copy that waits for the end may want the engine.
        """
        h2d, d2h = self.h2d, self.d2h
        d2h_first = d2h.next_ns < h2d.next_ns or (d2h.next_ns == h2d.next_ns and h2d.item < 0 <= d2h.item)
        return (d2h, h2d) if d2h_first else (h2d, d2h)

    def run(
        self, until_ns: float, awaited: Container[int], starts: memoryview[int], ends: memoryview[int]
    ) -> int | None:
        """Let the next event happen, and later ones before `until_ns`, up to the end of an awaited copy.

        Writes the copies' times to `starts` and `ends`, by item.

        Returns:
            The item of the awaited copy; None if no such copy ended.
        """
        while True:
            engine, other = self._in_order()
            if other.item >= 0 and engine.next_ns > other.at_ns:
                other.advance(engine.next_ns, beside=engine)
            if engine.item < 0:
                self._take(engine, other, starts)
            elif (item := self._end(engine, other, ends)) in awaited:
                return item
            if engine.next_ns >= until_ns and other.next_ns >= until_ns:
                return None

    def _take(self, engine: Engine, other: Engine, starts: memoryview[int]) -> None:
        """Let an idle engine take its next copy."""
        ready_ns, item, engine.followers = engine.pick()
        begins_ns = max(ready_ns, engine.free_ns + engine.lag_ns[item])
        starts[item] = begins_ns
        engine.item, engine.at_ns, engine.remaining_ns = item, begins_ns, self._work_ns[item]
        engine.next_ns = engine.end_ns(other)
        if other.item >= 0:
            other.next_ns = other.end_ns(engine)

    def _end(self, engine: Engine, other: Engine, ends: memoryview[int]) -> int:
        """Let an engine end its copy, and queue the copy's follower; return its item."""
        item, engine.item = engine.item, -1
        engine.free_ns = ends[item] = ended_ns = round(engine.next_ns)
        for following, gap_ns, ready_ns in engine.followers:
            heappush(engine.ready, ReadyCopy(max(ready_ns, ended_ns + gap_ns), following, engine.followers))
            break
        engine.next_ns = max(engine.ready[0].ready_ns, ended_ns) if engine.ready else NEVER
        if other.item >= 0:
            other.next_ns = other.at_ns + other.remaining_ns
        return item
