"""Comparison of copies and host stalls, grouped by properties that stay the same between runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np

from overlapscope.analysis.groups import TINY_BYTES
from overlapscope.analysis.results import CopyDirection, CopyGroup, Device, HostStall
from overlapscope.compare.difference import CopyChange, FigureChange, StallChange, Standing
from overlapscope.compare.noise import F64, LINK_SHARE, floor_ns
from overlapscope.compare.pair import Pair, PairRow

Steps = Sequence[int]
"""Indexes in `Device.steps` of the compared steps; empty if all time after the lead-in is compared."""

K = TypeVar("K", bound=Hashable)

_CopyKey = tuple[CopyDirection, str, str, Literal["main", "side"]]
_COUNT, _BYTES, _DURATION, _TIME, _EXPOSED = range(5)


def compare_copies(before: Device, after: Device, steps: tuple[Steps, Steps], pair: Pair) -> tuple[CopyChange, ...]:
    """Compare copies by direction, memory kinds and kind of stream, the longest first."""
    first, second = (
        summed((_copy_key(group, device), _copies(group, compared)) for group in device.copies)
        for device, compared in zip((before, after), steps, strict=True)
    )
    copies = [
        CopyChange(
            direction=key[0],
            source_kind=key[1],
            target_kind=key[2],
            stream=key[3],
            standing=standing(key, first, second),
            **changed,
        )
        for key, changed in changes(both(first, second, pair), _copy_rows, pair)
    ]
    return tuple(
        sorted(copies, key=lambda change: (-larger(change.time), change.direction, change.source_kind, change.stream))
    )


def _copy_rows(before: F64, after: F64, spans_ns: tuple[float, float]) -> Mapping[str, PairRow]:
    time_floor = floor_ns(spans_ns, link_ns=least(_TIME, before, after))
    # Whether a copy is exposed often depends on the host.
    exposed_floor = floor_ns(spans_ns, host_ns=least(_EXPOSED, before, after))
    moved = [np.stack([side[_BYTES], side[_DURATION]], axis=1) * _shows_bandwidth(side) for side in (before, after)]
    rate_floor = LINK_SHARE * min(_rate(side) for side in moved)
    return {
        "count": PairRow("count", "count", before[_COUNT], after[_COUNT], 0),
        "bytes": PairRow("bytes", "bytes", before[_BYTES], after[_BYTES], 0),
        "time": PairRow("time", "ns", before[_TIME], after[_TIME], time_floor),
        "exposed": PairRow("exposed", "ns", before[_EXPOSED], after[_EXPOSED], exposed_floor),
        "bandwidth": PairRow("bandwidth", "gb_per_s", moved[0], moved[1], rate_floor),
    }


def compare_stalls(before: Device, after: Device, steps: tuple[Steps, Steps], pair: Pair) -> tuple[StallChange, ...]:
    """Compare blocking calls by call and op, over all threads and lines, the most idle time first."""
    first, second = (
        summed(((stall.call, stall.op), _stall(stall, compared)) for stall in device.host_stalls)
        for device, compared in zip((before, after), steps, strict=True)
    )
    stalls = [
        StallChange(
            call=key[0],
            op=key[1],
            standing=standing(key, first, second),
            where_before=_line(before, key),
            where_after=_line(after, key),
            **changed,
        )
        for key, changed in changes(both(first, second, pair), _stall_rows, pair)
    ]
    return tuple(
        sorted(
            stalls,
            key=lambda change: (-larger(change.idle_caused), -larger(change.host_wait), change.call, change.op or ""),
        )
    )


def _stall_rows(before: F64, after: F64, spans_ns: tuple[float, float]) -> Mapping[str, PairRow]:
    floors = [floor_ns(spans_ns, host_ns=least(row, before, after)) for row in range(2)]
    return {
        "host_wait": PairRow("host wait", "ns", before[0], after[0], floors[0]),
        "idle_caused": PairRow("idle caused", "ns", before[1], after[1], floors[1]),
    }


def changes(
    tables: Iterable[tuple[K, F64, F64]],
    rows_of: Callable[[F64, F64, tuple[float, float]], Mapping[str, PairRow]],
    pair: Pair,
) -> list[tuple[K, dict[str, FigureChange]]]:
    """Compare the figures of each key, from the tables of both sides. `rows_of` names the figures."""
    each = [(key, rows_of(before, after, pair.spans_ns)) for key, before, after in tables]
    changed = iter(pair.changes([row for _, rows in each for row in rows.values()]))
    return [(key, {name: next(changed) for name in rows}) for key, rows in each]


def summed(groups: Iterable[tuple[K, F64]]) -> dict[K, F64]:
    """Add up tables, of shape (numbers, steps), of the same key. Tables with only zeros are left out."""
    sums: dict[K, F64] = {}
    for key, numbers in groups:
        if numbers.any():
            sums[key] = sums[key] + numbers if key in sums else numbers
    return sums


def both(before: Mapping[K, F64], after: Mapping[K, F64], pair: Pair) -> list[tuple[K, F64, F64]]:
    """Return every key with both sides' tables; a side without the key has zeros."""
    tables = []
    for key in sorted({*before, *after}, key=repr):
        numbers = len(before[key] if key in before else after[key])
        zeros = [np.zeros((numbers, len(side.spans_ns))) for side in (pair.before, pair.after)]
        tables.append((key, before.get(key, zeros[0]), after.get(key, zeros[1])))
    return tables


