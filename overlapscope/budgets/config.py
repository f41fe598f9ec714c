"""Settings of a check, read from `overlapscope.toml`, pyproject.toml or `--budget` expressions.

Reading is strict: an unknown key or a wrong value is an error that names the file and the key, and suggests a fix.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from overlapscope.base import config_file
from overlapscope.base.config_file import PROJECT
from overlapscope.base.words import clean, did_you_mean
from overlapscope.budgets.quantity import exact, is_share, parse
from overlapscope.budgets.settings import Budget, Exemption, LimitKind, Ranks, Scope, Settings
from overlapscope.budgets.verdicts import Level, Unit
from overlapscope.catalog.measures import METRICS, Direction, Measure
from overlapscope.errors import ConfigError
from overlapscope.reading.patterns import NamePatterns, patterns_in
from overlapscope.trace.servers import Phase

# -- Keys of a configuration file --------------------------------------------------------------------

_VALUE_CHARACTERS = 80
"""Maximum length of a wrong value in an error."""
_DATES: Final = (datetime.date, datetime.datetime)


ConfigKey = tuple[Any, str]
"""Type of a key's value for msgspec, and a description for errors."""
_TEXT: Final = Annotated[str, Meta(min_length=1)], "a string that is not empty"
_PATTERN: Final = Annotated[str, Meta(min_length=1)] | int, "a name, a pattern or a whole number"
_QUANTITY: Final = str | int | float, 'a number, or a string with a unit such as "3 ms"'
_EXPRESSIONS: Final = tuple[str, ...], "a list of regular expressions"
_BUDGET_TABLE: Final = dict[str, Any], 'a table such as { max = "…" }'
_AGGREGATE = Annotated[str, Meta(pattern=r"^(median|mean|worst|p(100|[1-9]\d?))(?!\n)$")]
_NARROWING: Final[Mapping[str, ConfigKey]] = {
    **dict.fromkeys(("trace", "rank", "device", "range"), _PATTERN),
    "direction": (Direction, "h2d or d2h"),
}
"""Keys that narrow a budget or an exception."""
_DEFAULTS: Final[Mapping[str, ConfigKey]] = {
    "aggregate": (_AGGREGATE, "median, mean, worst or a percentile such as p90"),
    "ranks": (Ranks, "worst or each"),
    "skip_steps": (Annotated[int, Meta(ge=0)], "a whole number, 0 or more"),
    "allow_missing": (bool, "true or false"),
}
"""Keys of a budget, which at the top level are defaults for all budgets."""
_BUDGET: Final[Mapping[str, ConfigKey]] = {
    **_NARROWING,
    **_DEFAULTS,
    **dict.fromkeys((*get_args(LimitKind), "noise_floor"), _QUANTITY),
    "name": _TEXT,
    "scope": (Scope, "steps or window"),
    "phase": (Phase, f"one of {', '.join(get_args(Phase))}"),
    "level": (Level, "error or warn"),
    "step": _PATTERN,
}
_EXCEPTION: Final[Mapping[str, ConfigKey]] = {
    **_NARROWING,
    **dict.fromkeys(("budget", "rule", "reason"), _TEXT),
    "until": (datetime.date, "a date without quotes, such as 2030-01-31"),
}
_TOP: Final[Mapping[str, ConfigKey]] = {
    **_DEFAULTS,
    "baseline": _TEXT,
    "contract": _TEXT,
    "budgets": _BUDGET_TABLE,
    "forbid": (tuple[str, ...], "a list of strings"),
    "communication": _EXPRESSIONS,
    "server_steps": _EXPRESSIONS,
    "exceptions": (tuple[dict[str, Any], ...], "a list of tables: write [[exceptions]] above each"),
}


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


def read_table(content: Mapping[str, Any], keys: Mapping[str, ConfigKey], location: ConfigLocation) -> dict[str, Any]:
    """Return the values that are set. Raises ConfigError about an unknown key, or else about a wrong value."""
    for key in content:
        if key not in keys:
            hint = did_you_mean(key, keys)
            raise location.at(key).error(f"there is no such key{hint}; keys: {', '.join(sorted(keys))}")
    given = {key: value for key, value in content.items() if value is not None}
    return {key: _value(value, keys[key], location.at(key)) for key, value in given.items()}


