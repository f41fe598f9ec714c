"""The figures of steps, before and after: means that add up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.results import COPIES_MATTER_FROM, Period
from overlapscope.base.intervals import I64
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.compare.difference import Figures
from overlapscope.compare.noise import HOST_CAUSES, POINTS, floor_ns
from overlapscope.compare.pair import Pair, Row
from overlapscope.compare.resampling import F64

_COPY, _IDLE = [str(cause) for cause in COPY_CAUSES], [str(cause) for cause in IDLE_CAUSES]
_COPY_LEAVES, _IDLE_LEAVES = [f"copy:{cause}" for cause in _COPY], [f"idle:{cause}" for cause in _IDLE]
_LEAVES = ("compute", "exposed_comm", *_COPY_LEAVES, "exposed_other", *_IDLE_LEAVES)
"""What divides a span: the buckets, and the causes of two of them."""
_OTHERS = ("sm", "h2d", "d2h", "comm", "other", "copy", "busy", "ideal", "both", "exposed_h2d", "exposed_d2h")
_HOST = frozenset(f"{what}:{cause}" for what in ("copy", "idle") for cause in HOST_CAUSES)
_LINK = (
    frozenset({*_COPY_LEAVES, "exposed_comm", "h2d", "d2h", "comm", "copy", "both", "exposed_h2d", "exposed_d2h"})
    - _HOST
)
_PLACE = {name: number for number, name in enumerate((*_LEAVES, *_OTHERS))}


def compare(before: Sequence[Period], after: Sequence[Period], pair: Pair, *, copies_stay: bool = True) -> Figures:
    """All figures of two sides, which have a period for each of the pair's steps.

    A step copies what it copies, but which copies run while a range does is for the host to decide: without
    `copies_stay` their time is as noisy as the host's.
    """
    sides = _Lengths(before), _Lengths(after)

    def floor(columns: Sequence[str]) -> float:
        """The noise of some lengths added up: of the side that has less, as much as it may grow by."""
        by_host = _HOST if copies_stay else _HOST | _LINK
        host = [column for column in columns if column in by_host]
        link = [column for column in columns if column in _LINK - by_host]
        return floor_ns(
            pair.span_ns,
            link_ns=min(side.shares(link) for side in sides),
            host_ns=min(side.shares(host) for side in sides),
        )

    def time(name: str, added: Sequence[str], taken: Sequence[str] = (), *, noisy: Sequence[str] | None = None) -> Row:
        """Lengths added up, less others; as uncertain as the `noisy` ones, those added if not told."""
        one, other = (side.sums(added) - side.sums(taken) for side in sides)
        points = [side.shares(added) - side.shares(taken) for side in sides]
        return Row(name, "ns", one, other, floor(added if noisy is None else noisy), (points[0], points[1]))

    def percent(
        name: str,
        whole: Sequence[str],
        part: Sequence[str],
        rest: Sequence[str] = (),
        *,
        noisy: Sequence[str],
        of_copies: bool = True,
    ) -> Row:
        """100 * (whole - part) / (whole - rest), as uncertain as the `noisy` lengths in the numerator.

        `of_copies`: that a side has none where copies take too little to matter.
        """
        one, other = (
            np.stack([100 * (side.sums(whole) - side.sums(part)), side.sums(whole) - side.sums(rest)], axis=1)
            * (side.copies_matter() or not of_copies)
            for side in sides
        )
        least = min(float(side[:, 1].mean()) for side in (one, other))
        noise = 100 * floor(noisy) / least if least > 0 else 0.0
        return Row(name, "pct", one, other, max(POINTS, noise))

    groups = {
        "span": [time("span", _LEAVES)],
        "buckets": [
            time("compute", ["compute"]),
            time("exposed comm", ["exposed_comm"]),
            time("exposed copy", _COPY_LEAVES),
            time("exposed other", ["exposed_other"]),
            time("idle", _IDLE_LEAVES),
        ],
        "exposed_copy_by_cause": [time(cause, [f"copy:{cause}"], noisy=_COPY_LEAVES) for cause in _COPY],
        "idle_by_cause": [time(cause, [f"idle:{cause}"]) for cause in _IDLE],
        "engines": [
            time("SM", ["sm"]),
            time("H2D", ["h2d"]),
            time("D2H", ["d2h"]),
            time("comm", ["comm"]),
            time("other", ["other"]),
        ],
        "overlap": [
            percent("overlap efficiency", ["sm", "h2d", "d2h"], ["busy"], ["ideal"], noisy=_COPY_LEAVES),
            percent("hidden copy share", ["copy"], _COPY_LEAVES, noisy=_COPY_LEAVES),
            percent("comm under compute", ["comm"], ["exposed_comm"], noisy=["exposed_comm"], of_copies=False),
            time("copy", ["copy"]),
            time("hidden copy", ["copy"], _COPY_LEAVES, noisy=["copy", *_COPY_LEAVES]),
            time("exposed H2D", ["exposed_h2d"], noisy=_COPY_LEAVES),
            time("exposed D2H", ["exposed_d2h"], noisy=_COPY_LEAVES),
            # What both count, so that the two less this are the bucket.
            time("exposed at once", ["exposed_h2d", "exposed_d2h"], _COPY_LEAVES, noisy=_COPY_LEAVES),
            time("H2D and D2H at once", ["both"]),
        ],
    }
    changes = iter(pair.changes([row for rows in groups.values() for row in rows]))
    found = {name: tuple(next(changes) for _ in rows) for name, rows in groups.items()}
    return Figures(
        span=found["span"][0],
        buckets=found["buckets"],
        exposed_copy_by_cause=found["exposed_copy_by_cause"],
        idle_by_cause=found["idle_by_cause"],
        engines=found["engines"],
        overlap=found["overlap"],
    )


class _Lengths:
    """Every length of each period of one side."""

    def __init__(self, periods: Sequence[Period]) -> None:
        self._table: I64 = np.array([_row(period) for period in periods], np.int64)
        self._shares = _whole_shares(self._table)

    def sums(self, columns: Sequence[str]) -> F64:
        """Some lengths added up, of each period."""
        added: F64 = self._table[:, [_PLACE[column] for column in columns]].sum(axis=1).astype(np.float64)
        return added

    def copies_matter(self) -> bool:
        """Whether copies take long enough for percentages of them to say anything."""
        return bool(self.sums(["copy"]).sum() >= COPIES_MATTER_FROM * self.sums(_LEAVES).sum())

    def shares(self, columns: Sequence[str]) -> int:
        """The same as a mean over the periods, in whole nanoseconds."""
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
    """The mean of each column in whole nanoseconds: those of the leaves add up to that of the span, and what is exposed
    in one direction, in the other and in both at once to the exposed copy."""
    totals, count = table.sum(axis=0).tolist(), len(table)
    shares, running, given = {}, 0, 0
    for name, total in zip(_PLACE, totals, strict=True):
        if name in _OTHERS:
            shares[name] = _rounded(total, count)
            continue
        # The running sum is rounded, not each part, so that no nanosecond is lost or made.
        running += total
        shares[name] = _rounded(running, count) - given
        given += shares[name]
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
