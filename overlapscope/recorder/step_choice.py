"""The choice of a program's steps among events that repeat: pure functions over a log of events."""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

_MAX_REMEMBERED_EVENTS: Final = 512
"""Events of each kind that are remembered."""
_LONGEST_CYCLE: Final = 40
"""Events of a cycle, such as the updates after one rollout of reinforcement learning."""
_MIN_ALIKE_IN_A_ROW: Final = 8
"""Events in a row that show that each of them is a step."""
_ODD_ALIKE: Final = _LONGEST_CYCLE + 8
"""Events in a row that show this if earlier events were different, as the first update after a rollout is."""
_SHORT_CYCLE: Final = 8
"""Cycles up to this length have to repeat twice, and longer ones once."""
MIN_REPEATED_CALLS: Final = 5
"""Calls of a module, or batches of a loader, that show that it repeats."""
_EVENTS_BEFORE_ROUGH_COUNTS: Final = 24
"""Events after which counts of calls between them are compared roughly, and not exactly."""
_MIN_ROLLOUTS: Final = 4
"""Events with many calls before them that show that these come at random."""
_PATIENCE_NS: Final = 15_000_000_000
"""Time after which the cycle has to be found."""


class SourceKind(enum.IntEnum):
    """Kinds of events that may end steps, the most meaningful first."""

    OPTIMIZER = 0
    BACKWARD = 1
    FORWARD = 2
    LOADER = 3
    GRAPH = 4
    RANGE = 5
    """A `record_function` of the program; only on request."""


@dataclass(frozen=True, slots=True, eq=False)
class StepSource:
    """The origin of events: an optimizer, a line that calls `backward`, a module, a data set, a CUDA graph, a range."""

    kind: SourceKind
    name: str
    """Name of the call, such as `ResNet.forward`."""
    size: int = 0
    """Number of parameters of a module."""


@dataclass(frozen=True, slots=True)
class StepEvent:
    """The end of an optimizer's step, the start of a module's call, and so on."""

    source: StepSource
    calls: int
    """Calls of outermost modules since the last event of its kind."""
    batches: int
    """Batches that loaders gave since then."""
    at_ns: int


class Log:
    """The latest events of each kind on one thread."""

    def __init__(self) -> None:
        self.events: dict[SourceKind, deque[StepEvent]] = {}
        self.counts: Counter[SourceKind] = Counter()
        """Number of all events of each kind."""
        self._last: dict[SourceKind, tuple[int, int]] = {}
        """Numbers of calls of modules and of batches at the last event of each kind."""

    def add(self, source: StepSource, at_ns: int) -> None:
        """Note an event."""
        counts = self.counts
        calls, batches = self._last.get(source.kind, (0, 0))
        event = StepEvent(source, counts[SourceKind.FORWARD] - calls, counts[SourceKind.LOADER] - batches, at_ns)
        self.events.setdefault(source.kind, deque(maxlen=_MAX_REMEMBERED_EVENTS)).append(event)
        counts[source.kind] += 1
        self._last[source.kind] = counts[SourceKind.FORWARD], counts[SourceKind.LOADER]


@dataclass(frozen=True, slots=True)
class StepChoice:
    """The events that end steps: every `each`th of a kind, of a source or of a name."""

    kind: SourceKind
    label: str
    each: int = 1
    source: StepSource | None = None
    name: str | None = None
    """A pattern."""
    begun: int = 0
    """Number of events since the last step ended, the latest included."""
    cycle_ns: int = 0
    """Length of the latest step."""

    def counts(self, source: StepSource) -> bool:
        """Return whether events of this source count."""
        if self.source is not None:
            return source == self.source
        return source.kind == self.kind and (self.name is None or fnmatchcase(source.name, self.name))


def single(source: StepSource) -> StepChoice:
    """Each event of that source."""
    return StepChoice(source.kind, _label(source), source=source)


def named(source: StepSource, pattern: str) -> StepChoice:
    """Each event of the kind of that source whose name matches the pattern."""
    return StepChoice(source.kind, _label(source), name=pattern)


def choose(log: Log, kind: SourceKind, now_ns: int) -> StepChoice | None:
    """Return the steps that events of this kind make up; None if that is still unclear."""
    events = log.events.get(kind, ())
    if not events:
        return None
    if kind in (SourceKind.FORWARD, SourceKind.LOADER):
        return _largest(list(events))
    return _cycle(list(events), waited=now_ns - events[0].at_ns > _PATIENCE_NS)


