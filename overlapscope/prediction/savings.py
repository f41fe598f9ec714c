"""What fixing a finding saves, by replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from overlapscope.prediction.base import Base, prepare
from overlapscope.prediction.choices import parse
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.predict import apply
from overlapscope.prediction.replay import Deadlock, Replay, replay
from overlapscope.trace.model import Trace


class Savings:
    """One device of one recording, or of its plain program; made ready when first asked, if it is not yet."""

    def __init__(self, trace: Trace, device: int, ready: Base | None = None) -> None:
        self._trace, self._device, self._ready = trace, device, ready
        self._known: dict[tuple[str, ...], int] = {}

    def largest(self, fixes: Iterable[Sequence[str]]) -> int | None:
        """By how much the best of some sets of interventions shortens the device's window, in ns, at least 0.

        None where the recording cannot be replayed, or there is no set that does anything.
        """
        base = self._base
        if base is None:
            return None
        # What pinned copies would take is not known where the link's rate is a guess.
        known = [fix for fix in fixes if not (base.hardware.guessed and {"pin", "batch-copies"} & {*fix})]
        found = [saved for fix in known if (saved := self._of(base, tuple(fix))) is not None]
        return max(0, *found) if found else None

    @cached_property
    def _base(self) -> Base | None:
        base = self._ready
        if base is None or base.device != self._device:
            # An analysis reads its trace once.
            base = prepare(self._trace, self._device, None, with_shapes=False)
        return base if base.fidelity.valid else None

    @cached_property
    def _unchanged_ns(self) -> int:
        base = self._base
        return 0 if base is None or base.replayed is None else _span_ns(base.graph, base.replayed, self._device)

    def _of(self, base: Base, fix: tuple[str, ...]) -> int | None:
        if fix not in self._known:
            choices = parse(fix)
            applied = apply(base, choices, [Stance.EXPECTED] * len(choices))
            if not all(one.touched for one in applied):
                return None
            graph = applied[-1].graph
            try:
                self._known[fix] = self._unchanged_ns - _span_ns(graph, replay(graph), self._device)
            except Deadlock:
                return None
        return self._known[fix]


def _span_ns(graph: Graph, replayed: Replay, device: int) -> int:
    """Length of the device's window."""
    there = (graph.items.device == device) & ~graph.items.gone
    return int(replayed.end_ns[there].max() - replayed.start_ns[there].min())