def _value(value: object, key: ConfigKey, location: ConfigLocation) -> Any:
    """Return a value of the type of a key. Raises ConfigError that describes such values."""
    wanted, description = key
    try:
        return msgspec.convert(value, wanted, builtin_types=_DATES)
    except msgspec.ValidationError:
        shown = str(value).lower() if isinstance(value, bool | datetime.date) else repr(value)
        hint = did_you_mean(str(value), get_args(wanted) if getattr(wanted, "__origin__", None) is Literal else ())
        raise location.error(f"is {clean(shown, _VALUE_CHARACTERS)}, but must be {description}{hint}") from None


def no_such(what: str, name: str, choices: Iterable[str]) -> str:
    """Return `there is no metric 'step' (did you mean 'step_time'?); metrics: step_time, …`."""
    choices = tuple(choices)
    return f"there is no {what} {name!r}{did_you_mean(name, choices)}; {what}s: {', '.join(choices)}"


_PATH: Final = ("tool", "overlapscope")
_EXPRESSION = re.compile(r"(?P<left>[^<>=]*)(?P<op><=|>=|==|=|<|>)(?P<limit>.+)", re.DOTALL)
_EXAMPLES: Final = "'efficiency_pct >= 80%', 'p90 step_time <= 12 ms' or 'step_time increase <= 5%'"

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
    top = read_table(content, _TOP, location)
    stated = _some(top, NamePatterns.__struct_fields__)
    return Settings(
        baseline=Path(top["baseline"]) if "baseline" in top else None,
        contract=Path(top["contract"]) if "contract" in top else None,
        budgets=tuple(_budget_tables(top.get("budgets", {}), _some(top, _DEFAULTS), location)),
        forbid=tuple(dict.fromkeys(rule_named(text, str(location.at("forbid"))) for text in top.get("forbid", ()))),
        names=patterns_in(stated, lambda name: str(location.at(name))) if stated else None,
        allow_missing=top.get("allow_missing", False),
        exceptions=tuple(
            _exemption(table, location.at(f"exceptions[{number}]"))
            for number, table in enumerate(top.get("exceptions", ()))
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
    for key, choices in (("phase", get_args(Phase)), ("direction", get_args(Direction))):
        if words and words[-1] in choices:
            content[key] = words.pop()
    if words:
        word = words.pop()
        content["scope" if word == "window" else "aggregate"] = word
    if words:
        raise location.error(f"{words[0]!r} is unexpected; write [AGGREGATE] [PHASE] [h2d|d2h] METRIC <= LIMIT")
    [budget] = _budgets(content, metric, {}, location)
    return budget


def _limit_key(operator: str, change: str | None, metric: Measure, location: ConfigLocation) -> str:
    """Return the key that an operator stands for, after `increase`, `decrease` or neither."""
    if operator not in ("<=", ">="):
        raise location.error(f"{operator!r} is not supported; write <= or >=, which include the limit")
    if change is None:
        return "max" if operator == "<=" else "min"
    if operator == ">=":
        raise location.error("a change has an upper limit; write <=")
    if change != _loss(metric):
        raise location.error(f"{_better(metric)}; write {_loss(metric)}")
    return f"max_{change}"


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


def _some(table: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return the values of those keys that are set."""
    return {key: table[key] for key in keys if key in table}


def _patterns(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patterns of a table. A whole number is a pattern that matches itself."""
    return {key: str(value) for key, value in _some(table, (*_NARROWING, "step")).items()}


def _budget_tables(
    tables: Mapping[str, Any], defaults: Mapping[str, Any], location: ConfigLocation
) -> Iterator[Budget]:
    """Yield the budgets of each metric, which has a table or a list of tables. Raises ConfigError."""
    for metric, value in tables.items():
        if metric not in METRICS:
            raise location.at("budgets", metric).error(no_such("metric", metric, METRICS))
        for number, content in enumerate(value if isinstance(value, list) else [value]):
            at = location.at("budgets", f"{metric}[{number}]" if isinstance(value, list) else metric)
            yield from _budgets(_value(content, _BUDGET_TABLE, at), METRICS[metric], defaults, at)


def _budgets(
    content: Mapping[str, Any], metric: Measure, defaults: Mapping[str, Any], at: ConfigLocation
) -> Iterator[Budget]:
    """Yield a budget for each limit of a table. Raises ConfigError."""
    table = read_table(content, _BUDGET, at)
    limits = {kind: _limit(kind, table[kind], metric, at.at(kind)) for kind in get_args(LimitKind) if kind in table}
    loss = f"max_{_loss(metric)}"
    if not limits:
        raise at.error(f"has no limit; add min, max, {loss}")
    if limits.get("min", -inf) > limits.get("max", inf):
        raise at.at("min").error("is above max, so no value can satisfy both")
    if "noise_floor" in table and loss not in limits:
        raise at.at("noise_floor").error(f"needs a budget that compares with a baseline, with {loss}")
    fields = {**defaults, **_some(table, (*_DEFAULTS, "name", "scope", "phase", "level")), **_patterns(table)}
    if "noise_floor" in table:
        share = metric.unit == "ns" and is_share(table["noise_floor"])
        floor = _parsed(table["noise_floor"], "pct" if share else metric.unit, at.at("noise_floor"))
        fields["noise_floor_pct" if share else "noise_floor"] = floor
    for kind, bound in limits.items():
        if "name" in table and len(limits) > 1:
            fields["name"] = f"{table['name']} ({kind})"
        budget = Budget(metric=metric.metric, origin=str(at), limit=kind, bound=bound, **fields)
        _check_samples(budget, metric, at)
        yield budget


def _check_samples(budget: Budget, metric: Measure, at: ConfigLocation) -> None:
    """Raise ConfigError if a metric isn't known for what the budget judges."""
    window = budget.scope == "window"
    if budget.direction is not None and metric.needs != "copies":
        raise at.at("direction").error(f"{metric.metric} is not only about copies")
    if budget.range is not None and not metric.by_range:
        raise at.at("range").error(f"{metric.metric} is known only for steps and for the window")
    if window and budget.relative:
        raise at.at("scope").error("the window is measured only once, but judging a change needs many steps; use steps")
    if window and (budget.range, budget.step) != (None, None):
        raise at.at("scope").error("the window cannot be combined with a range or with steps; leave out one of them")
    if budget.phase is not None and (window or budget.range is not None):
        raise at.at("phase").error("the phase is that of steps, not of the window or of a range; leave out one of them")


def _limit(kind: LimitKind, quantity: str | float, metric: Measure, at: ConfigLocation) -> float:
    change = kind.startswith("max_")
    if change and kind != f"max_{_loss(metric)}":
        raise at.error(f"{_better(metric)}; write max_{_loss(metric)}")
    value = _parsed(quantity, "pct" if change else metric.unit, at)
    # A figure may increase by more than 100%, but no percentage exceeds 100% and no figure decreases by more.
    if value > 100 and kind != "max_increase" and (metric.unit == "pct" or kind == "max_decrease"):
        raise at.error(f"{exact(value, 'pct')} is above 100%, which is impossible")
    return value


def _parsed(quantity: str | float, unit: Unit, at: ConfigLocation) -> float:
    try:
        return parse(quantity, unit)
    except ConfigError as error:
        raise at.error(str(error)) from None


def _loss(metric: Measure) -> str:
    return "decrease" if metric.more_is_better else "increase"


def _better(metric: Measure) -> str:
    return f"for {metric.metric}, {'more' if metric.more_is_better else 'less'} is better"


def _exemption(content: Mapping[str, Any], at: ConfigLocation) -> Exemption:
    table = read_table(content, _EXCEPTION, at)
    if ("budget" in table) == ("rule" in table):
        raise at.error("needs either a budget or a rule, from which it is an exception")
    if "rule" in table and not any(character in table["rule"] for character in "*?["):
        rule_named(table["rule"], str(at.at("rule")))
    if "reason" not in table:
        raise at.at("reason").error("is missing; say in a sentence why it is accepted")
    if "until" not in table:
        raise at.at("until").error("is missing; name the last day, such as until = 2030-01-31")
    return Exemption(**table | _patterns(table), origin=str(at))
