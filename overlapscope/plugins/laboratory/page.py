"""The page Laboratory: experiments with known outcomes, as an index and opened one at a time."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component
from msgspec import Struct

from overlapscope.analysis.figures import efficiency_shown
from overlapscope.base.words import clean, percent, unit_for
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.library import Library
from overlapscope.documents import model
from overlapscope.documents.model import Block
from overlapscope.errors import OverlapscopeError
from overlapscope.plugins.laboratory import RESULTS, tables
from overlapscope.plugins.laboratory.comparison import ExperimentComparison, compare
from overlapscope.plugins.laboratory.document import chapter, overview
from overlapscope.plugins.laboratory.results import Analysis, RecordedStrip, Results, VariantResult, read_results
from overlapscope.plugins.laboratory.tables import digits

_LEAD = "Experiments on copies, streams and CUDA graphs with a known outcome: measured here, and published by others."
_LANE_COLORS = {"h2d": "h2d-pinned", "d2h": "d2h-pinned"}
"""Palette names of a strip's lanes, if different."""


class _ListedExperiment(Struct, frozen=True):
    """An experiment among the results."""

    id: str
    """Name in URLs, numbered if several results have it."""
    directory: Path
    comparison: ExperimentComparison


def _experiments(library: Library) -> list[list[_ListedExperiment]]:
    """Return the experiments of each directory of results that has any."""
    groups: list[list[_ListedExperiment]] = []
    times: dict[str, int] = {}
    for directory, results in results_in(library):
        group = []
        for comparison in compare(results):
            name = comparison.result.name
            times[name] = times.get(name, 0) + 1
            id = name if times[name] == 1 else f"{name} ({times[name]})"
            group.append(_ListedExperiment(id, directory, comparison))
        groups += [group] if group else []
    return groups


def results_in(library: Library) -> Iterator[tuple[Path, Results]]:
    """Yield the results in the given directories and their subdirectories."""
    for file in library.files(RESULTS):
        try:
            yield file.parent, read_results(file.parent)
        except OverlapscopeError as error:
            logging.getLogger(__name__).warning("%s", error)


def layout(context: PageContext) -> Component:
    """Return the index, or the experiment of the address."""
    groups = _experiments(context.library)
    if not groups:
        return parts.page("Laboratory", _nothing(), lead=_LEAD)
    experiment_id = context.url.choices.get("experiment")
    if experiment_id is None:
        return parts.page("Laboratory", *(_index(context, experiments) for experiments in groups), lead=_LEAD)
    opened = next(
        (experiment for experiments in groups for experiment in experiments if experiment.id == experiment_id), None
    )
    index = dcc.Link("← all experiments", href=context.url.href(experiment=None), className="timeline-link")
    if opened is None:
        return parts.page(
            "Laboratory", index, parts.empty(f"There is no experiment {clean(experiment_id, 80)!r} here.")
        )
    return _opened(context, opened, index)


def _nothing() -> Component:
    return parts.panel(
        "No results are open",
        parts.empty("Open a directory with results of the laboratory. To run the experiments on this machine:"),
        dmc.Code(
            "overlapscope scenarios run --all\noverlapscope dashboard overlapscope-laboratory", block=True, my="xs"
        ),
        parts.empty("overlapscope comes with results from one H200. To look at those:"),
        dmc.Code('overlapscope dashboard "$(overlapscope samples)"', block=True, mt="xs"),
    )


# -- The index -------------------------------------------------------------------------------------


def _index(context: PageContext, experiments: Sequence[_ListedExperiment]) -> Component:
    """Return a line for each experiment, then results over all of them."""
    comparisons = [experiment.comparison for experiment in experiments]
    links: list[Component | None] = [
        dcc.Link("open →", href=context.url.href(experiment=experiment.id), className="timeline-link")
        for experiment in experiments
    ]
    totals = _drawn(overview(comparisons), context.dark)
    listed = parts.table_panel(context, tables.index(comparisons), "laboratory-index", links)
    return dmc.Stack([listed, parts.panel("All experiments", *totals)], gap="md")


# -- One experiment --------------------------------------------------------------------------------