def _largest(events: Sequence[StepEvent]) -> StepChoice | None:
    """Choose the largest module that repeats, or else a class of modules that are called one after the other."""
    counts = Counter(event.source for event in events)
    repeated = [source for source, count in counts.items() if count >= MIN_REPEATED_CALLS]
    if repeated:
        return single(max(repeated, key=lambda source: source.size))
    names = Counter(event.source.name for event in events)
    name, count = names.most_common(1)[0]
    if count < 2 * MIN_REPEATED_CALLS or len(counts) > count:
        return None
    first = next(event.source for event in events if event.source.name == name)
    return named(first, name)


def _cycle(events: Sequence[StepEvent], *, waited: bool) -> StepChoice | None:
    exact = [(event.source, event.calls) for event in events]
    sources = [event.source for event in events]
    if all(event.batches == events[-1].batches > 0 for event in events[-_MIN_ALIKE_IN_A_ROW:]):
        # Each has its batches, so evaluation between two of them does not make a cycle.
        exact = [(source, 0) for source in sources]
    length = _period(exact, waited=waited)
    if length is None and len(events) >= _EVENTS_BEFORE_ROUGH_COUNTS:
        few = min(event.calls for event in events)
        rough = [(event.source, event.calls > 2 * few + 1) for event in events]
        length = _period(rough, waited=waited)
        at_random = sum(many for _, many in rough[1:]) >= _MIN_ROLLOUTS
        if length is None and (waited or at_random or len(events) >= _ODD_ALIKE):
            length = _period(sources, waited=True)
    if length is None:
        return single(Counter(sources).most_common(1)[0][0]) if waited and len(events) >= _ODD_ALIKE else None
    return _of_cycle(events, length)


def _period(tokens: Sequence[Hashable], *, waited: bool) -> int | None:
    """Return the length of the shortest cycle at the end of a sequence, after a longer look if it began otherwise."""
    alike = len(set(tokens)) == 1
    longer = _shortest(tokens, _MIN_ALIKE_IN_A_ROW if alike else _ODD_ALIKE)
    return _shortest(tokens, _MIN_ALIKE_IN_A_ROW) if longer is None and waited else longer


def _shortest(tokens: Sequence[Hashable], least: int) -> int | None:
    for length in range(1, min(_LONGEST_CYCLE, len(tokens) // 2) + 1):
        needed = max(least if length == 1 else 0, 3 * length if length <= _SHORT_CYCLE else 2 * length + 1)
        end = tokens[-needed:]
        # A cycle that is itself a shorter one several times has not been seen for long enough.
        cycle = len(end) == needed and _repeats(end, length)
        if cycle and not any(_repeats(end, shorter) for shorter in range(1, length)):
            return length
    return None


def _repeats(tokens: Sequence[Hashable], length: int) -> bool:
    return all(a == b for a, b in zip(tokens, tokens[length:], strict=False))


def _of_cycle(events: Sequence[StepEvent], length: int) -> StepChoice:
    """Choose the events that end cycles of that length.

    A source with a single event in the cycle ends it, such as the generator of a GAN, and the last in the program if
    there are several. Otherwise the cycle begins with the event that has most calls before it.

    Returns:
        The choice of those events.
    """
    cycle = events[-length:]
    counts = Counter(event.source for event in cycle)
    cycle_ns = events[-1].at_ns - events[-1 - length].at_ns if len(events) > length else 0
    once = [source for source in dict.fromkeys(event.source for event in events) if counts[source] == 1]
    if once:
        several = f", {length} {_plural(cycle[0].source)} in turn" if length > 1 else ""
        return StepChoice(once[-1].kind, _label(once[-1]) + several, source=once[-1], cycle_ns=cycle_ns)
    first = max(range(length), key=lambda index: (cycle[index].calls, (len(events) - length + index) % length == 0))
    only = cycle[0].source if len(counts) == 1 else None
    what = _label(cycle[0].source) if only is not None else _plural(cycle[0].source)
    kind = cycle[0].source.kind
    return StepChoice(
        kind, f"every {length} {what}", each=length, source=only, begun=(length - first) % length, cycle_ns=cycle_ns
    )


def _label(source: StepSource) -> str:
    what = {SourceKind.LOADER: "batches of", SourceKind.RANGE: "ranges named"}.get(source.kind, "calls of")
    return f"{what} {source.name}"


def _plural(source: StepSource) -> str:
    return {SourceKind.OPTIMIZER: "optimizer steps", SourceKind.BACKWARD: "calls of backward()"}.get(
        source.kind, "graph replays"
    )
