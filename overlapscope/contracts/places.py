"""Places of the program: the outermost op around a call, and the line of the program."""

from __future__ import annotations

import re

import numpy as np

from overlapscope.analysis.host import inside_any, line_ids_around, line_text, outermost_around, shown_line
from overlapscope.analysis.host_order import is_autograd_node
from overlapscope.base.columns import pick
from overlapscope.base.grouping import distinct
from overlapscope.base.kept import kept
from overlapscope.base.words import clean
from overlapscope.budgets.words import in_project
from overlapscope.trace.model import I64, HostEvents, Trace

_AUTOGRAD = re.compile(r"(autograd::engine::evaluate_function: )?(torch::autograd::)?")
_RUNS_BACKWARD = re.compile(r".*\b(_engine_run_backward|run_backward)\b.*", re.DOTALL)
"""Frames in which a thread waits for autograd's engine (torch/autograd)."""
_LIMIT = 120


class Places:
    """Places of calls as text."""

    def __init__(self, trace: Trace, table: HostEvents, calls: I64) -> None:
        """Look up the places of calls, given as rows of one of the trace's tables."""
        self._trace = trace
        thread, at = table.thread[calls], table.start_ns[calls]
        self._row = dict(zip(calls.tolist(), range(len(calls)), strict=True))
        op = outermost_around(trace.cpu_ops, thread, at)
        self._op = pick(trace.cpu_ops.name_id, op)
        self._line = line_ids_around(trace, thread, at)
        in_backward = np.flatnonzero((self._line < 0) & pick(trace.cpu_ops.named(is_autograd_node), op, False))
        self._line[in_backward] = _backward_line_ids(trace, thread[in_backward], at[in_backward])

    def ids(self, calls: I64) -> tuple[I64, I64]:
        """Return op and line of each call as rows of `Trace.names`; -1 where there is none."""
        rows = np.array([self._row[call] for call in calls.tolist()], np.int64)
        return self._op[rows], self._line[rows]

    def op(self, call: int) -> str:
        """Return the op around a call; empty if there is none."""
        name = int(self._op[self._row[call]])
        return clean(_AUTOGRAD.sub("", self._trace.names[name], count=1), _LIMIT) if name >= 0 else ""

    def line(self, call: int) -> str:
        """Return the line of a call as `train.py:88 in step`; empty if there is none."""
        text = line_text(self._trace, int(self._line[self._row[call]])) or ""
        shown = shown_line(text)
        if shown is None:
            return ""
        # A path outside of the project differs between machines.
        path = in_project(shown.file) or shown.file.rpartition("/")[2]
        return clean(f"{path}:{shown.line} in {shown.function}", _LIMIT)

    def words(self, call: int) -> str:
        """Return `aten::item, train.py:88 in step` as far as it is known."""
        return ", ".join(filter(None, (self.op(call), self.line(call))))


def _backward_line_ids(trace: Trace, thread: I64, at: I64) -> I64:
    """Return the line that called the backward pass around each instant, as a row of `Trace.names`; -1 if unknown.

    Autograd's engine runs the nodes of a backward pass on a thread without Python frames, while the thread that called
    it waits. If two threads wait so, either may have called it.
    """
    waits, line, callers = _runs_of_backward(trace.python_frames), np.full(len(at), -1, np.int64), np.zeros(len(at))
    for caller in distinct(waits.thread).tolist() if len(at) else []:
        its = np.full(len(at), caller, np.int64)
        calls = inside_any(waits, its, at) & (thread != caller)
        callers += calls
        line[calls] = line_ids_around(trace, its[calls], at[calls])
    return np.where(callers == 1, line, -1)


@kept()
def _runs_of_backward(frames: HostEvents) -> HostEvents:
    return frames.take(frames.named(lambda name: _RUNS_BACKWARD.fullmatch(name) is not None))
