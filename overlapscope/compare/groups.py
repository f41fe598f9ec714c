"""Comparison of copies, host stalls, kernels and ops, grouped by properties that stay the same between runs.

A change of compute time is divided by what became of kernels: new, gone or changed, contention, or a common ratio.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.figures import Beside, TimeFigures, hidden_ns
from overlapscope.analysis.results import CopyDirection, Device
from overlapscope.catalog.measures import TINY_BYTES
from overlapscope.compare.difference import (
    ComputeChange,
    ComputePart,
    CopyChange,
    FigureChange,
    KernelChange,
    KernelPace,
    OpChange,
    OpStanding,
    PartOfCompute,
    SlowedChange,
    StallChange,
)
from overlapscope.compare.noise import F64, GPU_SHARE, LINK_SHARE, Pair, PairRow, floor_ns


class ComparedSide(NamedTuple):
    """A device before or after, with the steps that are compared."""

    device: Device
    steps: Sequence[int]
    """Indexes in `Device.steps`; empty if all time after the lead-in is compared."""

    @property
    def periods(self) -> Sequence[TimeFigures]:
        """The compared steps, or all time."""
        return [self.device.steps[number] for number in self.steps] or [self.device]

    def table(self, by_step: Sequence[Sequence[int]], whole: Sequence[float]) -> F64:
        """Return the numbers of each step, or of all time without steps, of shape (numbers, steps)."""
        return (
            np.array(by_step, np.float64)[:, list(self.steps)] if self.steps else np.array(whole, np.float64)[:, None]
        )


Sides = tuple[ComparedSide, ComparedSide]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_COUNT, _BYTES, _DURATION, _TIME, _EXPOSED = range(5)


def compare_copies(sides: Sides, pair: Pair) -> tuple[CopyChange, ...]:
    """Compare copies by direction, memory kinds and kind of stream, the longest first."""

    def tables(side: ComparedSide) -> Iterator[tuple[tuple[CopyDirection, str, str, Literal["main", "side"]], F64]]:
        for group in side.device.copies:
            by_step, size, rate = group.by_step, group.bytes or 0, group.gb_per_s
            stream: Literal["main", "side"] = "main" if group.stream == side.device.main_stream else "side"
            numbers = side.table(
                (by_step.count, by_step.bytes, by_step.duration_ns, by_step.time_ns, by_step.exposed_ns),
                (group.count, size, size / rate if rate else 0, group.time_ns, group.exposed_ns),
            )
            yield (group.direction, group.source_kind, group.target_kind, stream), numbers

    copies = [
        CopyChange(direction=direction, source_kind=source, target_kind=target, stream=stream, **changed)
        for (direction, source, target, stream), changed in _changed(map(tables, sides), _copy_rows, pair)
    ]
    return tuple(
        sorted(copies, key=lambda change: (-change.time.larger, change.direction, change.source_kind, change.stream))
    )


def _copy_rows(before: F64, after: F64, spans_ns: tuple[float, float]) -> Mapping[str, PairRow]:
    time_floor = floor_ns(spans_ns, link_ns=least(_TIME, before, after))
    # Whether a copy is exposed often depends on the host.
    exposed_floor = floor_ns(spans_ns, host_ns=least(_EXPOSED, before, after))
    # Only copies that are large enough have a meaningful bandwidth: bytes per nanosecond, which equals GB/s.
    moved = [
        np.stack([side[_BYTES], side[_DURATION]], axis=1) * (side[_BYTES].sum() >= TINY_BYTES * side[_COUNT].sum())
        for side in (before, after)
    ]
    sums = [side.sum(axis=0).tolist() for side in moved]
    rate_floor = LINK_SHARE * min(size / duration if duration else 0.0 for size, duration in sums)
    return {
        "count": PairRow("count", "count", before[_COUNT], after[_COUNT], 0),
        "bytes": PairRow("bytes", "bytes", before[_BYTES], after[_BYTES], 0),
        "time": PairRow("time", "ns", before[_TIME], after[_TIME], time_floor),
        "exposed": PairRow("exposed", "ns", before[_EXPOSED], after[_EXPOSED], exposed_floor),
        "bandwidth": PairRow("bandwidth", "gb_per_s", moved[0], moved[1], rate_floor),
    }


def compare_stalls(sides: Sides, pair: Pair) -> tuple[StallChange, ...]:
    """Compare blocking calls by call and op, over all threads and lines, the most idle time first."""

    def tables(side: ComparedSide) -> Iterator[tuple[tuple[str, str | None], F64]]:
        for stall in side.device.host_stalls:
            by_step = (stall.by_step.host_wait_ns, stall.by_step.idle_caused_ns)
            yield (stall.call, stall.op), side.table(by_step, (stall.host_wait_ns, stall.idle_caused_ns))

    def line(side: ComparedSide, key: tuple[str, str | None]) -> str | None:
        # Of the costliest stall that has one. Stalls are listed costliest first.
        lines = (stall.where for stall in side.device.host_stalls if (stall.call, stall.op) == key)
        return next((line for line in lines if line is not None), None)

    def rows(before: F64, after: F64, spans_ns: tuple[float, float]) -> Mapping[str, PairRow]:
        floors = [floor_ns(spans_ns, host_ns=least(row, before, after)) for row in range(2)]
        return {
            "host_wait": PairRow("host wait", "ns", before[0], after[0], floors[0]),
            "idle_caused": PairRow("idle caused", "ns", before[1], after[1], floors[1]),
        }

    before, after = sides
    stalls = [
        StallChange(call=key[0], op=key[1], where_before=line(before, key), where_after=line(after, key), **changed)
        for key, changed in _changed(map(tables, sides), rows, pair)
    ]
    return tuple(
        sorted(
            stalls,
            key=lambda change: (-change.idle_caused.larger, -change.host_wait.larger, change.call, change.op or ""),
        )
    )


def changes(
    tables: Iterable[tuple[K, F64, F64]],
    rows_of: Callable[[F64, F64, tuple[float, float]], Mapping[str, PairRow]],
    pair: Pair,
) -> list[tuple[K, dict[str, FigureChange]]]:
    """Compare the figures of each key, from the tables of both sides. `rows_of` names the figures."""
    each = [(key, rows_of(before, after, pair.spans_ns)) for key, before, after in tables]
    changed = iter(pair.changes([row for _, rows in each for row in rows.values()]))
    return [(key, {name: next(changed) for name in rows}) for key, rows in each]


def _changed(
    sides: Iterable[Iterable[tuple[K, F64]]],
    rows_of: Callable[[F64, F64, tuple[float, float]], Mapping[str, PairRow]],
    pair: Pair,
) -> Iterator[tuple[K, dict[str, Any]]]:
    """Yield the changed figures of each key, and its standing."""
    first, second = map(summed, sides)
    for key, changed in changes(both(first, second, pair), rows_of, pair):
        yield key, {"standing": "new" if key not in first else "gone" if key not in second else "both", **changed}


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
        zeros = [np.zeros((numbers, steps)) for steps in pair.steps]
        tables.append((key, before.get(key, zeros[0]), after.get(key, zeros[1])))
    return tables


def pairs(
    before: Sequence[T], after: Sequence[T], keys: Sequence[Callable[[T], Hashable]]
) -> tuple[list[tuple[T, T]], list[T], list[T]]:
    """Pair things with equal keys, by the first of the keys that has a partner left. Equal ones are paired in order.

    Args:
        keys: Keys of a thing, from the strictest to the loosest.

    Returns:
        The pairs in the order of `before`, and what is left on each side.
    """
    partner: dict[int, int] = {}
    here, there = list(range(len(before))), list(range(len(after)))
    for key in keys:
        places: dict[Hashable, list[int]] = {}
        for other in reversed(there):
            places.setdefault(key(after[other]), []).append(other)
        for number in here:
            if equal := places.get(key(before[number])):
                partner[number] = equal.pop()
        here = [number for number in here if number not in partner]
        there = sorted(other for left in places.values() for other in left)
    return (
        [(before[number], after[partner[number]]) for number in sorted(partner)],
        [before[number] for number in here],
        [after[other] for other in there],
    )


def least(row: int, *sides: F64) -> float:
    """Return the smaller side's mean of a row over the steps."""
    return min(float(side[row].mean()) for side in sides)


