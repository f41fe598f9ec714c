"""What happened in each step: a row of numbers for each group of ops, with a column for each step."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.periods import Periods
from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64


def step_at(steps: Periods, at: I64) -> I64:
    """The step that each instant lies in; -1 where there is none. Steps are disjoint."""
    number = np.searchsorted(steps.start_ns, at, side="right") - 1
    return np.where((number >= 0) & (pick(steps.end_ns, number, 0) > at), number, -1)


def table(group: I64, step: I64, weight: I64, shape: tuple[int, int]) -> I64:
    """The weights added up, `shape` = (groups, steps); what lies in no step (-1) is left out."""
    inside = step >= 0
    sums = np.zeros(shape, np.int64)
    np.add.at(sums, (group[inside], step[inside]), weight[inside])
    return sums


def row(values: I64) -> tuple[int, ...]:
    """One group's numbers as a report holds them."""
    return tuple(values.tolist())
