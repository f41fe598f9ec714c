"""Budgets, and everything else that a configuration says, as frozen structures."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.budgets.metrics import DIRECTIONS, METRICS, Direction, Metric
from overlapscope.budgets.quantity import exact
from overlapscope.budgets.verdicts import Level, Subject

Ranks = Literal["worst", "median", "each"]
Scope = Literal["steps", "window"]

DEFAULT_FORBID: Final = (
    "blocking-copy",
    "copy-on-compute-stream",
    "data-loading",
    "exposed-communication",
    "late-prefetch",
    "one-way-copies",
    "pageable-copy",
    "pin-in-loop",
    "tiny-copies",
)
"""What a check forbids that was told nothing: the rules on data that does not move while the GPU computes."""

DEFAULT_FLOOR_PCT: Final = 5.0
"""Share of the judged time that one of these must cost: a report calls less than that good, and copies that overlap
well leave some, too."""


class Patterns(Struct, frozen=True):
    """What something applies to: names with `*`, `?` and `[...]`; None for everything."""

    trace: str | None = None
    rank: str | None = None
    device: str | None = None
    range: str | None = None
    direction: str | None = None

    def match(self, subject: Subject) -> bool:
        """Whether a subject is meant. One that has no rank or no range is not, where a pattern asks for it."""
        # A trace is named by its path, or by the end of it.
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
    """Whether a step is meant, by `ProfilerStep#4` or by `4`."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("#")[2], pattern)


class NoiseFloor(Struct, frozen=True):
    """The least change that a relative budget takes for one."""

    value: float
    share_of_step: bool = False
    """Whether `value` is a percentage of the baseline's step time, rather than in the metric's unit."""


class Budget(Struct, frozen=True, kw_only=True):
    """What one metric may be."""

    metric: str
    """Id of one of `METRICS`."""
    name: str | None = None
    """What the user calls it."""
    min: float | None = None
    """In the metric's unit, as `max`."""
    max: float | None = None
    max_increase_pct: float | None = None
    """Of the baseline's value; for metrics of which less is better."""
    max_decrease_pct: float | None = None
    """Likewise, for metrics of which more is better."""
    noise_floor: NoiseFloor | None = None
    """None for the default."""
    level: Level = "error"
    scope: Scope = "steps"
    where: Patterns = Patterns()
    """`where.range` makes it a budget of the ranges of those names instead of steps; `where.direction` is one way."""
    step: str | None = None
    """Pattern of the steps that are judged."""
    aggregate: str = "median"
    ranks: Ranks = "worst"
    skip_steps: int = 0
    allow_missing: bool = False
    origin: str = ""
    """Where it was written."""

    @property
    def what(self) -> Metric:
        """The metric itself."""
        return METRICS[self.metric]

    @property
    def direction(self) -> Direction | None:
        """The direction of copies that is asked for; None for both."""
        return next((way for way in DIRECTIONS if way == self.where.direction), None)

    @property
    def limits(self) -> tuple[str, ...]:
        """Names of the limits that are set: each is judged by itself."""
        return tuple(name for name in LIMITS if getattr(self, name) is not None)

    def only(self, limit: str) -> Budget:
        """The budget with one of its limits, by which alone it is judged then."""
        others: dict[str, Any] = {name: None for name in LIMITS if name != limit}
        name = f"{self.name} ({limit.removesuffix('_pct')})" if self.name and len(self.limits) > 1 else self.name
        return replace(self, **others, name=name, noise_floor=self.noise_floor if limit in RELATIVE else None)

    @property
    def relative(self) -> bool:
        """Whether a limit is against the baseline."""
        return not set(self.limits).isdisjoint(RELATIVE)

    # -- of a budget with one limit -----------------------------------------------------------

    @property
    def bound(self) -> float:
        """The limit: in the metric's unit, or in percent of the baseline's value."""
        value: float = getattr(self, self.limits[0])
        return value

    @property
    def at_least(self) -> bool:
        """Whether the limit is a least value."""
        return self.limits[0] in ("min", "max_decrease_pct")

    @property
    def title(self) -> str:
        """What is demanded, as `--budget` understands it, with what it is narrowed to."""
        if self.name is not None:
            return self.name
        narrowed = {
            "in": self.where.range,
            "of step": self.step,
            "of trace": self.where.trace,
            "of rank": self.where.rank,
            "of device": self.where.device,
        }
        words = (
            "window" if self.scope == "window" else "" if self.aggregate == "median" else self.aggregate,
            self.where.direction,
            self.metric,
            _DEMANDS[self.limits[0]],
            exact(self.bound, "pct" if self.relative else self.what.unit),
            *(f"{word} {pattern}" for word, pattern in narrowed.items() if pattern is not None),
        )
        return " ".join(filter(None, words))

    # -- what its values come to --------------------------------------------------------------

    def combine(self, values: Sequence[float]) -> float:
        """The values of steps in one, by `aggregate`."""
        if self.aggregate == "median":
            return float(statistics.median(values))
        if self.aggregate == "mean":
            return math.fsum(values) / len(values)
        return float(sorted(values)[self.place_of(len(values))])

    def place_of(self, count: int) -> int:
        """The place, in ascending order, of the value that `worst` or a percentile means.

        p90 is what nine of ten steps keep, whether more is better or less; it is always the value of a step.
        """
        percent = 100 if self.aggregate == "worst" else int(self.aggregate[1:])
        from_best = max(1, math.ceil(percent * count / 100)) - 1
        return count - 1 - from_best if self.what.more_is_better else from_best