# -- Kernels, and the ops that launch them -----------------------------------------------------------

OWN_SHARE = 0.05
"""Minimum change of a kernel's time, as a fraction of that time."""
SPAN_SHARE = 0.001
"""Minimum change of a kernel's time, as a fraction of the step."""

_KERNEL_COUNT, _KERNEL_TIME = range(2)


class _Kernel(NamedTuple):
    """A kernel, the op that launches it, and whether it communicates."""

    name: str
    op: str | None
    comm: bool


class KernelMatch(Struct, frozen=True, eq=False):
    """A kernel with its names `before` and `after`; None on a side without it."""

    op: str | None
    before: str | None
    after: str | None
    comm: bool
    moved: bool
    """True if another op or a graph launches it after the change."""
    tables: tuple[F64, F64]
    """Its count and time in each step of both sides."""

    @property
    def name(self) -> str:
        """The name after, or before if it is gone."""
        return self.after or self.before or ""


def match_kernels(sides: Sides, pair: Pair) -> list[KernelMatch]:
    """Return the kernels that ran in some compared step, matched between the sides.

    They are matched by name and op; then by name only, since a CUDA graph may launch what ops launched before; then
    by op only, since another version of a library may have other names. Communication never matches compute.
    """
    before, after = (
        summed(
            (
                _Kernel(group.kernel, group.op, group.comm),
                side.table((group.by_step.count, group.by_step.time_ns), (group.count, group.time_ns)),
            )
            for group in side.device.kernels
        )
        for side in sides
    )
    alike = before.keys() & after.keys()
    matches = [
        KernelMatch(key.op, key.name, key.name, key.comm, False, (before[key], after[key]))
        for key in sorted(alike, key=repr)
    ]
    gone, new = ({key: table for key, table in side.items() if key not in alike} for side in (before, after))
    by_name = [summed((key._replace(op=None), table) for key, table in side.items()) for side in (gone, new)]
    moved = by_name[0].keys() & by_name[1].keys()
    for kernel in sorted(moved, key=repr):
        ops = {key.op for key in new if key._replace(op=None) == kernel}
        op = ops.pop() if len(ops) == 1 else None
        tables = by_name[0][kernel], by_name[1][kernel]
        matches.append(KernelMatch(op, kernel.name, kernel.name, kernel.comm, True, tables))
    gone, new = (
        {key: table for key, table in side.items() if key._replace(op=None) not in moved} for side in (gone, new)
    )
    renamed = _renamed(gone, new)
    for old, replacement in renamed.items():
        values = gone.pop(old), new.pop(replacement)
        matches.append(KernelMatch(old.op, old.name, replacement.name, old.comm, False, values))
    for key, values_before, values_after in both(gone, new, pair):
        old_name, new_name = (key.name, None) if key in gone else (None, key.name)
        matches.append(KernelMatch(key.op, old_name, new_name, key.comm, False, (values_before, values_after)))
    return matches


