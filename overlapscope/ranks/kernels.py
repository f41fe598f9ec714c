"""Communication kernels of one device, and the steps that launched them."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.comm_kinds import CommKind
from overlapscope.analysis.periods import is_step
from overlapscope.base.columns import Columns, pick
from overlapscope.base.intervals import I64
from overlapscope.base.marks import step_number
from overlapscope.trace.model import HostEvents


class CommKernels(Columns, frozen=True):
    """Communication kernels of one device by start, one row each."""

    kinds: tuple[CommKind, ...]
    """All kinds, each once; not a column."""
    start_ns: I64
    end_ns: I64
    kind: I64
    """Index into `kinds`."""
    step: I64
    """Number of the profiler step whose host part launched it; -1 where the launch or the step was not recorded."""
    elements: I64
    """Number of elements sent by this rank; -1 where not recorded."""
    sequence: I64
    """The process group's own count; -1 where not recorded."""
    received: I64
    """Number of elements received by this rank; -1 where not recorded."""
    bytes: I64
    """Size of the message, of the larger buffer; -1 where unknown."""
    reaches_all: I64
    """1 if an all-to-all has data for and from every member, 0 if not, -1 where unknown."""


def step_numbers(notes: HostEvents, at: I64) -> I64:
    """Return the number of the profiler step at each moment on the host, or -1. `notes` has the steps."""
    rows = np.flatnonzero(is_step(notes))
    numbers = np.array([step_number(notes.name(row)) for row in rows.tolist()], np.int64)
    step = np.searchsorted(notes.start_ns[rows], at, side="right") - 1
    inside = (step >= 0) & (at < pick(notes.end_ns[rows], step, 0))
    return np.where(inside, pick(numbers, step), -1)
