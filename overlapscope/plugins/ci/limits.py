"""Limits that a recording keeps today, with room for the noise between two recordings of the same program."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import sqrt
from statistics import stdev
from typing import TYPE_CHECKING, Final, NamedTuple

from overlapscope.budgets.places import JudgedFigure, figures
from overlapscope.budgets.quantity import exact, show
from overlapscope.contracts.model import DEFAULT_MARGIN_PCT

if TYPE_CHECKING:
    from overlapscope.report.model import Report

ARGUMENTS: Final = {
    "efficiency_pct": "min_efficiency",
    "exposed_copy_time": "max_exposed_copy",
    "exposed_comm_time": "max_exposed_comm",
    "idle_pct": "max_idle",
    "launches_per_step": "",
    "host_loading_pct": "",
}
"""Limited metrics, each with its argument of `pytest_plugin.overlap`; empty if it has none.

Step times depend on the machine, and have no limit.
"""
_ERRORS: Final = 3
"""Number of standard errors of the mean that a limit leaves for steps that differ."""
_DIGITS: Final = 2


class Limit(NamedTuple):
    """A limit of a metric."""

    metric: str
    more_is_better: bool
    bound: str
    """Limit with its unit."""
    today: str
    """Value of the recording, on the worst device."""
    window: bool
    """True if the recording has no steps, so that all of it is judged."""

    @property
    def budget(self) -> str:
        """The limit as an argument of `overlapscope check --budget`."""
        return f"{'window ' if self.window else ''}{self.metric} {'>=' if self.more_is_better else '<='} {self.bound}"

    @property
    def line(self) -> str:
        """The limit as a line of `[budgets]`."""
        scope = ', scope = "window"' if self.window else ""
        bound = f'{self.metric} = {{ {"min" if self.more_is_better else "max"} = "{self.bound}"{scope} }}'
        return f"{bound}  # {self.today} in the recording"


def limits_of(report: Report) -> Iterator[Limit]:
    """Yield a limit for each metric of `ARGUMENTS` that the report states of every device.

    Limits that nothing exceeds are left out.
    """
    places = len(report.devices) or len(report.traces)
    stated: dict[str, list[JudgedFigure]] = {}
    for figure in figures(report):
        if figure.cause is None and figure.metric.metric in ARGUMENTS:
            stated.setdefault(figure.metric.metric, []).append(figure)
    for each in stated.values():
        metric = each[0].metric
        sign = -1 if metric.more_is_better else 1
        worst = max(each, key=lambda figure: sign * figure.value + _room(figure))
        bound = _outward(worst.value + sign * _room(worst), up=not metric.more_is_better)
        if len(each) < places or bound <= 0 or (metric.unit == "pct" and bound >= 100):
            continue
        yield Limit(
            metric.metric,
            bool(metric.more_is_better),
            exact(bound, metric.unit),
            show(worst.value, metric.unit),
            worst.place.subject.scope == "window",
        )


def _room(figure: JudgedFigure) -> float:
    """Return the noise floor between recordings, plus the part of the mean that depends on which steps were judged."""
    values = figure.values.numbers
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    if figure.metric.unit == "launches":
        # They have no noise, but batches of other sizes may launch a few more.
        return DEFAULT_MARGIN_PCT / 100 * figure.value
    return figure.noise_floor + _ERRORS * error


def _outward(value: float, *, up: bool) -> float:
    """Return a value with two digits, rounded away from what passes today."""
    context = Context(prec=_DIGITS, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return float(context.create_decimal(Decimal(repr(value))))