def _renamed(gone: Mapping[_Kernel, F64], new: Mapping[_Kernel, F64]) -> dict[_Kernel, _Kernel]:
    """Match kernels that replaced each other: same op and same count, the longest first.

    If a single kernel remains on each side of an op, the two match even with different counts.

    Returns:
        The new kernel for each that has disappeared, where there is a match.
    """
    tables = {**gone, **new}
    old_keys, new_keys = (
        sorted((key for key in side if key.op is not None), key=lambda key: (-tables[key][_KERNEL_TIME].mean(), key))
        for side in (gone, new)
    )
    matched, old, others = pairs(old_keys, new_keys, (lambda key: (*key[1:], tables[key][_KERNEL_COUNT].mean()),))
    old_ops, new_ops = (Counter(key[1:] for key in left) for left in (old, others))
    last = {key[1:]: key for key in others}
    return dict(matched) | {key: last[key[1:]] for key in old if old_ops[key[1:]] == new_ops[key[1:]] == 1}


def compare_kernels(matches: Sequence[KernelMatch], pair: Pair) -> tuple[KernelChange, ...]:
    """Return the kernels that changed, the largest change of time first."""
    kernels = []
    for match, changed in changes(((match, *match.tables) for match in matches), _kernel_rows, pair):
        renamed = match.before is not None and match.after is not None and match.before != match.after
        how = _kernel_standing(match.before is not None, match.after is not None, **changed)
        kernels.append(
            KernelChange(
                kernel=match.name,
                renamed_from=match.before if renamed else None,
                op=match.op,
                standing="renamed" if renamed and how == "same" else how,
                **changed,
            )
        )
    changed_ones = [change for change in kernels if change.standing != "same"]
    return tuple(sorted(changed_ones, key=lambda change: (*_rank(change.time), change.kernel, change.op or "")))


