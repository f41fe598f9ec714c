"""A table that is read, not sorted: the cells as they are, as every other view has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from overlapscope.dashboard.context import PageContext
from overlapscope.documents.colors import palette
from overlapscope.views.old_tables import Column, Table

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
    table: Table,
    tones: Mapping[str, str],
    id: str = "",
    links: Sequence[Component | None] = (),
) -> Component:
    """The table, without its title and note; cells found in `tones` have that colour of the palette. `id` is of the
    rows; `links` stand at their ends."""
    colors = palette(context.dark)
    heads = [
        dmc.TableTh(column.title, ta="right" if column.number else "left", style={"whiteSpace": "nowrap"})
        for column in table.columns
    ]
    heads += [dmc.TableTh("")] if any(links) else []
    rows = []
    for number, row in enumerate(table.rows, 1):
        total = {"fontWeight": 700} if table.total and number == len(table.rows) else {}
        pairs = zip(row, table.columns, strict=True)
        cells = [_cell(cell, column, colors.get(tones.get(cell, ""))) for cell, column in pairs]
        ends = [dmc.TableTd(links[number - 1], style=_PINNED)] if any(links) else []
        rows.append(dmc.TableTr([*cells, *ends], style=total))
    named = {"id": id} if id else {}
    head = dmc.TableThead(dmc.TableTr(heads))
    drawn = dmc.Table([head, dmc.TableTbody(rows, **named)], w="auto", verticalSpacing=3, horizontalSpacing="md")
    return html.Div(drawn, className="plain-table")


def _cell(text: str, column: Column, color: str | None) -> Component:
    style: dict[str, Any] = {"fontVariantNumeric": "tabular-nums"}
    style |= (
        {"overflowWrap": "anywhere", "minWidth": _NAME_WIDTH, "verticalAlign": "top"}
        if column.flexible
        else {"whiteSpace": "nowrap", "verticalAlign": "top"}
    )
    style |= {"color": color, "fontWeight": 600} if color else {}
    return dmc.TableTd(text, ta="right" if column.number else "left", style=style)
