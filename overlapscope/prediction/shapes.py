"""Who may read a tensor of so many elements, by the shapes of the inputs of ops.

A tensor and its views have one number of elements, whatever their shapes; a part of it has another. So an op that takes
a part of such a tensor counts too: what is launched behind it may read that part.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from overlapscope.analysis.grouping import rows_by
from overlapscope.analysis.host import around
from overlapscope.base.columns import pick
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
"""What may stand between a part being taken and its copy."""
_LOOK = 16
"""How many ops before a copy are looked at."""
_NO_OPS = ("autograd::", "torch::")
"""Nodes of the backward pass: their inputs are gradients alone, what they saved is not among them."""


def look_up(trace: Trace) -> Shapes | None:
    """The shapes of a trace, from its file; None where they are not to be had."""
    inputs = read_inputs(trace)
    return None if inputs is None else Shapes(trace, inputs)


class Shapes:
    """The inputs of a trace's CPU ops, prepared to be asked about launches: rows of `Trace.runtime_calls`."""

    def __init__(self, trace: Trace, inputs: Inputs) -> None:
        self._ops, self._calls, self._number = trace.cpu_ops, trace.runtime_calls, inputs.number
        self._signatures = inputs.signatures
        self._op = around(self._ops, self._calls.thread, self._calls.start_ns)
        """Of each call: the innermost op around it."""
        self.known = pick(self._all_known(), self._op, False)
        """Of each call: whether all tensors that its op can read are known."""
        self._having = defaultdict(list)
        for number, signature in enumerate(self._signatures):
            for elements in signature.elements:
                self._having[elements].append(number)
        self._on_thread = dict(rows_by(self._ops.thread))
        self._reading: dict[int, Bool] = {}
        self._parts: dict[int, I64] = {}
        self._moved: dict[tuple[int, int], tuple[int, ...]] = {}

    def moved(self, call: int, size: int) -> tuple[int, ...]:
        """How many elements the copy of `size` bytes of a call moves, and the tensors that they may be a part of have.

        Empty where that is not known.
        """
        if (call, size) not in self._moved:
            op = int(self._op[call])
            copied = self._copied(op, size)
            self._moved[call, size] = (copied, *sorted(self._taken_from(op) - {copied})) if copied > 0 else ()
        return self._moved[call, size]

    def reading(self, elements: int) -> Bool:
        """Which calls lie inside an op with an input of so many elements."""
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
        """When parts of a tensor of so many elements were taken, in order."""
        if elements not in self._parts:
            taking = self._ops.named(lambda name: name in _TAKE_PARTS)
            self._parts[elements] = self._ops.start_ns[taking & self._with_input(elements)]
        return self._parts[elements]

    def _with_input(self, elements: int) -> Bool:
        has = np.zeros(len(self._signatures) + 1, np.bool_)
        has[self._having.get(elements, [])] = True
        rows: Bool = has[self._number]
        return rows

    def _all_known(self) -> Bool:
        """Of each op: whether its kernels can read nothing but inputs whose shapes are known."""
        whole = np.array([*(signature.whole for signature in self._signatures), False])[self._number]
        unnamed = np.array([*(signature.unnamed for signature in self._signatures), True])[self._number]
        # Of PyTorch's own ops only those that index take lists of optional tensors, which have no type.
        plain = self._ops.named(lambda name: name.startswith("aten::") and "index" not in name)
        op = self._ops.named(lambda name: "::" in name and not name.startswith(_NO_OPS))
        known: Bool = whole & op & (plain | ~unnamed)
        return known

    def _signature(self, op: int) -> Signature | None:
        number = int(self._number[op])
        return self._signatures[number] if number >= 0 else None

    def _copied(self, op: int, size: int) -> int:
        """Elements that the copy made by an op moves; 0 where it does not say."""
        inputs = self._signature(op) if op >= 0 and self._ops.name(op) == _COPY else None
        if inputs is None or size <= 0:
            return 0
        each = ITEM_BYTES.get(inputs.first_type)
        if inputs.first > 0:
            fits = size % inputs.first == 0 if each is None else size == inputs.first * each
            return inputs.first if fits else 0
        return size // each if each is not None and inputs.first < 0 and size % each == 0 else 0

    def _taken_from(self, op: int) -> set[int]:
        """Elements of the tensors that parts were taken of right before a copy: `buffer[3].copy_(new)`."""
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
