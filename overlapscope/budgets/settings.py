"""Budgets, and the other settings of a check, as frozen structures."""

from __future__ import annotations

import datetime
import math
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.marks import step_number
from overlapscope.budgets.quantity import exact
from overlapscope.budgets.verdicts import Level, Subject
from overlapscope.catalog.measures import METRICS, Direction, Measure
from overlapscope.reading.patterns import NamePatterns
from overlapscope.rules import RULES
from overlapscope.trace.servers import Phase

Ranks = Literal["worst", "each"]
Scope = Literal["steps", "window"]

LimitKind = Literal["min", "max", "max_increase", "max_decrease"]
_OPERATORS: Final[dict[LimitKind, str]] = {
    "min": ">=",
    "max": "<=",
    "max_increase": "increase <=",
    "max_decrease": "decrease <=",
}

DEFAULT_FORBID: Final = tuple(sorted(id for id, rule in RULES.items() if rule.severity != "info"))
"""Rules forbidden by default: all that report a problem."""

DEFAULT_FLOOR_PCT: Final = 5.0
"""Minimum cost of a finding forbidden by default, as a percentage of the judged time.

A report calls smaller costs good, and even copies that overlap well leave some.
"""


class Narrowed(Struct, frozen=True, kw_only=True):
    """Traces, ranks, devices, ranges and copies to which a setting applies.

    Patterns may contain `*`, `?` and `[...]`; None matches everything.
    """

    trace: str | None = None
    """Pattern of the trace's path, or of the end of it."""
    rank: str | None = None
    device: str | None = None
    range: str | None = None
    """Pattern of the names of ranges. A budget with this pattern judges those ranges instead of steps."""
    direction: Direction | None = None

    def matches(self, subject: Subject) -> bool:
        """Return whether the setting applies to a subject. A pattern never matches a subject without that attribute."""
        if self.trace is not None and (subject.source is None or not PurePath(subject.source).match(self.trace)):
            return False
        pairs = (
            (self.rank, subject.rank),
            (self.device, subject.device),
            (self.range, None if subject.scope in ("steps", "window") else subject.scope),
            (self.direction, subject.direction),
        )
        return all(
            pattern is None or (value is not None and fnmatchcase(str(value), pattern)) for pattern, value in pairs
        )


def step_fits(name: str, pattern: str) -> bool:
    """Return whether a step matches a pattern such as `ProfilerStep#4`, `repeat 4 of 9` or `4`."""
    return fnmatchcase(name, pattern) or fnmatchcase(str(step_number(name)), pattern)


class Budget(Narrowed, frozen=True, kw_only=True):
    """A limit on one metric."""

    metric: str
    """Id of one of `METRICS`."""
    name: str | None = None
    """Name given by the user."""
    limit: LimitKind = "max"
    """Kind of the limit. Increases are limited if less is better, and decreases if more is better."""
    bound: float = math.inf
    """The limit in the metric's unit; for a change, as a percentage of the baseline's value."""
    noise_floor: float | None = None
    """Minimum change that counts, in the metric's unit; by default, derived from the traces."""
    noise_floor_pct: float | None = None
    """The noise floor as a percentage of the baseline's step time, instead of `noise_floor`."""
    level: Level = "error"
    scope: Scope = "steps"
    step: str | None = None
    """Pattern of the steps to judge."""
    phase: Phase | None = None
    """Phase of an inference server whose steps to judge; None for the phase that takes most time."""
    aggregate: str = "mean"
    ranks: Ranks = "worst"
    skip_steps: int = 0
    allow_missing: bool = False
    origin: str = ""
    """Place in a file or on the command line where the user wrote the budget."""

    @property
    def measure(self) -> Measure:
        """Measure of the metric."""
        return METRICS[self.metric]

    @property
    def sample(self) -> Literal["window", "step", "occurrence"]:
        """Kind of the samples that the budget judges; an `occurrence` is one of a range."""
        if self.range is not None:
            return "occurrence"
        return "window" if self.scope == "window" else "step"

    @property
    def relative(self) -> bool:
        """True if the limit is on a change from the baseline."""
        return self.limit in ("max_increase", "max_decrease")

    @property
    def at_least(self) -> bool:
        """True if values below the limit fail, rather than values above it."""
        return self.limit in ("min", "max_decrease")

    def excess(self, value: float, bound: float) -> float:
        """Return the distance of a value beyond a bound; negative within it."""
        return bound - value if self.at_least else value - bound

    @property
    def title(self) -> str:
        """Name of the budget: the user's, or else its `--budget` expression and the patterns that narrow it."""
        if self.name is not None:
            return self.name
        narrowed = {
            "in": self.range,
            "of step": self.step,
            "in phase": self.phase,
            "of trace": self.trace,
            "of rank": self.rank,
            "of device": self.device,
        }
        words = (
            "window" if self.scope == "window" else "" if self.aggregate == "mean" else self.aggregate,
            self.direction,
            self.metric,
            _OPERATORS[self.limit],
            exact(self.bound, "pct" if self.relative else self.measure.unit),
            *(f"{word} {pattern}" for word, pattern in narrowed.items() if pattern is not None),
        )
        return " ".join(filter(None, words))

    def place_of(self, count: int) -> int:
        """Return the index, among `count` ascending values, of the value that `worst` or a percentile selects.

        Nine of ten steps are at least as good as p90, whether more is better or less. The index is always that of a
        measured value; nothing is interpolated.
        """
        percent = 100 if self.aggregate == "worst" else int(self.aggregate[1:])
        from_best = max(1, math.ceil(percent * count / 100)) - 1
        return count - 1 - from_best if self.measure.more_is_better else from_best


