"""Settings of a check, read from `overlapscope.toml`, pyproject.toml or `--budget` expressions.

Reading is strict: an unknown key or a wrong value is an error that names the file and the key, and suggests a fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_args

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base import config_file
from overlapscope.base.config_file import PROJECT
from overlapscope.budgets.metrics import METRICS, Metric
from overlapscope.budgets.quantity import exact, is_share, parse
from overlapscope.budgets.settings import LIMITS, Budget, Exemption, Override, Settings
from overlapscope.budgets.tables import (
    BudgetContent,
    BudgetTable,
    ConfigLocation,
    ExceptionTable,
    LimitsTable,
    NarrowedTable,
    OverrideTable,
    TopTable,
    no_such,
    read_table,
    wrong_value,
)
from overlapscope.budgets.verdicts import Unit
from overlapscope.errors import ConfigError
from overlapscope.reading.patterns import NamePatterns, patterns_in
from overlapscope.trace.servers import Phase

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
    overrides = tuple(
        override
        for number, table in enumerate(top.overrides or ())
        for override in _overrides(table, budgets, location.at(f"overrides[{number}]"))
    )
    return Settings(
        baseline=None if top.baseline is None else Path(top.baseline),
        contract=None if top.contract is None else Path(top.contract),
        budgets=budgets,
        forbid=tuple(dict.fromkeys(rule_named(text, str(location.at("forbid"))) for text in top.forbid or ())),
        names=patterns_in(stated, lambda name: str(location.at(name))) if stated else None,
        allow_missing=top.allow_missing or False,
        overrides=overrides,
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
    fields = {**defaults, **_given(table, "name", "scope", "phase"), **_adjustable(table, metric, at)}
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


def _adjustable(table: LimitsTable, metric: Metric, at: ConfigLocation) -> dict[str, Any]:
    """Return the fields of a `Budget` that both budgets and overrides set."""
    fields = _given(table, *_DEFAULTS, "level")
    for name in LIMITS:
        key = name.removesuffix("_pct")
        quantity = getattr(table, key)
        if quantity is not None:
            fields[name] = _limit(key, quantity, metric, at.at(key))
    if table.noise_floor is not None:
        share = metric.unit == "ns" and is_share(table.noise_floor)
        floor = _parsed(table.noise_floor, "pct" if share else metric.unit, at.at("noise_floor"))
        # Both fields, so that an override of one kind replaces a noise floor of the other kind.
        fields |= {"noise_floor": None if share else floor, "noise_floor_pct": floor if share else None}
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


def _overrides(content: Mapping[str, Any], budgets: tuple[Budget, ...], at: ConfigLocation) -> list[Override]:
    """Return an override for each metric that matches and has a budget."""
    table = read_table(content, OverrideTable, at)
    patterns = _patterns(table, "step")
    pattern = None if table.metric is None else str(table.metric)
    chosen = [metric for metric in METRICS if pattern is None or fnmatchcase(metric, pattern)]
    if pattern is not None and not chosen:
        raise at.at("metric").error(no_such("metric", pattern, METRICS))
    if not patterns and pattern is None:
        raise at.error("does not say what it applies to; add trace, rank, device, step, range, direction or metric")
    limited = {budget.metric for budget in budgets}
    if pattern is not None and limited.isdisjoint(chosen):
        raise at.at("metric").error(f"there is no budget for {pattern}")
    if not limited:
        raise at.error("there is no budget that it could change")
    changes = {metric: _adjustable(table, METRICS[metric], at) for metric in chosen if metric in limited}
    if not all(changes.values()):
        raise at.error("changes nothing; add what to replace, such as max, level or skip_steps")
    return [Override(metric=metric, changes=changed, origin=str(at), **patterns) for metric, changed in changes.items()]


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
