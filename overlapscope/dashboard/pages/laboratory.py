"""Laboratory: experiments whose outcome is known; each variant's small timeline, our figures and the published ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dash
import dash_mantine_components as dmc
from dash import MATCH, Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope.dashboard import parts
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.place import Place
from overlapscope.dashboard.shown import Shown
from overlapscope.laboratory.comparison import WALL, Comparison, compare
from overlapscope.laboratory.results import Analysis, VariantResult
from overlapscope.views.charts.bars import bars as bars_chart
from overlapscope.views.colors import palette
from overlapscope.views.laboratory import Line, chapter, overview
from overlapscope.views.laboratory_strip import data_uri
from overlapscope.views.laboratory_tables import digits
from overlapscope.views.tables import Table
from overlapscope.views.words import clean, percent, unit_for

_LEAD = "Experiments on copies, streams and CUDA graphs whose outcome is known: measured here, and published."
_STANDING = {"holds": "good", "does not hold": "poor", "unknown": "fair"}


def layout(shown: Shown) -> Component:
    """The page."""
    found = shown.library.results()
    if not any(results.experiments for _, results in found):
        return parts.page("Laboratory", _nothing(), lead=_LEAD)
    return parts.page(
        "Laboratory",
        *(
            _results(shown, number, directory, compare(results))
            for number, (directory, results) in enumerate(found)
            if results.experiments
        ),
        lead=_LEAD,
    )


def _nothing() -> Component:
    return parts.panel(
        "No results are open",
        parts.empty("Open a directory with results of the laboratory. To run it here, and then to look at it:"),
        dmc.Code(
            "overlapscope scenarios run --all\noverlapscope dashboard overlapscope-laboratory", block=True, my="xs"
        ),
        parts.empty("Those that come with overlapscope were recorded on one H200 and opened in the same way:"),
        dmc.Code('overlapscope dashboard "$(overlapscope samples)"', block=True, mt="xs"),
    )


def _results(shown: Shown, number: int, directory: Path, comparisons: Sequence[Comparison]) -> Component:
    top = overview(comparisons)
    links = [
        dmc.Anchor(clean(one.result.name, 80), href=f"#{_anchor(number, place)}", size="sm")
        for place, one in enumerate(comparisons)
    ]
    return dmc.Stack(
        [
            parts.panel(
                "Results",
                *(dmc.Text(machine, size="sm", c="dimmed") for machine in top.machines),
                _table(top.claims),
                *([_claims(top.contradicted, shown.dark)] if top.contradicted else []),
                *(dmc.Text(trouble, size="sm") for trouble in top.troubles),
                dmc.Group(links, gap="sm", mt="sm"),
            ),
            *(_experiment(shown, directory, one, number, place) for place, one in enumerate(comparisons)),
        ],
        gap="md",
    )


def _anchor(number: int, place: int) -> str:
    return f"experiment-{number}-{place}"


# -- an experiment --------------------------------------------------------------------------------


def _experiment(shown: Shown, directory: Path, one: Comparison, number: int, place: int) -> Component:
    result = one.result
    index = f"{number}-{place}"
    first = next((id for variant in result.variants if (id := _trace(shown.library, directory, variant))), None)
    cards = [_card(shown, directory, one, variant, first) for variant in result.variants]
    return parts.panel(
        clean(f"{result.name}: {result.title}", 200),
        dmc.SimpleGrid(cards, cols={"base": 1, "sm": 2, "lg": 3, "xl": 4}, spacing="sm", mt="xs"),
        dmc.Button(
            "Figures and claims",
            id={"type": "laboratory-more", "index": index},
            variant="default",
            size="compact-sm",
            mt="sm",
        ),
        html.Div(id={"type": "laboratory-detail", "index": index}),
        note=clean(result.shows, 400),
        id=_anchor(number, place),
    )


def _card(shown: Shown, directory: Path, one: Comparison, variant: VariantResult, first: str | None) -> Component:
    analysis = variant.analyses[0] if variant.analyses else None
    id = _trace(shown.library, directory, variant)
    return dmc.Paper(
        [
            dmc.Group(
                [dmc.Text(clean(variant.name, 80), fw=600), *_level(analysis, shown.dark)], justify="space-between"
            ),
            html.Div(
                dmc.Text(clean(variant.shows, 400), size="xs", c="dimmed", lineClamp=2), title=clean(variant.shows, 400)
            ),
            *([_strip(analysis, shown.dark)] if analysis else []),
            _figures(one, variant, analysis),
            *_links(shown.place, id, first),
        ],
        withBorder=True,
        p="sm",
        className="laboratory-card",
    )


def _level(analysis: Analysis | None, dark: bool) -> list[Component]:
    if analysis is None:
        return []
    colors = palette(dark)
    level = analysis.verdict.level
    return [dmc.Text(level, size="sm", fw=700, style={"color": colors.get(level, colors["muted"])})]


def _strip(analysis: Analysis, dark: bool) -> Component:
    strip = analysis.strip
    names = ", ".join(lane.name for lane in strip.lanes)
    shown = clean(strip.label, 60) or "the whole recording"
    span = unit_for(strip.span_ns).text(strip.span_ns)
    return html.Div(
        [
            html.Div(
                [html.Div([html.Span(clean(lane.name, 8)) for lane in strip.lanes], className="laboratory-lanes")]
                + [
                    html.Img(
                        src=data_uri(strip, dark),
                        alt=f"timeline of {shown}: {names}",
                        style={"height": f"{14 * max(1, len(strip.lanes))}px"},
                    )
                ],
                className="laboratory-strip",
            ),
            dmc.Text(f"{shown}, {span}", size="xs", c="dimmed", ta="right"),
        ]
    )


def _figures(one: Comparison, variant: VariantResult, analysis: Analysis | None) -> Component:
    if variant.status != "ok":
        return dmc.Text(clean(f"{variant.status}: {variant.error or 'no reason is known'}", 300), size="sm")
    wall = next(figure for figure in one.figures[variant.name] if figure.name == WALL)
    told = [("time here", digits(wall.ours) if wall.ours is None else f"{digits(wall.ours)} ms")]
    if wall.published is not None:
        told.append(("published", f"{digits(wall.published)} ms"))
    if analysis is not None:
        told.append(("efficiency", percent(analysis.overlap.efficiency_pct)))
    return dmc.Group(
        [
            html.Div([dmc.Text(name, size="xs", c="dimmed"), dmc.Text(value, fw=600, className="laboratory-figure")])
            for name, value in told
        ],
        gap="lg",
        mt=4,
    )


def _trace(library: Library, directory: Path, variant: VariantResult) -> str | None:
    """The id of a variant's trace, of its first rank."""
    return library.id_of(directory / variant.traces[0]) if variant.traces else None


