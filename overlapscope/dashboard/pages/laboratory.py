"""Laboratory: experiments whose outcome is known; each variant's small timeline, our figures and the published ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
import msgspec
from dash import MATCH, Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope.analysis.results import efficiency_shown
from overlapscope.base.words import clean, percent, unit_for
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.url import UrlState
from overlapscope.documents import model
from overlapscope.documents.model import Block
from overlapscope.laboratory.comparison import Comparison, compare
from overlapscope.laboratory.document import chapter, overview
from overlapscope.laboratory.results import Analysis, Strip, VariantResult
from overlapscope.laboratory.tables import digits

_LEAD = "Experiments on copies, streams and CUDA graphs whose outcome is known: measured here, and published."
_LANE_COLORS = {"h2d": "h2d-pinned", "d2h": "d2h-pinned"}
"""The palette's names of a strip's lanes, where they differ."""


@dataclass(frozen=True, slots=True)
class _Experiment:
    """One of some results."""

    index: str
    """Of the results and of it in them: ids on the page end in it."""
    directory: Path
    comparison: Comparison

    @property
    def grid(self) -> str:
        """The id of where its variants are drawn."""
        return f"laboratory-grid-{self.index}"

    @property
    def anchor(self) -> str:
        """The id that links lead to."""
        return f"experiment-{self.index}"


def _experiments(library: Library) -> list[list[_Experiment]]:
    """Those of each of the results that have any."""
    found = [
        [_Experiment(f"{number}-{place}", directory, comparison) for place, comparison in enumerate(compare(results))]
        for number, (directory, results) in enumerate(library.results())
    ]
    return [experiments for experiments in found if experiments]


def layout(context: PageContext) -> Component:
    """The page."""
    found = _experiments(context.library)
    if not found:
        return parts.page("Laboratory", _nothing(), lead=_LEAD)
    drawn = [{"element": one.grid, "variants": _variants(context, one)} for one in itertools.chain(*found)]
    return parts.page(
        "Laboratory",
        *(_results(experiments, context.dark) for experiments in found),
        dcc.Store(id="laboratory-variants", data=drawn),
        html.Div(id="laboratory-drawn", hidden=True),
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


def _results(experiments: Sequence[_Experiment], dark: bool) -> Component:
    links = [dmc.Anchor(clean(one.comparison.result.name, 80), href=f"#{one.anchor}", size="sm") for one in experiments]
    told = _drawn(overview([one.comparison for one in experiments]), dark)
    panel = parts.panel("Results", *told, dmc.Group(links, gap="sm", mt="sm"))
    return dmc.Stack([panel, *map(_experiment, experiments)], gap="md")


def _experiment(experiment: _Experiment) -> Component:
    result, index = experiment.comparison.result, experiment.index
    return parts.panel(
        clean(f"{result.name}: {result.title}", 200),
        html.Div(id=experiment.grid, className="laboratory-grid"),
        dmc.Button(
            "Figures and claims",
            id={"type": "laboratory-more", "index": index},
            variant="default",
            size="compact-sm",
            mt="sm",
        ),
        html.Div(id={"type": "laboratory-detail", "index": index}),
        note=clean(result.shows, 400),
        id=experiment.anchor,
    )


def _variants(context: PageContext, experiment: _Experiment) -> list[dict[str, Any]]:
    """What `assets/laboratory.js` draws of each variant, with links to the trace of its first rank."""
    variants = experiment.comparison.result.variants
    files = [experiment.directory / variant.traces[0] if variant.traces else None for variant in variants]
    ids = [None if file is None else context.library.id_of(file) for file in files]
    first = next((id for id in ids if id is not None), None)
    return [
        _variant(experiment.comparison, variant, context.colors) | {"links": _links(context.url, id, first)}
        for variant, id in zip(variants, ids, strict=True)
    ]


def _variant(comparison: Comparison, variant: VariantResult, colors: dict[str, str]) -> dict[str, Any]:
    analysis = variant.analyses[0] if variant.analyses else None
    level = analysis.verdict.level if analysis else ""
    return {
        "name": clean(variant.name, 80),
        "shows": clean(variant.shows, 400),
        "level": level,
        "color": colors.get(level, colors["muted"]),
        "lanes": [
            {
                "name": clean(lane.name, 8),
                "color": colors.get(_LANE_COLORS.get(lane.name, lane.name), colors["muted"]),
                "fill": lane.fill,
            }
            for lane in (analysis.strip.lanes if analysis else ())
        ],
        "caption": _caption(analysis.strip) if analysis else "",
        "figures": _figures(comparison, variant, analysis),
    }


def _caption(strip: Strip) -> str:
    what = clean(strip.label, 60) or "the whole recording"
    return f"{what}, {unit_for(strip.span_ns).text(strip.span_ns)}"


def _figures(comparison: Comparison, variant: VariantResult, analysis: Analysis | None) -> list[tuple[str, str]]:
    if variant.status != "ok":
        return [(variant.status, clean(variant.error or "no reason is known", 300))]
    wall = comparison.wall(variant.name)
    told = [("time here", digits(wall.ours) if wall.ours is None else f"{digits(wall.ours)} ms")]
    if wall.published is not None:
        told.append(("published", f"{digits(wall.published)} ms"))
    if analysis is not None:
        told.append(("efficiency", percent(efficiency_shown(analysis))))
    return told


def _links(url: UrlState, id: str | None, first: str | None) -> list[tuple[str, str]]:
    if id is None:
        return []
    links = [("open", url.href("overview", trace=id, other=None))]
    if first is not None and first != id:
        links.append(("compare with the first", url.href("compare", trace=first, other=id)))
    return links


# -- its figures and claims -----------------------------------------------------------------------


class _Id(msgspec.Struct, frozen=True):
    """Of the button of an experiment."""

    index: str


callbacks = Callbacks()
# The variants are drawn by the page's own script, an experiment's figures when they are asked for.
callbacks.in_browser(
    ("overlapscope_laboratory", "draw"), Output("laboratory-drawn", "children"), Input("laboratory-variants", "data")
)


@callbacks.add(
    Output({"type": "laboratory-detail", "index": MATCH}, "children"),
    Output({"type": "laboratory-more", "index": MATCH}, "children"),
    Input({"type": "laboratory-more", "index": MATCH}, "n_clicks"),
    State({"type": "laboratory-more", "index": MATCH}, "id"),
    prevent_initial_call=True,
)
def show_more(context: PageContext, clicks: int | None, id: _Id) -> Any:
    """The figures and claims of an experiment, or nothing again."""
    known = {one.index: one.comparison for one in itertools.chain(*_experiments(context.library))}
    if not clicks or clicks % 2 == 0 or id.index not in known:
        return None, "Figures and claims"
    told = _drawn(chapter(known[id.index], f"laboratory-bars-{id.index}"), context.dark)
    return dmc.Stack(told, gap="sm", mt="sm"), "Hide figures and claims"


def _drawn(blocks: Iterable[Block], dark: bool) -> list[Component]:
    """Blocks of the laboratory's report, without its timelines, which the page's script draws."""
    return render.draw((block for block in blocks if not _is_timeline(block)), dark)


def _is_timeline(block: Block) -> bool:
    return isinstance(block, model.Section) and any(isinstance(inner, model.Strip) for inner in block.blocks)
