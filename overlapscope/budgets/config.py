"""Settings of a check, read from `overlapscope.toml`, pyproject.toml or `--budget` expressions.

msgspec converts each table into a structure of its keys. A key's description says what its value must be; the error
about a wrong value quotes it.

Reading is strict: an unknown key or a wrong value is an error that names the file and the key, and suggests a fix.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from overlapscope.base import config_file
from overlapscope.base.config_file import PROJECT
from overlapscope.base.words import clean, did_you_mean
from overlapscope.budgets.metrics import METRICS, Direction, Metric
from overlapscope.budgets.quantity import exact, is_share, parse
from overlapscope.budgets.settings import LIMITS, Budget, Exemption, Ranks, Scope, Settings
from overlapscope.budgets.verdicts import Level, Unit
from overlapscope.errors import ConfigError
from overlapscope.reading.patterns import NamePatterns, patterns_in
from overlapscope.trace.servers import Phase

# -- Keys of a configuration file --------------------------------------------------------------------

_VALUE_CHARACTERS = 80
"""Maximum length of a wrong value in an error."""
_DATES: Final = (datetime.date, datetime.datetime)

Aggregate = Annotated[
    Annotated[str, Meta(pattern=r"^(median|mean|worst|p(100|[1-9]\d?))(?!\n)$")] | None,
    Meta(description="median, mean, worst or a percentile such as p90"),
]
Boolean = Annotated[bool | None, Meta(description="true or false")]
Count = Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="a whole number, 0 or more")]
Date = Annotated[datetime.date | None, Meta(description="a date without quotes, such as 2030-01-31")]
Pattern = Annotated[
    Annotated[str, Meta(min_length=1)] | int | None, Meta(description="a name, a pattern or a whole number")
]
Quantity = Annotated[str | int | float | None, Meta(description='a number, or a string with a unit such as "3 ms"')]
BudgetContent = Annotated[dict[str, Any] | None, Meta(description='a table such as { max = "…" }')]
Text = Annotated[Annotated[str, Meta(min_length=1)] | None, Meta(description="a string that is not empty")]
RanksKey = Annotated[Ranks | None, Meta(description="worst or each")]


class NarrowedTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys that narrow a budget or an exception."""

    trace: Pattern = None
    rank: Pattern = None
    device: Pattern = None
    range: Pattern = None
    direction: Annotated[Direction | None, Meta(description="h2d or d2h")] = None


