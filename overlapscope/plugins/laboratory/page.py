"""The page Laboratory: experiments with known outcomes, as an index and opened one at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from dash import dcc, html
from dash.development.base_component import Component
from msgspec import Struct

from overlapscope.base.words import clean
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.render import Drawn
from overlapscope.documents.model import Heading
from overlapscope.errors import OverlapscopeError
from overlapscope.plugins.laboratory import RESULTS, document
from overlapscope.plugins.laboratory.comparison import ExperimentComparison, compare
from overlapscope.plugins.laboratory.document import chapter, overview
from overlapscope.plugins.laboratory.results import Results, read_results

LEAD = "Experiments on copies, streams and CUDA graphs with a known outcome: measured here, and published by others."


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


def layout(context: PageContext) -> Iterator[Drawn]:
    """Yield the index, or the experiment of the address."""
    groups = _experiments(context.library)
    experiment_id = context.url.choices.get("experiment")
    if not groups:
        yield render.panel("No results are open", parts.empty(*_NOTHING))
    elif experiment_id is None:
        for experiments in groups:
            yield from _index(context, experiments)
    else:
        yield dcc.Link("← all experiments", href=context.url.href(experiment=None), className="timeline-link")
        opened = [each for experiments in groups for each in experiments if each.id == experiment_id]
        yield from (part for each in opened for part in _opened(context, each))
        if not opened:
            yield parts.empty(f"There is no experiment {clean(experiment_id, 80)!r} here.")


_NOTHING = (
    "Open a directory with results of the laboratory. To run the experiments on this machine:",
    "`overlapscope scenarios run --all; overlapscope dashboard overlapscope-laboratory`",
    "overlapscope comes with results from one H200. To look at those:",
    '`overlapscope dashboard "$(overlapscope samples)"`',
)


# -- The index -------------------------------------------------------------------------------------


def _index(context: PageContext, experiments: Sequence[_ListedExperiment]) -> Iterator[Component]:
    """Yield a line for each experiment, then results over all of them."""
    comparisons = [experiment.comparison for experiment in experiments]
    links: list[Component | None] = [
        dcc.Link("open →", href=context.url.href(experiment=experiment.id), className="timeline-link")
        for experiment in experiments
    ]
    yield parts.table_panel(context, document.index(comparisons), "laboratory-index", links)
    yield parts.drawn(context, "All experiments", *overview(comparisons))


# -- One experiment --------------------------------------------------------------------------------


def _opened(context: PageContext, experiment: _ListedExperiment) -> Iterator[Drawn]:
    """Yield the chapter of an experiment, below a line for each variant with links to its first rank's trace."""
    comparison = experiment.comparison
    result = comparison.result
    files = [experiment.directory / variant.traces[0] if variant.traces else None for variant in result.variants]
    ids = [None if file is None else context.library.id_of(file) for file in files]
    first = next((id for id in ids if id is not None), None)
    # The first line of the table names the experiment.
    links = [None, *(html.Div(_links(context, id, first)) for id in ids)]
    yield Heading(clean(f"{result.name}: {result.title}", 200))
    yield parts.table_panel(context, document.variants([comparison]), "laboratory-variants", links)
    yield parts.drawn(context, "Figures and claims", *chapter(comparison, "laboratory-bars"), id="laboratory-detail")


def _links(context: PageContext, id: str | None, first: str | None) -> list[Component]:
    if id is None:
        return []
    href = partial(context.url.href, experiment=None)
    links = [("open", href("overview", trace=id, other=None))]
    if first is not None and first != id:
        links.append(("compare with the first", href("compare", trace=first, other=id)))
    return [html.Div(dcc.Link(text, href=href, className="timeline-link")) for text, href in links]
