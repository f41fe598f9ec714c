"""From `overlapscope.toml`, `[tool.overlapscope]` of pyproject.toml and `--budget` expressions to Settings.

Strict: what is not understood is an error that names the file, the key and what was probably meant.
"""

from __future__ import annotations

import datetime
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from overlapscope.base import disk
from overlapscope.base.words import clean, did_you_mean
from overlapscope.budgets.metrics import METRICS, Metric
from overlapscope.budgets.quantity import exact, is_share, parse
from overlapscope.budgets.settings import LIMITS, Budget, Exemption, NoiseFloor, Override, Patterns, Settings
from overlapscope.budgets.verdicts import Unit
from overlapscope.errors import ConfigError

FILE, PROJECT = "overlapscope.toml", "pyproject.toml"
_PATH: Final = ("tool", "overlapscope")
_EXPRESSION = re.compile(r"(?P<left>[^<>=]*)(?P<op><=|>=|==|=|<|>)(?P<limit>.+)", re.DOTALL)
_EXAMPLES: Final = "'efficiency_pct >= 80%', 'p90 step_time <= 12 ms' or 'step_time increase <= 5%'"
_SHOWN = 80
"""Characters of a wrong value."""

# -- tables ----------------------------------------------------------------------------------------


class Kind(msgspec.Struct, frozen=True):
    """What the value of a key must be."""

    type: Any
    """As `msgspec.convert` takes it."""
    must_be: str
    """KEY stands for the key."""
    words: tuple[str, ...] = ()
    """All that it can be, where those are few."""


BOOLEAN: Final = Kind(bool, "true or false")
COUNT: Final = Kind(Annotated[int, msgspec.Meta(ge=0)], "a whole number, 0 or more")
DATE: Final = Kind(datetime.date, "a date without quotes, such as 2030-01-31")
QUANTITY: Final = Kind(str | int | float, 'a number, or a string with a unit such as "3 ms"')
TEXT: Final = Kind(Annotated[str, msgspec.Meta(min_length=1)], "a string that is not empty")
TEXTS: Final = Kind(tuple[str, ...], "a list of strings")
PATTERN: Final = Kind(Annotated[str, msgspec.Meta(min_length=1)] | int, "a name, a pattern or a whole number")
TABLE: Final = Kind(dict[str, Any], 'a table such as { max = "…" }')
TABLES: Final = Kind(tuple[dict[str, Any], ...], "a list of tables: write [[KEY]] above each")


def one_of(*words: str) -> Kind:
    """One of several words."""
    return Kind(str, f"{', '.join(words[:-1])} or {words[-1]}", words)


class Table:
    """Values by key, with the place where they stand. Raises ConfigError for a key that is not in `keys`, and for a
    value that cannot be its."""

    def __init__(
        self, content: Mapping[str, Any], source: str, path: tuple[str, ...], keys: Mapping[str, Kind]
    ) -> None:
        self._source = source
        self._path = path
        for key in content:
            if key not in keys:
                hint = did_you_mean(key, keys)
                raise self.wrong(key, f"there is no such key{hint}; keys: {', '.join(sorted(keys))}")
        self._values = {
            key: self._converted(key, value, keys[key]) for key, value in content.items() if value is not None
        }

    def get(self, key: str) -> Any:
        """The value; None where there is none."""
        return self._values.get(key)

    def given(self, keys: Mapping[str, Kind]) -> dict[str, Any]:
        """Those of some keys that have a value."""
        return {key: self._values[key] for key in keys if key in self._values}

    def tables(self, key: str, keys: Mapping[str, Kind]) -> Iterator[Table]:
        """A list of tables, as `[[key]]` writes it."""
        for number, content in enumerate(self._values.get(key, ())):
            yield Table(content, self._source, (*self._path, f"{key}[{number}]"), keys)

    def tables_by_metric(
        self, key: str, metrics: Mapping[str, object], keys: Mapping[str, Kind]
    ) -> Iterator[tuple[str, Table]]:
        """A table of tables, or of lists of tables, whose keys are names of metrics."""
        for name, value in self._values.get(key, {}).items():
            if name not in metrics:
                raise self.wrong(f"{key}.{name}", no_such("metric", name, metrics))
            for number, content in enumerate(value if isinstance(value, list) else [value]):
                place = f"{key}.{name}[{number}]" if isinstance(value, list) else f"{key}.{name}"
                yield name, Table(self._converted(place, content, TABLE), self._source, (*self._path, place), keys)

    def place(self, key: str = "") -> str:
        """`pyproject.toml: tool.overlapscope.budgets.idle_pct.max`."""
        path = ".".join((*self._path, *([key] if key else [])))
        return f"{self._source}: {path}" if path else self._source

    def wrong(self, key: str, what: str) -> ConfigError:
        """The error to raise about a key, or about the whole table."""
        return ConfigError(f"{self.place(key)}: {what}.")

    def _converted(self, key: str, value: object, kind: Kind) -> Any:
        try:
            # A date is a date: a text that looks like one is none.
            converted = msgspec.convert(value, kind.type, builtin_types=(datetime.date, datetime.datetime))
            if not kind.words or converted in kind.words:
                return converted
        except msgspec.ValidationError:
            pass
        shown = str(value).lower() if isinstance(value, bool | datetime.date) else repr(value)
        hint = did_you_mean(str(value), kind.words)
        raise self.wrong(key, f"is {clean(shown, _SHOWN)}, but must be {kind.must_be.replace('KEY', key)}{hint}")


