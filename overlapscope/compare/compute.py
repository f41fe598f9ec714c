"""Reasons for a change of compute time: kernels that are new, gone or changed, contention, and a common ratio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.figures import Beside, hidden_ns
from overlapscope.analysis.results import Device
from overlapscope.compare.difference import (
    ComputeChange,
    ComputePart,
    FigureChange,
    KernelPace,
    PartOfCompute,
    SlowedChange,
)
from overlapscope.compare.groups import Steps, kernel_tables, matched_kernels
from overlapscope.compare.noise import GPU_SHARE, Pair

_SAME_PACE = 0.02
"""Maximum distance of most kernels' ratios from the median ratio for all to have changed alike."""
_MOST = 0.9
"""Share of the kernels' time that has to be within that distance."""
_LEAST_KERNELS = 3


def compare_compute(
    before: Device, after: Device, steps: tuple[Steps, Steps], pair: Pair, compute: FigureChange
) -> ComputeChange:
    """Return the change of the bucket `compute` in parts that add up to it.

    Kernels are matched as in `compare_kernels`. If both sides have a kernel, its change is divided: calls that are more
    or fewer count with the length of a call before, and the rest is longer or shorter calls. The largest part has what
    rounding leaves.
    """
    first, second = kernel_tables(before, steps[0], comm=False), kernel_tables(after, steps[1], comm=False)
    changes: dict[PartOfCompute, dict[str, float]] = {}
    paces: list[tuple[float, float]] = []
    total_ns = 0.0

    def add(part: PartOfCompute, kernel: str, ns: float) -> None:
        named = changes.setdefault(part, {})
        named[kernel] = named.get(kernel, 0) + ns

    for match, values_before, values_after in matched_kernels(first, second, pair):
        (count, ns), (count_after, ns_after) = (side.mean(axis=1).tolist() for side in (values_before, values_after))
        name, total_ns = match.after or match.before or "", total_ns + ns_after
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
    parts = [_part(part, named) for part, named in changes.items()]
    change_ns = round(compute.moved)
    rest_ns = change_ns - sum(each.change_ns for each in parts)
    if parts and abs(rest_ns) <= len(parts) + 1:
        # Rounding each figure to whole nanoseconds makes as much of a difference.
        largest = max(parts, key=lambda each: abs(each.change_ns))
        parts[parts.index(largest)] = replace(largest, change_ns=largest.change_ns + rest_ns)
    else:
        parts.append(ComputePart(part="side-by-side", change_ns=rest_ns))
    return ComputeChange(
        change_ns=change_ns,
        parts=tuple(sorted((each for each in parts if each.change_ns), key=lambda each: -abs(each.change_ns))),
        pace=_pace(paces, total_ns) if pair.reliable else None,
        slowed=tuple(_slowed(before, after, pair)) if pair.reliable and _has_costs_of(before, after, steps) else (),
    )


def _part(part: PartOfCompute, named: dict[str, float]) -> ComputePart:
    most = sorted((name for name in named if round(named[name])), key=lambda name: (-abs(named[name]), name))
    return ComputePart(
        part=part, change_ns=round(sum(named.values())), kernels={name: round(named[name]) for name in most}
    )


def _pace(paces: Sequence[tuple[float, float]], total_ns: float) -> KernelPace | None:
    """Return by which ratio calls of nearly all kernels became longer; None if not by the same, or by hardly any.

    Args:
        paces: Ratio and time of each kernel that both sides have.
        total_ns: Time of all kernels.
    """
    if len(paces) < _LEAST_KERNELS:
        return None
    ratios, weights = np.array(sorted(paces)).T
    share = np.cumsum(weights) / weights.sum()
    middle = float(ratios[np.searchsorted(share, 0.5)])
    near = np.abs(ratios / middle - 1) <= _SAME_PACE
    if abs(middle - 1) <= _SAME_PACE or weights[near].sum() < _MOST * total_ns:
        return None
    return KernelPace(ratio=middle, low=float(ratios[near].min()), high=float(ratios[near].max()))


def _slowed(before: Device, after: Device, pair: Pair) -> Iterator[SlowedChange]:
    """Yield how much more communication and copies slow the kernels beside them, where that is sure and matters."""
    for beside in dict.fromkeys(each.beside for device in (after, before) for each in device.net_overlap):
        bounds = _slowed_by(before, beside), _slowed_by(after, beside)
        if bounds[0] is None or bounds[1] is None:
            continue
        low_ns, high_ns = bounds[1][0] - bounds[0][1], bounds[1][1] - bounds[0][0]
        if max(low_ns, -high_ns) > GPU_SHARE * min(pair.spans_ns):
            yield SlowedChange(beside=beside, low_ns=low_ns, high_ns=high_ns)


def _has_costs_of(before: Device, after: Device, steps: tuple[Steps, Steps]) -> bool:
    """Return whether `Device.net_overlap` is of the compared steps, or of all time on both sides."""
    return (tuple(steps[0]), tuple(steps[1])) == (judged_steps(before), judged_steps(after))


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
