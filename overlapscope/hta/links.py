"""What HTA adds to its rows: which launch belongs to which kernel, and the step of each.

The same as `transform_correlation_to_index` and `add_iteration` of `hta.common.trace`, which go from row to row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapscope.trace.model import F64, I64, Bool, Index


@dataclass(frozen=True, slots=True)
class Steps:
    """The rows that are steps, in the order of the frame; steps may overlap."""

    start_us: NDArray[Any]
    end_us: NDArray[Any]
    number: I64


def linked(index: I64, correlation: I64, on_gpu: Bool) -> I64:
    """For each row the `index` of the one on the other side that has its correlation: the last where there are
    several, 0 where there is none, -1 where the row has no correlation.

    `index` ascends.
    """
    links = np.minimum(correlation, 0)
    host, device = np.flatnonzero(~on_gpu & (correlation != -1)), np.flatnonzero(on_gpu & (correlation != -1))
    for rows, others in ((host, device), (device, host)):
        at = _last(correlation[others], correlation[rows])
        found = at >= 0
        links[rows[found]] = index[others[at[found]]]
    return links


def _last(values: I64, wanted: I64) -> Index:
    """Where each wanted value occurs last; -1 where it does not."""
    if not len(values):
        return np.full(len(wanted), -1, np.intp)
    order = np.argsort(values, kind="stable")
    at = np.searchsorted(values[order], wanted, side="right") - 1
    found = (at >= 0) & (values[order[np.maximum(at, 0)]] == wanted)
    return np.where(found, order[np.maximum(at, 0)], -1)


def iterations(ts_us: NDArray[Any], stream: I64, index: I64, links: I64, steps: Steps) -> I64 | F64:
    """The step of each row: of a host row the one it begins in, of a row of a stream that of its launch, -1 for none.

    Where steps overlap the last one counts. HTA gives rows of stream 0 none at all: they are NaN.
    """
    on_host = np.flatnonzero(stream < 0)
    step = np.full(len(ts_us), -1, np.int64)
    order = on_host[np.argsort(ts_us[on_host], kind="stable")]
    ordered = ts_us[order]
    bounds = np.searchsorted(ordered, steps.start_us), np.searchsorted(ordered, steps.end_us)
    for first, last, number in zip(*bounds, steps.number, strict=True):
        step[order[first:last]] = number
    of_stream = np.flatnonzero(stream > 0)
    launched = of_stream[links[of_stream] > 0]
    step[launched] = step[np.searchsorted(index, links[launched])]
    if (stream == 0).any():
        return np.where(stream == 0, np.nan, step.astype(np.float64))
    return step