def compare_ops(matches: Sequence[KernelMatch], pair: Pair) -> tuple[OpChange, ...]:
    """Return the ops whose kernels changed in total, the largest change of time first, without kernels that moved."""
    first, second = (
        summed((match.op, match.tables[side]) for match in matches if match.op is not None and not match.moved)
        for side in range(2)
    )
    ops = [
        OpChange(op=op, standing=_kernel_standing(op in first, op in second, **changed), **changed)
        for op, changed in changes(both(first, second, pair), _kernel_rows, pair)
    ]
    changed_ones = [change for change in ops if change.standing != "same"]
    return tuple(sorted(changed_ones, key=lambda change: (*_rank(change.time), change.op)))


def _kernel_rows(before: F64, after: F64, spans_ns: tuple[float, float]) -> dict[str, PairRow]:
    floor = max(SPAN_SHARE * max(spans_ns), OWN_SHARE * least(_KERNEL_TIME, before, after))
    return {
        "count": PairRow("count", "count", before[_KERNEL_COUNT], after[_KERNEL_COUNT], 0),
        "time": PairRow("time", "ns", before[_KERNEL_TIME], after[_KERNEL_TIME], floor),
    }


def _kernel_standing(before: bool, after: bool, count: FigureChange, time: FigureChange) -> OpStanding:
    if not (before and after):
        return "gone" if before else "new"
    if count.exceeds(0):
        return "more" if count.moved > 0 else "fewer"
    if time.exceeds(OWN_SHARE * time.larger):
        return "slower" if time.moved > 0 else "faster"
    return "same"


def _rank(time: FigureChange) -> tuple[float, float]:
    """Return a sort key: the largest change first, then the largest time."""
    return -abs(time.moved), -time.larger


# -- Reasons for a change of compute time -------------------------------------------------------------

_SAME_PACE = 0.02
"""Maximum distance of most kernels' ratios from the median ratio for all to have changed alike."""
_MIN_TIME_SHARE = 0.9
"""Share of the kernels' time that has to be within that distance."""
_MIN_KERNELS = 3


