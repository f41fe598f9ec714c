"""One limit of one budget, judged at one place: the value, the status, and what to say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np

from overlapscope.base.words import plural
from overlapscope.budgets.baseline import STEPS, Baseline, BaselineDevice
from overlapscope.budgets.metrics import METRICS
from overlapscope.budgets.missing import lacking
from overlapscope.budgets.pieces import Piece
from overlapscope.budgets.quantity import distinct, show
from overlapscope.budgets.samples import Series, series
from overlapscope.budgets.settings import RELATIVE, Budget, step_fits
from overlapscope.budgets.spent import by_baseline, by_samples, noise_floor
from overlapscope.budgets.verdicts import Status
from overlapscope.compare.resampling import F64, FEWEST, draw, interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a limit comes to; figures in the metric's unit."""

    status: Status
    value: float | None = None
    samples: int = 0
    """Those that have a value: a percentage of nothing is none."""
    limit: float | None = None
    baseline: float | None = None
    low: float | None = None
    high: float | None = None
    sentence: str
    """Without its place and the full stop: `step_time is 3.4 ms, but at most 3 ms is allowed`."""
    note: str = ""
    """Why it passes though the percentage that is allowed is exceeded: `18% more, within noise`."""
    nothing: bool = False
    """Whether neither side of a comparison has anything to measure."""


def is_relative(limit: str) -> bool:
    """Whether a limit is against the baseline."""
    return limit in RELATIVE


def judge(budget: Budget, limit: str, piece: Piece, baseline: Baseline | None, *, only: bool) -> Judged:
    """One limit at one place. `only`: whether the report has a single device, which needs no name to be compared."""
    if piece.missing is not None:
        return _unknown(budget, piece.missing)
    values = series(piece.samples, budget.what, budget.direction)
    judged = _judge(budget, limit, piece, values, baseline, only=only)
    return replace(judged, samples=len(values.numbers))


def _judge(
    budget: Budget, limit: str, piece: Piece, values: Series, baseline: Baseline | None, *, only: bool
) -> Judged:
    lack = lacking(budget.what, budget.direction, piece.samples, values)
    if not is_relative(limit) or baseline is None:
        return _unknown(budget, lack) if lack else _absolute(budget, limit, values)
    device = compared_with(baseline, piece, only=only)
    before = None if device is None else past(baseline, device, piece)
    if device is None or before is None:
        return _unknown(budget, f"the baseline has no such {'device' if device is None else piece_kind(budget)}")
    if lack is not None:
        return replace(_unknown(budget, lack), nothing=not any(before.numbers))
    return _relative(budget, limit, values, before, lambda base: _floor(budget, piece, baseline, device, base))


def piece_kind(budget: Budget) -> str:
    """What a budget's samples are."""
    return "step" if budget.where.range is None else "range"


def compared_with(baseline: Baseline, piece: Piece, *, only: bool) -> BaselineDevice | None:
    """The device of the baseline that a piece's device is compared with."""
    device = piece.subject.device
    return None if device is None else baseline.device_for(piece.subject.rank, device, only=only)


def past(baseline: Baseline, device: BaselineDevice, piece: Piece) -> Series | None:
    """The baseline's values of a piece's metric, in the same steps."""
    budget = piece.budget
    values = baseline.values(device, budget.what, budget.direction, piece.subject.scope, skip=budget.skip_steps)
    if values is None or budget.step is None or budget.where.range is not None:
        return values
    return values.take([n for n, name in enumerate(values.names) if step_fits(name, budget.step)])


def _unknown(budget: Budget, why: str) -> Judged:
    return Judged(status="unknown", sentence=f"{budget.metric} is unknown: {why}")


def _absolute(budget: Budget, limit: str, values: Series) -> Judged:
    value, bound = budget.combine(values.numbers), float(getattr(budget, limit))
    failed = value < bound if limit == "min" else value > bound
    return Judged(
        status="fail" if failed else "pass",
        value=value,
        limit=bound,
        sentence=against_limit(budget, limit, value, bound, failed=failed),
    )


def against_limit(budget: Budget, limit: str, value: float, bound: float, *, failed: bool) -> str:
    """`step_time is 3.4 ms, but at most 3 ms is allowed`."""
    said, allowed = distinct((value, bound), budget.what.unit)
    rule = f"at least {allowed} is asked for" if _least(budget, limit) else f"at most {allowed} is allowed"
    return f"{budget.metric} is {said}, {'but ' if failed else ''}{rule}"