class BudgetTable(NarrowedTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `[budgets.METRIC]`."""

    name: Text = None
    scope: Annotated[Scope | None, Meta(description="steps or window")] = None
    phase: Annotated[Phase | None, Meta(description=f"one of {', '.join(get_args(Phase))}")] = None
    min: Quantity = None
    max: Quantity = None
    max_increase: Quantity = None
    max_decrease: Quantity = None
    noise_floor: Quantity = None
    level: Annotated[Level | None, Meta(description="error or warn")] = None
    step: Pattern = None
    aggregate: Aggregate = None
    ranks: RanksKey = None
    skip_steps: Count = None
    allow_missing: Boolean = None


class ExceptionTable(NarrowedTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `[[exceptions]]`."""

    budget: Text = None
    rule: Text = None
    reason: Text = None
    until: Date = None


_EXPRESSIONS: Final = "a list of regular expressions"
_LIST: Final = "a list of tables: write [[exceptions]] above each"


class TopTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys at the top level; the first four are defaults for all budgets. Paths are relative to the file."""

    aggregate: Aggregate = None
    ranks: RanksKey = None
    skip_steps: Count = None
    allow_missing: Boolean = None
    baseline: Text = None
    contract: Text = None
    budgets: BudgetContent = None
    forbid: Annotated[tuple[str, ...] | None, Meta(description="a list of strings")] = None
    communication: Annotated[tuple[str, ...] | None, Meta(description=_EXPRESSIONS)] = None
    server_steps: Annotated[tuple[str, ...] | None, Meta(description=_EXPRESSIONS)] = None
    exceptions: Annotated[tuple[dict[str, Any], ...] | None, Meta(description=_LIST)] = None


class ConfigLocation(NamedTuple):
    """A table of a file, or another source of settings."""

    source: str
    path: tuple[str, ...] = ()
    names: Mapping[tuple[str, ...], str] = MappingProxyType({})
    """Names of paths that the user wrote as keywords."""

    def at(self, *keys: str) -> ConfigLocation:
        """Return the location of a key."""
        return self._replace(path=(*self.path, *keys))

    def error(self, problem: str) -> ConfigError:
        """Return the error to raise about this location."""
        return ConfigError(f"{self}: {problem}.")

    def __str__(self) -> str:
        """Return `pyproject.toml: tool.overlapscope.budgets.idle_pct.max`."""
        return f"{self.source}: {self.names.get(self.path) or '.'.join(self.path)}" if self.path else self.source


AnyTable = TypeVar("AnyTable", bound=Struct)


def read_table(content: Mapping[str, Any], table: type[AnyTable], location: ConfigLocation) -> AnyTable:
    """Convert a table into a structure. Raises ConfigError that names a wrong key, or the key of a wrong value."""
    try:
        return msgspec.convert(content, table, builtin_types=_DATES)
    except msgspec.ValidationError:
        raise _error(content, table, location) from None


def _error(content: Mapping[str, Any], table: type[Struct], location: ConfigLocation) -> ConfigError:
    """Return the error about the first unknown key, or else about the first wrong value."""
    types = {field.name: field.type for field in msgspec.structs.fields(table)}
    for key in content:
        if key not in types:
            hint = did_you_mean(key, types)
            return location.at(key).error(f"there is no such key{hint}; keys: {', '.join(sorted(types))}")
    return next(error for key, value in content.items() if (error := wrong_value(value, types[key], location.at(key))))


def wrong_value(value: object, type_: Any, location: ConfigLocation) -> ConfigError | None:
    """Return the error about a value that is not of a described type; None for a right value."""
    try:
        msgspec.convert(value, type_, builtin_types=_DATES)
    except msgspec.ValidationError:
        shown = str(value).lower() if isinstance(value, bool | datetime.date) else repr(value)
        words = [
            word for choice in get_args(type_.__origin__) if get_origin(choice) is Literal for word in get_args(choice)
        ]
        hint = did_you_mean(str(value), words)
        return location.error(
            f"is {clean(shown, _VALUE_CHARACTERS)}, but must be {type_.__metadata__[0].description}{hint}"
        )
    return None


def no_such(what: str, name: str, choices: Iterable[str]) -> str:
    """Return `there is no metric 'step' (did you mean 'step_time'?); metrics: step_time, …`."""
    choices = tuple(choices)
    return f"there is no {what} {name!r}{did_you_mean(name, choices)}; {what}s: {', '.join(choices)}"


_PATH: Final = ("tool", "overlapscope")
_EXPRESSION = re.compile(r"(?P<left>[^<>=]*)(?P<op><=|>=|==|=|<|>)(?P<limit>.+)", re.DOTALL)
_EXAMPLES: Final = "'efficiency_pct >= 80%', 'p90 step_time <= 12 ms' or 'step_time increase <= 5%'"
_DEFAULTS: Final = ("aggregate", "ranks", "skip_steps", "allow_missing")
"""Keys at the top level that are defaults for all budgets."""
_PATTERNS: Final = ("trace", "rank", "device", "range", "direction")

# -- Files ------------------------------------------------------------------------------------------


def read(path: Path) -> Settings:
    """Read the settings from a file, with paths relative to it. Raises ConfigError."""
    content = config_file.content(path)
    if content is None:
        raise ConfigError(f"{path}: has no [tool.overlapscope]; add one, or name another file.")
    settings = from_mapping(content, str(path), _PATH if path.name == PROJECT else ())
    beside = {name: getattr(settings, name) for name in ("baseline", "contract")}
    return replace(settings, **{name: path.parent / file for name, file in beside.items() if file is not None})


# -- Settings ---------------------------------------------------------------------------------------


def from_mapping(
    content: Mapping[str, Any],
    source: str,
    path: tuple[str, ...] = (),
    names: Mapping[tuple[str, ...], str] = MappingProxyType({}),
) -> Settings:
    """Return the settings in a mapping with the keys of a configuration file.

    Args:
        content: The mapping, as `tomllib` returns it.
        source: The file, or whatever errors should name.
        path: Keys of the mapping itself inside the file.
        names: Names for errors of paths that the user wrote as keywords.

    Raises:
        ConfigError: A key or a value is wrong.
    """
    if not path and "tool" in content:
        raise ConfigError(
            f"{source}: tool: belongs in {PROJECT}; leave out tool.overlapscope here, and write [budgets]."
        )
    location = ConfigLocation(source, path, names)
    top = read_table(content, TopTable, location)
    defaults = _given(top, *_DEFAULTS)
    stated = _given(top, *NamePatterns.__struct_fields__)
    budgets = tuple(
        _budget(table, METRICS[metric], defaults, at)
        for metric, table, at in _budget_tables(top.budgets or {}, location)
    )
    return Settings(
        baseline=None if top.baseline is None else Path(top.baseline),
        contract=None if top.contract is None else Path(top.contract),
        budgets=budgets,
        forbid=tuple(dict.fromkeys(rule_named(text, str(location.at("forbid"))) for text in top.forbid or ())),
        names=patterns_in(stated, lambda name: str(location.at(name))) if stated else None,
        allow_missing=top.allow_missing or False,
        exceptions=tuple(
            _exemption(table, location.at(f"exceptions[{number}]")) for number, table in enumerate(top.exceptions or ())
        ),
    )


def expression(text: str) -> Budget:
    """Return the budget in `[AGGREGATE] [DIRECTION] METRIC [increase|decrease] OP LIMIT`. Raises ConfigError."""
    location = ConfigLocation(f"--budget {text!r}")
    match = _EXPRESSION.fullmatch(text)
    words = match["left"].split() if match else []
    if match is None or not words:
        raise location.error(f"is not a budget; write it like {_EXAMPLES}")
    change = words.pop() if words[-1] in ("increase", "decrease") and len(words) > 1 else None
    metric = METRICS.get(name := words.pop())
    if metric is None:
        raise location.error(no_such("metric", name, METRICS))
    content: dict[str, Any] = {_limit_key(match["op"], change, metric, location): match["limit"].strip()}
    if words and words[-1] in get_args(Phase):
        content["phase"] = words.pop()
    if words and words[-1] in ("h2d", "d2h"):
        content["direction"] = words.pop()
    if words:
        key, word = "scope" if words[-1] == "window" else "aggregate", words.pop()
        content[key] = word
    if words:
        raise location.error(f"{words[0]!r} is unexpected; write [AGGREGATE] [PHASE] [h2d|d2h] METRIC <= LIMIT")
    return _budget(content, metric, {}, location)


def _limit_key(operator: str, change: str | None, metric: Metric, location: ConfigLocation) -> str:
    """Return the key that an operator stands for, after `increase`, `decrease` or neither."""
    if operator not in ("<=", ">="):
        raise location.error(f"{operator!r} is not supported; write <= or >=, which include the limit")
    if change is None:
        return "max" if operator == "<=" else "min"
    if operator == ">=":
        raise location.error("a change has an upper limit; write <=")
    if change != _loss(metric):
        raise location.error(f"{_better(metric)}; write {_loss(metric)}")
    return _relative_key(metric)


def rule_named(text: str, source: str) -> str:
    """Return the id of a rule that can be forbidden.

    Raises:
        ConfigError: There is no such rule, or it cannot be forbidden.
    """
    from overlapscope.rules import RULES

    if text not in RULES:
        raise ConfigError(f"{source}: {no_such('rule', text, RULES)}.")
    if text == "overlap-achieved":
        raise ConfigError(f"{source}: {text!r} is good news, so it cannot be forbidden.")
    return text


def _given(table: Struct, *keys: str) -> dict[str, Any]:
    """Return the values of those keys that are set."""
    return {key: value for key in keys if (value := getattr(table, key)) is not None}


def _patterns(table: NarrowedTable, *keys: str) -> dict[str, Any]:
    """Return the patterns of a table. A whole number is a pattern that matches itself."""
    return {key: str(value) for key, value in _given(table, *keys, *_PATTERNS).items()}


def _budget_tables(
    tables: Mapping[str, Any], location: ConfigLocation
) -> Iterator[tuple[str, dict[str, Any], ConfigLocation]]:
    """Yield the metric of each budget, its table and its location. A metric has a table or a list of tables."""
    for metric, value in tables.items():
        if metric not in METRICS:
            raise location.at("budgets", metric).error(no_such("metric", metric, METRICS))
        for number, content in enumerate(value if isinstance(value, list) else [value]):
            at = location.at("budgets", f"{metric}[{number}]" if isinstance(value, list) else metric)
            if error := wrong_value(content, BudgetContent, at):
                raise error
            yield metric, content, at


def _budget(content: Mapping[str, Any], metric: Metric, defaults: Mapping[str, Any], at: ConfigLocation) -> Budget:
    table = read_table(content, BudgetTable, at)
    fields = {**defaults, **_given(table, *_DEFAULTS, "name", "scope", "phase", "level"), **_limits(table, metric, at)}
    budget = Budget(metric=metric.id, origin=str(at), **fields, **_patterns(table, "step"))
    if budget.direction is not None and metric.needs != "copies":
        raise at.at("direction").error(f"{metric.id} is not only about copies")
    if not budget.limits:
        raise at.error(f"has no limit; add min, max, {_relative_key(metric)}")
    if table.noise_floor is not None and not budget.relative:
        raise at.at("noise_floor").error(f"needs a budget that compares with a baseline, with {_relative_key(metric)}")
    if budget.range is not None and not metric.by_range:
        raise at.at("range").error(f"{metric.id} is known only for steps and for the window")
    if budget.scope == "window" and budget.relative:
        raise at.at("scope").error("the window is measured only once, but judging a change needs many steps; use steps")
    if budget.scope == "window" and (budget.range, budget.step) != (None, None):
        raise at.at("scope").error("the window cannot be combined with a range or with steps; leave out one of them")
    if budget.phase is not None and (budget.scope, budget.range) != ("steps", None):
        raise at.at("phase").error("the phase is that of steps, not of the window or of a range; leave out one of them")
    return budget


def _limits(table: BudgetTable, metric: Metric, at: ConfigLocation) -> dict[str, float]:
    """Return the limits and the noise floor of a budget."""
    fields = {}
    for name in LIMITS:
        key = name.removesuffix("_pct")
        quantity = getattr(table, key)
        if quantity is not None:
            fields[name] = _limit(key, quantity, metric, at.at(key))
    if table.noise_floor is not None:
        share = metric.unit == "ns" and is_share(table.noise_floor)
        floor = _parsed(table.noise_floor, "pct" if share else metric.unit, at.at("noise_floor"))
        fields["noise_floor_pct" if share else "noise_floor"] = floor
    if "min" in fields and "max" in fields and fields["min"] > fields["max"]:
        raise at.at("min").error("is above max, so no value can satisfy both")
    return fields


def _limit(key: str, quantity: str | float, metric: Metric, at: ConfigLocation) -> float:
    change = key.startswith("max_")
    if change and key != _relative_key(metric):
        raise at.error(f"{_better(metric)}; write {_relative_key(metric)}")
    value = _parsed(quantity, "pct" if change else metric.unit, at)
    # A figure may increase by more than 100%, but no percentage exceeds 100% and no figure decreases by more.
    if value > 100 and key != "max_increase" and (metric.unit == "pct" or key == "max_decrease"):
        raise at.error(f"{exact(value, 'pct')} is above 100%, which is impossible")
    return value


def _parsed(quantity: str | float, unit: Unit, at: ConfigLocation) -> float:
    try:
        return parse(quantity, unit)
    except ConfigError as error:
        raise at.error(str(error)) from None


def _relative_key(metric: Metric) -> str:
    return f"max_{_loss(metric)}"


def _loss(metric: Metric) -> str:
    return "decrease" if metric.more_is_better else "increase"


def _better(metric: Metric) -> str:
    return f"for {metric.id}, {'more' if metric.more_is_better else 'less'} is better"


def _exemption(content: Mapping[str, Any], at: ConfigLocation) -> Exemption:
    table = read_table(content, ExceptionTable, at)
    if (table.budget is None) == (table.rule is None):
        raise at.error("needs either a budget or a rule, from which it is an exception")
    if table.rule is not None and not any(character in table.rule for character in "*?["):
        rule_named(table.rule, str(at.at("rule")))
    if table.reason is None:
        raise at.at("reason").error("is missing; say in a sentence why it is accepted")
    if table.until is None:
        raise at.at("until").error("is missing; name the last day, such as until = 2030-01-31")
    return Exemption(
        budget=table.budget,
        rule=table.rule,
        reason=table.reason,
        until=table.until,
        origin=str(at),
        **_patterns(table),
    )
