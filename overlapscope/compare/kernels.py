"""Comparison of kernels and the ops that launch them: new, gone, slower, renamed."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from overlapscope.analysis.results import Device
from overlapscope.compare.difference import FigureChange, KernelChange, OpChange, OpStanding
from overlapscope.compare.groups import Steps, both, changes, larger, least, summed, table
from overlapscope.compare.noise import F64
from overlapscope.compare.pair import Pair, PairRow

OWN_SHARE = 0.05
"""Minimum change of a kernel's time, as a fraction of that time."""
SPAN_SHARE = 0.001
"""Minimum change of a kernel's time, as a fraction of the step."""

_COUNT, _TIME = range(2)
_Key = tuple[str, str | None]
"""Names of a kernel and its op."""
_Tables = dict[_Key, F64]


class _Match(Struct, frozen=True):
    """A kernel with its names `before` and `after`; None on a side without it."""

    op: str | None
    before: str | None
    after: str | None


def compare_kernels(before: Device, after: Device, steps: tuple[Steps, Steps], pair: Pair) -> tuple[KernelChange, ...]:
    """Return the kernels that changed, the largest change of time first.

    Kernels are matched by name and op; then by name only, since a CUDA graph may launch what ops launched before; then
    by op only, since another version of a library may have other names.
    """
    matches = _matched(_tables(before, steps[0]), _tables(after, steps[1]), pair)
    kernels = []
    for match, changed in changes(matches, _rows, pair):
        renamed = match.before is not None and match.after is not None and match.before != match.after
        how = _standing(match.before is not None, match.after is not None, **changed)
        kernels.append(
            KernelChange(
                kernel=match.after or match.before or "",
                renamed_from=match.before if renamed else None,
                op=match.op,
                standing="renamed" if renamed and how == "same" else how,
                **changed,
            )
        )
    changed_ones = [change for change in kernels if change.standing != "same"]
    return tuple(sorted(changed_ones, key=lambda change: (*_rank(change.time), change.kernel, change.op or "")))


def compare_ops(before: Device, after: Device, steps: tuple[Steps, Steps], pair: Pair) -> tuple[OpChange, ...]:
    """Return the ops whose kernels changed in total, the largest change of time first.

    Kernels that another op or a graph launches after the change are left out.
    """
    tables = _tables(before, steps[0]), _tables(after, steps[1])
    moved, alike = _moved(*tables), tables[0].keys() & tables[1].keys()
    first, second = (
        summed(
            (key[1], values)
            for key, values in side.items()
            if key[1] is not None and (key in alike or key[0] not in moved)
        )
        for side in tables
    )
    ops = [
        OpChange(op=op, standing=_standing(op in first, op in second, **changed), **changed)
        for op, changed in changes(both(first, second, pair), _rows, pair)
    ]
    return tuple(
        sorted(
            (change for change in ops if change.standing != "same"),
            key=lambda change: (*_rank(change.time), change.op),
        )
    )


def _tables(device: Device, steps: Steps) -> _Tables:
    """Return count and time of each kernel, without kernels that ran in none of the compared steps."""
    return summed(
        (
            (group.kernel, group.op),
            table((group.by_step.count, group.by_step.time_ns), (group.count, group.time_ns), steps),
        )
        for group in device.kernels
    )


def _matched(before: _Tables, after: _Tables, pair: Pair) -> list[tuple[_Match, F64, F64]]:
    alike = before.keys() & after.keys()
    matches = [(_Match(key[1], key[0], key[0]), before[key], after[key]) for key in sorted(alike, key=repr)]
    gone, new = _without(before, alike), _without(after, alike)

    # By name only, over all ops that launch the kernel.
    old_names, new_names = (summed((key[0], values) for key, values in side.items()) for side in (gone, new))
    moved = _moved(before, after)
    for name in sorted(moved):
        ops = {op for kernel, op in new if kernel == name}
        match = _Match(ops.pop() if len(ops) == 1 else None, name, name)
        matches.append((match, old_names[name], new_names[name]))
    gone, new = (_without(side, {key for key in side if key[0] in moved}) for side in (gone, new))

    # By op only.
    renamed = _renamed(gone, new)
    matches += [
        (_Match(old[1], old[0], renamed_to[0]), gone[old], new[renamed_to]) for old, renamed_to in renamed.items()
    ]
    gone, new = _without(gone, renamed), _without(new, set(renamed.values()))

    for (kernel, op), values_before, values_after in both(gone, new, pair):
        is_gone = (kernel, op) in gone
        matches.append(
            (_Match(op, kernel if is_gone else None, None if is_gone else kernel), values_before, values_after)
        )
    return matches


def _moved(before: _Tables, after: _Tables) -> set[str]:
    """Return the kernels on both sides that some op launches on one side only."""
    alike = before.keys() & after.keys()
    gone, new = ({kernel for kernel, _ in side.keys() - alike} for side in (before, after))
    return gone & new


def _without(tables: _Tables, keys: Collection[_Key]) -> _Tables:
    return {key: values for key, values in tables.items() if key not in keys}


def _renamed(gone: _Tables, new: _Tables) -> dict[_Key, _Key]:
    """Match kernels that replaced each other: same op and same count, the longest first.

    If a single kernel remains on each side of an op, the two match even with different counts.

    Returns:
        The new key of each kernel that has disappeared, where there is a match.
    """
    pairs: dict[_Key, _Key] = {}
    for op in sorted({op for _, op in gone if op is not None} & {op for _, op in new if op is not None}):
        old_keys, new_keys = (
            sorted((key for key in side if key[1] == op), key=lambda key: (-side[key][_TIME].mean(), key[0]))
            for side in (gone, new)
        )
        for old in tuple(old_keys):
            count = gone[old][_COUNT].mean()
            match = next((key for key in new_keys if new[key][_COUNT].mean() == count), None)
            if match is not None:
                pairs[old] = match
                old_keys.remove(old)
                new_keys.remove(match)
        if len(old_keys) == len(new_keys) == 1:
            pairs[old_keys[0]] = new_keys[0]
    return pairs


def _rows(before: F64, after: F64, spans_ns: tuple[float, float]) -> dict[str, PairRow]:
    floor = max(SPAN_SHARE * max(spans_ns), OWN_SHARE * least(_TIME, before, after))
    return {
        "count": PairRow("count", "count", before[_COUNT], after[_COUNT], 0),
        "time": PairRow("time", "ns", before[_TIME], after[_TIME], floor),
    }


def _standing(before: bool, after: bool, count: FigureChange, time: FigureChange) -> OpStanding:
    if not (before and after):
        return "gone" if before else "new"
    if _differs(count, 0.0):
        return "more" if (count.change or 0) > 0 else "fewer"
    if _differs(time, OWN_SHARE):
        return "slower" if (time.change or 0) > 0 else "faster"
    return "same"


def _differs(change: FigureChange, share: float) -> bool:
    """Return whether a change is more than noise, or without steps, more than a share of the figure."""
    if change.beyond_noise is not None:
        return change.beyond_noise
    return abs(change.change or 0) > share * larger(change)


def _rank(time: FigureChange) -> tuple[float, float]:
    """Return a sort key: the largest change first, then the largest time."""
    return -abs(time.change or 0), -larger(time)
