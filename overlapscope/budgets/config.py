"""From `overlapscope.toml`, `[tool.overlapscope]` of pyproject.toml and `--budget` expressions to Settings.

Strict: what is not understood is an error that names the file, the key and what was probably meant.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from overlapscope.base.words import did_you_mean
from overlapscope.budgets._table import Table
from overlapscope.budgets.metrics import METRICS, Metric
from overlapscope.budgets.quantity import exact, is_share, parse
from overlapscope.budgets.settings import (
    AGGREGATES,
    LIMITS,
    RELATIVE,
    Budget,
    Exemption,
    NoiseFloor,
    Override,
    Patterns,
    Settings,
    is_aggregate,
)
from overlapscope.errors import ConfigError

FILE, PROJECT = "overlapscope.toml", "pyproject.toml"
_PATH: Final = ("tool", "overlapscope")
_EXPRESSION = re.compile(r"(?P<left>[^<>=]*)(?P<op><=|>=|==|=|<|>)(?P<limit>.+)", re.DOTALL)


def find(start: Path) -> Path | None:
    """The configuration nearest to a directory, going up: `overlapscope.toml`, or a pyproject.toml that has
    `[tool.overlapscope]`.

    Raises ConfigError where a file on the way cannot be read.
    """
    for directory in (start, *start.parents):
        if (own := directory / FILE).is_file():
            return own
        project = directory / PROJECT
        if project.is_file() and _section(_toml(project)) is not None:
            return project
    return None


def read(path: Path) -> Settings:
    """The settings in a file. Raises ConfigError."""
    content = _toml(path)
    if path.name != PROJECT:
        return from_mapping(content, str(path))
    section = _section(content)
    if section is None:
        raise ConfigError(f"{path}: has no [tool.overlapscope]; add one, or name another file.")
    return from_mapping(section, str(path), _PATH)


def from_mapping(content: Mapping[str, Any], source: str, path: tuple[str, ...] = ()) -> Settings:
    """The settings in a mapping as TOML gives it; `source` and `path` say where it was found. Raises ConfigError."""
    top = Table(content, source, path)
    if not path and "tool" in content:
        raise top.wrong("tool", f"is for {PROJECT}; leave out tool.overlapscope here, as in [budgets]")
    defaults = _common(top)
    settings = Settings(
        budgets=tuple(
            _budget(table, METRICS[metric], defaults)
            for metric, table in top.tables_by_name("budgets", METRICS, "metric")
        ),
        forbid=tuple(dict.fromkeys(_rule(top, rule) for rule in top.texts("forbid"))),
        allow_missing=defaults.get("allow_missing", False),
    )
    settings = replace(
        settings,
        overrides=tuple(_override(table, settings.budgets) for table in top.tables("overrides")),
        exceptions=tuple(_exception(table) for table in top.tables("exceptions")),
    )
    top.done()
    return settings


def expression(text: str) -> Budget:
    """A budget from `[AGGREGATE] [DIRECTION] METRIC [increase|decrease] OP LIMIT`. Raises ConfigError."""
    source = f"--budget {text!r}"
    match = _EXPRESSION.fullmatch(text)
    words = match["left"].split() if match else []
    if match is None or not words:
        raise ConfigError(
            f"{source}: is no budget; write it like 'efficiency_pct >= 80%', 'p90 step_time <= 12 ms' or "
            "'step_time increase <= 5%'."
        )
    op, relative = match["op"], words.pop() if words[-1] in ("increase", "decrease") and len(words) > 1 else None
    metric = words.pop()
    if metric not in METRICS:
        hint = did_you_mean(metric, METRICS)
        raise ConfigError(f"{source}: there is no metric {metric!r}{hint}; metrics: {', '.join(METRICS)}.")
    if op not in ("<=", ">="):
        raise ConfigError(f"{source}: {op!r} is not understood; a limit itself is allowed, so write <= or >=.")
    if relative is not None and op == ">=":
        raise ConfigError(f"{source}: a change is limited from above; write <=.")
    right = "decrease" if METRICS[metric].more_is_better else "increase"
    if relative not in (None, right):
        better = "more" if METRICS[metric].more_is_better else "less"
        raise ConfigError(f"{source}: of {metric} {better} is better; write {right}.")
    key = f"max_{relative}" if relative is not None else "max" if op == "<=" else "min"
    content: dict[str, Any] = {key: match["limit"].strip()}
    if words and words[-1] in ("h2d", "d2h"):
        content["direction"] = words.pop()
    asked = words.pop() if words else None
    if words:
        raise ConfigError(f"{source}: {words[0]!r} is too much; write [AGGREGATE] [h2d|d2h] METRIC <= LIMIT.")
    if asked == "window":
        content["scope"] = "window"
    elif asked is not None:
        content["aggregate"] = asked
    return replace(_budget(Table(content, source, ()), METRICS[metric], {}), origin=source)


def rule(text: str, source: str) -> str:
    """The id of a rule that can be forbidden. Raises ConfigError."""
    from overlapscope.rules import RULES

    if text not in RULES:
        raise ConfigError(f"{source}: there is no rule {text!r}{did_you_mean(text, RULES)}; rules: {', '.join(RULES)}.")
    if text == "overlap-achieved":
        raise ConfigError(f"{source}: {text!r} is good news, which need not be forbidden.")
    return text


def _rule(table: Table, text: str) -> str:
    return rule(text, table.place("forbid"))


def _common(table: Table) -> dict[str, Any]:
    """The fields that stand at the top level for all budgets, as well as in one budget or override."""
    found: dict[str, Any] = {}
    aggregate = table.text("aggregate")
    if aggregate is not None:
        if not is_aggregate(aggregate):
            raise table.wrong("aggregate", f"{aggregate!r} is none of {AGGREGATES}")
        found["aggregate"] = aggregate
    found |= table.given("ranks", table.choice("ranks", ("worst", "median", "each")))
    found |= table.given("skip_steps", table.whole("skip_steps"))
    found |= table.given("allow_missing", table.boolean("allow_missing"))
    return found


def _own(table: Table, metric: Metric) -> dict[str, Any]:
    """The fields of one budget, whether it is stated or overridden."""
    found = _common(table)
    for name in LIMITS:
        key = name.removesuffix("_pct")
        text = table.quantity(key)
        if text is None:
            continue
        _suits(table, key, metric)
        found[name] = _parsed(table, key, text, metric)
    floor = table.quantity("noise_floor")
    if floor is not None:
        share = metric.unit == "ns" and is_share(floor)
        value = table.parsed("noise_floor", lambda: parse(floor, "pct" if share else metric.unit))
        found["noise_floor"] = NoiseFloor(value, share_of_step=share)
    if "min" in found and "max" in found and found["min"] > found["max"]:
        raise table.wrong("min", "is above max, so nothing could keep both")
    return found | table.given("level", table.choice("level", ("error", "warn")))


def _suits(table: Table, key: str, metric: Metric) -> None:
    """A change for the better needs no limit."""
    right = "max_decrease" if metric.more_is_better else "max_increase"
    if key.startswith("max_") and key != right:
        better = "more" if metric.more_is_better else "less"
        raise table.wrong(key, f"of {metric.id} {better} is better; write {right}")


def _parsed(table: Table, key: str, text: str | float, metric: Metric) -> float:
    value = table.parsed(key, lambda: parse(text, "pct" if key.startswith("max_") else metric.unit))
    # An increase may well be threefold; a share, or what is lost of something, is of a whole.
    if value > 100 and key != "max_increase" and (metric.unit == "pct" or key == "max_decrease"):
        raise table.wrong(key, f"{exact(value, 'pct')} is above 100%, which nothing can be")
    return value


def _budget(table: Table, metric: Metric, defaults: Mapping[str, Any]) -> Budget:
    own = _own(table, metric)
    where = _patterns(table)
    if where.direction is not None and not metric.directional:
        raise table.wrong("direction", f"{metric.id} is not of copies alone")
    fields = dict(defaults) | own | {"where": where, "step": table.pattern("step")}
    fields |= table.given("name", table.text("name")) | table.given("scope", table.choice("scope", ("steps", "window")))
    budget = Budget(metric=metric.id, origin=table.place(), **fields)
    table.done()
    if not budget.limits:
        raise table.wrong("", f"has no limit; add {', '.join(_limit_keys(metric))}")
    if budget.noise_floor is not None and not set(budget.limits) & set(RELATIVE):
        raise table.wrong("noise_floor", f"is for a budget against a baseline, with {_limit_keys(metric)[-1]}")
    if where.range is not None and not metric.by_range:
        raise table.wrong("range", f"{metric.id} is known of steps and of the window only")
    if budget.scope == "window":
        if set(budget.limits) & set(RELATIVE):
            raise table.wrong("scope", "the window is measured once, and a change is judged by many steps; use steps")
        if where.range is not None or budget.step is not None:
            raise table.wrong("scope", "the window is not that of a range or of steps; leave out one of them")
    return budget


def _limit_keys(metric: Metric) -> tuple[str, str, str]:
    return "min", "max", "max_decrease" if metric.more_is_better else "max_increase"


def _patterns(table: Table) -> Patterns:
    return Patterns(
        trace=table.pattern("trace"),
        rank=table.pattern("rank"),
        device=table.pattern("device"),
        range=table.pattern("range"),
        direction=table.choice("direction", ("h2d", "d2h")),
    )


def _override(table: Table, budgets: tuple[Budget, ...]) -> Override:
    pattern = table.pattern("metric")
    chosen = [METRICS[name] for name in table.matching("metric", pattern, METRICS)]
    where, step = _patterns(table), table.pattern("step")
    if where.anything and step is None and pattern is None:
        raise table.wrong("", "says for what nowhere; add trace, rank, device, step, range, direction or metric")
    judged = {budget.metric for budget in budgets}
    mine = [metric for metric in chosen if metric.id in judged]
    if not mine:
        what = "no budget is set that it could change" if pattern is None else f"no budget is set of {pattern}"
        raise table.wrong("metric" if pattern is not None else "", what)
    changes = {metric.id: _own(table, metric) for metric in mine}
    table.done()
    if not all(changes.values()):
        raise table.wrong("", "changes nothing; add what is to be replaced, such as max, level or skip_steps")
    return Override(where=where, step=step, changes=changes, origin=table.place())


def _exception(table: Table) -> Exemption:
    budget, forbidden = table.text("budget"), table.text("rule")
    if (budget is None) == (forbidden is None):
        raise table.wrong("", "needs a budget or a rule, one of the two, that it is an exception from")
    if forbidden is not None and not any(character in forbidden for character in "*?["):
        rule(forbidden, table.place("rule"))
    reason, until = table.text("reason"), table.date("until")
    if not reason:
        raise table.wrong("reason", "is missing; say in a sentence why it is accepted")
    if until is None:
        raise table.wrong("until", "is missing; name the last day, such as until = 2030-01-31")
    where = _patterns(table)
    table.done()
    return Exemption(budget=budget, rule=forbidden, reason=reason, until=until, where=where, origin=table.place())


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not TOML, which is UTF-8 text.") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply.") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}.") from None


def _section(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    tool = content.get("tool")
    section = tool.get("overlapscope") if isinstance(tool, dict) else None
    return section if isinstance(section, dict) else None