LIMITS: Final = ("min", "max", "max_increase_pct", "max_decrease_pct")
RELATIVE: Final = ("max_increase_pct", "max_decrease_pct")
_DEMANDS: Final = {"min": ">=", "max": "<=", "max_increase_pct": "increase <=", "max_decrease_pct": "decrease <="}


class Override(Struct, frozen=True, kw_only=True):
    """Other fields of budgets for some subjects or steps."""

    where: Patterns
    step: str | None
    changes: Mapping[str, Mapping[str, Any]]
    """By metric: the fields of `Budget` that it replaces."""
    origin: str

    def only(self, limit: str) -> Override:
        """The override of a budget that has one limit: what it says of others is left out."""
        foreign = {*LIMITS, "noise_floor"} - {limit, *(["noise_floor"] if limit in RELATIVE else [])}
        kept = {
            metric: {key: value for key, value in changes.items() if key not in foreign}
            for metric, changes in self.changes.items()
        }
        return replace(self, changes={metric: changes for metric, changes in kept.items() if changes})


class Exemption(Struct, frozen=True, kw_only=True):
    """A failure that is known and accepted until a day."""

    budget: str | None = None
    """Pattern of a budget's name or metric; `rule` is that of a forbidden rule. One of the two is given."""
    rule: str | None = None
    reason: str
    until: datetime.date
    """The last day on which it holds."""
    where: Patterns = Patterns()
    origin: str = ""

    def means(self, budget: str, metric: str) -> bool:
        """Whether a verdict of this budget is meant."""
        if self.rule is not None:
            return budget == f"forbid {metric}" and fnmatchcase(metric, self.rule)
        pattern = self.budget or ""
        return not budget.startswith("forbid ") and (
            budget == pattern or fnmatchcase(budget, pattern) or fnmatchcase(metric, pattern)
        )


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that a check is told."""

    budgets: tuple[Budget, ...] = ()
    forbid: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()
    exceptions: tuple[Exemption, ...] = ()
    allow_missing: bool = False
    """For what is forbidden; each budget has its own."""
    fail_level: Level = "error"
    strict_env: bool = False
    other_program: bool = False
    """Whether to compare with a baseline of another program."""
    allow_predicted: bool = False
    """Whether a timeline that `overlapscope whatif` predicted is judged as a recording is."""
    forbid_floor_pct: float = 0.0
    """Share of the judged time below which a forbidden finding is let pass."""

    @property
    def compared_ranges(self) -> tuple[str, ...]:
        """Patterns of the ranges that budgets compare with a baseline."""
        ranges = [budget.where.range for budget in self.budgets if budget.relative]
        return tuple(dict.fromkeys(pattern for pattern in ranges if pattern is not None))

    def completed(self, *, with_baseline: bool, of_host: bool = False) -> Settings:
        """These settings, and the default budgets where none were given; `of_host` if no trace has GPU activity."""
        if not self.budgets and not self.forbid:
            if with_baseline:
                return replace(self, budgets=DEFAULT_RELATIVE)
            budgets = (DEFAULT_LOADING,) if of_host else ()
            return replace(self, budgets=budgets, forbid=DEFAULT_FORBID, forbid_floor_pct=DEFAULT_FLOOR_PCT)
        if with_baseline and not any(budget.relative for budget in self.budgets):
            return replace(self, budgets=(*self.budgets, *DEFAULT_RELATIVE))
        return self


DEFAULT_ORIGIN: Final = "the default with a baseline"
DEFAULT_RELATIVE: Final = tuple(
    Budget(metric=metric, max_increase_pct=increase_pct, origin=DEFAULT_ORIGIN)
    for metric, increase_pct in (
        ("step_time", 5),
        ("compute_time", 3),
        ("exposed_copy_time", 10),
        ("exposed_comm_time", 10),
        ("idle_time", 10),
    )
)
"""What a check with a baseline judges that was told nothing of it."""
DEFAULT_LOADING: Final = Budget(metric="host_loading_pct", max=15, origin="the default without a GPU")
"""What a check without budgets or a baseline judges besides, if no trace has GPU activity."""
