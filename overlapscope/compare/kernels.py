"""Kernels and the ops that launch them: new, gone, slower, renamed."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from overlapscope.analysis.results import Device
from overlapscope.compare.difference import FigureChange, KernelChange, OpChange, OpStanding
from overlapscope.compare.groups import Steps, both, changes, larger, least, summed, table
from overlapscope.compare.noise import F64
from overlapscope.compare.pair import Pair, PairRow

OWN_SHARE = 0.05
"""Of its own time: a kernel that became slower or faster by less is as fast as before."""
SPAN_SHARE = 0.001
"""Of the step: a smaller change of a kernel's time is not worth a line."""

_COUNT, _TIME = range(2)
_Key = tuple[str, str | None]
"""Kernel and op."""
_Tables = dict[_Key, F64]


class _Match(Struct, frozen=True):
    """What is taken for the same kernel on both sides; `before` and `after` are its names, None where it is not."""

    op: str | None
    before: str | None
    after: str | None


def compare_kernels(before: Device, after: Device, steps: tuple[Steps, Steps], pair: Pair) -> tuple[KernelChange, ...]:
    """The kernels that changed, the largest change of time first.

    A kernel is matched by its name and the op that launched it; then by its name alone, as a graph launches what ops
    had launched; then by its op alone, as another version of a library has other names for the same thing.
    """
    matches = _matched(_tables(before, steps[0]), _tables(after, steps[1]), pair)
    found = []
    for match, changed in changes(matches, _rows, pair):
        renamed = match.before is not None and match.after is not None and match.before != match.after
        how = _standing(match.before is not None, match.after is not None, **changed)
        found.append(
            KernelChange(
                kernel=match.after or match.before or "",
                renamed_from=match.before if renamed else None,
                op=match.op,
                standing="renamed" if renamed and how == "same" else how,
                **changed,
            )
        )
    told = [change for change in found if change.standing != "same"]
    return tuple(sorted(told, key=lambda change: (*_rank(change.time), change.kernel, change.op or "")))


def compare_ops(before: Device, after: Device, steps: tuple[Steps, Steps], pair: Pair) -> tuple[OpChange, ...]:
    """The ops whose kernels changed when taken together, the largest change of time first.

    Kernels that another op launches now, or a graph, say nothing of the op.
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
    found = [
        OpChange(op=op, standing=_standing(op in first, op in second, **changed), **changed)
        for op, changed in changes(both(first, second, pair), _rows, pair)
    ]
    return tuple(
        sorted(
            (change for change in found if change.standing != "same"),
            key=lambda change: (*_rank(change.time), change.op),
        )
    )


def _tables(device: Device, steps: Steps) -> _Tables:
    """Count and time of each kernel; those that ran in none of the steps compared are left out."""
    return summed(
        (
            (group.kernel, group.op),
            table((group.by_step.count, group.by_step.time_ns), (group.count, group.time_ns), steps),
        )
        for group in device.kernels
    )


def _matched(before: _Tables, after: _Tables, pair: Pair) -> list[tuple[_Match, F64, F64]]:
    alike = before.keys() & after.keys()
    found = [(_Match(key[1], key[0], key[0]), before[key], after[key]) for key in sorted(alike, key=repr)]
    gone, new = _without(before, alike), _without(after, alike)

    # By name alone: all ops that launch it taken together.
    old_names, new_names = (summed((key[0], values) for key, values in side.items()) for side in (gone, new))
    moved = _moved(before, after)
    for name in sorted(moved):
        ops = {op for kernel, op in new if kernel == name}
        match = _Match(ops.pop() if len(ops) == 1 else None, name, name)
        found.append((match, old_names[name], new_names[name]))
    gone, new = (_without(side, {key for key in side if key[0] in moved}) for side in (gone, new))

    # By op alone.
    renamed = _renamed(gone, new)
    found += [
        (_Match(old[1], old[0], renamed_to[0]), gone[old], new[renamed_to]) for old, renamed_to in renamed.items()
    ]
    gone, new = _without(gone, renamed), _without(new, set(renamed.values()))

    for (kernel, op), one, other in both(gone, new, pair):
        had = (kernel, op) in gone
        found.append((_Match(op, kernel if had else None, None if had else kernel), one, other))
    return found


def _moved(before: _Tables, after: _Tables) -> set[str]:
    """The kernels that are on both sides, but not, or not only, under the same ops."""
    alike = before.keys() & after.keys()
    gone, new = ({kernel for kernel, _ in side.keys() - alike} for side in (before, after))
    return gone & new


def _without(tables: _Tables, keys: Collection[_Key]) -> _Tables:
    return {key: values for key, values in tables.items() if key not in keys}


def _renamed(gone: _Tables, new: _Tables) -> dict[_Key, _Key]:
    """Which kernel took the place of which: under the same op and called as often, the longest with the longest.

    Where an op has but one of each left, they belong together though one is called more often.
    """
    pairs: dict[_Key, _Key] = {}
    for op in sorted({op for _, op in gone if op is not None} & {op for _, op in new if op is not None}):
        old_keys, new_keys = (
            sorted((key for key in side if key[1] == op), key=lambda key: (-side[key][_TIME].mean(), key[0]))
            for side in (gone, new)
        )
        for old in tuple(old_keys):
            often = gone[old][_COUNT].mean()
            match = next((key for key in new_keys if new[key][_COUNT].mean() == often), None)
            if match is not None:
                pairs[old] = match
                old_keys.remove(old)
                new_keys.remove(match)
        if len(old_keys) == len(new_keys) == 1:
            pairs[old_keys[0]] = new_keys[0]
    return pairs


def _rows(before: F64, after: F64, span_ns: float) -> dict[str, PairRow]:
    floor = max(SPAN_SHARE * span_ns, OWN_SHARE * least(_TIME, before, after))
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
    """Whether it is more than noise; where there are no steps to tell, whether it is more than a share of itself."""
    if change.beyond_noise is not None:
        return change.beyond_noise
    return abs(change.change or 0) > share * larger(change)


def _rank(time: FigureChange) -> tuple[float, float]:
    """The largest change first, then the largest."""
    return -abs(time.change or 0), -larger(time)
