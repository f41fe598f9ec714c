"""Tables of `overlapscope query`: the meaning of rows and columns, from `tables.toml`.

`rows.py` fills the tables. The end of a column's name states its unit. NULL means unknown or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from overlapscope.base.words import read_texts
from overlapscope.catalog.measures import Group, of_group
from overlapscope.plugin import Skill

Type = Literal["integer", "number", "text", "boolean"]
Figures = Literal["recorded", "plain", "spoken"]

PROGRAM_WORDS: Final[dict[str, str]] = {
    "recorded": "of the recording",
    "plain": "of a step without the profiler",
    "spoken": "of the program without the profiler where its step is known, else of the recording",
}
"""Programs that figures can describe, in words."""
_UNITS: Final = {"_ns": "ns", "_pct": "%", "bytes": "bytes", "gb_per_s": "GB/s"}


def unit_of(column: str) -> str | None:
    """Return the unit that the end of a column's name states."""
    return next((unit for end, unit in _UNITS.items() if column.endswith(end)), None)


class SqlColumn(msgspec.Struct, frozen=True):
    """A column of a table."""

    name: str
    type: Type
    meaning: str


class SqlTable(msgspec.Struct, frozen=True):
    """A table for queries."""

    name: str
    rows: str
    """Meaning of a row."""
    columns: tuple[SqlColumn, ...]
    figures: Figures = "recorded"


def _tables() -> Iterator[SqlTable]:
    """Yield the tables of the file, in which `@device` stands for a group of columns or for a group of measures."""
    content = read_texts(Path(__file__).with_suffix(".toml"), dict[str, dict[str, Any]])
    measures: tuple[tuple[Group, str], ...] = (("buckets", "bucket: "), ("engines", ""), ("overlap", ""))
    groups = content["groups"]
    for group, prefix in measures:
        groups[group] = [
            f"{each.id} {'integer' if each.unit == 'ns' else 'number'}: {prefix}{each.meaning}"
            for each in of_group(group)
        ]

    def columns(lines: Iterable[str]) -> Iterator[SqlColumn]:
        for line in lines:
            if line.startswith("@"):
                yield from columns(groups[line[1:]])
            else:
                name, type, meaning = line.split(" ", 2)
                yield msgspec.convert({"name": name, "type": type.rstrip(":"), "meaning": meaning}, SqlColumn)

    for name, table in content["tables"].items():
        of_table = tuple(columns(["@trace", *table["columns"]]))
        yield SqlTable(name, table["rows"], of_table, table.get("figures", "recorded"))


TABLES: Final = {table.name: table for table in _tables()}
"""Tables by name."""

_SKILL: Final = """\
## SQL

`query` is for everything else: one SELECT in DuckDB's dialect; no files, no network. Aggregate in SQL and use LIMIT.
`source` and `rank` tell traces apart. A row of each table:
"""


def skill() -> Skill:
    """Return the section on SQL in the skill file."""
    return Skill(
        (
            ("Anything that these figures do not say", 'overlapscope query TRACE "SELECT ..." --format json'),
            ("Which tables and columns are there?", "overlapscope query --schema --format markdown"),
        ),
        "\n".join((_SKILL, *(f"- `{table.name}`: {table.rows}" for table in TABLES.values()))),
    )
