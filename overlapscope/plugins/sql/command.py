"""`overlapscope query`."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from overlapscope.base.output import tell
from overlapscope.base.saved import SCHEMA_VERSION, Tool, encode
from overlapscope.base.words import clean, in_spreadsheet, plural
from overlapscope.commands import DONE
from overlapscope.commands._options import (
    add_format,
    add_output,
    add_reading,
    add_steps_by,
    less_common,
    size_limit,
    whole_number,
)
from overlapscope.commands._output import check_output, drawn, write
from overlapscope.documents.model import Block, Document, Heading, Text, with_code
from overlapscope.documents.table import Cell, Column, Row, Table, prose, rows, words
from overlapscope.errors import UsageError
from overlapscope.plugins.sql.tables import OF, TABLES, SqlColumn, unit_of

if TYPE_CHECKING:
    from overlapscope.plugins.sql.engine import Answer

SHOWN = 100
"""Default limit on rows in text and markdown."""
_MOST_ROWS = 10**9
_MOST_SECONDS = 86_400


class QueryCommand:
    """Query traces with SQL: their GPU ops, copies, calls and ranges, and the
    results of their analysis: buckets, causes, stalls, findings, trust checks.

    The last argument is a SELECT statement in DuckDB's dialect. It can read the
    tables that --schema lists, and nothing else: no files and no network. The
    columns `source` and `rank` set several traces apart.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "given", nargs="*", metavar="TRACE ... SQL", help="trace files, directories or patterns, then the statement"
        )
        parser.add_argument("--file", metavar="FILE", help="read the statement from FILE, or from stdin if it is -")
        parser.add_argument("--schema", action="store_true", help="list the tables and their columns")
        add_format(parser, ("text", "json", "markdown", "csv", "parquet"))
        add_output(parser)
        parser.add_argument(
            "--limit",
            metavar="N",
            type=whole_number(f"a number from 0 to {_MOST_ROWS:,}", 0, _MOST_ROWS),
            help=f"show at most N rows (default: {SHOWN} as text or markdown, all otherwise)",
        )
        rare = less_common(parser)
        rare.add_argument(
            "--timeout",
            metavar="SECONDS",
            type=whole_number(f"a number from 1 to {_MOST_SECONDS:,}", 1, _MOST_SECONDS),
            help="time limit of the statement (default: 60)",
        )
        add_steps_by(rare)
        add_reading(rare)

    def run(self, args: argparse.Namespace) -> int:
        if args.schema:
            check_output(args.output, force=args.force)
            write(_schema(args), args.output, force=args.force)
            return DONE
        traces, statement = _arguments(args)
        if args.format == "parquet" and args.output is None:
            raise UsageError("Parquet is binary; name a file for it with -o FILE.")
        check_output(args.output, force=args.force, inputs=[*traces, args.file])
        from overlapscope.plugins.sql.engine import TIMEOUT_S, ask, require
        from overlapscope.reading import load, look
        from overlapscope.tools import QueriedTraces

        require()
        looked = look(traces)
        for note in looked.notes:
            tell(note)
        job = QueriedTraces(
            tuple(
                load(path, limit_bytes=size_limit(args), cache=args.cache, steps_by=args.steps_by)
                for path in looked.files
            )
        )
        limit = SHOWN if args.limit is None and args.format in ("text", "markdown") else args.limit
        answer = ask(job, statement, most_rows=limit, timeout_s=args.timeout or TIMEOUT_S)
        write(_written(answer, args), args.output, force=args.force)
        return DONE


def _arguments(args: argparse.Namespace) -> tuple[list[str], str]:
    """Return the traces and the statement."""
    traces = list(args.given)
    if args.file is None and len(traces) < 2:
        raise UsageError('write: overlapscope query TRACE "SELECT ..."; --schema lists the tables.')
    if args.file is None:
        return traces, traces.pop()
    if not traces:
        raise UsageError("no trace is named; write: overlapscope query TRACE --file FILE.")
    return traces, _read(args.file)


def _read(file: str) -> str:
    from overlapscope.plugins.sql.engine import MOST_CHARACTERS

    try:
        if file == "-":
            return sys.stdin.read(MOST_CHARACTERS + 1)
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(MOST_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: the SQL cannot be read ({getattr(error, 'strerror', None) or error}).") from None


def _schema(args: argparse.Namespace) -> bytes:
    match args.format:
        case "json":
            return tables_json()
        case "text" | "markdown":
            return drawn(tables_document(), args)
        case _:
            raise UsageError(f"the tables cannot be listed as {args.format}; use text, json or markdown.")


def _written(answer: Answer, args: argparse.Namespace) -> bytes:
    match args.format:
        case "json":
            return to_json(answer)
        case "csv":
            return to_csv(answer).encode("utf-8", "replace")
        case "parquet":
            return to_parquet(answer)
        case "text":
            from overlapscope.render import terminal

            width = terminal.width_of(None if args.output else sys.stdout)
            return drawn(answer_document(answer, width=width), args)
        case _:
            return drawn(answer_document(answer), args)


# -- Formats of an answer, and of the list of tables. Names in answers come from traces. -----------

_NAME_LIMIT = 200
_GAP = 2
"""Space between columns of a table in a terminal."""
_LEAST_TEXT = 16
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
            "figures": OF[table.figures],
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
        min(cells, _LEAST_TEXT) if column.flexible else cells
        for column, cells in zip(table.columns, widest, strict=True)
    ]
    return sum(cut) + _GAP * (len(cut) - 1)


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
            Text(with_code(f"A row is {table.rows}. Figures are {OF[table.figures]}.")),
            Table("", (words("column"), words("type"), prose("meaning")), columns),
        ]
    return Document("Tables of overlapscope query", tuple(blocks))


def with_units(column: SqlColumn) -> str:
    """Return the meaning of a column with its unit."""
    unit = unit_of(column.name)
    return f"{column.meaning} ({unit})" if unit and unit != "bytes" else column.meaning
