"""An answer, and the schema of the tables, as documents. Names in them come from the trace."""

from __future__ import annotations

from overlapscope.base.words import clean, plural
from overlapscope.documents.model import Block, Document, Heading, Text, with_code
from overlapscope.documents.table import Cell, Column, Row, Table, prose, rows, words
from overlapscope.query import tables
from overlapscope.query.engine import Answer
from overlapscope.query.written import values

_NAME_LIMIT = 200
_GAP = 2
"""Between the columns of a table in a terminal."""
_LEAST_TEXT = 16
"""Text is cut to this before rows are shown one below another."""
_NULL = Cell("NULL", tone="muted")


def document(answer: Answer, *, width: int | None = None) -> Document:
    """The rows, with what has to be said of them; each row below the other where they are wider than `width`."""
    table = _table(answer)
    blocks: list[Block] = [*(Text(with_code(note), "muted") for note in answer.notes())]
    if not table.rows:
        blocks.append(Text("The result has no rows."))
    elif width is not None and _least(table) > width:
        blocks += _one_below_another(table)
    else:
        blocks.append(table)
    left = answer.row_count - len(table.rows)
    if left:
        blocks.append(Text(f"And {plural(left, 'row')} more; --limit shows more of them."))
    return Document("Query", tuple(blocks))


def _table(answer: Answer) -> Table:
    lines = tuple(Row(tuple(map(_cell, row))) for row in values(answer))
    columns = tuple(
        Column(clean(name, _NAME_LIMIT), number=_is_number(lines, place), flexible=not _is_number(lines, place))
        for place, name in enumerate(answer.rows.column_names)
    )
    return Table("", columns, lines)


def _cell(value: object) -> Cell:
    """Numbers as they are, to be copied into the next statement."""
    if value is None:
        return _NULL
    return Cell(clean(str(value), _NAME_LIMIT), value if isinstance(value, int | float) else None)


def _is_number(lines: tuple[Row, ...], place: int) -> bool:
    return all(row.cells[place] is _NULL or row.cells[place].value is not None for row in lines)


def _least(table: Table) -> int:
    """How wide a table is at least, with text cut short."""
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


def schema() -> Document:
    """The tables with their columns."""
    blocks: list[Block] = [Heading("Tables", 1)]
    for table in tables.TABLES.values():
        columns = rows((one.name, one.type, with_units(one)) for one in table.columns)
        blocks += [
            Heading(table.name),
            Text(with_code(f"A row is {table.rows}. Figures are {tables.OF[table.figures]}.")),
            Table("", (words("column"), words("type"), prose("meaning")), columns),
        ]
    return Document("Tables of overlapscope query", tuple(blocks))


def with_units(column: tables.SqlColumn) -> str:
    """What a column means, with its unit."""
    unit = tables.unit_of(column.name)
    return f"{column.meaning} ({unit})" if unit and unit != "bytes" else column.meaning