def no_such(what: str, name: str, known: Mapping[str, object]) -> str:
    """`there is no metric 'step' (did you mean 'step_time'?); metrics: step_time, …`"""
    return f"there is no {what} {name!r}{did_you_mean(name, known)}; {what}s: {', '.join(known)}"


# -- which keys there are -------------------------------------------------------------------------

_COMMON: Final = {
    "aggregate": Kind(
        Annotated[str, msgspec.Meta(pattern=r"^(median|mean|worst|p(100|[1-9]\d?))$")],
        "median, mean, worst or a percentile such as p90",
    ),
    "ranks": one_of("worst", "median", "each"),
    "skip_steps": COUNT,
    "allow_missing": BOOLEAN,
}
"""They stand at the top level for all budgets, or in one budget or override."""
_LIMITS: Final = dict.fromkeys(("min", "max", "max_increase", "max_decrease"), QUANTITY)
_OWN: Final = _COMMON | _LIMITS | {"noise_floor": QUANTITY, "level": one_of("error", "warn")}
"""Of one budget, whether it is stated or overridden."""
_PLACE: Final = dict.fromkeys(("trace", "rank", "device", "range"), PATTERN) | {"direction": one_of("h2d", "d2h")}
_BUDGET: Final = _OWN | _PLACE | {"name": TEXT, "scope": one_of("steps", "window"), "step": PATTERN}
_OVERRIDE: Final = _OWN | _PLACE | {"metric": PATTERN, "step": PATTERN}
_EXCEPTION: Final = _PLACE | {"budget": TEXT, "rule": TEXT, "reason": TEXT, "until": DATE}
_TOP: Final = _COMMON | {"budgets": TABLE, "forbid": TEXTS, "overrides": TABLES, "exceptions": TABLES}

# -- files ----------------------------------------------------------------------------------------


def find(start: Path) -> Path | None:
    """The configuration nearest to a directory, going up: `overlapscope.toml`, or a pyproject.toml that has
    `[tool.overlapscope]`.

    Raises ConfigError where a file on the way cannot be read.
    """
    for directory in (start, *start.parents):
        own, project = directory / FILE, directory / PROJECT
        for path in filter(os.path.lexists, (own, project)):
            if not path.is_file():
                raise ConfigError(
                    f"{path}: is not a file, or a link to nothing; repair it, or name a file by --config."
                )
        if own.exists():
            return own
        if project.exists() and _section(_toml(project), project) is not None:
            return project
    return None


def read(path: Path) -> Settings:
    """The settings in a file. Raises ConfigError."""
    content = _toml(path)
    if path.name != PROJECT:
        return from_mapping(content, str(path))
    section = _section(content, path)
    if section is None:
        raise ConfigError(f"{path}: has no [tool.overlapscope]; add one, or name another file.")
    return from_mapping(section, str(path), _PATH)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(disk.read(path).decode().replace("\r\n", "\n").replace("\r", "\n"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not TOML, because it is not UTF-8 text.") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply.") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}.") from None


def _section(content: Mapping[str, Any], path: Path) -> Mapping[str, Any] | None:
    tool = content.get("tool")
    section = tool.get("overlapscope") if isinstance(tool, dict) else None
    if section is not None and not isinstance(section, dict):
        raise ConfigError(f"{path}: tool.overlapscope must be a table; write [tool.overlapscope].")
    return section


