"""What fixing a finding saves, by replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.predict import Base, outcome, parse, prepare
from overlapscope.prediction.replay import Deadlock, Replay
from overlapscope.trace import Trace


class Savings:
    """One device of one recording, made ready when first asked."""

    def __init__(self, trace: Trace, device: int) -> None:
        self._trace, self._device = trace, device
        self._known: dict[tuple[str, ...], int] = {}

    def largest(self, fixes: Iterable[Sequence[str]]) -> int | None:
        """By how much the best of some sets of interventions shortens the device's window, in ns, at least 0.

        None where the recording cannot be replayed, or there is no set that does anything.
        """
        base = self._base
        if base is None:
            return None
        found = [saved for fix in fixes if (saved := self._of(base, tuple(fix))) is not None]
        return max(0, *found) if found else None

    @cached_property
    def _base(self) -> Base | None:
        # An analysis reads its trace once.
        base = prepare(self._trace, self._device, None, with_shapes=False)
        return base if base.fidelity.valid else None

    def _unchanged_ns(self, base: Base) -> int:
        return _span_ns(base.graph, base.replayed, self._device) if base.replayed is not None else 0

    def _of(self, base: Base, fix: tuple[str, ...]) -> int | None:
        if fix not in self._known:
            choices = parse(fix)
            try:
                done = outcome(base, choices, [Stance.EXPECTED] * len(choices))
            except Deadlock:
                return None
            if not all(one.touched for one in done.applied):
                return None
            self._known[fix] = self._unchanged_ns(base) - _span_ns(done.graph, done.replayed, self._device)
        return self._known[fix]


def _span_ns(graph: Graph, replayed: Replay, device: int) -> int:
    """Length of the device's window."""
    mine = (graph.items.device == device) & ~graph.items.gone
    return int(replayed.end_ns[mine].max() - replayed.start_ns[mine].min())
