"""Results of HTA's analyses: how they are computed, written and shown. Names in them come from the trace."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from overlapscope.base.saved import SCHEMA_VERSION
from overlapscope.base.words import NOTHING, clean, in_spreadsheet, plural
from overlapscope.documents.model import Block, Document, Heading, Text
from overlapscope.documents.table import Cell, Column, Row, Table
from overlapscope.errors import OverlapscopeError
from overlapscope.inputs import Source, read_traces
from overlapscope.plugins.hta.build import quiet, require, trace_analysis
from overlapscope.plugins.hta.catalog import ANALYSES, HtaOptions, check_name

if TYPE_CHECKING:
    import pandas as pd


Value = int | float | str | bool | None


class HtaFailed(OverlapscopeError):
    """HolisticTraceAnalysis failed; the text has its message."""


class HtaTable(msgspec.Struct, frozen=True, kw_only=True):
    """One of HTA's frames. Times are in microseconds unless a column says otherwise."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    """Cells in the order of the columns; null where HTA has none."""


class HtaResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an analysis of HTA."""

    kind: Literal["hta"] = "hta"
    schema_version: int = SCHEMA_VERSION
    analysis: str
    hta: str
    """Name and version of the HTA that computed it."""
    ranks: tuple[int, ...]
    tables: tuple[HtaTable, ...]
    missing: tuple[str, ...] = ()
    """Titles of tables that HTA did not make, because the traces lack the data."""


def run(
    name: str,
    traces: Source | Iterable[Source],
    options: HtaOptions | None = None,
    *,
    nanoseconds: bool | None = None,
) -> HtaResult:
    """Run an analysis of `ANALYSES` on our traces, or on files.

    Args:
        name: Name of the analysis.
        traces: Traces, or paths and patterns of files.
        options: Options of the analysis.
        nanoseconds: As for `trace_analysis`.

    Returns:
        The tables that HTA made, and the titles of those it could not make.

    Raises:
        UsageError: The name is unknown, or the analysis cannot take the traces.
        HtaFailed: HTA fails.
        OverlapscopeError: As for `trace_analysis`.
    """
    check_name(name)
    package, version = require()
    held = read_traces(traces)
    analysis = trace_analysis(held, nanoseconds=nanoseconds)
    tables, missing = [], []
    try:
        with quiet():
            for title, frame in ANALYSES[name].run(analysis, options or HtaOptions()):
                if frame is None or frame.empty:
                    missing.append(title)
                else:
                    tables.append(_table(title, frame))
    except OverlapscopeError:
        raise
    except Exception as error:
        # HTA checks with asserts, and fails on unexpected data with any type of exception.
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        rounded = not nanoseconds and any(((trace.gpu_ops.start_ns - trace.base_ns) % 1000).any() for trace in held)
        hint = " HTA rounds times to whole microseconds, which can cause this; try --nanoseconds."
        raise HtaFailed(f"HTA's {ANALYSES[name].method} failed ({what}).{hint if rounded else ''}") from error
    return HtaResult(
        analysis=name,
        hta=f"{package} {version}",
        ranks=tuple(analysis.t.get_ranks()),
        tables=tuple(tables),
        missing=tuple(missing),
    )


def to_csv(result: HtaResult) -> str:
    """Return all rows as CSV. If there are several tables, each has its title before it, with empty lines between."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for number, table in enumerate(result.tables):
        if number:
            writer.writerow([])
        if len(result.tables) > 1:
            writer.writerow([table.title])
        writer.writerow(map(_harmless, table.columns))
        writer.writerows(map(_harmless, row) for row in table.rows)
    return out.getvalue()


def _harmless(value: Value) -> Value:
    return in_spreadsheet(value) if isinstance(value, str) else value


def _table(title: str, frame: pd.DataFrame) -> HtaTable:
    """Return a frame's cells as plain values; the columns of its index come first if they have names."""
    named = [name for name in frame.index.names if name is not None]
    if named:
        frame = frame.reset_index()
    # A column of several levels has a name on each.
    levels: list[Any] = [column if isinstance(column, tuple) else (column,) for column in list[Any](frame.columns)]
    columns = tuple(" ".join(str(part) for part in names if part != "") for names in levels)
    cells = [[_value(cell) for cell in frame.iloc[:, at].tolist()] for at in range(len(columns))]
    return HtaTable(title=title, columns=columns, rows=tuple(zip(*cells, strict=True)))


def _value(cell: Any) -> Value:
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if cell is None or isinstance(cell, bool | int | str):
        return cell
    return str(cell)


# -- The document ---

MAX_ROWS = 40
"""Maximum rows of a table to show; CSV and JSON have all."""
_NAME_LIMIT = 200
_KEYS = ("rank", "stream")
"""Number columns that identify a row."""
_IDENTITIES = ("rank", "stream", "correlation", "pid", "tid", "iteration")
_COLUMN_GAP = 2
"""Cells between the columns of a table in a terminal."""
_MIN_TEXT_WIDTH = 24
_WORD_WIDTH = 240
"""Maximum width of words in CSS pixels."""


def document(result: HtaResult, *, width: int | None = None) -> Document:
    """Return the tables with up to `MAX_ROWS` rows each, cut between columns to fit a terminal of `width`."""
    blocks: list[Block] = [Heading(heading(result), 1) if width is None else Text(heading(result), tone="muted")]
    for hta_table in result.tables:
        shown = table(hta_table, MAX_ROWS)
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
        needs[column.id] = _COLUMN_GAP + (min(widest, _MIN_TEXT_WIDTH) if column.flexible else widest)
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