def _links(place: Place, id: str | None, first: str | None) -> list[Component]:
    if id is None:
        return []
    links = [("open", place.href("overview", trace=id, other=None))]
    if first is not None and first != id:
        links.append(("compare with the first", place.href("compare", trace=first, other=id)))
    shown = [dcc.Link(text, href=href, className="timeline-link") for text, href in links]
    return [dmc.Group(shown, gap="md", mt=4, className="laboratory-links")]


# -- its figures and claims -----------------------------------------------------------------------


def register(app: dash.Dash, library: Library) -> None:
    """An experiment's figures are drawn when they are asked for: all at once are too many."""

    @app.callback(
        Output({"type": "laboratory-detail", "index": MATCH}, "children"),
        Output({"type": "laboratory-more", "index": MATCH}, "children"),
        Input({"type": "laboratory-more", "index": MATCH}, "n_clicks"),
        State({"type": "laboratory-more", "index": MATCH}, "id"),
        State("scheme-shown", "data"),
        prevent_initial_call=True,
    )
    def more(clicks: int | None, id: dict[str, str], scheme: str | None) -> Any:
        if not clicks or clicks % 2 == 0:
            return None, "Figures and claims"
        number, place = map(int, id["index"].split("-"))
        _, results = library.results()[number]
        return _detail(compare(results)[place], id["index"], dark=scheme == "dark"), "Hide figures and claims"


def _detail(one: Comparison, index: str, *, dark: bool) -> Component:
    told = chapter(one)
    drawn = [bars for bars in told.bars if any(value is not None for value in (*bars.ours, *bars.published))]
    graphs = [
        parts.graph(bars_chart(bars, dark), f"laboratory-bars-{index}-{number}", name=clean(bars.title, 40))
        for number, bars in enumerate(drawn)
    ]
    return dmc.Stack(
        [
            dmc.Text(" ".join(told.facts), size="sm", className="prose"),
            dmc.SimpleGrid(graphs, cols={"base": 1, "lg": 2}) if graphs else None,
            *(_table(table) for table in told.tables),
            _claims(told.claims, dark),
            dmc.List([dmc.ListItem(note) for note in told.notes], size="sm", c="dimmed"),
        ],
        gap="sm",
        mt="sm",
    )


def _claims(claims: Sequence[Line], dark: bool) -> Component:
    colors = palette(dark)
    styles = {word: {"color": colors[level], "fontWeight": 700} for word, level in _STANDING.items()}
    items = [dmc.ListItem([html.Span(one.standing, style=styles[one.standing]), f": {one.text}"]) for one in claims]
    return dmc.List(items, size="sm", className="laboratory-claims")


def _table(table: Table) -> Component:
    def cell(kind: Any, number: int, text: str) -> Component:
        return kind(text, ta="right" if table.columns[number].number else "left")

    heads = [cell(dmc.TableTh, number, column.title) for number, column in enumerate(table.columns)]
    rows = [dmc.TableTr([cell(dmc.TableTd, number, text) for number, text in enumerate(row)]) for row in table.rows]
    return html.Div(
        [
            *([dmc.Text(table.title, fw=600, size="sm")] if table.title else []),
            dmc.TableScrollContainer(
                dmc.Table([dmc.TableThead(dmc.TableTr(heads)), dmc.TableTbody(rows)], className="laboratory-table"),
                minWidth=300,
            ),
        ]
    )
