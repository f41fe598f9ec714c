"""A table that is read, not sorted: the cells as they are, as every other view has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from overlapscope.dashboard.context import PageContext
from overlapscope.documents.colors import palette
from overlapscope.documents.table import Cell, Column, Table, rows
from overlapscope.views import old_tables

_NAME_WIDTH = 180
"""CSS pixels that a column of names has at least."""
_PINNED = {
    "position": "sticky",
    "right": 0,
    "whiteSpace": "nowrap",
    "backgroundColor": "var(--mantine-color-body)",
}
"""Of links, which are to be seen where the table is wider than its panel."""


def plain_table(
    context: PageContext,
    shown: old_tables.Table,
    tones: Mapping[str, str],
    id: str = "",
    links: Sequence[Component | None] = (),
) -> Component:
    """The same of a table whose cells are texts; those found in `tones` have that colour of the palette."""
    cells = rows([Cell(text, tone=tones.get(text, "")) for text in row] for row in shown.rows)  # type: ignore[arg-type]
    columns = tuple(Column(one.title, one.number, one.flexible, one.prose) for one in shown.columns)
    return table(Table("", columns, cells, total=shown.total), context.dark, id, links)


def table(shown: Table, dark: bool, id: str = "", ends: Sequence[Component | None] = ()) -> Component:
    """A table that is read, not sorted, without its title and note. `id` is of the rows; `ends` stand behind them."""
    colors = palette(dark)
    heads = [
        dmc.TableTh(column.title, ta="right" if column.number else "left", style={"whiteSpace": "nowrap"})
        for column in shown.columns
    ]
    heads += [dmc.TableTh("")] if any(ends) else []
    drawn = []
    for number, row in enumerate(shown.rows):
        cells = [_cell(cell, column, colors) for cell, column in zip(row.cells, shown.columns, strict=True)]
        cells += [dmc.TableTd(ends[number], style=_PINNED)] if any(ends) else []
        total = shown.total and number == len(shown.rows) - 1
        drawn.append(dmc.TableTr(cells, style={"fontWeight": 700} if total else {}))
    body = dmc.TableTbody(drawn, **({"id": id} if id else {}))
    whole = dmc.Table([dmc.TableThead(dmc.TableTr(heads)), body], w="auto", verticalSpacing=3, horizontalSpacing="md")
    return html.Div(whole, className="plain-table")


def _cell(cell: Cell, column: Column, colors: Mapping[str, str]) -> Component:
    style: dict[str, Any] = {"fontVariantNumeric": "tabular-nums", "verticalAlign": "top"}
    style |= {"overflowWrap": "anywhere", "minWidth": _NAME_WIDTH} if column.flexible else {"whiteSpace": "nowrap"}
    style |= {"color": colors[cell.tone], "fontWeight": 600} if cell.tone else {}
    return dmc.TableTd(cell.text, ta="right" if column.number else "left", style=style)
