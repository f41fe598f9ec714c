"""Kernels that need a copy, and kernels that a copy needs, once the copy is no longer in order with them on a lane.

The event waits of the recording decide. Without them, the shapes of ops' inputs show which kernels may read the copied
data. Without shapes, the order of the program decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from overlapscope.base.columns import I64, Bool, mask_of, pick
from overlapscope.base.grouping import rows_by
from overlapscope.base.kept import kept
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.steps import step_of_items
from overlapscope.trace.host import around
from overlapscope.trace.model import Kind, Trace

if TYPE_CHECKING:
    from overlapscope.reading.op_args import Inputs, Signature

BY_SHAPES = (
    "Only kernels whose op has an input with as many elements (by the recorded shapes) use what {copies} moved. A "
    "view or a reshape keeps that number; an earlier slice, or a view as another dtype, does not."
)
"""Assumption behind finding the readers of a copy by shapes."""


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
    kernels = line[~items.is_copy[line]]
    place = np.searchsorted(kernels, copies)
    ahead, behind = pick(kernels, place - 1), pick(kernels, place)
    shown, by_shapes = np.zeros(len(copies), np.bool_), np.zeros(len(copies), np.bool_)
    shapes = None if stated.all() else shapes_of(graph.trace)
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
        certain_rows = np.flatnonzero(self._kernel & reads)
        reader_rows = np.flatnonzero(self._unknown | (self._kernel & reads))
        parts_ns = np.sort(np.concatenate([self._shapes.parts_ns(count) for count in elements]))
        at, none = np.searchsorted(self._line, copies), len(self._line)
        # The first kernel launched after a part of such a tensor was taken may read it.
        never = np.iinfo(np.int64).max
        taken_ns = pick(parts_ns, np.searchsorted(parts_ns, self._called_ns[at], side="right"), never)
        behind = np.maximum(np.searchsorted(self._since_ns, taken_ns), at + 1)
        kernels = np.flatnonzero(self._kernel)
        first = pick(kernels, np.searchsorted(kernels, behind), none)
        first = np.minimum(first, _next(reader_rows, at, none))
        end_of_step = np.searchsorted(self._step, self._step[at], side="right")
        ends = np.minimum(_next(np.searchsorted(self._line, alike), at, none), end_of_step)
        first = np.where(first < ends, first, -1)
        # If a part was taken since the beginning of the previous step, any kernel may have been the last to read it.
        begins = np.searchsorted(self._step, self._step[at] - 1)
        last = pick(reader_rows, np.searchsorted(reader_rows, at) - 1)
        taken = np.searchsorted(parts_ns, self._called_ns[at]) > np.searchsorted(parts_ns, self._since_ns[begins])
        last = np.where((first >= 0) & (last >= begins) & ~taken, last, -1)
        rows = np.append(self._line, -1)
        return rows[first], rows[last], (first >= 0) & (first == _next(certain_rows, at, -1))


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


# -- Shapes of ops' inputs ---------------------------------------------------------------------------

_COPY = "aten::copy_"
_TAKE_PARTS = frozenset(
    f"aten::{name}"
    for name in ("slice", "select", "narrow", "split", "split_with_sizes", "unsafe_split", "tensor_split")
    + ("chunk", "unsafe_chunk", "unbind", "unfold", "diagonal", "expand", "view_as_real", "view_as_complex")
)
_BESIDES_COPIES = frozenset(
    f"aten::{name}"
    for name in ("as_strided", "view", "reshape", "_reshape_alias", "flatten", "transpose", "t", "permute", "squeeze")
    + ("unsqueeze", "detach", "alias", "empty", "empty_strided", "empty_like", "to", "_to_copy", "contiguous")
)
"""Ops that may stand between taking a part and copying it."""
_MAX_SEARCHED_OPS = 16
"""Maximum number of ops to search before a copy."""
_NO_OPS = ("autograd::", "torch::")
"""Nodes of the backward pass: their inputs are only gradients, not the tensors that they saved."""


@kept()
def shapes_of(trace: Trace) -> Shapes | None:
    """Return the shapes of a recording's inputs, from its file; None if unavailable."""
    if not trace.flags.get("record_shapes"):
        return None
    from overlapscope.reading.op_args import ITEM_BYTES, read_inputs

    inputs = read_inputs(trace)
    return None if inputs is None else Shapes(trace, inputs, ITEM_BYTES)