class Exemption(Narrowed, frozen=True, kw_only=True):
    """A failure that the user accepts until a given day."""

    budget: str | None = None
    """Pattern of a budget's name or metric. Either this or `rule` is set."""
    rule: str | None = None
    """Pattern of a forbidden rule."""
    reason: str
    until: datetime.date
    """The last day on which the failure is accepted."""
    origin: str = ""

    def covers(self, metric: str, budget: str | None) -> bool:
        """Return whether the exemption is for a budget of that metric and name; for a rule, whose name is None."""
        pattern = self.rule if budget is None else self.budget
        names = (metric,) if budget is None else (metric, budget)
        return pattern is not None and (pattern in names[1:] or any(fnmatchcase(name, pattern) for name in names))


class Settings(Struct, frozen=True, kw_only=True):
    """All settings of a check."""

    baseline: Path | None = None
    """File of the baseline, or a recording to compare with."""
    contract: Path | None = None
    """File of the contract (`overlapscope.contracts`)."""
    budgets: tuple[Budget, ...] = ()
    forbid: tuple[str, ...] = ()
    exceptions: tuple[Exemption, ...] = ()
    names: NamePatterns | None = None
    """Lists of names in recordings; None where none is stated."""
    allow_missing: bool = False
    """True if forbidden rules that cannot be judged pass. Budgets have a field of the same name."""
    fail_level: Level = "error"
    other_program: bool = False
    """True to compare with a baseline of another program."""
    verdict: bool = False
    """True to judge the report's verdict, too: a poor one fails."""
    replaced: tuple[str, ...] = ()
    """Default rules that a contract replaces, and `verdict` if it replaces that, too."""
    forbid_floor_pct: float = 0.0
    """Cost below which a forbidden finding passes, as a percentage of the judged time."""

    @property
    def compared_ranges(self) -> tuple[str, ...]:
        """Patterns of the ranges that budgets compare with a baseline."""
        ranges = [budget.range for budget in self.budgets if budget.relative]
        return tuple(dict.fromkeys(pattern for pattern in ranges if pattern is not None))

    def completed(self, *, with_baseline: bool, of_host: bool = False) -> Settings:
        """Return these settings with the default budgets that apply. `of_host`: whether no trace has GPU activity."""
        if not self.budgets and not self.forbid:
            if with_baseline:
                return replace(self, budgets=DEFAULT_RELATIVE)
            budgets = (DEFAULT_LOADING,) if of_host else ()
            forbid = tuple(id for id in DEFAULT_FORBID if id not in self.replaced)
            verdict = "verdict" not in self.replaced
            return replace(self, budgets=budgets, forbid=forbid, forbid_floor_pct=DEFAULT_FLOOR_PCT, verdict=verdict)
        if with_baseline and not any(budget.relative for budget in self.budgets):
            return replace(self, budgets=(*self.budgets, *DEFAULT_RELATIVE))
        return self


DEFAULT_ORIGIN: Final = "the default with a baseline"
DEFAULT_RELATIVE: Final = tuple(
    Budget(metric=metric, limit="max_increase", bound=increase_pct, origin=DEFAULT_ORIGIN)
    for metric, increase_pct in (
        ("step_time", 5),
        ("compute_time", 3),
        ("exposed_copy_time", 10),
        ("exposed_comm_time", 10),
        ("idle_time", 10),
    )
)
"""Budgets of a check that has a baseline and no relative budget."""
DEFAULT_LOADING: Final = Budget(metric="host_loading_pct", bound=15, origin="the default without a GPU")
"""Budget added by default, without a baseline, if no trace has GPU activity."""
