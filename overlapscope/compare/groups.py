"""Copies and host stalls by what they are, not by ids that change from run to run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np

from overlapscope.analysis.groups import TINY_BYTES
from overlapscope.analysis.results import CopyGroup, Device, HostStall
from overlapscope.compare.difference import CopyChange, FigureChange, StallChange, Standing
from overlapscope.compare.noise import F64, LINK_SHARE, floor_ns
from overlapscope.compare.pair import Pair, PairRow

Steps = Sequence[int]
"""Indexes into `Device.steps` of those compared; empty where the whole windows are."""

K = TypeVar("K", bound=Hashable)

_CopyKey = tuple[Literal["h2d", "d2h"], str, str, Literal["main", "side"]]
_COUNT, _BYTES, _DURATION, _TIME, _EXPOSED = range(5)


def compare_copies(before: Device, after: Device, steps: tuple[Steps, Steps], pair: Pair) -> tuple[CopyChange, ...]:
    """The copies by direction, memory kinds and whether they ran on the main stream; most time first."""
    first, second = (
        summed((_copy_key(group, device), _copies(group, compared)) for group in device.copies)
        for device, compared in zip((before, after), steps, strict=True)
    )
    found = [
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
        sorted(found, key=lambda change: (-larger(change.time), change.direction, change.source_kind, change.stream))
    )


def _copy_rows(before: F64, after: F64, span_ns: float) -> Mapping[str, PairRow]:
    time_floor = floor_ns(span_ns, link_ns=least(_TIME, before, after))
    # Whether a copy is exposed is often for the host to decide.
    exposed_floor = floor_ns(span_ns, host_ns=least(_EXPOSED, before, after))
    moved = [np.stack([side[_BYTES], side[_DURATION]], axis=1) * _tells(side) for side in (before, after)]
    rate_floor = LINK_SHARE * min(_rate(side) for side in moved)
    return {
        "count": PairRow("count", "count", before[_COUNT], after[_COUNT], 0),
        "bytes": PairRow("bytes", "bytes", before[_BYTES], after[_BYTES], 0),
        "time": PairRow("time", "ns", before[_TIME], after[_TIME], time_floor),
        "exposed": PairRow("exposed", "ns", before[_EXPOSED], after[_EXPOSED], exposed_floor),
        "bandwidth": PairRow("bandwidth", "gb_per_s", moved[0], moved[1], rate_floor),
    }


def compare_stalls(before: Device, after: Device, steps: tuple[Steps, Steps], pair: Pair) -> tuple[StallChange, ...]:
    """The blocking calls by call and op, over all threads and lines; the most idle time first."""
    first, second = (
        summed(((stall.call, stall.op), _stall(stall, compared)) for stall in device.host_stalls)
        for device, compared in zip((before, after), steps, strict=True)
    )
    found = [
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
            found,
            key=lambda change: (-larger(change.idle_caused), -larger(change.host_wait), change.call, change.op or ""),
        )
    )


def _stall_rows(before: F64, after: F64, span_ns: float) -> Mapping[str, PairRow]:
    floors = [floor_ns(span_ns, host_ns=least(row, before, after)) for row in range(2)]
    return {
        "host_wait": PairRow("host wait", "ns", before[0], after[0], floors[0]),
        "idle_caused": PairRow("idle caused", "ns", before[1], after[1], floors[1]),
    }


def changes(
    tables: Iterable[tuple[K, F64, F64]], rows_of: Callable[[F64, F64, float], Mapping[str, PairRow]], pair: Pair
) -> list[tuple[K, dict[str, FigureChange]]]:
    """How the figures of each key changed, by the names that `rows_of` gives them, of the tables of both sides."""
    each = [(key, rows_of(before, after, pair.span_ns)) for key, before, after in tables]
    changed = iter(pair.changes([row for _, rows in each for row in rows.values()]))
    return [(key, {name: next(changed) for name in rows}) for key, rows in each]


def summed(groups: Iterable[tuple[K, F64]]) -> dict[K, F64]:
    """Tables (numbers, steps) of the same key added up; what did not happen in any of the steps is left out."""
    found: dict[K, F64] = {}
    for key, numbers in groups:
        if numbers.any():
            found[key] = found[key] + numbers if key in found else numbers
    return found


def both(before: Mapping[K, F64], after: Mapping[K, F64], pair: Pair) -> list[tuple[K, F64, F64]]:
    """Every key with both sides' tables; the numbers of a side that does not have it are 0."""
    found = []
    for key in sorted({*before, *after}, key=repr):
        numbers = len(before[key] if key in before else after[key])
        nothing = [np.zeros((numbers, len(side.spans_ns))) for side in (pair.before, pair.after)]
        found.append((key, before.get(key, nothing[0]), after.get(key, nothing[1])))
    return found


def standing(key: K, before: Mapping[K, F64], after: Mapping[K, F64]) -> Standing:
    """On which sides something is."""
    return "new" if key not in before else "gone" if key not in after else "both"


def table(by_step: Sequence[Sequence[int]], whole: Sequence[float], steps: Steps) -> F64:
    """(numbers, steps): in each of the steps, or of the whole window where there are none."""
    return np.array(by_step, np.float64)[:, list(steps)] if steps else np.array(whole, np.float64)[:, None]


def _copy_key(group: CopyGroup, device: Device) -> _CopyKey:
    stream: Literal["main", "side"] = "main" if group.stream == device.main_stream else "side"
    return group.direction, group.source_kind, group.target_kind, stream


def _copies(group: CopyGroup, steps: Steps) -> F64:
    own, size, rate = group.by_step, group.bytes or 0, group.gb_per_s
    return table(
        (own.count, own.bytes, own.duration_ns, own.time_ns, own.exposed_ns),
        (group.count, size, size / rate if rate else 0, group.time_ns, group.exposed_ns),
        steps,
    )


def _stall(stall: HostStall, steps: Steps) -> F64:
    own = stall.by_step
    return table((own.host_wait_ns, own.idle_caused_ns), (stall.host_wait_ns, stall.idle_caused_ns), steps)


def _line(device: Device, key: tuple[str, str | None]) -> str | None:
    """The line of the costliest of these stalls that has one; they are listed costliest first."""
    lines = (stall.where for stall in device.host_stalls if (stall.call, stall.op) == key)
    return next((line for line in lines if line is not None), None)


def _tells(side: F64) -> bool:
    """Whether copies are large enough for their bandwidth to be more than latency."""
    return bool(side[_BYTES].sum() >= TINY_BYTES * side[_COUNT].sum())


def _rate(moved: F64) -> float:
    """Bytes per nanosecond, which is GB/s, over all steps."""
    size, duration = moved.sum(axis=0).tolist()
    return size / duration if duration else 0.0


def least(row: int, *sides: F64) -> float:
    """The mean of one of the numbers over the steps, of the side that has less of it."""
    return min(float(side[row].mean()) for side in sides)


def larger(change: FigureChange) -> float:
    """The figure of the side that has more of it."""
    return max(change.before or 0, change.after or 0)
