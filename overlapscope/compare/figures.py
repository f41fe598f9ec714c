"""Figures of steps before and after, as means that add up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from overlapscope.analysis.results import COPIES_MATTER_FROM, Device, Period
from overlapscope.analysis.steps import begins_with_warm_up
from overlapscope.base.intervals import I64
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.compare.difference import FigureChange, Figures
from overlapscope.compare.noise import F64, FEWEST, HOST_CAUSES, POINTS, floor_ns
from overlapscope.compare.pair import Pair, PairRow

_COPY, _IDLE = [str(cause) for cause in COPY_CAUSES], [str(cause) for cause in IDLE_CAUSES]
_COPY_LEAVES, _IDLE_LEAVES = [f"copy:{cause}" for cause in _COPY], [f"idle:{cause}" for cause in _IDLE]
_LEAVES = ("compute", "exposed_comm", *_COPY_LEAVES, "exposed_other", *_IDLE_LEAVES)
"""Parts of a span: the buckets, two of them divided by cause."""
_OTHERS = ("sm", "h2d", "d2h", "comm", "other", "copy", "busy", "ideal", "both", "exposed_h2d", "exposed_d2h")
_HOST = frozenset(f"{what}:{cause}" for what in ("copy", "idle") for cause in HOST_CAUSES)
_LINK = (
    frozenset({*_COPY_LEAVES, "exposed_comm", "h2d", "d2h", "comm", "copy", "both", "exposed_h2d", "exposed_d2h"})
    - _HOST
)
_PLACE = {name: number for number, name in enumerate((*_LEAVES, *_OTHERS))}


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
    _Figure("span", "span", _LEAVES),
    _Figure("buckets", "compute", ["compute"]),
    _Figure("buckets", "exposed comm", ["exposed_comm"]),
    _Figure("buckets", "exposed copy", _COPY_LEAVES),
    _Figure("buckets", "exposed other", ["exposed_other"]),
    _Figure("buckets", "idle", _IDLE_LEAVES),
    *(_Figure("exposed_copy_by_cause", cause, [f"copy:{cause}"], noisy=_COPY_LEAVES) for cause in _COPY),
    *(_Figure("idle_by_cause", cause, [f"idle:{cause}"]) for cause in _IDLE),
    _Figure("engines", "SM", ["sm"]),
    _Figure("engines", "H2D", ["h2d"]),
    _Figure("engines", "D2H", ["d2h"]),
    _Figure("engines", "comm", ["comm"]),
    _Figure("engines", "other", ["other"]),
    _Figure(
        "overlap", "overlap efficiency", ["sm", "h2d", "d2h"], ["busy"], ["ideal"], noisy=_COPY_LEAVES, of_copies=True
    ),
    _Figure("overlap", "hidden copy share", ["copy"], _COPY_LEAVES, (), noisy=_COPY_LEAVES, of_copies=True),
    _Figure("overlap", "comm under compute", ["comm"], ["exposed_comm"], (), noisy=["exposed_comm"]),
    _Figure("overlap", "copy", ["copy"]),
    _Figure("overlap", "hidden copy", ["copy"], _COPY_LEAVES, noisy=["copy", *_COPY_LEAVES]),
    _Figure("overlap", "exposed H2D", ["exposed_h2d"], noisy=_COPY_LEAVES),
    _Figure("overlap", "exposed D2H", ["exposed_d2h"], noisy=_COPY_LEAVES),
    # Time in both of the previous two, so that their sum minus this is the bucket.
    _Figure("overlap", "exposed at once", ["exposed_h2d", "exposed_d2h"], _COPY_LEAVES, noisy=_COPY_LEAVES),
    _Figure("overlap", "H2D and D2H at once", ["both"]),
)


def compare(before: Sequence[Period], after: Sequence[Period], pair: Pair, *, copies_stay: bool = True) -> Figures:
    """Compare all figures of two sides.

    Args:
        before: Periods of one side, one per step of the pair.
        after: Periods of the other side.
        pair: The steps.
        copies_stay: Whether every period contains the same copies. Steps do. Which copies run during a range depends
            on the host, so their times are as noisy as the host's.
    """
    sides = _Lengths(before), _Lengths(after)
    by_host = _HOST if copies_stay else _HOST | _LINK
    changes = pair.changes([_compared(figure, sides, pair.span_ns, by_host) for figure in _FIGURES])
    groups: dict[str, list[FigureChange]] = {}
    for figure, change in zip(_FIGURES, changes, strict=True):
        groups.setdefault(figure.group, []).append(change)
    fields = {name: tuple(group) for name, group in groups.items()}
    [span] = fields.pop("span")
    return Figures(span=span, **fields)


def _compared(figure: _Figure, sides: tuple[_Lengths, _Lengths], span_ns: float, by_host: frozenset[str]) -> PairRow:
    """Return a figure for every period of both sides. `by_host` are the lengths that depend on the host."""
    floor = _floor_ns(figure.added if figure.noisy is None else figure.noisy, sides, span_ns, by_host)
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
    columns: Sequence[str], sides: tuple[_Lengths, _Lengths], span_ns: float, by_host: frozenset[str]
) -> float:
    """Return the noise of a sum of lengths, which depends on the side with the smaller sum."""
    host = [column for column in columns if column in by_host]
    link = [column for column in columns if column in _LINK - by_host]
    return floor_ns(
        span_ns,
        link_ns=min(side.shares(link) for side in sides),
        host_ns=min(side.shares(host) for side in sides),
    )


class _Lengths:
    """Lengths in each period of a side."""

    def __init__(self, periods: Sequence[Period]) -> None:
        self._table: I64 = np.array([_row(period) for period in periods], np.int64)
        self._shares = _whole_shares(self._table)

    def sums(self, columns: Sequence[str]) -> F64:
        """Return the sum of some lengths in each period."""
        added: F64 = self._table[:, [_PLACE[column] for column in columns]].sum(axis=1).astype(np.float64)
        return added

    def copies_matter(self) -> bool:
        """Return whether copies take enough time for percentages of them to be meaningful."""
        return bool(self.sums(["copy"]).sum() >= COPIES_MATTER_FROM * self.sums(_LEAVES).sum())

    def shares(self, columns: Sequence[str]) -> int:
        """Return the mean of `sums` over the periods, in whole nanoseconds."""
        return sum(self._shares[column] for column in columns)


def _row(period: Period) -> list[int]:
    buckets, engines, overlap = period.buckets, period.engines, period.overlap
    return [
        buckets.compute_ns,
        buckets.exposed_comm_ns,
        *(period.exposed_copy_by_cause.get(cause, 0) for cause in _COPY),
        buckets.exposed_other_ns,
        *(period.idle_by_cause.get(cause, 0) for cause in _IDLE),
        engines.sm_ns,
        engines.h2d_ns,
        engines.d2h_ns,
        engines.comm_ns,
        engines.other_ns,
        overlap.copy_ns,
        overlap.busy_ns,
        overlap.ideal_ns,
        overlap.h2d_d2h_ns,
        overlap.exposed_h2d_ns,
        overlap.exposed_d2h_ns,
    ]


def _whole_shares(table: I64) -> dict[str, int]:
    """Return the mean of each column in whole nanoseconds, rounded so that sums stay exact.

    The parts of the span add up to its mean. Time exposed in one direction, in the other and in both at once adds up
    to the exposed copy.
    """
    totals, count = table.sum(axis=0).tolist(), len(table)
    shares, running, distributed = {}, 0, 0
    for name, total in zip(_PLACE, totals, strict=True):
        if name in _OTHERS:
            shares[name] = _rounded(total, count)
            continue
        # Rounding the running sum instead of each part keeps the total exact.
        running += total
        shares[name] = _rounded(running, count) - distributed
        distributed += shares[name]
    exact = dict(zip(_PLACE, totals, strict=True))
    exposed, exposed_total = (sum(each[leaf] for leaf in _COPY_LEAVES) for each in (shares, exact))
    shares["copy"] = exposed + _rounded(exact["copy"] - exposed_total, count)
    only_h2d = min(exposed, _rounded(exposed_total - exact["exposed_d2h"], count))
    in_one = min(exposed, _rounded(2 * exposed_total - exact["exposed_d2h"] - exact["exposed_h2d"], count))
    shares["exposed_h2d"] = only_h2d + exposed - in_one
    shares["exposed_d2h"] = exposed - only_h2d
    return shares


def _rounded(total: int, count: int) -> int:
    return (2 * total + count) // (2 * count)


def compared(device: Device, *, skip: int = 0) -> tuple[int, ...]:
    """Return the indexes in `Device.steps` of steps to compare: complete ones after the first `skip`, without warm-up.

    `Device.steps` excludes what the recorder marked as warm-up.
    """
    kept = [number for number, step in enumerate(device.steps) if number >= skip and not step.partial]
    return without_warm_up(kept, [step.span_ns for step in device.steps])


def without_warm_up(numbers: Sequence[int], spans_ns: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers without the first if that step is warm-up. `spans_ns` has the spans of all steps."""
    warm_up = begins_with_warm_up([spans_ns[number] for number in numbers])
    return tuple(numbers[1:] if warm_up else numbers)


def averaged(device: Device) -> tuple[int, ...]:
    """Return the indexes of steps to average: those to compare, without the last if enough remain.

    The last step ends with the last op, not at the beginning of another step. With a slow host, the idle time at its
    end is missing, which changes a mean more than a median.
    """
    kept = compared(device)
    return kept[:-1] if len(kept) > FEWEST else kept


def occurrences(device: Device, *, skip: int = 0) -> dict[str, tuple[Period, ...]]:
    """Return the complete ranges by name that begin at or after the first step to compare."""
    steps = compared(device, skip=skip)
    begin = device.steps[steps[0]].window.start_ns if steps else device.window.start_ns
    by_name: dict[str, list[Period]] = {}
    for period in device.ranges:
        if not period.partial and period.window.start_ns >= begin:
            by_name.setdefault(period.name, []).append(period)
    return {name: tuple(periods) for name, periods in by_name.items()}
