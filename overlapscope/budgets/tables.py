"""Keys of a configuration file, and the errors about wrong keys and values.

msgspec converts each table into one of these structures. A key's description says what its value must be; the error
about a wrong value quotes it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from overlapscope.base.words import clean, did_you_mean
from overlapscope.budgets.metrics import Direction
from overlapscope.budgets.settings import Ranks, Scope
from overlapscope.budgets.verdicts import Level
from overlapscope.errors import ConfigError
from overlapscope.trace.servers import Phase

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
RanksKey = Annotated[Ranks | None, Meta(description="worst, median or each")]


class NarrowedTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys that narrow a budget, an override or an exception."""

    trace: Pattern = None
    rank: Pattern = None
    device: Pattern = None
    range: Pattern = None
    direction: Annotated[Direction | None, Meta(description="h2d or d2h")] = None


class LimitsTable(NarrowedTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys shared by budgets and overrides."""

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


class BudgetTable(LimitsTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `[budgets.METRIC]`."""

    name: Text = None
    scope: Annotated[Scope | None, Meta(description="steps or window")] = None
    phase: Annotated[Phase | None, Meta(description=f"one of {', '.join(get_args(Phase))}")] = None


class OverrideTable(LimitsTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `[[overrides]]`."""

    metric: Pattern = None


class ExceptionTable(NarrowedTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `[[exceptions]]`."""

    budget: Text = None
    rule: Text = None
    reason: Text = None
    until: Date = None


_EXPRESSIONS: Final = "a list of regular expressions"
_LIST: Final = "a list of tables: write [[{}]] above each"


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
    overrides: Annotated[tuple[dict[str, Any], ...] | None, Meta(description=_LIST.format("overrides"))] = None
    exceptions: Annotated[tuple[dict[str, Any], ...] | None, Meta(description=_LIST.format("exceptions"))] = None


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
