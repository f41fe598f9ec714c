"""A table of a configuration, read key by key: what is left unread in the end was not meant for us."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from overlapscope.base.words import did_you_mean
from overlapscope.errors import ConfigError

T = TypeVar("T")

_KIND = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a table",
    datetime.datetime: "a time",
    datetime.date: "a date",
}


class Table:
    """Values by key, with the place where they stand."""

    def __init__(self, content: Mapping[str, Any], source: str, path: tuple[str, ...]) -> None:
        self._content = content
        self._source = source
        self._path = path
        self._asked: dict[str, None] = {}

    def place(self, key: str = "") -> str:
        """`pyproject.toml: tool.overlapscope.budgets.idle_pct.max`."""
        path = ".".join((*self._path, *([key] if key else [])))
        return f"{self._source}: {path}" if path else self._source

    def wrong(self, key: str, what: str) -> ConfigError:
        """The error to raise about a key, or about the whole table."""
        return ConfigError(f"{self.place(key)}: {what}.")

    def done(self) -> None:
        """Raises ConfigError where a key is left that nobody asked for."""
        for key in self._content:
            if key not in self._asked:
                hint = did_you_mean(key, self._asked)
                raise self.wrong(key, f"there is no such key{hint}; keys: {', '.join(sorted(self._asked))}")

    def text(self, key: str) -> str | None:
        """A text that is not empty."""
        value: str | None = self._get(key, str)
        if value == "":
            raise self.wrong(key, "is empty")
        return value

    def choice(self, key: str, among: tuple[str, ...]) -> str | None:
        """One of several words."""
        value = self.text(key)
        if value is not None and value not in among:
            raise self.wrong(key, f"{value!r} is none of {', '.join(among)}{did_you_mean(value, among)}")
        return value

    def whole(self, key: str) -> int | None:
        """A whole number from 0 on."""
        value: int | None = self._get(key, int)
        if value is not None and value < 0:
            raise self.wrong(key, f"{value} is below zero")
        return value

    def boolean(self, key: str) -> bool | None:
        """True or false."""
        value: bool | None = self._get(key, bool)
        return value

    def date(self, key: str) -> datetime.date | None:
        """A date without a time."""
        self._asked[key] = None
        value = self._content.get(key)
        if value is None or (isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)):
            return value
        raise self.wrong(key, f"is {_named(value)}, but must be a date without quotes, such as 2030-01-31")

    def quantity(self, key: str) -> str | float | None:
        """A number, or a text that holds one with its unit."""
        value = self._get(key, str, int, float)
        return value if isinstance(value, str | int | float) else None

    def pattern(self, key: str) -> str | None:
        """A text with `*`, `?` and `[...]`; a whole number stands for itself."""
        value = self._get(key, str, int)
        if value == "":
            raise self.wrong(key, "is empty")
        return None if value is None else str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where there is none."""
        values = self._get(key, list)
        for value in values or ():
            if not isinstance(value, str):
                raise self.wrong(key, f"holds {_named(value)}, but must be a list of texts")
        return tuple(values or ())

    def tables(self, key: str) -> Iterator[Table]:
        """A list of tables, as `[[key]]` writes it."""
        for number, value in enumerate(self._get(key, list) or ()):
            if not isinstance(value, dict):
                raise self.wrong(key, f"holds {_named(value)}, but must be tables: write [[{key}]] above each")
            yield Table(value, self._source, (*self._path, f"{key}[{number}]"))

    def tables_by_name(self, key: str, known: Iterable[str], what: str) -> Iterator[tuple[str, Table]]:
        """A table of tables, or of lists of tables, whose keys are names that are known."""
        names = list(known)
        for name, value in (self._get(key, dict) or {}).items():
            if name not in names:
                hint = did_you_mean(name, names)
                raise self.wrong(f"{key}.{name}", f"there is no such {what}{hint}; {what}s: {', '.join(names)}")
            for number, one in enumerate(value if isinstance(value, list) else [value]):
                place = f"{name}[{number}]" if isinstance(value, list) else name
                if not isinstance(one, dict):
                    raise self.wrong(f"{key}.{place}", f'is {_named(one)}, but must be a table such as {{ max = "…" }}')
                yield name, Table(one, self._source, (*self._path, key, place))

    def matching(self, key: str, pattern: str | None, known: Iterable[str]) -> list[str]:
        """The known names that a pattern, read from `key`, matches; all of them without one."""
        names = list(known)
        found = [name for name in names if pattern is None or fnmatchcase(name, pattern)]
        if not found:
            hint = did_you_mean(pattern or "", names)
            raise self.wrong(key, f"there is no metric {pattern!r}{hint}; metrics: {', '.join(names)}")
        return found

    def parsed(self, key: str, read: Callable[[], T]) -> T:
        """What `read` makes of a value; its ConfigError gets the place."""
        try:
            return read()
        except ConfigError as error:
            raise self.wrong(key, str(error)) from None

    @staticmethod
    def given(key: str, value: object) -> dict[str, Any]:
        """`{key: value}`, or nothing where there is no value."""
        return {} if value is None else {key: value}

    def _get(self, key: str, *kinds: type) -> Any:
        self._asked[key] = None
        value = self._content.get(key)
        # To Python true is a number; nobody means it.
        if value is None or (isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)):
            return value
        wanted = " or ".join(_KIND[kind] for kind in kinds)
        raise self.wrong(key, f"is {_named(value)}, but must be {wanted}")


def _named(value: object) -> str:
    return next((name for kind, name in _KIND.items() if isinstance(value, kind)), "something else")
