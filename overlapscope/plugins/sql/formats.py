"""Formats of an answer, and of the list of tables. Names in answers come from traces."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from decimal import Decimal
from math import isfinite
from typing import Any, Literal

import msgspec

from overlapscope.base.saved import SCHEMA_VERSION, Tool, encode
from overlapscope.base.words import clean, in_spreadsheet, plural
from overlapscope.documents.model import Block, Document, Heading, Text, with_code
from overlapscope.documents.table import Cell, Column, Row, Table, prose, rows, words
from overlapscope.plugins.sql.engine import Answer
from overlapscope.plugins.sql.tables import PROGRAM_WORDS, TABLES, SqlColumn, unit_of

_NAME_LIMIT = 200
_COLUMN_GAP = 2
"""Space between columns of a table in a terminal."""
_MIN_TEXT_WIDTH = 16
"""Width to which text is cut before rows are shown below each other."""
_NULL = Cell("NULL", tone="muted")


class AskedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A queried trace."""

    source: str
    rank: int | None
    verdict: Literal["trusted", "degraded", "unusable"]


class AskedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table in the statement."""

    name: str
    figures: str
    """Program that its figures describe."""


class ResultColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the result."""

    name: str
    type: str
    """Arrow's name of the type."""
    unit: str | None
    """Unit, from the end of the name; null if it states none."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `overlapscope query`."""

    kind: Literal["query"] = "query"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    notes: tuple[str, ...]
    """Sentences on which program the figures describe, and on doubtful traces."""
    traces: tuple[AskedTrace, ...]
    tables: tuple[AskedTable, ...]
    columns: tuple[ResultColumn, ...]
    row_count: int
    """Number of rows of the statement. `rows` has fewer if --limit left some out."""
    rows: tuple[tuple[Any, ...], ...]
    """Values in the order of `columns`. null means unknown or none."""


def to_json(answer: Answer) -> bytes:
    """Return the answer as indented JSON that ends in a newline."""
    analysed = (done.result for done in answer.job.analyses)
    result = Result(
        notes=answer.notes(),
        traces=tuple(AskedTrace(source=each.source, rank=each.rank, verdict=each.trust.verdict) for each in analysed),
        tables=tuple(AskedTable(name=name, figures=answer.figures_of(name)) for name in answer.tables),
        columns=tuple(
            ResultColumn(name=column.name, type=str(column.type), unit=unit_of(column.name))
            for column in answer.rows.schema
        ),
        row_count=answer.row_count,
        rows=tuple(values(answer)),
    )
    return encode(result)


def tables_json() -> bytes:
    """Return the tables with their columns as JSON, for `overlapscope query --schema`."""
    tables = [
        {
            "name": table.name,
            "rows": table.rows,
            "figures": PROGRAM_WORDS[table.figures],
            "columns": [
                {"name": column.name, "type": column.type, "unit": unit_of(column.name), "meaning": column.meaning}
                for column in table.columns
            ],
        }
        for table in TABLES.values()
    ]
    return encode({"kind": "query-schema", "schema_version": SCHEMA_VERSION, "tables": tables})


def to_csv(answer: Answer) -> str:
    """Return the answer as CSV with a header. NULL is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(in_spreadsheet, answer.rows.column_names))
    for row in values(answer):
        writer.writerow(in_spreadsheet(cell) if isinstance(cell, str) else cell for cell in row)
    return out.getvalue()


def to_parquet(answer: Answer) -> bytes:
    """Return the answer as a Parquet file with its notes as metadata."""
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(answer.rows.replace_schema_metadata({"overlapscope": "\n".join(answer.notes())}), out)
    return out.getvalue()


def values(answer: Answer) -> Iterator[tuple[Any, ...]]:
    """Yield the rows as values that JSON supports."""
    for batch in answer.rows.to_batches():
        yield from zip(*(map(_value, column.to_pylist()) for column in batch.columns), strict=True)


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list | tuple):
        return [_value(element) for element in value]
    if isinstance(value, dict):
        return {str(key): _value(element) for key, element in value.items()}
    return value if value is None or isinstance(value, str | int) else str(value)


# -- Documents -------------------------------------------------------------------------------------


def answer_document(answer: Answer, *, width: int | None = None) -> Document:
    """Return the notes and rows of an answer. Rows wider than `width` become tables below each other."""
    lines = tuple(Row(tuple(map(_cell, row))) for row in values(answer))
    is_number = [
        all(row.cells[place] is _NULL or row.cells[place].value is not None for row in lines)
        for place in range(answer.rows.num_columns)
    ]
    columns = (
        Column(clean(name, _NAME_LIMIT), number=number, flexible=not number)
        for name, number in zip(answer.rows.column_names, is_number, strict=True)
    )
    table = Table("", tuple(columns), lines)
    blocks: list[Block] = [*(Text(with_code(note), "muted") for note in answer.notes())]
    if not table.rows:
        blocks.append(Text("The result has no rows."))
    elif width is not None and _least(table) > width:
        blocks += _one_below_another(table)
    else:
        blocks.append(table)
    omitted = answer.row_count - len(table.rows)
    if omitted:
        blocks.append(Text(f"And {plural(omitted, 'row')} more; --limit shows more of them."))
    return Document("Query", tuple(blocks))


def _cell(value: object) -> Cell:
    """Return a value as a cell. Numbers keep all digits, so that users can copy them into the next statement."""
    if value is None:
        return _NULL
    return Cell(clean(str(value), _NAME_LIMIT), value if isinstance(value, int | float) else None)


def _least(table: Table) -> int:
    """Return the minimum width of a table with cut text."""
    texts = [[column.title for column in table.columns], *table.texts()]
    widest = [max(len(line[place]) for line in texts) for place in range(len(table.columns))]
    cut = [
        min(cells, _MIN_TEXT_WIDTH) if column.flexible else cells
        for column, cells in zip(table.columns, widest, strict=True)
    ]
    return sum(cut) + _COLUMN_GAP * (len(cut) - 1)


def _one_below_another(table: Table) -> list[Block]:
    columns = (words("column"), words("value", flexible=True))
    return [
        Table(
            f"row {number}",
            columns,
            rows((column.title, cell) for column, cell in zip(table.columns, row.cells, strict=True)),
        )
        for number, row in enumerate(table.rows, 1)
    ]


def tables_document() -> Document:
    """Return all tables with their columns."""
    blocks: list[Block] = [Heading("Tables", 1)]
    for table in TABLES.values():
        columns = rows((column.name, column.type, with_units(column)) for column in table.columns)
        blocks += [
            Heading(table.name),
            Text(with_code(f"A row is {table.rows}. Figures are {PROGRAM_WORDS[table.figures]}.")),
            Table("", (words("column"), words("type"), prose("meaning")), columns),
        ]
    return Document("Tables of overlapscope query", tuple(blocks))


def with_units(column: SqlColumn) -> str:
    """Return the meaning of a column with its unit."""
    unit = unit_of(column.name)
    return f"{column.meaning} ({unit})" if unit and unit != "bytes" else column.meaning
