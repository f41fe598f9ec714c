"""Figures of steps before and after, as means that add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.facts import Facts, facts_of, means
from overlapscope.analysis.figures import COPIES_MATTER_FROM, Period, TimeFigures
from overlapscope.analysis.results import Device
from overlapscope.catalog.causes import IdleCause
from overlapscope.catalog.measures import BY_CAUSE, MEASURES, Amount, Measure, of_group
from overlapscope.compare.difference import FigureChange, Figures
from overlapscope.compare.noise import HOST_CAUSES, POINTS, Pair, PairRow, floor_ns

_LOADING = f"idle:{IdleCause.DATA_LOADING}"
_HOST = frozenset(f"{what}:{cause}" for what in ("exposed-copy", "exposed-comm", "idle") for cause in HOST_CAUSES) - {
    _LOADING
}
_LINK = (
    frozenset(Amount(("exposed_copy", "exposed_comm")).columns()[0])
    | {"h2d", "d2h", "comm", "copy", "h2d_d2h", "exposed_h2d", "exposed_d2h"}
) - _HOST


_Means = Mapping[str, int]
_Figure = tuple[str, Measure]
"""Field of `Figures` that contains a figure, and the figure."""


def _of_causes() -> Iterator[_Figure]:
    for bucket, lengths in BY_CAUSE.items():
        for length in lengths:
            noise = (bucket,) if bucket in ("exposed_copy", "exposed_comm") else None
            cause = length.partition(":")[2]
            yield (
                f"{bucket}_by_cause",
                Measure(id=f"{length}_ns", label=cause, meaning="", part=Amount((length,)), noise=noise),
            )


_FIGURES: Final[Sequence[_Figure]] = (
    ("span", replace(MEASURES["span_ns"], label="span")),
    *(("buckets", measure) for measure in of_group("buckets")),
    *_of_causes(),
    *(("engines", measure) for measure in of_group("engines")),
    *(("overlap", measure) for measure in of_group("overlap")),
)


def compare(
    before: Sequence[TimeFigures], after: Sequence[TimeFigures], pair: Pair, *, copies_stay: bool = True
) -> Figures:
    """Return all figures of two sides, and whether each has changed.

    Args:
        before: Periods of one side, one per step of the pair.
        after: Periods of the other side.
        pair: The steps.
        copies_stay: Whether every period contains the same copies. Steps do. Which copies run during a range depends
            on the host, so their times are as noisy as the host's.
    """
    sides = facts_of(before), facts_of(after)
    mean = means(sides[0]), means(sides[1])
    by_host = _HOST if copies_stay else _HOST | _LINK
    changes = pair.changes([_compared(figure, sides, mean, pair.spans_ns, by_host) for _, figure in _FIGURES])
    groups: dict[str, list[FigureChange]] = {}
    for (group, _), change in zip(_FIGURES, changes, strict=True):
        groups.setdefault(group, []).append(change)
    fields = {name: tuple(group) for name, group in groups.items()}
    [span] = fields.pop("span")
    return Figures(span=span, **fields)


def _compared(
    figure: Measure,
    sides: tuple[Facts, Facts],
    mean: tuple[_Means, _Means],
    spans_ns: tuple[float, float],
    by_host: frozenset[str],
) -> PairRow:
    """Return a figure for every period of both sides. `by_host` are the lengths that depend on the host."""
    noisy, _ = (figure.part if figure.noise is None else Amount(figure.noise)).columns()
    # The noise of a sum of lengths depends on the side with the smaller sum.
    link, host, loading = (
        min(sum(side[column] for column in noisy if column in some) for side in mean)
        for some in (_LINK - by_host, by_host, {_LOADING})
    )
    floor = floor_ns(spans_ns, link_ns=link, host_ns=host, loading_ns=loading)
    parts = [figure.part.of(side).astype(np.float64) for side in sides]
    if figure.whole is None:
        points = figure.part.of(mean[0]), figure.part.of(mean[1])
        return PairRow(figure.label, "ns", parts[0], parts[1], floor, points)
    ratios = [
        np.stack([100 * part, figure.whole.of(side).astype(np.float64)], axis=1)
        # Percentages of copies mean something only if copies take enough time.
        * (not figure.of_copies or bool(side["copy"].sum() >= COPIES_MATTER_FROM * side["span"].sum()))
        for part, side in zip(parts, sides, strict=True)
    ]
    divisor = min(float(ratio[:, 1].mean()) for ratio in ratios)
    noise = 100 * floor / divisor if divisor > 0 else 0.0
    return PairRow(figure.label, "pct", ratios[0], ratios[1], max(POINTS, noise))


def occurrences(device: Device, *, skip: int = 0) -> dict[str, tuple[Period, ...]]:
    """Return the complete ranges by name that begin at or after the first step to compare."""
    steps = judged_steps(device, skip=skip)
    begin = device.steps[steps[0]].window.start_ns if steps else device.window.start_ns
    by_name: dict[str, list[Period]] = {}
    for period in device.ranges:
        if not period.partial and period.window.start_ns >= begin:
            by_name.setdefault(period.name, []).append(period)
    return {name: tuple(periods) for name, periods in by_name.items()}