class Shapes:
    """The inputs of a trace's CPU ops, for queries about launches: rows of `Trace.runtime_calls`."""

    def __init__(self, trace: Trace, inputs: Inputs, item_bytes: Mapping[str, int]) -> None:
        """`item_bytes` has the bytes of an element by type."""
        self._item_bytes = item_bytes
        self._ops, self._calls, self._number = trace.cpu_ops, trace.runtime_calls, inputs.number
        self._signatures = inputs.signatures
        self._op = around(self._ops, self._calls.thread, self._calls.start_ns)
        """The innermost op around each call."""
        self.readable = pick(self._all_known(), self._op, False)
        """Mask of the calls whose op can read only tensors with known shapes."""
        self._having = defaultdict(list)
        for number, signature in enumerate(self._signatures):
            for elements in signature.elements:
                self._having[elements].append(number)
        self._on_thread = dict(rows_by(self._ops.thread))

    @kept()
    def moved(self, call: int, size: int) -> tuple[int, ...]:
        """Return the elements that a call's copy of `size` bytes moves, and the sizes of its possible tensors.

        A copy may move a whole tensor or a part of a larger one. Empty if unknown.
        """
        op = int(self._op[call])
        copied = self._copied(op, size)
        return (copied, *sorted(self._taken_from(op) - {copied})) if copied > 0 else ()

    @kept()
    def reading(self, elements: int) -> Bool:
        """Return a mask of the calls inside an op with an input of this many elements."""
        ops, calls = self._ops, self._calls
        rows = np.flatnonzero(self._with_input(elements))
        inside = np.zeros(len(calls), np.bool_)
        for thread, of_thread in rows_by(ops.thread[rows]):
            called, of_thread = np.flatnonzero(calls.thread == thread), rows[of_thread]
            depth = np.zeros(len(called) + 1, np.int64)
            np.add.at(depth, np.searchsorted(calls.start_ns[called], ops.start_ns[of_thread]), 1)
            np.add.at(depth, np.searchsorted(calls.start_ns[called], ops.end_ns[of_thread]), -1)
            inside[called] = np.cumsum(depth)[:-1] > 0
        return inside

    @kept()
    def parts_ns(self, elements: int) -> I64:
        """Return when parts of a tensor of this many elements were taken, in order."""
        taking = self._ops.named(lambda name: name in _TAKE_PARTS)
        return self._ops.start_ns[taking & self._with_input(elements)]

    def _with_input(self, elements: int) -> Bool:
        having = np.array(self._having.get(elements, []), np.int64)
        rows: Bool = mask_of(having, len(self._signatures) + 1)[self._number]
        return rows

    def _all_known(self) -> Bool:
        """Return a mask of the ops whose kernels can read only inputs with known shapes."""
        complete = np.array([*(signature.whole for signature in self._signatures), False])[self._number]
        unnamed = np.array([*(signature.unnamed for signature in self._signatures), True])[self._number]
        # Among PyTorch's own ops, only indexing takes lists of optional tensors, which have no type.
        plain = self._ops.named(lambda name: name.startswith("aten::") and "index" not in name)
        op = self._ops.named(lambda name: "::" in name and not name.startswith(_NO_OPS))
        all_known: Bool = complete & op & (plain | ~unnamed)
        return all_known

    def _signature(self, op: int) -> Signature | None:
        number = int(self._number[op])
        return self._signatures[number] if number >= 0 else None

    def _copied(self, op: int, size: int) -> int:
        """Return the number of elements that an op's copy moves; 0 if unknown."""
        inputs = self._signature(op) if op >= 0 and self._ops.name(op) == _COPY else None
        if inputs is None or size <= 0:
            return 0
        each = self._item_bytes.get(inputs.first_type)
        if inputs.first > 0:
            fits = size % inputs.first == 0 if each is None else size == inputs.first * each
            return inputs.first if fits else 0
        return size // each if each is not None and inputs.first < 0 and size % each == 0 else 0

    def _taken_from(self, op: int) -> set[int]:
        """Return the elements of the tensors that parts were taken of right before a copy: `buffer[3].copy_(new)`."""
        ops, sizes = self._ops, set[int]()
        rows = self._on_thread[int(ops.thread[op])]
        at = int(np.searchsorted(rows, op))
        for row in rows[max(0, at - _MAX_SEARCHED_OPS) : at][::-1].tolist():
            name = ops.name(row)
            if name in _TAKE_PARTS:
                inputs = self._signature(row)
                sizes.update(inputs.elements if inputs is not None else ())
            elif name not in _BESIDES_COPIES and ops.end_ns[row] <= ops.start_ns[op]:
                break
        return sizes
