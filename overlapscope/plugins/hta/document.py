"""Document of a result of HTA: its tables. Names in them come from the trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from overlapscope.base.words import NOTHING, clean, plural
from overlapscope.documents.model import Block, Document, Heading, Text
from overlapscope.documents.table import Cell, Column, Row, Table, prose, rows, words
from overlapscope.plugins.hta.catalog import ANALYSES
from overlapscope.plugins.hta.run import HtaResult, HtaTable, Value

MOST_ROWS = 40
"""Maximum rows of a table to show; CSV and JSON have all."""
_NAME_LIMIT = 200
_KEYS = ("rank", "stream")
"""Number columns that identify a row."""
_IDENTITIES = ("rank", "stream", "correlation", "pid", "tid", "iteration")
_GAP = 2
"""Cells between the columns of a table in a terminal."""
_LEAST_WORDS = 24
_WORD_WIDTH = 240
"""Maximum width of words in CSS pixels."""


def listing() -> Document:
    """Return the list of analyses."""
    columns = (
        words("name"),
        prose("what it shows"),
        replace(words("method"), spare=True),
    )
    lines = ((analysis.name, analysis.summary, analysis.method) for analysis in ANALYSES.values())
    return Document("HTA's analyses", (Table("", columns, rows(lines)),))


def document(result: HtaResult, *, width: int | None = None) -> Document:
    """Return the tables with up to `MOST_ROWS` rows each, cut between columns to fit a terminal of `width`."""
    blocks: list[Block] = [Heading(heading(result), 1) if width is None else Text(heading(result), tone="muted")]
    for hta_table in result.tables:
        shown = table(hta_table, MOST_ROWS)
        blocks += [shown] if width is None else _pieces(shown, width)
    return Document(heading(result), (*blocks, *map(Text, lacking(result))))


def heading(result: HtaResult) -> str:
    """Return the facts: the analysis, the version of HTA, and the ranks."""
    ranks = ", ".join(map(str, result.ranks[:16])) + (", ..." if len(result.ranks) > 16 else "")
    noun = "rank" if len(result.ranks) == 1 else "ranks"
    return f"HTA {result.analysis} ({result.hta}), {noun} {ranks}"


def lacking(result: HtaResult) -> tuple[str, ...]:
    """Return a sentence for each table that HTA did not make."""
    return tuple(f"{clean(title)}: these traces have none." for title in result.missing)


def table(hta_table: HtaTable, most: int) -> Table:
    """Return a table with a limited number of rows. The ids of its columns are `c0`, `c1`, ..."""
    columns = []
    for at, title in enumerate(hta_table.columns):
        number = not any(isinstance(row[at], str) for row in hta_table.rows)
        # A column of numbers has its title on a single line, unless that is very long.
        width = max(92, min(240, 40 + 8 * len(title))) if number else _WORD_WIDTH
        columns.append(Column(clean(title, _NAME_LIMIT), number=number, flexible=not number, id=f"c{at}", width=width))
    lines = tuple(
        Row(tuple(_cell(value, title) for value, title in zip(row, hta_table.columns, strict=True)))
        for row in hta_table.rows[:most]
    )
    omitted = len(hta_table.rows) - len(lines)
    note = f"And {plural(omitted, 'row')} more; --format csv has all." if omitted else ""
    return Table(clean(hta_table.title), tuple(columns), lines, note=note)


def _cell(value: Value, column: str) -> Cell:
    if value is None:
        return Cell(NOTHING)
    if isinstance(value, str):
        return Cell(clean(value, _NAME_LIMIT), clean(value))
    if isinstance(value, bool):
        return Cell("yes" if value else "no", value)
    if isinstance(value, int) or value.is_integer():
        return Cell(str(int(value)) if column in _IDENTITIES else f"{int(value):,}", value)
    return Cell(f"{value:,.3f}" if abs(value) >= 0.01 else f"{value:.2g}", value)


def _pieces(table: Table, width: int) -> Iterator[Table]:
    """Return the table in as many pieces as keep its numbers intact, each with the names of the rows."""
    texts = [[column.title for column in table.columns], *table.texts()]
    needs = {}
    for at, column in enumerate(table.columns):
        widest = max(len(line[at]) for line in texts)
        # Cells of words get enough characters to tell them apart.
        needs[column.id] = _GAP + (min(widest, _LEAST_WORDS) if column.flexible else widest)
    keys = [column.id for column in table.columns if column.flexible or column.title in _KEYS]
    room = width - sum(needs[id] for id in keys)
    title, piece = table.title, list[str]()
    for id in (id for id in needs if id not in keys):
        if piece and sum(needs[other] for other in [*piece, id]) > room:
            yield replace(_only(table, [*keys, *piece]), title=title, note="")
            title, piece = "", []
        piece.append(id)
    yield replace(_only(table, [*keys, *piece]), title=title)


def _only(table: Table, ids: Iterable[str]) -> Table:
    return table.without({column.id for column in table.columns} - set(ids))