def standing(key: K, before: Mapping[K, F64], after: Mapping[K, F64]) -> Standing:
    """Return on which sides a key exists."""
    return "new" if key not in before else "gone" if key not in after else "both"


def table(by_step: Sequence[Sequence[int]], whole: Sequence[float], steps: Steps) -> F64:
    """Return the numbers of each step, or of all time without steps, of shape (numbers, steps)."""
    return np.array(by_step, np.float64)[:, list(steps)] if steps else np.array(whole, np.float64)[:, None]


def _copy_key(group: CopyGroup, device: Device) -> _CopyKey:
    stream: Literal["main", "side"] = "main" if group.stream == device.main_stream else "side"
    return group.direction, group.source_kind, group.target_kind, stream


def _copies(group: CopyGroup, steps: Steps) -> F64:
    steps_of, size, rate = group.by_step, group.bytes or 0, group.gb_per_s
    return table(
        (steps_of.count, steps_of.bytes, steps_of.duration_ns, steps_of.time_ns, steps_of.exposed_ns),
        (group.count, size, size / rate if rate else 0, group.time_ns, group.exposed_ns),
        steps,
    )


def _stall(stall: HostStall, steps: Steps) -> F64:
    by_step = stall.by_step
    return table((by_step.host_wait_ns, by_step.idle_caused_ns), (stall.host_wait_ns, stall.idle_caused_ns), steps)


def _line(device: Device, key: tuple[str, str | None]) -> str | None:
    """Return the line of the costliest stall that has one. Stalls are listed costliest first."""
    lines = (stall.where for stall in device.host_stalls if (stall.call, stall.op) == key)
    return next((line for line in lines if line is not None), None)


def _shows_bandwidth(side: F64) -> bool:
    """Return whether copies are large enough for a meaningful bandwidth."""
    return bool(side[_BYTES].sum() >= TINY_BYTES * side[_COUNT].sum())


def _rate(moved: F64) -> float:
    """Return the bandwidth over all steps in bytes per nanosecond, which equals GB/s."""
    size, duration = moved.sum(axis=0).tolist()
    return size / duration if duration else 0.0


def least(row: int, *sides: F64) -> float:
    """Return the smaller side's mean of a row over the steps."""
    return min(float(side[row].mean()) for side in sides)


def larger(change: FigureChange) -> float:
    """Return the larger of the two sides' figures."""
    return max(change.before or 0, change.after or 0)