# -- settings -------------------------------------------------------------------------------------


def from_mapping(content: Mapping[str, Any], source: str, path: tuple[str, ...] = ()) -> Settings:
    """The settings in a mapping as TOML gives it; `source` and `path` say where it was found. Raises ConfigError."""
    if not path and "tool" in content:
        raise ConfigError(
            f"{source}: tool: belongs in {PROJECT}; leave out tool.overlapscope here, and write [budgets]."
        )
    top = Table(content, source, path, _TOP)
    defaults = top.given(_COMMON)
    budgets = tuple(
        _budget(table, METRICS[metric], defaults) for metric, table in top.tables_by_metric("budgets", METRICS, _BUDGET)
    )
    return Settings(
        budgets=budgets,
        forbid=tuple(dict.fromkeys(rule(text, top.place("forbid")) for text in top.get("forbid") or ())),
        allow_missing=defaults.get("allow_missing", False),
        overrides=tuple(_override(table, budgets) for table in top.tables("overrides", _OVERRIDE)),
        exceptions=tuple(_exception(table) for table in top.tables("exceptions", _EXCEPTION)),
    )


def expression(text: str) -> Budget:
    """A budget from `[AGGREGATE] [DIRECTION] METRIC [increase|decrease] OP LIMIT`. Raises ConfigError."""
    source = f"--budget {text!r}"
    match = _EXPRESSION.fullmatch(text)
    words = match["left"].split() if match else []
    if match is None or not words:
        raise ConfigError(f"{source}: is not a budget; write it like {_EXAMPLES}.")
    change = words.pop() if words[-1] in ("increase", "decrease") and len(words) > 1 else None
    metric = METRICS.get(name := words.pop())
    if metric is None:
        raise ConfigError(f"{source}: {no_such('metric', name, METRICS)}.")
    content: dict[str, Any] = {_limit_key(match["op"], change, metric, source): match["limit"].strip()}
    if words and words[-1] in ("h2d", "d2h"):
        content["direction"] = words.pop()
    if words:
        key, word = "scope" if words[-1] == "window" else "aggregate", words.pop()
        content[key] = word
    if words:
        raise ConfigError(f"{source}: {words[0]!r} is unexpected; write [AGGREGATE] [h2d|d2h] METRIC <= LIMIT.")
    return replace(_budget(Table(content, source, (), _BUDGET), metric, {}), origin=source)


def _limit_key(op: str, change: str | None, metric: Metric, source: str) -> str:
    """The key that a sign stands for, with `increase` or `decrease` before it."""
    if op not in ("<=", ">="):
        raise ConfigError(f"{source}: {op!r} is not supported; write <= or >=, which include the limit.")
    if change is None:
        return "max" if op == "<=" else "min"
    if op == ">=":
        raise ConfigError(f"{source}: a change has an upper limit; write <=.")
    if f"max_{change}" != _relative_key(metric):
        raise ConfigError(f"{source}: {_better(metric)}; write {_relative_key(metric).removeprefix('max_')}.")
    return _relative_key(metric)


def rule(text: str, source: str) -> str:
    """The id of a rule that can be forbidden. Raises ConfigError."""
    from overlapscope.rules import RULES

    if text not in RULES:
        raise ConfigError(f"{source}: {no_such('rule', text, RULES)}.")
    if text == "overlap-achieved":
        raise ConfigError(f"{source}: {text!r} is good news, so it cannot be forbidden.")
    return text


def _own(table: Table, metric: Metric) -> dict[str, Any]:
    """The fields of one budget, whether it is stated or overridden."""
    fields = table.given(_COMMON) | table.given({"level": _OWN["level"]})
    for name in LIMITS:
        key = name.removesuffix("_pct")
        text = table.get(key)
        if text is not None:
            fields[name] = _limit(table, key, text, metric)
    floor = table.get("noise_floor")
    if floor is not None:
        share = metric.unit == "ns" and is_share(floor)
        value = _parsed(table, "noise_floor", floor, "pct" if share else metric.unit)
        fields["noise_floor"] = NoiseFloor(value, share_of_step=share)
    if "min" in fields and "max" in fields and fields["min"] > fields["max"]:
        raise table.wrong("min", "is above max, so no value can satisfy both")
    return fields


