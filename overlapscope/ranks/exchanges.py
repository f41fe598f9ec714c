"""Sizes of the all-to-alls that are called with split sizes, as those of tokens and experts are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.messages import element_bytes, has_splits, split_rows
from overlapscope.base.columns import Columns, pick
from overlapscope.base.intervals import I64
from overlapscope.trace.model import Collectives


class Exchanges(Columns, frozen=True):
    """All-to-alls with split sizes, one row for each kernel."""

    kernel: I64
    """Row of the kernel among those of its rank, or of all ranks."""
    element_bytes: I64
    """Size of an element; -1 where unknown."""
    sent: I64
    """Number of elements sent, to the rank itself included; -1 where unknown."""
    received: I64
    """Number of elements received; -1 where unknown."""
    sent_rows: I64
    """Sum of the split sizes of the tensor sent: its rows, such as tokens; -1 where unknown."""
    received_rows: I64


def find_exchanges(recorded: Collectives, names: Sequence[str], row: I64) -> Exchanges:
    """Return the exchanges among some kernels. `row` has the row of each in `recorded`, -1 for none."""
    kernel = np.flatnonzero(pick(has_splits(recorded, names), row, False))
    columns = {
        "element_bytes": element_bytes(recorded, names),
        "sent": recorded.elements_in,
        "received": recorded.elements_out,
        "sent_rows": split_rows(recorded.parts_in, names),
        "received_rows": split_rows(recorded.parts_out, names),
    }
    return Exchanges(kernel=kernel, **{name: pick(column, row[kernel]) for name, column in columns.items()})
