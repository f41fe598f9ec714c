"""What HTA's analyses say, as tables: text, markdown, CSV, and rows to be sorted. Names in them come from the trace."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from overlapscope.base.words import NOTHING, clean, plural
from overlapscope.hta.catalog import ANALYSES, Analysis
from overlapscope.hta.run import HtaResult, HtaTable, Value
from overlapscope.report.grids import Cell, Field, Grid, Row
from overlapscope.views.markdown import escape, table_lines
from overlapscope.views.old_tables import NAME_LIMIT, Column, Table
from overlapscope.views.old_tables import text as words
from overlapscope.views.terminal import GAP, fitted, lay_out, table_grid

MOST_ROWS = 40
"""Of a table that is read; CSV and JSON have all."""
_FORMULA = re.compile(r"[=+@\t\r-]")
_KEYS = ("rank", "stream")
"""Numbers that say what a row is about."""
_IDENTITIES = ("rank", "stream", "correlation", "pid", "tid", "iteration")
_METHOD = "method"
_LEAST_WORDS = 24
_WORD_WIDTH = 240
"""CSS pixels."""


def listing(analyses: Sequence[Analysis] = tuple(ANALYSES.values())) -> Table:
    """The analyses by name."""
    rows = tuple((one.name, one.summary, one.method) for one in analyses)
    return Table(
        "HTA's analyses",
        (words("name"), Column("what it says", number=False, flexible=True, prose=True), words(_METHOD)),
        rows,
    )


def tables(result: HtaResult, most: int = MOST_ROWS) -> tuple[Table, ...]:
    """The tables as text cells, of at most so many rows each."""
    return tuple(_table(one, most) for one in result.tables)


def text(result: HtaResult, *, width: int, encoding: str = "utf-8", color: str | None = None) -> str:
    """The result as lines of at most `width` columns; `encoding` and `color` as for `terminal.render`."""
    return lay_out(_parts(result, width), width=width, encoding=encoding, color=color)


def listing_text(*, width: int, encoding: str = "utf-8", color: str | None = None) -> str:
    """The names of the analyses and what each says."""
    return lay_out(
        [table_grid(fitted(listing(), (_METHOD,), width), width)], width=width, encoding=encoding, color=color
    )


def markdown(result: HtaResult) -> str:
    """The result as GitHub markdown."""
    lines = [f"# {escape(heading(result))}", ""]
    for table in tables(result):
        lines += [f"## {escape(table.title)}", "", *table_lines(table)]
    lines += [line for sentence in lacking(result) for line in (escape(sentence), "")]
    return "\n".join(lines).rstrip("\n") + "\n"


def csv_text(result: HtaResult) -> str:
    """All rows as CSV. Of several tables each has its title before it and, but for the first, an empty line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for number, table in enumerate(result.tables):
        if number:
            writer.writerow([])
        if len(result.tables) > 1:
            writer.writerow([table.title])
        writer.writerow(map(_harmless, table.columns))
        writer.writerows([_harmless(cell) for cell in row] for row in table.rows)
    return out.getvalue()


def grid(table: HtaTable, most: int) -> Grid:
    """At most so many rows of a table, to be sorted."""
    numbers = _numbers(table)
    fields = tuple(
        Field(f"c{at}", clean(column, NAME_LIMIT), number=number, width=_width(column) if number else _WORD_WIDTH)
        for at, (column, number) in enumerate(zip(table.columns, numbers, strict=True))
    )
    rows = tuple(
        Row(tuple(Cell(_plain(value), text) for value, text in zip(row, _cells(table, row), strict=True)))
        for row in table.rows[:most]
    )
    return Grid(fields, rows)


def _width(title: str) -> int:
    """CSS pixels for a column of numbers: its title on one line, where it is not very long."""
    return max(92, min(240, 40 + 8 * len(title)))


def heading(result: HtaResult) -> str:
    """Which analysis, by what, of which ranks."""
    ranks = ", ".join(map(str, result.ranks[:16])) + (", ..." if len(result.ranks) > 16 else "")
    noun = "rank" if len(result.ranks) == 1 else "ranks"
    return f"HTA {result.analysis} ({result.hta}), {noun} {ranks}"


def lacking(result: HtaResult) -> tuple[str, ...]:
    """A sentence for each table that HTA did not make."""
    return tuple(f"{clean(title)}: there is nothing of the kind in these traces." for title in result.missing)


def _parts(result: HtaResult, width: int) -> Iterator[RenderableType]:
    yield Text(heading(result), style="dim")
    yield ""
    for table in tables(result):
        yield Text(table.title, style="bold")
        for piece in _pieces(table, width):
            yield table_grid(piece, width)
            yield ""
    for sentence in lacking(result):
        yield Text(sentence)


def _pieces(table: Table, width: int) -> Iterator[Table]:
    """The table in as many pieces as it takes for the numbers to stay whole; each with what its rows are called."""
    needs = [_needed(table, at) + GAP for at in range(len(table.columns))]
    keys = [at for at, column in enumerate(table.columns) if column.flexible or column.title in _KEYS]
    room = width - sum(needs[at] for at in keys)
    piece: list[int] = []
    for at in range(len(table.columns)):
        if at in keys:
            continue
        if piece and sum(needs[one] for one in [*piece, at]) > room:
            yield _only(table, [*keys, *piece], note="")
            piece = []
        piece.append(at)
    yield _only(table, sorted([*keys, *piece]), note=table.note)


def _needed(table: Table, at: int) -> int:
    """Cells that a column takes: as many as its longest number, and of words so many that they can be told apart."""
    widest = max(len(line[at]) for line in ([column.title for column in table.columns], *table.rows))
    return min(widest, _LEAST_WORDS) if table.columns[at].flexible else widest


def _only(table: Table, columns: Sequence[int], *, note: str) -> Table:
    rows = tuple(tuple(row[at] for at in columns) for row in table.rows)
    return replace(table, columns=tuple(table.columns[at] for at in columns), rows=rows, note=note)


def _table(table: HtaTable, most: int) -> Table:
    numbers = _numbers(table)
    columns = tuple(
        Column(clean(column, NAME_LIMIT), number=number, flexible=not number)
        for column, number in zip(table.columns, numbers, strict=True)
    )
    rows = tuple(_cells(table, row) for row in table.rows[:most])
    left = len(table.rows) - len(rows)
    note = f"And {plural(left, 'row')} more: --format csv has all." if left else ""
    return Table(clean(table.title), columns, rows, note=note)


def _numbers(table: HtaTable) -> list[bool]:
    """Which columns are numbers throughout."""
    return [not any(isinstance(row[at], str) for row in table.rows) for at in range(len(table.columns))]


def _cells(table: HtaTable, row: Sequence[Value]) -> tuple[str, ...]:
    return tuple(_cell(value, column in _IDENTITIES) for value, column in zip(row, table.columns, strict=True))


def _cell(value: Value, identity: bool) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return clean(value, NAME_LIMIT)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or value.is_integer():
        return str(int(value)) if identity else f"{int(value):,}"
    return f"{value:,.3f}" if abs(value) >= 0.01 else f"{value:.2g}"


def _plain(value: Value) -> Value:
    return clean(value) if isinstance(value, str) else value


def _harmless(value: Value) -> Value:
    """A spreadsheet takes text that begins like a formula for one (OWASP, "CSV Injection"); a quote keeps it text."""
    value = _plain(value)
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value
