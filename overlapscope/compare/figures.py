"""Figures of steps before and after, as means that add up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from overlapscope.analysis.average import (
    COLUMN,
    COMM_LENGTHS,
    COPY_LENGTHS,
    IDLE_LENGTHS,
    OTHER_LENGTHS,
    PARTS,
    judged_steps,
    lengths_of,
    means,
)
from overlapscope.analysis.figures import COPIES_MATTER_FROM, Period
from overlapscope.analysis.results import Device
from overlapscope.catalog.causes import (
    COMM_CAUSES,
    COPY_CAUSES,
    IDLE_CAUSES,
    OTHER_CAUSES,
    IdleCause,
)
from overlapscope.compare.difference import FigureChange, Figures
from overlapscope.compare.noise import F64, HOST_CAUSES, POINTS, Pair, PairRow, floor_ns

_COPY, _IDLE = [str(cause) for cause in COPY_CAUSES], [str(cause) for cause in IDLE_CAUSES]
_LOADING = f"idle:{IdleCause.DATA_LOADING}"
_HOST = frozenset(f"{what}:{cause}" for what in ("exposed-copy", "exposed-comm", "idle") for cause in HOST_CAUSES) - {
    _LOADING
}
_LINK = (
    frozenset({*COPY_LENGTHS, *COMM_LENGTHS, "h2d", "d2h", "comm", "copy", "both", "exposed_h2d", "exposed_d2h"})
    - _HOST
)


class _Figure(Struct, frozen=True):
    """Definition of a figure: a sum of lengths minus others, or a percentage if it has a `rest`."""

    group: str
    """Field of `Figures` that contains the figure."""
    name: str
    added: Sequence[str]
    taken: Sequence[str] = ()
    rest: Sequence[str] | None = None
    """Lengths to subtract from those added to get the divisor of a percentage; None for a time."""
    noisy: Sequence[str] | None = None
    """Lengths that determine the noise, if not those added."""
    of_copies: bool = False
    """True if the figure is unknown if copies take too little time to matter."""


_FIGURES: tuple[_Figure, ...] = (
    _Figure("span", "span", PARTS),
    _Figure("buckets", "compute", ["compute"]),
    _Figure("buckets", "exposed comm", COMM_LENGTHS),
    _Figure("buckets", "exposed copy", COPY_LENGTHS),
    _Figure("buckets", "exposed other", OTHER_LENGTHS),
    _Figure("buckets", "idle", IDLE_LENGTHS),
    *(_Figure("exposed_copy_by_cause", cause, [f"exposed-copy:{cause}"], noisy=COPY_LENGTHS) for cause in _COPY),
    *(
        _Figure("exposed_comm_by_cause", cause, [f"exposed-comm:{cause}"], noisy=COMM_LENGTHS)
        for cause in map(str, COMM_CAUSES)
    ),
    *(_Figure("exposed_other_by_cause", cause, [f"exposed-other:{cause}"]) for cause in map(str, OTHER_CAUSES)),
    *(_Figure("idle_by_cause", cause, [f"idle:{cause}"]) for cause in _IDLE),
    _Figure("engines", "SM", ["sm"]),
    _Figure("engines", "H2D", ["h2d"]),
    _Figure("engines", "D2H", ["d2h"]),
    _Figure("engines", "comm", ["comm"]),
    _Figure("engines", "other", ["other"]),
    _Figure(
        "overlap", "overlap efficiency", ["sm", "h2d", "d2h"], ["busy"], ["ideal"], noisy=COPY_LENGTHS, of_copies=True
    ),
    _Figure("overlap", "hidden copy share", ["copy"], COPY_LENGTHS, (), noisy=COPY_LENGTHS, of_copies=True),
    _Figure("overlap", "comm under compute", ["comm"], COMM_LENGTHS, (), noisy=COMM_LENGTHS),
    _Figure("overlap", "copy", ["copy"]),
    _Figure("overlap", "hidden copy", ["copy"], COPY_LENGTHS, noisy=["copy", *COPY_LENGTHS]),
    _Figure("overlap", "exposed H2D", ["exposed_h2d"], noisy=COPY_LENGTHS),
    _Figure("overlap", "exposed D2H", ["exposed_d2h"], noisy=COPY_LENGTHS),
    # Time in both of the previous two, so that their sum minus this is the bucket.
    _Figure("overlap", "exposed at once", ["exposed_h2d", "exposed_d2h"], COPY_LENGTHS, noisy=COPY_LENGTHS),
    _Figure("overlap", "H2D and D2H at once", ["both"]),
)


def compare(before: Sequence[Period], after: Sequence[Period], pair: Pair, *, copies_stay: bool = True) -> Figures:
    """Return all figures of two sides, and whether each has changed.

    Args:
        before: Periods of one side, one per step of the pair.
        after: Periods of the other side.
        pair: The steps.
        copies_stay: Whether every period contains the same copies. Steps do. Which copies run during a range depends
            on the host, so their times are as noisy as the host's.
    """
    sides = _Lengths(before), _Lengths(after)
    by_host = _HOST if copies_stay else _HOST | _LINK
    changes = pair.changes([_compared(figure, sides, pair.spans_ns, by_host) for figure in _FIGURES])
    groups: dict[str, list[FigureChange]] = {}
    for figure, change in zip(_FIGURES, changes, strict=True):
        groups.setdefault(figure.group, []).append(change)
    fields = {name: tuple(group) for name, group in groups.items()}
    [span] = fields.pop("span")
    return Figures(span=span, **fields)


def _compared(
    figure: _Figure, sides: tuple[_Lengths, _Lengths], spans_ns: tuple[float, float], by_host: frozenset[str]
) -> PairRow:
    """Return a figure for every period of both sides. `by_host` are the lengths that depend on the host."""
    floor = _floor_ns(figure.added if figure.noisy is None else figure.noisy, sides, spans_ns, by_host)
    parts = [side.sums(figure.added) - side.sums(figure.taken) for side in sides]
    if figure.rest is None:
        points = [side.shares(figure.added) - side.shares(figure.taken) for side in sides]
        return PairRow(figure.name, "ns", parts[0], parts[1], floor, (points[0], points[1]))
    ratios = [
        np.stack([100 * part, side.sums(figure.added) - side.sums(figure.rest)], axis=1)
        * (side.copies_matter() or not figure.of_copies)
        for part, side in zip(parts, sides, strict=True)
    ]
    divisor = min(float(ratio[:, 1].mean()) for ratio in ratios)
    noise = 100 * floor / divisor if divisor > 0 else 0.0
    return PairRow(figure.name, "pct", ratios[0], ratios[1], max(POINTS, noise))


def _floor_ns(
    columns: Sequence[str],
    sides: tuple[_Lengths, _Lengths],
    spans_ns: tuple[float, float],
    by_host: frozenset[str],
) -> float:
    """Return the noise of a sum of lengths, which depends on the side with the smaller sum."""
    link, host, loading = (
        min(side.shares([column for column in columns if column in some]) for side in sides)
        for some in (_LINK - by_host, by_host, {_LOADING})
    )
    return floor_ns(spans_ns, link_ns=link, host_ns=host, loading_ns=loading)


class _Lengths:
    """Lengths in each period of a side."""

    def __init__(self, periods: Sequence[Period]) -> None:
        self._table = lengths_of(periods)
        self._means = means(self._table)

    def sums(self, columns: Sequence[str]) -> F64:
        """Return the sum of some lengths in each period."""
        added: F64 = self._table[:, [COLUMN[column] for column in columns]].sum(axis=1).astype(np.float64)
        return added

    def copies_matter(self) -> bool:
        """Return whether copies take enough time for percentages of them to be meaningful."""
        return bool(self.sums(["copy"]).sum() >= COPIES_MATTER_FROM * self.sums(PARTS).sum())

    def shares(self, columns: Sequence[str]) -> int:
        """Return the mean of `sums` over the periods, in whole nanoseconds."""
        return sum(self._means[column] for column in columns)


def occurrences(device: Device, *, skip: int = 0) -> dict[str, tuple[Period, ...]]:
    """Return the complete ranges by name that begin at or after the first step to compare."""
    steps = judged_steps(device, skip=skip)
    begin = device.steps[steps[0]].window.start_ns if steps else device.window.start_ns
    by_name: dict[str, list[Period]] = {}
    for period in device.ranges:
        if not period.partial and period.window.start_ns >= begin:
            by_name.setdefault(period.name, []).append(period)
    return {name: tuple(periods) for name, periods in by_name.items()}
