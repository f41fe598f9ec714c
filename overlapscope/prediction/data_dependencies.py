"""Kernels that need a copy, and kernels that a copy needs, once the copy is no longer in order with them on a lane.

The event waits of the recording decide. Without them, the shapes of ops' inputs show which kernels may read the copied
data. Without shapes, the order of the program decides.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64, Bool
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.shapes import Shapes
from overlapscope.prediction.steps import step_of_items
from overlapscope.trace.model import Kind

BY_SHAPES = (
    "Only kernels whose op has an input with as many elements (by the recorded shapes) use what {copies} moved. A "
    "view or a reshape keeps that number; an earlier slice, or a view as another dtype, does not."
)
"""Assumption behind finding the readers of a copy by shapes."""


class ShownNeeds(Struct, frozen=True):
    """Dependencies of the moved copies that the recording itself shows."""

    needs: bool = False
    """True if it shows which kernels need each copy, and which kernels each copy needs."""
    turns: bool = False
    """True if it also shows which kernels must finish with a buffer before the buffer is written again."""
    by_shapes: int = 0
    """Number of copies whose readers are known by shapes."""

    def besides(self, needs: Needs) -> ShownNeeds:
        """Return the same with further copies taken into account."""
        return ShownNeeds(
            needs=self.needs and bool((needs.stated | needs.shown).all()),
            turns=self.turns and bool(needs.stated.all()),
            by_shapes=self.by_shapes + int(needs.by_shapes.sum()),
        )


class Needs(Struct, frozen=True, eq=False):
    """For copies of a lane, the kernels of the lane that they depend on, as rows of `Graph.items`; -1 for none."""

    stated: Bool
    """Mask of the copies whose dependencies the recording's event waits state completely; they need no further orders.
   """
    ahead: I64
    """Kernel that a download needs, or that an upload waits for if there is a single buffer."""
    behind: I64
    """Kernel that needs an upload, or that waits for a download if there is a single buffer."""
    shown: Bool
    """Mask of the uploads whose kernel in `behind` has such an input, while no kernel in between can read it."""
    by_shapes: Bool
    """Mask of the copies whose kernels are known by shapes."""


def find_needs(graph: Graph, line: I64, copies: I64, tied: Bool) -> Needs:
    """Find the dependencies of copies of a lane.

    Args:
        line: All items of the lane.
        tied: Mask of the items whose dependencies the recording's event waits state.

    Returns:
        For each copy, the kernels that must run before and after it.
    """
    items = graph.items
    stated = _stated(graph, line, copies, tied)
    ahead, behind = _neighbours(graph, line, copies)
    shown, by_shapes = np.zeros(len(copies), np.bool_), np.zeros(len(copies), np.bool_)
    shapes = None if stated.all() else graph.shapes()
    if shapes is not None:
        lane = _Lane(graph, line, shapes)
        for (_, elements), alike in _by_elements(graph, copies, shapes).items():
            rows = np.array(alike)[~stated[alike]]
            first, last, sure = lane.readers(elements, copies[alike], copies[rows])
            upload, has_reader = items.kind[copies[rows]] == Kind.H2D, first >= 0
            by_shapes[rows] = has_reader
            behind[rows] = np.where(has_reader, first, behind[rows])
            ahead[rows] = np.where(has_reader & upload & (last >= 0), last, ahead[rows])
            shown[rows] = has_reader & upload & sure
    return Needs(stated, ahead, behind, shown, by_shapes)


def _by_elements(graph: Graph, copies: I64, shapes: Shapes) -> dict[tuple[int, tuple[int, ...]], list[int]]:
    """Group the copies with known elements by `Shapes.moved` and direction."""
    items = graph.items
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    call = pick(graph.calls.row, items.call[copies])
    columns = call.tolist(), items.bytes[copies].tolist(), items.kind[copies].tolist()
    for number, (row, size, kind) in enumerate(zip(*columns, strict=True)):
        elements = shapes.moved(row, size) if row >= 0 else ()
        if elements:
            groups.setdefault((kind, elements), []).append(number)
    return groups


class _Lane:
    """The items of a lane in order; places are positions among them."""

    def __init__(self, graph: Graph, line: I64, shapes: Shapes) -> None:
        self._line, self._shapes = line, shapes
        self._kernel = ~graph.items.is_copy[line]
        call = graph.items.call[line]
        self._row = pick(graph.calls.row, call)
        self._called_ns = pick(graph.calls.start_ns, call, 0)
        # An item launched out of order counts as launched no earlier than the items before it.
        self._since_ns = np.maximum.accumulate(self._called_ns)
        self._step = np.maximum.accumulate(step_of_items(graph)[line])
        self._unknown = self._kernel & ~pick(shapes.readable, self._row, False)

    def readers(self, elements: tuple[int, ...], alike: I64, copies: I64) -> tuple[I64, I64, Bool]:
        """Find the kernels that may read the data of copies, by the number of elements of their ops' inputs.

        Args:
            elements: Numbers of elements of the tensors that the copies may be a part of.
            alike: All copies with these elements and this direction.
            copies: The copies among them whose kernels are wanted.

        Returns:
            For each copy, the first such kernel after it, before the next alike copy and in the same step; -1 for none.
            The last such kernel before it, in the same or the previous step; -1 for none, and without a first kernel. A
            mask of the first kernels that are certain, because their ops have such an input.
        """
        reads = np.zeros(len(self._line), np.bool_)
        for count in elements:
            reads |= pick(self._shapes.reading(count), self._row, False)
        certain = np.flatnonzero(self._kernel & reads)
        possible = np.flatnonzero(self._unknown | (self._kernel & reads))
        parts_ns = np.sort(np.concatenate([self._shapes.parts_ns(count) for count in elements]))
        at = np.searchsorted(self._line, copies)
        first = self._first_reader(possible, parts_ns, at, np.searchsorted(self._line, alike))
        last = np.where(first >= 0, self._last_reader(possible, parts_ns, at), -1)
        rows = np.append(self._line, -1)
        return rows[first], rows[last], (first >= 0) & (first == _next(certain, at, -1))

    def _first_reader(self, possible: I64, parts_ns: I64, at: I64, alike: I64) -> I64:
        """Return the place of each copy's first possible reader, or of the first kernel after a part was taken.

        -1 if there is none before the next of the `alike` copies and the end of the step.
        """
        end_of_step = np.searchsorted(self._step, self._step[at], side="right")
        ends = np.minimum(_next(alike, at, len(self._line)), end_of_step)
        first = np.minimum(_next(possible, at, len(self._line)), self._behind_parts(parts_ns, at))
        return np.where(first < ends, first, -1)

    def _last_reader(self, possible: I64, parts_ns: I64, at: I64) -> I64:
        """Return the place of the last possible reader before each copy, since the beginning of the previous step.

        -1 if there is none, or if a part of such a tensor was taken meanwhile, which any kernel may read.
        """
        begins = np.searchsorted(self._step, self._step[at] - 1)
        last = pick(possible, np.searchsorted(possible, at) - 1)
        taken = np.searchsorted(parts_ns, self._called_ns[at]) > np.searchsorted(parts_ns, self._since_ns[begins])
        return np.where((last >= begins) & ~taken, last, -1)

    def _behind_parts(self, parts_ns: I64, at: I64) -> I64:
        """Return the place of the first kernel launched after a part of such a tensor was taken, after each copy."""
        never = np.iinfo(np.int64).max
        taken = pick(parts_ns, np.searchsorted(parts_ns, self._called_ns[at], side="right"), never)
        behind = np.maximum(np.searchsorted(self._since_ns, taken), at + 1)
        kernels = np.flatnonzero(self._kernel)
        return pick(kernels, np.searchsorted(kernels, behind), len(self._line))


def _next(places: I64, at: I64, none: int) -> I64:
    """Return the first of the ordered places after each given place."""
    return pick(places, np.searchsorted(places, at, side="right"), none)


def _stated(graph: Graph, line: I64, copies: I64, tied: Bool) -> Bool:
    """Return a mask of the copies whose dependencies the recording's event waits state.

    An event after several copies of a direction counts for all of them.
    """
    stated = tied[copies].copy()
    place = np.searchsorted(line, copies)
    kind = graph.items.kind[copies]
    joined = (np.diff(place) == 1) & (kind[1:] == kind[:-1])
    for number in np.flatnonzero(joined)[::-1].tolist():
        stated[number] |= stated[number + 1]
    return stated


def _neighbours(graph: Graph, line: I64, copies: I64) -> tuple[I64, I64]:
    """Return the nearest kernels before and after each copy on the lane; -1 for none."""
    kernels = np.flatnonzero(~graph.items.is_copy[line])
    behind = np.searchsorted(kernels, np.searchsorted(line, copies))
    rows = line[kernels]
    return pick(rows, behind - 1), pick(rows, behind)
