"""Ops that may read a tensor, found by its number of elements.

A tensor and its views have the same number of elements, whatever their shapes, and a part of it has another. So an op
that takes a part of such a tensor counts too, because later launches may read that part.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from overlapscope.analysis.host import around
from overlapscope.base.columns import mask_of, pick
from overlapscope.base.grouping import rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.reading.shapes import ITEM_BYTES, Inputs, Signature, read_inputs
from overlapscope.trace.model import Trace

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
_LOOK = 16
"""Maximum number of ops to search before a copy."""
_NO_OPS = ("autograd::", "torch::")
"""Nodes of the backward pass: their inputs are only gradients, not the tensors that they saved."""


def look_up(trace: Trace) -> Shapes | None:
    """Return the shapes of a trace, from its file; None if unavailable."""
    inputs = read_inputs(trace)
    return None if inputs is None else Shapes(trace, inputs)


class Shapes:
    """The inputs of a trace's CPU ops, for queries about launches: rows of `Trace.runtime_calls`."""

    def __init__(self, trace: Trace, inputs: Inputs) -> None:
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
        self._reading: dict[int, Bool] = {}
        self._parts: dict[int, I64] = {}
        self._moved: dict[tuple[int, int], tuple[int, ...]] = {}

    def moved(self, call: int, size: int) -> tuple[int, ...]:
        """Return the elements that a call's copy of `size` bytes moves, and the sizes of its possible tensors.

        A copy may move a whole tensor or a part of a larger one. Empty if unknown.
        """
        if (call, size) not in self._moved:
            op = int(self._op[call])
            copied = self._copied(op, size)
            self._moved[call, size] = (copied, *sorted(self._taken_from(op) - {copied})) if copied > 0 else ()
        return self._moved[call, size]

    def reading(self, elements: int) -> Bool:
        """Return a mask of the calls inside an op with an input of this many elements."""
        if elements not in self._reading:
            ops, calls = self._ops, self._calls
            rows = np.flatnonzero(self._with_input(elements))
            inside = np.zeros(len(calls), np.bool_)
            for thread, of_thread in rows_by(ops.thread[rows]):
                called, of_thread = np.flatnonzero(calls.thread == thread), rows[of_thread]
                depth = np.zeros(len(called) + 1, np.int64)
                np.add.at(depth, np.searchsorted(calls.start_ns[called], ops.start_ns[of_thread]), 1)
                np.add.at(depth, np.searchsorted(calls.start_ns[called], ops.end_ns[of_thread]), -1)
                inside[called] = np.cumsum(depth)[:-1] > 0
            self._reading[elements] = inside
        return self._reading[elements]

    def parts_ns(self, elements: int) -> I64:
        """Return when parts of a tensor of this many elements were taken, in order."""
        if elements not in self._parts:
            taking = self._ops.named(lambda name: name in _TAKE_PARTS)
            self._parts[elements] = self._ops.start_ns[taking & self._with_input(elements)]
        return self._parts[elements]

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
        each = ITEM_BYTES.get(inputs.first_type)
        if inputs.first > 0:
            fits = size % inputs.first == 0 if each is None else size == inputs.first * each
            return inputs.first if fits else 0
        return size // each if each is not None and inputs.first < 0 and size % each == 0 else 0

    def _taken_from(self, op: int) -> set[int]:
        """Return the elements of the tensors that parts were taken of right before a copy: `buffer[3].copy_(new)`."""
        ops, sizes = self._ops, set[int]()
        rows = self._on_thread[int(ops.thread[op])]
        at = int(np.searchsorted(rows, op))
        for row in rows[max(0, at - _LOOK) : at][::-1].tolist():
            name = ops.name(row)
            if name in _TAKE_PARTS:
                inputs = self._signature(row)
                sizes.update(inputs.elements if inputs is not None else ())
            elif name not in _BESIDES_COPIES and ops.end_ns[row] <= ops.start_ns[op]:
                break
        return sizes