def _least(budget: Budget, limit: str) -> bool:
    """Whether a limit is a least value."""
    return limit in ("min", "max_decrease_pct")


def _relative(budget: Budget, limit: str, values: Series, before: Series, floor_of: Callable[[float], float]) -> Judged:
    """A change counts where it exceeds its percentage and the noise floor, and chance would hardly make it.

    The limit is the baseline's value and the larger of the two.
    """
    known, past_known = values.known(), before.known()
    for whose, one in (("", known), ("the baseline has ", past_known)):
        if len(one.numbers) < FEWEST:
            what = plural(len(one.numbers), "step" if budget.where.range is None else "occurrence")
            return _unknown(budget, f"not enough data: {whose}{what} to compare, {FEWEST} are needed")
    sign = -1 if budget.what.more_is_better else 1
    value, base = budget.combine(known.numbers), budget.combine(past_known.numbers)
    allowed, floor = base * float(getattr(budget, limit)) / 100, floor_of(base)
    bound = base + sign * max(allowed, floor)
    low, high = _interval(budget, past_known, known)
    beyond, certain = sign * (value - bound) > 0, min(sign * low, sign * high) > 0
    but = note = ""
    if beyond and not certain:
        but, note = "; the steps scatter so much that this may be chance", f"{_much(value, base)}, may be chance"
    elif not beyond and sign * (value - base) > allowed:
        note = f"{_much(value, base)}, within noise"
    return Judged(
        status="fail" if beyond and certain else "pass",
        value=value,
        limit=bound,
        baseline=base,
        low=low,
        high=high,
        sentence=_change(budget, value, base, bound, floor if floor > allowed else None) + but,
        note=note,
    )


def _change(budget: Budget, value: float, base: float, bound: float, floor: float | None) -> str:
    """`step_time is 12.6 ms, 21.3% more than the baseline's 10.4 ms (at most 10.9 ms is allowed)`; `floor` where the
    limit is due to it."""
    said, was, allowed = distinct((value, base, bound), budget.what.unit)
    if value == base:
        return f"{budget.metric} is {said}, as in the baseline"
    rule = f"at least {allowed} is asked for" if budget.what.more_is_better else f"at most {allowed} is allowed"
    if floor is not None:
        # Of a percentage, the floor is not a percentage.
        rule += f", as up to {show(floor, budget.what.unit).replace('%', ' points')} is noise"
    return f"{budget.metric} is {said}, {_much(value, base)} than the baseline's {was} ({rule})"


def _much(value: float, base: float) -> str:
    """`21.3% more`."""
    much = f"{show(100 * abs(value - base) / base, 'pct')} " if base else ""
    return f"{much}{'more' if value > base else 'less'}"


def _floor(budget: Budget, piece: Piece, baseline: Baseline, device: BaselineDevice, base: float) -> float:
    """The least change that counts, in the metric's unit."""
    own, skip, metric = budget.noise_floor, budget.skip_steps, budget.what
    if own is not None and not own.share_of_step:
        return own.value
    if own is not None:
        steps = baseline.values(device, METRICS["step_time"], None, STEPS, skip=skip)
        return own.value / 100 * (median(steps.numbers) if steps is not None and steps.numbers else 0.0)
    before = by_baseline(baseline, device, piece.subject.scope, budget.direction, skip=skip)
    after = by_samples(piece.samples, budget.direction)
    whole = fmean(metric.whole(one, budget.direction) for one in piece.samples) if metric.whole else 0.0
    return noise_floor(metric, before, after, whole, base)


def _interval(budget: Budget, before: Series, after: Series) -> tuple[float, float]:
    low, high = interval(_drawn(budget, before)[:, None], _drawn(budget, after)[:, None])
    return float(low[0]), float(high[0])


def _drawn(budget: Budget, values: Series) -> F64:
    """The aggregate of each draw of steps: (draws,)."""
    drawn: F64 = np.array(values.numbers, np.float64)[draw(values.spans_ns)]
    if budget.aggregate == "median":
        return np.asarray(np.median(drawn, axis=1), np.float64)
    if budget.aggregate == "mean":
        return np.asarray(drawn.mean(axis=1), np.float64)
    place = budget.place_of(drawn.shape[1])
    return np.asarray(np.sort(drawn, axis=1)[:, place], np.float64)