def _opened(context: PageContext, experiment: _ListedExperiment, index: Component) -> Component:
    """Return each variant with its timeline and links to its first rank's trace, and the figures and claims."""
    result = experiment.comparison.result
    files = [experiment.directory / variant.traces[0] if variant.traces else None for variant in result.variants]
    ids = [None if file is None else context.library.id_of(file) for file in files]
    first = next((id for id in ids if id is not None), None)
    cards = [
        _card(context, experiment.comparison, variant, _links(context, id, first))
        for variant, id in zip(result.variants, ids, strict=True)
    ]
    chapter_drawn = _drawn(chapter(experiment.comparison, "laboratory-bars"), context.dark)
    return parts.page(
        clean(f"{result.name}: {result.title}", 200),
        index,
        html.Div(cards, className="laboratory-grid", id="laboratory-variants"),
        parts.panel("Figures and claims", dmc.Stack(chapter_drawn, gap="sm"), id="laboratory-detail"),
    )


def _card(
    context: PageContext, comparison: ExperimentComparison, variant: VariantResult, links: list[Component]
) -> Component:
    analysis = variant.analyses[0] if variant.analyses else None
    level = analysis.verdict.level if analysis else ""
    color = {"color": context.colors.get(level, context.colors["muted"])}
    figures = [html.Div([html.Dt(name), html.Dd(value)]) for name, value in _figures(comparison, variant, analysis)]
    return html.Article(
        [
            html.Header([html.H3(clean(variant.name, 80)), html.B(level, style=color)]),
            html.P(clean(variant.shows, 400), className="laboratory-dim"),
            *(_strip(analysis.strip, context.colors) if analysis else []),
            html.Dl(figures),
            html.P(links, className="laboratory-links"),
        ],
        className="laboratory-card",
    )


def _strip(strip: RecordedStrip, colors: dict[str, str]) -> list[Component]:
    """Return a small timeline with a bar for each kind of work."""
    drawn: list[Component] = []
    for lane in strip.lanes:
        color = colors.get(_LANE_COLORS.get(lane.name, lane.name), colors["muted"])
        named: dict[str, Any] = {"aria-label": lane.name}
        bar = html.Div(style={"backgroundImage": _gradient(lane.fill, color)}, role="img", **named)
        drawn.append(html.Div([html.Span(clean(lane.name, 8)), bar], className="laboratory-lane"))
    what = f"{clean(strip.label, 60) or 'all'}, as recorded"
    span = unit_for(strip.span_ns).text(strip.span_ns)
    return [*drawn, html.P(f"{what}, {span}", className="laboratory-dim laboratory-caption")]


def _gradient(fill: str, color: str) -> str:
    """Return a bar as a CSS image.

    `fill` has a character per slice: `.` if empty, otherwise the tenths begun, which set the opacity.
    """
    stops = [
        f"{color}{round(25.5 * (int(run[1]) + 1)) if run[1] != '.' else 0:02x} "
        f"{100 * run.start() / len(fill):.2f}% {100 * run.end() / len(fill):.2f}%"
        for run in re.finditer(r"([.\d])\1*", fill)
    ]
    return f"linear-gradient(90deg, {', '.join(stops)})" if stops else "none"


def _figures(
    comparison: ExperimentComparison, variant: VariantResult, analysis: Analysis | None
) -> list[tuple[str, str]]:
    if variant.status != "ok":
        return [(variant.status, clean(variant.error or "no reason is known", 300))]
    wall = comparison.wall(variant.name)
    figures = [("time here", digits(wall.ours) if wall.ours is None else f"{digits(wall.ours)} ms")]
    if wall.published is not None:
        figures.append(("published", f"{digits(wall.published)} ms"))
    if analysis is not None:
        figures.append(("overlap efficiency", percent(efficiency_shown(analysis))))
    return figures


def _links(context: PageContext, id: str | None, first: str | None) -> list[Component]:
    if id is None:
        return []
    href = partial(context.url.href, experiment=None)
    links = [("open", href("overview", trace=id, other=None))]
    if first is not None and first != id:
        links.append(("compare with the first", href("compare", trace=first, other=id)))
    return [dcc.Link(text, href=href, className="timeline-link") for text, href in links]


def _drawn(blocks: Iterable[Block], dark: bool) -> list[Component]:
    """Return the laboratory's report without its timelines, which are in the cards."""
    return render.draw((block for block in blocks if not _is_timeline(block)), dark)


def _is_timeline(block: Block) -> bool:
    return isinstance(block, model.Section) and any(isinstance(inner, model.StripBlock) for inner in block.blocks)


callbacks = Callbacks()