def _limit(table: Table, key: str, text: str | float, metric: Metric) -> float:
    change = key.startswith("max_")
    # A change for the better needs no limit.
    if change and key != _relative_key(metric):
        raise table.wrong(key, f"{_better(metric)}; write {_relative_key(metric)}")
    value = _parsed(table, key, text, "pct" if change else metric.unit)
    # An increase may well be threefold; a share, or what is lost of something, is of a whole.
    if value > 100 and key != "max_increase" and (metric.unit == "pct" or key == "max_decrease"):
        raise table.wrong(key, f"{exact(value, 'pct')} is above 100%, which is impossible")
    return value


def _parsed(table: Table, key: str, text: str | float, unit: Unit) -> float:
    try:
        return parse(text, unit)
    except ConfigError as error:
        raise table.wrong(key, str(error)) from None


def _relative_key(metric: Metric) -> str:
    return "max_decrease" if metric.more_is_better else "max_increase"


def _better(metric: Metric) -> str:
    return f"for {metric.id}, {'more' if metric.more_is_better else 'less'} is better"


def _budget(table: Table, metric: Metric, defaults: Mapping[str, Any]) -> Budget:
    fields = dict(defaults) | _own(table, metric) | table.given({key: _BUDGET[key] for key in ("name", "scope")})
    where, step = _patterns(table), _pattern(table, "step")
    budget = Budget(metric=metric.id, origin=table.place(), where=where, step=step, **fields)
    if where.direction is not None and metric.needs != "copies":
        raise table.wrong("direction", f"{metric.id} is not only about copies")
    if not budget.limits:
        raise table.wrong("", f"has no limit; add min, max, {_relative_key(metric)}")
    if budget.noise_floor is not None and not budget.relative:
        raise table.wrong("noise_floor", f"needs a budget that compares with a baseline, with {_relative_key(metric)}")
    if where.range is not None and not metric.by_range:
        raise table.wrong("range", f"{metric.id} is known only for steps and for the window")
    if budget.scope == "window":
        if budget.relative:
            raise table.wrong(
                "scope", ("the window is measured only once, but judging a change needs many steps; use steps")
            )
        if where.range is not None or step is not None:
            raise table.wrong(
                "scope", ("the window cannot be combined with a range or with steps; leave out one of them")
            )
    return budget


def _pattern(table: Table, key: str) -> str | None:
    """A whole number stands for itself."""
    value = table.get(key)
    return None if value is None else str(value)


def _patterns(table: Table) -> Patterns:
    return Patterns(**{key: _pattern(table, key) for key in _PLACE})


def _override(table: Table, budgets: tuple[Budget, ...]) -> Override:
    where, step, pattern = _patterns(table), _pattern(table, "step"), _pattern(table, "metric")
    chosen = [name for name in METRICS if pattern is None or fnmatchcase(name, pattern)]
    if not chosen:
        raise table.wrong("metric", no_such("metric", pattern or "", METRICS))
    if where == Patterns() and step is None and pattern is None:
        raise table.wrong(
            "", ("does not say what it applies to; add trace, rank, device, step, range, direction or metric")
        )
    judged = {budget.metric for budget in budgets}
    if judged.isdisjoint(chosen):
        what = "there is no budget that it could change" if pattern is None else f"there is no budget for {pattern}"
        raise table.wrong("metric" if pattern is not None else "", what)
    changes = {name: _own(table, METRICS[name]) for name in chosen if name in judged}
    if not all(changes.values()):
        raise table.wrong("", "changes nothing; add what to replace, such as max, level or skip_steps")
    return Override(where=where, step=step, changes=changes, origin=table.place())


def _exception(table: Table) -> Exemption:
    budget, forbidden = table.get("budget"), table.get("rule")
    if (budget is None) == (forbidden is None):
        raise table.wrong("", "needs either a budget or a rule, from which it is an exception")
    if forbidden is not None and not any(character in forbidden for character in "*?["):
        rule(forbidden, table.place("rule"))
    reason, until = table.get("reason"), table.get("until")
    if reason is None:
        raise table.wrong("reason", "is missing; say in a sentence why it is accepted")
    if until is None:
        raise table.wrong("until", "is missing; name the last day, such as until = 2030-01-31")
    where = _patterns(table)
    return Exemption(budget=budget, rule=forbidden, reason=reason, until=until, where=where, origin=table.place())