def compare_compute(sides: Sides, matches: Sequence[KernelMatch], pair: Pair, compute: FigureChange) -> ComputeChange:
    """Return the change of the bucket `compute` in parts that add up to it.

    If both sides have a kernel, its change is divided: calls that are more or fewer count with the length of a call
    before, and the rest is longer or shorter calls. The largest part has what rounding leaves.
    """
    changes: dict[PartOfCompute, dict[str, float]] = {}
    paces: list[tuple[float, float]] = []
    total_ns = 0.0

    def add(part: PartOfCompute, kernel: str, ns: float) -> None:
        named = changes.setdefault(part, {})
        named[kernel] = named.get(kernel, 0) + ns

    for match in (match for match in matches if not match.comm):
        (count, ns), (count_after, ns_after) = (side.mean(axis=1).tolist() for side in match.tables)
        name, total_ns = match.name, total_ns + ns_after
        if match.before is None or match.after is None:
            add("new" if match.before is None else "gone", name, ns_after - ns)
        elif match.before != match.after:
            add("replaced", name, ns_after - ns)
        elif count and count_after:
            more_ns = (count_after - count) * ns / count
            add("calls", name, more_ns)
            add("length", name, ns_after - ns - more_ns)
            if ns and ns_after:
                paces.append((ns_after / count_after / (ns / count), ns_after))
        else:
            add("new" if count_after else "gone", name, ns_after - ns)
    parts = []
    for part, named in changes.items():
        most = sorted((name for name in named if round(named[name])), key=lambda name: (-abs(named[name]), name))
        kernels = {name: round(named[name]) for name in most}
        parts.append(ComputePart(part=part, change_ns=round(sum(named.values())), kernels=kernels))
    change_ns = round(compute.moved)
    rest_ns = change_ns - sum(each.change_ns for each in parts)
    if parts and abs(rest_ns) <= len(parts) + 1:
        # Rounding each figure to whole nanoseconds makes as much of a difference.
        largest = max(parts, key=lambda each: abs(each.change_ns))
        parts[parts.index(largest)] = replace(largest, change_ns=largest.change_ns + rest_ns)
    else:
        parts.append(ComputePart(part="side-by-side", change_ns=rest_ns))
    # `Device.net_overlap` is of the judged steps, or of all time.
    costs_known = all(tuple(side.steps) == judged_steps(side.device) for side in sides)
    return ComputeChange(
        change_ns=change_ns,
        parts=tuple(sorted((each for each in parts if each.change_ns), key=lambda each: -abs(each.change_ns))),
        pace=_pace(paces, total_ns) if pair.reliable else None,
        slowed=tuple(_slowed(sides, pair)) if pair.reliable and costs_known else (),
    )


def _pace(paces: Sequence[tuple[float, float]], total_ns: float) -> KernelPace | None:
    """Return by which ratio calls of nearly all kernels became longer; None if not by the same, or by hardly any.

    Args:
        paces: Ratio and time of each kernel that both sides have.
        total_ns: Time of all kernels.
    """
    if len(paces) < _MIN_KERNELS:
        return None
    ratios, weights = np.array(sorted(paces)).T
    share = np.cumsum(weights) / weights.sum()
    middle = float(ratios[np.searchsorted(share, 0.5)])
    near = np.abs(ratios / middle - 1) <= _SAME_PACE
    if abs(middle - 1) <= _SAME_PACE or weights[near].sum() < _MIN_TIME_SHARE * total_ns:
        return None
    return KernelPace(ratio=middle, low=float(ratios[near].min()), high=float(ratios[near].max()))


def _slowed(sides: Sides, pair: Pair) -> Iterator[SlowedChange]:
    """Yield how much more communication and copies slow the kernels beside them, where that is sure and matters."""
    before, after = (side.device for side in sides)
    for beside in dict.fromkeys(each.beside for device in (after, before) for each in device.net_overlap):
        bounds = _slowed_by(before, beside), _slowed_by(after, beside)
        if bounds[0] is None or bounds[1] is None:
            continue
        low_ns, high_ns = bounds[1][0] - bounds[0][1], bounds[1][1] - bounds[0][0]
        if max(low_ns, -high_ns) > GPU_SHARE * min(pair.spans_ns):
            yield SlowedChange(beside=beside, low_ns=low_ns, high_ns=high_ns)


def _slowed_by(device: Device, beside: Beside) -> tuple[int, int] | None:
    """Return how much longer kernels took beside other work, in bounds; None if unknown.

    Kernels that could not be judged may have taken all of their time beside it longer.
    """
    found = next((each for each in device.net_overlap if each.beside == beside), None)
    if found is None:
        frame = device.per_step or device.judged
        return None if frame is None or hidden_ns(frame)[beside] else (0, 0)
    if found.slowed_low_ns is None or found.slowed_high_ns is None:
        return None
    return found.slowed_low_ns, found.slowed_high_ns + found.overlapped_ns - found.judged_ns
