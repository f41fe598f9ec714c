"""The headline figures of a page as tiles; what each means stands in its tooltip."""

from __future__ import annotations

from collections.abc import Sequence

import dash_mantine_components as dmc
from dash.development.base_component import Component

from overlapscope.documents.model import Card


def figure_tiles(figures: Sequence[Card], id: str) -> Component:
    """A tile for each figure, beside one another where there is room."""
    return dmc.SimpleGrid(
        [_tile(figure) for figure in figures],
        cols={"base": 2, "sm": (len(figures) + 1) // 2, "lg": len(figures)},
        spacing="sm",
        id=id,
    )


def _tile(figure: Card) -> Component:
    return dmc.Tooltip(
        label=figure.meaning,
        multiline=True,
        w=280,
        withArrow=True,
        boxWrapperProps={"w": "100%", "h": "100%"},
        events={"hover": True, "focus": True, "touch": True},
        children=dmc.Paper(
            [
                dmc.Text(figure.name, c="dimmed", size="sm"),
                dmc.Text(figure.value, fz=22, fw=600, lh=1.25),
                dmc.Text(figure.beside, c="dimmed", size="xs"),
            ],
            withBorder=True,
            px="sm",
            py="xs",
            h="100%",
            tabIndex=0,
            className="figure-tile",
        ),
    )
