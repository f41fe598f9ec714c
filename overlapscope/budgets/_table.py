"""A table of a configuration: which keys it may have, and what their values must be."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from overlapscope.base.words import clean, did_you_mean
from overlapscope.errors import ConfigError

_SHOWN = 80
"""Characters of a wrong value."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What the value of a key must be."""

    type: Any
    """As `msgspec.convert` takes it."""
    must_be: str
    """KEY stands for the key."""
    words: tuple[str, ...] = ()
    """All that it can be, where those are few."""


BOOLEAN: Final = Kind(bool, "true or false")
COUNT: Final = Kind(Annotated[int, msgspec.Meta(ge=0)], "a whole number from 0 on")
DATE: Final = Kind(datetime.date, "a date without quotes, such as 2030-01-31")
QUANTITY: Final = Kind(str | int | float, 'a number, or a text with a unit such as "3 ms"')
TEXT: Final = Kind(Annotated[str, msgspec.Meta(min_length=1)], "a text that is not empty")
TEXTS: Final = Kind(tuple[str, ...], "a list of texts")
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
